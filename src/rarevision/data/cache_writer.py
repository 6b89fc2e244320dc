"""The making of the frame cache: what changed since the last time is decoded, brought to a small size and written.

A study is written whole or not at all. One whose source files or recipe changed is written again, the others stay.
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import shutil
import tarfile
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from tqdm.auto import tqdm

from rarevision.config import Data
from rarevision.data.cache import Cache, load_table, location, save_table
from rarevision.data.errors import DataError, FrameError
from rarevision.data.image import decode, png_kind, read_bytes, shrink
from rarevision.data.index import FrameIndex
from rarevision.data.view import View, study_view
from rarevision.files import atomic

CHUNK = 16  # frames a worker takes at a time
UNREAD = bytes(16)  # in place of the hash of a file that cannot be read
TAR_BLOCK = 512  # bytes; a tar member is a header of one block, then its content in whole blocks


class Encoded(NamedTuple):
    """One frame out of a worker, and the state of the source file that it was made from."""

    jpeg: bytes  # b"" where the frame cannot be decoded
    reason: str  # why not
    size: int
    mtime: int
    content: bytes
    mode: str  # "RGBA" or "palette" where the source was that; else ""


def build_cache(index: FrameIndex, data: Data, progress: bool = True, content: bool = False) -> Cache:
    """Bring the cache of all frames of `index` up to date and open it.

    `content`: compare source files by content hash (reads every file), not by size and time of writing. Raises
    DataError when the disk cannot hold the cache, or a study has more bad frames than `data.max_bad_share`; finished
    studies are kept in every case.
    """
    folder = location(index, data)

    def outdated() -> list[str]:
        studies = tqdm(index.studies, "check cache", disable=not progress, unit="study", leave=False)
        return [study for study in studies if not _is_current(index, study, folder, content)]

    if content or outdated():  # ranks of one run look at the same time; only the first to hold the lock writes
        with _locked(folder):
            if todo := outdated():
                _write(index, data, folder, todo, progress)
    cache = Cache(index, folder)
    cache.check_bad(data.max_bad_share)
    return cache


def _is_current(index: FrameIndex, study: str, folder: Path, content: bool) -> bool:
    """Whether a study's tar is as its source files are."""
    try:
        table = load_table(folder, study)
    except DataError:
        return False
    if not np.array_equal(table["frame"], index.frame[index.rows(study)]):
        return False
    paths = [f"{index.folder(study)}/{name}" for name in index.names(study)]
    states = np.array([_state(path) for path in paths], np.int64)
    if not content:
        return np.array_equal(states, np.stack([table["size"], table["mtime"]], 1))
    if any(_content(path) != was.tobytes() for path, was in zip(paths, table["content"], strict=True)):
        return False
    table["size"], table["mtime"] = states.T  # so that the next look at sizes and times is satisfied too
    save_table(folder, study, table)
    return True


