"""The frame cache as it lies on disk, and its reading: each source frame as a small JPEG, one tar per study.

    <cache_root>/<data set>-<hash of its path>/<recipe>/<study>.tar    members <study>/frame_0000049.jpg, in frame order
                                                        <study>.npz    where each frame lies in the tar, and the state
                                                                       of the source file that it was made from

The tars are uncompressed, so that `Cache` reads one frame at its offset; tar and WebDataset read them as well. Frames
that cannot be decoded are left out and recorded with the reason. `cache_writer` makes the files.
"""

import bisect
import hashlib
import json
import os
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from rarevision.config import Data
from rarevision.data.errors import DataError, FrameError
from rarevision.data.index import FrameIndex
from rarevision.data.shared import SharedArrays
from rarevision.files import atomic

VERSION = 2  # to be raised whenever the code changes what lies in the tars
COLUMNS = (
    "frame",  # int32 [n], the number in the file's name
    "offset",  # int64 [n], bytes from the tar's start to the JPEG
    "length",  # int32 [n], bytes of the JPEG; 0 = the frame cannot be decoded
    "size",  # int64 [n], bytes of the source file; -1 = there was none
    "mtime",  # int64 [n], ns, when the source file was last written
    "content",  # uint8 [n, 16], BLAKE2b of the source file's bytes
)


def location(index: FrameIndex, data: Data) -> Path:
    """The folder of a data set's tars under one recipe."""
    root = index.root.resolve()
    recipe = f"{data.cache_size}px-q{data.cache_quality}-{data.field_of_view}-{data.harmonise}-v{VERSION}"
    return Path(data.cache_root) / f"{root.name}-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}" / recipe


def save_table(folder: Path, study: str, table: dict[str, Any]) -> None:
    with atomic(folder / f"{study}.npz") as temporary:
        np.savez(temporary, **table | {"facts": np.array(json.dumps(table["facts"]))})


def load_table(folder: Path, study: str) -> dict[str, Any]:
    """A study's `COLUMNS` and `facts`; DataError unless table and tar are whole.

    facts   `bytes` of the tar, `bad` {position in the study: reason}, `converted` {mode: count}
    """
    path = folder / f"{study}.npz"
    try:
        with np.load(path, allow_pickle=False) as archive:
            table = {name: archive[name] for name in COLUMNS} | {"facts": json.loads(str(archive["facts"]))}
        size = path.with_suffix(".tar").stat().st_size
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"no usable table ({error})", file=path, remedy="run again, it is made again") from None
    if size != table["facts"]["bytes"]:
        raise DataError(f"made for a tar of {table['facts']['bytes']} bytes, not {size}", file=path)
    return table


class Cache(SharedArrays):
    """An open cache: `read(row)` for the rows of its index, from any number of processes and threads.

    bad        {row: reason} of frames that could not be decoded
    converted  {mode: count} of source files that were not RGB, but became it without loss

    Only offsets and lengths are held: 12 bytes per frame, shared between workers.
    """

    def __init__(self, index: FrameIndex, folder: Path):
        self.index, self.folder = index, folder
        self.offset, self.length = np.zeros(len(index), np.int64), np.zeros(len(index), np.int32)
        self.bad: dict[int, str] = {}
        self.converted: Counter[str] = Counter()
        self._starts = index.offsets.tolist()
        self._files: dict[int, int] = {}  # open tars by study
        for study in index.studies:
            rows, table = index.rows(study), load_table(folder, study)
            self.offset[rows], self.length[rows] = table["offset"], table["length"]
            self.bad |= {rows.start + int(i): reason for i, reason in table["facts"]["bad"].items()}
            self.converted.update(table["facts"]["converted"])

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_files": {}}  # a process opens its own

    def read(self, row: int) -> np.ndarray:
        """uint8 [h, w, 3] RGB; FrameError for a row in `bad`."""
        if row in self.bad:
            raise FrameError(self.index.path(row), self.bad[row])
        k = bisect.bisect_right(self._starts, row) - 1
        tar = self.folder / f"{self.index.studies[k]}.tar"
        try:
            if k not in self._files:
                self._files[k] = os.open(tar, os.O_RDONLY)
            data = os.pread(self._files[k], int(self.length[row]), int(self.offset[row]))
        except OSError as error:
            raise DataError(f"{tar}: {error.strerror}; run again, what is missing is made again") from None
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB) if data else None
        if image is None:
            raise DataError(f"{tar}: damaged at the frame of {self.index.path(row)}; delete the tar and run again")
        return image

    def check_bad(self, allowed: float) -> None:
        """DataError if a study has a larger share of bad frames than `allowed`; it lists the first 20 by name."""
        rows = sorted(self.bad)
        studies = self.index.study_of(np.array(rows, np.int64))
        shares = np.bincount(studies, minlength=len(self.index.studies)) / np.diff(self.index.offsets)
        if not (shares > allowed).any():
            return
        lines = [f"\n  {self.index.path(row)}: {self.bad[row]}" for row in rows[:20]]
        if len(rows) > 20:
            lines.append(f"\n  and {len(rows) - 20} more")
        raise DataError(
            f"{len(rows)} of {len(self.index)} frames ({len(rows) / len(self.index):.2%}) cannot be decoded; "
            f"data.max_bad_share allows {allowed:.2%} per study. Repair or remove them, or allow the share:"
            + "".join(lines)
        )
