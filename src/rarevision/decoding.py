"""Decoding: frame scores of one study to its events; `paper` as published, `ours` and `screen` learned.

A decoder is fitted on studies with scores and labels, is saved as JSON, and is a pure function afterwards.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rarevision import config, events, scoring, stage
from rarevision import thresholds as thresholding
from rarevision.cleaning import clean
from rarevision.events import Event, Events
from rarevision.labels import LABELS, N_LABELS
from rarevision.scores import StudyScores


def paper(
    frame: np.ndarray,
    probs: np.ndarray,
    thresholds: np.ndarray,
    median: int = 7,
    max_gap: int = 5,
    min_length: int = 3,
    compose: str = "label_set",
) -> list[Event]:
    """The published decoder (METHOD.md, 9): threshold, median, gaps, minimum length, events in order of time.

    `frame` int [T] ascending, `probs` [T, 17], `thresholds` [17]: positive where probs >= threshold.
    """
    positive = np.asarray(probs) >= np.asarray(thresholds, np.float32)
    labels = np.empty(positive.shape, np.uint8)
    for c in range(N_LABELS):
        labels[:, c] = clean(positive[:, c], median, max_gap, min_length)
    return (events.from_labels if compose == "per_label" else events.from_label_sets)(frame, labels)


@dataclass(frozen=True)
class Decoder:
    """A fitted decoder. `expected`: its out-of-fold score, where it was cross-validated."""

    settings: config.Decode
    thresholds: tuple[float, ...]  # of `paper`
    notes: dict[str, str]  # labels for which something else than the rule was done
    data_hash: str  # of the studies it was fitted on
    expected: dict[str, Any] = field(default_factory=dict)

    def decode(self, frame: np.ndarray, probs: np.ndarray) -> list[Event]:
        """Events of one study, the most certain first where the method ranks. `frame` int [T], `probs` [T, 17]."""
        s = self.settings
        return paper(frame, probs, np.array(self.thresholds), s.median, s.max_gap, s.min_length, s.compose)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> "Decoder":
        settings = config.Decode(**table["settings"])
        return cls(**{**table, "settings": settings, "thresholds": tuple(table["thresholds"])})

    def save(self, path: str | Path) -> None:
        stage.write_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Decoder":
        return cls.from_json(json.loads(Path(path).read_text()))


def data_hash(studies: list[StudyScores]) -> str:
    """Hash of names, frames, scores and labels: the same decoder comes of the same data only."""
    total = hashlib.sha256()
    for s in studies:
        for part in (s.study.encode(), s.frame, s.probs, s.labels):
            total.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes())
    return total.hexdigest()


def fit(studies: list[StudyScores], cfg: config.Config) -> Decoder:
    """Fit the decoder that `cfg.decode` names on studies with labels (`cfg.threshold` too, for `paper`)."""
    fitted = thresholding.fit(studies, cfg.threshold, cfg.decode)
    return Decoder(cfg.decode, tuple(map(float, fitted.values)), fitted.notes, data_hash(studies))


def assign_folds(studies: list[StudyScores], n_folds: int, seed: int) -> dict[str, int]:
    """Study -> fold of the out-of-fold fit; folds of equal size, drawn from the seed."""
    order = np.random.default_rng(seed).permutation(len(studies))
    n_folds = min(n_folds, len(studies))
    return {studies[i].study: int(k % n_folds) for k, i in enumerate(order)}


def truth_events(studies: list[StudyScores]) -> Events:
    """Events of the labels by label set, as the challenge's truth is written."""
    return {s.study: events.from_label_sets(s.frame, s.labels) for s in studies}


def cross_validate(studies: list[StudyScores], cfg: config.Config) -> tuple[Events, dict[str, Any]]:
    """Events of every study from a decoder that never saw it, and a report: score and silence, per fold too."""
    folds = assign_folds(studies, cfg.decode.folds, cfg.decode.seed)
    found: Events = {}
    fits = []
    for k in sorted(set(folds.values())):
        fits.append(fit([s for s in studies if folds[s.study] != k], cfg))
        found |= {s.study: fits[-1].decode(s.frame, s.probs) for s in studies if folds[s.study] == k}
    found = {s.study: found[s.study] for s in studies}
    result = scoring.report(truth_events(studies), found)
    fold = np.array([folds[s.study] for s in studies])
    silence = (~result.present).mean(1)
    values = np.array([f.thresholds for f in fits])
    report = {
        "score": result.score,
        "empty": result.empty,
        "present": result.mean(present_only=True),
        "folds": [
            {"score": result.per_study[:, fold == k].mean(1).tolist(), "empty": float(silence[fold == k].mean())}
            for k in range(len(fits))
        ],
        "thresholds": {n: [float(values[:, c].min()), float(values[:, c].max())] for c, n in enumerate(LABELS)},
    }
    return found, report
