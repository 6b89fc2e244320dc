"""The matching: which predicted event takes which true one, and what each pair of study and label earns for it.

The challenge's rule. tIoU of two inclusive intervals = shared frames / frames in either. For one study and label, walk
the predictions in file order; each takes the first truth event, in file order, that is still free and has tIoU >=
threshold. AP = sum over hits of (hits so far / predictions so far) / number of truth events; without truth events 1 if
nothing is predicted, else 0. Results are equal to the literal rule, to the last bit: the same integer frame counts are
divided and the same sums taken in the same order. Only the search is faster: candidates come from two binary searches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from rarevision.events import MAX_FRAME, Event, Events, EventsError
from rarevision.labels import COLUMN, FINDINGS, N_LABELS

SPAN = 1 << 32  # more than any frame number: pair * SPAN + frame sorts by pair, then by frame
CROWD = 16  # candidates of one prediction; truth of one label overlaps so much in no real timeline


@dataclass(frozen=True)
class Intervals:
    """One row per event and label, by `pair` = study * 17 + label, and in file order within a pair; int64 [N] each."""

    pair: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.pair)


def flatten(events: Events, studies: Sequence[str]) -> Intervals:
    """The events of `studies` as intervals; an event counts once for each name in its label list."""
    rows = [row for study in studies for row in events[study]]
    if not rows:
        return Intervals(*np.zeros((3, 0), np.int64))
    starts, ends = (np.fromiter(map(itemgetter(i), rows), np.int64, len(rows)) for i in (0, 1))
    sets: dict[tuple[str, ...], int] = {}
    which = np.fromiter((sets.setdefault(row[2], len(sets)) for row in rows), np.int64, len(rows))
    size = np.array([len(labels) for labels in sets])
    columns = np.array([COLUMN[name] for labels in sets for name in labels], np.int64)
    times = size[which]
    row = np.repeat(np.arange(len(rows)), times)
    within = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
    column = columns[(np.cumsum(size) - size)[which][row] + within]
    study = np.repeat(np.arange(len(studies)), [len(events[s]) for s in studies])
    pair = study[row] * N_LABELS + column
    order = np.argsort(pair, kind="stable")
    start, end = starts[row[order]], ends[row[order]]
    if ((start < 0) | (start > end) | (end > MAX_FRAME)).any():
        n = int(row[order][np.argmax((start < 0) | (start > end) | (end > MAX_FRAME))])
        raise EventsError(f"study {studies[study[n]]}: {rows[n]} needs 0 <= start <= end <= {MAX_FRAME}")
    return Intervals(pair[order], start, end)


def _tiou(truth: Intervals, g: np.ndarray, predicted: Intervals, p: np.ndarray | int) -> np.ndarray:
    a, b, c, d = predicted.start[p], predicted.end[p], truth.start[g], truth.end[g]
    shared = np.maximum(np.minimum(b, d) - np.maximum(a, c) + 1, 0)
    return shared / ((b - a + 1) + (d - c + 1) - shared)


def match(truth: Intervals, predicted: Intervals, thresholds: Sequence[float]) -> np.ndarray:
    """Row of the truth event that each prediction takes, -1 for a miss; int64 [len(thresholds), len(predicted)].

    tIoU >= 0.5 means that the shared frames are at least half of the prediction, hence include one of its two middle
    frames; so only truth events over these are looked at: at most two where truth events do not overlap.
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

    crowded = np.unique(predicted.pair[count > CROWD])  # many truth events over one place: all are compared instead
    for pair in crowded.tolist():
        g, p = (np.arange(*np.searchsorted(x.pair, (pair, pair + 1))) for x in (truth, predicted))
        free = np.ones((len(thresholds), len(g)), bool)
        for i in p.tolist():
            tiou = _tiou(truth, g, predicted, i)
            for k, threshold in enumerate(thresholds):
                near = free[k] & (tiou >= threshold)
                if near[first := near.argmax()]:
                    free[k, first] = False
                    taken[k, i] = g[first]

    count[np.isin(predicted.pair, crowded)] = 0
    p = np.repeat(np.arange(len(predicted)), count)
    g = order[np.arange(len(p)) + np.repeat(low - (np.cumsum(count) - count), count)]
    tiou = _tiou(truth, g, predicted, p)
    for k, threshold in enumerate(thresholds):
        near = np.flatnonzero(tiou >= threshold)
        near = near[np.lexsort((g[near], p[near]))]  # by prediction, then in the truth's file order
        free, done, hits = bytearray(b"\1") * len(truth), -1, []
        for i, j in zip(p[near].tolist(), g[near].tolist(), strict=True):
            if i != done and free[j]:
                free[j] = 0
                done = i
                hits.append((i, j))
        if hits:
            i, j = np.array(hits).T
            taken[k, i] = j
    return taken


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
    t, p = (Intervals(np.zeros(len(x), np.int64), x[:, 0], x[:, 1]) for x in rows)
    return float(precisions(t, p, match(t, p, [threshold])[0], 1)[0])


