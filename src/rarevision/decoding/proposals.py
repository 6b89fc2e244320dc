"""Proposals: candidate events of each label with what speaks for them, before anything is chosen.

Two kinds. Pieces: stretches of an unchanged label set, as the organisers' converter writes truth, cut wherever another
decoded label begins or ends. Runs: stretches in which a label's posterior exceeds a level, from high to low levels, so
that doubtful events and wider or narrower bounds of sure ones are there too, for further down the ranking.
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rarevision.decoding.chains import Marginals
from rarevision.decoding.posteriors import RegionPath
from rarevision.decoding.structure import N_REGIONS
from rarevision.events import Event, runs
from rarevision.labels import LABELS, N_LABELS

RUN_LEVELS = (0.5, 0.2, 0.05, 0.01)
N_FEATURES = 12


class Proposals(NamedTuple):
    """A label's candidates: rows int [n, 2], inclusive, each pair once; facts [n, 5]; piece bool [n]; level int [n].

    Facts: probability that a change lies exactly at the start, and at the end; expected number of changes inside that
    the decoded labels do not have; mean posterior; length in frames.
    `level`: index of the first RUN_LEVELS of which it is a run, or their number if it is only a piece.
    """

    rows: np.ndarray
    facts: np.ndarray
    piece: np.ndarray
    level: np.ndarray

    def sure(self) -> "Proposals":
        """Without the doubtful runs: pieces, and runs at the first level."""
        keep = self.piece | (self.level == 0)
        return Proposals(*(part[keep] for part in self))

    def features(self) -> np.ndarray:
        """What the hit model reads, float64 [n, N_FEATURES]."""
        start, end, inside, mean, length = self.facts.T
        s, e = np.log(np.clip(start, 1e-3, 1)), np.log(np.clip(end, 1e-3, 1))
        long = np.log(length)
        sure = self.level == 0
        columns = [
            s,
            e,
            np.minimum(s, e),
            np.minimum(inside, 5),
            np.log(inside + 1e-2),
            mean,
            np.log(np.clip(mean, 1e-3, 1)),
        ]
        columns += [long, long * sure, self.piece, sure, self.level == 1]
        return np.stack(columns, 1).astype(np.float64)


def propose(region: RegionPath, found: Marginals, present: np.ndarray) -> list[Proposals]:
    """Candidates of all 17 labels; `present` [12]: probability that each label that is not a region is there at all."""
    on = np.concatenate([region.posterior, found.on], 1)
    begins = np.concatenate([region.entry, found.entry * present], 1)
    ends = np.concatenate([region.leave, found.leave * present], 1)
    decoded = np.concatenate([region.path[:, None] == np.arange(N_REGIONS), (found.on > 0.5) & (present > 0.5)], 1)
    frames = len(on)
    change = np.append(0, np.flatnonzero((decoded[1:] != decoded[:-1]).any(1)) + 1)
    until = np.append(change[1:], frames)
    sharp = _sharpness(decoded, begins, ends, np.append(change, frames))
    # Changes that the decoded labels lack: onsets where a label is off, ends where it is on.
    off = ~decoded[:, N_REGIONS:]
    missed = np.where(off, found.entry, found.leave) @ present
    missed = np.append(0.0, np.cumsum(missed, dtype=np.float64))
    total = np.concatenate([np.zeros((1, N_LABELS)), np.cumsum(on, axis=0, dtype=np.float64)])
    out = []
    for c in range(N_LABELS):
        here = decoded[change, c]
        rows = [np.stack([change[here], until[here] - 1], 1)]
        bounds = [np.stack([sharp[:-1][here], sharp[1:][here]], 1)]
        level = [np.full(len(rows[0]), len(RUN_LEVELS))]
        for i, height in enumerate(RUN_LEVELS):
            found_runs = runs(on[:, c] > height)
            rows.append(found_runs)
            bounds.append(np.stack([begins[found_runs[:, 0], c], ends[found_runs[:, 1], c]], 1))
            level.append(np.full(len(found_runs), i))
        rows, bounds, level = (np.concatenate(a) for a in (rows, bounds, level))
        _, first, back = np.unique(rows[:, 0] * (frames + 1) + rows[:, 1], return_index=True, return_inverse=True)
        n_pieces = int(here.sum())
        lowest = np.full(len(first), len(RUN_LEVELS))
        np.minimum.at(lowest, back, level)
        rows, bounds, piece, level = rows[first], bounds[first], first < n_pieces, lowest
        length = rows[:, 1] - rows[:, 0] + 1
        mean = (total[rows[:, 1] + 1, c] - total[rows[:, 0], c]) / length
        inside = np.maximum(missed[np.maximum(rows[:, 1], rows[:, 0] + 1)] - missed[rows[:, 0] + 1], 0)
        out.append(Proposals(rows, np.column_stack([bounds, inside, mean, length]), piece, level))
    return out


def _sharpness(decoded: np.ndarray, begins: np.ndarray, ends: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Probability that each decoded change lies exactly where it does: of the least sure label that changes there."""
    out = np.ones(len(change))
    inner = change[(change > 0) & (change < len(decoded))]
    rise, fall = decoded[inner] & ~decoded[inner - 1], decoded[inner - 1] & ~decoded[inner]
    sure = np.where(rise, begins[inner], np.where(fall, ends[inner - 1], 1.0)).min(1, initial=1.0)
    out[(change > 0) & (change < len(decoded))] = sure
    return out


