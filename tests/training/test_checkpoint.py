import json
import resource

import pytest
import torch
from torch import nn

from rarevision.training import checkpoint
from rarevision.training.checkpoint import FILE, PREVIOUS, CheckpointError
from rarevision.training.ema import Ema


def tensors(value=0.0):
    return {"model.w": torch.full((3, 4), value), "model.n": torch.tensor(7), "ema.w": torch.full((3, 4), value + 1)}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


def test_round_trip_and_prefix(tmp_path):
    meta = {"epoch": 2, "step": 5, "log": [{"loss": 0.1 + 0.2, "ap": None}]}
    checkpoint.save(tmp_path, tensors(1.5), meta)
    found, back = checkpoint.load(tmp_path)
    assert equal(found, tensors(1.5))
    assert back == meta == json.loads((tmp_path / "meta.json").read_text())
    ema, _ = checkpoint.load(tmp_path, "ema.")
    assert equal(ema, {"w": torch.full((3, 4), 2.5)})
    assert sorted(p.name for p in tmp_path.iterdir()) == [FILE, "meta.json"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "garbage", "absent"])
def test_damaged_file_is_reported_and_the_previous_taken(tmp_path, capsys, damage):
    checkpoint.save(tmp_path, tensors(1), {"epoch": 0, "step": 10})
    checkpoint.save(tmp_path, tensors(2), {"epoch": 0, "step": 20})
    path = tmp_path / FILE
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        data = data[:-8]
    elif damage == "flip":
        data[-5] ^= 1
    elif damage == "empty":
        data = b""
    elif damage == "garbage":
        data = b"\x00" * len(data)
    path.write_bytes(bytes(data))
    if damage == "absent":  # killed between the two renames
        path.unlink()
    found, meta = checkpoint.load(tmp_path)
    assert meta["step"] == 10
    assert equal(found, tensors(1))
    said = capsys.readouterr().out
    assert damage == "absent" or (FILE in said and PREVIOUS in said and "step 10" in said)
    (tmp_path / PREVIOUS).unlink()
    with pytest.raises(CheckpointError, match=r"missing" if damage == "absent" else FILE):
        checkpoint.load(tmp_path)


def test_full_disk_is_reported_and_nothing_lost(tmp_path):
    """A file-size limit stands in for the disk: write() fails in the middle of the file."""
    checkpoint.save(tmp_path, tensors(1), {"epoch": 0, "step": 10})
    before = (tmp_path / FILE).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors: could not be written .* is kept"):
            checkpoint.save(tmp_path, {"model.w": torch.zeros(100_000)}, {"epoch": 0, "step": 20})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / FILE).read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [FILE, "meta.json"]  # no temporary file either


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    left, other = tmp_path / ".checkpoint.123.456.tmp.safetensors", tmp_path / ".other.123.456.tmp.safetensors"
    left.touch()
    other.touch()
    checkpoint.save(tmp_path, tensors(1), {"step": 1})
    assert not left.exists()
    assert other.exists()


@pytest.mark.parametrize("links", [True, False])
def test_link_keeps_what_source_was(tmp_path, monkeypatch, links):
    if not links:

        def refuse(*_):
            raise OSError("no hard links here")

        monkeypatch.setattr(checkpoint.os, "link", refuse)
    for value in (1, 2):
        checkpoint.save(tmp_path / "last", tensors(value), {"step": value})
        if value == 1:
            checkpoint.link(tmp_path / "last", tmp_path / "best")
    assert checkpoint.load(tmp_path / "best")[1] == {"step": 1}
    assert equal(checkpoint.load(tmp_path / "best")[0], tensors(1))
    assert checkpoint.exists(tmp_path / "best") and not checkpoint.exists(tmp_path)


def test_optimizer_goes_on_bit_equal():
    def run(optimizer, model, steps):
        for step in steps:
            optimizer.zero_grad()
            model(torch.full((2, 3), 0.1 * step)).square().sum().backward()
            optimizer.step()

    torch.manual_seed(0)
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    groups = lambda m: [{"params": [m.weight], "lr": 0.1}, {"params": [m.bias], "lr": 0.2, "weight_decay": 0}]  # noqa: E731
    first, second = torch.optim.AdamW(groups(a)), torch.optim.AdamW(groups(b))
    run(first, a, range(3))
    b.load_state_dict(a.state_dict())
    kept = {k: v.clone() for k, v in checkpoint.optimizer_tensors(first).items()}
    assert sorted(kept) == sorted(f"{i}.{name}" for i in (0, 1) for name in ("step", "exp_avg", "exp_avg_sq"))
    checkpoint.load_optimizer(second, kept)
    run(first, a, range(3, 6))
    run(second, b, range(3, 6))
    assert equal(a.state_dict(), b.state_dict())


def test_differences_are_named():
    then = {"train": {"epochs": 5, "lr": 0.1}, "studies": {"1": "ab", "2": "cd"}}
    now = {"train": {"epochs": 8, "lr": 0.1}, "studies": {"1": "ab", "3": "ef"}}
    assert checkpoint.differences(then, then) == []
    assert checkpoint.differences(then, now) == [
        "studies.2: cd in the checkpoint, absent now",
        "studies.3: absent in the checkpoint, ef now",
        "train.epochs: 5 in the checkpoint, 8 now",
    ]


def test_ema_by_hand():
    model = nn.Linear(1, 1, bias=False)
    model.register_buffer("count", torch.tensor(0))
    with torch.no_grad():
        model.weight.fill_(1)
        ema = Ema(model, 0.15)
        model.weight.fill_(2)
        model.count.fill_(5)
        ema.update(model)  # decay (1 + 0) / (10 + 0) = 0.1 -> 0.1 * 1 + 0.9 * 2
        assert ema.module.weight.item() == pytest.approx(1.9)
        ema.update(model)  # min(0.15, 2 / 11)
        assert ema.module.weight.item() == pytest.approx(0.15 * 1.9 + 0.85 * 2)
    assert ema.module.count.item() == 5
    assert not ema.module.weight.requires_grad
    assert not ema.module.training


def test_ema_statistics_fit_its_weights():
    """Weights that drift: with live batch-norm statistics the averaged network is wrong, with its own it is not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    ema, x = Ema(model, 0.99), torch.randn(256, 4)
    for step in range(300):
        with torch.no_grad():
            model[0].bias.fill_(0.02 * step)  # a mean that moves, as it does while features are learned
        model(x)
        ema.update(model)
    exact, fitting = ema.module[0](x), ema.module(x)
    live = nn.functional.batch_norm(exact, model[1].running_mean, model[1].running_var, *model[1].parameters())
    right = nn.functional.batch_norm(exact, None, None, *model[1].parameters(), training=True)
    mismatch = (live - right).abs().mean()
    assert mismatch > 0.5
    assert (fitting - right).abs().mean() < 0.02 * mismatch
