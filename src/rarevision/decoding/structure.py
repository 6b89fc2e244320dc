"""Structure: what label timelines alone teach: order and durations of regions, how often and how long findings last.

Durations are explicit where it matters: a label state (see calibration) knows how much of the recent past was positive,
so that the chance that an event ends, or that another follows, depends on how long it has lasted and on how recent the
last one was.
"""

from dataclasses import dataclass

import numpy as np

from rarevision.decoding.calibration import LEVELS, STATES, filtered, states
from rarevision.labels import LANDMARKS, N_LABELS, REGIONS

N_REGIONS = len(REGIONS)
FADE = LEVELS - 1  # steps after a change in which the old region is still felt
# The capsule's way and the shortcuts and returns that are allowed at their learned price.
MOVES = tuple((a, b) for a in range(N_REGIONS) for b in range(N_REGIONS) if b - a in (-1, 1, 2))
DISTANCES = np.array([-300, -100, -30, -10, -3, 0, 3, 10, 30, 100, 300])  # frames from a change, for landmarks
CONTEXTS = len(DISTANCES) + 2
# Region states: N_REGIONS settled ones, then FADE for every move.
REGION_STATES = N_REGIONS + FADE * len(MOVES)
REGION_OF = np.array([*range(N_REGIONS), *(b for _, b in MOVES for _ in range(FADE))])


@dataclass(frozen=True)
class Structure:
    """`transition` [17, STATES, STATES], `initial` [17, STATES] in studies where the label is present; `presence` [17].

    `region_transition` [R, R], `region_initial` [R], R = REGION_STATES. `onset` [12, CONTEXTS]: log of a
    label's onset rate in each context over its mean rate.
    """

    presence: np.ndarray
    transition: np.ndarray
    initial: np.ndarray
    region_transition: np.ndarray
    region_initial: np.ndarray
    onset: np.ndarray


def fit(timelines: list[np.ndarray], memory: np.ndarray) -> Structure:
    """Learn from label timelines uint8 [T, 17]; `memory` [17] sets the label states."""
    present = np.array([y.any(0) for y in timelines])
    presence = (present.sum(0) + 0.5) / (len(timelines) + 1)
    transition, initial = np.empty((N_LABELS, STATES, STATES)), np.empty((N_LABELS, STATES))
    for c in range(N_LABELS):
        transition[c], initial[c] = _label_chain(
            [y[:, c] for y, p in zip(timelines, present[:, c], strict=True) if p], memory[c]
        )
    return Structure(presence, transition, initial, *_region_chain(timelines, memory[0]), _onsets(timelines))


def _label_chain(timelines: list[np.ndarray], memory: float) -> tuple[np.ndarray, np.ndarray]:
    """Counted transitions of label states, smoothed by one rare, brief event."""
    count, first = np.zeros((STATES, STATES)), 0.5
    for y in timelines:
        state = states(y, memory)
        count += np.bincount(state[:-1] * STATES + state[1:], minlength=STATES**2).reshape(STATES, STATES)
        first += y[0]
    # The prior: the trace moves towards the label; a label changes once in 1,000 frames (off) or 5 (on).
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
    """Region states int [T] of a region path [T]: settled, or FADE steps of a move."""
    change = np.flatnonzero(np.diff(region)) + 1
    state = region.copy()
    lasting = dwell(memory)
    for t, until in zip(change, np.append(change, len(region))[1:], strict=True):
        move = (region[t - 1], region[t])
        if move not in MOVES:
            continue  # never seen in 80 studies: as if it had always been there
        ages = np.repeat(np.arange(FADE), lasting)[: until - t]
        state[t : t + len(ages)] = N_REGIONS + FADE * MOVES.index(move) + ages
    return state


def dwell(memory: float) -> np.ndarray:
    """Frames that a label's trace spends in each of its first FADE levels after an onset."""
    trace = filtered(np.ones(1000), memory)
    return np.maximum(np.bincount(np.rint(trace * (LEVELS - 1)).astype(int), minlength=LEVELS)[:FADE], 1)


def _region_chain(timelines: list[np.ndarray], memory: float) -> tuple[np.ndarray, np.ndarray]:
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
    rate = moves / moves.sum(1, keepdims=True)
    lasting = dwell(memory)
    prior = np.zeros_like(count)
    for s in range(REGION_STATES):
        here = REGION_OF[s]
        if s < N_REGIONS:
            prior[s, s] = rate[here, here]
        else:
            _, age = divmod(s - N_REGIONS, FADE)
            following = s + 1 if age + 1 < FADE else here
            prior[s, following] = rate[here, here] / lasting[age]
            prior[s, s] = rate[here, here] * (1 - 1 / lasting[age])
        for m, (a, b) in enumerate(MOVES):
            if a == here:
                prior[s, N_REGIONS + FADE * m] = rate[a, b]
    count += 5 * prior / prior.sum(1, keepdims=True)
    initial = np.zeros(REGION_STATES)
    initial[:N_REGIONS] = first / first.sum()
    return count / count.sum(1, keepdims=True), initial


def contexts(path: np.ndarray) -> np.ndarray:
    """Where each frame of a region path [T] lies, for each label that is not a region: int [T, 12].

    Findings: the region. Landmarks: the signed distance to the nearest change between the regions they divide.
    """
    out = np.empty((len(path), N_LABELS - N_REGIONS), np.int64)
    out[:, len(LANDMARKS) :] = path[:, None]
    change = np.flatnonzero(np.diff(path)) + 1
    rows = np.arange(len(path))
    for i in range(len(LANDMARKS)):
        upper, lower = i + 1, i + 2  # esophagus | z-line | stomach | pylorus | small intestine | valve | colon
        here = change[
            (np.minimum(path[change - 1], path[change]) <= upper)
            & (np.maximum(path[change - 1], path[change]) >= lower)
        ]
        if not len(here):
            out[:, i] = CONTEXTS - 1
            continue
        after = np.searchsorted(here, rows, "right")
        since = np.where(after > 0, rows - here[np.maximum(after - 1, 0)], len(rows))
        until = np.where(after < len(here), rows - here[np.minimum(after, len(here) - 1)], -len(rows))
        out[:, i] = np.searchsorted(DISTANCES, np.where(since <= -until, since, until), "right")
    return out


def _onsets(timelines: list[np.ndarray]) -> np.ndarray:
    """Log onset rate of each label in each context over its mean rate; few onsets are drawn towards 0."""
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
