"""Decoding: the published decoder against a loop over frames; the learned one on a small made-up problem."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rarevision import config, events
from rarevision.decoding import cleaning, proposals
from rarevision.decoding import decoder as decoding
from rarevision.labels import COLUMN, LABELS, N_LABELS
from rarevision.scores import StudyScores
from rarevision.scoring import report as scoring


def literal_clean(mask, median, max_gap, min_length):
    """The same rules, frame by frame."""
    n, half = len(mask), median // 2
    mirrored = lambda t: -t - 1 if t < 0 else 2 * n - t - 1 if t >= n else t  # noqa: E731
    smooth = [sum(mask[mirrored(u)] for u in range(t - half, t + half + 1)) > half for t in range(n)]
    on = [t for t in range(n) if smooth[t]]
    for a, b in itertools.pairwise(on):
        if b - a - 1 <= max_gap:
            smooth[a:b] = [True] * (b - a)
    out, t = [False] * n, 0
    while t < n:
        end = t
        while end < n and smooth[end]:
            end += 1
        if end - t >= min_length:
            out[t:end] = [True] * (end - t)
        t = max(end, t + 1)
    return out


@given(
    st.lists(st.booleans(), min_size=8, max_size=60),
    st.sampled_from([1, 3, 5, 7]),
    st.integers(0, 6),
    st.integers(1, 5),
)
def test_clean_equals_loop(mask, median, max_gap, min_length):
    assert cleaning.clean(np.array(mask), median, max_gap, min_length).tolist() == literal_clean(
        mask, median, max_gap, min_length
    )


def test_clean_by_hand():
    rows = lambda text, **k: "".join("x" if v else "." for v in cleaning.clean(np.array(list(text)) == "x", **k))  # noqa: E731
    assert rows("..x..xxx", median=1, max_gap=2, min_length=1) == "..xxxxxx"
    assert rows("..x...xxx", median=1, max_gap=2, min_length=2) == "......xxx"
    assert (
        rows("..xx.xx..", median=3, max_gap=0, min_length=1) == "..xxxxx.."
    )  # the hole has more x than dots around it
    assert rows("...x.....", median=3, max_gap=0, min_length=1) == "........."


def test_paper_by_hand():
    """Mouth throughout, ulcer on rows 3-6: three events by label set, two by label; PillCam's frames count by 5."""
    probs = np.zeros((10, N_LABELS), np.float32)
    probs[:, 0], probs[3:7, COLUMN["ulcer"]] = 0.9, 0.5
    frame = 5 * np.arange(10)
    cut = np.full(N_LABELS, 0.5)
    assert decoding.published_events(frame, probs, cut, 1, 0, 1) == [
        events.Event(0, 14, ("mouth",)),
        events.Event(15, 34, ("mouth", "ulcer")),
        events.Event(35, 45, ("mouth",)),
    ]
    assert decoding.published_events(frame, probs, cut, 1, 0, 1, "per_label") == [
        events.Event(0, 45, ("mouth",)),
        events.Event(15, 34, ("ulcer",)),
    ]


# ------------------------------------------------------------------------------------------------- the learned decoder


def made_up(n: int, seed: int = 0, gain: float = 6.0, frames: int = 400) -> list[StudyScores]:
    """Studies with regions in order and two findings in some of them; scores with slow errors and a study's shift."""
    rng = np.random.default_rng(seed)
    studies = []
    for k in range(n):
        cut = np.sort(rng.choice(np.arange(5, frames - 5), 4, replace=False))
        labels = np.zeros((frames, N_LABELS), np.uint8)
        labels[np.arange(frames), np.searchsorted(cut, np.arange(frames), "right")] = 1
        for name in ("polyp", "blood"):
            if rng.random() < 0.5:
                for start in rng.integers(20, frames - 20, 3):
                    labels[start : start + rng.integers(4, 12), COLUMN[name]] = 1
        slow = np.cumsum(rng.standard_normal((frames, N_LABELS)), 0) * 0.1
        logit = gain * labels - 4 + slow + rng.standard_normal((frames, N_LABELS)) + rng.standard_normal(N_LABELS)
        frame = np.arange(frames, dtype=np.int32) * (5 if k % 2 else 1) + 7
        studies.append(StudyScores(f"s{k}", frame, (1 / (1 + np.exp(-logit))).astype(np.float32), labels))
    return studies


