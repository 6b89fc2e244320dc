"""Pictures of learning: curves over epochs, and average precision per label with its interval."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rarevision.figures.palette import GREY, GROUP_COLOUR, TITLE, name_rows


def curves(history: pd.DataFrame, columns: Mapping[str, str], by: str, title: str) -> Figure:
    """One panel per column of `history` against its epoch, one line per value of `by`; `columns`: name -> title."""
    figure, axes = plt.subplots(1, len(columns), figsize=(4.2 * len(columns), 3), squeeze=False)
    for ax, (column, label) in zip(axes.flat, columns.items(), strict=True):
        for i, (value, part) in enumerate(history.groupby(by)):
            ax.plot(part["epoch"], part[column], marker="os^Dv"[i % 5], ms=4, label=f"{by} {value}")
        ax.set(xlabel="epoch", title=label)
        ax.xaxis.get_major_locator().set_params(integer=True)
    axes.flat[0].legend()
    figure.suptitle(title, **TITLE)
    return figure


def frame_aps(table: pd.DataFrame, title: str) -> Axes:
    """AP per label with its interval, and the share of frames that guessing earns, from `scoring.frame_table`."""
    _, ax = plt.subplots(figsize=(8, 0.26 * len(table) + 1))
    rows = np.arange(len(table))
    colours = [GROUP_COLOUR[name] for name in table.index]
    ax.hlines(rows, table["low"], table["high"], color=colours, lw=2)
    ax.scatter(table["AP"], rows, color=colours, s=24, zorder=3)
    ax.scatter(table["baseline"], rows, marker="|", s=90, color=GREY, zorder=2)
    for i in np.flatnonzero(table["AP"].isna()):
        ax.text(0.01, i, "no positive frame", va="center", fontsize=7, color=GREY)
    name_rows(ax, table.index)
    ax.set(title=title, xlabel="average precision (line: 95 % interval; grey mark: guessing)", xlim=(0, 1))
    return ax
