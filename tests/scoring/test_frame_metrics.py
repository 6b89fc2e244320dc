import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from rarevision.labels import COLUMN, LABELS, N_LABELS
from rarevision.scores import StudyScores
from rarevision.scoring import frame_metrics
from rarevision.scoring.frame_metrics import _resample, frame_ap, frame_table


def study(name, labels, probs):
    """Only the column `polyp` is filled."""
    n = len(labels)
    full, scores = np.zeros((n, N_LABELS), np.uint8), np.zeros((n, N_LABELS), np.float32)
    full[:, COLUMN["polyp"]], scores[:, COLUMN["polyp"]] = labels, probs
    return StudyScores(name, np.arange(n, dtype=np.int32), scores, full)


def random_studies(seed, sizes, share=0.2, ties=20):
    rng = np.random.default_rng(seed)
    found = []
    for i, n in enumerate(sizes):
        y = rng.random(n) < share
        found.append(study(str(i), y, (rng.integers(0, ties, n) + 3 * y) / (ties + 3)))
    return found


def test_by_hand():
    studies = [study("1", [1, 0, 0], [0.9, 0.8, 0.1]), study("2", [1, 0], [0.6, 0.2])]
    line = frame_table(studies, np.full(N_LABELS, 0.7)).loc["polyp"]
    assert line.support == 2
    assert line.studies == 2
    assert line.baseline == pytest.approx(0.4)
    assert pytest.approx((1 / 1 + 2 / 3) / 2) == line.AP
    assert pytest.approx(5 / 6) == line.AUC  # of 6 pairs one is inverted
    assert (line.precision, line.recall, line.F1) == (0.5, 0.5, 0.5)
    # resamples are 1+1, 1+2, 2+2: AP 1 (0.9 above 0.8), 5/6, 1
    assert line.low == pytest.approx(5 / 6)
    assert line.high == pytest.approx(1)


def test_classes_without_positives_have_no_value_and_say_so():
    found = frame_table([study("1", [1, 0, 0], [0.9, 0.8, 0.1]), study("2", [0, 0], [0.6, 0.2])])
    assert found.loc["blood", ["AP", "AUC", "F1", "precision", "recall", "low"]].isna().all()
    assert "no positive frames" in found.loc["blood", "note"]
    assert found.loc["polyp", "note"] == "positives in one study only: no interval"
    assert np.isnan(found.loc["polyp", "low"])
    assert found.attrs["mean AP"] == found.loc["polyp", "AP"]  # nothing else has a value
    none = frame_table([study("1", [0, 0], [0.1, 0.2])])
    assert np.isnan(none.attrs["mean AP"])
    quiet = frame_table([study("1", [1, 0], [0.1, 0.2]), study("2", [1, 0], [0.1, 0.2])], np.full(N_LABELS, 0.9))
    assert "nothing reaches the threshold" in quiet.loc["polyp", "note"]
    assert np.isnan(quiet.loc["polyp", "precision"])
    assert quiet.loc["polyp", "recall"] == 0
    aps = frame_ap(np.array([[0, 1], [0, 0]]), np.array([[0.5, 0.5], [0.1, 0.9]]))
    assert np.isnan(aps[0])
    assert aps[1] == pytest.approx(0.5)


@given(st.integers(0, 1000), st.sampled_from([3, 20, 1000]), st.floats(0.05, 0.9))
@settings(max_examples=40, deadline=None)
def test_every_resample_is_what_sklearn_says_of_its_frames(seed, ties, share):
    studies = random_studies(seed, [12, 7, 30, 1], share, ties)
    rng = np.random.default_rng(seed)
    draws = rng.multinomial(4, np.full(4, 0.25), 5)
    y = np.concatenate([s.labels[:, COLUMN["polyp"]] for s in studies]) > 0
    p = np.concatenate([s.probs[:, COLUMN["polyp"]] for s in studies])
    code = np.repeat(np.arange(4), [12, 7, 30, 1])
    found = _resample(y, p, p >= 0.5, code, draws)
    for r, draw in enumerate(draws):
        rows = np.concatenate([np.tile(np.flatnonzero(code == k), n) for k, n in enumerate(draw)]).astype(int)
        if not y[rows].any() or y[rows].all():
            continue
        assert found["AP"][r] == pytest.approx(average_precision_score(y[rows], p[rows]))
        assert found["AUC"][r] == pytest.approx(roc_auc_score(y[rows], p[rows]))
        assert found["F1"][r] == pytest.approx(f1_score(y[rows], p[rows] >= 0.5))


def test_many_distinct_scores_stay_close(monkeypatch):
    studies = random_studies(0, [800] * 6, 0.3, 10**6)
    exact = frame_table(studies, resamples=100).loc["polyp"]
    monkeypatch.setattr(frame_metrics, "MAX_STEPS", 100)
    coarse = frame_table(studies, resamples=100).loc["polyp"]
    assert coarse.AP == exact.AP
    assert [coarse.low, coarse.high] == pytest.approx([exact.low, exact.high], abs=0.01)


def test_intervals_cover_and_narrow():
    few, many = (frame_table(random_studies(3, [200] * n), resamples=300).loc["polyp"] for n in (5, 60))
    whole = frame_table(random_studies(3, [200] * 5))
    assert whole.attrs["low"] <= whole.attrs["mean AP"] <= whole.attrs["high"]
    for line in (few, many):
        assert line.low <= line.AP <= line.high
    assert many.high - many.low < 0.6 * (few.high - few.low)
    assert frame_table(random_studies(3, [200] * 5)).equals(frame_table(random_studies(3, [200] * 5)))


def test_labels_are_required_and_lines_are_all_there():
    found = frame_table(random_studies(0, [20, 20]))
    assert list(found.index) == list(LABELS)
    with pytest.raises(ValueError, match="study x has no labels"):
        frame_table([StudyScores("x", np.arange(2, dtype=np.int32), np.zeros((2, N_LABELS), np.float32))])
