"""Folds: studies in groups, so that each can be decoded by a fit that never saw it."""

import numpy as np

from rarevision import config
from rarevision.scores import StudyScores


def split(studies: list[StudyScores], decode: config.Decode) -> list[tuple[list[StudyScores], list[StudyScores]]]:
    """For each fold the studies outside it, to fit on, and those inside it; sizes equal, drawn from `decode.seed`."""
    order = np.random.default_rng(decode.seed).permutation(len(studies))
    fold = np.empty(len(studies), np.int64)
    fold[order] = np.arange(len(studies)) % decode.folds
    return [
        ([studies[i] for i in np.flatnonzero(fold != k)], [studies[i] for i in np.flatnonzero(fold == k)])
        for k in range(min(decode.folds, len(studies)))
    ]
