"""Prediction: frame scores and embeddings of whole studies, by all models at once, one file per study.

Each frame is decoded once whatever the number of models. Out of fold, a study is scored by the one model that never saw
it; test and held-out studies by the mean of the folds' probabilities. A finished study is kept and not scored again
while the models, its frames and the settings stay the same. Studies are dealt to processes:

    accelerate launch --num_processes 8 -m rarevision predict --config CONFIG.json --run-dir RUN_DIR
"""

import errno
import json
import os
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from torch.utils.data import BatchSampler
from tqdm.auto import tqdm

from rarevision import scores
from rarevision.config import Config
from rarevision.data import FrameDataset, FrameIndex, Reader, Splits, open_reader
from rarevision.errors import UserError
from rarevision.files import digest, write_json
from rarevision.labels import N_LABELS
from rarevision.model import FrameModel, restore_model
from rarevision.stage import code_hash
from rarevision.training import checkpoint, launch
from rarevision.training.forward import Scored, limit_threads, loader, score_batches, watched


class PredictError(UserError):
    """A prediction that cannot go on; the message names study, frames and what to do."""


class _Study:
    """The scores of one study while they arrive; embeddings wait on disk, so that memory does not grow with them."""

    def __init__(self, study: str, rows: np.ndarray, out_dir: Path):
        self.study, self.rows, self.filled = study, rows, 0
        self.probs = np.zeros((len(rows), N_LABELS), np.float32)
        self.out_dir = out_dir
        self.embeddings: np.ndarray | None = None
        self.bad: dict[int, str] = {}  # position -> "path: reason"
        self.started = time.perf_counter()

    def take(self, scored: Scored, start: int) -> int:
        """Take what of a batch from `start` on is this study's; returns how many frames that was."""
        n = min(len(scored.rows) - start, len(self.rows) - self.filled)
        here, there = slice(self.filled, self.filled + n), slice(start, start + n)
        self.probs[here] = scored.probs[there]
        if scored.embeddings is not None:
            if self.embeddings is None:
                shape = (len(self.rows), scored.embeddings.shape[1])
                with tempfile.TemporaryFile(dir=self.out_dir) as scratch:  # nameless: gone however the process ends
                    # room is taken now: a disk that fills up under a mapped file kills the process without a word
                    os.posix_fallocate(scratch.fileno(), 0, 2 * shape[0] * shape[1])
                    self.embeddings = np.memmap(scratch, np.float16, "w+", shape=shape)
            self.embeddings[here] = scored.embeddings[there]
        self.bad |= {self.filled + i: r for i, r in enumerate(scored.reasons[there]) if r}
        self.filled += n
        return n

    def repair(self, frame: np.ndarray) -> None:
        """Undecodable frames get the scores of the nearest decoded frame, the earlier of two."""
        bad = np.array(sorted(self.bad), np.int64)
        good = np.setdiff1d(np.arange(len(self.rows)), bad)
        after = np.searchsorted(good, bad).clip(max=len(good) - 1)
        before = (after - 1).clip(min=0)
        nearer = np.abs(frame[good[after]] - frame[bad]) < np.abs(frame[bad] - frame[good[before]])
        source = np.where(nearer, good[after], good[before])
        self.probs[bad] = self.probs[source]
        if self.embeddings is not None:
            self.embeddings[bad] = self.embeddings[source]

    def close(self) -> None:
        self.embeddings = None


