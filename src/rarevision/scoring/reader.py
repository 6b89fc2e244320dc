"""What a reader gets who looks through the predicted events: what they touch, and how many frames have to be seen."""

import numpy as np

from rarevision.labels import ANATOMY, N_LABELS
from rarevision.scoring.matching import SPAN, Intervals


def touches(rows: Intervals, others: Intervals) -> np.ndarray:
    """Whether each of `rows` shares a frame with any of `others` of the same study and label; bool [len(rows)]."""
    opened = np.searchsorted(np.sort(others.pair * SPAN + others.start), rows.pair * SPAN + rows.end, "right")
    closed = np.searchsorted(np.sort(others.pair * SPAN + others.end), rows.pair * SPAN + rows.start, "left")
    return opened > closed


def workload(truth: Intervals, predicted: Intervals) -> tuple[np.ndarray, np.ndarray]:
    """What a reader finds and looks at who opens the first n proposals of every study, n = 0, 1, 2, ...

    A proposal is a predicted event that names a finding; file order is the confidence order. A true finding is found
    once a proposal with its label shares a frame with it. Returns `found`, the number of true findings found, and
    `looked`, the number of distinct frames seen; both int64 [n_max + 1], summed over studies.
    """
    truth, predicted = (x[x.pair % N_LABELS >= len(ANATOMY)] for x in (truth, predicted))
    found_at, seen_at, seen = ([np.zeros(0, np.int64)] for _ in range(3))
    for study in np.unique(predicted.pair // N_LABELS).tolist():
        first_pair = study * N_LABELS
        t, p = (x[slice(*np.searchsorted(x.pair, (first_pair, first_pair + N_LABELS)))] for x in (truth, predicted))
        # Between neighbouring cuts nothing changes, so whole pieces of the study are painted, not frames.
        cuts = np.unique(np.concatenate([t.start, t.end + 1, p.start, p.end + 1]))
        (t_places, p_places) = (
            (x.pair - first_pair)[:, None] * len(cuts) + np.searchsorted(cuts, np.stack([x.start, x.end + 1], axis=1))
            for x in (t, p)
        )
        number = np.unique(p.event, return_inverse=True)[1] + 1  # of each proposal in file order
        never = int(number.max()) + 1
        opened = np.full(N_LABELS * len(cuts), never)  # the first proposal over each piece, label after label
        for i in np.argsort(-number).tolist():  # so the earliest proposal is painted last
            opened[slice(*p_places[i])] = number[i]
        first = np.minimum.reduceat(opened, t_places.ravel())[::2]
        found_at.append(first[first < never])
        first = opened.reshape(N_LABELS, -1).min(axis=0)[:-1]
        seen_at.append(first[first < never])
        seen.append(np.diff(cuts)[first < never])
    at, looked_at = np.concatenate(found_at), np.concatenate(seen_at)
    steps = int(max(at.max(initial=0), looked_at.max(initial=0))) + 1
    looked = np.bincount(looked_at, np.concatenate(seen), steps).astype(np.int64)
    return np.cumsum(np.bincount(at, minlength=steps)), np.cumsum(looked)
