"""Frames: every kind of broken file named, a cache that is the source's picture and survives what happens to it."""

import errno
import io
import multiprocessing.reduction
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from pathlib import Path

import cv2
import numpy as np
import open_clip
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, JpegImagePlugin
from torch.utils.data import DataLoader

from rarevision.config import Data
from rarevision.data import DataError, FrameDataset, FrameError, FrameIndex, cache_writer, open_reader, read_test
from rarevision.data.cache import location
from rarevision.data.cache_writer import build_cache
from rarevision.data.frames import SourceReader
from rarevision.data.image import decode, read_image, resize, shrink, square
from rarevision.files import fingerprint

REAL = Path(__file__).parents[3] / "shared" / "real_frames"


def picture(seed=0, height=48, width=48) -> np.ndarray:
    """Smooth like mucosa, with some grain."""
    lot = np.random.default_rng(seed)
    small = lot.integers(30, 220, (6, 6, 3)).astype(np.float32)
    image = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC) + lot.normal(0, 3, (height, width, 3))
    return np.clip(image, 0, 255).astype(np.uint8)


def encoded(image, format="PNG", **options) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, format, **options)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def sixteen_bit_rgb() -> bytes:
    rows = b"".join(b"\0" + bytes(6 * 4) for _ in range(4))
    header = struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def bomb(side=60_000) -> bytes:
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


RGB = Image.fromarray(picture())
PNG, JPEG = encoded(RGB), encoded(RGB, "JPEG", quality=95)


@pytest.mark.parametrize(
    "png", [PNG, encoded(RGB.convert("RGBA")), encoded(RGB.quantize(16)), encoded(RGB, optimize=True)]
)
def test_lossless_modes_decode_as_pil_does(png):
    assert np.array_equal(decode(png), np.asarray(Image.open(io.BytesIO(png)).convert("RGB")))


def test_jpeg_decodes_as_pil_does():
    assert np.array_equal(decode(JPEG), np.asarray(Image.open(io.BytesIO(JPEG))))


