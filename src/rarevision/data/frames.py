"""A frame's way from its file to a batch: read this module first.

row           position in a `FrameIndex`, which knows the file (index.py)
-> read       from the cache's small JPEG (cache.py, made by cache_writer.py), or from the source file itself:
              decoded (image.py), cropped to the capsule's field and its colours mapped (view.py)
-> Augment    varied at random in training, in evaluation only brought to a square (augment.py)
-> item       uint8 tensor, labels and row, which torch's DataLoader makes into batches
"""

from typing import Protocol

import cv2
import numpy as np
import torch
from torch.utils.data import Dataset

from rarevision.config import Data
from rarevision.data.augment import Augment
from rarevision.data.cache_writer import build_cache
from rarevision.data.index import FrameIndex
from rarevision.data.view import study_view
from rarevision.labels import N_LABELS


class Reader(Protocol):
    """`read(row)` -> uint8 [h, w, 3] RGB, or FrameError; `bad`: {row: reason} as far as known beforehand."""

    index: FrameIndex
    bad: dict[int, str]

    def read(self, row: int) -> np.ndarray: ...


class SourceReader:
    """Frames straight from the source files, at their full size; bad ones are found when they are read."""

    def __init__(self, index: FrameIndex, data: Data):
        self.index = index
        self.bad: dict[int, str] = {}
        self.views = [study_view(index, study, data) for study in index.studies]

    def read(self, row: int) -> np.ndarray:
        image = self.index.image(row)
        view = self.views[int(self.index.study_of(row))]
        return image if view is None else view.apply(image)


def open_reader(index: FrameIndex, data: Data, progress: bool = True, from_source: bool = False) -> Reader:
    """The cache, brought up to date; or the source files, where `data.cache` is false or `from_source` is true."""
    return build_cache(index, data, progress) if data.cache and not from_source else SourceReader(index, data)


class FrameDataset(Dataset):
    """Frames by row: `dataset[row]` for evaluation, `dataset[epoch, row]` augmented, the same for the same seed.

    An item is (image uint8 [3, S, S] RGB, labels float32 [17], row int). A frame that cannot be decoded raises
    FrameError.

    image_size  S, in px
    augment     "paper" | "endoscopy" | "none", see augment.py
    """

    def __init__(self, index: FrameIndex, reader: Reader, image_size: int, augment: str = "none", seed: int = 0):
        if len(index) != len(reader.index):
            raise ValueError(f"the reader was made for {len(reader.index)} frames, the index has {len(index)}")
        self.index, self.reader, self.image_size = index, reader, image_size
        self.augment = Augment(augment, image_size, seed)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor, int]:
        epoch, row = key if isinstance(key, tuple) else (None, key)
        cv2.setNumThreads(0)  # one process per core: threads inside would only compete
        image = self.augment(self.reader.read(int(row)), epoch, int(row))
        return item(self.index, image, int(row))


def item(index: FrameIndex, image: np.ndarray, row: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Image [3, S, S], labels [17], row. Labels that nobody knows are NaN: a loss over them cannot pass unnoticed."""
    planes = np.empty((3, *image.shape[:2]), np.uint8)
    cv2.split(image, list(planes))  # seven times as fast as a transposed copy
    labels = np.full(N_LABELS, np.nan) if index.labels is None else index.labels[row]
    return torch.from_numpy(planes), torch.from_numpy(labels.astype(np.float32)), row
