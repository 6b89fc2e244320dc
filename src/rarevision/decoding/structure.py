"""Structure: what label timelines teach without any scores: order, durations, places and prevalence.

Every label is a Markov chain over the label states of `calibration`. Its chance to change depends not only on whether
the label is on but also on the trace, that is on how long an event has lasted and how long ago the last one ended.

The five regions form one chain, because the capsule is in one region at a time and mostly moves onwards. A region is
either settled or, for a short while after a change, in one of FADE states in which the trace of the new region still
rises and that of the old one still falls.
"""

from dataclasses import dataclass

import numpy as np

from rarevision.decoding.calibration import LEVELS, STATES, filtered, states
from rarevision.labels import LANDMARKS, N_LABELS, REGIONS

N_REGIONS = len(REGIONS)
FADE = LEVELS - 1  # states of a change, until the traces have settled
# The changes (old, new) that may happen: one region onwards, one skipped, one back.
MOVES = tuple((a, b) for a in range(N_REGIONS) for b in range(N_REGIONS) if b - a in (-1, 1, 2))
DISTANCES = np.array([-300, -100, -30, -10, -3, 0, 3, 10, 30, 100, 300])  # frames from a change, for landmarks
CONTEXTS = len(DISTANCES) + 2  # bins between the distances, and one for "there is no such change"
REGION_STATES = N_REGIONS + FADE * len(MOVES)  # the settled states, then those of each move
REGION_OF = np.array([*range(N_REGIONS), *(b for _, b in MOVES for _ in range(FADE))])  # region of each of them


@dataclass(frozen=True)
class Structure:
    """Probabilities counted on timelines. Rows of a transition matrix are the state before, columns the state after."""

    presence: np.ndarray  # [17] share of studies in which the label occurs
    transition: np.ndarray  # [17, STATES, STATES] in studies in which the label occurs
    initial: np.ndarray  # [17, STATES] before the first frame
    region_transition: np.ndarray  # [REGION_STATES, REGION_STATES]
    region_initial: np.ndarray  # [REGION_STATES]
    onset: np.ndarray  # [12, CONTEXTS] log of a landmark's or finding's onset rate in a context over its mean rate


def fit(timelines: list[np.ndarray], memory: np.ndarray) -> Structure:
    """Learn from label timelines uint8 [T, 17]; `memory` [17] of the calibration defines the label states."""
    present = np.array([y.any(0) for y in timelines])
    presence = (present.sum(0) + 0.5) / (len(timelines) + 1)
    chains = [
        _label_chain([y[:, c] for y, p in zip(timelines, present[:, c], strict=True) if p], memory[c])
        for c in range(N_LABELS)
    ]
    transition, initial = (np.stack(part) for part in zip(*chains, strict=True))
    return Structure(presence, transition, initial, *_region_chain(timelines, memory[0]), _onsets(timelines))


def _label_chain(timelines: list[np.ndarray], memory: float) -> tuple[np.ndarray, np.ndarray]:
    """Transition matrix and initial probabilities of one label; each state counts as seen once more than it was."""
    count, first = np.zeros((STATES, STATES)), 0.5
    for y in timelines:
        state = states(y, memory)
        count += np.bincount(state[:-1] * STATES + state[1:], minlength=STATES**2).reshape(STATES, STATES)
        first += y[0]
    # The added observation: the trace stays or moves a level towards the label, and the label changes once in 1,000
    # frames where it is off, once in 5 where it is on.
    label, level = np.divmod(np.arange(STATES), LEVELS)
    for s in range(STATES):
        onward = min(level[s] + 1, LEVELS - 1) if label[s] else max(level[s] - 1, 0)
        change = 0.2 if label[s] else 1e-3
        for y, p in ((label[s], 1 - change), (1 - label[s], change)):
            count[s, y * LEVELS + onward] += p * 0.5
            count[s, y * LEVELS + level[s]] += p * 0.5
    share = first / (len(timelines) + 1)
    initial = np.zeros(STATES)
    initial[0], initial[LEVELS] = 1 - share, share
    return count / count.sum(1, keepdims=True), initial


def region_states(region: np.ndarray, memory: float) -> np.ndarray:
    """Region states int [T] of the regions [T] of a study's frames."""
    change = np.flatnonzero(np.diff(region)) + 1
    state = region.copy()
    lasting = dwell(memory)
    for t, until in zip(change, np.append(change, len(region))[1:], strict=True):
        move = (region[t - 1], region[t])
        if move in MOVES:  # the others do not occur in Galar; the new region then counts as settled at once
            ages = np.repeat(np.arange(FADE), lasting)[: until - t]
            state[t : t + len(ages)] = N_REGIONS + FADE * MOVES.index(move) + ages
    return state


