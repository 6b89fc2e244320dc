"""Events: stretches of frames with their labels, and the way from rows of labels to events and back.

`start` and `end` are inclusive and are the numbers in the frame files' names. Rows are positions in a study's
ascending `frame` array: an event of rows a..b has start = frame[a] and end = frame[b + 1] - 1, as the organisers'
converter writes it, or frame[b] for the study's last row; without gaps in the frame numbers both are frame[b].
"""

from typing import NamedTuple

import numpy as np

from rarevision.errors import UserError
from rarevision.labels import COLUMN, LABELS, N_LABELS

MAX_FRAME = 2**31 - 1  # frame numbers are int32 in every array of this package


class Event(NamedTuple):
    """Frames `start`..`end`, both included, carrying every one of `labels` (possibly none)."""

    start: int
    end: int
    labels: tuple[str, ...]


Events = dict[str, list[Event]]  # study id -> events in file order, which is the ranking


class EventsError(UserError):
    """Events, or a file of them, that do not fit the format."""


def runs(mask: np.ndarray) -> np.ndarray:
    """Start and inclusive end row, int [n, 2], of each run of True in `mask` [T]."""
    edges = np.diff(np.asarray(mask, bool), prepend=False, append=False)
    rows = np.flatnonzero(edges).reshape(-1, 2)
    rows[:, 1] -= 1
    return rows


def _checked(frame: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    frame, labels = np.asarray(frame), np.asarray(labels)
    if frame.ndim != 1 or labels.shape != (len(frame), N_LABELS):
        raise ValueError(f"frame must be [T] and labels [T, {N_LABELS}], not {frame.shape} and {labels.shape}")
    if (np.diff(frame.astype(np.int64)) <= 0).any():
        raise ValueError("frame must ascend strictly; sort the rows and drop doubled frames first")
    return frame.astype(np.int64), labels.astype(bool)


def _bounds(frame: np.ndarray, first: np.ndarray, last: np.ndarray) -> tuple[list[int], list[int]]:
    """Frame numbers of events of rows first..last (see the module's convention)."""
    ends = np.append(frame[1:] - 1, frame[-1:])
    return frame[first].tolist(), ends[last].tolist()


def from_label_sets(frame: np.ndarray, labels: np.ndarray, empty: bool = False) -> list[Event]:
    """One event per stretch of an unchanged label set, as the organisers' converter does.

    `frame` [T] ascending, `labels` [T, 17] of 0 and 1. `empty` keeps the stretches without any label, as they do.
    """
    frame, labels = _checked(frame, labels)
    if not len(frame):
        return []
    code = labels @ (1 << np.arange(N_LABELS))
    first = np.append(0, np.flatnonzero(np.diff(code)) + 1)
    last = np.append(first[1:] - 1, len(frame) - 1)
    code = code[first]
    if not empty:
        first, last, code = first[code > 0], last[code > 0], code[code > 0]
    names = {c: tuple(name for i, name in enumerate(LABELS) if c >> i & 1) for c in np.unique(code).tolist()}
    starts, ends = _bounds(frame, first, last)
    return [Event(s, e, names[c]) for s, e, c in zip(starts, ends, code.tolist(), strict=True)]


def from_labels(frame: np.ndarray, labels: np.ndarray) -> list[Event]:
    """One event per run of each label, ordered by start, then by the order of `LABELS`. Shapes as `from_label_sets`."""
    frame, labels = _checked(frame, labels)
    edges = np.diff(labels.T, axis=1, prepend=False, append=False)
    column, row = (a.reshape(-1, 2) for a in np.nonzero(edges))  # by column; each run is a rise and a fall
    order = np.lexsort((column[:, 0], row[:, 0]))
    starts, ends = _bounds(frame, row[order, 0], row[order, 1] - 1)
    return [Event(s, e, (LABELS[c],)) for s, e, c in zip(starts, ends, column[order, 0].tolist(), strict=True)]


def to_labels(frame: np.ndarray, events: list[Event]) -> np.ndarray:
    """Labels uint8 [T, 17] of the rows of `frame` [T] ascending: 1 where an event with that label covers the frame."""
    frame = np.asarray(frame)
    change = np.zeros((len(frame) + 1, N_LABELS), np.int32)
    if events:
        starts, ends, names = zip(*events, strict=True)
        column = np.array([COLUMN[name] for labels in names for name in labels], np.intp)
        times = [len(labels) for labels in names]
        np.add.at(change, (np.repeat(np.searchsorted(frame, starts, "left"), times), column), 1)
        np.add.at(change, (np.repeat(np.searchsorted(frame, ends, "right"), times), column), -1)
    return (np.cumsum(change[:-1], axis=0) > 0).astype(np.uint8)
