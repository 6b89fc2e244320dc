"""Prediction: frame scores and embeddings of whole studies, by all models at once, one file per study.

Each frame is decoded once whatever the number of models. A finished study is kept and not scored again while the
models, its frames and the settings stay the same. Several processes share the studies out among themselves.
"""

import errno
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler
from tqdm.auto import tqdm

from rarevision import scores
from rarevision.config import Config
from rarevision.data import FrameDataset, FrameIndex, Reader
from rarevision.errors import UserError
from rarevision.files import digest, write_json
from rarevision.labels import N_LABELS
from rarevision.model import FrameModel, restore_model
from rarevision.stage import code_hash
from rarevision.training import checkpoint, launch
from rarevision.training.forward import loader, score_batches, watched


class PredictError(UserError):
    """A prediction that cannot go on; the message names study, frames and what to do."""


def load_model(run_dir: str | Path, fold: int, which: str = "best") -> tuple[FrameModel, str]:
    """A fold's averaged model in eval mode, rebuilt from its checkpoint alone, and the checkpoint's identity."""
    tensors, meta = checkpoint.load(Path(run_dir) / "folds" / str(fold) / which, "ema.")
    return restore_model(meta["recipe"], tensors), digest([meta, checkpoint.checksum(tensors)])


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
    out_dir, state = Path(out_dir), launch.processes()
    out_dir.mkdir(parents=True, exist_ok=True)
    labels_dir = Path(labels_dir) if labels_dir is not None and index.labels is not None else None
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    rows = {s: np.arange(index.rows(s).start, index.rows(s).stop)[:: config.predict.step] for s in studies}
    mine = [studies[i] for i in deal([len(rows[s]) for s in studies], state.num_processes)[state.process_index]]
    code = code_hash(__file__)
    keys = {s: _key(index, rows[s], config, identity, code) for s in mine}
    todo = [s for s in mine if not _done(out_dir, s, keys[s], labels_dir)]
    if todo:
        order = np.concatenate([rows[s] for s in todo])
        quiet = not (progress and state.is_main_process)
        with tqdm(total=len(order), desc=out_dir.name, unit="frame", disable=quiet) as bar, watched():
            frames = _frame_scores(models, index, reader, order, config, state.device, bar)
            for study in todo:
                try:
                    started = time.perf_counter()
                    found = collect(frames, len(rows[study]), out_dir)
                    facts = _write(study, found, index, rows[study], out_dir, labels_dir, config.data.max_bad_share)
                    facts |= {"seconds": round(time.perf_counter() - started, 3), "key": keys[study]}
                    write_json(out_dir / f"{study}.json", facts)
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    raise PredictError(
                        f"{out_dir / study}.npz: disk full; finished studies are kept: make room, run again"
                    ) from None
    state.wait_for_everyone()
    return {s: json.loads((out_dir / f"{s}.json").read_text()) for s in studies}


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
    settings = [p.step, p.flips, p.embeddings, p.precision]
    settings += [d.cache, d.cache_size, d.cache_quality, d.field_of_view, d.harmonise, d.max_bad_share]
    return digest([identity, settings, code, index.frame[rows].tolist(), files])


def _done(out_dir: Path, study: str, key: str, labels_dir: Path | None) -> bool:
    try:
        facts = json.loads((out_dir / f"{study}.json").read_text())
        size = (out_dir / f"{study}.npz").stat().st_size
    except (FileNotFoundError, ValueError):
        return False
    labelled = labels_dir is None or (labels_dir / f"{study}.npz").exists()
    return facts.get("key") == key and facts.get("bytes") == size and labelled


def _frame_scores(
    models: Sequence[FrameModel],
    index: FrameIndex,
    reader: Reader,
    rows: np.ndarray,
    config: Config,
    device: torch.device,
    bar: tqdm,
) -> Iterator[tuple[np.ndarray, np.ndarray | None, str]]:
    """Probabilities, embeddings and fault ("" = none) of each frame in turn: a batch may hold two studies' frames."""
    p, models = config.predict, [model.to(device).eval() for model in models]
    dataset = FrameDataset(index, reader, models[0].image_size)
    batches = loader(dataset, BatchSampler(rows.tolist(), p.batch_size, drop_last=False), config.data, device)
    for scored in score_batches(models, batches, device, p.precision, p.flips, p.embeddings):
        bar.update(len(scored.rows))
        embeddings = itertools.repeat(None) if scored.embeddings is None else scored.embeddings
        yield from zip(scored.probs, embeddings, scored.reasons, strict=False)


class StudyFrames(NamedTuple):
    """What the models say of a study's T frames."""

    probs: np.ndarray  # float32 [T, 17]
    embeddings: np.ndarray | None  # float16 [T, D]
    bad: dict[int, str]  # position of a frame that cannot be decoded -> "path: reason"


def collect(frames: Iterator[tuple[np.ndarray, np.ndarray | None, str]], n: int, folder: Path) -> StudyFrames:
    """The next n frames of a stream. Embeddings go to disk, so that memory does not grow with a study's length."""
    found = StudyFrames(np.zeros((n, N_LABELS), np.float32), None, {})
    for i, (probs, embedding, reason) in enumerate(itertools.islice(frames, n)):
        found.probs[i] = probs
        if embedding is not None:
            if found.embeddings is None:
                with tempfile.TemporaryFile(dir=folder) as scratch:  # nameless: gone however the process ends
                    # room is taken now: a disk that fills up under a mapped file kills the process without a word
                    os.posix_fallocate(scratch.fileno(), 0, n * embedding.nbytes)
                    found = found._replace(embeddings=np.memmap(scratch, np.float16, "w+", shape=(n, len(embedding))))
            found.embeddings[i] = embedding
        if reason:
            found.bad[i] = reason
    return found


def _write(
    study: str,
    found: StudyFrames,
    index: FrameIndex,
    rows: np.ndarray,
    out_dir: Path,
    labels_dir: Path | None,
    allowed: float,
) -> dict[str, Any]:
    """Write a study's score file and labels; returns what is to be known of it. PredictError: too many bad frames."""
    frame, bad = index.frame[rows], found.bad
    if len(bad) > allowed * len(frame) or len(bad) == len(frame):
        more = [f"... and {len(bad) - 20} more"] if len(bad) > 20 else []
        raise PredictError(
            f"study {study}: {len(bad)} of {len(frame)} frames cannot be decoded, "
            f"data.max_bad_share = {allowed} allows fewer; mend or remove them, or raise it:\n"
            + "\n".join([*itertools.islice(bad.values(), 20), *more])
        )
    if bad:
        _repair(found, frame)
    target = out_dir / f"{study}.npz"
    scores.write_probs(target, frame, found.probs, found.embeddings)
    if labels_dir is not None:
        scores.write_labels(labels_dir / f"{study}.npz", frame, index.labels[rows])
    listed = [{"frame": int(frame[i]), "reason": reason} for i, reason in bad.items()]
    return {"frames": len(frame), "bad": listed, "bytes": target.stat().st_size}


def _repair(found: StudyFrames, frame: np.ndarray) -> None:
    """Undecodable frames get the scores of the nearest decoded frame, the earlier of two."""
    bad = np.fromiter(found.bad, np.int64)
    good = np.setdiff1d(np.arange(len(frame)), bad)
    after = np.searchsorted(good, bad).clip(max=len(good) - 1)
    before = (after - 1).clip(min=0)
    nearer = np.abs(frame[good[after]] - frame[bad]) < np.abs(frame[bad] - frame[good[before]])
    source = np.where(nearer, good[after], good[before])
    for values in (found.probs, found.embeddings):
        if values is not None:
            values[bad] = values[source]
