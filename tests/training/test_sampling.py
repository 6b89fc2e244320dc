import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rarevision.training.sampling import Draws, frame_weights


def labels(*sets):
    table = np.zeros((len(sets), 3), np.uint8)
    for row, active in enumerate(sets):
        table[row, list(active)] = 1
    return table


def test_weight_is_of_the_rarest_active_label():
    # shares: label 0 in 4 of 8, label 1 in 2 of 8, label 2 in none
    table = labels([0], [0], [0], [0, 1], [1], [], [], [])
    assert frame_weights(table, "sqrt").tolist() == pytest.approx([2**0.5] * 3 + [2, 2] + [2**0.5] * 3)
    assert frame_weights(table, "inverse").tolist() == pytest.approx([2, 2, 2, 4, 4, 2, 2, 2])
    assert frame_weights(table, "none").tolist() == [1] * 8
    assert frame_weights(np.zeros((2, 3), np.uint8)).tolist() == [1, 1]


def test_draws_follow_the_weights():
    weights = np.array([0.0, 1.0, 3.0, 0.0, 4.0, 0.0])
    counts = np.bincount(Draws(np.arange(6), weights, 80_000, 16, 0).epoch_rows(0), minlength=6)
    assert counts[[0, 3, 5]].tolist() == [0, 0, 0]
    expected = 80_000 * weights / 8
    assert np.abs(counts - expected).max() < 5 * np.sqrt(80_000 / 4)  # five standard deviations


def test_more_rows_than_torch_multinomial_takes():
    """2^24 + 1000 rows; the weight lies on both sides of the limit."""
    n = 2**24 + 1000
    weights = np.zeros(n, np.float32)
    weights[[5, n - 1]] = 1
    drawn = Draws(np.arange(n), weights, 1000, 10, 0).epoch_rows(0)
    assert set(drawn) == {5, n - 1}
    assert 400 < (drawn == 5).sum() < 600


@given(
    n=st.integers(1, 60),
    size=st.integers(0, 90),
    world=st.integers(1, 4),
    accumulate=st.integers(1, 3),
    part=st.integers(2, 5),
    weighted=st.booleans(),
    epoch=st.integers(0, 3),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_every_draw_is_used_once(n, size, world, accumulate, part, weighted, epoch, data):
    rows = np.arange(100, 100 + n)
    weights = np.linspace(1, 2, n) if weighted else None
    batch = part * world * accumulate
    samplers = [Draws(rows, weights, size, batch, 7, accumulate, rank, world) for rank in range(world)]
    whole = samplers[0].epoch_rows(epoch)
    steps = samplers[0].steps
    assert len(whole) == steps * batch
    assert (size or n) <= len(whole) < (size or n) + batch
    first = data.draw(st.integers(0, steps - 1))
    per_rank = []
    for sampler in samplers:
        sampler.start(epoch, first)
        parts = list(sampler)
        assert len(parts) == (steps - first) * accumulate
        assert all(len(p) == part and e == epoch for p in parts for e, _ in p)
        per_rank.append([[row for _, row in p] for p in parts])
    # interleaving the processes' parts gives the epoch's draws in order, from the position on
    merged = [per_rank[r][i] for i in range(len(per_rank[0])) for r in range(world)]
    assert np.array_equal(np.concatenate(merged), whole[first * batch :])
    single = Draws(rows, weights, size, batch, 7, accumulate * world)
    single.start(epoch, first)
    assert [[row for _, row in p] for p in single] == merged
    if weights is None:  # every row before any again
        counts = np.bincount(whole - 100, minlength=n)
        assert counts.max() - counts.min() <= 1


def test_epochs_and_seeds_differ_and_repeat():
    rows = np.arange(50)
    a, b = Draws(rows, np.ones(50), 0, 10, seed=1), Draws(rows, np.ones(50), 0, 10, seed=2)
    assert np.array_equal(a.epoch_rows(3), a.epoch_rows(3))
    assert not np.array_equal(a.epoch_rows(0), a.epoch_rows(1))
    assert not np.array_equal(a.epoch_rows(0), b.epoch_rows(0))


@pytest.mark.parametrize(("batch", "accumulate", "world"), [(8, 3, 1), (4, 2, 2), (1, 1, 1)])
def test_parts_of_one_frame_or_fractions_are_refused(batch, accumulate, world):
    with pytest.raises(ValueError, match="batch_size"):
        Draws(np.arange(9), None, 0, batch, 0, accumulate, 0, world)


def test_no_rows():
    with pytest.raises(ValueError, match="no frame"):
        Draws(np.arange(0), None, 0, 4, 0)
