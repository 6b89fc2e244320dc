"""Studies on disk to batches of frames.

In come folders of images and label tables, in the layout of Galar (`<study>/frame_<number>.png` and one CSV of labels
per study) or of the challenge's test set (the same without labels). Out come batches of uint8 images [B, 3, S, S] with
labels [B, 17]:

    index, coverage = read_galar("data/galar")               # coverage: one line per study, what fits and what does not
    splits = Splits.make(index, config.split)                # whole studies to folds
    reader = open_reader(index, config.data)                 # makes the frame cache, the first time
    frames = FrameDataset(index, reader, image_size=224, augment="paper", seed=1)
    image, labels, row = frames[0, 12]                       # epoch 0, row 12; a torch DataLoader makes batches of it

The module `frames` shows a frame's whole way from file to batch and names the modules on it; begin there to change
it. Another layout on disk is a function beside `read_galar`, in `galar`, that returns the same two things.

read_galar      index of the labelled frames of a training set, and a coverage report
read_test       index of unlabelled studies, and a coverage report
verify_data     check a data set on disk, and list every fault
FrameIndex      which frames there are, where they lie, and what they are labelled
Splits          which studies train, validate and stay held out
open_reader     a `Reader` of the cache, brought up to date, or of the source files
Reader          gives a frame by its row
FrameDataset    frames by row as tensors, augmented or not
DataError       a data set, an index, a split or a cache that cannot be used
FrameError      the `DataError` of one frame that cannot be decoded
"""

from rarevision.data.errors import DataError, FrameError
from rarevision.data.frames import FrameDataset, Reader, open_reader
from rarevision.data.galar import read_galar, read_test
from rarevision.data.index import FrameIndex
from rarevision.data.splits import Splits
from rarevision.data.verify import verify_data

__all__ = [
    "DataError",
    "FrameDataset",
    "FrameError",
    "FrameIndex",
    "Reader",
    "Splits",
    "open_reader",
    "read_galar",
    "read_test",
    "verify_data",
]
