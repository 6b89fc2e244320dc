"""Events: rows to events and back, and the strict reader of the challenge's JSON."""

import gzip
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rarevision.event_files import examine, parse, read_events, write_events
from rarevision.events import Event, EventsError, from_label_sets, from_labels, runs, to_labels
from rarevision.labels import COLUMN, LABELS


def table(text: dict[str, str]) -> np.ndarray:
    """Labels [T, 17] from strings such as {"mouth": "110"}."""
    labels = np.zeros((len(next(iter(text.values()))), len(LABELS)), np.uint8)
    for name, row in text.items():
        labels[:, COLUMN[name]] = [int(x) for x in row]
    return labels


@st.composite
def studies(draw):
    """Ascending frame numbers with gaps and labels that change now and then."""
    n = draw(st.integers(0, 30))
    frame = np.cumsum(draw(st.lists(st.integers(1, 4), min_size=n, max_size=n)), dtype=np.int64)
    pool = draw(st.lists(st.integers(0, 2**17 - 1), min_size=1, max_size=4))
    codes = np.array(draw(st.lists(st.sampled_from([0, *pool]), min_size=n, max_size=n)), np.int64)
    return frame, ((codes[:, None] >> np.arange(17)) & 1).astype(np.uint8)


def test_runs_by_hand():
    assert runs(np.array([1, 1, 0, 1, 0, 0, 1], bool)).tolist() == [[0, 1], [3, 3], [6, 6]]
    assert runs(np.zeros(4, bool)).tolist() == runs(np.zeros(0, bool)).tolist() == []
    assert runs(np.zeros(0, bool)).shape == (0, 2)


@given(st.lists(st.booleans(), max_size=40))
def test_runs_equal_groupby(mask):
    expected, row = [], 0
    for value, group in itertools.groupby(mask):
        n = len(list(group))
        expected += [[row, row + n - 1]] if value else []
        row += n
    assert runs(np.array(mask, bool)).tolist() == expected


def test_label_sets_by_hand():
    labels = table({"mouth": "1110000", "z-line": "0110100", "colon": "0000010"})
    frame = np.array([10, 11, 12, 20, 21, 22, 30])  # gaps after 12 and 22
    assert from_label_sets(frame, labels) == [
        Event(10, 10, ("mouth",)),
        Event(11, 19, ("mouth", "z-line")),  # up to the next frame - 1
        Event(21, 21, ("z-line",)),
        Event(22, 29, ("colon",)),
    ]
    with_empty = from_label_sets(frame, labels, empty=True)
    assert [e for e in with_empty if not e.labels] == [Event(20, 20, ()), Event(30, 30, ())]
    assert from_labels(frame, labels) == [
        Event(10, 19, ("mouth",)),
        Event(11, 19, ("z-line",)),
        Event(21, 21, ("z-line",)),
        Event(22, 29, ("colon",)),
    ]


@given(studies())
def test_label_sets_equal_a_loop(study):
    frame, labels = study
    expected = []
    for row, number in enumerate(frame.tolist()):
        names = tuple(name for name, on in zip(LABELS, labels[row], strict=True) if on)
        last = int(frame[row + 1]) - 1 if row + 1 < len(frame) else number
        if expected and expected[-1].labels == names:
            expected[-1] = Event(expected[-1].start, last, names)
        else:
            expected.append(Event(number, last, names))
    assert from_label_sets(frame, labels, empty=True) == expected
    assert from_label_sets(frame, labels) == [e for e in expected if e.labels]


@given(studies())
def test_events_give_the_labels_back(study):
    frame, labels = study
    assert np.array_equal(to_labels(frame, from_label_sets(frame, labels)), labels)
    single = from_labels(frame, labels)
    assert np.array_equal(to_labels(frame, single), labels)
    assert single == sorted(single, key=lambda e: (e.start, COLUMN[e.labels[0]]))
    assert len(single) == sum(len(runs(column)) for column in labels.T)


def test_to_labels_of_overlapping_and_outside_events():
    events = [Event(0, 11, ("colon",)), Event(11, 12, ("colon", "polyp", "polyp")), Event(50, 60, ("ulcer",))]
    labels = to_labels(np.array([10, 12, 13]), events)
    assert np.array_equal(labels, table({"colon": "110", "polyp": "010"}))
    assert labels.dtype == np.uint8 and to_labels(np.array([1]), []).sum() == 0


@pytest.mark.parametrize(
    ("frame", "labels"),
    [(np.arange(3), np.zeros((2, 17))), (np.arange(3), np.zeros((3, 16))), (np.array([1, 1]), np.zeros((2, 17)))],
)
def test_rows_that_make_no_study_are_refused(frame, labels):
    with pytest.raises(ValueError, match="frame must"):
        from_label_sets(frame, labels)
    with pytest.raises(ValueError, match="frame must"):
        from_labels(frame, labels)