def settings(method="ours", **decode):
    return dataclasses.replace(config.Config(), decode=config.Decode(method=method, compose="auto", **decode))


@pytest.fixture(scope="module")
def studies():
    return made_up(9)


@pytest.fixture(scope="module")
def fitted(studies):
    return decoding.fit_decoder(studies[:6], settings())


def test_beats_silence_out_of_fold(studies):
    found, result, report = decoding.cross_validate(studies, settings(folds=3))
    assert list(found) == [s.study for s in studies]
    assert decoding.fit_decoder(studies, settings(), report).expected["score"] == report["score"]
    for fold in report["folds"]:
        assert fold["score"][0] > fold["empty"] + 0.1
    expected = scoring.score_events(decoding.truth_events(studies), found).score
    assert tuple(report["score"]) == result.score == expected


def test_silent_on_noise():
    """Scores that know nothing: the decoder must not lose to an empty file by more than a trifle."""
    rng = np.random.default_rng(0)
    studies = [dataclasses.replace(s, probs=rng.random(s.probs.shape, np.float32)) for s in made_up(9, seed=3)]
    _, _, report = decoding.cross_validate(studies, settings(folds=3))
    assert report["score"][0] > report["empty"] - 0.02


def test_beats_silence_on_another_capsule(studies):
    """Flatter logits, shifted for each label, as a capsule system gives that training never showed."""
    rng, decoder = np.random.default_rng(4), decoding.fit_decoder(studies, settings())
    found, others = {}, made_up(12, seed=8)
    for s in others:
        logit = np.log(s.probs) - np.log1p(-s.probs)
        found[s.study] = decoder.decode(s.frame, 1 / (1 + np.exp(-0.7 * logit - 0.7 * rng.standard_normal(N_LABELS))))
    result = scoring.score_events(decoding.truth_events(others), found)
    assert result.score[0] > result.empty + 0.1


@pytest.mark.parametrize("method", ["ours", "screen"])
def test_saved_decoder_is_the_same(studies, tmp_path, method):
    first, second = (decoding.fit_decoder(studies[:6], settings(method)) for _ in range(2))
    assert json.dumps(first.to_json()) == json.dumps(second.to_json())
    first.save(tmp_path / "decoder.json")
    loaded = decoding.Decoder.load(tmp_path / "decoder.json")
    decoded = [first.decode(s.frame, s.probs) for s in studies[6:]]
    assert [loaded.decode(s.frame, s.probs) for s in studies[6:]] == decoded != [[], [], []]


