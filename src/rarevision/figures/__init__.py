"""Every picture, drawn with matplotlib from tables and arrays that other packages made.

plots         pictures of data, model, training and whole studies; `plots.style()` sets the look of all
score_plots   pictures of scores: precision against recall, thresholds, where a score comes from
"""

from rarevision.figures import plots, score_plots

__all__ = ["plots", "score_plots"]
