"""The work of a run in several processes of one machine, and what such a process reads from RUN_DIR.

    torchrun --standalone --nproc_per_node 4 -m rarevision train --config RUN_DIR/launch.json --run-dir RUN_DIR --fold 0

A process finds in RUN_DIR what the notebooks left there: launch.json (all settings), index/train.parquet,
index/test.parquet, splits.json and model/text_embeddings.safetensors.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import PartialState
from safetensors.torch import load_file
from torch import Tensor

from rarevision.config import Config, config_from_dict, load_config
from rarevision.data import FrameIndex, Splits
from rarevision.errors import UserError
from rarevision.files import write_json

PROGRAM = "rarevision"  # the module that the processes run
CONFIG, TRAIN_INDEX, TEST_INDEX = "launch.json", "index/train.parquet", "index/test.parquet"
SPLITS, TEXT = "splits.json", "model/text_embeddings.safetensors"


class LaunchError(UserError):
    """Processes that failed, or a run folder that lacks what they need."""


def launched() -> bool:
    """Is this process one of several that torchrun or `accelerate launch` started?"""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def without_gpu() -> bool:
    """Is this one of several processes on a machine without a GPU?

    accelerate counts such processes only where it is told `cpu`: else each takes itself for the only one.
    """
    return launched() and not torch.cuda.is_available()


def processes() -> PartialState:
    """This process among those that predict together; they may finish days apart."""
    state = PartialState(cpu=without_gpu(), timeout=timedelta(days=7))
    if state.num_processes != int(os.environ.get("WORLD_SIZE", 1)):
        raise LaunchError(f"{os.environ['WORLD_SIZE']} processes were launched, accelerate sees {state.num_processes}")
    return state


def launch(task: str, config: Config, run_dir: str | Path, *arguments: str) -> None:
    """Run `rarevision TASK` (train, predict) in `train.gpus` processes of this machine; LaunchError where one fails."""
    count, path = config.train.gpus, Path(run_dir) / CONFIG
    write_json(path, config.as_dict())
    several = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(count), "--module"] if count > 1 else []
    command = [sys.executable, "-m", *several, PROGRAM, task, "--config", str(path), "--run-dir", str(run_dir)]
    if code := subprocess.run([*command, *arguments], check=False).returncode:
        raise LaunchError(f"{task} on {count} processes ended with exit code {code}; see its output")


def read_run(
    run_dir: str | Path, config: str | Path, overrides: Sequence[str] = ()
) -> tuple[Config, FrameIndex, Splits]:
    """Settings, training index and splits of a process that works alone or was launched: it launches none itself.

    `config` is a TOML file, to which `overrides` apply, or a launch.json, which is complete.
    """
    path = Path(config)
    if path.suffix != ".json":
        settings = load_config(path, overrides)
    elif overrides:
        raise LaunchError("--set needs a TOML config: a launch.json is already resolved")
    else:
        settings = config_from_dict(json.loads(path.read_text()), path)
    index, splits = read_index(run_dir, TRAIN_INDEX), Splits.load(_need(run_dir, SPLITS, "01"))
    return replace(settings, train=replace(settings.train, gpus=1, parallel_folds=1)), index, splits


def read_index(run_dir: str | Path, name: str) -> FrameIndex:
    return FrameIndex.load(_need(run_dir, name, "01"))


def read_text(run_dir: str | Path) -> Tensor:
    """The labels' text embeddings, float32 [17, D]: the only tensor of its file."""
    (embeddings,) = load_file(_need(run_dir, TEXT, "02")).values()
    return embeddings


def _need(run_dir: str | Path, name: str, stage: str) -> Path:
    path = Path(run_dir) / name
    if not path.exists():
        raise LaunchError(f"{path} is missing: run notebook {stage} first (FROM={stage} ./run_all.sh)")
    return path
