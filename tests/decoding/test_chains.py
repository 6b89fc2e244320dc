"""Chains: messages in blocks equal the sum, or the maximum, over all state sequences written out."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rarevision.decoding import chains

seeds = st.integers(0, 2**32 - 1)


def small_chain(seed: int):
    rng = np.random.default_rng(seed)
    frames, states = int(rng.integers(1, 8)), int(rng.integers(2, 4))
    transition = rng.random((states, states)) + 0.01
    initial = rng.random(states) + 0.01
    evidence = rng.normal(0, 2, (frames, states))
    return evidence, transition / transition.sum(1, keepdims=True), initial / initial.sum()


def weights(evidence, transition, initial):
    """Every state sequence and its probability times likelihood."""
    frames, states = evidence.shape
    for path in itertools.product(range(states), repeat=frames):
        w = (initial @ transition)[path[0]] * np.exp(evidence[np.arange(frames), path].sum())
        yield np.array(path), w * np.prod([transition[a, b] for a, b in itertools.pairwise(path)])


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_marginals_equal_enumeration(seed):
    evidence, transition, initial = small_chain(seed)
    frames, states = evidence.shape
    on = np.arange(states) > 0
    total, posterior, active, entry, leave = 0.0, np.zeros((frames, states)), *np.zeros((3, frames))
    for path, w in weights(evidence, transition, initial):
        total += w
        posterior[np.arange(frames), path] += w
        active += w * on[path]
        entry += w * (on[path] & ~np.append(False, on[path[:-1]]))
        leave += w * (on[path] & ~np.append(on[path[1:]], False))
    other = np.zeros_like(evidence)  # a second chain beside it must not matter
    both = chains.marginals(np.stack([other, evidence], 1), np.stack([transition] * 2), np.stack([initial] * 2), on)
    np.testing.assert_allclose(both.on[:, 1], active / total, atol=2e-5)
    np.testing.assert_allclose(both.entry[:, 1], entry / total, atol=2e-5)
    np.testing.assert_allclose(both.leave[:, 1], leave / total, atol=2e-5)
    np.testing.assert_allclose(both.log_evidence, [0, np.log(total)], atol=1e-4)
    np.testing.assert_allclose(chains.posterior(evidence, transition, initial), posterior / total, atol=2e-5)


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_best_path_equals_enumeration(seed):
    rng = np.random.default_rng(seed)
    frames, states = int(rng.integers(1, 8)), int(rng.integers(1, 4))
    score, move, initial = rng.normal(size=(frames, states)), rng.normal(size=(states, states)), rng.normal(size=states)
    move[rng.random(move.shape) < 0.3] = -np.inf
    np.fill_diagonal(move, 0.0)

    def total(path):
        start = max(initial[p] + move[p, path[0]] for p in range(states))
        steps = sum(move[a, b] for a, b in itertools.pairwise(path))
        return start + steps + sum(score[t, s] for t, s in enumerate(path))

    best = max(itertools.product(range(states), repeat=frames), key=total)
    assert tuple(chains.best_path(score, move, initial)) == best


def test_long_chain_by_hand():
    """10,000 frames, on for 100 of them beyond doubt: the posterior says so and counts one event."""
    truth = np.zeros(10_000, bool)
    truth[5_000:5_100] = True
    evidence = np.stack([np.zeros(10_000), np.where(truth, 8.0, -8.0)], 1)[:, None]
    found = chains.marginals(
        evidence, np.array([[[0.999, 0.001], [0.02, 0.98]]]), np.array([[0.99, 0.01]]), np.array([False, True])
    )
    assert ((found.on[:, 0] > 0.5) == truth).all()
    assert found.entry[5_000, 0] > 0.99 and found.leave[5_099, 0] > 0.99
    assert found.entry.sum() == pytest.approx(1, abs=0.01) and found.leave.sum() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("strength", [1e3, -1e3])
def test_extreme_evidence_stays_finite(strength):
    evidence = np.full((500, 1, 2), strength)
    evidence[::7, 0, 1] *= -1
    found = chains.marginals(evidence, np.full((1, 2, 2), 0.5), np.full((1, 2), 0.5), np.array([False, True]))
    assert all(np.isfinite(a).all() for a in found)
