"""Galar and the challenge's test set: which frames they hold, where these lie, what they are labelled.

Frames and label rows are joined on the number in the file's name (the CSV's `frame`), never on `index`, which only
counts rows: PillCam studies have frame = 5 * index (Le Floch et al., Galar, Scientific Data 2025).
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from rarevision.data.errors import DataError, FrameError
from rarevision.data.image import check
from rarevision.data.index import FrameIndex, load_notes
from rarevision.data.layout import Scan, labels_folder, scan
from rarevision.data.tables import read_label_csv, read_systems, read_test_csv
from rarevision.files import digest
from rarevision.scores import natural

SIZES = {336: "olympus", 480: "navicam", 512: "pillcam", 576: "pillcam"}  # px, width of a frame
RATIOS = {5: "pillcam", 1: "olympus"}  # frame / index, in Galar only
REPORT = ["system", "width", "height", "on_disk", "labelled", "joined", "only_on_disk", "only_labelled"]
REPORT += ["ratio", "first", "last", "folder", "note"]

Line = dict[str, Any]  # of the report: what is known of one study
Part = tuple[str, str, str, np.ndarray, np.ndarray, np.ndarray | None]  # study, system, folder, frame, variant, labels


def read_galar(
    root: str | Path,
    labels: str = "",
    missing: Literal["error", "zero"] = "error",
    cache: str | Path | None = None,
    progress: bool = True,
) -> tuple[FrameIndex, pd.DataFrame]:
    """Index of the labelled frames below `root` and a coverage report, one line per study.

    Frames without labels and labels without frames are counted in the report and left out, so that partial copies
    work. Raises DataError naming file and line for anything that cannot be right.

    labels   folder of CSVs below root; "" = the newest whose name contains "Labels"
    missing  what a label column means that a CSV lacks: "zero" reads it as 0, "error" raises
    cache    parquet file that keeps the result, and gives it back while no folder and no table changed
    """
    root = _existing(root)
    if cache is not None and Path(cache).exists():
        notes = load_notes(cache)
        if notes.get("stamp") == _stamp(root, labels, missing, notes.get("seen", {})):
            return replace(FrameIndex.load(cache), root=root), _report(notes["report"])
    found = scan(root, progress)
    folder = labels_folder(root, labels, found)
    tables = label_tables(folder)
    found.raise_faults()
    for name, images in found.unnamed.items():
        if Path(name).name in tables:
            raise DataError(f"{root / name / images[0]}: no frame number in the name; write frame_<number>.png")
    if not tables.keys() & found.folders.keys():
        raise DataError(
            f"{root}: no study has both frames and labels; frames of {_some(found.folders)}, labels ({folder}) of "
            f"{_some(tables)}; a study's folder and its CSV must have the same name"
        )
    systems = read_systems(found.tables)
    studies = sorted(tables.keys() | found.folders.keys(), key=natural)
    read = [
        _labelled_study(root, found, study, tables.get(study), systems.get(study, ""), missing)
        for study in tqdm(studies, "labels", disable=not progress, unit="study")
    ]
    lines = [line for line, _ in read]
    index = _index(root, found, [part for _, part in read if part is not None])
    if cache is not None:
        seen = {"folders": found.seen, "tables": [os.path.relpath(p, root) for p in (*tables.values(), *found.tables)]}
        index.save(cache, {"stamp": _stamp(root, labels, missing, seen), "seen": seen, "report": lines})
    return index, _report(lines)


def read_test(root: str | Path, progress: bool = True) -> tuple[FrameIndex, pd.DataFrame]:
    """Index (labels None) and coverage report of unlabelled studies: `<root>/[.../]<study>/frame_*.(png|jpg)`.

    A `<study>.csv` anywhere below root is only compared with the frames on disk.
    """
    root = _existing(root)
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
    lines, parts = [], list[Part]()
    for study in sorted(found.folders, key=natural):
        part = found.folders[study]
        listed = read_test_csv(tables[study]) if study in tables else None
        line: Line = {"study": study, "labelled": 0 if listed is None else len(listed), "ratio": np.nan, "note": ""}
        line |= _facts(root, found, study)
        line["joined"] = len(part.frame) if listed is None else len(np.intersect1d(part.frame, listed))
        line["system"] = "navicam" if "navi" in study.lower() else _system(line)
        if listed is not None and line["joined"] < max(len(listed), len(part.frame)):
            line["note"] = f"{tables[study].name} lists other frames than the folder holds"
        lines.append(line)
        parts.append((study, line["system"], part.path, part.frame, part.variant, None))
    return _index(root, found, parts), _report(lines)


def label_tables(folder: Path) -> dict[str, Path]:
    """The label CSVs of a folder, by study."""
    paths = [p for p in folder.iterdir() if p.suffix.lower() == ".csv" and not p.name.startswith(".")]
    return {p.stem: p for p in sorted(paths, key=lambda p: natural(p.stem)) if p.stem.lower() != "metadata"}


def _existing(root: str | Path) -> Path:
    root = Path(root)
    if not root.is_dir():
        raise DataError(
            f"{root}: no such folder; set data.root / data.test_root (DATA_ROOT, TEST_ROOT) to the data set"
        )
    return root


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


def _labelled_study(
    root: Path, found: Scan, study: str, table: Path | None, system: str, missing: Literal["error", "zero"]
) -> tuple[Line, Part | None]:
    """A study's line of the report, and its part of the index if it has both frames and labels."""
    line: Line = {"study": study, "on_disk": 0, "labelled": 0, "joined": 0, "ratio": np.nan, "note": ""}
    if table is not None:
        frame, labels, counter = read_label_csv(table, missing)
        line |= {"labelled": len(frame), "ratio": _ratio(frame, counter)}
    part = found.folders.get(study)
    if part is not None:
        line |= _facts(root, found, study)
    line["system"] = system or _system(line)
    if system == "unknown":
        line["note"] = "metadata.csv: a capsule system other than PillCam, Olympus, NaviCam"
    if table is None or part is None:
        return line | {"note": "frames without labels" if table is None else "labels without frames"}, None
    joined, on_disk, labelled = np.intersect1d(part.frame, frame, assume_unique=True, return_indices=True)
    line["joined"] = len(joined)
    by_index = counter is not None and np.isin(part.frame, counter).mean() > 0.99
    if by_index and len(joined) < 0.9 * len(part.frame):
        line["note"] = "file numbers follow `index`, not `frame`: rename the files"
    if not len(joined):
        raise DataError(
            f"{root / part.path} and {table}: nothing joined; files number {part.frame[0]}..{part.frame[-1]}, the "
            f"`frame` column {frame[0]}..{frame[-1]}. {line['note']}"
        )
    return line, (study, line["system"], part.path, joined, part.variant[on_disk], labels[labelled])


