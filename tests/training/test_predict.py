import errno
import itertools
import json
import operator
import os
import shutil
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from rarevision import scores
from rarevision.config import Data
from rarevision.data import DataError, FrameError, open_reader
from rarevision.data.frames import SourceReader
from rarevision.data.image import square
from rarevision.files import write_json
from rarevision.labels import N_LABELS
from rarevision.model.frame_model import Output
from rarevision.run import command
from rarevision.scores import read_labels, read_probs
from rarevision.training import checkpoint, launch, predict
from rarevision.training import folds as training
from rarevision.training.forward import score_batches, workers
from rarevision.training.predict import PredictError, deal


class MeanColour(nn.Module):
    """Logits are multiples of the mean of the red channel's left half: they know mirror images and rows."""

    image_size = 32

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor, self.calls = factor, 0

    def forward(self, images):
        self.calls += 1
        value = self.factor * images[:, 0, :, :16].float().mean((1, 2)) / 255
        return Output(value[:, None].expand(-1, N_LABELS), None, value[:, None].expand(-1, 8))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return tiny.make(tmp_path_factory.mktemp("tiny")).but(predict={"batch_size": 10})  # batches cross studies


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    """A run with two folds trained for one epoch."""
    run = world.run_dir(tmp_path_factory.mktemp("run"))
    world.index.save(run / launch.TEST_INDEX)
    settings = world.but(train={"epochs": 1})
    training.train_folds(settings.config, world.index, world.reader, world.splits, world.text, run, progress=False)
    return run


def read_embeddings(path):
    with np.load(path) as archive:
        return archive["embeddings"] if "embeddings" in archive.files else None


def run(world, models, out, studies=None, **options):
    studies = world.index.studies if studies is None else studies
    return predict.predict_studies(
        models, world.index, world.reader, studies, out, world.config, progress=False, **options
    )


def expected(world, study, factor=1.0):

    rows = world.index.rows(study)
    values = [square(world.reader.read(r), 32)[:, :16, 0].mean() / 255 for r in range(rows.start, rows.stop)]
    return 1 / (1 + np.exp(-factor * np.array(values)))


def test_each_study_gets_its_own_rows_and_the_mean_of_the_models(world, tmp_path):
    models = [MeanColour(1), MeanColour(-3)]
    out, labels = tmp_path / "probs", tmp_path / "labels"
    found = run(world, models, out, labels_dir=labels)
    assert [m.calls for m in models] == [10, 10]  # 96 frames in batches of 10, once per model
    for study in world.index.studies:
        frame, probs = read_probs(out / f"{study}.npz")
        assert np.array_equal(frame, world.index.frame[world.index.rows(study)])
        mean = (expected(world, study, 1) + expected(world, study, -3)) / 2
        np.testing.assert_allclose(probs, np.repeat(mean[:, None], N_LABELS, 1), atol=1e-5)
        assert read_embeddings(out / f"{study}.npz").shape == (24, 8)
        assert np.array_equal(read_labels(labels / f"{study}.npz")[1], world.index.labels[world.index.rows(study)])
        assert found[study]["frames"] == 24
        assert found[study]["bad"] == []
    assert not list(out.glob(".*"))  # no scratch file is left


def test_every_nth_frame_without_embeddings(world, tmp_path):
    settings = world.but(predict={"step": 5, "embeddings": False})
    run(settings, [MeanColour()], tmp_path, ["3"])
    frame, probs = read_probs(tmp_path / "3.npz")
    assert frame.tolist() == [0, 25, 50, 75, 100]
    np.testing.assert_allclose(probs[:, 0], expected(world, "3")[::5], atol=1e-5)
    assert read_embeddings(tmp_path / "3.npz") is None