def predict_studies(
    models: Sequence[FrameModel],
    index: FrameIndex,
    reader: Reader,
    studies: Sequence[str],
    out_dir: str | Path,
    config: Config,
    labels_dir: str | Path | None = None,
    identity: Any = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Write `out_dir/<study>.npz` (and `labels_dir/<study>.npz` where labels are known) for each study.

    `identity`: JSON that changes when the models do. Returns `{study: {frames, seconds, bad: [{frame, reason}], key}}`,
    which also lies beside the scores as `<study>.json`. Up to `data.max_bad_share` of a study's frames may be
    undecodable: they get their nearest neighbour's scores and are listed as `bad`; more raise PredictError. Under
    several processes each scores its share of the studies, and all return the whole.
    """
    out_dir, state = Path(out_dir), processes()
    out_dir.mkdir(parents=True, exist_ok=True)
    p, device = config.predict, state.device
    limit_threads(config.train.threads)
    rows = {s: np.arange(index.rows(s).start, index.rows(s).stop)[:: p.step] for s in studies}
    mine = deal([len(rows[s]) for s in studies], state.num_processes)[state.process_index]
    code = code_hash(__file__)
    keys = {studies[i]: _key(index, rows[studies[i]], config, identity, code) for i in mine}
    todo = [s for s in keys if not _done(out_dir, s, keys[s], labels_dir if index.labels is not None else None)]
    if todo:
        models = [m.to(device).eval() for m in models]
        size = models[0].image_size
        dataset = FrameDataset(index, reader, size, "none", 0)
        order = np.concatenate([rows[s] for s in todo])
        batches = loader(dataset, BatchSampler(order.tolist(), p.batch_size, drop_last=False), config.data, device)
        bar = tqdm(total=len(order), desc=out_dir.name, unit="frame", disable=not (progress and state.is_main_process))
        waiting = iter(todo)
        current = None
        try:
            with watched():
                current = _Study(study := next(waiting), rows[study], out_dir)
                for scored in score_batches(models, batches, device, p.precision, p.flips, p.embeddings):
                    start = 0
                    while start < len(scored.rows):
                        start += current.take(scored, start)
                        if current.filled == len(current.rows):
                            _finish(current, index, out_dir, labels_dir, keys[current.study], config.data.max_bad_share)
                            if (study := next(waiting, None)) is not None:
                                current = _Study(study, rows[study], out_dir)
                    bar.update(len(scored.rows))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise PredictError(
                f"{out_dir / current.study}.npz: disk full; finished studies are kept: make room, run again"
            ) from None
        finally:
            bar.close()
            if current is not None:
                current.close()
    state.wait_for_everyone()
    return {s: json.loads((out_dir / f"{s}.json").read_text()) for s in studies}


def processes() -> PartialState:
    """This process among those launched together; they may finish days apart.

    accelerate counts processes without a GPU only where it is told `cpu`: else each takes itself for the only one,
    and all of them score every study, into each other's files.
    """
    state = PartialState(cpu=launch.launched() and not torch.cuda.is_available(), timeout=timedelta(days=7))
    if state.num_processes != int(os.environ.get("WORLD_SIZE", 1)):
        raise PredictError(f"{os.environ['WORLD_SIZE']} processes were launched, accelerate sees {state.num_processes}")
    return state


def deal(sizes: Sequence[int], hands: int) -> list[list[int]]:
    """Positions of `sizes` dealt to `hands`, the largest first to whoever holds least; each list in order."""
    dealt: list[list[int]] = [[] for _ in range(hands)]
    total = [0] * hands
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        hand = total.index(min(total))
        dealt[hand].append(i)
        total[hand] += sizes[i]
    return [sorted(d) for d in dealt]


def _key(index: FrameIndex, rows: np.ndarray, config: Config, identity: Any, code: str) -> str:
    """What a study's scores are made from: models, settings, code, and its frame files by name, size and time."""
    folder = index.path(int(rows[0])).parent
    try:
        files = sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in os.scandir(folder) if e.is_file())
    except OSError as error:
        raise PredictError(
            f"{error.filename or folder}: {error.strerror}; stage 01 found it there, run that again"
        ) from None
    d, p = config.data, config.predict
    return digest(
        [
            identity,
            [p.step, p.flips, p.embeddings, p.precision],
            [d.cache, d.cache_size, d.cache_quality, d.field_of_view, d.harmonise, d.max_bad_share],
            code,
            index.frame[rows].tolist(),
            files,
        ]
    )


def _done(out_dir: Path, study: str, key: str, labels_dir: str | Path | None) -> bool:
    try:
        facts = json.loads((out_dir / f"{study}.json").read_text())
        size = (out_dir / f"{study}.npz").stat().st_size
    except (FileNotFoundError, ValueError):
        return False
    labelled = labels_dir is None or (Path(labels_dir) / f"{study}.npz").exists()
    return facts.get("key") == key and facts.get("bytes") == size and labelled


