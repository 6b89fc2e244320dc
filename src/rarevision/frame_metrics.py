"""Frame metrics per class: average precision, AUC, F1, precision, recall, with intervals over studies.

A class without positive frames has no such value: it is NaN and said, never 0. Intervals are percentiles of a bootstrap
that draws whole studies (frames of one study are not independent), exact without going through the frames again.
"""


import numpy as np
from sklearn.metrics import average_precision_score

MAX_STEPS = 2048  # distinct positive scores kept per class in the bootstrap; beyond, their quantiles


def average_precision(labels: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """AP per class, float64 [C], from labels and probs [N, C]; NaN for a class without positives."""
    return np.array(
        [average_precision_score(y, p) if y.any() else np.nan for y, p in zip(labels.T, probs.T, strict=True)]
    )