def odd_scores(kind: str, frames: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    if kind == "random":
        return rng.random((frames, N_LABELS), np.float32)
    if kind == "binary":
        return rng.integers(0, 2, (frames, N_LABELS)).astype(np.float32)
    return np.full((frames, N_LABELS), float(kind), np.float32)


@pytest.mark.parametrize("kind", ["random", "binary", "0", "1", "0.5"])
@pytest.mark.parametrize("frames", [1, 2, 5, 300])
def test_events_lie_inside_the_study(fitted, kind, frames):
    frame = np.arange(frames) * 5 + 3
    for compose in ("auto", "per_label", "label_set"):
        found = fitted.learned.events(frame, odd_scores(kind, frames), compose)
        assert len(set(found)) == len(found)
        for start, end, names in found:
            assert frame[0] <= start <= end <= frame[-1] and len(names) == 1


@pytest.mark.parametrize("kind", ["binary", "0", "0.5"])
def test_odd_scores_can_be_fitted(kind):
    studies = [dataclasses.replace(s, probs=odd_scores(kind, 60)) for s in made_up(4, frames=60)]
    decoder = decoding.fit_decoder(studies, settings())
    assert isinstance(decoder.decode(studies[0].frame, studies[0].probs), list)


def test_one_study_and_short_studies_can_be_fitted():
    one = made_up(1)
    assert isinstance(decoding.fit_decoder(one, settings()).decode(one[0].frame, one[0].probs), list)
    short = [StudyScores(s.study, s.frame[:3], s.probs[:3], s.labels[:3]) for s in made_up(3)]
    assert isinstance(decoding.fit_decoder(short, settings()).decode(short[0].frame, short[0].probs), list)


def test_order_is_confidence(fitted, studies):
    found = fitted.learned.candidates(studies[7].probs)
    assert (np.diff(found.confidence) <= 1e-12).all()
    names = [LABELS[c] for c in found.kept(~fitted.learned.silent(found)[found.column]).column]
    assert [e.labels[0] for e in fitted.decode(studies[7].frame, studies[7].probs)] == names


def test_compose_cuts_or_keeps_runs(fitted):
    """A polyp inside the colon: pieces split the colon there, runs do not."""
    s = made_up(1, seed=11, gain=14.0)[0]
    truth = proposals.truth_rows(s.labels)
    first = lambda compose: fitted.learned.events(np.arange(len(s.frame)), s.probs, compose)  # noqa: E731
    colon = {c: [e[:2] for e in first(c) if e.labels == ("colon",)] for c in ("per_label", "label_set")}
    whole = events.runs(s.labels[:, COLUMN["colon"]] == 1)
    assert len(truth[COLUMN["colon"]]) > 1, "the example must have a cut"
    assert tuple(whole[0]) in colon["per_label"] and tuple(whole[0]) not in colon["label_set"]
    assert all(tuple(rows) in colon["label_set"] for rows in truth[COLUMN["colon"]])


def test_structure_learns_from_timelines_without_scores(studies):
    """Timelines of other studies change structure alone; those of the studies themselves change nothing."""
    others = {f"other {i}": s.labels for i, s in enumerate(made_up(5, seed=9))}
    plain, more = (decoding.fit_decoder(studies[:4], settings(), timelines=t).learned for t in (None, others))
    assert more.calibration.mean.tolist() == plain.calibration.mean.tolist()
    assert more.calibration.memory.tolist() == plain.calibration.memory.tolist()
    assert not np.allclose(more.structure.region_transition, plain.structure.region_transition)
    pooled = np.mean([y.any(0) for y in [*(s.labels for s in studies[:4]), *others.values()]], 0)
    np.testing.assert_allclose(more.structure.presence, (9 * pooled + 0.5) / 10)
    own = {s.study: s.labels for s in studies[:4]}
    assert (
        decoding.fit_decoder(studies[:4], settings(), timelines=own).to_json()
        == decoding.fit_decoder(studies[:4], settings()).to_json()
    )


def test_no_study_is_decoded_by_its_own_timeline(studies):
    own = {s.study: s.labels for s in studies[:4]}
    plain, given = (decoding.cross_validate(studies[:4], settings(folds=2), t) for t in (None, own))
    assert plain[0] == given[0] and plain[2] == given[2]
    _, _, report = decoding.cross_validate(studies[:4], settings(folds=2), {"other": studies[5].labels})
    assert report["data_hash"] != plain[2]["data_hash"]
    with pytest.raises(ValueError, match="timeline of study odd"):
        decoding.fit_decoder(studies[:4], settings(), timelines={"odd": np.ones((9, 3))})


def test_truth_rows_are_the_converter_s():
    s = made_up(1, seed=2)[0]
    rows = proposals.truth_rows(s.labels)
    frame = np.arange(len(s.frame))
    for c, name in enumerate(LABELS):
        expected = [(e.start, e.end) for e in events.from_label_sets(frame, s.labels) if name in e.labels]
        assert [tuple(r) for r in rows[c]] == expected


def test_what_cannot_be_fitted_is_named(studies):
    with pytest.raises(ValueError, match="at least 2"):
        decoding.cross_validate(studies[:1], settings())
    with pytest.raises(ValueError, match="study s0 has no labels"):
        decoding.fit_decoder([dataclasses.replace(studies[0], labels=None)], settings())
