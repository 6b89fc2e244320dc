"""The choice per label between silence, a threshold and the learned decoder."""

import dataclasses
import itertools

import numpy as np
import pytest
from test_decoding import made_up, settings

from rarevision import decoding
from rarevision.decoding import choice
from rarevision.labels import LABELS, N_LABELS


def test_expected_gain_by_hand():
    """Two studies, all anatomy gains 0.6 and 0.2, findings none: m = 0.8 / 3 - 0.25 * e, E = (0.8 + 8 m) / 10."""
    gain = np.zeros((2, N_LABELS))
    gain[0, :8], gain[1, :8] = 0.6, 0.2
    e = np.std([0.6, 0.2, 0.0], ddof=1) / np.sqrt(3)
    expected = choice.expected_gain(gain)
    np.testing.assert_allclose(expected[:8], (0.8 + 8 * (0.8 / 3 - 0.25 * e)) / 10)
    assert (expected[8:] == 0).all()


def test_ties_and_small_advantages_go_to_the_simpler_source():
    gain = np.zeros((2, N_LABELS))
    gain[:, 1] = 0.3, 0.3 - choice.MARGIN / 2  # a threshold hardly better
    gain[:, 2] = 0.3, 0.1
    gain[:, 3] = -0.2, -0.1
    assert choice.choose(gain)[:4] == ("silence", "learned", "threshold", "silence")


def test_few_bad_studies_end_at_silence():
    """Three studies whose scores know nothing: every label is silent, and nothing is listed."""
    rng = np.random.default_rng(0)
    studies = [dataclasses.replace(s, probs=rng.random(s.probs.shape, np.float32)) for s in made_up(4, seed=3)]
    decoder = decoding.fit_decoder(studies[:3], settings())
    listed = {LABELS[c] for c in np.flatnonzero(~decoder.choice.of("silence"))}
    events = decoder.decode(studies[3].frame, studies[3].probs)
    assert {e.labels[0] for e in events} <= listed
    _, result, _ = decoding.cross_validate(studies, settings(folds=4))
    assert min(result.score) >= result.empty - 0.03


def test_one_study_is_no_evidence():
    one = made_up(1)
    assert decoding.fit_decoder(one, settings()).decode(one[0].frame, one[0].probs) == []


@pytest.fixture(scope="module")
def mixed():
    """A decoder with one label of each source."""
    decoder = decoding.fit_decoder(made_up(6), settings())
    source = ["silence"] * N_LABELS
    source[2], source[3] = "threshold", "learned"
    threshold = np.full(N_LABELS, 0.5, np.float32)
    return dataclasses.replace(decoder, choice=choice.Choice(tuple(source), np.zeros((2, N_LABELS)), threshold))


def test_each_label_comes_from_its_source(mixed, tmp_path):
    s = made_up(1, seed=11)[0]
    found = mixed.decode(s.frame, s.probs)
    assert {e.labels[0] for e in found} == {LABELS[2], LABELS[3]}
    alone = dataclasses.replace(mixed, choice=None).decode(s.frame, s.probs)
    assert [e for e in found if e.labels == (LABELS[3],)] == [e for e in alone if e.labels == (LABELS[3],)]
    d = mixed.settings
    rows = decoding.published_events(
        s.frame, s.probs, np.full(N_LABELS, 0.5), d.median, d.max_gap, d.min_length, "per_label"
    )
    assert {e for e in found if e.labels == (LABELS[2],)} == {e for e in rows if e.labels == (LABELS[2],)}
    mixed.save(tmp_path / "decoder.json")
    assert decoding.Decoder.load(tmp_path / "decoder.json").decode(s.frame, s.probs) == found


def test_distinct_lists_each_stretch_once(mixed):
    s = made_up(1, seed=11)[0]
    decoder = dataclasses.replace(mixed, choice=None)
    listed = decoder.decode(s.frame, s.probs)
    single = dataclasses.replace(decoder, settings=dataclasses.replace(decoder.settings, distinct=True))
    short = single.decode(s.frame, s.probs)
    assert short == decoding.distinct(listed) and 0 < len(short) < len(listed)
    assert short[0] == listed[0], "the surest stays"
    for name in LABELS:
        mine = sorted((e.start, e.end) for e in short if name in e.labels)
        assert all(a[1] < b[0] for a, b in itertools.pairwise(mine))
    for event in set(listed) - set(short):  # what is left out shares a frame with something surer
        earlier = listed[: listed.index(event)]
        assert any(e.labels == event.labels and e.start <= event.end and event.start <= e.end for e in earlier)


def test_the_report_says_what_was_chosen_and_what_a_distinct_list_costs():
    found, _, report = decoding.cross_validate(made_up(6), settings(folds=2))
    assert report["events"] == sum(map(len, found.values())) / 6
    assert report["distinct"]["events"] <= report["events"]
    for row in report["choice"].values():
        assert row["silence"] + row["threshold"] + row["learned"] == 2
