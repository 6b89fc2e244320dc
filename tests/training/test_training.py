import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tiny
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from rarevision.data.frames import SourceReader
from rarevision.files import write_json
from rarevision.training import checkpoint, fold, launch, learner
from rarevision.training import folds as training
from rarevision.training.checkpoint import CheckpointError
from rarevision.training.fold import TrainingError
from rarevision.training.forward import mixed_precision


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return tiny.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def whole(world, tmp_path_factory):
    """A fold trained without interruption, and its history."""
    run = tmp_path_factory.mktemp("whole")
    return run, train(world, run)


def train(world, run, k=0, **options):
    return training.train_fold(
        world.config, world.index, world.reader, world.splits, k, world.text, run, progress=False, **options
    )


def last(run, k=0):
    return checkpoint.load(run / "folds" / str(k) / "last")


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def log(run, k=0):
    """metrics.jsonl without the wall-clock values."""
    lines = (run / "folds" / str(k) / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "frames_per_second"} for line in lines]


@pytest.mark.parametrize(("total", "warmup"), [(100, 0.15), (7, 0.3), (1000, 0.5)])
def test_one_cycle_is_torchs(total, warmup):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2.0, total, pct_start=warmup, cycle_momentum=False)
    for step in range(total):
        assert 2 * learner.one_cycle(step, total, warmup) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        if step < total - 1:
            scheduler.step()
    assert 0 < learner.one_cycle(total + 5, total, warmup) < 1e-5  # torch raises here


def test_it_learns(world, tmp_path):
    history = train(world.but(train={"epochs": 8, "lr_backbone": 3e-3, "augment": "none"}), tmp_path)
    assert history.ap_anatomy.iloc[-1] > 0.9
    assert history.validation_loss.iloc[-1] < history.validation_loss.iloc[0]


def test_it_leaves_what_is_promised(world, whole):
    run, history = whole
    assert history.epoch.tolist() == [1, 2]
    assert np.isnan(history["AP blood"]).all()  # no positives: no value, not 0
    folder = run / "folds" / "0"
    meta = json.loads((folder / "last" / "meta.json").read_text())
    assert meta["finished"]
    assert meta["identity"]["train"]["lr_heads"] == 3e-3
    board = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert {"train/loss", "train/lr_backbone", "validation/ap", "validation/validation_loss"} <= {
        *board.Tags()["scalars"]
    }
    assert [e.value for e in board.Scalars("validation/ap")] == pytest.approx(history.ap.tolist())
    tensors, _ = last(run)
    assert not any("text" in name.removeprefix("model.text").removeprefix("ema.text") for name in tensors)
    assert checkpoint.load(folder / "best", "ema.")[0].keys() == checkpoint.load(folder / "last", "model.")[0].keys()
    manifest = json.loads((folder / "manifests" / "training.json").read_text())
    assert set(manifest["outputs"]) == {"best/checkpoint.safetensors", "metrics.jsonl"}


def test_a_finished_fold_is_skipped(world, whole, capsys, monkeypatch):
    run, history = whole
    monkeypatch.setattr(fold.Fold, "__init__", None)  # nothing is built
    assert train(world, run).equals(history)
    assert "fold 0: unchanged, skipped" in capsys.readouterr().out


def test_another_config_or_other_data_is_refused_by_name(world, whole):
    run, _ = whole
    with pytest.raises(CheckpointError, match=r"train\.lr_heads: 0\.003 in the checkpoint, 0\.1 now"):
        train(world.but(train={"lr_heads": 0.1}), run)
    labels = world.index.labels.copy()
    labels[world.index.rows("2").start, 0] = 1
    other = tiny.replace(world, index=tiny.replace(world.index, labels=labels))
    with pytest.raises(CheckpointError, match=r"studies\.2: .* in the checkpoint, .* now\. Use another RUN_DIR"):
        train(other, run)
    with pytest.raises(CheckpointError, match=r"files of the data set: .* in the checkpoint, changed now"):
        train(world, run, data_key="changed")
    assert train(world, run) is not None  # and the fold is still whole


