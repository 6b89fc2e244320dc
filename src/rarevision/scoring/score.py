"""The score: the challenge's mean AP over studies and labels, and the parts that it is made of.

The metric pays for silence: a label that a study lacks earns AP 1 if nothing is predicted. So the score is always shown
with the score of an empty submission, the part that silence earns, and the score on present labels alone.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from rarevision.labels import ANATOMY, N_LABELS
from rarevision.scoring.matching import Intervals, precisions

GROUPS = {
    "all": slice(0, N_LABELS),
    "anatomy": slice(0, len(ANATOMY)),
    "findings": slice(len(ANATOMY), N_LABELS),
}
# Mean AP over pairs of study and label: of which group of labels, and whether over present labels only.
MEASURES = {
    "score": ("all", False),
    "present labels only": ("all", True),
    "anatomy": ("anatomy", False),
    "anatomy, present only": ("anatomy", True),
    "findings": ("findings", False),
    "findings, present only": ("findings", True),
}


@dataclass(frozen=True, eq=False)
class Score:
    """AP of every study and label, and the means of it.

    K tIoU thresholds, V studies in the truth's order, 17 labels. An event counts once for each of its labels.
    """

    studies: tuple[str, ...]
    thresholds: tuple[float, ...]
    truth: Intervals
    prediction: Intervals
    taken: np.ndarray  # int64 [K, N] row of `truth` that each row of `prediction` takes, -1 for a miss
    frames: np.ndarray  # int64 [V]
    fps: float | None = None  # frame numbers per second of video, for rates per hour

    def _count(self, rows: Intervals) -> np.ndarray:
        """Rows of each study and label; int64 [V, 17]."""
        return np.bincount(rows.pair, minlength=len(self.studies) * N_LABELS).reshape(-1, N_LABELS)

    @cached_property
    def ap(self) -> np.ndarray:
        """float64 [K, V, 17]."""
        pairs = len(self.studies) * N_LABELS
        ap = [precisions(self.truth, self.prediction, row, pairs) for row in self.taken]
        return np.reshape(ap, (len(ap), -1, N_LABELS))

    @cached_property
    def true(self) -> np.ndarray:
        """True events; int64 [V, 17]."""
        return self._count(self.truth)

    @cached_property
    def predicted(self) -> np.ndarray:
        """Predicted events; int64 [V, 17]."""
        return self._count(self.prediction)

    @property
    def present(self) -> np.ndarray:
        """Whether the study has true events of the label; bool [V, 17]."""
        return self.true > 0

    @property
    def per_study(self) -> list[list[float]]:
        """mAP of each study at each threshold, [K][V]: the mean over all 17 labels, summed in the literal order."""
        return [[sum(row) / N_LABELS for row in table] for table in self.ap.tolist()]

    @property
    def score(self) -> tuple[float, ...]:
        """mAP at each threshold: the mean over studies of their mAP; equal to the literal metric's to the last bit."""
        return tuple(sum(row) / len(row) for row in self.per_study)

    @property
    def empty(self) -> float:
        """Score of an empty submission at any threshold: the share of (study, label) pairs without true events."""
        return float(1 - self.present.mean())

    @property
    def silence(self) -> tuple[float, ...]:
        """Part of the score that is credit for absent labels on which the prediction is silent; at most `empty`."""
        return tuple(float(table[~self.present].sum() / table.size) for table in self.ap)

    def names(self) -> list[str]:
        return [f"mAP@{threshold:g}" for threshold in self.thresholds]

    def mean(self, group: str = "all", present_only: bool = False) -> tuple[float, ...]:
        """Mean AP over the (study, label) pairs of a group ("all", "anatomy", "findings") at each threshold.

        `present_only`: over those pairs alone in which the label has true events, every pair counting once, so that
        silence earns nothing. NaN if there is no such pair.
        """
        weight = self.present[:, GROUPS[group]] | (not present_only)
        return tuple(float(ap[weight].mean()) if weight.any() else np.nan for ap in self.ap[:, :, GROUPS[group]])

    def terms(self) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Each measure as a ratio of sums over studies: names [S], numerators and denominators float64 [V, S]."""
        names, top, bottom = [], [], []
        for name, (group, present_only) in MEASURES.items():
            weight = self.present[:, GROUPS[group]] | (not present_only)
            names += [f"{name} {threshold}" for threshold in self.names()]
            top += [(ap * weight).sum(axis=1) for ap in self.ap[:, :, GROUPS[group]]]
            bottom += [weight.sum(axis=1)] * len(self.ap)
        return names, np.stack(top, axis=1), np.stack(bottom, axis=1)

    def summary(self) -> pd.DataFrame:
        """The score and what it is made of, one row each; one column per threshold."""
        rows = {"score": self.score, "empty submission": (self.empty,) * len(self.thresholds)}
        rows |= {"credit for absent labels": self.silence}
        rows |= {name: self.mean(*measure) for name, measure in MEASURES.items() if name != "score"}
        return pd.DataFrame.from_dict(rows, "index", columns=self.names())

    def sources(self) -> pd.DataFrame:
        """Where the score comes from: rows silence, anatomy, findings; a column per threshold, and what was `possible`.

        Silence is credit for absent labels; anatomy and findings are earned on present labels. Columns sum to the score
        and to 1.
        """
        rows = {"silence": (*self.silence, self.empty)}
        for group in ("anatomy", "findings"):
            part = self.present[:, GROUPS[group]].sum() / self.present.size
            rows[group] = (*(part * mean if part else 0.0 for mean in self.mean(group, present_only=True)), part)
        return pd.DataFrame.from_dict(rows, "index", columns=[*self.names(), "possible"])
