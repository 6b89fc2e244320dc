"""The decoders that a setting names: `paper` as published, `ours` and `screen` learned.

A decoder is fitted on studies with scores and labels, is saved as JSON, and is a pure function of scores after that.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rarevision import config, events
from rarevision.decoding import folds, learned, screening, thresholds
from rarevision.decoding.choice import SOURCES, Choice, fit_choice
from rarevision.decoding.cleaning import clean
from rarevision.decoding.learned import LearnedDecoder
from rarevision.decoding.proposals import apart
from rarevision.events import Event, Events
from rarevision.files import write_json
from rarevision.labels import COLUMN, LABELS, N_LABELS
from rarevision.scores import StudyScores
from rarevision.scoring import Report, score_events


def published_events(
    frame: np.ndarray,
    probs: np.ndarray,
    thresholds: np.ndarray,
    median: int = 7,
    max_gap: int = 5,
    min_length: int = 3,
    compose: str = "label_set",
) -> list[Event]:
    """The published decoder: threshold, median, gaps, minimum length; events in order of time.

    `frame` int [T] ascending, `probs` [T, 17], `thresholds` [17]: a frame is positive where its score is at least that.
    """
    positive = np.asarray(probs) >= np.asarray(thresholds, np.float32)
    labels = np.stack([clean(mask, median, max_gap, min_length) for mask in positive.T], axis=1)
    return (events.from_labels if compose == "per_label" else events.from_label_sets)(frame, labels)


@dataclass(frozen=True)
class Decoder:
    """A fitted decoder."""

    settings: config.Decode
    thresholds: tuple[float, ...]  # of `paper`, one for each label
    notes: dict[str, str]  # label, or `screen`: where something else than the rule was done
    data_hash: str  # of the studies that it was fitted on
    expected: dict[str, Any] = field(default_factory=dict)  # the report of `cross_validate`, if there was one
    learned: LearnedDecoder | None = None  # of `ours` and `screen`
    cut: float = 0.0  # of `screen`: events of less confidence are not shown
    choice: Choice | None = None  # of `ours`: where each label's events come from; None: all learned

    def decode(self, frame: np.ndarray, probs: np.ndarray) -> list[Event]:
        """Events of one study, for `ours` and `screen` the surest first. `frame` int [T], `probs` [T, 17]."""
        s = self.settings
        if self.learned is None:
            cut = np.array(self.thresholds)
            return published_events(frame, probs, cut, s.median, s.max_gap, s.min_length, s.compose)
        if s.method == "ours":
            found = self.learned.candidates(probs, s.compose)
            silent = self.learned.silent(found)
            if self.choice is None:
                found = found.kept(~silent[found.column])
            else:
                found = self.choice.candidates(found, silent, probs, s)
            return (found.distinct() if s.distinct else found).to_events(frame)
        listed = screening.distinct(self.learned.candidates(probs, "per_label"))
        return listed.kept(listed.confidence >= self.cut).to_events(frame)

    def to_json(self) -> dict[str, Any]:
        table = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        parts = self.learned and self.learned.to_json()
        choice = self.choice and {
            "source": self.choice.source,
            "gain": self.choice.gain.tolist(),
            "threshold": self.choice.threshold.tolist(),
        }
        return table | {"settings": dataclasses.asdict(self.settings), "learned": parts, "choice": choice}

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> "Decoder":
        settings = config.Decode(**table["settings"])
        parts = table["learned"] and LearnedDecoder.from_json(table["learned"])
        choice = table.get("choice")
        if choice:
            threshold = np.array(choice["threshold"], np.float32)
            choice = Choice(tuple(choice["source"]), np.array(choice["gain"]), threshold)
        cut_at = tuple(table["thresholds"])
        return cls(**{**table, "settings": settings, "thresholds": cut_at, "learned": parts, "choice": choice})

    def save(self, path: str | Path) -> None:
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Decoder":
        return cls.from_json(json.loads(Path(path).read_text()))


def data_hash(studies: list[StudyScores], timelines: Mapping[str, np.ndarray] | None = None) -> str:
    """SHA-256 of names, frames, scores and labels: of the same data comes the same decoder."""
    total = hashlib.sha256()
    for s in studies:
        total.update(s.study.encode())
        for part in (s.frame, s.probs, s.labels):
            total.update(np.ascontiguousarray(part))
    for name, labels in other_timelines(studies, timelines).items():
        total.update(name.encode())
        total.update(np.ascontiguousarray(labels))
    return total.hexdigest()


def other_timelines(studies: list[StudyScores], timelines: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
    """The timelines of studies that are not among `studies`, checked."""
    scored = {s.study for s in studies}
    others = {name: np.asarray(labels) for name, labels in (timelines or {}).items() if name not in scored}
    for name, labels in others.items():
        if labels.ndim != 2 or labels.shape[1] != N_LABELS or not len(labels) or not np.isin(labels, (0, 1)).all():
            raise ValueError(
                f"timeline of study {name}: {labels.shape}; must be 0 or 1, [frames, {N_LABELS}], not empty"
            )
    return others


def fit_decoder(
    studies: list[StudyScores],
    cfg: config.Config,
    expected: dict[str, Any] | None = None,
    timelines: Mapping[str, np.ndarray] | None = None,
) -> Decoder:
    """Fit the decoder that `cfg.decode` names on studies with labels (`cfg.threshold` too, for `paper`).

    `expected`: the report of `cross_validate`, to be saved with the decoder. `timelines`: study -> labels uint8 [T, 17]
    of training studies; those without scores teach the learned decoder order, durations, places and prevalence, those
    with scores are not counted twice. Never give the timeline of a study that is to be decoded.
    """
    _check(studies, 1)
    d = cfg.decode
    others = list(other_timelines(studies, timelines).values())
    hashed, expected = data_hash(studies, timelines), expected or {}
    if d.method == "paper":
        cut_at = thresholds.fit_thresholds(studies, cfg.threshold, d)
        return Decoder(d, tuple(map(float, cut_at.values)), cut_at.notes, hashed, expected)
    if d.method == "ours":
        fitted, out_of_fold = learned.fit(studies, d.compose, others)
        choice = fit_choice(studies, fitted, out_of_fold, d) if d.choose else None
        return Decoder(d, (), {}, hashed, expected, fitted, choice=choice)
    fitted, out_of_fold = learned.fit(studies, "per_label", others)
    if d.screen_share:
        cut = screening.share_cut([len(s.frame) for s in studies], out_of_fold, d.screen_share)
    else:
        cut = screening.recall_cut([s.labels for s in studies], out_of_fold, d.screen_recall)
    notes = {}
    if cut == 0 and not d.screen_share:
        notes["screen"] = f"out of fold even the whole list stays below recall {d.screen_recall}: nothing is cut"
    return Decoder(d, (), notes, hashed, expected, fitted, cut)


def _check(studies: list[StudyScores], least: int) -> None:
    if len(studies) < least:
        raise ValueError(f"{len(studies)} studies with labels; at least {least} are needed")
    for s in studies:
        if s.labels is None:
            raise ValueError(f"study {s.study} has no labels to fit on; put them into labels/oof")


def truth_events(studies: list[StudyScores]) -> Events:
    """Events of the labels, one for each stretch of an unchanged label set, as the challenge's truth is written."""
    return {s.study: events.from_label_sets(s.frame, s.labels) for s in studies}


