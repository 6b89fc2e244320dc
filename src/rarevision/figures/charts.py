"""Charts of any numbers: bars per label, a table as shaded cells, a grid of images."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rarevision.figures.palette import BLUE, GREY, GROUP_COLOUR, ORANGE, TITLE, name_rows


def bars(values: pd.Series | pd.DataFrame, title: str, xlabel: str, log: bool = False) -> Axes:
    """Horizontal bars per label, anatomy and findings in two colours; a DataFrame draws one bar per column.

    `log`: on a log scale, each bar with its value.
    """
    table = values.to_frame() if isinstance(values, pd.Series) else values
    columns = table.shape[1]
    _, ax = plt.subplots(figsize=(8, 0.24 * len(table) * max(1, columns * 0.75) + 1))
    height = 0.8 / columns
    shades = 1 - 0.6 * np.arange(columns) / columns
    for i, (column, shade) in enumerate(zip(table, shades, strict=True)):
        y = np.arange(len(table)) + (i - (columns - 1) / 2) * height
        drawn = ax.barh(y, table[column], height, color=[GROUP_COLOUR[name] for name in table.index], alpha=shade)
        if log:
            ax.bar_label(drawn, [_brief(value) for value in table[column]], padding=2, fontsize=7)
    name_rows(ax, table.index)
    ax.set(title=title, xlabel=xlabel, xscale="log" if log else "linear")
    handles = [Patch(color=BLUE, label="anatomy"), Patch(color=ORANGE, label="findings")]
    if columns > 1:
        handles += [Patch(color=GREY, alpha=a, label=str(c)) for a, c in zip(shades, table.columns, strict=True)]
    ax.legend(handles=handles)
    return ax


def _brief(value: float) -> str:
    return "" if not value > 0 else f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def cells(shade: pd.DataFrame, text: pd.DataFrame, title: str, label: str) -> Axes:
    """A table as cells with `text` in them, shaded by a share from 0 to 1 that `label` names."""
    _, ax = plt.subplots(figsize=(max(8, 3 + 0.45 * shade.shape[1]), 0.26 * len(shade) + 2))
    options = {"cmap": "cividis", "vmin": 0, "vmax": 1, "cbar_kws": {"label": label}, "annot_kws": {"fontsize": 6}}
    sns.heatmap(shade, annot=text, fmt="", xticklabels=True, yticklabels=True, ax=ax, **options)
    ax.set(title=title, xlabel="", ylabel="")
    return ax


def counts(table: pd.DataFrame, title: str) -> Axes:
    """Counts as a table, shaded by the share of their row."""
    share = table.div(table.sum(axis=1).clip(lower=1), axis=0)
    return cells(share, table.map("{:,}".format), title, "share of the row")


def images(
    pictures: Sequence[np.ndarray], titles: Sequence[str], columns: int, title: str = "", size: float = 1.5
) -> Figure:
    """A grid of RGB images [H, W, 3], each with its title above it; `size` is an image's width in inches."""
    rows = max(1, -(-len(pictures) // columns))
    figure, axes = plt.subplots(rows, columns, figsize=(columns * size, rows * (size + 0.2)), squeeze=False)
    for ax in axes.flat:
        ax.axis("off")
    for ax, picture, text in zip(axes.flat, pictures, titles, strict=False):
        ax.imshow(picture)
        ax.set_title(text, fontsize=7, loc="center")
    figure.suptitle(title, **TITLE)
    return figure
