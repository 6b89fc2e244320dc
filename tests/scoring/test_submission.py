"""The validator: every kind of fault is listed with its place, and nothing is written but through it."""

import copy
import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rarevision.event_files import read_events
from rarevision.events import Event
from rarevision.labels import LABELS
from rarevision.run import command
from rarevision.scoring.submission import SubmissionError, check_submission, find_faults, write_submission

FRAMES = {"navi_1": np.arange(49, 80), "navi_2": (371, 400)}


def good() -> dict:
    rows = [(49, 58, ["mouth"]), (59, 79, ["stomach", "polyp"]), (60, 60, ["ulcer"]), (60, 61, ["ulcer"])]
    events = [{"start": s, "end": e, "label": names} for s, e, names in rows]
    return {"videos": [{"video_id": "navi_1", "events": events}, {"video_id": "navi_2", "events": []}]}


def test_a_good_document_passes():
    events, faults = find_faults(good(), FRAMES)
    assert faults == [] and list(events) == ["navi_1", "navi_2"] and len(events["navi_1"]) == 4
    document = good()
    document["videos"].reverse()  # in any order
    document["videos"][0]["events"] = [{"start": 371, "end": 400, "label": []}]  # no label, as the organisers write it
    assert find_faults(document, FRAMES)[1] == []


def video(number: int = 0, **changes):
    def change(document):
        document["videos"][number].update(changes)

    return change


def event(number: int = 2, **changes):
    def change(document):
        document["videos"][0]["events"][number].update(changes)

    return change


def without(key: str):
    def change(document):
        del document["videos"][0]["events"][2][key]

    return change