def truth_rows(labels: np.ndarray) -> list[np.ndarray]:
    """The challenge's truth events of each label as rows int [n, 2]: stretches of an unchanged label set."""
    change = np.append(0, np.flatnonzero((labels[1:] != labels[:-1]).any(1)) + 1)
    until = np.append(change[1:], len(labels)) - 1
    return [np.stack([change, until], 1)[labels[change, c] == 1] for c in range(N_LABELS)]


@dataclass(frozen=True)
class Candidates:
    """Ranked candidate events of one study, the most confident first."""

    column: np.ndarray  # int [n] label of each candidate
    rows: np.ndarray  # int [n, 2] first and last row, inclusive
    hit: np.ndarray  # float [n] probability that the candidate matches a true event, if the label is present
    ap: np.ndarray  # float [17] average precision expected of each label's candidates, if the label is present
    present: np.ndarray  # float [17] probability that the label occurs in the study

    @property
    def confidence(self) -> np.ndarray:
        return self.hit * self.present[self.column]

    def kept(self, keep: np.ndarray) -> "Candidates":
        return dataclasses.replace(self, column=self.column[keep], rows=self.rows[keep], hit=self.hit[keep])

    def joined(self, column: int, rows: np.ndarray, hit: np.ndarray) -> "Candidates":
        """With further candidates of one label, `rows` [n, 2] and `hit` [n], all in order of confidence again."""
        columns = np.append(self.column, np.full(len(rows), column))
        both = dataclasses.replace(
            self, column=columns, rows=np.concatenate([self.rows, rows]), hit=np.append(self.hit, hit)
        )
        return both.kept(np.argsort(-both.confidence, kind="stable"))

    def distinct(self) -> "Candidates":
        """Without those that share a frame with a surer one of the same label."""
        return self.kept(apart(self.column, self.rows))

    def to_events(self, frame: np.ndarray) -> list[Event]:
        """The candidates as events, in their order; `frame` int [T] gives the rows' frame numbers."""
        frame = np.asarray(frame, np.int64)
        last = np.append(frame[1:] - 1, frame[-1:])  # an event lasts until the next scored frame begins
        starts, ends = frame[self.rows[:, 0]].tolist(), last[self.rows[:, 1]].tolist()
        return [Event(s, e, (LABELS[c],)) for s, e, c in zip(starts, ends, self.column.tolist(), strict=True)]


def apart(column: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which of a ranked list to keep, bool [n], so that no two of one label share a frame: the surer one stays.

    `column` int [n] labels, `rows` int [n, 2] first and last, inclusive.
    """
    keep = np.zeros(len(column), bool)
    for c in np.unique(column):
        taken = np.zeros(int(rows.max(initial=-1)) + 1, bool)
        for i in np.flatnonzero(column == c):
            first, last = rows[i]
            if not taken[first : last + 1].any():
                keep[i] = taken[first : last + 1] = True
    return keep
