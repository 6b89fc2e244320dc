"""Colours and look that all figures share.

The colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which readers with any colour vision tell
apart; regions of the capsule's way also differ in lightness from their neighbours.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes

from rarevision.labels import ANATOMY, FINDINGS, REGIONS

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#999999"
CYCLE = (BLUE, "#E69F00", "#009E73", "#CC79A7", "#56B4E9", ORANGE)
GROUP_COLOUR = dict.fromkeys(ANATOMY, BLUE) | dict.fromkeys(FINDINGS, ORANGE)
REGION_COLOUR = dict(zip(REGIONS, ("#F0E442", "#E69F00", "#CC79A7", "#56B4E9", "#004D73"), strict=True))
TITLE = {"x": 0.01, "ha": "left"}  # of a figure with several panels: on the left, as the titles of single ones


def style() -> None:
    """Set the look of all figures; once per notebook."""
    plt.rcParams.update(
        {
            "figure.dpi": 110,
            "figure.constrained_layout.use": True,
            "figure.titlesize": 11,
            "axes.prop_cycle": cycler(color=CYCLE),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 11,
            "font.size": 9,
            "legend.frameon": False,
            "legend.fontsize": 8,
        }
    )


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Name rows 0, 1, ... of a figure, the first one on top."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
