"""Figures that more than one notebook needs. Titles say what to see; colours hold in grey and for the colour-blind."""

import itertools
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rarevision.config import Data
from rarevision.data import open_reader
from rarevision.events import Event, runs, to_labels
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
                ax.text(
                    value,
                    y[j] + i * height,
                    f" {value:,.0f}" if value >= 100 else f" {value:.2g}",
                    va="center",
                    fontsize=7,
                )
    ax.set_yticks(y + height * (table.shape[1] - 1) / 2, table.index)
    ax.invert_yaxis()
    ax.set(title=title, xlabel=xlabel, xscale="log" if log else "linear")
    handles = [Patch(color=BLUE, label="anatomy"), Patch(color=ORANGE, label="findings")]
    if table.shape[1] > 1:
        handles += [
            Patch(color=GREY, alpha=1 - 0.6 * i / table.shape[1], label=str(c)) for i, c in enumerate(table.columns)
        ]
    ax.legend(handles=handles, loc="best", frameon=False, fontsize=8)
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


def label_montage(picked: dict[str, np.ndarray], source, index, width: int) -> Figure:
    """`width` frames of each label: `picked` names rows of `index`, `source` reads them; two labels per line."""
    pictures, titles = [], []
    blank = np.full((8, 8, 3), 255, np.uint8)
    for name, rows in picked.items():
        pictures += [source.read(int(r)) for r in rows] + [blank] * (width - len(rows))
        where = [f"study {index.studies[int(index.study_of(r))]}" for r in rows]
        titles += [f"{name}\n{w}" if i == 0 else f"\n{w}" for i, w in enumerate(where)] + [""] * (width - len(rows))
        if not len(rows):
            titles[-width] = f"{name}\nno frame"
    return images(pictures, titles, 2 * width, "Frames of each label, drawn at random", size=1.05)