def _finish(done: _Study, index: FrameIndex, out_dir: Path, labels_dir: Any, key: str, allowed: float) -> None:
    frame = index.frame[done.rows]
    if len(done.bad) > allowed * len(frame) or len(done.bad) == len(frame):
        listed = list(done.bad.values())
        more = [f"... and {len(listed) - 20} more"] if len(listed) > 20 else []
        raise PredictError(
            f"study {done.study}: {len(listed)} of {len(frame)} frames cannot be decoded, "
            f"data.max_bad_share = {allowed} allows fewer; mend or remove them, or raise it:\n"
            + "\n".join(listed[:20] + more)
        )
    if done.bad:
        done.repair(frame)
    target = out_dir / f"{done.study}.npz"
    scores.write_probs(target, frame, done.probs, done.embeddings)
    if labels_dir is not None and index.labels is not None:
        scores.write_labels(Path(labels_dir) / f"{done.study}.npz", frame, index.labels[done.rows])
    facts = {
        "frames": len(frame),
        "seconds": round(time.perf_counter() - done.started, 3),
        "bad": [{"frame": int(frame[i]), "reason": reason} for i, reason in sorted(done.bad.items())],
        "bytes": target.stat().st_size,
        "key": key,
    }
    write_json(out_dir / f"{done.study}.json", facts)
    done.close()


def load_model(run_dir: str | Path, fold: int, which: str = "best") -> tuple[FrameModel, str]:
    """A fold's averaged model in eval mode, rebuilt from its checkpoint alone, and the checkpoint's identity."""
    tensors, meta = checkpoint.load(Path(run_dir) / "folds" / str(fold) / which, "ema.")
    return restore_model(meta["recipe"], tensors), digest([meta, checkpoint.checksum(tensors)])


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

    `test`: index and reader of the studies to predict. A part's manifest names the studies that belong to it now: score
    files of an earlier TEST_ROOT stay on disk and are not listed. Where `train.gpus` > 1 that many processes do it;
    they read the run's folder (see launch.py).
    """
    if config.train.gpus == 1 or launch.launched():
        return predict_here(config, index, reader, splits, run_dir, test, progress)
    launch.launch("predict", config, run_dir, config.train.gpus)
    parts = ["oof", *(["heldout"] if splits.heldout else []), *(["test"] if test is not None else [])]
    return {part: json.loads((Path(run_dir) / "probs" / part / "manifest.json").read_text()) for part in parts}


def predict_here(
    config: Config,
    index: FrameIndex,
    reader: Reader,
    splits: Splits,
    run_dir: str | Path,
    test: tuple[FrameIndex, Reader] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """`predict_folds` in this process, or this process's share of it."""
    run_dir, which = Path(run_dir), config.predict.checkpoint
    models, identities = zip(*(load_model(run_dir, k, which) for k in range(splits.n_folds)), strict=True)
    parts = {f"oof {k}": ("oof", [k], index, reader, splits.validation(k)) for k in range(splits.n_folds)}
    every = list(range(splits.n_folds))
    if splits.heldout:
        parts["heldout"] = ("heldout", every, index, reader, list(splits.heldout))
    if test is not None:
        parts["test"] = ("test", every, *test, list(test[0].studies))
    manifests: dict[str, Any] = {}
    for part, folds, source, read, studies in parts.values():
        out, labels = run_dir / "probs" / part, run_dir / "labels" / part
        named = [models[k] for k in folds], [identities[k] for k in folds]
        found = predict_studies(named[0], source, read, studies, out, config, labels, named[1], progress)
        manifests.setdefault(part, {}).update(found)
    for part, found in manifests.items():
        seconds = sum(facts["seconds"] for facts in found.values())
        manifests[part] = {
            "studies": found,
            "frames": sum(facts["frames"] for facts in found.values()),
            "bad_frames": sum(len(facts["bad"]) for facts in found.values()),
            "seconds": round(seconds, 2),  # of all processes together, when each study was scored
        }
        if processes().is_main_process:
            write_json(run_dir / "probs" / part / "manifest.json", manifests[part])
    return manifests


def predict_in_run(run_dir: str | Path, config: str | Path, overrides: Sequence[str] = ()) -> None:
    """Score the studies of a run from what its folder holds (see launch.py), as one of several processes or alone."""
    run_dir, settings = Path(run_dir), launch.read_config(Path(config), overrides)
    index, splits = launch.read_index(run_dir, launch.TRAIN_INDEX), launch.read_splits(run_dir)
    test = launch.read_index(run_dir, launch.TEST_INDEX) if (run_dir / launch.TEST_INDEX).exists() else None
    pair = None if test is None else (test, open_reader(test, settings.data))
    predict_here(settings, index, open_reader(index, settings.data), splits, run_dir, pair)
