"""The score: the challenge's temporal mAP, where it comes from, and what it means to a reader.

    rarevision score TRUTH.json PREDICTION.json [--versus OTHER.json] [--bootstrap N] [--json]

The metric pays for silence: a label that a study lacks earns AP 1 if nothing is predicted. So a score is always shown
with the score of an empty file, the part that silence earns, and the score on present labels alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rarevision.events import Events, EventsError
from rarevision.labels import ANATOMY, LABELS, N_LABELS
from rarevision.scoring.matching import flatten, match, precisions, touches, workload

THRESHOLDS = (0.5, 0.95)  # tIoU
RECALLS = (0.5, 0.8, 0.9, 0.95)  # at which the part of frames to look at is given
GROUPS = {
    "all": slice(0, N_LABELS),
    "anatomy": slice(0, len(ANATOMY)),
    "findings": slice(len(ANATOMY), N_LABELS),
}


@dataclass(frozen=True)
class Report:
    """AP of every study and label, and everything that is a mean or a count of them.

    K tIoU thresholds, V studies in the truth's order, 17 labels. An event counts once for each of its labels.
    """

    studies: tuple[str, ...]
    thresholds: tuple[float, ...]
    ap: np.ndarray  # float64 [K, V, 17]
    true: np.ndarray  # int64 [V, 17] truth events
    predicted: np.ndarray  # int64 [V, 17] predicted events
    hits: np.ndarray  # int64 [K, V, 17] truth events matched at each threshold
    touched: np.ndarray  # int64 [V, 17] truth events that share a frame with a predicted event of their label
    false: np.ndarray  # int64 [V, 17] predicted events that share no frame with a truth event of their label
    errors: (
        np.ndarray
    )  # int64 [M, 3] column, onset and offset error (predicted - true), matches at the lowest threshold
    frames: np.ndarray  # int64 [V]
    found: np.ndarray  # int64 [n + 1] true findings found in the first n proposals of every study
    looked: np.ndarray  # int64 [n + 1] distinct frames looked at by then
    fps: float | None = None  # frame numbers per second of video, for rates per hour

    @property
    def present(self) -> np.ndarray:
        """Whether the study has truth events of the label; bool [V, 17]."""
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
        """Score of an empty submission at any threshold: the share of (study, label) pairs without truth events."""
        return float(1 - self.present.mean())

    @property
    def silence(self) -> tuple[float, ...]:
        """Part of the score that is credit for absent labels on which the prediction is silent; at most `empty`."""
        return tuple(float(table[~self.present].sum() / table.size) for table in self.ap)

    def mean(self, group: str = "all", present_only: bool = False) -> tuple[float, ...]:
        """Mean AP over the (study, label) pairs of a group ("all", "anatomy", "findings") at each threshold.

        `present_only`: over those pairs alone in which the label has truth events, every pair counting once, so that
        silence earns nothing. NaN if there is no such pair.
        """
        ap, weight = self.ap[:, :, GROUPS[group]], self.present[:, GROUPS[group]]
        weight = weight if present_only else np.ones_like(weight)
        return tuple(float(table[weight].mean()) if weight.any() else np.nan for table in ap)

    def terms(self) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Each measure as a ratio of sums over studies: names [S], numerators and denominators float64 [V, S]."""
        names, top, bottom = [], [], []
        for group, columns in GROUPS.items():
            for only in (False, True):
                weight = self.present[:, columns] if only else np.ones_like(self.present[:, columns])
                what = ("present labels only" if only else "score") if group == "all" else group
                what += ", present only" if only and group != "all" else ""
                names += [f"{what} {name}" for name in self.names()]
                top += [(table[:, columns] * weight).sum(axis=1) for table in self.ap]
                bottom += [weight.sum(axis=1)] * len(self.ap)
        return names, np.stack(top, axis=1), np.stack(bottom, axis=1)

    def reader(self, group: str = "findings") -> dict[str, float | None]:
        """What a reader gets from the events of a group; None where undefined.

        `recall`: share of truth events that share a frame with a predicted event of their label; `recall@T`: share
        matched at tIoU T. False events share no frame with a truth event of their label; per 1,000 frames, and per hour
        of video where `fps` is known. Onset and offset errors: median and mean absolute difference in frames of the
        events matched at the lowest threshold.
        """
        columns = GROUPS[group]
        true, frames = int(self.true[:, columns].sum()), int(self.frames.sum())
        false = int(self.false[:, columns].sum())
        table = {"true events": true, "predicted events": int(self.predicted[:, columns].sum())}
        table["recall"] = _share(self.touched[:, columns].sum(), true)
        for threshold, hits in zip(self.thresholds, self.hits[:, :, columns].sum(axis=(1, 2)), strict=True):
            table[f"recall@{threshold:g}"] = _share(hits, true)
        table["false events"] = false
        table["false per 1000 frames"] = _share(1000 * false, frames)
        table["false per hour"] = _share(3600 * false * self.fps, frames) if self.fps else None
        inside = (self.errors[:, 0] >= columns.start) & (self.errors[:, 0] < columns.stop)
        for i, name in ((1, "onset"), (2, "offset")):
            error = np.abs(self.errors[inside, i])
            table[f"{name} error median"] = float(np.median(error)) if len(error) else None
            table[f"{name} error mean"] = float(error.mean()) if len(error) else None
        return table

    def frames_for_recall(self, recall: float) -> float | None:
        """Part of all frames that a reader looks at to find this share of the true findings; None if never reached.

        The reader opens the proposals (predicted events that name a finding) in file order, which is the confidence
        order, as many in every study, and sees all their frames. A finding is found once a proposal with its label
        shares a frame with it.
        """
        findings = int(self.true[:, GROUPS["findings"]].sum())
        reached = np.flatnonzero(self.found >= recall * findings - 1e-9)
        return _share(self.looked[reached[0]], self.frames.sum()) if findings and len(reached) else None

    def names(self) -> list[str]:
        return [f"mAP@{threshold:g}" for threshold in self.thresholds]

    def labels(self) -> pd.DataFrame:
        """One row per label: mean AP over studies, over studies that have the label, and counts of events."""
        table = {n: ap.mean(axis=0) for n, ap in zip(self.names(), self.ap, strict=True)}
        table |= {f"{n} present": _means(ap.T, self.present.T) for n, ap in zip(self.names(), self.ap, strict=True)}
        table |= {"studies": self.present.sum(axis=0), "silent": (self.predicted == 0).sum(axis=0)}
        table |= {"true": self.true.sum(axis=0), "predicted": self.predicted.sum(axis=0)}
        table |= {
            "recall": _means(
                self.touched.sum(axis=0)[:, None] / np.maximum(table["true"], 1)[:, None], table["true"][:, None] > 0
            )
        }
        return pd.DataFrame(table | {"false": self.false.sum(axis=0)}, index=pd.Index(LABELS, name="label"))

    def videos(self) -> pd.DataFrame:
        """One row per study: its mAP, the same of an empty list, on its present labels only, and counts of events."""
        table = dict(zip(self.names(), self.per_study, strict=True))
        table |= {"empty": 1 - self.present.mean(axis=1)}
        table |= {f"{n} present": _means(ap, self.present) for n, ap in zip(self.names(), self.ap, strict=True)}
        table |= {"true": self.true.sum(axis=1), "predicted": self.predicted.sum(axis=1)}
        return pd.DataFrame(table | {"frames": self.frames}, index=pd.Index(self.studies, name="video", dtype=str))

    def summary(self) -> pd.DataFrame:
        """The score and what it is made of, one row each; one column per threshold."""
        rows = {"score": self.score, "empty submission": (self.empty,) * len(self.thresholds)}
        rows |= {"credit for absent labels": self.silence, "present labels only": self.mean(present_only=True)}
        for group in ("anatomy", "findings"):
            rows |= {group: self.mean(group), f"{group}, present only": self.mean(group, present_only=True)}
        return pd.DataFrame.from_dict(rows, "index", columns=self.names())

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it, at full precision; None where undefined."""
        summary, videos = _records(self.summary()), _records(self.videos())
        for v, study in enumerate(self.studies):
            videos[study]["AP"] = {
                name: dict(zip(LABELS, table[v], strict=True))
                for name, table in zip(self.names(), self.ap.tolist(), strict=True)
            }
        return summary.pop("score") | {
            "studies": len(self.studies),
            **summary,
            "per video": videos,
            "per label": _records(self.labels()),
            "reader": {group: self.reader(group) for group in GROUPS},
            "part of frames to look at for recall": {f"{r:g}": self.frames_for_recall(r) for r in RECALLS},
        }

    def table(self) -> str:
        """Everything as text for a terminal."""
        reader = pd.DataFrame({group: pd.Series(self.reader(group), dtype=object) for group in GROUPS})
        effort = ", ".join(
            f"{r:g}: {'not reached' if share is None else f'{share:.2%}'}"
            for r, share in ((r, self.frames_for_recall(r)) for r in RECALLS)
        )
        parts = [self.summary(), self.videos(), self.labels(), reader]
        text = "\n\n".join(_text(part) for part in parts)
        return f"{text}\n\npart of frames to look at for a share of the true findings: {effort}"


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


def _means(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Mean of each row over the columns where `weight` is true; NaN for a row without."""
    n = weight.sum(axis=1)
    return np.where(n > 0, (values * weight).sum(axis=1) / np.maximum(n, 1), np.nan)


