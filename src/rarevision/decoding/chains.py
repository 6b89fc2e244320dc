"""Chains: inference in hidden Markov models, exact and without a Python step per frame.

The forward-backward algorithm (Rabiner 1989) gives the probability of each state at each frame, given the evidence of
all frames. Its messages pass from frame to frame, which is slow in Python. So a study of T frames is cut into about
sqrt(T) blocks of sqrt(T) frames that all take one step together: first the product of each block's transition matrices,
which carries the messages across it, then the messages inside the blocks.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

LIMIT = 25.0  # nats that one frame may say for or against a state


class Marginals(NamedTuple):
    """What forward-backward says of C chains over T frames. Each run of on-states has one entry and one leave."""

    on: np.ndarray  # float32 [T, C] probability of being in an on-state
    entry: np.ndarray  # float32 [T, C] probability that a run of on-states begins with the frame
    leave: np.ndarray  # float32 [T, C] probability that a run of on-states ends with the frame
    log_evidence: np.ndarray  # float64 [C] log likelihood of all evidence under each chain, in nats


def marginals(evidence: np.ndarray, transition: np.ndarray, initial: np.ndarray, on: np.ndarray) -> Marginals:
    """Forward-backward for C chains of S states.

    `evidence` float [T, C, S]: log-likelihoods; `transition` [C, S, S], rows sum to 1; `initial` [C, S]: probabilities
    of the state before the first frame; `on` bool [S]: which states count as on.
    """
    transition, initial = transition.astype(np.float32), initial.astype(np.float32)
    e = _blocks(evidence)
    forward, before, after, total = _forward(e, transition, initial)
    into, out = transition * (~on[:, None] & on), transition * (on[:, None] & ~on)
    sums = np.stack([np.ones(len(on)), on], 1).astype(np.float32)  # over all states, over the on-states
    result = np.empty((3, *e.shape[:3]), np.float32)
    for step, message, weighted, reached in _backward(e, transition, after):
        joint = (forward[step] * message) @ sums
        result[0, step] = joint[..., 1] / joint[..., 0]
        previous = before if step == 0 else forward[step - 1]
        norm = (previous * reached) @ sums[:, 0]
        result[1, step] = ((previous @ into) * weighted) @ sums[:, 0] / norm
        result[2, step] = ((previous @ out) * weighted) @ sums[:, 0] / norm
    posterior, entry, leave = result.transpose(0, 3, 1, 2).reshape(3, -1, e.shape[1])[:, : len(evidence)]
    ends = np.concatenate([leave[1:], posterior[-1:]])  # a run left at frame t + 1 ends with frame t
    entry[0] = posterior[0]  # whatever is on at the first frame begins there
    return Marginals(posterior, entry, ends, total)


def posterior(evidence: np.ndarray, transition: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """State probabilities float32 [T, S] of one chain; `evidence` [T, S], `transition` [S, S], `initial` [S]."""
    transition, ones = transition.astype(np.float32)[None], np.ones(len(initial), np.float32)
    e = _blocks(evidence[:, None])
    forward, _, after, _ = _forward(e, transition, initial.astype(np.float32)[None])
    for step, message, _, _ in _backward(e, transition, after):
        forward[step] *= message
        forward[step] /= (forward[step] @ ones)[..., None]
    return forward[:, 0].transpose(1, 0, 2).reshape(-1, e.shape[3])[: len(evidence)]


def _blocks(evidence: np.ndarray) -> np.ndarray:
    """exp(evidence) [T, C, S] as [L, C, B, S]: B blocks of L frames; frames past the end say nothing."""
    frames, chains, states = evidence.shape
    length = max(int(np.sqrt(frames)), 1)
    blocks = -(-frames // length)
    e = np.empty((blocks * length, chains, states), np.float32)
    np.exp(np.clip(evidence, -LIMIT, LIMIT), out=e[:frames])
    e[frames:] = 1
    return np.ascontiguousarray(e.reshape(blocks, length, chains, states).transpose(1, 2, 0, 3))


def _forward(e: np.ndarray, transition: np.ndarray, initial: np.ndarray) -> tuple[np.ndarray, ...]:
    """Normalised forward messages [L, C, B, S], what enters each block from either side, and log evidence [C]."""
    length, chains, blocks, states = e.shape
    product = np.broadcast_to(np.eye(states, dtype=np.float32), (chains, blocks, states, states)).copy()
    other = np.empty_like(product)  # two arrays in turn: a fresh one for every step would cost more than the product
    flat = (chains, blocks * states, states)
    for step in range(length):
        np.matmul(product.reshape(flat), transition, out=other.reshape(flat))
        product, other = other, product
        product *= e[step][:, :, None, :]
        if step % 3 == 2 or step == length - 1:  # exp(+-3 * LIMIT) still fits float32
            product /= product.reshape(chains, blocks, -1).max(2)[..., None, None]
    before = np.empty((chains, blocks, states), np.float32)
    after = np.empty_like(before)
    left, right = initial, np.ones((chains, states), np.float32)
    for b in range(blocks):
        before[:, b] = left
        left = (left[:, None] @ product[:, b])[:, 0]
        left /= left.sum(1, keepdims=True)
    for b in range(blocks - 1, -1, -1):
        after[:, b] = right
        right = (product[:, b] @ right[:, :, None])[..., 0]
        right /= right.sum(1, keepdims=True)
    forward = np.empty_like(e)
    total, ones = np.zeros(chains), np.ones(states, np.float32)
    for step in range(length):
        np.matmul(before if step == 0 else forward[step - 1], transition, out=forward[step])
        forward[step] *= e[step]
        scale = forward[step] @ ones  # quicker than a sum over a short axis
        forward[step] /= scale[..., None]
        total += np.log(scale).sum(1, dtype=np.float64)
    return forward, before, after, total


def _backward(
    e: np.ndarray, transition: np.ndarray, after: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """From the last step to the first: the step, and backward messages [C, B, S] behind, at and before its frames.

    The last two are not normalised: the message behind a frame times its evidence, and that carried through the
    transition to the frame before.
    """
    back, ones = np.ascontiguousarray(transition.transpose(0, 2, 1)), np.ones(e.shape[3], np.float32)
    message = after
    for step in range(len(e) - 1, -1, -1):
        weighted = message * e[step]
        reached = weighted @ back
        yield step, message, weighted, reached
        message = reached / (reached @ ones)[..., None]


def best_path(score: np.ndarray, move: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """State sequence int [T] of the highest total score, by exact dynamic programming over all paths (Viterbi).

    Total: `initial` [S] of a state before the first frame, `move` [S, S] for every step, `score` [T, S] of every frame;
    -inf forbids.
    """
    via, value = np.empty(score.shape, np.int64), initial
    for t, gain in enumerate(score):
        options = value[:, None] + move
        via[t], value = options.argmax(0), options.max(0) + gain
    path = np.empty(len(score), np.int64)
    path[-1] = value.argmax()
    for t in range(len(score) - 1, 0, -1):
        path[t - 1] = via[t, path[t]]
    return path
