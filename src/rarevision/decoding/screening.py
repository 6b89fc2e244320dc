"""Screening: the list of findings that a physician looks through, and where it is cut.

Recall means what it means for one patient: the share of the study's finding events (runs of a label) that share a frame
with a listed event of their label; then the mean over the studies that have findings. So a study with a thousand events
counts as much as one with three, and does not decide where the list of all others ends. The share of frames to look at
is of the study's frames those under any listed event, landmarks included; then the mean over all studies.
A cut is one confidence for all studies, found on candidates of studies that the fit did not see: the share that it
keeps is an expectation for a new study, not a promise for each.
"""

from collections.abc import Iterable

import numpy as np

from rarevision.decoding.proposals import Candidates
from rarevision.events import Event, runs
from rarevision.labels import ANATOMY, COLUMN, N_LABELS, REGIONS
from rarevision.scores import StudyScores

NOTHING = 2.0  # a cut that no confidence reaches


def distinct(found: Candidates) -> Candidates:
    """Candidates that are no region and share no frame with a surer one of the same label."""
    return found.kept(found.column >= len(REGIONS)).distinct()


def _touched(labels: np.ndarray, column: np.ndarray, rows: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Of each finding event of `labels` [T, 17], the highest `value` of a listed event that touches it; 0 if none."""
    best = []
    for c in range(len(ANATOMY), N_LABELS):
        mine = column == c
        first, last, confidence = rows[mine, 0], rows[mine, 1], value[mine]
        for a, b in runs(labels[:, c] == 1):
            best.append(confidence[(first <= b) & (last >= a)].max(initial=0.0))
    return np.array(best)


def recall_cut(labels: list[np.ndarray], out_of_fold: list[Candidates], recall: float) -> float:
    """The highest confidence at which the mean over studies reaches `recall`; 0 where even the whole list does not.

    `labels` uint8 [T, 17] of each study and its candidates out of fold.
    """
    best = [
        _touched(y, d.column, d.rows, d.confidence) for y, d in zip(labels, map(distinct, out_of_fold), strict=True)
    ]
    best = [b for b in best if len(b)]
    if not best:
        return 0.0
    weight = np.concatenate([np.full(len(b), 1 / len(b)) for b in best]) / len(best)
    value = np.concatenate(best)
    order = np.argsort(-value, kind="stable")
    return float(value[order][np.searchsorted(np.cumsum(weight[order]), min(recall, 1) - 1e-9)])


def share_cut(frames: list[int], out_of_fold: list[Candidates], share: float) -> float:
    """The lowest confidence at which no more than `share` of a study's frames are under listed events, on average.

    `frames`: number of frames of each study. NOTHING where the surest candidate already covers more.
    """
    value, cost = [], []
    for n, found in zip(frames, map(distinct, out_of_fold), strict=True):
        seen = np.zeros(n, bool)
        for (first, last), confidence in zip(found.rows, found.confidence, strict=True):
            value.append(confidence)
            cost.append(int((~seen[first : last + 1]).sum()) / n / len(frames))
            seen[first : last + 1] = True
    value, cost = np.array(value), np.array(cost)
    order = np.argsort(-value, kind="stable")
    value, total = value[order], np.cumsum(cost[order])
    fits = int(np.searchsorted(total, share + 1e-9, "right"))
    while 0 < fits < len(value) and value[fits - 1] == value[fits]:  # equals stand or fall together
        fits -= 1
    return float(value[fits - 1]) if fits else (NOTHING if len(value) else 0.0)


def measure(studies: list[StudyScores], listed: Iterable[list[Event]]) -> dict[str, float | None]:
    """What lists of events give on studies with labels, as the module's text defines it; None without findings.

    `pooled`: recall over the events of all studies together, which event-rich studies decide.
    """
    recalls, share, found = [], [], []
    for study, events in zip(studies, listed, strict=True):
        pairs = [(e, name) for e in events for name in e.labels]
        rows = np.array([(e.start, e.end) for e, _ in pairs], np.int64).reshape(-1, 2)
        rows = np.stack(
            [np.searchsorted(study.frame, rows[:, 0]), np.searchsorted(study.frame, rows[:, 1], "right") - 1], 1
        )
        column = np.array([COLUMN[name] for _, name in pairs], np.int64)
        hit = _touched(study.labels, column, rows, np.ones(len(rows)))
        seen = np.zeros(len(study.frame), bool)
        for first, last in rows:
            seen[first : last + 1] = True
        share.append(seen.mean())
        found.append(hit)
        if len(hit):
            recalls.append(hit.mean())
    return {
        "recall": float(np.mean(recalls)) if recalls else None,
        "share": float(np.mean(share)),
        "pooled": float(np.concatenate(found).mean()) if recalls else None,
    }
