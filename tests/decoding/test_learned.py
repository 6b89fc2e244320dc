"""The learned parts one by one, on examples small enough to check by hand."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_decoding import made_up

from rarevision.decoding import calibration, chains, learned, posteriors, presence, proposals, structure
from rarevision.decoding.chains import Marginals
from rarevision.decoding.learned import Candidates
from rarevision.decoding.posteriors import RegionPath
from rarevision.labels import N_LABELS
from rarevision.scores import StudyScores


def test_innovation_of_a_constant_is_its_unshared_part():
    np.testing.assert_allclose(calibration.innovation(np.full(9, 2.0), 0.7, 0.75), 0.5)


def test_label_states_by_hand():
    """Memory 0.5: the trace of 0 1 1 1 0 0 is 0 0 .5 .75 .875 .4375, in thirds 0 0 2 2 3 1 (0.5 rounds to even)."""
    states = calibration.states(np.array([0, 1, 1, 1, 0, 0]), 0.5)
    assert states.tolist() == [0, 4, 6, 6, 3, 1]


def test_memory_is_found_again():
    """Noise with a known one-pole memory beside white noise; independent noise has no share."""
    rng = np.random.default_rng(0)
    labels = np.zeros((20_000, N_LABELS), np.uint8)
    labels[:, 3] = 1
    white = rng.standard_normal((20_000, N_LABELS))
    slow = np.zeros(20_000)
    for t in range(1, 20_000):
        slow[t] = 0.95 * slow[t - 1] + 0.3 * white[t, 0]
    logit = white - 3
    logit[:, 10] += 2 * slow
    fitted = calibration.fit([StudyScores("a", np.arange(20_000), 1 / (1 + np.exp(-logit)), labels)])
    assert fitted.share[10] > 0.6 > 0.1 > fitted.share[11]


def test_evidence_points_at_the_onset():
    rng = np.random.default_rng(1)
    labels = np.zeros((4000, N_LABELS), np.uint8)
    labels[:, 3] = 1
    for start in range(100, 3900, 200):
        labels[start : start + 20, 10] = 1
    probs = 1 / (1 + np.exp(4 - 6.0 * labels - rng.standard_normal(labels.shape)))
    fitted = calibration.fit([StudyScores("a", np.arange(4000), probs, labels)])
    evidence = fitted.evidence(probs, np.array([10]))[:, 0]
    onset = calibration.LEVELS  # the state of an event's first frame
    assert np.median(evidence[100:3900:200, onset]) > 4 > -4 > np.median(evidence[50:3900:200, onset])


def test_rounded_scores_are_no_outliers():
    low, high = calibration.score_limits([np.array([0.0, 0.01, 0.5, 0.9, 1.0])])
    assert low == pytest.approx(np.log(0.005 / 0.995)) and high == pytest.approx(np.log(0.95 / 0.05))


def test_piled_up_scores_are_no_curve():
    """Scores of 0 on nine negative frames of ten: the pile is learned; a normal curve is left alone."""
    rng = np.random.default_rng(2)
    labels = np.zeros((8000, N_LABELS), np.uint8)
    labels[:, 3] = 1
    probs = 1 / (1 + np.exp(3 - rng.standard_normal(labels.shape)))
    probs[:, 10] = np.where(rng.random(8000) < 0.9, 0.001, probs[:, 10])
    fitted = calibration.fit([StudyScores("a", np.arange(8000), probs, labels)])
    assert np.abs(fitted.excess[11]).max() == 0 < np.abs(fitted.excess[10]).max()


def path_of(*stretches):
    return np.repeat([r for r, _ in stretches], [n for _, n in stretches])


def test_structure_prefers_what_it_saw():
    timelines = []
    for _ in range(5):
        y = np.zeros((600, N_LABELS), np.uint8)
        y[np.arange(600), path_of((2, 100), (3, 300), (4, 200))] = 1
        y[96:100, 6] = 1  # pylorus at the end of the stomach
        y[500:505, 15] = 1  # polyp in the colon
        timelines.append(y)
    found = structure.fit(timelines, np.full(N_LABELS, 0.7))
    assert found.presence[15] > 0.9 and found.presence[16] < 0.1
    assert found.onset[15 - 5][4] > 0 > found.onset[15 - 5][3]
    where = structure.contexts(timelines[0][:, :5].argmax(1))
    assert found.onset[1][where[96, 1]] > 1 > found.onset[1][where[500, 1]]
    np.testing.assert_allclose(found.transition.sum(2), 1)
    np.testing.assert_allclose(found.region_transition.sum(1), 1)
    assert found.region_initial.argmax() == 2
    move = structure.N_REGIONS + structure.FADE * np.array([structure.MOVES.index(m) for m in ((2, 3), (3, 2))])
    assert found.region_transition[2, move[0]] > found.region_transition[3, move[1]]


def test_contexts_by_hand():
    where = structure.contexts(path_of((1, 2), (2, 5)))
    assert where[:, 5].tolist() == [1, 1, 2, 2, 2, 2, 2]  # findings: the region
    assert where[2, 0] == np.searchsorted(structure.DISTANCES, 0, "right")  # z-line: at the change
    assert (where[:, 1] == structure.CONTEXTS - 1).all()  # pylorus: no change between stomach and small intestine


@given(st.integers(0, 2**32 - 1))
def test_expected_path_is_the_best_of_all(seed):
    """Sure stretches taken as one step change nothing: equal to the search frame by frame."""
    rng = np.random.default_rng(seed)
    posterior = rng.dirichlet(np.full(5, 0.3), 12)
    posterior[3:7] = np.eye(5)[rng.integers(5)]
    whole = chains.best_path(posterior, posteriors.PRICE, np.zeros(5))
    value = lambda p: posterior[np.arange(12), p].sum() + posteriors.PRICE[p[:-1], p[1:]].sum()  # noqa: E731
    assert value(posteriors.expected_path(posterior)) == pytest.approx(value(whole))


def misread(studies, stretches, seed=0):
    """Scores that take 40 frames of one region for another, in so many places of each study."""
    rng = np.random.default_rng(seed)
    out = []
    for s in studies:
        probs = s.probs.copy()
        for start in rng.integers(0, len(probs) - 40, stretches):
            probs[start : start + 40, :5] = np.roll(probs[start : start + 40, :5], int(rng.integers(1, 5)), axis=1)
        out.append(dataclasses.replace(s, probs=probs))
    return out


def test_regions_that_are_misread_for_long_are_believed_less():
    """On clear scores the evidence stands as it is; where whole stretches are misread, it is taken for less."""
    sharp = made_up(6, gain=10.0)
    clear, _ = learned.fit(sharp, folds=3)
    doubtful, _ = learned.fit(misread(sharp, 3), folds=3)
    assert clear.calibration.region_weight == 1.0 > doubtful.calibration.region_weight
    full = dataclasses.replace(doubtful.calibration, region_weight=1.0)
    probs = sharp[0].probs
    expected = doubtful.calibration.region_weight * posteriors.region_evidence(full, probs)
    np.testing.assert_allclose(posteriors.region_evidence(doubtful.calibration, probs), expected, rtol=1e-5, atol=1e-5)


def still(frames, on):
    """Marginals of certain labels: `on` bool [T, 12]."""
    p = on.astype(np.float32)
    begins, ends = np.diff(p, axis=0, prepend=0) > 0, np.diff(p, axis=0, append=0) < 0
    return Marginals(p, begins.astype(np.float32), ends.astype(np.float32), np.zeros(12))


def test_pieces_and_runs_by_hand():
    """Colon on rows 0-9, polyp on 4-5: the colon in two pieces around one under the polyp, or as a whole."""
    path = np.full(10, 4)
    posterior = np.eye(5, dtype=np.float32)[path]
    edge = np.zeros((10, 5), np.float32)
    on = np.zeros((10, 12), bool)
    on[4:6, 10] = True
    made = proposals.propose(RegionPath(path, posterior, edge, edge), still(10, on), np.ones(12))
    colon = {tuple(r): (bool(p), int(k)) for r, p, k in zip(made[4].rows, made[4].piece, made[4].level, strict=True)}
    none = len(proposals.RUN_LEVELS)
    assert colon == {(0, 3): (True, none), (4, 5): (True, none), (6, 9): (True, none), (0, 9): (False, 0)}
    assert made[15].rows.tolist() == [[4, 5]] and made[15].piece.all() and made[15].level.tolist() == [0]
    assert made[15].facts[0].tolist() == [1, 1, 0, 1, 2]
    assert all(len(made[c].rows) == 0 for c in range(N_LABELS) if c not in (4, 15))


def test_logistic_against_the_closed_form():
    """One binary feature, hardly any ridge: the fitted probabilities are the groups' shares."""
    x = np.repeat([0.0, 1.0], [400, 400])[:, None]
    y = np.concatenate([np.arange(400) < 80, np.arange(400) < 300]).astype(float)
    b = presence.logistic(x, y, np.ones(800), ridge=1e-6)
    np.testing.assert_allclose(presence.sigmoid(np.array([b[1], b[0] + b[1]])), [0.2, 0.75], atol=3e-3)
    assert np.isfinite(presence.logistic(x[:, :1] * 0, np.ones(800), np.ones(800))).all()