def dwell(memory: float) -> np.ndarray:
    """Frames [FADE], at least 1, that the trace spends in each level but the last after an onset."""
    trace = filtered(np.ones(1000), memory)
    return np.maximum(np.bincount(np.rint(trace * (LEVELS - 1)).astype(int), minlength=LEVELS)[:FADE], 1)


def _region_chain(timelines: list[np.ndarray], memory: float) -> tuple[np.ndarray, np.ndarray]:
    """Transition matrix and initial probabilities of the region states.

    Transitions are counted, and five observations are added to each state that follow the rates at which regions change
    and the time that each state of a change lasts.
    """
    moves, count = np.full((N_REGIONS, N_REGIONS), 0.02), np.zeros((REGION_STATES, REGION_STATES))
    first, frames = np.full(N_REGIONS, 0.5), np.ones(N_REGIONS)
    for y in timelines:
        region = y[:, :N_REGIONS].argmax(1)
        frames += np.bincount(region, minlength=N_REGIONS)
        np.add.at(moves, (region[:-1], region[1:]), 1)
        first[region[0]] += 1
        state = region_states(region, memory)
        np.add.at(count, (state[:-1], state[1:]), 1)
    np.fill_diagonal(moves, frames)
    rate = moves / moves.sum(1, keepdims=True)  # per frame
    lasting = dwell(memory)
    added = np.zeros_like(count)
    for s, here in enumerate(REGION_OF):
        if s < N_REGIONS:
            added[s, s] = rate[here, here]
        else:
            age = (s - N_REGIONS) % FADE
            added[s, s + 1 if age + 1 < FADE else here] = rate[here, here] / lasting[age]
            added[s, s] = rate[here, here] * (1 - 1 / lasting[age])
        for m, (old, new) in enumerate(MOVES):
            if old == here:
                added[s, N_REGIONS + FADE * m] = rate[old, new]
    count += 5 * added / added.sum(1, keepdims=True)
    initial = np.zeros(REGION_STATES)
    initial[:N_REGIONS] = first / first.sum()
    return count / count.sum(1, keepdims=True), initial


def contexts(path: np.ndarray) -> np.ndarray:
    """Where each frame lies on a region path [T], as each landmark and finding sees it: context int [T, 12].

    A finding's context is the region. A landmark lies between two regions, so its context is the signed distance to the
    nearest change between them, in frames, binned by DISTANCES.
    """
    out = np.empty((len(path), N_LABELS - N_REGIONS), np.int64)
    out[:, len(LANDMARKS) :] = path[:, None]
    change = np.flatnonzero(np.diff(path)) + 1
    low, high = np.minimum(path[change - 1], path[change]), np.maximum(path[change - 1], path[change])
    rows, far = np.arange(len(path)), 2 * len(path)
    for i in range(len(LANDMARKS)):  # esophagus | z-line | stomach | pylorus | small intestine | valve | colon
        here = change[(low <= i + 1) & (high >= i + 2)]
        bounds = np.concatenate([[-far], here, [far]])
        after = np.searchsorted(here, rows, "right")
        since, until = rows - bounds[after], rows - bounds[after + 1]
        out[:, i] = np.searchsorted(DISTANCES, np.where(since <= -until, since, until), "right")
        if not len(here):
            out[:, i] = CONTEXTS - 1
    return out


def _onsets(timelines: list[np.ndarray]) -> np.ndarray:
    """Log onset rate of each label in each context over its mean rate, [12, CONTEXTS]; few onsets are drawn to 0."""
    onsets, frames = np.zeros((2, N_LABELS - N_REGIONS, CONTEXTS))
    for y in timelines:
        where = contexts(y[:, :N_REGIONS].argmax(1))
        start = np.diff(y[:, N_REGIONS:].astype(np.int8), axis=0, prepend=0) == 1
        for i in range(N_LABELS - N_REGIONS):
            each = np.bincount(where[start[:, i], i], minlength=CONTEXTS)
            if each.any():  # a study with hundreds of events counts as one with ten: it shows one patient's habit
                onsets[i] += each * min(1, 10 / each.sum())
                frames[i] += np.bincount(where[:, i], minlength=CONTEXTS)
    share = (frames + 1) / (frames + 1).sum(1, keepdims=True)
    expected = onsets.sum(1, keepdims=True) * share
    return np.log((onsets + 2 * share + 0.05) / (expected + 2 * share + 0.05))