def systems(examples: Sequence[tuple], treatments: dict[str, Data]) -> Figure:
    """One study per capsule system, its middle frame under each treatment of `data`."""
    pictures, titles = [], []
    for index, study in examples:
        rows = index.rows(study)
        for name, data in treatments.items():
            reader = open_reader(index.select([study]), data, from_source=True)
            pictures.append(reader.read((rows.stop - rows.start) // 2))
            titles.append(f"{index.systems[index.studies.index(study)]}, study {study}\n{name}")
    return images(pictures, titles, len(treatments), "Mask, scale and colours differ from capsule to capsule", size=2)


def heat(table: pd.DataFrame, title: str) -> Axes:
    """Counts as a table shaded by the share of their row."""
    share = table.div(table.sum(axis=1).clip(lower=1), axis=0)
    _, ax = plt.subplots(figsize=(2 + 0.9 * table.shape[1], 0.26 * len(table) + 1))
    ax.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for i, j in np.ndindex(table.shape):
        colour = "white" if share.iloc[i, j] > 0.6 else "black"
        ax.text(j, i, f"{table.iloc[i, j]:,}", ha="center", va="center", fontsize=7, color=colour)
    ax.set_xticks(range(table.shape[1]), table.columns)
    ax.set_yticks(range(len(table)), table.index)
    ax.set_title(title)
    return ax


def attention(pictures, maps, title: str, prefix: int = 1) -> Figure:
    """Where the class token of each picture looks in both branches (light: much), and after subtraction (purple: less
    than nothing, white: 0, orange: more), in the first (pair of) heads. All three in the same units, scale by row.

    `pictures` uint8 [B, 3, S, S]; `maps` one layer's `attention.Maps`, patches on a square grid behind `prefix` tokens,
    the class token first; without any, the mean over all patches.
    """
    figure, axes = plt.subplots(len(pictures), 4, figsize=(7.2, 1.7 * len(pictures) + 0.6), squeeze=False)
    for i, (row, picture) in enumerate(zip(axes, pictures, strict=True)):
        found = [getattr(maps, name)[i, 0].float().cpu().numpy() for name in ("first", "second", "difference")]
        found = [(one[0] if prefix else one.mean(0))[prefix:] for one in found]
        most = max(np.abs(one).max() for one in found)
        row[0].imshow(picture.permute(1, 2, 0).numpy())
        for ax, name, one in zip(row[1:], ("first", "second", "difference"), found, strict=True):
            side = round(len(one) ** 0.5)
            low, colours = (-most, "PuOr_r") if name == "difference" else (0, "cividis")
            drawn = ax.imshow(one.reshape(side, side), cmap=colours, vmin=low, vmax=most)
            ax.set_title(f"{name}: {one.min():.3f} to {one.max():.3f}", fontsize=7, loc="center")
            figure.colorbar(drawn, ax=ax, shrink=0.8).ax.tick_params(labelsize=6)
        for ax in row:
            ax.axis("off")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def intervals(table: pd.DataFrame, title: str) -> Axes:
    """AP per label with its interval, and the prevalence that guessing earns; columns AP, low, high, baseline."""
    _, ax = plt.subplots(figsize=(8, 0.26 * len(table) + 1))
    y = np.arange(len(table))
    colours = [GROUP_COLOUR[name] for name in table.index]
    ax.hlines(y, table["low"], table["high"], color=colours, lw=2)
    ax.scatter(table["AP"], y, color=colours, s=24, zorder=3)
    ax.scatter(table["baseline"], y, marker="|", s=90, color=GREY, zorder=2)
    for i in np.flatnonzero(table["AP"].isna()):
        ax.text(0.01, i, "no positive frame", va="center", fontsize=7, color=GREY)
    ax.set_yticks(y, table.index)
    ax.invert_yaxis()
    ax.set(title=title, xlabel="average precision (line: 95 % interval; grey mark: guessing)", xlim=(0, 1))
    return ax


def thumbnails(study, events: Sequence[Event], source, limit: int = 8) -> list[tuple[int, np.ndarray]]:
    """Frame number and picture at the middle of the longest predicted event of each label; [] without the frames."""
    if source is None or study.study not in source.studies:
        return []
    part = source.select([study.study])
    rows = key_rows(to_labels(part.frame, events), limit) or np.linspace(0, len(part) - 1, limit).astype(int).tolist()
    return [(int(part.frame[row]), part.image(row)) for row in rows]


def event_pictures(study, events: Sequence[Event], source, truth: Sequence[Event] | None, limit: int) -> Figure:
    """The middle frame of each event, in the order listed, at most `limit`; said to be right where a true event of the
    label shows that frame.
    """
    part = source.select([study.study])
    shown, titles = [], []
    for event in list(events)[:limit]:
        middle = (event.start + event.end) // 2
        row = min(int(np.searchsorted(part.frame, middle)), len(part) - 1)
        right = truth and any(t.start <= middle <= t.end and set(event.labels) <= set(t.labels) for t in truth)
        shown.append(part.image(row))
        mark = "" if truth is None else ", true" if right else ", false"
        titles.append(f"{', '.join(event.labels)}{mark}\n{event.start} to {event.end}")
    left = f", the first {limit} of {len(events)}" if len(events) > limit else ""
    return images(shown, titles, min(8, len(shown)), f"{study.study}: what the events show{left}", size=1.45)


def drift(table: pd.DataFrame, title: str) -> Axes:
    """Cosine to the plain model after each block, one line per form, the last in the legend too."""
    _, ax = plt.subplots(figsize=(7.5, 3.4))
    marks = itertools.cycle(("kx-", "s--", "o--", "v--", "^-", "D-"))
    for mark, (name, part) in zip(marks, table.groupby("variant", sort=False), strict=False):
        places = [place.removeprefix("block ") for place in part.place]
        label = f"{name}: {part.cosine.iloc[-1]:.3f}"
        ax.plot(places, part.cosine, mark, ms=9 if name == "plain" else 5, label=label)
    ax.set(title=title, ylabel="cosine to plain", xlabel="after block", ylim=(None, 1.03))
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), title="at the end")
    return ax
