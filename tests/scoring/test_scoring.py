"""The score: equal to the literal metric on any events; the report's figures by hand and on the real timelines."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rarevision.event_files import read_events, write_events
from rarevision.events import Event, EventsError, from_labels, to_labels
from rarevision.labels import ANATOMY, COLUMN, FINDINGS, LABELS, REGIONS
from rarevision.run import command
from rarevision.scoring import bootstrap_intervals, compare_reports, event_ap, matching, score_events
from rarevision.scoring.bootstrap import MIN_STUDIES
from rarevision.scoring.matching import flatten
from rarevision.scoring.reader import touches

TIMELINES = Path(__file__).parents[3] / "shared" / "timelines"
needs_timelines = pytest.mark.skipif(not TIMELINES.exists(), reason="the real timelines are not here")


def literal_ap(truth, predicted, threshold):
    """The rule as it is told, event by event."""
    if not truth:
        return 0.0 if predicted else 1.0
    used, hits, total = set(), 0, 0.0
    for n, (a, b) in enumerate(predicted, 1):
        for i, (c, d) in enumerate(truth):
            inside = len(range(max(a, c), min(b, d) + 1))
            if i not in used and inside / (b - a + 1 + d - c + 1 - inside) >= threshold:
                used.add(i)
                hits += 1
                total += hits / n
                break
    return total / len(truth)


def score(truth, prediction, threshold):
    """mAP over all studies and of each, from the report."""
    full = score_events(truth, prediction, thresholds=[threshold])
    return full.score[0], dict(zip(full.studies, full.per_study[0], strict=True))


def literal_score(truth, prediction, threshold):
    videos = {}
    for study in truth:
        rows = [
            [[(e.start, e.end) for e in events[study] for label in e.labels if label == name] for name in LABELS]
            for events in (truth, prediction)
        ]
        videos[study] = sum(literal_ap(t, p, threshold) for t, p in zip(*rows, strict=True)) / 17
    return sum(videos.values()) / len(videos), videos


# Few frames and labels, so that overlaps, ties, duplicates, and labels named twice are common.
event = st.builds(
    lambda start, length, labels: Event(start, start + length, tuple(labels)),
    st.integers(0, 14),
    st.integers(0, 9),
    st.lists(st.sampled_from(("mouth", "colon", "ulcer", "polyp")), max_size=3),
)
two = st.lists(st.sampled_from("abc"), min_size=1, unique=True).flatmap(
    lambda ids: st.tuples(*[st.fixed_dictionaries({i: st.lists(event, max_size=9) for i in ids})] * 2)
)
thresholds = st.sampled_from([0.5, 0.95, 1.0, 0.1, 0.25, 1 / 3, 0.4999, 0.6, 2 / 3, 0.75, 1e-9])


@settings(max_examples=200)
@given(two, thresholds)
def test_equals_the_literal_metric_to_the_last_bit(pair, threshold):
    assert score(*pair, threshold) == literal_score(*pair, threshold)


@given(two)
def test_report_equals_the_literal_metric_at_both_thresholds(pair):
    full = score_events(*pair)
    for k, threshold in enumerate((0.5, 0.95)):
        overall, videos = literal_score(*pair, threshold)
        assert full.score[k] == overall
        assert full.per_study[k] == list(videos.values())


bounds = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 9)).map(lambda x: (x[0], x[0] + x[1])), max_size=9)


@given(bounds, bounds, thresholds)
def test_average_precision_of_one_label(truth, predicted, threshold):
    assert event_ap(truth, np.array(predicted), threshold) == literal_ap(truth, predicted, threshold)


@given(two, thresholds)
@settings(max_examples=50)
def test_crowded_truth_changes_nothing(pair, threshold):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "CROWD", 1)
        assert score(*pair, threshold) == literal_score(*pair, threshold)


def test_average_precision_by_hand():
    truth = [(0, 9), (20, 29)]
    assert event_ap(truth, [], 0.5) == 0 and event_ap([], [], 0.5) == 1
    assert event_ap([], [(0, 1)], 0.5) == 0
    assert event_ap(truth, truth[::-1], 0.95) == 1
    assert event_ap(truth, [(0, 4)], 0.5) == 0.5  # tIoU is exactly 5 / 10
    assert event_ap(truth, [(0, 3)], 0.5) == 0
    assert event_ap(truth, [(50, 59), *truth], 0.5) == (1 / 2 + 2 / 3) / 2  # a false event first
    assert event_ap(truth, [*truth, (50, 59)], 0.5) == 1  # and last: order is the ranking
    assert event_ap(truth, [(0, 9), (0, 9), (20, 29)], 0.5) == (1 + 2 / 3) / 2  # twice is once too often
    # The first free truth event in file order is taken, not the best: then (0, 4) finds only (0, 9), at tIoU 0.5.
    assert event_ap([(0, 5), (0, 9)], [(0, 9), (0, 4)], 0.55) == 0.5
    assert event_ap([(0, 9), (0, 5)], [(0, 9), (0, 4)], 0.55) == 1


@pytest.mark.parametrize("threshold", [0.5, 0.4])
def test_every_pair_of_short_intervals(threshold):
    """Ties at the threshold included: half of an even prediction, its left or its right."""
    short = [(a, b) for a in range(8) for b in range(a, 8)]
    for truth in short:
        for predicted in short:
            assert event_ap([truth], [predicted], threshold) == literal_ap([truth], [predicted], threshold)


@pytest.mark.parametrize("threshold", [0, -0.1, 1.1, float("nan")])
def test_thresholds_that_mean_nothing(threshold):
    with pytest.raises(ValueError, match="thresholds must lie in"):
        event_ap([(0, 1)], [(0, 1)], threshold)


def test_large_frame_numbers_and_many_studies_do_not_mix():
    last = 2**31 - 1
    truth = {str(i): [Event(last - 5, last, ("ulcer",)), Event(0, 3, ("colon",))] for i in range(2000)}
    assert score(truth, truth, 0.95)[0] == 1
    moved = {k: [Event(last - 9, last - 4, ("ulcer",)), Event(0, 3, ("colon",))] for k in truth}
    assert score(truth, moved, 0.5)[0] == pytest.approx(16 / 17)


@pytest.mark.parametrize("bad", [Event(-1, 3, ("colon",)), Event(4, 3, ("colon",)), Event(0, 2**31, ("colon",))])
def test_bounds_that_are_no_interval_are_refused(bad):
    with pytest.raises(EventsError, match=r"study 7: Event\(start=.* needs 0 <= start <= end"):
        score({"7": []}, {"7": [Event(0, 1, ("colon",)), bad]}, 0.5)


# ------------------------------------------------------------------------------------------------------------ report

TRUTH = {
    "a": [
        Event(0, 99, ("stomach",)),
        Event(100, 199, ("colon",)),
        Event(120, 129, ("colon", "ulcer")),
        Event(150, 159, ("polyp",)),
    ],
    "b": [Event(0, 99, ("colon",))],
}
PREDICTED = {
    "a": [
        Event(0, 89, ("stomach",)),  # tIoU 0.9
        Event(121, 132, ("ulcer",)),  # 9 of 13 frames
        Event(10, 19, ("polyp",)),  # false
        Event(155, 164, ("polyp",)),  # touches, tIoU 1 / 3
    ],
    "b": [Event(0, 99, ("colon",)), Event(5, 9, ("erosion",))],
}


def test_report_by_hand():
    full = score_events(TRUTH, PREDICTED)
    assert full.studies == ("a", "b") and full.ap.shape == (2, 2, 17)
    # a: 13 absent labels silent, stomach and ulcer found, colon (2 events) and polyp not; b: 15 absent, one noisy.
    assert full.per_study == [[15 / 17, 16 / 17], [13 / 17, 16 / 17]]
    assert full.score == pytest.approx((31 / 34, 29 / 34))
    assert full.empty == pytest.approx(29 / 34)
    assert full.silence == pytest.approx((28 / 34, 28 / 34))
    assert full.mean(present_only=True) == pytest.approx((3 / 5, 1 / 5))
    assert full.mean("anatomy", present_only=True) == pytest.approx((2 / 3, 1 / 3))
    assert full.mean("findings", present_only=True) == pytest.approx((1 / 2, 0))
    assert full.mean("anatomy") == pytest.approx((15 / 16, 14 / 16))
    assert full.mean("findings") == pytest.approx((16 / 18, 15 / 18))


def test_reader_by_hand():
    full = score_events(TRUTH, PREDICTED, frames={"a": 200, "b": 100}, fps=2)
    assert full.reader("findings") == {
        "true events": 2,
        "predicted events": 4,
        "recall": 1.0,
        "recall@0.5": 0.5,
        "recall@0.95": 0.0,
        "false events": 2,
        "false per 1000 frames": pytest.approx(2 / 0.3),
        "false per hour": pytest.approx(2 / (300 / 2 / 3600)),
        "onset error median": 1.0,
        "onset error mean": 1.0,
        "offset error median": 3.0,
        "offset error mean": 3.0,
    }
    anatomy = full.reader("anatomy")
    assert anatomy["recall"] == 2 / 4 and anatomy["offset error mean"] == 5 and anatomy["false events"] == 0
    # Proposals in file order: a looks at 12, 10, 10 frames, b at 5; ulcer is found by the first, polyp by the third.
    assert [x.tolist() for x in full.workload] == [[0, 1, 1, 2], [0, 17, 27, 37]]
    assert full.frames_for_recall(0.5) == 17 / 300 and full.frames_for_recall(0.9) == 37 / 300
    silent = score_events(TRUTH, {"a": [], "b": []})
    assert silent.frames_for_recall(0.5) is None
    assert silent.reader()["recall"] == 0 and silent.reader()["onset error mean"] is None
    assert silent.frames.tolist() == [200, 100]  # from the first to the last frame of any event


def test_nothing_at_all():
    full = score_events({"a": []}, {"a": []})
    assert full.score == (1, 1) == full.silence and full.empty == 1
    assert np.isnan(full.mean(present_only=True)).all()
    assert json.loads(full.to_json({}))["mAP@0.5"] == 1
    assert "score" in full.to_text({}) and "nan" not in full.to_text({})
    assert full.reader()["false per 1000 frames"] is None
    with pytest.raises(EventsError, match="no videos"):
        score_events({}, {})


@given(two)
def test_what_the_score_is_made_of(pair):
    truth, prediction = pair
    full = score_events(truth, prediction)
    table = full.sources()
    assert table.sum().tolist() == pytest.approx([*full.score, 1])
    assert table.loc["silence"].tolist() == pytest.approx([*full.silence, full.empty])
    assert (table["mAP@0.5"] <= table["possible"] + 1e-12).all()
    assert score(truth, {s: [] for s in truth}, 0.5)[0] == pytest.approx(full.empty)
    assert full.score == pytest.approx(
        [(8 * a + 9 * f) / 17 for a, f in zip(full.mean("anatomy"), full.mean("findings"), strict=True)]
    )
    assert score_events(truth, truth).silence == pytest.approx((full.empty, full.empty))


@given(two)
def test_counts_and_workload_equal_loops(pair):
    truth, prediction = pair
    full = score_events(truth, prediction)
    found_by, seen = {}, {}
    for v, study in enumerate(truth):
        for name in LABELS:
            t, p = ([e for e in x[study] for n in e.labels if n == name] for x in (truth, prediction))
            meets = lambda a, b: a.start <= b.end and b.start <= a.end  # noqa: E731
            assert full.touched[v, COLUMN[name]] == sum(any(meets(g, e) for e in p) for g in t)
            assert full.false[v, COLUMN[name]] == sum(not any(meets(g, e) for g in t) for e in p)
        proposals = [e for e in prediction[study] if set(e.labels) & set(FINDINGS)]
        for n, proposal in enumerate(proposals, 1):
            for frame in range(proposal.start, proposal.end + 1):
                seen.setdefault((study, frame), n)
            for i, (g, name) in enumerate((t, x) for t in truth[study] for x in t.labels if x in FINDINGS):
                if name in proposal.labels and g.start <= proposal.end and proposal.start <= g.end:
                    found_by.setdefault((study, i), n)
    found, looked = full.workload
    steps = range(len(found))
    assert found.tolist() == [sum(n <= k for n in found_by.values()) for k in steps]
    assert looked.tolist() == [sum(n <= k for n in seen.values()) for k in steps]
    assert found[-1] == full.touched[:, len(ANATOMY) :].sum()


def test_touches_without_rows():
    some, none = flatten(TRUTH, ("a",)), flatten({"a": []}, ("a",))
    assert touches(none, some).shape == (0,) and not touches(some, none).any()


# --------------------------------------------------------------------------------------------------------- intervals


def scattered(n: int, hit: float, seed: int = 0) -> tuple[dict, dict]:
    """n studies with a colon each, which is predicted in a share `hit` of them."""
    rng = np.random.default_rng(seed)
    truth = {str(i): [Event(0, 99, ("colon",))] for i in range(n)}
    return truth, {s: list(truth[s]) if rng.random() < hit else [] for s in truth}


def test_intervals_equal_a_loop_over_drawn_studies():
    truth, prediction = scattered(12, 0.5)
    prediction["0"] = [Event(0, 1, ("ulcer",)), Event(0, 60, ("colon", "polyp"))]
    full = score_events(truth, prediction)
    table = bootstrap_intervals(full, draws=300, seed=3)
    weights = np.random.default_rng(3).multinomial(12, np.full(12, 1 / 12), size=300)
    per_study = np.array(full.per_study[0])
    means = [np.mean(np.repeat(per_study, w)) for w in weights]
    assert table.loc["score mAP@0.5", ["low", "high"]].tolist() == pytest.approx(np.quantile(means, [0.025, 0.975]))
    assert table.loc["score mAP@0.5", "value"] == pytest.approx(full.score[0])
    assert table.loc["present labels only mAP@0.95", "value"] == pytest.approx(full.mean(present_only=True)[1])
    assert table.equals(bootstrap_intervals(full, draws=300, seed=3))
    assert np.isnan(table.loc["findings, present only mAP@0.5"]).all()  # no study has a finding


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    inside = 0
    for seed in range(200):
        table = bootstrap_intervals(score_events(*scattered(40, 0.6, seed), thresholds=(0.5,)), draws=400, seed=seed)
        low, high = table.loc["present labels only mAP@0.5", ["low", "high"]]
        inside += low <= 0.6 <= high
    assert 0.88 <= inside / 200 <= 0.99


def test_differences_are_paired():
    truth, prediction = scattered(30, 0.5)
    a, silent = score_events(truth, prediction), score_events(truth, {s: [] for s in truth})
    same = compare_reports(a, a)
    assert (same.loc["score mAP@0.5", ["difference", "low", "high"]] == 0).all() and not same["real"].any()
    gain = compare_reports(a, silent)
    assert gain.loc["score mAP@0.5", "real"] and gain.loc["score mAP@0.5", "low"] > 0
    back = compare_reports(silent, a)
    assert back.loc["score mAP@0.5", "difference"] == -gain.loc["score mAP@0.5", "difference"]
    assert back.loc["score mAP@0.5", "real"] and not gain.loc["findings mAP@0.5", "real"]
    with pytest.raises(ValueError, match="same truth"):
        compare_reports(a, score_events(*scattered(29, 0.5)))


def test_few_studies_prove_nothing():
    for n in (1, 2, 3, MIN_STUDIES - 1):
        truth, prediction = scattered(n, 1.1)
        assert not compare_reports(score_events(truth, prediction), score_events(truth, {s: [] for s in truth}))[
            "real"
        ].any()
    truth, prediction = scattered(1, 1.1)
    assert np.isnan(
        bootstrap_intervals(score_events(truth, prediction)).loc["score mAP@0.5", ["low", "high"]].astype(float)
    ).all()


# ------------------------------------------------------------------------------------------------- the real timelines


@pytest.fixture(scope="module")
def timelines():
    return read_events(TIMELINES / "galar_events.json.gz")


def only(events, names):
    kept = {s: [Event(a, b, tuple(n for n in labels if n in names)) for a, b, labels in e] for s, e in events.items()}
    return {s: [e for e in rows if e.labels] for s, rows in kept.items()}


@needs_timelines
def test_table_of_the_timelines(timelines):
    """The figures that the timelines' README gives, measured with the literal version."""

    def figures(prediction):
        return tuple(round(x, 3) for x in score_events(timelines, prediction).score)

    assert round(score_events(timelines, {s: [] for s in timelines}).score[1], 4) == 0.4243
    runs = {}
    for study, events in timelines.items():
        frame = np.arange(events[0].start, events[-1].end + 1)
        runs[study] = from_labels(frame, to_labels(frame, events))
    assert figures(only(runs, REGIONS)) == (0.541, 0.526)
    assert figures(only(runs, ANATOMY)) == (0.630, 0.608)
    assert figures(runs) == (0.823, 0.789)
    assert figures(timelines) == (1, 1)
    assert all(x == 1 for rows in score_events(timelines, timelines).per_study for x in rows)


