"""Waterfall: its ends are silence and the decoder itself; every step is out of fold."""

from test_decoding import made_up, settings

from rarevision import decoding, waterfall


def test_last_step_is_ours():
    studies = made_up(6)
    steps = waterfall.cross_validate(studies, settings(folds=2))
    ours, _ = decoding.cross_validate(studies, settings(folds=2))
    assert list(steps)[-1] == waterfall.STEPS[-1][0] and steps[list(steps)[-1]] == ours
    assert steps["silence"] == {s.study: [] for s in studies}
    assert all(len(e.labels) == 1 and e.labels[0] not in ("polyp", "blood") for e in steps["regions as one path"]["s0"])