def _index(root: Path, found: Scan, parts: list[Part]) -> FrameIndex:
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


def _facts(root: Path, found: Scan, study: str) -> Line:
    """What the disk says of a study; the image size is the first frame's, from its header."""
    part = found.folders[study]
    facts = {"folder": part.path, "on_disk": len(part.frame), "first": int(part.frame[0]), "last": int(part.frame[-1])}
    try:
        width, height = check(root / part.path / found.names(part)[0])
    except FrameError as error:
        return facts | {"note": f"first frame: {error.reason}"}
    return facts | {"width": width, "height": height}


def _ratio(frame: np.ndarray, counter: np.ndarray | None) -> float:
    """Median of frame / index, 5 for PillCam and 1 for Olympus; NaN without a usable `index` column."""
    if counter is None or not (counter > 0).any():
        return float("nan")
    return round(float(np.median(frame[counter > 0] / counter[counter > 0])), 3)


def _system(line: Line) -> str:
    """Capsule system from the frame's width, else from frame / index, where metadata.csv does not say it."""
    return SIZES.get(line.get("width", 0)) or RATIOS.get(line["ratio"], "unknown")


def _report(lines: list[Line]) -> pd.DataFrame:
    table = pd.DataFrame(lines).set_index("study")
    table["only_on_disk"] = table.on_disk - table.joined
    table["only_labelled"] = (table.labelled - table.joined).clip(lower=0)
    table = table.reindex(columns=REPORT)
    return table.astype(dict.fromkeys(["width", "height", "first", "last"], "Int64")).fillna({"folder": "", "note": ""})


def _some(names: Any) -> str:
    names = sorted(names, key=natural)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"
