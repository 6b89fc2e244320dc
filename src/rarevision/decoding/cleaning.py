"""Cleaning: a mask of positive frames to tidy runs, as published: median, filled gaps, minimum length."""

import numpy as np

from rarevision.events import runs


def clean(mask: np.ndarray, median: int = 7, max_gap: int = 5, min_length: int = 3) -> np.ndarray:
    """Cleaned copy of a bool mask [T]; all lengths in frames (rows).

    1. Each frame takes the majority of the `median` frames around it. Beyond the ends the mask is mirrored, as
       scipy.ndimage does with `reflect`; a running sum is ten times as fast as its median filter.
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
    change = np.zeros(len(mask) + 1, np.int8)  # +1 where a kept run begins, -1 after its end
    if len(found):
        wide = np.flatnonzero(found[1:, 0] - found[:-1, 1] - 1 > max_gap)
        first, last = found[np.append(0, wide + 1), 0], found[np.append(wide, len(found) - 1), 1]
        keep = last - first + 1 >= min_length
        change[first[keep]] += 1
        change[last[keep] + 1] -= 1
    return np.cumsum(change[:-1], dtype=np.int8) > 0
