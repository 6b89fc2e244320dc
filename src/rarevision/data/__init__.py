"""Studies on disk to batches of frames.

In come folders in the layout of Galar or of the challenge's test set; out come batches for the model. A frame's way:
`layout` finds folders and tables, `galar` joins frames and labels to an index, `image` decodes a file, `view` brings
its field and colours to one standard, `cache` keeps the result, `augment` varies it, `frames` hands it to the model.
Begin with `read_galar` or `read_test`.

read_galar      index of the labelled frames of a training set, and a coverage report
read_test       index of unlabelled studies, and a coverage report
FrameIndex      which frames there are, where they lie, and what they are labelled
verify_data     check a data set on disk, and list every fault
fingerprint     hash that changes when any file of a data set does
make_splits     studies to folds
Splits          which studies train, validate and stay held out
split_table     positive frames per label and fold
open_reader     frames by row, from the cache or from the source files
Reader          what such a reader can do
Plain           the reader of source files
build_cache     bring the cache up to date
FrameDataset    frames by row as tensors, augmented or not
Augment         the random changes of one frame
PIPELINES       names of the sets of changes
read_image      one image file, RGB, or a `FrameError`
square          an image brought to a square
DataError       a data set that cannot be used
FrameError      a frame that cannot be decoded
CacheError      a cache that cannot be used
"""

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
