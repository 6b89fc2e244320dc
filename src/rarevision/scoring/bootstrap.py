"""How far a score, or the difference of two, would move with other studies: intervals by bootstrap over studies.

Studies, not events or frames, are drawn with replacement, because those of one patient are not independent. Intervals
hold the middle 95 % of the draws (percentile bootstrap, Efron and Tibshirani 1993); with few studies they are too
narrow, so nothing is called real on fewer than `MIN_STUDIES`.
"""

import numpy as np
import pandas as pd

from rarevision.scoring.score import Score

LEVEL = 0.95
MIN_STUDIES = 6  # with fewer, even a difference of one sign in every study has a two-sided sign test p > 0.05


def draw_studies(studies: int, draws: int, seed: int) -> np.ndarray:
    """How often each study is drawn; int [draws, studies], the same in every call with the same arguments."""
    return np.random.default_rng(seed).multinomial(studies, np.full(studies, 1 / studies), size=draws)


def limits(values: np.ndarray) -> np.ndarray:
    """Lower and upper limit [2, S] of `values` [draws, S]; draws without a value are NaN, and so is a limit of none."""
    found = np.full((2, values.shape[1]), np.nan)
    known = ~np.isnan(values).all(axis=0)
    found[:, known] = np.nanquantile(values[:, known], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return found


def _resampled(score: Score, draws: int, seed: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names and values of the measures, [S], and their values on drawn studies, [draws, S].

    NaN where not defined, and for a single study, which says nothing of the spread.
    """
    names, top, bottom = score.terms()
    weight = draw_studies(len(score.studies), draws, seed)
    sums = (top.sum(axis=0), bottom.sum(axis=0)), (weight @ top, weight @ bottom)
    value, drawn = (np.where(below > 0, above / np.maximum(below, 1), np.nan) for above, below in sums)
    return names, value, drawn if len(score.studies) > 1 else np.full_like(drawn, np.nan)


def bootstrap_intervals(report: Score, draws: int = 2000, seed: int = 0) -> pd.DataFrame:
    """`value`, `low` and `high` of each measure of a report, one row each; deterministic in `seed`."""
    names, value, drawn = _resampled(report, draws, seed)
    low, high = limits(drawn)
    return pd.DataFrame({"value": value, "low": low, "high": high}, index=names)


def compare_reports(a: Score, b: Score, draws: int = 2000, seed: int = 0) -> pd.DataFrame:
    """Paired difference a - b of two predictions of the same truth, one row per measure.

    `real`: the interval of the difference excludes 0, and there are at least `MIN_STUDIES` studies.
    """
    if a.studies != b.studies or a.thresholds != b.thresholds or not np.array_equal(a.true, b.true):
        raise ValueError("only reports on the same truth, studies and thresholds can be compared")
    (names, value, drawn), (_, other, others) = (_resampled(report, draws, seed) for report in (a, b))
    low, high = limits(drawn - others)
    real = ((low > 0) | (high < 0)) & (len(a.studies) >= MIN_STUDIES)
    table = {"value": value, "other": other, "difference": value - other, "low": low, "high": high, "real": real}
    return pd.DataFrame(table, index=names)
