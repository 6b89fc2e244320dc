"""The frame cache: each source frame decoded once, one uncompressed tar of small JPEGs per study.

    <cache_root>/<data set>-<hash of its path>/<recipe>/<study>.tar    members <study>/frame_0000049.jpg, in frame order
                                                        <study>.npz    offsets, source sizes, times and content hashes

The tars are read by tar and by WebDataset, and by `Cache` through the offsets. A study is written whole or not at all;
one whose source files or recipe changed is written again, the others stay. Frames that cannot be decoded are left out
and recorded with the reason.
"""

import bisect
import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
import tarfile
import zipfile
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from tqdm.auto import tqdm

from rarevision.config import Data
from rarevision.data.galar import FrameIndex
from rarevision.data.image import FrameError, bad_frames, decode, png_kind, read_bytes, shrink
from rarevision.data.shared import SharedArrays
from rarevision.data.view import View, study_view
from rarevision.errors import UserError
from rarevision.files import atomic

VERSION = 2  # of the recipe's code: a change of what lies in the tars
CHUNK = 16  # frames a worker takes at a time
TORN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)  # of a table that is not whole
ROW = {"frame": np.int32, "offset": np.int64, "length": np.int32, "size": np.int64, "mtime": np.int64}


class CacheError(UserError):
    """The cache cannot be built or read; the message says what to do."""


@dataclass(frozen=True)
class Encoded:
    """One frame out of a worker: its JPEG, or why there is none, and the state of the source it was made from."""

    jpeg: bytes
    reason: str
    size: int
    mtime: int
    content: bytes
    kind: str


def location(index: FrameIndex, data: Data) -> Path:
    """The folder of a data set's tars under one recipe."""
    root = index.root.resolve()
    recipe = f"{data.cache_size}px-q{data.cache_quality}-{data.field_of_view}-{data.harmonise}-v{VERSION}"
    return Path(data.cache_root) / f"{root.name}-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}" / recipe


def _encode(folder: str, names: list[str], view: View | None, size: int, quality: int) -> list[Encoded]:
    return [_encode_one(os.path.join(folder, name), view, size, quality) for name in names]


def _encode_one(path: str, view: View | None, size: int, quality: int) -> Encoded:
    bytes_, mtime = _state(path)
    content, kind = b"\0" * 16, ""
    try:
        raw = read_bytes(path)
        content = hashlib.blake2b(raw, digest_size=16).digest()
        image = decode(raw, path)
        kind = {6: "RGBA", 3: "palette"}.get((png_kind(raw) or (8, 2))[1], "")
    except FrameError as error:
        return Encoded(b"", error.reason, bytes_, mtime, content, kind)
    if view is not None:
        image = view.apply(image)
    image = cv2.cvtColor(shrink(image, size), cv2.COLOR_RGB2BGR)
    _, jpeg = cv2.imencode(
        ".jpg",
        image,
        [
            cv2.IMWRITE_JPEG_QUALITY,
            quality,
            cv2.IMWRITE_JPEG_SAMPLING_FACTOR,
            cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
        ],
    )
    return Encoded(jpeg.tobytes(), "", bytes_, mtime, content, kind)


def _state(path: str) -> tuple[int, int]:
    """Size and mtime (ns) of a source file; -1, -1 where there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def _results(jobs: Iterable[tuple], workers: int) -> Iterator[list[Encoded]]:
    """`_encode` of each job in order, a bounded number in flight.

    Threads, not processes: reading, decoding, resizing, hashing and encoding all run outside Python's lock, nothing is
    copied between workers, and Ctrl-C ends all of them at once.
    """
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    pending: deque = deque()
    try:
        for job in jobs:
            pending.append(pool.submit(_encode, *job))
            if len(pending) >= 3 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One builder at a time: a second process waits, then finds the work done."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for part in folder.glob(".*.tmp.*"):  # of a builder that was killed: nobody else holds the lock
            part.unlink()
        yield


def _table(folder: Path, study: str) -> dict[str, Any] | None:
    """A finished study's arrays and facts, None where it is not finished."""
    try:
        with np.load(folder / f"{study}.npz", allow_pickle=False) as archive:
            table = {name: archive[name] for name in (*ROW, "content")} | {"facts": json.loads(str(archive["facts"]))}
        whole = (folder / f"{study}.tar").stat().st_size == table["facts"]["bytes"]
    except TORN:
        return None
    return table if whole else None