# What is done to the good document -> (video, event number, part of the reason)
FAULTS = {
    "video missing": (lambda d: d["videos"].pop(), ("navi_2", None, "missing: the test set has this video")),
    "video unknown": (
        lambda d: d["videos"].append({"video_id": "navi_9", "events": []}),
        ("navi_9", None, "'navi_9' is not a video of the test set"),
    ),
    "video twice": (
        lambda d: d["videos"].append({"video_id": "navi_2", "events": []}),
        ("navi_2", None, "'navi_2' is there a second time, as video 3 (videos[2])"),
    ),
    "video without events": (lambda d: d["videos"][1].pop("events"), ("navi_2", None, "the video has no 'events'")),
    "events an object": (video(1, events={}), ("navi_2", None, "'events' must be a list, not {}")),
    "unknown key in video": (video(1, fps=2), ("navi_2", None, "unknown key 'fps'; known: video_id, events")),
    "unknown key on top": (lambda d: d.update(team="x"), ("", None, "the document has an unknown key 'team'")),
    "unknown key in event": (event(score=0.5), ("navi_1", 3, "unknown key 'score'")),
    "event a list": (
        lambda d: d["videos"][0]["events"].insert(2, [60, 60, "ulcer"]),
        ("navi_1", 3, "the event must be an object with 'start', 'end', 'label'"),
    ),
    "no start": (without("start"), ("navi_1", 3, "the event has no 'start'")),
    "no end": (without("end"), ("navi_1", 3, "the event has no 'end'")),
    "no label": (without("label"), ("navi_1", 3, "the event has no 'label'")),
    "label a string": (
        event(label="ulcer"),
        ("navi_1", 3, "'label' must be a list of names, not 'ulcer'; write ['ulcer']"),
    ),
    "label misspelt": (event(label=["lymphangiectasis"]), ("navi_1", 3, "did you mean 'lymphangioectasis'?")),
    "label in capitals": (event(label=["Z_Line"]), ("navi_1", 3, "unknown label 'Z_Line'; did you mean 'z-line'?")),
    "label a number": (event(label=[3]), ("navi_1", 3, "label 3 is not a string")),
    "label null": (event(label=None), ("navi_1", 3, "'label' must be a list of names, not None")),
    "label twice": (event(label=["ulcer", "polyp", "ulcer"]), ("navi_1", 3, "label 'ulcer' is named twice")),
    "bound a float": (event(start=60.0), ("navi_1", 3, "'start' must be an integer, not 60.0")),
    "bound a boolean": (event(end=True), ("navi_1", 3, "'end' must be an integer, not True")),
    "bound a string": (event(end="60"), ("navi_1", 3, "'end' must be an integer, not '60'")),
    "bound null": (event(end=None), ("navi_1", 3, "'end' must be an integer, not None")),
    "bound negative": (event(start=-1), ("navi_1", 3, "'start' = -1 is not a frame number")),
    "bound enormous": (event(end=10**30), ("navi_1", 3, "is not a frame number")),
    "backwards": (event(start=61), ("navi_1", 3, "start 61 comes after end 60")),
    "before the first frame": (event(start=48), ("navi_1", 3, "frames 48..60 reach outside the study's 49..79")),
    "after the last frame": (event(end=80), ("navi_1", 3, "frames 60..80 reach outside the study's 49..79")),
    "event twice": (event(3, end=60), ("navi_1", 4, "'ulcer' at frames 60..60 is already event 3")),
    "event twice in part": (
        event(3, start=59, end=79, label=["ulcer", "polyp"]),
        ("navi_1", 4, "'polyp' at frames 59..79 is already event 2"),
    ),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_each_kind_of_fault_is_listed_once_with_its_place(kind):
    change, (study, number, reason) = FAULTS[kind]
    document = good()
    change(document)
    _, faults = find_faults(document, FRAMES)
    assert len(faults) == 1, [str(f) for f in faults]
    assert (faults[0].video, faults[0].event) == (study, number) and reason in faults[0].reason
    text = str(faults[0])
    assert study in text and (number is None or f"event {number} (events[{number - 1}])" in text)


@pytest.mark.parametrize("value", [None, [], "x", 3, {"videos": None}, {"videos": [None, {}, {"video_id": 3}]}])
def test_other_documents_are_faults_too(value):
    assert find_faults(value, FRAMES)[1]


def test_all_faults_at_once():
    document = good()
    for kind in ("video unknown", "label a string", "unknown key on top"):
        FAULTS[kind][0](document)
    event(0, start=50.5, end=99, label=["moth", "mouth"])(document)
    faults = find_faults(document, FRAMES)[1]
    assert [(f.video, f.event) for f in faults] == [
        ("", None),
        ("navi_1", 1),
        ("navi_1", 1),
        ("navi_1", 3),
        ("navi_9", None),
    ]


def test_videos_are_listed_in_file_order():
    ids = [f"other {i}" for i in range(20)]
    faults = find_faults({"videos": [{"video_id": i, "events": []} for i in ids]}, FRAMES)[1]
    assert [f.video for f in faults] == [*ids, "navi_1", "navi_2"]


def test_nearest_video_is_named():
    document = good()
    document["videos"][0]["video_id"] = "navi1"
    reasons = [f.reason for f in find_faults(document, FRAMES)[1]]
    assert "'navi1' is not a video of the test set; did you mean 'navi_1'?" in reasons and len(reasons) == 2


valid = st.fixed_dictionaries(
    {
        study: st.lists(
            st.builds(
                lambda a, b, names: Event(min(a, b), max(a, b), tuple(names)),
                st.integers(int(span[0]), int(span[-1])),
                st.integers(int(span[0]), int(span[-1])),
                st.lists(st.sampled_from(LABELS), min_size=1, max_size=3, unique=True),
            ),
            max_size=8,
            unique_by=lambda e: (e.start, e.end),
        )
        for study, span in FRAMES.items()
    }
)


@given(valid)
def test_valid_events_are_written_and_read_back(tmp_path_factory, events):
    path = tmp_path_factory.mktemp("submission") / "name.v1.json"
    manifest = write_submission(path, events, FRAMES, {"config": "demo"})
    assert read_events(path) == events and check_submission(path, FRAMES) == (events, [])
    facts = json.loads(manifest.read_text())
    assert manifest.name == "name.v1.manifest.json" and facts["file"] == path.name
    assert facts["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert facts["notes"] == {"config": "demo"} and facts["frames"]["navi_2"] == [371, 400]
    assert sum(facts["events per label"].values()) == sum(len(e.labels) for rows in events.values() for e in rows)
    assert {p.name for p in path.parent.iterdir()} == {path.name, manifest.name}


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ({"navi_1": []}, "video navi_2: missing"),
        ({"navi_1": [Event(1, 2, ("mouth",))], "navi_2": []}, r"video navi_1, event 1 .*: frames 1\.\.2 reach outside"),
        ({"navi_1": [Event(50, 51, "mouth")], "navi_2": []}, "labels must be a tuple of names"),
        ({"navi_1": [Event(50.0, 51, ("mouth",))], "navi_2": []}, "float"),
        ({"navi_1": [Event(50, 51, ("Mouth",))], "navi_2": []}, "did you mean 'mouth'"),
        ({"navi_1": [Event(50, 51, (7,))], "navi_2": []}, "label 7 is not a string"),
        ({"navi_1": [], "navi_2": [], 3: []}, "printable, non-empty string"),
    ],
)
def test_nothing_is_written_past_the_validator(tmp_path, events, reason):
    path = tmp_path / "s.json"
    write_submission(path, {"navi_1": [Event(49, 79, ("colon",))], "navi_2": []}, FRAMES)
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(SubmissionError, match=reason) as caught:
        write_submission(path, events, FRAMES)
    assert caught.value.faults
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_notes_that_json_cannot_hold_leave_nothing(tmp_path):
    for notes, error in (({"x": float("nan")}, ValueError), ({"x": object()}, TypeError)):
        with pytest.raises(error):
            write_submission(tmp_path / "s.json", {"navi_1": [], "navi_2": []}, FRAMES, notes)
    with pytest.raises(ValueError, match="study a has no frames"):
        write_submission(tmp_path / "s.json", {"a": []}, {"a": np.array([], int)})
    assert not list(tmp_path.iterdir())