@needs_timelines
def test_equals_reference_score_on_the_timelines(timelines, monkeypatch):
    monkeypatch.syspath_prepend(TIMELINES)
    reference = importlib.import_module("reference_score")
    rng = np.random.default_rng(0)
    small = [s for s in sorted(timelines) if len(timelines[s]) < 150][:40]  # the literal one takes its time
    truth, prediction = {s: timelines[s] for s in small}, {}
    for study in small:
        rows = []
        for a, b, labels in timelines[study]:
            cut = int(rng.integers(a, b + 1))
            pieces = [(a, b), (a, cut), (cut, b), (max(0, a - (b - a) // 30), b), (a, b + int(rng.integers(0, 4)))]
            rows += [Event(*pieces[i], labels) for i in rng.choice(len(pieces), rng.integers(0, 4))]
        prediction[study] = [rows[i] for i in rng.permutation(len(rows))]
    assert sum(map(len, prediction.values())) > 1000
    documents = [
        {
            "videos": [
                {"video_id": s, "events": [{"start": a, "end": b, "label": list(n)} for a, b, n in rows]}
                for s, rows in events.items()
            ]
        }
        for events in (truth, prediction)
    ]
    for threshold in (0.5, 0.95):
        expected = reference.score(*documents, threshold)
        assert score(truth, prediction, threshold) == expected
        assert 0.1 < expected[0] < 0.9


# ------------------------------------------------------------------------------------------------------- command line


@pytest.fixture
def files(tmp_path):
    write_events(tmp_path / "truth.json", TRUTH)
    write_events(tmp_path / "prediction.json", PREDICTED)
    write_events(tmp_path / "silent.json", {"b": [], "a": []})
    return tmp_path


def test_command_line_as_json_has_full_precision(files, capsys):
    assert command.main(["score", str(files / "truth.json"), str(files / "prediction.json"), "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    for threshold in (0.5, 0.95):
        overall, videos = literal_score(TRUTH, PREDICTED, threshold)
        assert out[f"mAP@{threshold}"] == overall
        assert {s: row[f"mAP@{threshold}"] for s, row in out["per video"].items()} == videos
    assert out["empty submission"]["mAP@0.5"] == pytest.approx(29 / 34)
    assert out["per label"]["colon"]["mAP@0.5"] == 0.5 and out["per label"]["ulcer"]["mAP@0.5 present"] == 1
    assert out["per label"]["mouth"]["mAP@0.5 present"] is None
    assert out["per video"]["a"]["AP"]["mAP@0.5"]["ulcer"] == 1
    assert out["reader"]["findings"]["false per hour"] is None


def test_command_line_as_table(files, capsys):
    options = [str(files / "truth.json"), str(files / "prediction.json"), "--versus", str(files / "silent.json")]
    assert command.main(["score", *options, "--bootstrap", "50", "--fps", "2"]) == 0
    text = capsys.readouterr().out
    for line in (
        "score",
        "0.9118",
        "empty submission",
        "present labels only",
        *LABELS,
        "difference to",
        "false per hour",
    ):
        assert line in text


@pytest.mark.parametrize("option", ["--bootstrap=-1", "--bootstrap=1000000000", "--fps=0", "--fps=nan", "--fps=x"])
def test_command_line_options_out_of_range(files, option, capsys):
    code = command.main(["score", str(files / "truth.json"), str(files / "prediction.json"), option])
    assert code == 2 and option.partition("=")[0] in capsys.readouterr().err


def test_command_line_refuses_in_one_line(files, capsys):
    (files / "bad.json").write_text('{"videos": [{"video_id": "a", "events": [{"start": 1, "end": 0, "label": []}]}]}')
    write_events(files / "fewer.json", {"a": [], "c": []})
    truth = str(files / "truth.json")
    for name, reason in {
        "bad.json": "bad.json: video a, event 1 (events[0]): start 1 comes after end 0",
        "fewer.json": "videos differ: the prediction lacks b; the truth does not have c",
        "none.json": "cannot be read: No such file or directory",
        ".": "cannot be read: Is a directory",
    }.items():
        for order in ((truth, str(files / name)), (str(files / name), truth)):
            assert command.main(["score", *order]) == 2
            captured = capsys.readouterr()
            assert captured.out == "" and captured.err.count("\n") == 1
            assert reason in captured.err or name == "fewer.json"