def _why_redo(index: FrameIndex, study: str, folder: Path, content: bool) -> str:
    """Why a study must be written (again); '' when its tar is as its source is."""
    table = _table(folder, study)
    if table is None:
        return "not there"
    if not np.array_equal(table["frame"], index.frame[index.rows(study)]):
        return "frames added or removed"
    source, states = str(index.folder(study)), []
    for i, name in enumerate(index.names(study)):
        path = f"{source}/{name}"
        states.append(_state(path))
        if content:
            try:
                same = hashlib.blake2b(read_bytes(path), digest_size=16).digest() == table["content"][i].tobytes()
            except FrameError:
                same = table["length"][i] == 0
        else:
            same = states[i] == (table["size"][i], table["mtime"][i])
        if not same:
            return f"{path} changed"
    if content:  # same content under new times: the next look at the times is satisfied too
        table["size"], table["mtime"] = np.array(states, np.int64).T
        _save(folder, study, table)
    return ""


def _save(folder: Path, study: str, table: dict[str, Any]) -> None:
    with atomic(folder / f"{study}.npz") as temporary:
        np.savez(temporary, **table | {"facts": np.array(json.dumps(table["facts"]))})


def build_cache(index: FrameIndex, data: Data, progress: bool = True, content: bool = False) -> "Cache":
    """Bring the cache of all frames of `index` up to date and open it.

    `content`: compare sources by content hash (reads every file) instead of size and mtime. Raises CacheError when the
    disk cannot hold it or a study has more bad frames than `data.max_bad_share` (listed by name and
    reason); finished studies are kept in every case.
    """
    folder = location(index, data)

    def outdated() -> list[str]:
        studies = tqdm(index.studies, "check cache", disable=not progress, unit="study", leave=False)
        return [study for study in studies if _why_redo(index, study, folder, content)]

    if content or outdated():  # ranks of one run look at the same time; only the first to hold the lock writes
        with _locked(folder):
            if todo := outdated():
                _write(index, data, folder, todo, progress)
    cache = Cache(index, folder)
    cache.check_bad(data.max_bad_share)
    return cache


def _write(index: FrameIndex, data: Data, folder: Path, todo: list[str], progress: bool) -> None:
    counts = {study: len(index.frame[index.rows(study)]) for study in todo}
    total = sum(counts.values())
    each = _estimate(index, data, todo)
    needed, free = total * each, shutil.disk_usage(folder).free
    text = (
        f"{total:,} frames of {len(todo)} studies, about {needed / 1e9:.2f} GB ({each / 1e3:.0f} kB each) in {folder}"
    )
    if needed > 0.98 * free:
        raise CacheError(
            f"cache: {text}, but only {free / 1e9:.2f} GB are free there; set data.cache_root or data.cache"
        )
    if progress:
        tqdm.write(f"cache: {text}; {free / 1e9:.1f} GB free")
    workers = len(os.sched_getaffinity(0)) if data.workers == -1 else max(data.workers, 1)
    cv2.setNumThreads(0)  # a frame per thread; threads inside would only compete

    def jobs() -> Iterator[tuple]:
        for study in todo:
            view, names = study_view(index, study, data), index.names(study)
            for start in range(0, len(names), CHUNK):
                part = names[start : start + CHUNK]
                yield str(index.folder(study)), part, view, data.cache_size, data.cache_quality

    bar = tqdm(total=total, desc="cache", unit="frame", disable=not progress)
    try:
        with bar, contextlib.closing(_results(jobs(), workers)) as results:
            for study in todo:
                bar.set_postfix_str(f"study {study}", refresh=False)
                _write_study(index, folder, study, results, bar)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise CacheError(f"disk full while writing {folder}; finished studies are kept: make room, run again") from None


