"""Thresholds: the published grid, exact best F1 and event gain, against every possible threshold tried one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rarevision.config import Config, Decode, Threshold
from rarevision.decoding import thresholds
from rarevision.labels import LABELS, N_LABELS
from rarevision.scores import StudyScores


def study(probs, truth, column=3, name="a"):
    """One study in which label `column` has the given scores and truth; all others are 0."""
    p, y = np.zeros((len(probs), N_LABELS), np.float32), np.zeros((len(probs), N_LABELS), np.uint8)
    p[:, column], y[:, column] = probs, truth
    return StudyScores(name, np.arange(len(probs), dtype=np.int32), p, y)


def f1(probs, truth, value):
    positive = probs >= np.float32(value)
    return 2 * (positive & (truth == 1)).sum() / max(positive.sum() + truth.sum(), 1)


def test_by_hand():
    s = study([0.1, 0.4, 0.6, 0.9], [0, 1, 0, 1])
    fitted = thresholds.fit_thresholds([s], Threshold(method="f1"))
    assert fitted.values[3] == np.float32(0.4)  # 2 hits of 3: F1 0.8; from 0.9: 0.667; from 0.1: 0.667
    assert fitted.values[0] == np.float32(0.2) and "0 positive frames" in fitted.notes["mouth"]
    assert "small intestine" not in fitted.notes


@pytest.mark.parametrize(("positives", "lowest"), [(5, 0.05), (200, 0.15)])
def test_grid_starts_by_support(positives, lowest):
    """Scores that separate perfectly above 0: the lowest grid value wins, and that depends on the label's support."""
    truth = np.arange(1000) < positives
    fitted = thresholds.fit_thresholds([study(truth * 0.99, truth)], Threshold(method="paper"))
    assert fitted.values[3] == pytest.approx(lowest)


def test_grid_reaches_its_end():
    truth = np.arange(100) < 50
    fitted = thresholds.fit_thresholds([study(np.where(truth, 0.86, 0.84), truth)], Threshold(method="paper"))
    assert fitted.values[3] == pytest.approx(0.85)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=40))
def test_no_threshold_is_better(rows):
    probs, truth = np.array([p / 20 for p, _ in rows], np.float32), np.array([y for _, y in rows], np.uint8)
    if not truth.any():
        return
    exact = thresholds.fit_thresholds([study(probs, truth)], Threshold(method="f1")).values[3]
    assert f1(probs, truth, exact) == max(f1(probs, truth, v) for v in probs)
    paper = thresholds.fit_thresholds([study(probs, truth)], Threshold(method="paper", rare_support=0.0)).values[3]
    grid = 0.15 + 0.02 * np.arange(36)
    assert f1(probs, truth, paper) == max(f1(probs, truth, v) for v in grid)


def test_event_prefers_silence_to_noise():
    """A label in one study of three whose scores are noise: every event costs more than it earns."""
    rng = np.random.default_rng(0)
    make = lambda name, n: study(rng.random(400), np.arange(400) < n, name=name)  # noqa: E731
    fitted = thresholds.fit_thresholds([make("a", 20), make("b", 0), make("c", 0)], Threshold(method="event"), Decode())
    assert fitted.values[3] == thresholds.NEVER and "silence" in fitted.notes["small intestine"]


def test_event_finds_clear_events():
    truth = (np.arange(400) // 50) % 2
    fitted = thresholds.fit_thresholds([study(0.2 + 0.6 * truth, truth)], Threshold(method="event"), Decode())
    assert 0.2 < fitted.values[3] <= np.float32(0.8)


def test_too_few_positives_fall_back():
    s = study([0.1, 0.9, 0.9], [0, 1, 1])
    fitted = thresholds.fit_thresholds([s], Threshold(method="f1", min_positives=3, default=0.3))
    assert fitted.values[3] == np.float32(0.3) and "2 positive frames" in fitted.notes["small intestine"]


def test_spread_shows_each_fold():
    a, b = study([0.1, 0.5], [0, 1], name="a"), study([0.1, 0.8], [0, 1], name="b")
    table = thresholds.threshold_spread([a, b], Config(threshold=Threshold(method="f1")))
    assert set(table) == set(LABELS)
    assert table["small intestine"]["low"] == pytest.approx(0.5)
    assert table["small intestine"]["high"] == pytest.approx(0.8)