def _state(path: str) -> tuple[int, int]:
    """Size and mtime (ns) of a source file; -1, -1 where there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def _hash(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=16).digest()


def _content(path: str) -> bytes:
    try:
        return _hash(read_bytes(path))
    except FrameError:
        return UNREAD


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One builder at a time: a second process waits, then finds the work done."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for part in folder.glob(".*.tmp.*"):  # of a builder that was killed: nobody else holds the lock
            part.unlink()
        yield


def _write(index: FrameIndex, data: Data, folder: Path, todo: list[str], progress: bool) -> None:
    total = len(index.select(todo))
    each = _estimate(index, data, todo)
    needed, free = total * each, shutil.disk_usage(folder).free
    text = (
        f"{total:,} frames of {len(todo)} studies, about {needed / 1e9:.2f} GB ({each / 1e3:.0f} kB each) in {folder}"
    )
    if needed > 0.98 * free:
        raise DataError(
            f"cache: {text}, but only {free / 1e9:.2f} GB are free there; set data.cache_root or data.cache"
        )
    if progress:
        tqdm.write(f"cache: {text}; {free / 1e9:.1f} GB free")

    def jobs() -> Iterator[tuple]:
        for study in todo:
            view, names = study_view(index, study, data), index.names(study)
            for start in range(0, len(names), CHUNK):
                part = names[start : start + CHUNK]
                yield str(index.folder(study)), part, view, data.cache_size, data.cache_quality

    workers = len(os.sched_getaffinity(0)) if data.workers == -1 else max(data.workers, 1)
    bar = tqdm(total=total, desc="cache", unit="frame", disable=not progress)
    try:
        with bar, contextlib.closing(_results(jobs(), workers)) as results:
            for study in todo:
                bar.set_postfix_str(f"study {study}", refresh=False)
                _write_study(index, folder, study, results, bar)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DataError(f"disk full while writing {folder}; finished studies are kept: make room, run again") from None


def _estimate(index: FrameIndex, data: Data, todo: list[str]) -> float:
    """Bytes per frame in the tar, from the middle frames of up to eight studies."""
    sizes = []
    for study in todo[:: -(-len(todo) // 8)]:
        names = index.names(study)
        view = study_view(index, study, data) if data.field_of_view == "crop" else None
        middle = names[len(names) // 2 : len(names) // 2 + 2]
        made = _encode(str(index.folder(study)), middle, view, data.cache_size, data.cache_quality)
        sizes += [len(one.jpeg) for one in made if one.jpeg]
    jpeg = float(np.mean(sizes)) if sizes else 0.4 * data.cache_size**2
    return jpeg + TAR_BLOCK + TAR_BLOCK / 2  # header, and half a block for the rounding to whole ones


def _results(jobs: Iterable[tuple], workers: int) -> Generator[Encoded, None, None]:
    """The frames of all jobs for `_encode`, in order, a bounded number in flight.

    Threads, not processes: reading, decoding, resizing, hashing and encoding all run outside Python's lock, nothing is
    copied between workers, and Ctrl-C ends all of them at once.
    """
    cv2.setNumThreads(0)  # a frame per thread; threads inside would only compete
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    pending: deque = deque()
    try:
        for job in jobs:
            pending.append(pool.submit(_encode, *job))
            if len(pending) >= 3 * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)


def _encode(folder: str, names: list[str], view: View | None, size: int, quality: int) -> list[Encoded]:
    return [_encode_one(os.path.join(folder, name), view, size, quality) for name in names]


def _encode_one(path: str, view: View | None, size: int, quality: int) -> Encoded:
    state, content = _state(path), UNREAD
    try:
        raw = read_bytes(path)
        content = _hash(raw)
        image = decode(raw, path)
    except FrameError as error:
        return Encoded(b"", error.reason, *state, content, "")
    mode = {6: "RGBA", 3: "palette"}.get((png_kind(raw) or (8, 2))[1], "")
    if view is not None:
        image = view.apply(image)
    image = cv2.cvtColor(shrink(image, size), cv2.COLOR_RGB2BGR)
    # colour is the finding: its two channels keep the full resolution (4:4:4)
    sampling = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
    _, jpeg = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality, *sampling])
    return Encoded(jpeg.tobytes(), "", *state, content, mode)


def _write_study(index: FrameIndex, folder: Path, study: str, results: Iterator[Encoded], bar: tqdm) -> None:
    names, bad = index.names(study), {}
    modes: Counter[str] = Counter()
    places, contents = [], []  # (offset, length, size, mtime) and content hash of each frame
    (folder / f"{study}.npz").unlink(missing_ok=True)  # a table never describes another tar than the one beside it
    with atomic(folder / f"{study}.tar") as temporary:
        with tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
            for i, name in enumerate(names):
                one, offset = next(results), 0
                if one.jpeg:
                    member = tarfile.TarInfo(f"{study}/{Path(name).stem}.jpg")
                    member.size, member.mtime, member.mode = len(one.jpeg), max(one.mtime, 0) // 10**9, 0o644
                    offset = tar.offset + TAR_BLOCK
                    tar.addfile(member, io.BytesIO(one.jpeg))
                else:
                    bad[i] = one.reason
                places.append((offset, len(one.jpeg), one.size, one.mtime))
                contents.append(one.content)
                modes.update([one.mode] if one.mode else [])
                bar.update()
        facts = {"bytes": temporary.stat().st_size, "bad": bad, "converted": modes}
    offset, length, size, mtime = np.array(places, np.int64).T
    table: dict[str, Any] = {"frame": index.frame[index.rows(study)], "offset": offset, "size": size, "mtime": mtime}
    table |= {"length": length.astype(np.int32), "content": np.frombuffer(b"".join(contents), np.uint8).reshape(-1, 16)}
    save_table(folder, study, table | {"facts": facts})
