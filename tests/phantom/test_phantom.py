"""The phantom data set: layouts as published, timelines shaped like Galar's, writing that resumes and refuses."""

import itertools
import json
from dataclasses import replace

import cv2
import numpy as np
import pandas as pd
import pytest

import phantom
from phantom import capsule, dataset, timelines
from phantom.lens import VIEW
from phantom.studies import LABELS_FOLDER
from rarevision import config as configs
from rarevision import event_files, events
from rarevision.errors import UserError
from rarevision.labels import ANATOMY, COLUMN, FINDINGS, LABELS, LANDMARKS, REGIONS
from rarevision.run import command

TINY = configs.Phantom(seed=3, pillcam=2, olympus=1, navicam=1, frames=50, size=64)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data set of four short studies: (folder, its plan)."""
    folder = tmp_path_factory.mktemp("phantom")
    facts = phantom.write_phantom(TINY, folder / "galar", folder / "test", folder / "truth.json", workers=1)
    train, test = phantom.plan(TINY)
    files = [*folder.rglob("*.PNG"), *folder.rglob("*.png")]
    assert len(files) == facts["frames"] and {cv2.imread(str(f)).shape for f in files} == {(64, 64, 3)}
    assert facts["studies"] == 4 and facts["rendered"] == facts["frames"] == sum(s.frames for s in train + test)
    return folder, train, test


@pytest.fixture
def flat(monkeypatch):
    """Frames of one colour instead of rendered ones, for what only concerns writing."""

    class Flat:
        def __init__(self, labels, system, seed, size):
            self.size, self.colour = size, 50 + seed[0]

        def frame(self, row):
            return np.full((self.size, self.size, 3), self.colour, np.uint8), dict.fromkeys(VIEW, 0)

    monkeypatch.setattr(capsule, "Journey", Flat)


# ------------------------------------------------------------------------------------------------------------ layouts


def test_pillcam_layout(data):
    folder, train, _ = data
    studies = [s for s in train if s.system == "pillcam"]
    assert {1 <= int(s.name) <= 38 or 61 <= int(s.name) <= 80 for s in studies} == {True}
    for study in studies:
        table = pd.read_csv(folder / "galar" / "20251215_Labels_Updated" / f"{study.name}.csv")
        assert table.shape == (study.frames, 27)
        assert table.columns[0] == "index" and table.columns[-1] == "frame" and set(LABELS) < set(table.columns)
        assert (table["frame"] == 5 * table["index"]).all() and (table["frame"].diff()[1:] == 5).all()
        files = sorted(p.name for p in (folder / "galar").glob(f"Galar_Frames_*/{study.name}/*"))
        assert files == [f"frame_{n:06d}.PNG" for n in table["frame"]]
        assert set(table["section"]) <= set(REGIONS)


def test_olympus_layout(data):
    folder, train, _ = data
    (study,) = [s for s in train if s.system == "olympus"]
    assert 39 <= int(study.name) <= 60
    table = pd.read_csv(folder / "galar" / "20251215_Labels_Updated" / f"{study.name}.csv")
    assert list(table.columns[:6]) == ["bubbles", "dirt", "no view", "reduced view", "good view", "index"]
    assert table.shape[1] == 32 and (table["frame"] == table["index"]).all()
    assert (table[["no view", "reduced view", "good view"]].sum(axis=1) == 1).all()


def test_navicam_layout(data):
    folder, _, (study,) = data
    table = pd.read_csv(folder / "test" / f"{study.name}.csv", sep=";")
    assert table.shape == (study.frames, 22) and table.columns[0] == "frame_file"
    assert table.iloc[:, 1:].isna().all(axis=None), "the test set has no labels"
    numbers = study.numbers()
    assert numbers[0] > 0 and (np.diff(numbers) == 1).all()
    assert list(table["frame_file"]) == [f"frame_{n:07d}.png" for n in numbers]
    assert sorted(p.name for p in (folder / "test" / study.name).iterdir()) == list(table["frame_file"])
    assert not [p for p in (folder / "test").rglob("*.json") if not p.is_relative_to(folder / "test" / dataset.MARKER)]


def test_sizes_of_the_systems():
    sizes = {"pillcam": 512, "olympus": 336, "navicam": 480}
    train, test = phantom.plan(configs.Phantom())
    assert {(s.system, s.size) for s in train + test} == set(sizes.items())
    labels = np.zeros((2, 17), np.uint8)
    labels[:, COLUMN["stomach"]] = 1
    for system, size in sizes.items():
        image, _ = capsule.Journey(labels, system, (1,)).frame(0)
        assert image.shape == (size, size, 3) and image.dtype == np.uint8


def test_metadata_has_stray_spaces(data):
    folder, train, _ = data
    table = pd.read_csv(folder / "galar" / "metadata.csv")
    assert list(table.columns) == ["File Name", "Capsule System", "Gender", "Age"]
    names, systems = table["File Name"].astype(str), table["Capsule System"]
    assert sorted(names.str.strip()) == sorted(s.name for s in train)
    assert (systems != systems.str.strip()).all()
    assert set(systems.str.strip()) == {"PillCam", "Olympus"}


def test_truth_is_the_grouping_of_the_labels(data):
    folder, _, (study,) = data
    truth = event_files.read_events(folder / "truth.json")
    rows = [tuple(np.array(LABELS)[row > 0]) for row in study.labels()]
    groups = [(names, len(list(g))) for names, g in itertools.groupby(rows)]
    assert [e.labels for e in truth[study.name]] == [names for names, _ in groups]
    assert [e.end - e.start + 1 for e in truth[study.name]] == [n for _, n in groups]
    assert truth[study.name][0].start == study.numbers()[0]


# ---------------------------------------------------------------------------------------------------------- timelines


@pytest.fixture(scope="module")
def drawn():
    train, test = phantom.plan(configs.Phantom())
    return [s.labels() for s in train], [s.labels() for s in test]


def test_every_label_in_two_training_studies(drawn):
    present = np.array([labels.any(0) for labels in drawn[0]])
    assert dict(zip(LABELS, present.sum(0) >= 2, strict=True)) == dict.fromkeys(LABELS, True)
    assert 0.35 < (~present).mean() < 0.5, "Galar's studies lack 0.424 of the labels on average"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("counts", [(3, 0), (2, 1), (6, 3), (12, 6)])
def test_every_label_for_other_sizes(seed, counts):
    train, _ = phantom.plan(configs.Phantom(seed=seed, pillcam=counts[0], olympus=counts[1], frames=60))
    present = np.array([study.labels().any(0) for study in train])
    assert (present.sum(0) >= 2).all(), [LABELS[i] for i in np.flatnonzero(present.sum(0) < 2)]
    assert [tuple(np.array(LABELS)[p]) for p in present] == [study.present for study in train]
    assert len({study.name for study in train}) == len(train)


def test_test_studies_are_partly_silent(drawn):
    absent = np.array([~labels.any(0) for labels in drawn[1]])
    assert (absent.mean(1) > 0.3).all() and (absent.mean(1) < 0.65).all()
    assert all(labels[:, [COLUMN[x] for x in FINDINGS]].any() for labels in drawn[1])


def test_one_region_a_frame_in_order(drawn):
    for labels in drawn[0] + drawn[1]:
        assert (labels[:, : len(REGIONS)].sum(1) == 1).all()
        region = labels[:, : len(REGIONS)].argmax(1)
        first = [np.flatnonzero(region == k)[0] for k in np.unique(region)]
        assert first == sorted(first)
        back = np.diff(region)[np.diff(region) < 0]
        assert set(back) <= {-1}, "only the pylorus is passed backwards"


def test_landmarks_lie_at_changes(drawn):
    sides = {"z-line": {1, 2}, "pylorus": {2, 3}, "ileocecal valve": {3, 4}}
    for labels in drawn[0] + drawn[1]:
        region = labels[:, : len(REGIONS)].argmax(1)
        for name in LANDMARKS:
            for first, last in events.runs(labels[:, COLUMN[name]] > 0):
                around = region[max(first - 1, 0) : last + 2]
                assert len(set(around)) == 2 and set(around) == sides[name]


def test_findings_lie_in_their_regions(drawn):
    for labels in drawn[0]:
        for name in FINDINGS:
            regions = {REGIONS[k] for k in labels[labels[:, COLUMN[name]] > 0, : len(REGIONS)].argmax(1)}
            allowed = set(timelines.HABITS[name].where)
            if name == "blood":
                allowed |= set(timelines.HABITS["active bleeding"].where)
            assert regions <= allowed


def test_imbalance_has_galars_order(drawn):
    galar = [2185, 2256, 254994, 1375918, 1878361, 122, 3183, 3692]  # positions, ANATOMY
    galar += [5325, 16803, 391715, 39105, 6228, 31773, 17660, 18415, 11428]  # FINDINGS
    ours = np.concatenate(drawn[0]).sum(0)
    rank = [np.argsort(np.argsort(x)) for x in (galar, ours)]
    assert np.corrcoef(rank)[0, 1] > 0.9
    assert ours[COLUMN["z-line"]] == ours.min() and ours.max() / ours.min() > 100
    assert (np.concatenate(drawn[0])[:, len(ANATOMY) :].mean(0)[[0, 1, 3, 4, 5, 6, 7, 8]] < 0.05).all(), "rare"


def test_event_lengths_are_galars(drawn):
    median = {"pylorus": 7, "ileocecal valve": 6, "active bleeding": 4.5, "angiectasia": 4, "blood": 8, "erosion": 5}
    median |= {"erythema": 5, "hematin": 6, "lymphangioectasis": 4, "polyp": 5, "ulcer": 4, "z-line": 2}
    for name, expected in median.items():
        spans = [events.runs(labels[:, COLUMN[name]] > 0) for labels in drawn[0]]
        lengths = np.concatenate([s[:, 1] - s[:, 0] + 1 for s in spans])
        assert 0.6 * expected <= np.median(lengths) <= 1.6 * expected, name


# ------------------------------------------------------------------------------------------------------------ writing


def written(folder):
    """What lies in a folder: relative name -> (content, modification time)."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


