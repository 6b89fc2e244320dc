"""What lies below a data set's root: folders of frames, and tables. Only names are read here, no table and no image.

Hidden files (`.DS_Store`, `._frame_1.PNG`) are never frames.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from rarevision.data.errors import DataError

FRAME = re.compile(r"(frame_)(\d+)(\.(?:png|jpg|jpeg))", re.IGNORECASE | re.ASCII)
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}

Variant = tuple[str, int, str]  # one way of writing a frame's file name: prefix, number of digits, suffix


def file_name(variant: Variant, number: int) -> str:
    prefix, digits, suffix = variant
    return f"{prefix}{number:0{digits}d}{suffix}"


@dataclass(frozen=True)
class Folder:
    """The frames of one study, in the order of their numbers."""

    path: str  # below root
    frame: np.ndarray  # int32 [n] ascending, the numbers in the file names
    variant: np.ndarray  # uint8 [n], position in the scan's `variants`


@dataclass
class Scan:
    """What one walk below a root has found."""

    folders: dict[str, Folder] = field(default_factory=dict)  # by study
    variants: dict[Variant, int] = field(default_factory=dict)  # each way of writing names, in the order of first use
    tables: list[Path] = field(default_factory=list)
    unnamed: dict[str, list[str]] = field(default_factory=dict)  # by folder: images without a frame number
    faults: list[str] = field(default_factory=list)  # each forbids reading the data set
    seen: list[str] = field(default_factory=list)  # every folder, below root

    def names(self, folder: Folder) -> list[str]:
        """File names of a study's frames, in order."""
        variants = list(self.variants)
        return [file_name(variants[v], n) for n, v in zip(folder.frame.tolist(), folder.variant.tolist(), strict=True)]

    def raise_faults(self) -> None:
        if self.faults:
            more = f" (and {len(self.faults) - 1} more faults; `verify` lists all)" if len(self.faults) > 1 else ""
            raise DataError(self.faults[0] + more)


def scan(root: Path, progress: bool = True) -> Scan:
    """Walk a data set once: study folders, tables, and faults of names and links."""
    found, real = Scan(), root.resolve()
    todo, visited = [root], set()
    bar = tqdm(desc="folders", disable=not progress, unit="folder")
    while todo:
        folder = todo.pop()
        resolved = folder.resolve()
        if not resolved.is_relative_to(real):
            found.faults.append(f"{folder}: a link out of {root}, to {resolved}; move the folder below the root")
            continue
        if resolved in visited:
            found.faults.append(f"{folder}: a link to {resolved}, which is read already; remove the link")
            continue
        visited.add(resolved)
        found.seen.append(os.path.relpath(folder, root))
        try:
            todo.extend(_read_folder(root, folder, real, found))
        except PermissionError:
            found.faults.append(f"{folder}: no permission to list it; run `chmod u+rx` on it")
        bar.update()
    bar.close()
    return found


def _read_folder(root: Path, folder: Path, real: Path, found: Scan) -> list[Path]:
    """Take in one folder's files; returns its subfolders."""
    numbers, codes, unnamed, below = [], [], [], []
    variants = found.variants
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            if entry.is_dir():
                below.append(folder / name)
                continue
            parts, suffix = FRAME.fullmatch(name), os.path.splitext(name)[1]
            table = suffix.lower() == ".csv"
            regular = entry.is_file(follow_symlinks=False)
            if (parts or table) and not regular and (fault := _link_fault(folder / name, root, real)):
                found.faults.append(fault)
                continue
            if table:
                found.tables.append(folder / name)
            elif parts:
                digits = parts[2]
                if len(digits) > 10 or (number := int(digits)) > 2**31 - 1:
                    found.faults.append(f"{folder / name}: the frame number does not fit 32 bits; rename the file")
                    continue
                numbers.append(number)
                codes.append(variants.setdefault((parts[1], len(digits), suffix), len(variants)))
            elif suffix.lower() in IMAGES:
                unnamed.append(name)
    if unnamed:
        found.unnamed[os.path.relpath(folder, root)] = sorted(unnamed)
    if numbers:
        if unnamed:
            found.faults.append(
                f"{folder / min(unnamed)}: not named frame_<number>.png or .jpg, among {len(numbers)} frames that are "
                f"({len(unnamed)} such files); rename or remove"
            )
        _add_study(root, folder, numbers, codes, found)
    return below


def _link_fault(path: Path, root: Path, real: Path) -> str:
    """What is wrong with a frame or table that is no regular file; a link to a place below the root is in order."""
    if not path.is_symlink():
        return f"{path}: not a regular file; remove it"
    target = path.resolve()
    return "" if target.is_relative_to(real) else f"{path}: a link out of {root}, to {target}; copy the file instead"


def _add_study(root: Path, folder: Path, numbers: list[int], codes: list[int], found: Scan) -> None:
    """Put the frames of one folder in order: they are a study of the folder's name."""
    if len(found.variants) > 255:
        raise DataError(f"{folder}: more than 255 ways of writing a frame's file name; rename the files to one")
    order = np.argsort(numbers, kind="stable")
    frame, variant = np.asarray(numbers, np.int32)[order], np.asarray(codes, np.uint8)[order]
    part = Folder(os.path.relpath(folder, root), frame, variant)
    twice = np.flatnonzero(np.diff(frame) == 0)
    if len(twice):
        a, b = found.names(part)[twice[0] : twice[0] + 2]
        found.faults.append(
            f"{folder}: {a} and {b} have the same frame number ({len(twice)} such pairs); remove one of them"
        )
    study = folder.resolve().name if folder == root else folder.name
    if study in found.folders:
        found.faults.append(
            f"study {study!r} lies in two parts, {root / found.folders[study].path} and {folder}; one patient is one "
            "study: put all frames into one folder"
        )
    else:
        found.folders[study] = part


def labels_folder(root: Path, labels: str, found: Scan) -> Path:
    """The folder of label CSVs: `root/labels`, or the newest (by the date in its name) whose name contains "labels"."""
    holding = sorted({t.parent for t in found.tables if "labels" in t.parent.name.lower()})
    if labels:
        folder = root / labels
        if not folder.is_dir():
            names = ", ".join(os.path.relpath(f, root) for f in holding) or "none"
            raise DataError(f"{folder}: no such labels folder (data.labels); folders with labels there: {names}")
        return folder
    if not holding:
        raise DataError(f'{root}: no folder of CSVs whose name contains "Labels"; set data.labels to it')
    dates = [max(re.findall(r"(?<!\d)20\d{6}(?!\d)", f.name), default="") for f in holding]
    newest = [f for date, f in zip(dates, holding, strict=True) if date == max(dates)]
    if len(newest) > 1:
        raise DataError(
            f"{newest[0]} and {newest[1]}: which labels are newer cannot be told from the names; set data.labels to one"
        )
    return newest[0]
