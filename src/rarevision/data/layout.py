"""The layout on disk: frame folders, label tables and metadata, as Galar and the challenge hand them out.

Everything here reads names and tables, no image. Hidden files (`.DS_Store`, `._frame_1.PNG`) are never frames.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from rarevision.errors import UserError
from rarevision.labels import LABELS, normalise

FRAME = re.compile(r"(frame_)(\d+)(\.(?:png|jpg|jpeg))", re.IGNORECASE | re.ASCII)
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
SYSTEMS = {"pillcam": "pillcam", "olympus": "olympus", "endocapsule": "olympus", "navi": "navicam", "ankon": "navicam"}


class DataError(UserError):
    """A data set that cannot be read; the message names the file, the place, what is wrong and what to do."""


@dataclass(frozen=True)
class Folder:
    """The frames of one study: `frame` int32 [n] ascending, `variant` uint8 [n] into the scan's `variants`."""

    path: str  # below root
    frame: np.ndarray
    variant: np.ndarray


@dataclass
class Scan:
    """What lies below a root. `faults`: lines that each forbid reading; `unnamed`: images without a frame number."""

    folders: dict[str, Folder] = field(default_factory=dict)
    variants: dict[tuple[str, int, str], int] = field(default_factory=dict)
    tables: list[Path] = field(default_factory=list)
    unnamed: dict[str, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)  # every folder, below root

    def name(self, folder: Folder, i: int) -> str:
        """File name of a study's i-th frame."""
        prefix, digits, suffix = list(self.variants)[folder.variant[i]]
        return f"{prefix}{folder.frame[i]:0{digits}d}{suffix}"

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
        try:
            found.seen.append(os.path.relpath(folder, root))
            todo.extend(_read_folder(root, folder, real, found))
        except PermissionError:
            found.faults.append(f"{folder}: no permission to list it; run `chmod u+rx` on it")
        bar.update()
    bar.close()
    return found


def _read_folder(root: Path, folder: Path, real: Path, found: Scan) -> list[Path]:
    """Take in one folder's files; returns its subfolders."""
    numbers, codes, unnamed, below = [], [], [], []
    variants, match = found.variants, FRAME.fullmatch
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            if entry.is_dir():
                below.append(folder / name)
                continue
            suffix = os.path.splitext(name)[1].lower()
            parts = match(name)
            if (parts or suffix == ".csv") and not entry.is_file(follow_symlinks=False):
                if not entry.is_symlink():
                    found.faults.append(f"{folder / name}: not a regular file; remove it")
                    continue
                target = (folder / name).resolve()
                if not target.is_relative_to(real):
                    found.faults.append(f"{folder / name}: a link out of {root}, to {target}; copy the file instead")
                    continue
            if parts:
                prefix, digits, suffix = parts.groups()
                if len(digits) > 10 or (number := int(digits)) > 2**31 - 1:
                    found.faults.append(f"{folder / name}: the frame number does not fit 32 bits; rename the file")
                    continue
                numbers.append(number)
                codes.append(variants.setdefault((prefix, len(digits), suffix), len(variants)))
            elif suffix in IMAGES:
                unnamed.append(name)
            elif suffix == ".csv":
                found.tables.append(folder / name)
    path = os.path.relpath(folder, root)
    if unnamed:
        found.unnamed[path] = sorted(unnamed)
    if not numbers:
        return below
    if unnamed:
        found.faults.append(
            f"{folder / min(unnamed)}: not named frame_<number>.png or .jpg, among {len(numbers)} frames that are "
            f"({len(unnamed)} such files); rename or remove"
        )
    if len(variants) > 255:
        raise DataError(f"{folder}: more than 255 ways of writing a frame's file name; rename the files to one")
    order = np.argsort(np.asarray(numbers, np.int64), kind="stable")
    frame, variant = np.asarray(numbers, np.int32)[order], np.asarray(codes, np.uint8)[order]
    twice = np.flatnonzero(np.diff(frame) == 0)
    if len(twice):
        a, b = (found.name(Folder(path, frame, variant), i) for i in (twice[0], twice[0] + 1))
        found.faults.append(
            f"{folder}: {a} and {b} have the same frame number ({len(twice)} such pairs); remove one of them"
        )
    study = folder.name if path != "." else folder.resolve().name
    if study in found.folders:
        found.faults.append(
            f"study {study!r} lies in two parts, {root / found.folders[study].path} and {folder}; one patient is one "
            "study: put all frames into one folder"
        )
    else:
        found.folders[study] = Folder(path, frame, variant)
    return below


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
    dated = [(max(re.findall(r"(?<!\d)20\d{6}(?!\d)", f.name), default=""), f) for f in holding]
    newest = [f for date, f in dated if date == max(d for d, _ in dated)]
    if len(newest) > 1:
        raise DataError(
            f"{newest[0]} and {newest[1]}: which labels are newer cannot be told from the names; set data.labels to one"
        )
    return newest[0]


