"""A run's folds, from settings to scores: read this file first.

`train_folds` trains every fold by `train_fold`, `predict_folds` scores all studies by the trained models. How one fold
is trained stands in fold.py, how studies are scored in predict.py. Both work on a CPU, one GPU, several GPUs or several
nodes, and skip what is done. `train_in_run` and `predict_in_run` are the same for a process that a command line
started: it reads from the run's folder what a notebook hands over as arguments (see launch.py).
"""

import hashlib
import inspect
import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from rarevision.config import Config
from rarevision.data import FrameIndex, Reader, Splits, open_reader
from rarevision.files import digest, write_json
from rarevision.stage import Stage, code_hash
from rarevision.training import checkpoint, launch
from rarevision.training.fold import Fold
from rarevision.training.metrics import history
from rarevision.training.predict import load_model, predict_studies

# settings that may differ between a checkpoint and the run that resumes it: none changes what is learned
FREE = {
    "data": {"root", "test_root", "test_truth", "labels", "cache_root", "workers", "max_bad_share"},
    "model": set(),
    "train": {"gpus", "threads", "parallel_folds", "accumulate", "checkpoint_steps", "max_bad_steps", "patience"},
}


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
    """Train every fold; all histories in one table, with a column `fold`.

    Where `train.gpus` or `train.parallel_folds` is above 1, each fold gets processes of its own, which read the run's
    folder and not the arguments. What the arguments are is said at `train_fold`.
    """
    folders = [Path(run_dir) / "folds" / str(fold) for fold in range(splits.n_folds)]
    for fold, folder in enumerate([] if force else folders):  # refused before any process is started
        if (meta := folder / "last" / "meta.json").exists():
            ours = identity(config, index, splits, fold, text_embeddings, data_key)
            checkpoint.refuse_another_run(meta.parent, json.loads(meta.read_text())["identity"], ours)

    def in_processes(fold: int) -> None:
        forced = ["--force"] if force else []
        launch.launch("train", config, run_dir, "--fold", str(fold), "--data-key", data_key, *forced)

    if max(config.train.gpus, config.train.parallel_folds) > 1 and not launch.launched():
        with ThreadPoolExecutor(config.train.parallel_folds) as pool:  # its threads only wait for the processes
            list(pool.map(in_processes, range(splits.n_folds)))
    else:
        for fold in range(splits.n_folds):
            train_fold(config, index, reader, splits, fold, text_embeddings, run_dir, data_key, force, progress)
    histories = [history(folder).assign(fold=fold) for fold, folder in enumerate(folders)]
    return pd.concat(histories, ignore_index=True)


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
    code = code_hash(inspect.getfile(Fold))  # prediction's code is not in it: a change there costs no training
    stage = Stage(folder, "training", {**belongs_to, "code": code})
    if not force and stage.current():
        print(f"fold {fold}: unchanged, skipped")
        return history(folder)
    job = Fold(config, index, reader, splits, fold, text_embeddings, folder, belongs_to, code, progress)
    if force and job.main:
        shutil.rmtree(folder / "last", ignore_errors=True)
        shutil.rmtree(folder / "best", ignore_errors=True)
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


def predict_folds(
    config: Config,
    index: FrameIndex,
    reader: Reader,
    splits: Splits,
    run_dir: str | Path,
    test: tuple[FrameIndex, Any] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """All scores of a run: `probs/oof`, `probs/heldout`, `probs/test` with their manifest.json, and known labels.

    Out of fold, a study is scored by the one model that never saw it; held-out and test studies by the mean of the
    folds' probabilities. `test`: index and reader of the studies to predict. A part's manifest, which is also returned,
    names the studies that belong to it now: score files of an earlier TEST_ROOT stay on disk and are not listed.
    Where `train.gpus` > 1 that many processes do it; they read the run's folder.
    """
    run_dir, every = Path(run_dir), range(splits.n_folds)
    parts = [("oof", [fold], index, reader, splits.validation(fold)) for fold in every]
    if splits.heldout:
        parts.append(("heldout", list(every), index, reader, list(splits.heldout)))
    if test is not None:
        parts.append(("test", list(every), *test, list(test[0].studies)))
    manifests = {part: run_dir / "probs" / part / "manifest.json" for part, *_ in parts}
    if config.train.gpus > 1 and not launch.launched():
        launch.launch("predict", config, run_dir)
        return {part: json.loads(path.read_text()) for part, path in manifests.items()}
    trained = [load_model(run_dir, fold, config.predict.checkpoint) for fold in every]
    scored: dict[str, dict[str, Any]] = {part: {} for part in manifests}
    for part, folds, frames, read, studies in parts:
        models, identities = zip(*(trained[fold] for fold in folds), strict=True)
        out, labels = run_dir / "probs" / part, run_dir / "labels" / part
        scored[part] |= predict_studies(models, frames, read, studies, out, config, labels, identities, progress)
    found = {}
    for part, facts in scored.items():
        found[part] = {
            "studies": facts,
            "frames": sum(study["frames"] for study in facts.values()),
            "bad_frames": sum(len(study["bad"]) for study in facts.values()),
            # of all processes together, when each study was scored
            "seconds": round(sum(study["seconds"] for study in facts.values()), 2),
        }
        if launch.processes().is_main_process:
            write_json(manifests[part], found[part])
    return found


def train_in_run(
    run_dir: str | Path,
    config: str | Path,
    fold: int,
    data_key: str = "",
    force: bool = False,
    overrides: Sequence[str] = (),
) -> None:
    """Train one fold of a run from what its folder holds, as one of several processes or alone."""
    settings, index, splits = launch.read_run(run_dir, config, overrides)
    text = launch.read_text(run_dir) if settings.model.contrastive else None
    reader = open_reader(index, settings.data)
    train_fold(settings, index, reader, splits, fold, text, run_dir, data_key, force)


def predict_in_run(run_dir: str | Path, config: str | Path, overrides: Sequence[str] = ()) -> None:
    """Score the studies of a run from what its folder holds, as one of several processes or alone."""
    settings, index, splits = launch.read_run(run_dir, config, overrides)
    test = launch.read_index(run_dir, launch.TEST_INDEX) if (Path(run_dir) / launch.TEST_INDEX).exists() else None
    pair = None if test is None else (test, open_reader(test, settings.data))
    predict_folds(settings, index, open_reader(index, settings.data), splits, run_dir, pair)