def touches(rows: Intervals, others: Intervals) -> np.ndarray:
    """Whether each of `rows` shares a frame with any of `others` of the same study and label; bool [len(rows)]."""
    opened = np.searchsorted(np.sort(others.pair * SPAN + others.start), rows.pair * SPAN + rows.end, "right")
    closed = np.searchsorted(np.sort(others.pair * SPAN + others.end), rows.pair * SPAN + rows.start, "left")
    return opened > closed


def workload(truth: Events, prediction: Events, studies: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """What a reader finds and looks at who opens the first n proposals of every study, n = 0, 1, 2, ...

    A proposal is a predicted event that names a finding; file order is the confidence order. A true finding is found
    once a proposal with its label shares a frame with it. Returns `found`, true findings found, and `looked`, distinct
    frames seen, both int64 [n_max + 1], summed over `studies`.
    """
    column = {name: i for i, name in enumerate(FINDINGS)}
    known: dict[tuple[str, ...], list[int]] = {}

    def findings(events: list[Event]) -> list[tuple[Event, list[int]]]:
        for labels in {event.labels for event in events} - known.keys():
            known[labels] = [column[name] for name in labels if name in column]
        return [(event, known[event.labels]) for event in events if known[event.labels]]

    found_at, seen_at, seen = [], [], []
    for study in studies:
        proposals, true = findings(prediction[study]), findings(truth[study])
        if not proposals:
            continue
        # Between neighbouring cuts nothing changes, so whole pieces are painted, not frames.
        bounds = np.array([(event.start, event.end + 1) for event, _ in proposals + true])
        cuts = np.unique(bounds)
        pieces = np.searchsorted(cuts, bounds)
        never = len(proposals)
        rank = np.full((len(FINDINGS), len(cuts)), never)
        for n, (a, b) in reversed(list(enumerate(pieces[:never].tolist()))):  # the earliest proposal paints last
            for i in proposals[n][1]:
                rank[i, a:b] = n
        label = np.array([i for _, columns in true for i in columns], np.int64)
        place = np.repeat(pieces[never:], [len(columns) for _, columns in true], axis=0)
        for i in np.unique(label):
            first = np.minimum.reduceat(rank[i], place[label == i].ravel())[::2]
            found_at.append(first[first < never] + 1)
        earliest = rank.min(axis=0)[:-1]
        opened = earliest < never
        seen_at.append(earliest[opened] + 1)
        seen.append(np.diff(cuts)[opened])
    steps = max((int(at.max()) for at in seen_at), default=0) + 1
    found = np.bincount(np.concatenate([*found_at, np.zeros(0, np.int64)]), minlength=steps)
    looked = np.zeros(steps, np.int64)
    for at, frames in zip(seen_at, seen, strict=True):
        np.add.at(looked, at, frames)
    return np.cumsum(found), np.cumsum(looked)
