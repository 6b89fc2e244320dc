"""Galar and the challenge's test set: which frames they hold, where these lie, what they are labelled.

Frames and label rows are joined on the number in the file's name (the CSV's `frame`), never on `index`, which only
counts rows: PillCam studies have frame = 5 * index (Le Floch et al., Galar, Scientific Data 2025).

    rarevision verify DATA_ROOT [--full]     checks a data set before hours of training
"""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from rarevision.data.image import FrameError, check
from rarevision.data.index import FrameIndex, load
from rarevision.data.layout import DataError, Scan, labels_folder, read_label_csv, read_systems, read_test_csv, scan
from rarevision.files import digest
from rarevision.scores import natural

__all__ = ["DataError", "FrameIndex", "fingerprint", "read_galar", "read_test"]

SIZES = {336: "olympus", 480: "navicam", 512: "pillcam", 576: "pillcam"}  # px, width of a frame
RATIOS = {5: "pillcam", 1: "olympus"}  # frame / index, in Galar only


def fingerprint(root: str | Path) -> str:
    """Hash over name, size and mtime of every frame and table below root: any change of one changes it.

    Reads no file; a stat per file (about 5 us on a local disk, so 20 s for the whole of Galar).
    """
    root = Path(root)
    _require(root)
    seen = hashlib.sha256()
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        seen.update(f"{os.path.relpath(folder, root)}\n".encode(errors="surrogateescape"))
        for name in sorted(names):
            if not name.startswith("."):
                try:
                    stat = os.stat(f"{folder}/{name}")
                    facts = f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
                except FileNotFoundError:  # a broken link, or gone this instant: that is a state too
                    facts = f"{name}\0gone\n"
                seen.update(facts.encode(errors="surrogateescape"))
    return seen.hexdigest()


def read_galar(
    root: str | Path,
    labels: str = "",
    missing: Literal["error", "zero"] = "error",
    cache: str | Path | None = None,
    progress: bool = True,
) -> tuple[FrameIndex, pd.DataFrame]:
    """Index of the labelled frames below `root` and a coverage report, one line per study.

    Frames without labels and labels without frames are counted in the report and left out, so that partial copies
    work. `labels`: folder of CSVs below root ("" = the newest whose name contains "Labels"); `missing`: what a label
    column that a CSV lacks means; `cache`: parquet file that keeps the result and gives it back while no folder and no
    table changed.
    Raises DataError naming file and line for anything that cannot be right.
    """
    root = Path(root)
    _require(root)
    if cache is not None and Path(cache).exists():
        index, notes = load(cache)
        if notes.get("stamp") == _stamp(root, labels, missing, notes.get("seen", {})):
            return replace(index, root=root), _report(notes["report"])
    found = scan(root, progress)
    folder = labels_folder(root, labels, found)
    tables = {p.stem: p for p in tables_in(folder)}
    found.raise_faults()
    for name, images in found.unnamed.items():
        if Path(name).name in tables:
            raise DataError(f"{root / name / images[0]}: no frame number in the name; write frame_<number>.png")
    both = sorted(tables.keys() & found.folders.keys(), key=natural)
    if not both:
        raise DataError(
            f"{root}: no study has both frames and labels; frames of {_some(found.folders)}, labels ({folder}) of "
            f"{_some(tables)}; a study's folder and its CSV must have the same name"
        )
    systems = read_systems(found.tables)
    lines, parts = [], []
    studies = sorted(tables.keys() | found.folders.keys(), key=natural)
    for study in tqdm(studies, "labels", disable=not progress, unit="study"):
        line: dict[str, Any] = {"study": study, "on_disk": 0, "labelled": 0, "joined": 0, "ratio": np.nan, "note": ""}
        if study in tables:
            frame, values, counter = read_label_csv(tables[study], missing)
            line |= {"labelled": len(frame), "ratio": _ratio(frame, counter)}
        if study in found.folders:
            line |= _facts(root, found, study)
        line["system"] = systems.get(study) or _system(line)
        if line["system"] == "unknown" and study in systems:
            line["note"] = "metadata.csv: a capsule system other than PillCam, Olympus, NaviCam"
        if study in tables and study in found.folders:
            part = found.folders[study]
            joined, on_disk, labelled = np.intersect1d(part.frame, frame, assume_unique=True, return_indices=True)
            line["joined"] = len(joined)
            by_index = counter is not None and np.isin(part.frame, counter).mean() > 0.99
            if by_index and len(joined) < 0.9 * len(part.frame):
                line["note"] = "file numbers follow `index`, not `frame`: rename the files"
            if not len(joined):
                raise DataError(
                    f"{root / part.path} and {tables[study]}: nothing joined; files number {_span(part.frame)}, the "
                    f"`frame` column {_span(frame)}. {line['note']}"
                )
            parts.append(
                (study, line["system"], part.path, joined.astype(np.int32), part.variant[on_disk], values[labelled])
            )
        elif study in tables:
            line["note"] = "labels without frames"
        else:
            line["note"] = "frames without labels"
        lines.append(line)
    index = _index(root, found, parts)
    if cache is not None:
        seen = {"folders": found.seen, "tables": [os.path.relpath(p, root) for p in (*tables.values(), *found.tables)]}
        index.save(cache, {"stamp": _stamp(root, labels, missing, seen), "seen": seen, "report": lines})
    return index, _report(lines)