def test_flips_are_the_mean_over_mirror_images():
    image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    image[:, 0, :, :16] = 255  # left half red: 1 as it is and upside down, 0 mirrored
    batch = [(image, torch.zeros(1, N_LABELS), torch.tensor([0]), [""])]
    (plain,) = score_batches([MeanColour()], batch, torch.device("cpu"))
    (mean,) = score_batches([MeanColour()], batch, torch.device("cpu"), flips=True, embeddings=True)
    one, zero = 1 / (1 + np.exp(-1)), 0.5
    assert plain.probs[0, 0] == pytest.approx(one)
    assert mean.probs[0, 0] == pytest.approx((2 * one + 2 * zero) / 4)
    assert mean.embeddings[0, 0] == pytest.approx(0.5)


def test_finished_studies_are_kept_until_something_changes(world, tmp_path):
    run(world, [MeanColour()], tmp_path, ["1", "2"], identity="a")
    again = MeanColour()
    run(world, [again], tmp_path, ["1", "2", "3"], identity="a")
    assert again.calls == 3  # only study 3's 24 frames
    for change, studies in (
        ({"identity": "b"}, 2),  # other models
        ({"identity": "b", "labels_dir": tmp_path / "labels"}, 2),  # labels asked for
    ):
        model = MeanColour()
        run(world, [model], tmp_path, ["1", "2"], **change)
        assert model.calls == -(-24 * studies // 10)
    (tmp_path / "1.npz").write_bytes(b"torn")
    path = world.index.path(world.index.rows("2").start)
    path.write_bytes(path.read_bytes())  # a frame written again: another time
    model = MeanColour()
    run(world, [model], tmp_path, ["1", "2"], identity="b", labels_dir=tmp_path / "labels")
    assert model.calls == 5


def test_an_interrupted_prediction_keeps_what_is_done(world, tmp_path):
    class Dying(MeanColour):
        def forward(self, images):
            if self.calls == 6:
                raise RuntimeError("killed")
            return super().forward(images)

    with pytest.raises(RuntimeError, match="killed"):
        run(world, [Dying()], tmp_path)
    assert sorted(p.stem for p in tmp_path.glob("*.npz")) == ["1", "2"]  # 60 frames seen: two studies of 24
    assert not list(tmp_path.glob(".*"))
    model = MeanColour()
    run(world, [model], tmp_path)
    assert model.calls == 5
    run(world, [MeanColour()], tmp_path / "whole")
    for study in world.index.studies:
        assert np.array_equal(
            read_probs(tmp_path / f"{study}.npz")[1], read_probs(tmp_path / "whole" / f"{study}.npz")[1]
        )


class Holes(SourceReader):
    """A reader some of whose frames cannot be decoded."""

    def __init__(self, world, bad):
        super().__init__(world.index, world.config.data)
        self.holes = bad

    def read(self, row):
        if row in self.holes:
            raise FrameError(self.index.path(row), "truncated")
        return super().read(row)


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_frames_stop_the_run_or_take_their_neighbours_scores(world, tmp_path, workers):
    start = world.index.rows("2").start
    holes = {start, start + 10, start + 11, start + 12, start + 23}
    broken = tiny.replace(world.but(data={"workers": workers}), reader=Holes(world, holes))
    with pytest.raises(PredictError, match=r"study 2: 5 of 24 frames cannot be decoded") as error:
        run(broken, [MeanColour()], tmp_path)
    assert str(error.value).count("truncated") == 5
    assert "frame_000050.png: truncated" in str(error.value)
    assert (tmp_path / "1.npz").exists()
    assert not (tmp_path / "2.npz").exists()
    allowed = broken.but(data={"max_bad_share": 0.25, "workers": workers})
    found = run(allowed, [MeanColour()], tmp_path)
    assert [b["frame"] for b in found["2"]["bad"]] == [0, 50, 55, 60, 115]
    probs, truth = read_probs(tmp_path / "2.npz")[1][:, 0], expected(world, "2")
    source = list(range(24))
    for bad, good in ((0, 1), (10, 9), (11, 9), (12, 13), (23, 22)):  # of two as near, the earlier
        source[bad] = good
    np.testing.assert_allclose(probs, truth[source], atol=1e-5)
    np.testing.assert_allclose(read_embeddings(tmp_path / "2.npz")[:, 0], np.log(probs / (1 - probs)), atol=2e-3)


def test_a_frame_or_a_folder_that_vanishes_mid_run(world, tmp_path):
    path = world.index.path(world.index.rows("3").start + 5)
    kept = path.read_bytes()
    path.unlink()
    try:
        with pytest.raises(PredictError, match=rf"(?s)study 3: 1 of 24 frames cannot .*{path.name}: vanished"):
            run(world, [MeanColour()], tmp_path)
        assert sorted(p.stem for p in tmp_path.glob("*.npz")) == ["1", "2"]
        (bad,) = run(world.but(data={"max_bad_share": 0.1}), [MeanColour()], tmp_path)["3"]["bad"]
        assert bad["frame"] == 25 and "vanished" in bad["reason"]
    finally:
        path.write_bytes(kept)
    path.parent.rename(path.parent.with_name("away"))
    try:
        with pytest.raises(PredictError, match=r"Galar_Frames/3: No such file.*stage 01"):
            run(world, [MeanColour()], tmp_path)
    finally:
        path.parent.with_name("away").rename(path.parent)


@pytest.mark.parametrize("where", ["predict.os.posix_fallocate", "predict.scores.write_probs"])
def test_a_full_disk_is_named_and_finished_studies_kept(world, tmp_path, monkeypatch, where):
    module, _, name = where.rpartition(".")
    real, calls = operator.attrgetter(where.removeprefix("predict."))(predict), []

    def full(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(f"rarevision.training.{module}.{name}", full)
    with pytest.raises(PredictError, match=r"3\.npz: disk full; finished studies are kept"):
        run(world, [MeanColour()], tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.json", "1.npz", "2.json", "2.npz"]


def test_ctrl_c_keeps_finished_studies(world, trained, tmp_path, monkeypatch, capsys):
    shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("probs", "labels"))
    write_json(tmp_path / "run.json", world.config.as_dict())
    real, stop = SourceReader.read, world.index.rows("4").start + 20

    def read(self, row):
        if row == stop:
            raise KeyboardInterrupt
        return real(self, row)

    monkeypatch.setattr(SourceReader, "read", read)
    assert command.main(["predict", "--config", str(tmp_path / "run.json"), "--run-dir", str(tmp_path / "run")]) == 130
    assert capsys.readouterr().err.strip().endswith("stopped; the same command goes on where it was")
    done = sorted(p.relative_to(tmp_path / "run/probs").as_posix() for p in (tmp_path / "run/probs").rglob("*.npz"))
    assert done and not any(name.endswith("/4.npz") for name in done)
    assert not list((tmp_path / "run").rglob(".*"))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_cache_is_one_line_that_names_the_tar(world, tmp_path, workers):
    data = {"cache": True, "cache_root": str(tmp_path / "cache"), "workers": workers}
    settings = world.but(data=data)
    cache = open_reader(world.index, settings.config.data, progress=False)
    with open(cache.folder / "2.tar", "r+b") as tar:
        tar.truncate(1024)
    with pytest.raises(DataError, match=r"2\.tar: damaged at the frame of .*; delete the tar") as error:
        run(tiny.replace(settings, reader=cache), [MeanColour()], tmp_path / "probs")
    assert len(str(error.value).splitlines()) == 1


def test_memory_is_flat_in_the_studys_length(tmp_path):
    """What a study keeps in memory is its 17 scores; 512 embeddings a frame, 15 times as much, wait on disk."""
    rows, batch = np.arange(50_000), 1000
    features, probs = np.ones((batch, 512), np.float16), np.zeros((batch, N_LABELS), np.float32)
    tracemalloc.start()
    try:
        batches = (zip(probs, features, [""] * batch, strict=True) for _ in range(0, len(rows), batch))
        study = predict.collect(itertools.chain.from_iterable(batches), len(rows), tmp_path)
        scores.write_probs(tmp_path / "a.npz", rows, study.probs, study.embeddings)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 25e6 < 50_000 * 512 * 2
    with np.load(tmp_path / "a.npz") as written:
        assert written["embeddings"].shape == (50_000, 512) and (written["embeddings"] == 1).all()


def test_out_of_fold_each_study_is_scored_by_the_model_that_never_saw_it(world, trained, tmp_path):
    manifests = training.predict_folds(
        world.config, world.index, world.reader, world.splits, trained, (world.index, world.reader), False
    )
    assert sorted(manifests) == ["oof", "test"]
    models = [predict.load_model(trained, k)[0] for k in (0, 1)]
    for study, k in world.splits.folds.items():
        run(world, [models[k]], tmp_path / "own", [study])
        run(world, models, tmp_path / "both", [study])
        for part, folder in (("oof", "own"), ("test", "both")):
            got = read_probs(trained / "probs" / part / f"{study}.npz")[1]
            np.testing.assert_allclose(got, read_probs(tmp_path / folder / f"{study}.npz")[1], atol=1e-6)
        assert not np.allclose(
            read_probs(tmp_path / "own" / f"{study}.npz")[1],
            read_probs(tmp_path / "both" / f"{study}.npz")[1],
            atol=1e-6,
        )
    assert len(scores.read_studies(trained / "probs/oof", trained / "labels/oof")) == 4
    manifest = json.loads((trained / "probs/oof/manifest.json").read_text())
    assert manifest["frames"] == 96
    assert manifest["bad_frames"] == 0


def test_another_test_set_is_listed_alone(world, trained):
    for studies in (["1", "2"], ["3"]):
        some = world.index.select(studies)
        reader = SourceReader(some, world.config.data)
        training.predict_folds(world.config, world.index, world.reader, world.splits, trained, (some, reader), False)
        manifest = json.loads((trained / "probs/test/manifest.json").read_text())
        assert list(manifest["studies"]) == studies


def test_scores_are_of_the_averaged_weights_of_the_best_epoch(world, trained):
    model, _ = predict.load_model(trained, 0)
    best, meta = checkpoint.load(trained / "folds/0/best", "ema.")
    assert not model.training
    assert all(torch.equal(v, best[k]) for k, v in model.state_dict().items())
    assert meta["best"]["epoch"] == meta["epoch"]


@pytest.fixture
def scored(world, trained):
    """The scores of one process, by file; the files are taken away again."""
    test = (world.index, world.reader)
    training.predict_folds(world.config, world.index, world.reader, world.splits, trained, test, False)
    probs = {p: read_probs(p)[1] for p in (trained / "probs").rglob("*.npz")}
    shutil.rmtree(trained / "probs")
    return probs


# Stands in for the prediction in launched processes: each says which study it scores; one may die at a study.
SAYING = """
import os, signal, sys
from rarevision.run import command
from rarevision.training import launch, predict
write = predict._write
def saying(study, found, index, rows, out_dir, *rest):
    rank = launch.processes().process_index
    if f"{rank} {out_dir.name} {study}" == os.environ.get("DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    facts = write(study, found, index, rows, out_dir, *rest)
    print(f"RANK {rank} {out_dir.name} {study}", flush=True)
    return facts
predict._write = saying
sys.exit(command.main(sys.argv[1:]))
"""


def two_ranks(world, trained, folder, monkeypatch, capfd, dies="") -> list[str]:
    """Predict as notebook 03 asks for it with train.gpus = 2; returns "rank part study" of each study scored."""
    (folder / "saying.py").write_text(SAYING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("DIES", dies)
    monkeypatch.setattr(launch, "PROGRAM", "saying")
    settings, test = world.but(train={"gpus": 2}), (world.index, None)
    capfd.readouterr()
    try:
        training.predict_folds(settings.config, world.index, None, world.splits, trained, test, False)
    finally:
        monkeypatch.undo()
        said = [line[5:] for line in capfd.readouterr().out.splitlines() if line.startswith("RANK ")]
    return said


def test_two_processes_share_the_studies(world, trained, scored, tmp_path, monkeypatch, capfd):
    said = two_ranks(world, trained, tmp_path, monkeypatch, capfd)
    assert sorted(line[2:] for line in said) == sorted(f"{p.parent.name} {p.stem}" for p in scored)  # each once
    assert {line[0] for line in said} == {"0", "1"}
    for path, probs in scored.items():
        np.testing.assert_allclose(read_probs(path)[1], probs, atol=1e-6)
    for part in ("oof", "test"):
        manifest = json.loads((trained / "probs" / part / "manifest.json").read_text())
        assert list(manifest["studies"]) and set(manifest["studies"]) == set(world.index.studies)


def test_a_rank_that_dies_costs_what_it_was_at(world, trained, scored, tmp_path, monkeypatch, capfd):
    with pytest.raises(launch.LaunchError, match=r"ended with exit code \d+; see its output"):
        two_ranks(world, trained, tmp_path, monkeypatch, capfd, dies="1 test 4")
    kept = {p: p.stat().st_mtime_ns for p in (trained / "probs").rglob("*.npz")}
    assert {p for p in scored if p.parent.name == "oof"} < kept.keys()
    assert trained / "probs/test/2.npz" in kept and trained / "probs/test/4.npz" not in kept
    assert not list((trained / "probs").rglob(".*"))  # nor does it leave anything behind
    test = (world.index, world.reader)
    training.predict_folds(world.config, world.index, world.reader, world.splits, trained, test, False)
    assert all(p.stat().st_mtime_ns == time for p, time in kept.items())
    for path, probs in scored.items():
        np.testing.assert_allclose(read_probs(path)[1], probs, atol=1e-6)


DEADLY = """
import os, signal, sys, torch
from rarevision.run import command
from rarevision.data import frames
from rarevision.training import predict
read = frames.SourceReader.read
def dying(self, row):
    if torch.utils.data.get_worker_info() is not None and row == 30:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    return read(self, row)
frames.SourceReader.read = dying
sys.exit(command.main(sys.argv[1:]))
"""


def test_a_killed_decoding_process_is_one_clear_line(world, trained):
    settings = world.but(data={"workers": 1}, predict={"batch_size": 10, "step": 2})
    write_json(trained / "deadly.json", settings.config.as_dict())
    options = ["predict", "--config", str(trained / "deadly.json"), "--run-dir", str(trained)]
    done = subprocess.run([sys.executable, "-c", DEADLY, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("a decoding process died (DataLoader worker")
    assert last.endswith("run again to go on")
    assert "Traceback" not in done.stderr


def test_decoding_processes_follow_the_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(16))
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    png, cached = Data(cache=False), Data(cache=True)
    assert [workers(png, cpu), workers(cached, cpu), workers(cached, gpu)] == [8, 4, 16]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert [workers(png, cpu), workers(cached, cpu), workers(cached, gpu)] == [1, 0, 2]
    assert workers(Data(workers=3), cpu) == 3


def test_deal_is_even_and_complete():
    assert deal([5, 4, 3, 3, 3], 2) == [[0, 3], [1, 2, 4]]
    assert deal([7], 3) == [[0], [], []]
    sizes = np.random.default_rng(0).integers(1, 1000, 80).tolist()
    hands = deal(sizes, 8)
    assert sorted(i for h in hands for i in h) == list(range(80))
    totals = [sum(sizes[i] for i in h) for h in hands]
    assert max(totals) - min(totals) < 100
