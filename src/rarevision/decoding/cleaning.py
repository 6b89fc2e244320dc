"""Cleaning: a mask of positive frames to tidy runs, by median, filled gaps, minimum length, as published."""

import numpy as np

from rarevision.events import runs


def clean(mask: np.ndarray, median: int = 7, max_gap: int = 5, min_length: int = 3) -> np.ndarray:
    """Cleaned copy of a bool mask [T]; all lengths in frames (rows).

    1. The majority over `median` frames; beyond the ends the mask is mirrored (scipy.ndimage's `reflect`).
    2. Gaps of at most `max_gap` frames between two positives are filled.
    3. Runs shorter than `min_length` are dropped.
    """
    mask = np.asarray(mask, bool)
    if median > 1 and len(mask):
        half = median // 2
        total = np.cumsum(np.pad(mask, half, mode="symmetric").astype(np.int32))
        total[median:] -= total[:-median].copy()
        mask = total[median - 1 :] > half
    found = runs(mask)
    if not len(found):
        return np.zeros(len(mask), bool)
    wide = np.flatnonzero(found[1:, 0] - found[:-1, 1] - 1 > max_gap)
    first, last = found[np.append(0, wide + 1), 0], found[np.append(wide, len(found) - 1), 1]
    keep = last - first + 1 >= min_length
    return fill(len(mask), first[keep], last[keep])


def fill(length: int, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Bool mask [length], True on the inclusive rows first..last of every run; runs may overlap."""
    change = np.zeros(length + 1, np.int32)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    return np.cumsum(change[:-1]) > 0


def run_means(values: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Mean of `values` [T] over each inclusive run of `found` int [n, 2]; float64 [n]."""
    total = np.append(0.0, np.cumsum(values, dtype=np.float64))
    return (total[found[:, 1] + 1] - total[found[:, 0]]) / (found[:, 1] - found[:, 0] + 1)