def test_force_trains_anew(world, whole, tmp_path):
    settings = world.but(train={"epochs": 1})
    train(settings, tmp_path)
    again = settings.but(train={"lr_heads": 1e-3})
    train(again, tmp_path, force=True)
    assert last(tmp_path)[1]["identity"]["train"]["lr_heads"] == 1e-3


class Killed(Exception):
    pass


@pytest.mark.parametrize("at", [0, 1, 2, 3, 5])
def test_stopped_at_a_step_it_resumes_bit_equal(world, whole, tmp_path, monkeypatch, at):
    """2 epochs of 3 steps, a checkpoint every 2 steps: stops before, at and after checkpoints and epoch ends."""
    settings = world.but(train={"checkpoint_steps": 2})
    step, done = learner.Learner.step, []

    def dying(self, *arguments):
        if len(done) == at:
            raise Killed
        done.append(1)
        return step(self, *arguments)

    monkeypatch.setattr(learner.Learner, "step", dying)
    with pytest.raises(Killed):
        train(settings, tmp_path)
    monkeypatch.setattr(learner.Learner, "step", step)
    train(settings, tmp_path)
    tensors, meta = last(tmp_path)
    expected, expected_meta = last(whole[0])
    assert same(tensors, expected)
    assert log(tmp_path) == log(whole[0])
    assert meta["best"] == expected_meta["best"]
    assert same(checkpoint.load(tmp_path / "folds/0/best")[0], checkpoint.load(whole[0] / "folds/0/best")[0])


@pytest.mark.parametrize("at", [0, 3, 7, 9, 10, 12])
def test_killed_between_two_renames_it_resumes_bit_equal(world, whole, tmp_path, monkeypatch, at):
    """Every file comes into place by a rename; nothing is done after one of them, as after a kill."""
    settings, done, rename = world.but(train={"checkpoint_steps": 1}), [], os.replace

    def dying(source, target):
        if len(done) >= at:
            raise Killed
        done.append(target)
        rename(source, target)

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(Killed):
        train(settings, tmp_path)
    monkeypatch.setattr(os, "replace", rename)
    train(settings, tmp_path)
    for which in ("last", "best"):
        found, expected = (checkpoint.load(run / "folds/0" / which)[0] for run in (tmp_path, whole[0]))
        assert same(found, expected), which
    assert log(tmp_path) == log(whole[0])