def test_logistic_adds_to_what_is_known():
    """Shares that the offset explains leave nothing to learn; wrong ones are put right by the intercept."""
    x, y = np.zeros((1000, 1)), np.concatenate([np.arange(500) < 100, np.arange(500) < 400]).astype(float)
    known = np.repeat(presence.odds(np.array([0.2, 0.8])), 500)
    np.testing.assert_allclose(presence.logistic(x, y, np.ones(1000), offset=known), 0, atol=1e-6)
    assert presence.logistic(x, y, np.ones(1000), offset=known + 2.0)[1] == pytest.approx(-2, abs=0.02)


def test_presence_knows_the_prior_before_it_learns():
    prior = np.linspace(0.05, 0.95, N_LABELS)
    path = np.full(10, 4)
    edge = np.zeros((10, 5), np.float32)
    region = RegionPath(path, np.eye(5, dtype=np.float32)[path], edge, edge)
    found = still(10, np.zeros((10, 12), bool))
    np.testing.assert_allclose(presence.unknown().probability(prior, region, found), prior)


def test_a_sure_region_that_is_often_wrong_is_doubted():
    """The colon's posterior is 1 in every study, but half of them have none: 0.5, not 1. The mouth is what it seems."""
    edge = np.zeros((20, 5), np.float32)
    studies, truth = [], np.zeros((40, N_LABELS), bool)
    for k in range(40):
        path = np.repeat([0 if k % 4 < 2 else 3, 4], 10)
        studies.append(
            (RegionPath(path, np.eye(5, dtype=np.float32)[path], edge, edge), still(20, np.zeros((20, 12), bool)))
        )
        truth[k, [3, 4]] = k % 4 >= 2, k % 2
        truth[k, 0] = k % 4 < 2
    priors = np.tile(np.where(np.arange(N_LABELS) < 5, 0.5, 0.1), (40, 1))
    model = presence.fit_presence(priors, studies, truth)
    sure = model.probability(priors[0], *studies[0])
    assert sure[1] < 0.1 and 0.6 < sure[4] < 0.95  # two of three regions that seem sure are there


