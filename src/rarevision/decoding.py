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
from rarevision import timeline as timelines
from rarevision.cleaning import clean
from rarevision.events import Event, Events, runs
from rarevision.labels import ANATOMY, LABELS, N_LABELS, REGIONS
from rarevision.scores import StudyScores
from rarevision.timeline import Candidates, Timeline


def paper(
    frame: np.ndarray,
    probs: np.ndarray,
    thresholds: np.ndarray,
    median: int = 7,
    max_gap: int = 5,
    min_length: int = 3,
    compose: str = "label_set",
) -> list[Event]:
    """The published decoder: threshold, median, gaps, minimum length, events in order of time.

    `frame` int [T] ascending, `probs` [T, 17], `thresholds` [17]: positive where probs >= threshold.
    """
    positive = np.asarray(probs) >= np.asarray(thresholds, np.float32)
    labels = np.empty(positive.shape, np.uint8)
    for c in range(N_LABELS):
        labels[:, c] = clean(positive[:, c], median, max_gap, min_length)
    return (events.from_labels if compose == "per_label" else events.from_label_sets)(frame, labels)


def ours(timeline: Timeline, frame: np.ndarray, probs: np.ndarray, compose: str = "auto") -> list[Event]:
    """Events of one study in order of confidence; labels on which silence is expected to earn more have none."""
    found = timeline.candidates(probs, compose)
    return to_events(frame, found.kept(~timeline.silence(found)[found.column]))


def screen(timeline: Timeline, frame: np.ndarray, probs: np.ndarray) -> list[tuple[Event, float]]:
    """Every proposed landmark and finding with its confidence, the surest first; none overlaps a surer one's half."""
    found = distinct(timeline.candidates(probs, "per_label"))
    return list(zip(to_events(frame, found), found.confidence.tolist(), strict=True))


def to_events(frame: np.ndarray, found: Candidates) -> list[Event]:
    """Events of candidates, in their order; frame numbers by the convention of `events`."""
    frame = np.asarray(frame, np.int64)
    last = np.append(frame[1:] - 1, frame[-1:])
    starts, ends = frame[found.rows[:, 0]].tolist(), last[found.rows[:, 1]].tolist()
    return [Event(s, e, (LABELS[c],)) for s, e, c in zip(starts, ends, found.column.tolist(), strict=True)]


def distinct(found: Candidates) -> Candidates:
    """Candidates that are no region and share no frame with a surer one of the same label."""
    keep = np.zeros(len(found.column), bool)
    for c in range(len(REGIONS), N_LABELS):
        taken = np.zeros(int(found.rows.max(initial=-1)) + 1, bool)
        for i in np.flatnonzero(found.column == c):
            first, last = found.rows[i]
            if not taken[first : last + 1].any():
                keep[i] = taken[first : last + 1] = True
    return found.kept(keep)


def screen_cut(studies: list[StudyScores], outside: list[Candidates], recall: float) -> float:
    """Confidence above which the distinct candidates touch a share `recall` of the findings' events, out of fold.

    0 where even all candidates touch fewer.
    """
    best, n = [], 0  # of each true event, the confidence of the surest candidate that touches it
    for study, found in zip(studies, outside, strict=True):
        found = distinct(found)
        for c in range(len(ANATOMY), N_LABELS):
            mine = found.column == c
            rows, confidence = found.rows[mine], found.confidence[mine]
            for first, last in runs(study.labels[:, c] == 1):
                touch = (rows[:, 0] <= last) & (rows[:, 1] >= first)
                best.append(confidence[touch].max(initial=0.0))
                n += 1
    best = np.sort(best)[::-1]
    need = int(np.ceil(recall * n))
    return float(best[need - 1]) if n else 0.0


@dataclass(frozen=True)
class Decoder:
    """A fitted decoder. `expected`: its out-of-fold score, where it was cross-validated."""

    settings: config.Decode
    thresholds: tuple[float, ...]  # of `paper`
    notes: dict[str, str]  # labels for which something else than the rule was done
    data_hash: str  # of the studies it was fitted on
    expected: dict[str, Any] = field(default_factory=dict)
    timeline: Timeline | None = None  # of `ours` and `screen`
    cut: float = 0.0  # of `screen`: the least confidence shown

    def decode(self, frame: np.ndarray, probs: np.ndarray) -> list[Event]:
        """Events of one study, the most certain first where the method ranks. `frame` int [T], `probs` [T, 17]."""
        s = self.settings
        if s.method == "ours":
            return ours(self.timeline, frame, probs, s.compose)
        if s.method == "screen":
            return [event for event, confidence in screen(self.timeline, frame, probs) if confidence >= self.cut]
        return paper(frame, probs, np.array(self.thresholds), s.median, s.max_gap, s.min_length, s.compose)

    def to_json(self) -> dict[str, Any]:
        table = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        timeline = self.timeline and self.timeline.to_json()
        return table | {"settings": dataclasses.asdict(self.settings), "timeline": timeline}

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> "Decoder":
        settings = config.Decode(**table["settings"])
        timeline = table["timeline"] and Timeline.from_json(table["timeline"])
        return cls(**{**table, "settings": settings, "thresholds": tuple(table["thresholds"]), "timeline": timeline})

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


def fit(studies: list[StudyScores], cfg: config.Config, expected: dict[str, Any] | None = None) -> Decoder:
    """Fit the decoder that `cfg.decode` names on studies with labels (`cfg.threshold` too, for `paper`).

    `expected`: the report of `cross_validate`, saved with the decoder.
    """
    _check(studies, 1)
    if cfg.decode.method != "paper":
        screened = cfg.decode.method == "screen"
        timeline, outside = timelines.fit(studies, "per_label" if screened else cfg.decode.compose)
        cut = screen_cut(studies, outside, cfg.decode.screen_recall) if screened else 0.0
        return Decoder(cfg.decode, (), {}, data_hash(studies), expected or {}, timeline, cut)
    fitted = thresholding.fit(studies, cfg.threshold, cfg.decode)
    return Decoder(cfg.decode, tuple(map(float, fitted.values)), fitted.notes, data_hash(studies), expected or {})


def _check(studies: list[StudyScores], least: int) -> None:
    if len(studies) < least:
        raise ValueError(f"{len(studies)} studies with labels; at least {least} are needed")
    for s in studies:
        if s.labels is None:
            raise ValueError(f"study {s.study} has no labels to fit on; put them into labels/oof")


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
    _check(studies, 2)
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
    values = np.array([f.thresholds or [0.0] * N_LABELS for f in fits])
    report = {
        "folds": [
            {"score": result.ap[:, fold == k].mean((1, 2)).tolist(), "empty": float(silence[fold == k].mean())}
            for k in range(len(fits))
        ],
        "score": list(result.score),
        "empty": result.empty,
        "present": list(result.mean(present_only=True)),
        "reader": result.reader("findings"),
        "data_hash": data_hash(studies),
    }
    if fits[0].thresholds:
        report["thresholds"] = {n: [float(v.min()), float(v.max())] for n, v in zip(LABELS, values.T, strict=True)}
    return found, report
