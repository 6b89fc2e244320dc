"""Pictures of attention: how far each form starts from the pretrained features, and where it looks."""

import itertools
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rarevision.figures.palette import TITLE


def drift(table: pd.DataFrame, title: str) -> Axes:
    """Cosine to the plain model after each block, one line per form, the last value in the legend too.

    `table` is that of `rarevision.model.feature_drift`.
    """
    _, ax = plt.subplots(figsize=(7.5, 3.4))
    marks = itertools.cycle(("kx-", "s--", "o--", "v--", "^-", "D-"))
    for mark, (name, part) in zip(marks, table.groupby("variant", sort=False), strict=False):
        places = [place.removeprefix("block ") for place in part.place]
        label = f"{name}: {part.cosine.iloc[-1]:.3f}"
        ax.plot(places, part.cosine, mark, ms=9 if name == "plain" else 5, label=label)
    ax.set(title=title, ylabel="cosine to plain", xlabel="after block", ylim=(None, 1.03))
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), title="at the end")
    return ax


def attention(pictures: Any, maps: Any, title: str, prefix: int = 1) -> Figure:
    """Where the class token of each picture looks in both branches (light: much), and after subtraction (purple: less
    than nothing, white: 0, orange: more), in the first (pair of) heads. All three in the same units, scale by row.

    `pictures` uint8 tensor [B, 3, S, S]; `maps` those of one layer (`rarevision.model.attention_maps`), patches on a
    square grid behind `prefix` tokens, the class token first; without any, the mean over all patches.
    """
    names = ("first", "second", "difference")
    figure, axes = plt.subplots(len(pictures), 4, figsize=(7.2, 1.7 * len(pictures) + 0.6), squeeze=False)
    for i, (row, picture) in enumerate(zip(axes, pictures, strict=True)):
        found = [getattr(maps, name)[i, 0].float().cpu().numpy() for name in names]
        found = [(one[0] if prefix else one.mean(0))[prefix:] for one in found]
        most = max(np.abs(one).max() for one in found)
        row[0].imshow(picture.permute(1, 2, 0).numpy())
        for ax, name, one in zip(row[1:], names, found, strict=True):
            side = round(len(one) ** 0.5)
            low, colours = (-most, "PuOr_r") if name == "difference" else (0, "cividis")
            drawn = ax.imshow(one.reshape(side, side), cmap=colours, vmin=low, vmax=most)
            ax.set_title(f"{name}: {one.min():.3f} to {one.max():.3f}", fontsize=7, loc="center")
            figure.colorbar(drawn, ax=ax, shrink=0.8).ax.tick_params(labelsize=6)
        for ax in row:
            ax.axis("off")
    figure.suptitle(title, **TITLE)
    return figure
