"""The launch: a run's folds trained here, or in several processes; and what such a process reads from RUN_DIR.

    accelerate launch --num_processes 4 -m rarevision train --config RUN_DIR/launch.json --run-dir RUN_DIR --fold 0

A launched process finds there what the notebooks left: launch.json (the resolved configuration), index/train.parquet,
index/test.parquet, splits.json, model/text_embeddings.safetensors.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from rarevision import config as configuration
from rarevision.config import Config
from rarevision.data import FrameIndex, Splits
from rarevision.errors import UserError
from rarevision.files import write_json

CONFIG, TRAIN_INDEX, TEST_INDEX = "launch.json", "index/train.parquet", "index/test.parquet"
PROGRAM = "rarevision"  # its __main__ is what the processes run
SPLITS, TEXT = "splits.json", "model/text_embeddings.safetensors"


class LaunchError(UserError):
    """Processes that failed, or a run folder that lacks what they need."""


def launched() -> bool:
    """Is this process one of several that `accelerate launch` or torchrun started?"""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def launch(task: str, config: Config, run_dir: str | Path, processes: int, *arguments: str) -> None:
    """Run `rarevision TASK` (train, predict) in several processes of this machine; LaunchError where one fails."""
    run_dir = Path(run_dir)
    path = run_dir / CONFIG
    write_json(path, config.as_dict())
    if processes == 1:
        command = []
    elif torch.cuda.is_available():
        command = ["accelerate.commands.launch", "--num_processes", str(processes), "--num_machines", "1"]
        # the program decides on the precision itself
        command += ["--multi_gpu", "--mixed_precision", "no", "--dynamo_backend", "no", "--module"]
    else:  # accelerate's own launcher starts a single process where there is no GPU
        command = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(processes), "--module"]
    command = [
        sys.executable,
        "-m",
        *command,
        PROGRAM,
        task,
        "--config",
        str(path),
        "--run-dir",
        str(run_dir),
        *arguments,
    ]
    environment = os.environ | ({} if torch.cuda.is_available() else {"ACCELERATE_USE_CPU": "true"})
    done = subprocess.run(command, check=False, env=environment)
    if done.returncode:
        raise LaunchError(f"{task} on {processes} processes ended with exit code {done.returncode}; see its output")


def read_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    if path.suffix == ".json":
        if overrides:
            raise LaunchError("--set needs a TOML config: a launch.json is already resolved")
        return configuration.config_from_dict(json.loads(path.read_text()), str(path))
    return configuration.load_config(path, overrides)


def read_index(run_dir: Path, name: str) -> FrameIndex:
    return FrameIndex.load(_need(run_dir / name, "01"))


def read_splits(run_dir: Path) -> Splits:
    return Splits.load(_need(run_dir / SPLITS, "01"))


def read_text(run_dir: Path) -> Tensor:
    """The labels' text embeddings, float32 [17, D]: the only tensor of its file."""
    (embeddings,) = load_file(_need(run_dir / TEXT, "02")).values()
    return embeddings


def _need(path: Path, stage: str) -> Path:
    if not path.exists():
        raise LaunchError(f"{path} is missing: run notebook {stage} first (FROM={stage} ./run_all.sh)")
    return path
