"""Score files: frame scores and frame labels of one study each, the meeting point of every stage after training.

    probs/<oof|test>/<study>.npz    frame int32 [T] ascending, probs float32|float16 [T, 17], optional embeddings [T, D]
    labels/<oof|test>/<study>.npz   frame int32 [T] ascending, labels uint8 [T, 17]

Scores of any other model can be put there. Everything read is checked: a bad file is named with what is wrong.
"""

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rarevision.errors import UserError
from rarevision.files import atomic
from rarevision.labels import N_LABELS


@dataclass(frozen=True)
class StudyScores:
    """One study: `frame` int32 [T], `probs` float32 [T, 17], `labels` uint8 [T, 17] or None where truth is unknown."""

    study: str
    frame: np.ndarray
    probs: np.ndarray
    labels: np.ndarray | None = None


def _load(path: Path, key: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise UserError(f"{path}: a single array, not an .npz archive; save with numpy.savez")
        with archive:
            missing = {"frame", key} - set(archive.files)
            if missing:
                raise UserError(f"{path}: no array {sorted(missing)[0]!r}; it holds {', '.join(archive.files)}")
            frame, values = archive["frame"], archive[key]
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, UserError | FileNotFoundError):
            raise
        raise UserError(f"{path}: not a readable .npz file ({error})") from None
    if frame.ndim != 1 or not np.issubdtype(frame.dtype, np.integer):
        raise UserError(f"{path}: 'frame' must be integers [T], not {frame.dtype} {frame.shape}")
    if values.shape != (len(frame), N_LABELS):
        raise UserError(f"{path}: {key!r} must be [{len(frame)}, {N_LABELS}] as 'frame' is, not {list(values.shape)}")
    if len(frame) == 0:
        raise UserError(f"{path}: no frames")
    if (step := np.diff(frame.astype(np.int64))).size and step.min() <= 0:
        row = int(np.argmin(step > 0)) + 1
        raise UserError(f"{path}: 'frame' must ascend; row {row} holds {frame[row]} after {frame[row - 1]}")
    return frame.astype(np.int32), values


def read_probs(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """`frame` int32 [T] and `probs` float32 [T, 17] in [0, 1]."""
    frame, probs = _load(Path(path), "probs")
    if not np.issubdtype(probs.dtype, np.floating):
        raise UserError(f"{path}: 'probs' must be floating point, not {probs.dtype}")
    probs = probs.astype(np.float32)
    bad = ~((probs >= 0) & (probs <= 1))  # also catches NaN
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise UserError(
            f"{path}: probs[{row}, {column}] (frame {frame[row]}) is {probs[row, column]}, outside [0, 1]; "
            "write sigmoid outputs, not logits"
        )
    return frame, probs


def read_labels(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """`frame` int32 [T] and `labels` uint8 [T, 17] of 0 and 1."""
    frame, labels = _load(Path(path), "labels")
    if not np.isin(labels, (0, 1)).all():
        row, column = np.argwhere(~np.isin(labels, (0, 1)))[0]
        raise UserError(f"{path}: labels[{row}, {column}] (frame {frame[row]}) is {labels[row, column]}, not 0 or 1")
    return frame, labels.astype(np.uint8)


def write_probs(path: str | Path, frame: np.ndarray, probs: np.ndarray, embeddings: np.ndarray | None = None) -> None:
    arrays: dict[str, Any] = {"frame": frame.astype(np.int32), "probs": probs.astype(np.float32)}
    if embeddings is not None:
        arrays["embeddings"] = embeddings.astype(np.float16, copy=False)
    with atomic(path) as temporary:
        np.savez_compressed(temporary, **arrays)


def write_labels(path: str | Path, frame: np.ndarray, labels: np.ndarray) -> None:
    with atomic(path) as temporary:
        np.savez_compressed(temporary, frame=frame.astype(np.int32), labels=labels.astype(np.uint8))


def natural(name: str) -> tuple:
    """Sort key: study 9 before study 10."""
    return (0, int(name), "") if name.isdigit() else (1, 0, name)


def read_timelines(labels_dir: str | Path) -> dict[str, np.ndarray]:
    """Study -> labels uint8 [T, 17] of every label file: also of studies without scores, whose order teaches too."""
    paths = sorted(Path(labels_dir).glob("*.npz"), key=lambda p: natural(p.stem))
    return {path.stem: read_labels(path)[1] for path in paths}


def read_studies(probs_dir: str | Path, labels_dir: str | Path | None = None) -> list[StudyScores]:
    """All studies of a folder in natural order; with `labels_dir`, truth is required, frame by frame.

    Where stage 03 left a manifest.json, the studies are those it names: others are an earlier test set's.
    """
    probs_dir = Path(probs_dir)
    paths = sorted(probs_dir.glob("*.npz"), key=lambda p: natural(p.stem))
    if (manifest := probs_dir / "manifest.json").exists():
        named = json.loads(manifest.read_text())["studies"]
        if absent := [name for name in named if not (probs_dir / f"{name}.npz").exists()]:
            raise UserError(f"{probs_dir / absent[0]}.npz: named in manifest.json, but missing; run stage 03 again")
        paths = [path for path in paths if path.stem in named]
    if not paths:
        raise UserError(f"{probs_dir}: no score files (*.npz); run stage 03 first, or put another model's scores there")
    studies = []
    for path in paths:
        frame, probs = read_probs(path)
        labels = None
        if labels_dir is not None:
            truth = Path(labels_dir) / path.name
            if not truth.exists():
                raise UserError(f"{truth}: missing; {path} has scores but no labels")
            label_frame, labels = read_labels(truth)
            if not np.array_equal(frame, label_frame):
                only = len(np.setxor1d(frame, label_frame))
                raise UserError(f"{path} and {truth} hold different frames ({only} in one of them only)")
        studies.append(StudyScores(path.stem, frame, probs, labels))
    return studies
