"""Frames for the model: read from the cache or from the source files, sized and augmented, uint8 to the device."""

from typing import Protocol

import cv2
import numpy as np
import torch
from torch.utils.data import Dataset

from rarevision.config import Data
from rarevision.data.augment import Augment
from rarevision.data.cache import Cache, CacheError, build_cache
from rarevision.data.galar import FrameIndex
from rarevision.data.image import FrameError, read_image, square
from rarevision.data.view import study_view
from rarevision.labels import N_LABELS

__all__ = [
    "Cache",
    "CacheError",
    "FrameDataset",
    "FrameError",
    "Plain",
    "Reader",
    "build_cache",
    "read_image",
]


class Reader(Protocol):
    """`read(row)` -> uint8 [h, w, 3] RGB or FrameError; `bad`: {row: reason} as far as known beforehand."""

    index: FrameIndex
    bad: dict[int, str]

    def read(self, row: int) -> np.ndarray: ...


class Plain:
    """Frames straight from the source files, at their full size; bad ones are found when they are read."""

    def __init__(self, index: FrameIndex, data: Data):
        self.index = index
        self.bad: dict[int, str] = {}
        self.views = [study_view(index, study, data) for study in index.studies]

    def read(self, row: int) -> np.ndarray:
        image = read_image(self.index.path(row))
        view = self.views[int(self.index.study_of(row))]
        return image if view is None else view.apply(image)


def open_reader(index: FrameIndex, data: Data, progress: bool = True) -> Reader:
    """The cache, brought up to date, or the plain route where `data.cache` is false."""
    return build_cache(index, data, progress) if data.cache else Plain(index, data)


class FrameDataset(Dataset):
    """Frames by row: `dataset[row]` for evaluation, `dataset[epoch, row]` augmented, the same for the same seed.

    An item is (image uint8 [3, S, S] RGB, labels float32 [17], row int). Labels are NaN where the index has none: a
    loss over them cannot pass unnoticed. A frame that cannot be decoded raises FrameError.
    """

    def __init__(self, index: FrameIndex, reader: Reader, image_size: int, augment: str = "none", seed: int = 0):
        if len(index) != len(reader.index):
            raise ValueError(f"the reader was made for {len(reader.index)} frames, the index has {len(index)}")
        self.index, self.reader, self.image_size = index, reader, image_size
        self.augment = None if augment == "none" else Augment(augment, image_size, seed)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor, int]:
        epoch, row = key if isinstance(key, tuple) else (None, key)
        row = int(row)
        if self.index.labels is None:
            labels = torch.full((N_LABELS,), float("nan"))
        else:
            labels = torch.from_numpy(self.index.labels[row].astype(np.float32))
        cv2.setNumThreads(0)  # one process per core: threads inside would only compete
        image = self.reader.read(row)
        if epoch is None or self.augment is None:
            image = square(image, self.image_size)
        else:
            image = self.augment(image, int(epoch), row)
        planes = np.empty((3, *image.shape[:2]), np.uint8)
        cv2.split(image, list(planes))  # seven times as fast as a transposed copy
        return torch.from_numpy(planes), labels, row
