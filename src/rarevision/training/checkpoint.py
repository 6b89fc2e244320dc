"""A checkpoint: all that a training needs to go on as if it had never stopped, in one safetensors file.

    <folder>/checkpoint.safetensors   tensors `model.*`, `ema.*`, `optimizer.<parameter>.*`; the meta JSON in its header
    <folder>/previous.safetensors     the one before, taken where the newer one turns out damaged
    <folder>/meta.json                the same meta, for people

One file makes it atomic: tensors and meta are never of two different steps. Nothing is pickled.
"""

import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rarevision.errors import UserError
from rarevision.files import atomic, write_json

FILE, PREVIOUS = "checkpoint.safetensors", "previous.safetensors"


class CheckpointError(UserError):
    """A checkpoint that cannot be written, read or resumed; the message names the file or the difference."""


def save(folder: str | Path, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> None:
    """Write a checkpoint; the one before becomes `previous`. If anything fails, what was there is still there."""
    folder = Path(folder)
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    header = {"meta": json.dumps(meta, allow_nan=False), "crc32": str(checksum(tensors))}
    target = folder / FILE
    try:
        for left in folder.glob(f".{target.stem}.*.tmp{target.suffix}"):  # a killed process's, as large as a checkpoint
            left.unlink(missing_ok=True)
        with atomic(target) as temporary:
            save_file(tensors, temporary, metadata=header)
            # only now, with the new file whole beside it, does the old one give up its name
            if target.exists():
                os.replace(target, folder / PREVIOUS)
        write_json(folder / "meta.json", meta)
    except (OSError, SafetensorError) as error:
        kept = "the checkpoint before it is kept" if exists(folder) else "there is none before it"
        raise CheckpointError(
            f"{target}: could not be written ({error}); {kept}. Free space on the disk and run again: it resumes"
        ) from error


def exists(folder: str | Path) -> bool:
    return any((Path(folder) / name).exists() for name in (FILE, PREVIOUS))


def load(folder: str | Path, prefix: str = "") -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors (all, or those `below` a prefix) and meta of the newest whole checkpoint.

    A damaged newest file is reported on stdout and the previous one taken; CheckpointError where none is whole.
    """
    faults: list[str] = []
    for path in (Path(folder) / FILE, Path(folder) / PREVIOUS):
        if path.exists():
            try:
                tensors, meta = _read(path)
            except CheckpointError as error:
                faults.append(str(error))
                continue
            if faults:
                print(f"{faults[0]}; going on from {PREVIOUS} (epoch {meta.get('epoch')}, step {meta.get('step')})")
            return below(tensors, prefix), meta
    raise CheckpointError("; ".join(faults) or f"{Path(folder) / FILE}: missing; train this fold first (stage 03)")


def below(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The tensors whose name begins with `prefix`, which is cut off."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def link(source: str | Path, target: str | Path) -> None:
    """Make `target` the checkpoint that `source` is now, without a second copy where the disk has hard links."""
    source, target = Path(source), Path(target)
    try:
        with atomic(target / FILE) as temporary:
            try:
                os.link(source / FILE, temporary)
            except OSError:
                shutil.copyfile(source / FILE, temporary)
        with atomic(target / "meta.json") as temporary:
            shutil.copyfile(source / "meta.json", temporary)
    except OSError as error:
        raise CheckpointError(
            f"{target}: could not be written ({error}). Free space on the disk and run again"
        ) from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """`<parameter number>.<name>` -> tensor. Hyper-parameters follow from configuration and step."""
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    numbers = {int(name.partition(".")[0]) for name in tensors}
    state = {number: below(tensors, f"{number}.") for number in numbers}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def differences(then: Any, now: Any, prefix: str = "") -> list[str]:
    """One line per leaf in which two JSON values differ: `train.epochs: 5 in the checkpoint, 8 now`."""
    if isinstance(then, dict) and isinstance(now, dict):
        lines = []
        for key in sorted(then.keys() | now.keys()):
            inner = f"{prefix}.{key}" if prefix else str(key)
            lines += differences(then.get(key, "absent"), now.get(key, "absent"), inner)
        return lines
    return [] if then == now else [f"{prefix}: {then} in the checkpoint, {now} now"]


def refuse_another_run(folder: Path, then: Any, now: Any) -> None:
    """CheckpointError, with the two ways out, where a checkpoint's identity is not that of the run that finds it."""
    if different := differences(then, now):
        raise CheckpointError(
            f"{folder} belongs to another run: {'; '.join(different[:6])}"
            f"{' ...' if len(different) > 6 else ''}. Use another RUN_DIR, or FORCE=1 to train this fold anew"
        )


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    try:
        with safe_open(path, "pt") as f:
            header = f.metadata() or {}
            tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a dict)
        meta = json.loads(header["meta"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: torn or not a checkpoint ({error})") from error
    if header.get("crc32") != str(checksum(tensors)):
        raise CheckpointError(f"{path}: damaged: its contents do not have the checksum they were written with")
    return tensors, meta


def checksum(tensors: dict[str, torch.Tensor]) -> int:
    """CRC-32 over names and bytes."""
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy(), zlib.crc32(name.encode(), value))
    return value
