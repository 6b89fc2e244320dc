"""Intervals: how far a score, or the difference of two, would move with other studies. Bootstrap over studies.

Studies, not events, are drawn with replacement, because the events of one patient are not independent. Percentile
intervals; with few studies they are too narrow, so nothing is called real on fewer than `MIN_STUDIES`.
"""

import numpy as np
import pandas as pd

from rarevision.scoring.report import Report

MIN_STUDIES = 6  # with fewer, even a difference of one sign in every study has a two-sided sign test p > 0.05


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    return np.where(bottom > 0, top / np.maximum(bottom, 1), np.nan)


def _draws(report: Report, draws: int, seed: int) -> np.ndarray:
    """Measures [draws, S] on studies drawn with replacement; the same studies for every report of as many studies."""
    _, top, bottom = report.terms()
    n = len(report.studies)
    weight = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws)
    return _ratio(weight @ top, weight @ bottom)


def _point(report: Report) -> np.ndarray:
    _, top, bottom = report.terms()
    return _ratio(top.sum(axis=0), bottom.sum(axis=0))


def _limits(values: np.ndarray, studies: int, level: float) -> np.ndarray:
    """Lower and upper limit [2, S]; NaN for a single study, which says nothing of the spread, and without values."""
    limits = np.full((2, values.shape[1]), np.nan)
    known = ~np.isnan(values).all(axis=0) & (studies >= 2)
    tail = (1 - level) / 2
    if known.any():
        limits[:, known] = np.nanquantile(values[:, known], [tail, 1 - tail], axis=0)
    return limits


def bootstrap_intervals(report: Report, draws: int = 2000, level: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """`value`, `low` and `high` of each measure of a report, one row each; deterministic in `seed`."""
    low, high = _limits(_draws(report, draws, seed), len(report.studies), level)
    return pd.DataFrame({"value": _point(report), "low": low, "high": high}, index=report.terms()[0])


def compare_reports(a: Report, b: Report, draws: int = 2000, level: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """Paired difference a - b of two predictions of the same truth, one row per measure.

    `real`: the interval of the difference excludes 0, and there are at least `MIN_STUDIES` studies.
    """
    if a.studies != b.studies or a.thresholds != b.thresholds or not np.array_equal(a.true, b.true):
        raise ValueError("only reports on the same truth, studies and thresholds can be compared")
    low, high = _limits(_draws(a, draws, seed) - _draws(b, draws, seed), len(a.studies), level)
    real = ((low > 0) | (high < 0)) & (len(a.studies) >= MIN_STUDIES)
    table = {"value": _point(a), "other": _point(b), "difference": _point(a) - _point(b)}
    return pd.DataFrame(table | {"low": low, "high": high, "real": real}, index=a.terms()[0])
