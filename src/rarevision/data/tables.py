"""The CSV tables of a data set: labels of a study's frames, lists of test frames, and which capsule made a study."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from rarevision.data.errors import DataError
from rarevision.data.layout import FRAME
from rarevision.labels import LABELS, normalise

# Words in the column "Capsule System" of metadata.csv, and the system that they stand for.
SYSTEMS = {"pillcam": "pillcam", "olympus": "olympus", "endocapsule": "olympus", "navi": "navicam", "ankon": "navicam"}


def _read_table(path: Path, key: str) -> tuple[pd.DataFrame, dict[str, str]]:
    """A CSV, its delimiter found from its header, and {normalised name: column}; `key` must be among them."""
    try:
        with open(path, encoding="utf-8-sig") as f:
            header = f.readline().strip("\r\n")
        if not header.strip():
            raise DataError(f"{path}: empty, or its first line is; expected a header with the column {key!r}")
        counts = {d: header.count(d) for d in ",;\t"}
        delimiter = max(counts, key=counts.__getitem__)
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
