"""Chains: exact inference in hidden Markov models, several at once, without a Python step per frame.

A study of T frames is cut into about sqrt(T) blocks of sqrt(T) frames. All blocks take one step together: first the
product of each block's transition matrices, which links the blocks exactly, then the messages inside them.
"""

from typing import NamedTuple

import numpy as np

LIMIT = 25.0  # nats that one frame may say for or against a state


class Marginals(NamedTuple):
    """Posterior of C chains over T frames. `entry`, `leave`: a run of on-states begins at / ends with the frame."""

    on: np.ndarray  # float32 [T, C] probability of being in an on-state
    entry: np.ndarray  # float32 [T, C]
    leave: np.ndarray  # float32 [T, C]
    log_evidence: np.ndarray  # float64 [C] log p(observations) under each chain


def _blocks(evidence: np.ndarray) -> np.ndarray:
    """exp(evidence) [T, C, S] as [L, C, B, S], step by step within B blocks; frames past the end say nothing."""
    frames, chains, states = evidence.shape
    length = max(int(np.sqrt(frames)), 1)
    blocks = -(-frames // length)
    e = np.empty((blocks * length, chains, states), np.float32)
    np.exp(np.clip(evidence, -LIMIT, LIMIT), out=e[:frames])
    e[frames:] = 1
    return np.ascontiguousarray(e.reshape(blocks, length, chains, states).transpose(1, 2, 0, 3))


def _messages(e: np.ndarray, transition: np.ndarray, initial: np.ndarray) -> tuple[np.ndarray, ...]:
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


def marginals(evidence: np.ndarray, transition: np.ndarray, initial: np.ndarray, on: np.ndarray) -> Marginals:
    """Forward-backward for C chains of S states.

    `evidence` float [T, C, S]: log-likelihoods; `transition` [C, S, S], rows sum to 1; `initial` [C, S]: probabilities
    of the state before the first frame; `on` bool [S]: which states count as on.
    """
    frames = len(evidence)
    transition, initial = transition.astype(np.float32), initial.astype(np.float32)
    e = _blocks(evidence)
    forward, before, after, total = _messages(e, transition, initial)
    back = np.ascontiguousarray(transition.transpose(0, 2, 1))
    into, out = transition * (~on[:, None] & on), transition * (on[:, None] & ~on)
    sums = np.stack([np.ones(len(on)), on], 1).astype(np.float32)
    result = np.empty((3, *e.shape[:3]), np.float32)
    message = after
    for step in range(len(e) - 1, -1, -1):
        joint = (forward[step] * message) @ sums
        result[0, step] = joint[..., 1] / joint[..., 0]
        previous = before if step == 0 else forward[step - 1]
        weighted = message * e[step]
        message = weighted @ back
        norm = (previous * message) @ sums[:, 0]
        result[1, step] = ((previous @ into) * weighted) @ sums[:, 0] / norm
        result[2, step] = ((previous @ out) * weighted) @ sums[:, 0] / norm
        message /= (message @ sums[:, 0])[..., None]
    posterior, entry, leave = result.transpose(0, 3, 1, 2).reshape(3, -1, e.shape[1])[:, :frames]
    ends = np.concatenate([leave[1:], posterior[-1:]])  # a run left at frame t + 1 ends with frame t
    entry[0] = posterior[0]  # whatever is on at the first frame begins there
    return Marginals(posterior, entry, ends, total)


def posterior(evidence: np.ndarray, transition: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """State probabilities float32 [T, S] of one chain; `evidence` [T, S], `transition` [S, S], `initial` [S]."""
    transition = transition.astype(np.float32)[None]
    e = _blocks(evidence[:, None])
    forward, _, message, _ = _messages(e, transition, initial.astype(np.float32)[None])
    back, ones = np.ascontiguousarray(transition.transpose(0, 2, 1)), np.ones(e.shape[3], np.float32)
    for step in range(len(e) - 1, -1, -1):
        following = (message * e[step]) @ back
        forward[step] *= message
        forward[step] /= (forward[step] @ ones)[..., None]
        message = following / (following @ ones)[..., None]
    return forward[:, 0].transpose(1, 0, 2).reshape(-1, e.shape[3])[: len(evidence)]


def best_path(score: np.ndarray, move: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """State sequence int [T] of the highest total score, by exact dynamic programming over all paths (Viterbi).

    Total: `initial` [S] of a state before the first frame, `move` [S, S] for every step, `score` [T, S] of every frame;
    -inf forbids.
    """
    frames, states = score.shape
    length = max(int(np.sqrt(frames)), 1)
    blocks = -(-frames // length)
    steps = np.zeros((blocks * length, states))
    steps[:frames] = score
    steps = steps.reshape(blocks, length, states)
    stay = np.where(np.eye(states, dtype=bool), 0.0, -np.inf)
    past = (np.arange(blocks * length) >= frames).reshape(blocks, length)
    # Best score between any two states of each block [B, from, to], and the state before `to` on that way.
    total = np.broadcast_to(stay, (blocks, states, states))
    via = np.empty((length, blocks, states, states), np.int8)
    for t in range(length):
        options = total[..., None] + np.where(past[:, t, None, None], stay, move)[:, None]
        via[t] = options.argmax(2)
        total = options.max(2) + steps[:, t, None, :]
    value, entered = initial, np.empty((blocks, states), np.int64)
    for b in range(blocks):
        options = value[:, None] + total[b]
        entered[b], value = options.argmax(0), options.max(0)
    last, first = np.empty(blocks, np.int64), np.empty(blocks, np.int64)
    state = int(value.argmax())
    for b in range(blocks - 1, -1, -1):
        last[b], first[b] = state, entered[b, state]
        state = first[b]
    path, each = np.empty((blocks, length), np.int64), np.arange(blocks)
    for t in range(length - 1, -1, -1):
        path[:, t] = last
        last = via[t, each, first, last]
    return path.reshape(-1)[:frames]
