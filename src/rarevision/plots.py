"""Figures that more than one notebook needs. Titles say what to see; colours hold in grey and for the colour-blind."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rarevision.events import Event, runs
from rarevision.labels import ANATOMY, COLUMN, FINDINGS, LABELS, REGIONS

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#999999"  # Okabe-Ito: differ in lightness too
GROUP_COLOUR = dict.fromkeys(ANATOMY, BLUE) | dict.fromkeys(FINDINGS, ORANGE)
REGION_COLOUR = dict(zip(REGIONS, ("#F0E442", "#E69F00", "#CC79A7", "#56B4E9", "#004D73"), strict=True))


def style() -> None:
    """Once per notebook."""
    plt.rcParams.update(
        {
            "figure.dpi": 110,
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 11,
            "font.size": 9,
        }
    )


def bars(values: pd.Series | pd.DataFrame, title: str, xlabel: str, log: bool = False, ax: Axes | None = None) -> Axes:
    """Horizontal bars per label, anatomy and findings in two colours; a DataFrame draws one bar per column."""
    table = values.to_frame() if isinstance(values, pd.Series) else values
    ax = ax or plt.subplots(figsize=(8, 0.24 * len(table) * max(1, table.shape[1] * 0.75) + 1))[1]
    height = 0.8 / table.shape[1]
    y = np.arange(len(table))
    for i, column in enumerate(table):
        colours = [GROUP_COLOUR.get(name, GREY) for name in table.index]
        ax.barh(y + i * height, table[column], height, color=colours, alpha=1 - 0.6 * i / table.shape[1])
        if not log:
            continue
        for j, value in enumerate(table[column]):
            if value > 0:
                ax.text(value, y[j] + i * height, f" {value:,.4g}", va="center", fontsize=7)
    ax.set_yticks(y + height * (table.shape[1] - 1) / 2, table.index)
    ax.invert_yaxis()
    ax.set(title=title, xlabel=xlabel, xscale="log" if log else "linear")
    handles = [Patch(color=BLUE, label="anatomy"), Patch(color=ORANGE, label="findings")]
    if table.shape[1] > 1:
        handles += [
            Patch(color=GREY, alpha=1 - 0.6 * i / table.shape[1], label=str(c)) for i, c in enumerate(table.columns)
        ]
    ax.legend(handles=handles, loc="lower right", frameon=False, fontsize=8)
    return ax


def cooccurrence(labels: np.ndarray, title: str) -> Axes:
    """Share of each row label's frames that also carry the column's label; `labels` is [N, 17] of 0 and 1."""
    both = labels.T.astype(np.float64) @ labels
    share = both / np.maximum(np.diag(both), 1)[:, None]
    _, ax = plt.subplots(figsize=(8, 6.5))
    image = ax.imshow(np.where(share > 0, share, np.nan), cmap="cividis", vmin=0, vmax=1)
    for i, j in zip(*np.nonzero(share >= 0.005), strict=True):
        text = "1" if share[i, j] > 0.995 else f"{share[i, j]:.2f}".lstrip("0")
        ax.text(j, i, text, ha="center", va="center", fontsize=6, color="white" if share[i, j] < 0.5 else "black")
    ax.set_xticks(range(len(LABELS)), LABELS, rotation=60, ha="right")
    ax.set_yticks(range(len(LABELS)), LABELS)
    ax.set_title(title)
    plt.colorbar(image, ax=ax, label="share of the row's frames")
    return ax


def spread(values: dict[str, Sequence[float]], title: str, xlabel: str) -> Axes:
    """One row per label: every value as a point, the median as a bar, on a log scale."""
    _, ax = plt.subplots(figsize=(8, 0.26 * len(values) + 1))
    rng = np.random.default_rng(0)
    for i, (name, points) in enumerate(values.items()):
        points = np.asarray(points, float)
        colour = GROUP_COLOUR.get(name, GREY)
        ax.scatter(points, i + rng.uniform(-0.25, 0.25, len(points)), s=8, alpha=0.5, color=colour, linewidths=0)
        if len(points):
            ax.plot([np.median(points)] * 2, [i - 0.38, i + 0.38], color="black", lw=2)
    ax.set_yticks(range(len(values)), list(values))
    ax.invert_yaxis()
    ax.set(title=title, xlabel=xlabel, xscale="log")
    return ax


def images(
    pictures: Sequence[np.ndarray], titles: Sequence[str], columns: int, title: str = "", size: float = 1.5
) -> Figure:
    """A grid of RGB images [H, W, 3] (or maps [H, W], drawn in one scale per picture)."""
    rows = -(-len(pictures) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(columns * size, rows * (size + 0.2)), squeeze=False)
    for ax in axes.flat:
        ax.axis("off")
    for ax, picture, text in zip(axes.flat, pictures, titles, strict=False):
        ax.imshow(picture, cmap="cividis")
        ax.set_title(text, fontsize=7, loc="center")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def curves(history: pd.DataFrame, columns: dict[str, str], by: str, title: str) -> Figure:
    """One panel per column of `history` against its epoch, one line per value of `by`."""
    figure, axes = plt.subplots(1, len(columns), figsize=(4.2 * len(columns), 3), squeeze=False)
    for ax, (column, label) in zip(axes.flat, columns.items(), strict=True):
        for i, (value, part) in enumerate(history.groupby(by)):
            ax.plot(part["epoch"], part[column], marker="os^Dv"[i % 5], ms=4, label=f"{by} {value}")
        ax.set(xlabel="epoch", title=label)
        ax.xaxis.get_major_locator().set_params(integer=True)
    axes.flat[0].legend(frameon=False, fontsize=8)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _ribbon(ax: Axes, events: Sequence[Event], y: float, height: float, colours: dict[str, str]) -> None:
    for name, colour in colours.items():
        spans = [(e.start, e.end - e.start + 1) for e in events if name in e.labels]
        ax.broken_barh(spans, (y, height), color=colour, linewidth=0)


def timeline(
    study: str,
    frame: np.ndarray,
    probs: np.ndarray,
    predicted: Sequence[Event],
    truth: Sequence[Event] | None = None,
    thumbnails: Sequence[tuple[int, np.ndarray]] = (),
) -> Figure:
    """A whole study on one time axis: thumbnails, regions (truth over prediction), and one lane per other label with
    scores as a line, truth as an orange band and predicted events as black bars. Lanes without events are left out.
    """
    others = [n for n in LABELS if n not in REGIONS]
    present = {label for event in [*predicted, *(truth or ())] for label in event.labels}
    lanes = [n for n in others if n in present]
    figure, (top, ribbon, body) = plt.subplots(
        3,
        1,
        figsize=(11, 2.6 + 0.42 * len(lanes) + (1.1 if len(thumbnails) else 0)),
        sharex=True,
        height_ratios=[1.1 if len(thumbnails) else 0.01, 0.7, max(0.42 * len(lanes), 0.2)],
    )
    top.axis("off")
    low, high = int(frame[0]), int(frame[-1])
    width = (high - low) / max(len(thumbnails), 1)
    for i, (number, picture) in enumerate(thumbnails):
        inset = top.inset_axes([i / len(thumbnails), 0, 0.97 / len(thumbnails), 1])
        inset.imshow(picture)
        inset.set_title(f"{number}", fontsize=7, loc="center")
        inset.axis("off")
        ribbon.annotate("", (number, 2.1), (low + (i + 0.5) * width, 2.7), arrowprops={"arrowstyle": "-", "lw": 0.6})
    _ribbon(ribbon, predicted, 0, 0.9, REGION_COLOUR)
    if truth is not None:
        _ribbon(ribbon, truth, 1, 0.9, REGION_COLOUR)
    ribbon.set_yticks([0.45, 1.45], ["predicted", "truth" if truth is not None else "truth unknown"])
    ribbon.set_ylim(0, 2.1)
    ribbon.legend(
        handles=[Patch(color=c, label=n) for n, c in REGION_COLOUR.items()],
        ncols=5,
        fontsize=7,
        frameon=False,
        loc="lower left",
        bbox_to_anchor=(0, 1.0) if not len(thumbnails) else (0, -0.55),
    )
    for lane, name in enumerate(lanes):
        score = probs[:, COLUMN[name]]
        peak = max(float(score.max()), 1e-6)
        _ribbon(body, truth or (), lane + 0.05, 0.85, {name: "#F5C6A0"})
        body.plot(frame, lane + 0.05 + 0.85 * score / peak, lw=0.5, color=BLUE)
        _ribbon(body, predicted, lane + 0.02, 0.14, {name: "black"})
    body.set_yticks(np.arange(len(lanes)) + 0.45, lanes)
    body.set_ylim(0, max(len(lanes), 1))
    body.set(xlabel="frame", xlim=(low, high + 1))
    figure.suptitle(
        f"{study}: scores (blue, each lane to its own peak), truth (orange bands), predicted events (black bars)",
        x=0.01,
        ha="left",
        fontsize=10,
    )
    return figure


def key_rows(labels: np.ndarray, limit: int) -> list[int]:
    """Rows worth a thumbnail: the middle of the longest run of each label, spread over the study, at most `limit`."""
    middles = []
    for column in range(labels.shape[1]):
        spans = runs(labels[:, column] > 0)
        if len(spans):
            start, end = spans[np.argmax(spans[:, 1] - spans[:, 0])]
            middles.append(int(start + end) // 2)
    middles = sorted(set(middles))
    if len(middles) > limit:
        middles = [middles[i] for i in np.linspace(0, len(middles) - 1, limit).astype(int)]
    return middles
