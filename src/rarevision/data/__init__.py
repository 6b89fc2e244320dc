"""Studies on disk to batches of frames."""

from rarevision.data.augment import PIPELINES, Augment
from rarevision.data.cache import CacheError, build_cache
from rarevision.data.frames import FrameDataset, Plain, Reader, open_reader
from rarevision.data.galar import fingerprint, read_galar, read_test
from rarevision.data.image import FrameError, read_image, square
from rarevision.data.index import FrameIndex
from rarevision.data.layout import DataError
from rarevision.data.splits import Splits, make_splits, split_table
from rarevision.data.verify import verify_data

__all__ = [
    "PIPELINES",
    "Augment",
    "CacheError",
    "DataError",
    "FrameDataset",
    "FrameError",
    "FrameIndex",
    "Plain",
    "Reader",
    "Splits",
    "build_cache",
    "fingerprint",
    "make_splits",
    "open_reader",
    "read_galar",
    "read_image",
    "read_test",
    "split_table",
    "square",
    "verify_data",
]