def test_ap_factor_by_hand():
    """Three present findings expected to earn 0.5 each earn nothing: (1 + 0) / (1 + 1.5); no landmark: 1."""
    rows = [np.zeros((0, 2), np.int64)] * N_LABELS
    there = [np.array([[0, 4]]) if c >= 14 else rows[c] for c in range(N_LABELS)]
    wrong = Candidates(np.array([15]), np.array([[50, 60]]), np.ones(1), np.full(N_LABELS, 0.5), np.ones(N_LABELS))
    np.testing.assert_allclose(presence.fit_ap_factor([wrong], [there]), [1, 1, 1, 0.4])
    right = dataclasses.replace(wrong, rows=np.array([[0, 4]]))
    np.testing.assert_allclose(presence.fit_ap_factor([right], [there]), [1, 1, 1, 2 / 2.5])


def test_hit_rows_by_hand():
    truth = np.array([[10, 19], [30, 39]])
    rows = np.array([[10, 19], [12, 19], [10, 12], [25, 44], [50, 60]])
    assert presence.hit_rows(truth, rows).tolist() == [1.0, 0.5, 0.0, 0.5, 0.0]


def test_expected_ap_by_hand():
    """Two sure hits earn 1; a hit of 0.5 below a sure one: (1 + 0.5 * 1.5 / 2) / 1.5."""
    assert presence.expected_ap(np.array([1.0, 1.0])) == 1
    assert presence.expected_ap(np.array([1.0, 0.5])) == pytest.approx((1 + 0.5 * 1.5 / 2) / 1.5)
    assert presence.expected_ap(np.zeros(0)) == 0
