"""The report on a prediction: its score, what it means to a reader, and all of it as tables, JSON and text."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from rarevision.events import Events
from rarevision.labels import LABELS, N_LABELS
from rarevision.scoring.matching import check_studies, flatten, match
from rarevision.scoring.reader import touches, workload
from rarevision.scoring.score import GROUPS, Score

THRESHOLDS = (0.5, 0.95)  # tIoU
RECALLS = (0.5, 0.8, 0.9, 0.95)  # at which the part of frames to look at is given


@dataclass(frozen=True, eq=False)
class Report(Score):
    """A score with everything else that is counted on the same events; `score_events` makes it."""

    @cached_property
    def touched(self) -> np.ndarray:
        """True events that share a frame with a predicted event of their label; int64 [V, 17]."""
        return self._count(self.truth[touches(self.truth, self.prediction)])

    @cached_property
    def false(self) -> np.ndarray:
        """Predicted events that share no frame with a true event of their label; int64 [V, 17]."""
        return self._count(self.prediction[~touches(self.prediction, self.truth)])

    @cached_property
    def workload(self) -> tuple[np.ndarray, np.ndarray]:
        """True findings found, and frames looked at, in the first n proposals of every study; see `reader.workload`."""
        return workload(self.truth, self.prediction)

    def reader(self, group: str = "findings") -> dict[str, float | None]:
        """What a reader gets from the events of a group; None where undefined.

        `recall`: share of true events that share a frame with a predicted event of their label; `recall@T`: share
        matched at tIoU T. False events share no frame with a true event of their label; per 1,000 frames, and per hour
        of video where `fps` is known. Onset and offset errors: median and mean absolute difference in frames of the
        events matched at the lowest threshold.
        """
        columns = GROUPS[group]
        true, predicted, touched, false = (
            int(count[:, columns].sum()) for count in (self.true, self.predicted, self.touched, self.false)
        )
        inside = np.isin(self.prediction.pair % N_LABELS, range(N_LABELS)[columns])
        frames = int(self.frames.sum())
        table: dict[str, float | None] = {"true events": true, "predicted events": predicted}
        table["recall"] = _share(touched, true)
        for threshold, taken in zip(self.thresholds, self.taken, strict=True):
            table[f"recall@{threshold:g}"] = _share((taken[inside] >= 0).sum(), true)
        table["false events"] = false
        table["false per 1000 frames"] = _share(1000 * false, frames)
        table["false per hour"] = _share(3600 * false * self.fps, frames) if self.fps else None
        lowest = self.taken[np.argmin(self.thresholds)]
        hit = inside & (lowest >= 0)
        t, p = self.truth[lowest[hit]], self.prediction[hit]
        for name, error in (("onset", np.abs(p.start - t.start)), ("offset", np.abs(p.end - t.end))):
            table[f"{name} error median"] = float(np.median(error)) if len(error) else None
            table[f"{name} error mean"] = float(error.mean()) if len(error) else None
        return table

    def frames_for_recall(self, recall: float) -> float | None:
        """Part of all frames that a reader looks at to find this share of the true findings; None if never reached.

        The reader opens the proposals in file order, as many in every study, and sees all their frames.
        """
        found, looked = self.workload
        findings = int(self.true[:, GROUPS["findings"]].sum())
        reached = np.flatnonzero(found >= recall * findings - 1e-9)
        return _share(looked[reached[0]], self.frames.sum()) if findings and len(reached) else None

    def labels(self) -> pd.DataFrame:
        """One row per label: mean AP over studies, over studies that have the label, and counts of events."""
        true, touched = self.true.sum(axis=0), self.touched.sum(axis=0)
        table = {n: ap.mean(axis=0) for n, ap in zip(self.names(), self.ap, strict=True)}
        table |= {f"{n} present": self._present_mean(ap, 0) for n, ap in zip(self.names(), self.ap, strict=True)}
        table |= {"studies": self.present.sum(axis=0), "silent": (self.predicted == 0).sum(axis=0)}
        table |= {"true": true, "predicted": self.predicted.sum(axis=0)}
        table |= {"recall": np.where(true, touched / np.maximum(true, 1), np.nan), "false": self.false.sum(axis=0)}
        return pd.DataFrame(table, index=pd.Index(LABELS, name="label"))

    def videos(self) -> pd.DataFrame:
        """One row per study: its mAP, the same of an empty list, on its present labels only, and counts of events."""
        table = dict(zip(self.names(), self.per_study, strict=True)) | {"empty": 1 - self.present.mean(axis=1)}
        table |= {f"{n} present": self._present_mean(ap, 1) for n, ap in zip(self.names(), self.ap, strict=True)}
        table |= {"true": self.true.sum(axis=1), "predicted": self.predicted.sum(axis=1), "frames": self.frames}
        return pd.DataFrame(table, index=pd.Index(self.studies, name="video", dtype=str))

    def _present_mean(self, ap: np.ndarray, axis: int) -> np.ndarray:
        return np.ma.array(ap, mask=~self.present).mean(axis=axis).filled(np.nan)

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

    def to_json(self, extra: Mapping[str, pd.DataFrame]) -> str:
        """The report and `extra` tables as JSON."""
        tables = {name: _records(table) for name, table in extra.items()}
        return json.dumps(self.as_dict() | tables, indent=1, allow_nan=False)

    def to_text(self, extra: Mapping[str, pd.DataFrame]) -> str:
        """The report and `extra` tables for a terminal."""
        reader = pd.DataFrame({group: pd.Series(self.reader(group), dtype=object) for group in GROUPS})
        parts = [_text(part) for part in (self.summary(), self.videos(), self.labels(), reader)]
        effort = {recall: self.frames_for_recall(recall) for recall in RECALLS}
        said = ", ".join(f"{r:g}: {'not reached' if part is None else f'{part:.2%}'}" for r, part in effort.items())
        parts.append(f"part of frames to look at for a share of the true findings: {said}")
        return "\n\n".join([*parts, *(f"{name}\n{_text(table)}" for name, table in extra.items())])


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


def _records(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    rows = table.astype(object).where(table.notna(), None).to_dict("index")
    return {str(key): row for key, row in rows.items()}


def _text(table: pd.DataFrame) -> str:
    shown = table.rename_axis(None).map(lambda v: "-" if pd.isna(v) else f"{v:.4f}" if isinstance(v, float) else str(v))
    return shown.to_string()


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
    check_studies(truth, prediction)
    t, p = flatten(truth, tuple(truth)), flatten(prediction, tuple(truth))
    n_frames = [frames[study] if frames else _extent(truth[study] + prediction[study]) for study in truth]
    taken = match(t, p, thresholds)
    return Report(tuple(truth), tuple(thresholds), t, p, taken, np.array(n_frames, np.int64), fps)


def _extent(events: list) -> int:
    return max(e.end for e in events) - min(e.start for e in events) + 1 if events else 0