def distinct(listed: list[Event]) -> list[Event]:
    """At most one event per stretch and label, for a reader: of events that share a frame, the one listed first.

    The metric rewards overlapping alternatives further down the list; a person would look at the same frames twice.
    """
    column = np.array([COLUMN[e.labels[0]] for e in listed], np.int64)
    rows = np.array([(e.start, e.end) for e in listed], np.int64).reshape(-1, 2)
    return [e for e, keep in zip(listed, apart(column, rows), strict=True) if keep]


def cross_validate(
    studies: list[StudyScores], cfg: config.Config, timelines: Mapping[str, np.ndarray] | None = None
) -> tuple[Events, Report, dict[str, Any]]:
    """Events of every study from a decoder that never saw it, their score, and a report.

    The report holds scores beside silence's, per fold too; the number of events listed per study; what a distinct list
    (`distinct`) would earn and hold; and for `ours`, per label, the expected gain and how many folds took which source.
    `timelines` as in `fit_decoder`; only those of other studies are used. For `screen` the report also says what was
    asked and what was got: recall, and the share of frames to look at, as `screening` defines them.
    """
    _check(studies, 2)
    others = other_timelines(studies, timelines)
    found: Events = {s.study: [] for s in studies}  # in the order of `studies`
    fits, tested = [], []
    for outside, inside in folds.split(studies, cfg.decode):
        fits.append(fit_decoder(outside, cfg, timelines=others))
        found |= {s.study: fits[-1].decode(s.frame, s.probs) for s in inside}
        tested.append(np.isin([s.study for s in studies], [s.study for s in inside]))
    result = score_events(truth_events(studies), found)
    silence = (~result.present).mean(1)
    report = {
        "folds": [
            {"score": result.ap[:, mine].mean((1, 2)).tolist(), "empty": float(silence[mine].mean())} for mine in tested
        ],
        "score": list(result.score),
        "empty": result.empty,
        "present": list(result.mean(present_only=True)),
        "reader": result.reader("findings"),
        "data_hash": data_hash(studies, others),
        "events": sum(map(len, found.values())) / len(studies),
    }
    if cfg.decode.method == "ours":
        single = {study: distinct(listed) for study, listed in found.items()}
        price = score_events(truth_events(studies), single)
        report["distinct"] = {"score": list(price.score), "events": sum(map(len, single.values())) / len(studies)}
    if choices := [f.choice.table() for f in fits if f.choice]:
        report["choice"] = {
            name: {source: sum(t[name]["source"] == source for t in choices) for source in SOURCES}
            | {f"gain, {source}": float(np.mean([t[name][source] for t in choices])) for source in SOURCES[1:]}
            for name in LABELS
        }
    if fits[0].thresholds:
        values = np.array([f.thresholds for f in fits])
        report["thresholds"] = {n: [float(v.min()), float(v.max())] for n, v in zip(LABELS, values.T, strict=True)}
    if cfg.decode.method == "screen":
        by = "share" if cfg.decode.screen_share else "recall"
        got = screening.measure(studies, found.values())
        asked = getattr(cfg.decode, f"screen_{by}")
        report["screen"] = {"by": by, "asked": asked, "got": got[by], **got, "cuts": [f.cut for f in fits]}
    return found, result, report