names = st.lists(st.sampled_from(LABELS), max_size=3).map(tuple)
rows = st.tuples(st.integers(0, 2**31 - 100), st.integers(0, 99), names).map(lambda x: Event(x[0], x[0] + x[1], x[2]))
ids = st.text(st.characters(min_codepoint=33, exclude_categories=("C", "Z")), min_size=1, max_size=8)


@given(st.dictionaries(ids, st.lists(rows, max_size=6), max_size=4))
def test_files_round_trip(tmp_path_factory, events):
    path = tmp_path_factory.mktemp("events") / "events.json"
    write_events(path, events)
    assert read_events(path) == events
    assert list(read_events(path)) == list(events)
    assert {"video_id", "events"} >= {key for v in json.loads(path.read_text())["videos"] for key in v}


def test_numpy_numbers_are_written_as_integers(tmp_path):
    write_events(tmp_path / "a.json", {"1": [Event(np.int32(3), np.int64(4), ("mouth",))]})
    assert json.loads((tmp_path / "a.json").read_text())["videos"][0]["events"] == [
        {"start": 3, "end": 4, "label": ["mouth"]}
    ]
    with pytest.raises(TypeError):
        write_events(tmp_path / "a.json", {"1": [Event(3.0, 4, ("mouth",))]})
    with pytest.raises(EventsError, match="string 'mouth'"):
        write_events(tmp_path / "a.json", {"1": [Event(3, 4, "mouth")]})
    assert read_events(tmp_path / "a.json") == {"1": [Event(3, 4, ("mouth",))]}  # the old file stands


GOOD = '{"start": 1, "end": 2, "label": ["mouth"]}'


def document(event: str = GOOD, video: str = '"video_id": "a", ') -> str:
    return f'{{"videos": [{{{video}"events": [{GOOD}, {event}]}}]}}'