def places(folder):
    return folder / "galar", folder / "test", folder / "truth.json"


def test_same_seed_same_bytes(data, tmp_path):
    folder, train, _ = data
    phantom.write_study(tmp_path, train[0], {})
    for name, (content, _) in written(tmp_path / train[0].folder).items():
        assert content == (folder / "galar" / train[0].folder / name).read_bytes()


def test_rerun_keeps_resumes_and_rebuilds(flat, tmp_path):
    cfg = replace(TINY, frames=40, size=32)
    first = phantom.write_phantom(cfg, *places(tmp_path), workers=1)
    before = written(tmp_path)
    assert phantom.write_phantom(cfg, *places(tmp_path), workers=1)["rendered"] == 0 < first["rendered"]
    after = written(tmp_path)
    assert before == after, "nothing is touched, not even a modification time"

    study = phantom.plan(cfg)[0][1]
    next((tmp_path / "galar" / study.folder).iterdir()).unlink()
    assert phantom.write_phantom(cfg, *places(tmp_path), workers=1)["rendered"] == study.frames
    assert {k: v[0] for k, v in written(tmp_path).items() if "manifests" not in k} == {
        k: v[0] for k, v in before.items() if "manifests" not in k
    }

    smaller = replace(cfg, pillcam=1, seed=9)
    phantom.write_phantom(smaller, *places(tmp_path), workers=1)
    train, test = phantom.plan(smaller)
    frames = list(tmp_path.rglob("frame_*"))
    assert len(frames) == sum(s.frames for s in train + test), "no frame of the older data set is left"
    assert {cv2.imread(str(p))[0, 0, 0] for p in frames} == {50 + 9}
    tables = sorted(p.stem for p in (tmp_path / "galar" / LABELS_FOLDER).iterdir())
    assert tables == sorted(s.name for s in train)