def test_killed_process_resumes_bit_equal(world, whole, tmp_path, capsys):
    """SIGKILL, in another process, as soon as a checkpoint within an epoch is there."""
    settings = world.but(train={"checkpoint_steps": 1})
    run = settings.run_dir(tmp_path)
    write_json(run / launch.CONFIG, settings.config.as_dict())
    command = [sys.executable, "-m", "rarevision", "train", "--config", str(run / launch.CONFIG)]
    process = subprocess.Popen(
        [*command, "--run-dir", str(run), "--fold", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    meta = run / "folds" / "0" / "last" / "meta.json"
    while not meta.exists():
        assert process.poll() is None, process.stdout.read().decode()
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not last(run)[1]["finished"]
    train(settings, run)
    assert "resumed at epoch" in capsys.readouterr().out
    assert same(last(run)[0], last(whole[0])[0])
    assert log(run) == log(whole[0])


def test_accumulation_keeps_the_global_batch(world, tmp_path, monkeypatch):
    """Without batch norm, dropout and mixup, two halves give the gradients of the whole."""
    build = learner.build_model

    def without_batch_norm(*arguments):
        model = build(*arguments)
        model.excitation.norm = nn.Identity()
        return model

    norms, step = [], torch.optim.AdamW.step

    def measured(self, closure=None):  # AdamW itself does not care about the scale of gradients
        norms.append(sum(p.grad.norm().item() for g in self.param_groups for p in g["params"]))
        return step(self, closure)

    monkeypatch.setattr(learner, "build_model", without_batch_norm)
    monkeypatch.setattr(torch.optim.AdamW, "step", measured)
    plain = world.but(model={"dropout": 0.0}, train={"mixup": 0.0, "epochs": 1, "clip": 0.0})
    whole = train(plain, tmp_path / "1")
    halves = train(plain.but(train={"accumulate": 2}), tmp_path / "2")
    assert halves.loss.tolist() == pytest.approx(whole.loss.tolist(), rel=1e-5)
    assert halves.validation_loss.tolist() == pytest.approx(whole.validation_loss.tolist(), rel=1e-4)
    assert len(norms) == 6 and norms[3:] == pytest.approx(norms[:3], rel=1e-3)


def test_two_processes_give_the_losses_of_one(world, tmp_path):
    """Through accelerate launch, batch norm included; dropout and mixup off: they are drawn per part of the batch."""
    settings = world.but(model={"dropout": 0.0}, train={"mixup": 0.0, "gpus": 2})
    run = settings.run_dir(tmp_path / "two")
    launch.launch("train", settings.config, run, "--fold", "0")
    one = train(settings, tmp_path / "one")
    two = training.history(run / "folds" / "0")
    for column in ("loss", "classification", "contrastive", "validation_loss", "ap"):
        assert two[column].tolist() == pytest.approx(one[column].tolist(), rel=1e-4), column
    (a, meta_a), (b, meta_b) = last(tmp_path / "one"), last(run)
    assert (meta_a["processes"], meta_b["processes"]) == (1, 2)
    for name in ("model.excitation.norm.running_mean", "ema.excitation.norm.running_var"):
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-5)


POISON = {
    "loss": lambda logits: logits.sum() * float("nan"),
    "gradient": lambda logits: (logits.sum() * 0).sqrt(),  # 0, whose gradient is 0 times infinity
}


@pytest.mark.parametrize("what", POISON)
def test_what_is_not_finite_is_named_skipped_and_counted(world, tmp_path, monkeypatch, capsys, what):
    loss, calls = learner.Loss.__call__, []

    def poisoned(self, output, labels, smoothing=True):
        total, parts = loss(self, output, labels, smoothing)
        calls.append(1)
        return (total + POISON[what](output.logits) if len(calls) == 2 else total), parts

    monkeypatch.setattr(learner.Loss, "__call__", poisoned)
    states, step = [], learner.Learner.step

    def watched(self, parts, *place):
        values, fault = step(self, parts, *place)
        states.append((fault, {k: v.clone() for k, v in self.model.state_dict().items()}, parts[0][2]))
        return values, fault

    monkeypatch.setattr(learner.Learner, "step", watched)
    history = train(world.but(train={"epochs": 1}), tmp_path)
    (_, before, _), (fault, after, rows) = states[:2]
    assert fault == what
    different = [k for k in before if not torch.equal(before[k], after[k])]
    assert different == ["excitation.norm.num_batches_tracked"]  # weights and statistics as before the batch
    entry = next(e for e in log(tmp_path) if e["event"] == "skipped")
    frames = sorted((world.index.studies[world.index.study_of(r)], int(world.index.frame[r])) for r in rows.tolist())
    assert sorted((s, f) for s, fs in entry["frames"].items() for f in fs) == frames
    assert (entry["step"], entry["what"]) == (1, what)
    assert history.skipped_steps.tolist() == [1]
    assert np.isfinite(history.loss).all()
    said = capsys.readouterr().out
    assert f"step 1 of epoch 1 skipped, its {what} is not finite: study" in said


def test_a_run_that_keeps_failing_stops(world, tmp_path, monkeypatch):
    monkeypatch.setattr(learner.Loss, "__call__", lambda self, output, *_: (output.logits.mean() * float("inf"), {}))
    with pytest.raises(TrainingError, match=r"2 steps had a non-finite loss .*max_bad_steps = 1.*metrics\.jsonl"):
        train(world.but(train={"max_bad_steps": 1}), tmp_path)


def test_early_stopping(world, tmp_path, monkeypatch):
    values = iter([0.5, 0.6, 0.6, 0.55, 0.9])
    monkeypatch.setattr(fold, "frame_ap", lambda *_: np.full(17, next(values)))
    history = train(world.but(train={"epochs": 5, "patience": 2}), tmp_path)
    assert history.epoch.tolist() == [1, 2, 3, 4]
    assert last(tmp_path)[1]["best"] == {"epoch": 2, "ap": 0.6}
    assert checkpoint.load(tmp_path / "folds/0/best")[1]["epoch"] == 2


def test_killed_after_the_last_epoch_it_still_stops_early(world, tmp_path, monkeypatch):
    values = iter([0.5, 0.4, 0.9])
    monkeypatch.setattr(fold, "frame_ap", lambda *_: np.full(17, next(values)))
    save = fold.Fold._save

    def dying(self, finished=False):
        if finished:
            raise Killed
        save(self)

    monkeypatch.setattr(fold.Fold, "_save", dying)
    settings = world.but(train={"epochs": 3, "patience": 1})
    with pytest.raises(Killed):
        train(settings, tmp_path)
    monkeypatch.setattr(fold.Fold, "_save", save)
    assert train(settings, tmp_path).epoch.tolist() == [1, 2]


def test_a_line_per_epoch_and_a_bar_with_speed_and_time_left(world, tmp_path, capsys):
    settings = world.but(train={"epochs": 2})
    training.train_fold(
        settings.config, world.index, world.reader, world.splits, 0, world.text, tmp_path, progress=True
    )
    said = capsys.readouterr()
    lines = [line for line in said.out.splitlines() if "validation" in line]
    assert [line.split("  ")[0] for line in lines] == ["fold 0: epoch 1/2", "fold 0: epoch 2/2"]
    assert all(line.endswith("frames/s") and "AP 0." in line for line in lines)
    assert "fold 0 epoch 2/2" in said.err and "frame/s]" in said.err and "/48 [" in said.err


def test_a_disk_that_fails_elsewhere_is_one_clear_error(world, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "metrics.jsonl")

    monkeypatch.setattr(fold.Fold, "_note", full)
    with pytest.raises(TrainingError, match=r"fold 0: .*No space left on device.*metrics.jsonl.*run again"):
        train(world, tmp_path)


def test_bf16_is_taken_where_a_gpu_has_it(monkeypatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for has in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has=has: has)
        assert (mixed_precision("auto", cpu), mixed_precision("auto", gpu)) == ("no", "bf16" if has else "no")
    assert mixed_precision("fp16", gpu) == "fp16"


def test_half_precision_keeps_weights_and_averages_in_fp32(world, tmp_path):
    history = train(world.but(train={"epochs": 1, "precision": "bf16"}), tmp_path)
    assert np.isfinite(history.loss).all() and history.skipped_steps.tolist() == [0]
    assert {str(v.dtype) for v in last(tmp_path)[0].values()} == {"torch.float32", "torch.int64"}


@pytest.mark.parametrize("workers", [0, 1])
def test_an_undecodable_frame_stops_with_its_name(world, tmp_path, workers):
    row = world.index.rows(world.splits.train(0)[0]).start
    path = world.index.path(row)
    kept = path.read_bytes()
    path.write_bytes(kept[:100])
    try:
        bad = world.but(data={"workers": workers}, train={"sampler": "none"})
        with pytest.raises(TrainingError, match=path.name):
            train(bad, tmp_path)
        known = tiny.replace(bad, reader=SourceReader(world.index, world.config.data))
        known.reader.bad = {row: "truncated"}  # as a cache knows it: left out
        assert len(train(known.but(train={"epochs": 1}), tmp_path / "known")) == 1
    finally:
        path.write_bytes(kept)