def _estimate(index: FrameIndex, data: Data, todo: list[str]) -> float:
    """Bytes per frame in the tar, from the middle frames of up to eight studies."""
    sizes = []
    for study in todo[:: -(-len(todo) // 8)]:
        names = index.names(study)
        view = study_view(index, study, data) if data.field_of_view == "crop" else None
        middle = names[len(names) // 2 : len(names) // 2 + 2]
        made = _encode(str(index.folder(study)), middle, view, data.cache_size, data.cache_quality)
        sizes += [len(one.jpeg) for one in made if one.jpeg]
    return (float(np.mean(sizes)) if sizes else 0.4 * data.cache_size**2) + 512 + 256  # a member's header and padding


def _write_study(index: FrameIndex, folder: Path, study: str, results: Iterator[list[Encoded]], bar: tqdm) -> None:
    frame = index.frame[index.rows(study)]
    table: dict[str, Any] = {name: np.zeros(len(frame), kind) for name, kind in ROW.items()} | {"frame": frame}
    table["content"] = np.zeros((len(frame), 16), np.uint8)
    names, bad, kinds, i = index.names(study), {}, Counter(), 0
    (folder / f"{study}.npz").unlink(missing_ok=True)  # a table never describes another tar than the one beside it
    with atomic(folder / f"{study}.tar") as temporary:
        with tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
            while i < len(frame):
                for one in next(results):
                    table["size"][i], table["mtime"][i] = one.size, one.mtime
                    table["content"][i] = np.frombuffer(one.content, np.uint8)
                    if one.kind:
                        kinds[one.kind] += 1
                    if one.jpeg:
                        member = tarfile.TarInfo(f"{study}/{Path(names[i]).stem}.jpg")
                        member.size, member.mtime, member.mode = len(one.jpeg), max(one.mtime, 0) // 10**9, 0o644
                        tar.addfile(member, io.BytesIO(one.jpeg))
                        table["offset"][i] = tar.offset - -(-member.size // 512) * 512
                        table["length"][i] = member.size
                    else:
                        bad[i] = one.reason
                    i += 1
                    bar.update()
        table["facts"] = {"bytes": temporary.stat().st_size, "bad": bad, "converted": kinds}
    _save(folder, study, table)


class Cache(SharedArrays):
    """An open cache: `read(row)` for the rows of its index, from any number of processes and threads.

    `bad`: {row: reason} of frames that could not be decoded; `converted`: how many sources of which other mode were
    turned into RGB without loss. Only offsets are held: 12 bytes per frame, shared between workers.
    """

    _arrays = ("offset", "length")

    def __init__(self, index: FrameIndex, folder: Path):
        self.index, self.folder = index, folder
        self.offset, self.length = np.zeros(len(index), np.int64), np.zeros(len(index), np.int32)
        self.bad: dict[int, str] = {}
        self.converted: Counter = Counter()
        self._starts, self._files = index.offsets.tolist(), {}
        for study in index.studies:
            rows = index.rows(study)
            try:
                with np.load(folder / f"{study}.npz", allow_pickle=False) as table:
                    self.offset[rows], self.length[rows] = table["offset"], table["length"]
                    facts = json.loads(str(table["facts"]))
            except TORN as error:
                raise CacheError(f"{folder / study}.npz: no usable table ({error}); run build_cache") from None
            self.bad |= {rows.start + int(i): reason for i, reason in facts["bad"].items()}
            self.converted.update(facts["converted"])

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_files": {}}

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
            raise CacheError(f"{tar}: {error.strerror}; run again, what is missing is made again") from None
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB) if data else None
        if image is None:
            raise CacheError(f"{tar}: damaged at the frame of {self.index.path(row)}; delete the tar and run again")
        return image

    def check_bad(self, allowed: float) -> None:
        """CacheError listing every bad frame (the first 20, and how many more) if a study has more than its share."""
        codes = self.index.study_of(np.array(sorted(self.bad), np.int64))
        shares = np.bincount(codes, minlength=len(self.index.studies)) / np.diff(self.index.offsets)
        if (shares > allowed).any():
            errors = [FrameError(self.index.path(row), self.bad[row]) for row in sorted(self.bad)]
            raise CacheError(bad_frames(errors, len(self.index), allowed))
