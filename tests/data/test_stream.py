"""The tars as a webdataset stream: the items that the indexed reader gives."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from rarevision.config import Data
from rarevision.data import DataError, FrameDataset, open_reader, read_test
from rarevision.data.stream import stream

webdataset = pytest.importorskip("webdataset")


@pytest.fixture
def opened(tmp_path):
    lot = np.random.default_rng(0)
    for study, n in (("a", 4), ("b", 5), ("c", 3)):
        (tmp_path / "set" / study).mkdir(parents=True)
        for i in range(n):
            pixels = lot.integers(0, 255, (24, 24, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "set" / study / f"frame_{3 * i + 7:07d}.png")
    index, _ = read_test(tmp_path / "set", progress=False)
    object.__setattr__(index, "labels", lot.integers(0, 2, (12, 17)).astype(np.uint8))
    cache = open_reader(index, Data(cache_root=str(tmp_path / "cache"), workers=1), progress=False)
    return index, cache, [str(cache.folder / f"{study}.tar") for study in index.studies]


@pytest.mark.parametrize("augment", ["none", "endoscopy"])
def test_streamed_items_are_the_readers(opened, augment):
    index, cache, urls = opened
    dataset = FrameDataset(index, cache, 16, augment, seed=2)
    rows = []
    for image, labels, row in stream(urls, index, 16, augment, seed=2, epoch=1):
        expected = dataset[1, row]
        assert torch.equal(image, expected[0]) and torch.equal(labels, expected[1])
        rows.append(row)
    assert rows == list(range(12))


def test_paths_and_urls_alone_in_lists_and_in_braces(opened):
    index, cache, urls = opened
    braces = f"{cache.folder}/{{a,b,c}}.tar"
    for given in (braces, [braces], [f"file:{url}" for url in urls], [f"pipe:cat {braces}"]):
        assert [row for _, _, row in stream(given, index, 16)] == list(range(12))
    with pytest.raises(OSError, match=r"nowhere\.tar"):
        list(stream(f"{cache.folder}/nowhere.tar", index, 16))


def test_nodes_share_the_shards(opened, monkeypatch):
    index, _, urls = opened
    monkeypatch.setenv("WORLD_SIZE", "2")
    parts = []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        parts.append([row for _, _, row in stream(urls, index, 16)])
    assert sorted(parts[0] + parts[1]) == list(range(12)) and parts[0] and parts[1]


def test_workers_share_the_shards(opened):
    index, _, urls = opened
    loader = DataLoader(stream(urls, index, 16), batch_size=4, num_workers=2)
    assert sorted(torch.cat([rows for _, _, rows in loader]).tolist()) == list(range(12))


def test_tars_of_other_studies_are_refused(opened):
    index, _, urls = opened
    with pytest.raises(DataError, match=r"c\.tar: c/frame_0000007: not a frame of the index's studies"):
        list(stream(urls, index.select(["a", "b"]), 16))
    fewer = index.select(["a"])
    object.__setattr__(fewer, "frame", fewer.frame + 1)
    with pytest.raises(DataError, match="the index holds no such frame"):
        list(stream(urls[:1], fewer, 16))