def _read_table(path: Path, key: str) -> tuple[pd.DataFrame, dict[str, str]]:
    """A CSV, its delimiter found from its header, and {normalised name: column}; `key` must be among them."""
    try:
        with open(path, encoding="utf-8-sig") as f:
            header = f.readline().strip("\r\n")
        if not header.strip():
            raise DataError(f"{path}: empty, or its first line is; expected a header with the column {key!r}")
        counts = {d: header.count(d) for d in ",;\t"}
        delimiter = max(counts, key=counts.get)
        if not counts[delimiter] and normalise(header.strip('"')) != key:
            raise DataError(
                f"{path}: unknown delimiter in the header {header[:60]!r}; comma, semicolon and tab are read"
            )
        table = pd.read_csv(path, sep=delimiter, encoding="utf-8-sig", low_memory=False, index_col=False)
    except (UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"{path}: not a readable CSV ({str(error).strip()})") from None
    except PermissionError:
        raise DataError(f"{path}: no permission to read it; run `chmod u+r` on it") from None
    names: dict[str, str] = {}
    for column in table.columns:
        name = normalise(str(column))
        if name in names and (name in LABELS or name == key):
            raise DataError(f"{path}: columns {names[name]!r} and {column!r} are the same label; keep one")
        # pandas renames a repeated header to `name.1`; for ours that is the same fault
        if (original := re.sub(r"\.\d+$", "", name)) != name and (original in LABELS or original == key):
            raise DataError(f"{path}: column {original!r} occurs twice; keep one")
        names[name] = column
    if key not in names:
        have = ", ".join(map(str, table.columns[:8]))
        raise DataError(f"{path}: no column {key!r}; it has {have}{', ...' if len(table.columns) > 8 else ''}")
    if not len(table):
        raise DataError(f"{path}: a header and no rows")
    return table, names


def _shown(column: pd.Series, row: int) -> str:
    value = column.iloc[row]
    return "an empty cell" if pd.isna(value) else repr(value.item() if isinstance(value, np.generic) else value)


def _integers(path: Path, column: pd.Series, name: str) -> np.ndarray:
    """Whole numbers in 0 .. 2^31 - 1, or an error that names the row."""
    values = pd.to_numeric(column, errors="coerce").to_numpy(float, na_value=np.nan)
    bad = ~((values >= 0) & (values < 2**31) & (values == np.floor(values)))
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(f"{path}: row {row + 1}, column {name!r}: {_shown(column, row)} is not a frame number")
    return values.astype(np.int64)


def read_label_csv(path: Path, missing: str = "error") -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """One study's CSV (27 or 32 columns): `frame` int32 [n], `labels` uint8 [n, 17], `index` int64 [n] or None.

    Rows come back with `frame` ascending. `missing`: "zero" reads an absent label column as 0, "error" raises.
    """
    table, names = _read_table(path, "frame")
    frame = _integers(path, table[names["frame"]], "frame")
    if len(np.unique(frame)) < len(frame):
        row = int(np.argmax(pd.Series(frame).duplicated()))
        raise DataError(f"{path}: frame {frame[row]} occurs twice (row {row + 1}); each frame has one row")
    absent = [name for name in LABELS if name not in names]
    if absent and missing == "error":
        raise DataError(
            f"{path}: no column for {', '.join(map(repr, absent))}; if they were never annotated there, "
            'data.missing_labels = "zero" reads them as 0'
        )
    labels = np.zeros((len(frame), len(LABELS)), np.uint8)
    for i, name in enumerate(LABELS):
        if name in absent:
            continue
        column = table[names[name]]
        values = pd.to_numeric(column, errors="coerce").to_numpy(float, na_value=np.nan)
        bad = ~np.isin(values, (0, 1))
        if bad.any():
            row = int(np.argmax(bad))
            raise DataError(
                f"{path}: row {row + 1} (frame {frame[row]}), column {names[name]!r}: {_shown(column, row)} is not 0 "
                f"or 1 ({int(bad.sum())} such values in the column)"
            )
        labels[:, i] = values
    counter = None
    if "index" in names:
        counter = pd.to_numeric(table[names["index"]], errors="coerce").fillna(-1).to_numpy(np.int64)
    order = np.argsort(frame)
    return frame[order].astype(np.int32), labels[order], None if counter is None else counter[order]


def read_test_csv(path: Path) -> np.ndarray:
    """Frame numbers int64 [n] ascending of the challenge's semicolon CSV; its label columns are empty and ignored."""
    table, names = _read_table(path, "frame file")
    numbers = []
    for row, value in enumerate(table[names["frame file"]].astype(str)):
        parts = FRAME.fullmatch(value.replace("\\", "/").rsplit("/", 1)[-1].strip())
        if not parts:
            raise DataError(f"{path}: row {row + 1}, column 'frame_file': {value!r} is not frame_<number>.png")
        numbers.append(int(parts[2]))
    frame = np.unique(numbers)
    if len(frame) < len(numbers):
        row = int(np.argmax(pd.Series(numbers).duplicated()))
        raise DataError(f"{path}: frame {numbers[row]} is listed twice (row {row + 1})")
    return frame


def read_systems(tables: list[Path]) -> dict[str, str]:
    """Capsule system per study from `metadata.csv`, if there is one; 'unknown' where it names none of ours."""
    systems = {}
    for path in (t for t in tables if t.stem.lower() == "metadata"):
        table, names = _read_table(path, "file name")
        if "capsule system" not in names:
            raise DataError(f"{path}: no column 'Capsule System'; it has {', '.join(map(str, table.columns))}")
        pairs = zip(table[names["file name"]].astype(str), table[names["capsule system"]].astype(str), strict=True)
        for name, value in pairs:
            known = [system for word, system in SYSTEMS.items() if word in value.lower()]
            if value.strip() and value != "nan":
                study = re.sub(r"\.(csv|zip|0)$", "", name.strip(), flags=re.IGNORECASE)
                systems[study] = known[0] if known else "unknown"
    return systems
