"""The cache's tars as a stream, from paths or URLs: for frames on object storage (`pip install webdataset`)."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import cv2
import numpy as np
import torch

from rarevision.data.augment import Augment
from rarevision.data.errors import DataError, FrameError
from rarevision.data.frames import item
from rarevision.data.index import FrameIndex

MEMBER = re.compile(r"(?:.*/)?([^/]+)/frame_(\d+)", re.IGNORECASE)


def stream(
    urls: str | Sequence[str], index: FrameIndex, image_size: int, augment: str = "none", seed: int = 0, epoch: int = 0
) -> Any:
    """Iterable data set over tars, with the items of `FrameDataset`: image uint8 [3, S, S], labels float32 [17], row.

    `urls`: one or several that webdataset opens (`/data/7.tar`, `https://.../{1..80}.tar`, `pipe:aws s3 cp s3://...`);
    braces are expanded, shards divided between nodes and workers. Augmentations are those `FrameDataset` would draw for
    the same frame.
    """
    try:
        import webdataset
        from braceexpand import braceexpand  # webdataset needs it, and expands a lone string only
    except ImportError:
        raise ImportError("streaming tars needs the webdataset package: pip install webdataset") from None
    expanded = [url for one in ([urls] if isinstance(urls, str) else urls) for url in braceexpand(one)]
    shards = webdataset.WebDataset(
        expanded, shardshuffle=False, nodesplitter=webdataset.split_by_node, empty_check=False
    )
    return shards.compose(_Items(index, Augment(augment, image_size, seed), epoch))


class _Items:
    """Samples of webdataset to items; a class, so that spawned workers can be sent it."""

    def __init__(self, index: FrameIndex, augment: Augment, epoch: int):
        self.index, self.augment, self.epoch = index, augment, epoch

    def __call__(self, samples: Iterable[dict[str, Any]]) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        for sample in samples:
            source = f"{sample['__url__']}: {sample['__key__']}"
            row = self._row(sample["__key__"], source)
            image = cv2.imdecode(np.frombuffer(sample["jpg"], np.uint8), cv2.IMREAD_COLOR_RGB)
            if image is None:
                raise FrameError(source, "not an image")
            yield item(self.index, self.augment(image, self.epoch, row), row)

    def _row(self, key: str, source: str) -> int:
        member = MEMBER.fullmatch(key)
        if member is None or member[1] not in self.index.studies:
            raise DataError(f"{source}: not a frame of the index's studies; stream only tars of studies in the index")
        within = self.index.rows(member[1])
        row = within.start + int(np.searchsorted(self.index.frame[within], int(member[2])))
        if row == within.stop or self.index.frame[row] != int(member[2]):
            raise DataError(f"{source}: the index holds no such frame; build index and tars from the same data set")
        return row