def _stamp(root: Path, labels: str, missing: str, seen: dict[str, list[str]]) -> str:
    """Changes when a name below root is added or removed, which a folder's mtime shows, or a table is written: no walk.

    `seen`: folders and tables as an earlier walk found them.
    """
    states: list[Any] = [labels, missing]
    for name in (*seen.get("folders", []), *seen.get("tables", [])):
        try:
            stat = (root / name).stat()
        except OSError:
            return ""
        states.append([name, stat.st_mtime_ns, 0 if name in seen["folders"] else stat.st_size])
    return digest(states)


def read_test(root: str | Path, progress: bool = True) -> tuple[FrameIndex, pd.DataFrame]:
    """Index (labels None) and coverage report of unlabelled studies: `<root>/[.../]<study>/frame_*.(png|jpg)`.

    A `<study>.csv` anywhere below root is only compared with the frames on disk.
    """
    root = Path(root)
    _require(root)
    found = scan(root, progress)
    found.raise_faults()
    if not found.folders:
        first = next((root / f / names[0] for f, names in found.unnamed.items()), None)
        raise DataError(
            f"{root}: no folder with frames; expected <study>/frame_<number>.png"
            + (f"; {first} has no frame number in its name" if first else "")
        )
    lists = (p for p in found.tables if "labels" not in p.parent.name.lower())  # those hold labels, not lists of frames
    tables = {p.stem: p for p in lists if p.stem in found.folders}
    lines, parts = [], []
    for study in sorted(found.folders, key=natural):
        part = found.folders[study]
        listed = read_test_csv(tables[study]) if study in tables else None
        line = {"study": study, "labelled": 0 if listed is None else len(listed), "ratio": np.nan, "note": ""}
        line |= _facts(root, found, study)
        line["joined"] = len(part.frame) if listed is None else len(np.intersect1d(part.frame, listed))
        line["system"] = "navicam" if "navi" in study.lower() else _system(line)
        if listed is not None and line["joined"] < max(len(listed), len(part.frame)):
            line["note"] = f"{tables[study].name} lists other frames than the folder holds"
        lines.append(line)
        parts.append((study, line["system"], part.path, part.frame, part.variant, None))
    return _index(root, found, parts), _report(lines)


def tables_in(folder: Path) -> list[Path]:
    """The label CSVs of a folder, one per study."""
    names = (p for p in folder.iterdir() if p.suffix.lower() == ".csv" and not p.name.startswith("."))
    return sorted((p for p in names if p.stem.lower() != "metadata"), key=lambda p: natural(p.stem))


def _require(root: Path) -> None:
    if not root.is_dir():
        raise DataError(
            f"{root}: no such folder; set data.root / data.test_root (DATA_ROOT, TEST_ROOT) to the data set"
        )


def _index(root: Path, found: Scan, parts: list[tuple]) -> FrameIndex:
    studies, systems, folders, frames, variants, labels = zip(*parts, strict=True)
    return FrameIndex(
        root=root,
        studies=studies,
        offsets=np.cumsum([0, *map(len, frames)]).astype(np.int64),
        frame=np.concatenate(frames),
        labels=None if labels[0] is None else np.concatenate(labels),
        systems=systems,
        folders=folders,
        variants=tuple(found.variants),
        variant=np.concatenate(variants),
    )


def _facts(root: Path, found: Scan, study: str) -> dict[str, Any]:
    """What the disk says of a study; the image size is the first frame's, from its header."""
    part = found.folders[study]
    facts = {"folder": part.path, "on_disk": len(part.frame), "first": int(part.frame[0]), "last": int(part.frame[-1])}
    try:
        width, height = check(root / part.path / found.name(part, 0))
    except FrameError as error:
        return facts | {"note": f"first frame: {error.reason}"}
    return facts | {"width": width, "height": height}


def _ratio(frame: np.ndarray, counter: np.ndarray | None) -> float:
    """Median of frame / index, 5 for PillCam and 1 for Olympus; NaN without a usable `index` column."""
    if counter is None or not (counter > 0).any():
        return float("nan")
    return round(float(np.median(frame[counter > 0] / counter[counter > 0])), 3)


def _system(line: dict[str, Any]) -> str:
    """Capsule system from the frame's width, else from frame / index, where metadata.csv does not say it."""
    return SIZES.get(line.get("width", 0)) or RATIOS.get(line["ratio"], "unknown")


def _report(lines: list[dict[str, Any]]) -> pd.DataFrame:
    order = ["system", "width", "height", "on_disk", "labelled", "joined", "only_on_disk", "only_labelled"]
    order += ["ratio", "first", "last", "folder", "note"]
    table = pd.DataFrame(lines).set_index("study")
    table["only_on_disk"] = table.on_disk - table.joined
    table["only_labelled"] = (table.labelled - table.joined).clip(lower=0)
    table = table.reindex(columns=order)
    whole = ["width", "height", "first", "last"]
    return table.astype(dict.fromkeys(whole, "Int64")).fillna({"folder": "", "note": ""})


def _some(names: Any) -> str:
    names = sorted(names, key=natural)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"


def _span(frame: np.ndarray) -> str:
    return f"{frame[0]}..{frame[-1]}"