def _records(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    rows = table.astype(object).where(table.notna(), None).to_dict("index")
    return {str(key): row for key, row in rows.items()}


def _text(table: pd.DataFrame) -> str:
    shown = table.rename_axis(None).map(lambda v: "-" if pd.isna(v) else f"{v:.4f}" if isinstance(v, float) else str(v))
    return shown.to_string()


def _studies(truth: Events, prediction: Events) -> tuple[str, ...]:
    if not truth:
        raise EventsError("the truth has no videos")
    if truth.keys() != prediction.keys():
        lacks, extra = (sorted(a.keys() - b.keys()) for a, b in ((truth, prediction), (prediction, truth)))
        said = [
            f"{what} {', '.join(ids[:5])}{', ...' * (len(ids) > 5)}"
            for what, ids in (("the prediction lacks", lacks), ("the truth does not have", extra))
            if ids
        ]
        raise EventsError(f"videos differ: {'; '.join(said)}")
    return tuple(truth)


def score_events(
    truth: Events,
    prediction: Events,
    frames: Mapping[str, int] | None = None,
    fps: float | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
) -> Report:
    """Score `prediction` against `truth`; both must name the same studies, else `EventsError`.

    `frames`: number of frames of each study, for rates per frame; unless given, from the first to the last frame of the
    study's true and predicted events.
    """
    studies = _studies(truth, prediction)
    shape = (len(studies), N_LABELS)
    pairs = len(studies) * N_LABELS
    t, p = flatten(truth, studies), flatten(prediction, studies)
    taken = match(t, p, thresholds)
    count = lambda pair: np.bincount(pair, minlength=pairs).reshape(shape)  # noqa: E731
    lowest = taken[int(np.argmin(thresholds))]
    hit = np.flatnonzero(lowest >= 0)
    errors = [p.pair[hit] % N_LABELS, p.start[hit] - t.start[lowest[hit]], p.end[hit] - t.end[lowest[hit]]]
    found, looked = workload(truth, prediction, studies)
    return Report(
        studies=studies,
        thresholds=tuple(thresholds),
        ap=np.stack([precisions(t, p, row, pairs).reshape(shape) for row in taken]),
        true=count(t.pair),
        predicted=count(p.pair),
        hits=np.stack([count(p.pair[row >= 0]) for row in taken]),
        touched=count(t.pair[touches(t, p)]),
        false=count(p.pair[~touches(p, t)]),
        errors=np.stack(errors, axis=1),
        frames=np.array([frames[s] if frames else _extent(truth[s] + prediction[s]) for s in studies], np.int64),
        found=found,
        looked=looked,
        fps=fps,
    )


def _extent(events: list) -> int:
    return max(e.end for e in events) - min(e.start for e in events) + 1 if events else 0


def event_aps(
    truth: Events, prediction: Events, thresholds: Sequence[float] = THRESHOLDS
) -> tuple[tuple[str, ...], np.ndarray]:
    """The studies, and AP float64 [K, V, 17] of each at each threshold: the metric alone, without a report."""
    studies = _studies(truth, prediction)
    t, p = flatten(truth, studies), flatten(prediction, studies)
    shape = (len(studies), N_LABELS)
    taken = match(t, p, thresholds)
    return studies, np.stack([precisions(t, p, row, len(studies) * N_LABELS).reshape(shape) for row in taken])


def score(truth: Events, prediction: Events, threshold: float = 0.5) -> tuple[float, dict[str, float]]:
    """Overall mAP and mAP of each study, as the challenge computes it."""
    studies, ap = event_aps(truth, prediction, [threshold])
    videos = [sum(row) / N_LABELS for row in ap[0].tolist()]
    return sum(videos) / len(videos), dict(zip(studies, videos, strict=True))


def score_sources(full: Report) -> pd.DataFrame:
    """Where the score comes from: rows silence, anatomy, findings; a column per threshold, and what was `possible`.

    Silence is credit for absent labels; anatomy and findings are earned on present labels. Columns sum to the score and
    to 1.
    """
    share = {g: full.present[:, GROUPS[g]].sum() / full.present.size for g in ("anatomy", "findings")}
    rows = {"silence": (*full.silence, full.empty)}
    for group, part in share.items():
        rows[group] = (*(part * mean if part else 0.0 for mean in full.mean(group, present_only=True)), part)
    return pd.DataFrame.from_dict(rows, "index", columns=[*full.names(), "possible"])


def shown_tables(full: Report, extra: Mapping[str, pd.DataFrame], as_json: bool) -> str:
    """A report and further tables for people, or with `as_json` everything in full precision."""
    if as_json:
        tables = {name: _records(table) for name, table in extra.items()}
        return json.dumps(full.as_dict() | tables, indent=1, allow_nan=False)
    return "\n\n".join([full.table(), *(f"{name}\n{_text(table)}" for name, table in extra.items())])