BAD = {
    "empty file": ("", "the file is empty"),
    "white space": (" \n", "the file is empty"),
    "no JSON": ("mouth 1 2", "not valid JSON"),
    "cut off": (document()[:-5], "not valid JSON"),
    "byte-order mark": ("\ufeff" + document(), "byte-order mark"),
    "NaN": (document(GOOD.replace("2", "NaN")), "NaN is not a JSON number"),
    "infinite": (document(GOOD.replace("2", "-Infinity")), "-Infinity is not a JSON number"),
    "digits without end": (document(GOOD.replace("2", "9" * 5000)), "not an events file"),
    "nested without end": ("[" * 200_000, "nested too deeply"),
    "list on top": ("[]", "the document must be an object with 'videos', not []"),
    "null on top": ("null", "the document must be an object"),
    "no videos": ("{}", "the document has no 'videos'"),
    "videos an object": ('{"videos": {"a": []}}', "'videos' must be a list"),
    "unknown key on top": ('{"videos": [], "vidoes": []}', "unknown key 'vidoes'; did you mean 'videos'?"),
    "video no object": ('{"videos": ["a"]}', "video 1 (videos[0]): the video must be an object"),
    "no video_id": (document(video=""), "video 1 (videos[0]): the video has no 'video_id'"),
    "video_id a number": (document(video='"video_id": 7, '), "'video_id' must be a printable, non-empty string, not 7"),
    "video_id empty": (document(video='"video_id": "", '), "'video_id' must be a printable, non-empty string"),
    "video_id with a line": (document(video='"video_id": "a\\nb", '), "'video_id' must be a printable"),
    "video_id half a character": (document(video='"video_id": "\\ud800", '), "'video_id' must be a printable"),
    "no events": ('{"videos": [{"video_id": "a"}]}', "video a: the video has no 'events'"),
    "events null": ('{"videos": [{"video_id": "a", "events": null}]}', "video a: 'events' must be a list, not None"),
    "video twice": (
        '{"videos": [{"video_id": "a", "events": []}, {"video_id": "a", "events": []}]}',
        "video a: video_id 'a' is there a second time, as video 2 (videos[1])",
    ),
    "key twice": (document(GOOD.replace('"end"', '"start": 1, "end"')), "the event names 'start' twice"),
    "event no object": (document("[1, 2]"), "video a, event 2 (events[1]): the event must be an object"),
    "no start": (document('{"end": 2, "label": []}'), "event 2 (events[1]): the event has no 'start'"),
    "misspelt key": (
        document('{"start": 1, "end": 2, "labels": []}'),
        "event 2 (events[1]): the event has an unknown key 'labels'; did you mean 'label'?",
    ),
    "a score": (
        document(GOOD[:-1] + ', "score": 0.5}'),
        "the event has an unknown key 'score'; known: start, end, label",
    ),
    "float": (document(GOOD.replace("2", "2.0")), "event 2 (events[1]): 'end' must be an integer, not 2.0"),
    "exponent": (document(GOOD.replace("2", "1e999")), "'end' must be an integer, not inf"),
    "boolean": (document(GOOD.replace("1", "true")), "event 2 (events[1]): 'start' must be an integer, not True"),
    "string bound": (document(GOOD.replace("1", '"1"')), "'start' must be an integer, not '1'"),
    "null bound": (document(GOOD.replace("1", "null")), "'start' must be an integer, not None"),
    "negative": (document(GOOD.replace("1", "-1")), "'start' = -1 is not a frame number (0..2147483647)"),
    "too large": (document(GOOD.replace("2", str(2**31))), "'end' = 2147483648 is not a frame number"),
    "backwards": (document(GOOD.replace("1", "3")), "event 2 (events[1]): start 3 comes after end 2"),
    "label a string": (
        document(GOOD.replace('["mouth"]', '"mouth"')),
        "event 2 (events[1]): 'label' must be a list of names, not 'mouth'; write ['mouth']",
    ),
    "label null": (document(GOOD.replace('["mouth"]', "null")), "'label' must be a list of names, not None"),
    "label a number": (document(GOOD.replace('"mouth"', "3")), "label 3 is not a string"),
    "label a list": (document(GOOD.replace('"mouth"', '["mouth"]')), "label ['mouth'] is not a string"),
    "label misspelt": (
        document(GOOD.replace("mouth", "lymphangiectasia")),
        "unknown label 'lymphangiectasia'; did you mean 'lymphangioectasis'?",
    ),
    "label in capitals": (document(GOOD.replace("mouth", "Small_Intestine")), "did you mean 'small intestine'?"),
    "label unknown": (document(GOOD.replace("mouth", "xqw")), "unknown label 'xqw'; known: mouth, esophagus"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_file_that_does_not_fit_is_refused_with_the_place(tmp_path, fault):
    text, reason = BAD[fault]
    path = tmp_path / "events.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(EventsError) as caught:
        read_events(path)
    assert str(caught.value).startswith(f"{path}: ") and reason in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{\x00}\x00")
    (tmp_path / "torn.json.gz").write_bytes(gzip.compress(b'{"videos": []}')[:-6])
    (tmp_path / "plain.json.gz").write_text('{"videos": []}')
    for name in ("missing.json", "bytes.json", "torn.json.gz", "plain.json.gz", "."):
        with pytest.raises(EventsError, match=r"cannot be read|not UTF-8"):
            read_events(tmp_path / name)


def test_what_the_metric_defines_is_accepted():
    """Unsorted, overlapping and doubled events, empty label lists, a label twice in one event."""
    rows = [(9, 9, ["mouth"]), (1, 9, ["mouth"]), (1, 9, ["mouth"]), (0, 0, []), (2, 3, ["ulcer", "ulcer"])]
    listed = [{"start": s, "end": e, "label": names} for s, e, names in rows]
    events, faults = examine({"videos": [{"video_id": "a", "events": listed}]})
    assert not faults and events == {"a": [Event(s, e, tuple(names)) for s, e, names in rows]}


def test_every_fault_is_listed_once_with_its_event():
    bad = [{"start": 5, "end": "4", "label": "mouth"}, json.loads(GOOD), {"start": 3, "end": 1, "label": ["moth", 3]}]
    events, faults = examine({"videos": [{"video_id": "a", "events": bad}, {"events": [{}]}]})
    assert events == {"a": [Event(1, 2, ("mouth",))]}
    assert [(f.video, f.event) for f in faults] == [("a", 1)] * 2 + [("a", 3)] * 3 + [
        ("2 (videos[1])", None),
        *[("2 (videos[1])", 1)] * 3,
    ]


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(LABELS)
keys = st.sampled_from(["videos", "video_id", "events", "start", "end", "label"]) | st.text(max_size=3)
anything = st.recursive(
    scalars, lambda x: st.lists(x, max_size=4) | st.dictionaries(keys, x, max_size=4), max_leaves=20
)


@given(anything)
def test_any_json_is_examined_without_a_crash(value):
    events, faults = examine(value)
    assert all(str(fault) for fault in faults)
    assert faults or {v["video_id"] for v in value["videos"]} == events.keys()


@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused_in_words(data):
    try:
        parse(data)
    except EventsError as error:
        assert str(error)
