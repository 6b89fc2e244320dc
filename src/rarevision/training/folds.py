"""Training: every fold of a run, on a CPU, one GPU, many GPUs or several nodes, skipped where nothing changed.

accelerate launch --num_processes 4 -m rarevision train --config CONFIG.json --run-dir RUN_DIR --fold 0
"""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from rarevision.config import Config
from rarevision.data import FrameIndex, Reader, Splits, open_reader
from rarevision.files import digest
from rarevision.labels import LABELS
from rarevision.stage import Stage, code_hash
from rarevision.training import checkpoint, launch
from rarevision.training.fold import Fold

# settings that may differ between a checkpoint and the run that resumes it: none changes what is learned
FREE = {
    "data": {"root", "test_root", "test_truth", "labels", "cache_root", "workers", "max_bad_share"},
    "model": set(),
    "train": {"gpus", "threads", "parallel_folds", "accumulate", "checkpoint_steps", "max_bad_steps", "patience"},
}


def identity(
    config: Config, index: FrameIndex, splits: Splits, fold: int, text: Tensor | None, data_key: str
) -> dict[str, Any]:
    """What a checkpoint belongs to, as JSON: settings, studies with their labels, text embeddings."""
    table = config.as_dict()
    settings = {section: {k: v for k, v in table[section].items() if k not in free} for section, free in FREE.items()}
    studies = {}
    for role, names in (("train", splits.train(fold)), ("validation", splits.validation(fold))):
        for study in names:
            rows = index.rows(study)
            content = hashlib.sha256(index.frame[rows].tobytes() + index.labels[rows].tobytes()).hexdigest()
            studies[study] = f"{role}, {rows.stop - rows.start} frames, {content[:12]}"
    prompts = "none" if text is None else digest(text.tolist())[:12]
    return {**settings, "studies": studies, "text_embeddings": prompts, "files of the data set": data_key}


def train_fold(
    config: Config,
    index: FrameIndex,
    reader: Reader,
    splits: Splits,
    fold: int,
    text_embeddings: Tensor | None,
    run_dir: str | Path,
    data_key: str = "",
    force: bool = False,
    progress: bool = True,
) -> pd.DataFrame:
    """Train, resume or skip one fold; returns its history, one line per epoch.

    Writes `RUN_DIR/folds/<fold>/`: last/, best/ (checkpoints), metrics.jsonl, tensorboard/, manifests/training.json. A
    fold is skipped when its manifest fits the configuration, the data and the code. `data_key`: anything that changes
    with the frames' content. `force`: begin anew. Raises TrainingError, CheckpointError.
    """
    folder = Path(run_dir) / "folds" / str(fold)
    folder.mkdir(parents=True, exist_ok=True)
    belongs_to = identity(config, index, splits, fold, text_embeddings, data_key)
    code = code_hash(__file__)
    stage = Stage(folder, "training", {**belongs_to, "code": code})
    if not force and stage.current():
        print(f"fold {fold}: unchanged, skipped")
        return history(folder)
    job = Fold(config, index, reader, splits, fold, text_embeddings, folder, belongs_to, code, progress)
    if force and job.main:
        checkpoint.remove(folder / "last")
        checkpoint.remove(folder / "best")
    job.accelerator.wait_for_everyone()
    if not job.resume():
        job.run()
    if job.main:
        files = [folder / "best" / checkpoint.FILE, folder / "metrics.jsonl"]
        stage.finish(files, best=job.best, skipped_steps=job.bad_steps)
    job.accelerator.wait_for_everyone()
    job.accelerator.end_training()
    job.accelerator.free_memory()
    return history(folder)


def train_folds(
    config: Config,
    index: FrameIndex,
    reader: Reader,
    splits: Splits,
    text_embeddings: Tensor | None,
    run_dir: str | Path,
    data_key: str = "",
    force: bool = False,
    progress: bool = True,
) -> pd.DataFrame:
    """Train every fold, here or in own processes (`train.gpus`, `train.parallel_folds`); all histories, with `fold`.

    The launched processes read the run's folder (see launch.py), not the arguments.
    """
    t, run_dir = config.train, Path(run_dir)

    def in_processes(fold: int) -> pd.DataFrame:
        arguments = ["--fold", str(fold), "--data-key", data_key, *(["--force"] if force else [])]
        launch.launch("train", config, run_dir, t.gpus, *arguments)
        return history(run_dir / "folds" / str(fold))

    def here(fold: int) -> pd.DataFrame:
        return train_fold(config, index, reader, splits, fold, text_embeddings, run_dir, data_key, force, progress)

    for fold in range(0 if force else splits.n_folds):  # asked before any process is started
        meta = run_dir / "folds" / str(fold) / "last" / "meta.json"
        if meta.exists():
            ours = identity(config, index, splits, fold, text_embeddings, data_key)
            checkpoint.refuse_another_run(meta.parent, json.loads(meta.read_text())["identity"], ours)

    apart = max(t.gpus, t.parallel_folds) > 1 and not launch.launched()
    if apart:  # the threads only wait for their processes
        with ThreadPoolExecutor(t.parallel_folds) as pool:
            histories = list(pool.map(in_processes, range(splits.n_folds)))
    else:
        histories = [here(fold) for fold in range(splits.n_folds)]
    return pd.concat([table.assign(fold=fold) for fold, table in enumerate(histories)], ignore_index=True)


def history(folder: str | Path) -> pd.DataFrame:
    """The epochs of a fold's metrics.jsonl: a column per value, `AP <label>` per class (NaN: no positives)."""
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    epochs = [e | {f"AP {k}": v for k, v in e.pop("ap_per_class").items()} for e in lines if e["event"] == "epoch"]
    return pd.DataFrame(epochs).drop(columns="event").astype({f"AP {name}": float for name in LABELS})


def train_in_run(
    run_dir: str | Path,
    config: str | Path,
    fold: int,
    data_key: str = "",
    force: bool = False,
    overrides: Sequence[str] = (),
) -> None:
    """Train one fold of a run from what its folder holds (see launch.py), as one of several processes or alone."""
    run_dir, settings = Path(run_dir), launch.read_config(Path(config), overrides)
    index, splits = launch.read_index(run_dir, launch.TRAIN_INDEX), launch.read_splits(run_dir)
    text = launch.read_text(run_dir) if settings.model.contrastive else None
    reader = open_reader(index, settings.data)
    train_fold(settings, index, reader, splits, fold, text, run_dir, data_key, force)
