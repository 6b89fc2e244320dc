"""Which predicted event takes which true one, and the average precision (AP) that each study and label earns for it.

The challenge's rule. The temporal intersection over union (tIoU) of two events is the number of frames in both, divided
by the number of frames in either. For one study and label, walk the predicted events in file order; each takes the
first true event, in file order, that is still free and has tIoU >= threshold. AP is the sum over hits of (hits so far /
predictions so far), divided by the number of true events. Without true events it is 1 if nothing is predicted, else 0.

Results equal this rule, written as loops, to the last bit: the same integer frame counts are divided and the same sums
taken in the same order. Only the search is faster: two binary searches find the true events that are worth comparing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from rarevision.events import MAX_FRAME, Events, EventsError
from rarevision.labels import COLUMN, N_LABELS

SPAN = 1 << 32  # more than any frame number: pair * SPAN + frame sorts by pair, then by frame
CROWD = 16  # true events that one prediction is compared with at most; in real timelines fewer of one label overlap


@dataclass(frozen=True)
class Intervals:
    """Events as arrays, int64 [N] each: one row per event and label, sorted by `pair`, in file order within a pair."""

    pair: np.ndarray  # study * 17 + label
    start: np.ndarray
    end: np.ndarray  # inclusive
    event: np.ndarray  # position among the events of all studies

    def __len__(self) -> int:
        return len(self.pair)

    def __getitem__(self, rows: np.ndarray | slice) -> "Intervals":
        return Intervals(self.pair[rows], self.start[rows], self.end[rows], self.event[rows])


def check_studies(truth: Events, prediction: Events) -> None:
    """Refuse events that do not name the same studies, or none."""
    if not truth:
        raise EventsError("the truth has no videos")
    sides = ("the prediction lacks", truth, prediction), ("the truth does not have", prediction, truth)
    said = []
    for what, has, lacks in sides:
        ids = sorted(has.keys() - lacks.keys())
        said += [f"{what} {', '.join(ids[:5])}{', ...' * (len(ids) > 5)}"] if ids else []
    if said:
        raise EventsError(f"videos differ: {'; '.join(said)}")


def flatten(events: Events, studies: Sequence[str]) -> Intervals:
    """The events of `studies` as intervals; an event counts once for each name in its label list."""
    listed = [event for study in studies for event in events[study]]
    if not listed:
        return Intervals(*np.zeros((4, 0), np.int64))
    starts, ends = (np.fromiter(map(itemgetter(i), listed), np.int64, len(listed)) for i in (0, 1))
    wrong = (starts < 0) | (starts > ends) | (ends > MAX_FRAME)
    study = np.repeat(np.arange(len(studies)), [len(events[s]) for s in studies])
    if wrong.any():
        n = int(wrong.argmax())
        raise EventsError(f"study {studies[study[n]]}: {listed[n]} needs 0 <= start <= end <= {MAX_FRAME}")
    names = [event.labels for event in listed]
    event = np.repeat(np.arange(len(listed)), list(map(len, names)))
    column = np.fromiter((COLUMN[name] for labels in names for name in labels), np.int64, len(event))
    pair = study[event] * N_LABELS + column
    order = np.argsort(pair, kind="stable")
    return Intervals(pair, starts[event], ends[event], event)[order]


def _tiou(truth: Intervals, g: np.ndarray, predicted: Intervals, p: np.ndarray | int) -> np.ndarray:
    a, b, c, d = predicted.start[p], predicted.end[p], truth.start[g], truth.end[g]
    shared = np.maximum(np.minimum(b, d) - np.maximum(a, c) + 1, 0)
    return shared / ((b - a + 1) + (d - c + 1) - shared)


def match(truth: Intervals, predicted: Intervals, thresholds: Sequence[float]) -> np.ndarray:
    """Row of the true event that each prediction takes, -1 for a miss; int64 [len(thresholds), len(predicted)].

    tIoU >= 0.5 means that the shared frames are at least half of the prediction, hence include one of its two middle
    frames; so only true events over these are looked at: at most two where true events do not overlap.
    """
    if not all(0 < t <= 1 for t in thresholds):
        raise ValueError(f"tIoU thresholds must lie in (0, 1], not {tuple(thresholds)}")
    taken = np.full((len(thresholds), len(predicted)), -1, np.int64)
    if not len(truth) or not len(predicted):
        return taken
    order = np.lexsort((truth.start, truth.pair))
    opens = truth.pair[order] * SPAN + truth.start[order]
    reach = np.maximum.accumulate(truth.pair[order] * SPAN + truth.end[order])
    length = predicted.end - predicted.start + 1
    half = min(thresholds) >= 0.5
    left = predicted.start + (length - 1) // 2 if half else predicted.start
    right = predicted.start + length // 2 if half else predicted.end
    low = np.searchsorted(reach, predicted.pair * SPAN + left, "left")
    count = np.maximum(np.searchsorted(opens, predicted.pair * SPAN + right, "right") - low, 0)

    crowded = np.unique(predicted.pair[count > CROWD])
    _match_one_by_one(truth, predicted, thresholds, crowded, taken)
    count[np.isin(predicted.pair, crowded)] = 0
    p = np.repeat(np.arange(len(predicted)), count)
    g = order[np.arange(len(p)) + np.repeat(low - (np.cumsum(count) - count), count)]
    tiou = _tiou(truth, g, predicted, p)
    for k, threshold in enumerate(thresholds):
        near = np.flatnonzero(tiou >= threshold)
        near = near[np.lexsort((g[near], p[near]))]  # by prediction, then in the truth's file order
        free, done = bytearray(b"\1") * len(truth), -1
        for i, j in zip(p[near].tolist(), g[near].tolist(), strict=True):
            if i != done and free[j]:
                free[j] = 0
                done = i
                taken[k, i] = j
    return taken


def _match_one_by_one(
    truth: Intervals, predicted: Intervals, thresholds: Sequence[float], pairs: np.ndarray, taken: np.ndarray
) -> None:
    """Fill `taken` for `pairs` in which many true events overlap: each prediction is compared with all, one at a time,
    because a list of all candidates could outgrow the memory.
    """
    for pair in pairs.tolist():
        g, p = (np.arange(*np.searchsorted(x.pair, (pair, pair + 1))) for x in (truth, predicted))
        free = np.ones((len(thresholds), len(g)), bool)
        for i in p.tolist():
            tiou = _tiou(truth, g, predicted, i)
            for k, threshold in enumerate(thresholds):
                near = free[k] & (tiou >= threshold)
                if near[first := near.argmax()]:
                    free[k, first] = False
                    taken[k, i] = g[first]


def precisions(truth: Intervals, predicted: Intervals, taken: np.ndarray, pairs: int) -> np.ndarray:
    """AP of each of `pairs` pairs of study and label, float64 [pairs], from one row of `match`."""
    n_truth, n_predicted = (np.bincount(x.pair, minlength=pairs) for x in (truth, predicted))
    before = np.cumsum(n_predicted) - n_predicted  # predictions of earlier pairs
    hit = np.flatnonzero(taken >= 0)
    pair = predicted.pair[hit]
    n_hits = np.bincount(pair, minlength=pairs)
    so_far = np.arange(1, len(hit) + 1) - (np.cumsum(n_hits) - n_hits)[pair]
    total = np.bincount(pair, so_far / (hit + 1 - before[pair]), minlength=pairs)
    return np.where(n_truth > 0, total / np.maximum(n_truth, 1), n_predicted == 0)


def event_ap(truth: np.ndarray, predicted: np.ndarray, threshold: float) -> float:
    """AP of one study and label: `truth` int [m, 2] and `predicted` int [n, 2], inclusive, in file order."""
    rows = [np.asarray(x, np.int64).reshape(-1, 2) for x in (truth, predicted)]
    t, p = (Intervals(np.zeros(len(x), np.int64), x[:, 0], x[:, 1], np.arange(len(x))) for x in rows)
    return float(precisions(t, p, match(t, p, [threshold])[0], 1)[0])