FAULTS = {
    "zero bytes": (b"", "zero bytes"),
    "text": (b"not a picture at all", "not an image"),
    "truncated png": (PNG[: len(PNG) // 2], "truncated"),
    "png without end": (PNG[:-12], "truncated"),
    "truncated jpeg": (JPEG[: len(JPEG) // 2], "truncated"),
    "header only": (PNG[:20], "damaged header|not an image"),
    "flipped bit": (PNG[:200] + bytes([PNG[200] ^ 1]) + PNG[201:], "checksum of chunk 'IDAT'"),
    "grey": (encoded(RGB.convert("L")), "wrong mode: grey"),
    "grey with alpha": (encoded(RGB.convert("LA")), "wrong mode: grey with alpha"),
    "black and white": (encoded(RGB.convert("1")), "wrong mode: black and white"),
    "grey jpeg": (encoded(RGB.convert("L"), "JPEG"), "wrong mode: grey"),
    "16 bit grey": (encoded(Image.fromarray(np.zeros((4, 4), np.uint16))), "wrong mode: 16 bit"),
    "16 bit colour": (sixteen_bit_rgb(), "wrong mode: 16 bit"),
    "alpha": (encoded(Image.new("RGBA", (4, 4), (9, 9, 9, 100))), "wrong mode: transparent"),
    "transparent palette": (encoded(RGB.quantize(4), transparency=0), "wrong mode: transparent"),
    "transparent colour": (encoded(Image.new("RGB", (4, 4)), transparency=(0, 0, 0)), "wrong mode: transparent"),
    "cmyk": (encoded(RGB.convert("CMYK"), "JPEG"), "wrong mode: CMYK"),
    "bomb": (bomb(), "absurd dimensions"),
    "large": (bomb(5000), "absurd dimensions"),
    "gif": (encoded(RGB, "GIF"), "a GIF file"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_kind_of_broken_file_is_named(tmp_path, name):
    content, reason = FAULTS[name]
    path = tmp_path / "frame_000001.png"
    path.write_bytes(content)
    with pytest.raises(FrameError, match=f"frame_000001.png: .*({reason})") as caught:
        read_image(path)
    assert caught.value.path == path and pickle.loads(pickle.dumps(caught.value)).reason == caught.value.reason


def test_vanished_or_linked(tmp_path):
    with pytest.raises(FrameError, match=r"x\.png: vanished"):
        read_image(tmp_path / "x.png")
    (tmp_path / "y.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(FrameError, match=r"y\.png: a broken link"):
        read_image(tmp_path / "y.png")
    (tmp_path / "z.png").mkdir()
    with pytest.raises(FrameError, match=r"z\.png: cannot be read"):
        read_image(tmp_path / "z.png")


def test_unreadable_permission(forbidding):
    path = forbidding / "x.png"
    path.write_bytes(PNG)
    assert read_image(path).shape == (48, 48, 3)
    path.chmod(0)
    with pytest.raises(FrameError, match=r"x\.png: no permission to read it"):
        read_image(path)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(PNG) - 1), st.integers(1, 255))
def test_no_damaged_byte_passes(at, change):
    with pytest.raises(FrameError):
        decode(PNG[:at] + bytes([PNG[at] ^ change]) + PNG[at + 1 :])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, len(PNG) - 1), st.integers(0, len(JPEG) - 3))
def test_no_truncation_passes(png, jpeg):
    for data in (PNG[:png], JPEG[:jpeg]):
        with pytest.raises(FrameError):
            decode(data)


@pytest.mark.parametrize(("height", "width"), [(480, 480), (336, 336), (300, 400), (401, 300)])
def test_evaluation_is_open_clips_own_transform(height, width):
    theirs = open_clip.image_transform(224, is_train=False, mean=(0, 0, 0), std=(1, 1, 1))
    image = picture(2, height, width)
    expected = 255 * theirs(Image.fromarray(image)).permute(1, 2, 0).numpy()
    difference = np.abs(square(image, 224) - expected)
    assert difference.mean() < 0.1 and difference.max() <= 2


@pytest.mark.skipif(not REAL.exists(), reason="real exams are not beside the checkout")
def test_real_frames_through_the_cache_are_within_a_grey_level(tmp_path):
    """By way of the 256 px JPEG, or straight to 224 px as open_clip does: compression and second resizing counted."""
    for study in read_test(REAL, progress=False)[0].studies:
        (tmp_path / "set" / study).mkdir(parents=True)
        for path in sorted((REAL / study).iterdir())[::40][:2]:
            shutil.copy(path, tmp_path / "set" / study)
    index, _ = read_test(tmp_path / "set", progress=False)
    cache = build_cache(index, Data(cache_root=str(tmp_path / "cache"), workers=1), progress=False)
    theirs = open_clip.image_transform(224, is_train=False, mean=(0, 0, 0), std=(1, 1, 1))
    frames, differences = FrameDataset(index, cache, 224), []
    for row in range(len(index)):
        expected = 255 * theirs(Image.open(index.path(row))).numpy()
        differences.append(np.abs(frames[row][0].numpy() - expected).mean())
    assert len(differences) == 8 and np.mean(differences) < 1


@pytest.mark.parametrize(("height", "width", "size"), [(480, 480, 256), (512, 512, 224), (300, 400, 96)])
def test_shrinking_is_pils_bicubic(height, width, size):
    image = picture(1, height, width)
    ours = shrink(image, size)
    theirs = Image.fromarray(image).resize(ours.shape[1::-1], Image.Resampling.BICUBIC)
    difference = np.abs(ours.astype(int) - np.asarray(theirs))
    assert difference.mean() < 0.1 and difference.max() <= 2
    assert shrink(image, 10_000) is image and min(shrink(image, size).shape[:2]) == size
    assert resize(image, height, width) is image


@pytest.fixture
def data(tmp_path):
    """Three unlabelled studies of 5, 6 and 7 frames of 48 px, and where their cache goes."""
    for k, study in enumerate(("a", "b", "c")):
        (tmp_path / "set" / study).mkdir(parents=True)
        for i in range(5 + k):
            Image.fromarray(picture(10 * k + i)).save(tmp_path / "set" / study / f"frame_{3 * i + 1:07d}.png")
    return Data(test_root=str(tmp_path / "set"), cache_root=str(tmp_path / "cache"), cache_size=32, workers=1)


def index_of(data) -> FrameIndex:
    return read_test(data.test_root, progress=False)[0]


def build(data, **options):
    return build_cache(index_of(data), data, progress=False, **options)


def frame_path(data, study, number) -> Path:
    return Path(data.test_root) / study / f"frame_{number:07d}.png"


def written(cache) -> dict[str, int]:
    return {study: (cache.folder / f"{study}.tar").stat().st_ino for study in cache.index.studies}


def test_cache_is_the_source_in_small(data):
    cache, index = build(data), index_of(data)
    for row in range(len(index)):
        expected = np.asarray(Image.open(index.path(row)).resize((32, 32), Image.Resampling.BICUBIC), int)
        assert np.abs(cache.read(row) - expected).mean() < 2.5  # what JPEG takes; the resizing is tested above


def test_source_is_untouched_and_the_size_stated_before(data, capsys):
    before = fingerprint(data.test_root)
    cache = build_cache(index_of(data), data)
    assert fingerprint(data.test_root) == before
    said = re.search(
        r"cache: 18 frames of 3 studies, about .* \(([\d.]+) kB each\) in .*; [\d.]+ GB free",
        "".join(capsys.readouterr()),
    )
    size = sum(p.stat().st_size for p in cache.folder.glob("*.tar")) / 18e3
    assert said and float(said[1]) == pytest.approx(size, rel=0.6)  # tars this small are padded by half


def test_tar_is_ordered_jpeg_without_subsampling(data):
    cache, index = build(data), index_of(data)
    listed = subprocess.run(["tar", "-tf", cache.folder / "b.tar"], capture_output=True, text=True, check=True).stdout
    assert listed.split() == [f"b/frame_{3 * i + 1:07d}.jpg" for i in range(6)]
    with tarfile.open(cache.folder / "b.tar") as tar:
        assert tar.getnames() == [f"b/frame_{3 * i + 1:07d}.jpg" for i in range(6)]
        for member, row in zip(tar, range(*index.rows("b").indices(len(index))), strict=True):
            image = Image.open(io.BytesIO(tar.extractfile(member).read()))
            assert JpegImagePlugin.get_sampling(image) == 0 and image.size == (32, 32)
            assert np.abs(np.asarray(image).astype(int) - cache.read(row)).max() <= 1
    assert not list(cache.folder.glob(".*.tmp.*"))


def test_small_frames_are_not_enlarged(data):
    assert build(Data(**vars(data) | {"cache_size": 64})).read(0).shape == (48, 48, 3)


def test_only_what_changed_is_redone(data):
    before = written(build(data))
    assert written(build(data)) == before
    changes = {
        "a": lambda: os.utime(frame_path(data, "a", 4), ns=(5, 5)),
        "b": lambda: frame_path(data, "b", 4).unlink(),
        "c": lambda: shutil.copy(frame_path(data, "c", 4), frame_path(data, "c", 5)),
    }
    for study, change in changes.items():
        change()
        after = written(build(data))
        assert {s for s in after if after[s] != before[s]} == {study}
        before = after
    Image.fromarray(picture(99)).save(frame_path(data, "a", 1))
    row = build(data).read(0)
    assert np.abs(row - square(picture(99), 32).astype(int)).mean() < 2.5


def test_content_hash_on_demand(data):
    before = written(build(data))
    path = frame_path(data, "a", 4)
    os.utime(path, ns=(5, 5))  # copied without times: other mtime, same content
    assert written(build(data, content=True)) == before
    raw, stat = path.read_bytes(), path.stat()
    path.write_bytes(raw[:-13] + bytes([raw[-13] ^ 1]) + raw[-12:])  # same size and time, one byte of a checksum
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert written(build(data)) == before
    cache = build(Data(**vars(data) | {"max_bad_share": 0.5}), content=True)
    assert written(cache)["a"] != before["a"] and "checksum" in cache.bad[1]


def test_recipes_and_data_sets_do_not_mix(data, tmp_path):
    other = Data(**vars(data) | {"cache_quality": 80})
    assert build(data).folder != build(other).folder
    shutil.copytree(data.test_root, tmp_path / "b" / "set")
    assert build(Data(**vars(data) | {"test_root": str(tmp_path / "b" / "set")})).folder != build(data).folder


def test_torn_or_foreign_files_are_written_again(data):
    cache = build(data)
    frames = [cache.read(row) for row in range(18)]
    (cache.folder / "a.tar").write_bytes(b"short")
    (cache.folder / "b.npz").write_bytes(b"not a table")
    table = (cache.folder / "c.npz").read_bytes()
    (cache.folder / ".c.1.2.tmp.tar").write_bytes(b"left by a killed run")
    again = build(data)
    assert all(np.array_equal(again.read(row), frames[row]) for row in range(18))
    assert not list(cache.folder.glob(".*.tmp.*"))
    for torn in (table[: len(table) // 2], table[:40] + b"\xff" * 40 + table[80:], b""):
        (cache.folder / "c.npz").write_bytes(torn)
        assert np.array_equal(build(data).read(17), frames[17])


def test_damaged_or_lost_tar_is_named(data):
    cache = build(data)
    (cache.folder / "c.tar").unlink()
    with pytest.raises(DataError, match=r"c\.tar: No such file or directory; run again"):
        cache.read(17)
    with open(cache.folder / "a.tar", "r+b") as tar:
        tar.seek(int(cache.offset[0]))
        tar.write(b"\0" * 64)
    with pytest.raises(DataError, match=r"a\.tar: damaged at the frame of .*frame_0000001\.png; delete the tar"):
        cache.read(0)


def test_bad_frames_stop_the_build_or_are_recorded(data):
    index = index_of(data)
    frame_path(data, "b", 4).write_bytes(b"")
    frame_path(data, "c", 1).write_bytes(PNG[:300])
    with pytest.raises(DataError, match=r"2 of 18 frames .* data\.max_bad_share allows 0\.00%") as caught:
        build_cache(index, data, progress=False)
    assert "b/frame_0000004.png: zero bytes" in str(caught.value) and "c/frame_0000001.png: trunc" in str(caught.value)
    finished = [p.stat().st_ino for p in location(index, data).glob("*.tar")]
    allowed = Data(**vars(data) | {"max_bad_share": 0.2})
    cache = build_cache(index, allowed, progress=False)
    assert [p.stat().st_ino for p in cache.folder.glob("*.tar")] == finished  # nothing is decoded twice
    assert cache.bad == {6: "zero bytes", 11: "truncated"}
    with pytest.raises(FrameError, match="zero bytes"):
        cache.read(6)
    with pytest.raises(FrameError, match="zero bytes"):
        FrameDataset(index, cache, 32)[6]
    with pytest.raises(DataError, match="2 of 18"):  # 1 of 7 in study c, 1 of 6 in study b: over 15 %
        build_cache(index, Data(**vars(data) | {"max_bad_share": 0.15}), progress=False)


def test_a_long_list_of_bad_frames_is_cut(tmp_path):
    (tmp_path / "set" / "a").mkdir(parents=True)
    for i in range(25):
        (tmp_path / "set" / "a" / f"frame_{i:07d}.png").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        build(Data(test_root=str(tmp_path / "set"), cache_root=str(tmp_path / "cache"), workers=1))
    assert str(caught.value).count("zero bytes") == 20 and "and 5 more" in str(caught.value)


def test_file_vanishing_between_index_and_build(data):
    index = index_of(data)
    frame_path(data, "a", 1).unlink()
    with pytest.raises(DataError, match=r"a/frame_0000001\.png: vanished"):
        build_cache(index, data, progress=False)


def test_converted_modes_are_counted(data):
    Image.open(frame_path(data, "a", 1)).convert("RGBA").save(frame_path(data, "a", 1))
    Image.open(frame_path(data, "b", 1)).quantize(32).save(frame_path(data, "b", 1))
    assert build(data).converted == {"RGBA": 1, "palette": 1}


def test_size_is_stated_and_refused_when_the_disk_is_too_small(data, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6, 10_000))
    with pytest.raises(DataError, match=r"18 frames of 3 studies, about .* GB .*but only 0\.00 GB are free"):
        build(data)


class Stop:
    """Stands in for a step of the build and fails at a study's frame."""

    def __init__(self, error, study="b"):
        self.error, self.study, self.real = error, study, cache_writer._encode_one

    def __call__(self, path, *rest):
        if f"/{self.study}/" in path and path.endswith("10.png"):
            raise self.error
        return self.real(path, *rest)


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [(OSError(errno.ENOSPC, "no space"), DataError, "disk full while writing .*finished studies are kept"),
     (KeyboardInterrupt(), KeyboardInterrupt, None)],
)  # fmt: skip
def test_disk_full_and_ctrl_c_keep_finished_studies(data, monkeypatch, error, raised, message):
    with monkeypatch.context() as patch:
        patch.setattr(cache_writer, "_encode_one", Stop(error))
        patch.setattr(cache_writer, "_estimate", lambda *_: 1.0)
        with pytest.raises(raised, match=message):
            build(data)
    folder = location(index_of(data), data)
    assert {p.name for p in folder.iterdir()} == {".lock", "a.npz", "a.tar"}
    kept = (folder / "a.tar").stat().st_ino
    assert (build(data).folder / "a.tar").stat().st_ino == kept


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_or_interrupted_build_is_resumed(data, how):
    """In the middle of study b: a stays, b and c are made by the next run, no part is left."""
    script = f"""
import time
from rarevision.data import cache_writer
from rarevision.config import Data
from rarevision.data import read_test
real = cache_writer._encode_one
def slow(path, *rest):
    if "/b/" in path and path.endswith("10.png"):
        print("now", flush=True)
        time.sleep(60 if SLOW else 0.5)
    return real(path, *rest)
SLOW = {how == signal.SIGKILL}
cache_writer._encode_one, cache_writer._estimate = slow, lambda *_: 1.0
data = Data(**{vars(data)!r})
cache_writer.build_cache(read_test(data.test_root, progress=False)[0], data, progress=False)
"""
    build_process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert build_process.stdout.readline() == b"now\n"
    folder = location(index_of(data), data)
    while not (folder / "a.npz").exists():
        time.sleep(0.05)
    build_process.send_signal(how)
    build_process.wait()
    assert bool(list(folder.glob(".b.*.tmp.tar"))) == (how == signal.SIGKILL)  # Ctrl-C tidies up
    kept = (folder / "a.tar").stat().st_ino
    cache = build(data)
    assert (folder / "a.tar").stat().st_ino == kept and len(list(folder.glob("*.tar"))) == 3
    assert not list(folder.glob(".*.tmp.*")) and not cache.bad


def test_two_builders_at_once_do_the_work_once(data, monkeypatch):
    calls, real = [], cache_writer._write
    monkeypatch.setattr(cache_writer, "_write", lambda *a: (calls.append(a[3]), time.sleep(0.1), real(*a)))
    threads = [threading.Thread(target=build, args=(data,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [["a", "b", "c"]]


def test_more_workers_same_bytes(data, tmp_path):
    one = build(data)
    four = build(Data(**vars(data) | {"workers": 4, "cache_root": str(tmp_path / "other")}))
    for study in "abc":
        assert (one.folder / f"{study}.tar").read_bytes() == (four.folder / f"{study}.tar").read_bytes()


def test_dataset_from_cache_and_from_source_agree(data):
    index = index_of(data)
    cached = FrameDataset(index, open_reader(index, data, progress=False), 32)
    plain_reader = open_reader(index, Data(**vars(data) | {"cache": False}), progress=False)
    assert isinstance(plain_reader, SourceReader)
    plain = FrameDataset(index, plain_reader, 32)
    for row in range(len(index)):
        (a, labels, r), (b, _, _) = cached[row], plain[row]
        assert a.dtype == torch.uint8 and a.shape == (3, 32, 32) and r == row and labels.isnan().all()
        assert (a.int() - b.int()).abs().float().mean() < 2.5
    frame_path(data, "a", 1).write_bytes(b"")
    with pytest.raises(FrameError, match="zero bytes"):
        plain[0]


def test_items_are_the_same_in_any_worker(data):
    index = index_of(data)
    dataset = FrameDataset(index, build(data), 32, augment="paper", seed=3)
    keys = [(epoch, row) for epoch in (0, 1) for row in range(len(index))]
    alone = torch.stack([dataset[key][0] for key in keys])
    for workers in (0, 2):
        loader = DataLoader(dataset, batch_size=5, sampler=keys, num_workers=workers)
        assert torch.equal(torch.cat([images for images, _, _ in loader]), alone)
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(torch.stack([copy[key][0] for key in keys]), alone)
    assert not torch.equal(alone[: len(index)], alone[len(index) :])  # epochs differ
    other = FrameDataset(index, build(data), 32, augment="paper", seed=4)
    assert not torch.equal(other[0, 0][0], dataset[0, 0][0])


def test_workers_get_no_copy_of_the_arrays(data):
    """What a spawned worker is sent stays small however many frames the index has."""
    cache, n = build(data), 200_000
    cache.offset, cache.length = np.zeros(n, np.int64), np.zeros(n, np.int32)
    index = cache.index
    for name, array in (("frame", np.zeros(n, np.int32)), ("labels", np.zeros((n, 17), np.uint8)),
                        ("variant", np.zeros(n, np.uint8))):  # fmt: skip
        object.__setattr__(index, name, array)
    sent = multiprocessing.reduction.ForkingPickler.dumps(FrameDataset(index, cache, 32))
    assert len(sent) < 100_000 < 23 * n


def test_labels_come_with_their_frames(data):
    index = index_of(data)
    labels = np.random.default_rng(0).integers(0, 2, (len(index), 17)).astype(np.uint8)
    object.__setattr__(index, "labels", labels)
    dataset = FrameDataset(index, build_cache(index, data, progress=False), 32)
    assert all(np.array_equal(dataset[row][1].numpy(), labels[row]) for row in range(len(index)))
    with pytest.raises(ValueError, match="the reader was made for 18 frames, the index has 5"):
        FrameDataset(index.select(["a"]), dataset.reader, 32)
