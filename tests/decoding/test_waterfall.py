"""Waterfall: its ends are silence and the decoder itself; every step is out of fold."""

import numpy as np
from test_decoding import made_up, settings

from rarevision.decoding import decoder as decoding
from rarevision.decoding import learned, waterfall


def test_last_step_is_ours():
    studies = made_up(6)
    found = waterfall.waterfall_steps(waterfall.waterfall_fits(studies, settings(folds=2)))
    ours, _, _ = decoding.cross_validate(studies, settings(folds=2, choose=False))
    assert list(found)[-1] == waterfall.STEPS[-1][0]
    assert found[list(found)[-1]] == ours
    assert found["silence"] == {s.study: [] for s in studies}
    assert all(len(e.labels) == 1 and e.labels[0] not in ("polyp", "blood") for e in found["regions as one path"]["s0"])


def test_a_fit_never_saw_its_studies():
    studies = made_up(6)
    fitted = waterfall.waterfall_fits(studies, settings(folds=2))
    assert sorted(s.study for _, outside in fitted for s in outside) == sorted(s.study for s in studies)
    for fit, outside in fitted:
        inside = [s for s in studies if s.study not in {o.study for o in outside}]
        assert fit.to_json() == learned.fit(inside)[0].to_json()


def test_probabilities_follow_the_truth_and_rule_out_the_absent():
    studies = made_up(6)
    found = waterfall.waterfall_probabilities(waterfall.waterfall_fits(studies, settings(folds=2)))
    p, y = (np.concatenate(part) for part in ([found[s.study] for s in studies], [s.labels for s in studies]))
    assert ((p >= 0) & (p <= 1 + 1e-6)).all()
    np.testing.assert_allclose(p[:, :5].sum(1), 1, atol=1e-5)
    assert ((p - y) ** 2).mean() < (((np.concatenate([s.probs for s in studies])) - y) ** 2).mean()
