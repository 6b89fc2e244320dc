"""Pictures of scores and decisions: what thresholds find, what is earned and lost, and what a probability means."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from sklearn.calibration import calibration_curve
from sklearn.metrics import precision_recall_curve

from rarevision.figures.palette import BLUE, GREY, GROUP_COLOUR, ORANGE, TITLE, name_rows
from rarevision.labels import ANATOMY, COLUMN, FINDINGS, LABELS
from rarevision.scoring import Report


def precision_recall(probs: np.ndarray, labels: np.ndarray, title: str) -> Figure:
    """One small panel per label; `probs` and `labels` [N, 17]."""
    figure, axes = plt.subplots(3, 6, figsize=(11, 5.6), sharex=True, sharey=True)
    for ax in axes.flat[len(LABELS) :]:
        ax.axis("off")
    for ax, name in zip(axes.flat, LABELS, strict=False):
        truth = labels[:, COLUMN[name]]
        ax.set_title(name, fontsize=8)
        if not truth.any():
            ax.text(0.5, 0.5, "no positive\nframe", ha="center", va="center", fontsize=7, color=GREY)
            continue
        precision, recall, _ = precision_recall_curve(truth, probs[:, COLUMN[name]])
        ax.step(recall, precision, where="post", color=GROUP_COLOUR[name], lw=1)
        ax.axhline(truth.mean(), color=GREY, lw=0.8, ls=":")
        best = np.argmax(2 * precision * recall / np.maximum(precision + recall, 1e-12))
        ax.plot(recall[best], precision[best], "ko", ms=4)
    axes[0, 0].set(xlim=(0, 1), ylim=(0, 1.03))
    figure.supxlabel("recall", fontsize=9)
    figure.supylabel("precision", fontsize=9)
    figure.suptitle(title, **TITLE)
    return figure


def thresholds(spread: dict[str, dict], values: np.ndarray, title: str) -> Axes:
    """Thresholds per label: in use (bar) and fitted without each fold (dots); above 1 = never reached."""
    _, ax = plt.subplots(figsize=(8, 0.26 * len(spread) + 1))
    for i, (name, facts) in enumerate(spread.items()):
        dots = np.minimum(facts["folds"], 1.05)
        ax.hlines(i, dots.min(), dots.max(), color=GROUP_COLOUR[name], lw=1)
        ax.scatter(dots, [i] * len(dots), s=16, color=GROUP_COLOUR[name])
        ax.plot([min(values[i], 1.05)] * 2, [i - 0.38, i + 0.38], color="black", lw=2)
    ax.axvspan(1.0, 1.1, color=GREY, alpha=0.25, lw=0)
    name_rows(ax, list(spread))
    ax.set(title=title, xlabel="threshold (grey: never reached)", xlim=(0, 1.1))
    return ax


def sources(reports: dict, title: str) -> Axes:
    """Stacked bars: what silence, anatomy and findings contribute to each score, at both tIoU thresholds."""
    _, ax = plt.subplots(figsize=(8, 0.5 + 0.42 * sum(len(r.names()) for r in reports.values())))
    colours = {"silence": "#CCCCCC", "anatomy": BLUE, "findings": ORANGE}
    rows: list[str] = []
    for method, report in reports.items():
        table = report.sources()
        for name in report.names():
            left = 0.0
            for part, value in table[name].items():
                ax.barh(len(rows), value, left=left, color=colours[part], edgecolor="white")
                left += value
            ax.text(left + 0.005, len(rows), f"{left:.3f}", va="center", fontsize=8)
            rows.append(f"{method}, {name}")
    empty = next(iter(reports.values())).empty
    ax.axvline(empty, color="black", lw=1, ls="--")
    name_rows(ax, rows)
    ax.set(title=title, xlabel="score (dashed: the empty submission)", xlim=(0, 1))
    ax.legend(handles=[Patch(color=c, label=n) for n, c in colours.items()], loc="lower right")
    return ax


def trade(report: Report, title: str) -> Axes:
    """Per label, at the first tIoU: credit lost on studies without it (left), earned on studies with it (right).

    `title` may hold {earned}, {lost} and {empty}: the sums as parts of the score, and silence's score.
    """
    ap, there = report.ap[0], report.present
    earned, lost = np.where(there, ap, 0).mean(0), np.where(there, 0, 1 - ap).mean(0)
    _, ax = plt.subplots(figsize=(8, 5.2))
    ax.barh(LABELS, earned, color=[GROUP_COLOUR[n] for n in LABELS])
    ax.barh(LABELS, -lost, color=GREY)
    ax.axvline(0, color="black", lw=1)
    ax.invert_yaxis()
    said = title.format(earned=f"{earned.mean():.3f}", lost=f"{lost.mean():.3f}", empty=f"{report.empty:.3f}")
    ax.set(title=said, xlabel="lost on absent labels (grey) | earned on present labels, per study")
    return ax


def waterfall(steps: dict[str, Report], title: str) -> Figure:
    """The score after each step, one panel per tIoU; "silence" first. `title` may hold {gain}: of the last over it."""
    silence = steps["silence"]
    values = pd.DataFrame({name: r.score for name, r in steps.items()}, index=silence.names()).T
    figure, axes = plt.subplots(1, values.shape[1], figsize=(11, 3.2), sharey=True, squeeze=False)
    for ax, name in zip(axes.flat, values, strict=True):
        start = values[name].shift(fill_value=0.0)
        change = values[name] - start
        ax.barh(values.index, change, left=start, color=[GREY, *np.where(change[1:] >= 0, BLUE, ORANGE)])
        for y, (step, end) in enumerate(zip(change, values[name], strict=True)):
            ax.text(max(end, end - step) + 0.01, y, f"{end:.3f} ({step:+.3f})" if y else f"{end:.3f}", va="center")
        ax.axvline(silence.empty, color="black", lw=1, ls="--")
        ax.set(title=name, xlim=(0, max(1.0, values.max().max() + 0.2)), xlabel="score, out of fold")
    name_rows(axes[0, 0], list(steps))
    gain = " and ".join(f"{v:+.3f} at {name}" for name, v in (values.iloc[-1] - silence.empty).items())
    figure.suptitle(title.format(gain=gain), **TITLE)
    return figure


def reliability(labels: np.ndarray, stated: dict[str, np.ndarray], title: str) -> Figure:
    """Share of frames that show a label against the probability stated for it, [N, 17] each, with the Brier score."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True)
    for ax, (group, names) in zip(axes, {"anatomy": ANATOMY, "findings": FINDINGS}.items(), strict=True):
        columns = [COLUMN[name] for name in names]
        ax.plot([0, 1], [0, 1], color="black", lw=0.8, ls="--")
        y = labels[:, columns].ravel()
        for (name, p), colour, marker in zip(stated.items(), (ORANGE, BLUE), "so", strict=True):
            p = np.clip(p[:, columns].ravel(), 0, 1)  # sums of float32 may leave 1 by a rounding
            seen, said = calibration_curve(y, p, n_bins=10)
            ax.plot(said, seen, color=colour, marker=marker, label=f"{name}: Brier score {np.mean((p - y) ** 2):.4f}")
        ax.set(title=group, xlabel="stated probability", xlim=(0, 1), ylim=(0, 1))
        ax.legend(loc="upper left")
    axes[0].set_ylabel("share of frames that show the label")
    figure.suptitle(title, **TITLE)
    return figure