# --- hostile input: whatever is done to a good document, there is a list of faults and never a crash

junk = st.sampled_from(
    [None, True, -1, 10**40, 0.5, float("inf"), "", "mouth", "\ud800", "\n", [], {}, [[]], [None], [{}]]
)


@given(st.lists(st.tuples(st.integers(0, 200), junk, st.booleans()), min_size=1, max_size=4))
def test_mutated_documents_never_crash(changes):
    document = copy.deepcopy(good())
    for where, value, drop in changes:
        places, todo = [], [document]
        while todo:
            node = todo.pop()
            items = list(node.items() if isinstance(node, dict) else enumerate(node))
            places += [(node, key) for key, _ in items]
            todo += [child for _, child in items if isinstance(child, dict | list)]
        if not places:
            break
        node, key = places[where % len(places)]
        if drop:
            del node[key]
        else:
            node[key] = copy.deepcopy(value)
    events, faults = find_faults(document, FRAMES)
    for fault in faults:
        assert 0 < len(str(fault)) < 600 and "\n" not in str(fault)
        str(fault).encode()
    if not faults:  # then the mutations must have left a valid submission
        assert events.keys() == FRAMES.keys()
        assert all(type(e.start) is int and set(e.labels) <= set(LABELS) for rows in events.values() for e in rows)


# ------------------------------------------------------------------------------------------------------- command line


@pytest.fixture
def root(tmp_path):
    for study, numbers in FRAMES.items():
        folder = tmp_path / "test" / "exams" / study
        folder.mkdir(parents=True)
        for number in (min(numbers), max(numbers)):
            Image.new("RGB", (2, 2)).save(folder / f"frame_{number:07d}.png")
    return tmp_path / "test"


def test_check_says_ok(root, capsys):
    path = root.parent / "s.json"
    path.write_text(json.dumps(good()))
    assert command.main(["check", str(path), "--frames", str(root)]) == 0
    assert capsys.readouterr().out == f"OK: {path}: 2 videos, 4 events (mouth 1, stomach 1, polyp 1, ulcer 2)\n"


def test_check_lists_every_fault(root, capsys):
    path = root.parent / "s.json"
    document = good()
    event(0, start=48)(document)
    event(2, label="ulcer")(document)
    path.write_text(json.dumps(document))
    assert command.main(["check", str(path), "--frames", str(root)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{path}: video navi_1, event 1 (events[0]): frames 48..58 reach outside the study's 49..79"
    assert out[1].startswith(f"{path}: video navi_1, event 3 (events[2]): 'label' must be a list")
    assert out[2:] == [f"2 faults in {path}"]


@pytest.mark.parametrize(
    "data", [b"", b"\xff\x00", b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"videos": NaN}', b"{'videos': []}"]
)
def test_check_of_what_is_no_json_is_one_fault(root, capsys, data):
    path = root.parent / "s.json"
    path.write_bytes(data)
    assert command.main(["check", str(path), "--frames", str(root)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2 and out[0].startswith(f"{path}: ") and out[1] == f"1 fault in {path}"


def test_check_without_file_or_frames(root, capsys):
    assert command.main(["check", str(root / "none.json"), "--frames", str(root)]) == 1
    assert "cannot be read: No such file" in capsys.readouterr().out
    assert command.main(["check", str(root), "--frames", str(root)]) == 1
    assert "cannot be read: Is a directory" in capsys.readouterr().out
    (root.parent / "nothing").mkdir()
    for frames in ("nothing", "nowhere"):
        assert command.main(["check", str(root / "s.json"), "--frames", str(root.parent / frames)]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith("error: the test frames cannot be read: ")