def test_a_crash_leaves_no_half_study(flat, tmp_path, monkeypatch):
    cfg = replace(TINY, frames=40, size=32)
    render, calls = capsule.Journey.frame, itertools.count()

    def fails(self, row):
        if next(calls) == 60:
            raise KeyboardInterrupt
        return render(self, row)

    monkeypatch.setattr(capsule.Journey, "frame", fails)
    with pytest.raises(KeyboardInterrupt):
        phantom.write_phantom(cfg, *places(tmp_path), workers=1)
    train, _ = phantom.plan(cfg)
    first = max(train, key=lambda s: s.frames)
    seen = {s.name: len(list((tmp_path / "galar").glob(f"Galar_*/{s.name}/*"))) for s in train}
    assert seen == {s.name: s.frames if s is first else 0 for s in train}
    monkeypatch.setattr(capsule.Journey, "frame", render)
    facts = phantom.write_phantom(cfg, *places(tmp_path), workers=1)
    assert facts["rendered"] == facts["frames"] - first.frames


def test_foreign_folders_are_left_alone(flat, tmp_path):
    mine = tmp_path / "galar" / "Galar_Frames" / "1" / "frame_000005.PNG"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"a patient")
    with pytest.raises(UserError, match="no phantom data set"):
        phantom.write_phantom(TINY, *places(tmp_path), workers=1)
    assert set(written(tmp_path)) == {"galar/Galar_Frames/1/frame_000005.PNG"}


@pytest.mark.parametrize("truth", ["galar/truth.json", "test/truth.json"])
def test_truth_is_kept_apart(flat, tmp_path, truth):
    with pytest.raises(UserError, match="kept apart"):
        phantom.write_phantom(TINY, tmp_path / "galar", tmp_path / "test", tmp_path / truth, workers=1)
    assert not written(tmp_path)


def test_command_line(flat, tmp_path, capsys):
    options = ["--frames", "40", "--size", "32", "--pillcam", "2", "--olympus", "0", "--navicam", "1", "--workers", "1"]
    where = [f"--{name}={place}" for name, place in zip(("root", "test-root", "truth"), places(tmp_path), strict=True)]
    command.main(["phantom", *where, *options])
    n = len(list(tmp_path.rglob("frame_*")))
    assert f"3 studies, {n} frames, {n} rendered" in capsys.readouterr().out
    assert json.loads((tmp_path / "truth.json").read_text())["videos"][0]["events"]
    assert command.main(["phantom", *options]) == 2
    assert "say where" in capsys.readouterr().err
