"""Frames per second: the cache against the plain route, and the index at Galar's size.

    python benchmarks/frames.py [--frames 480] [--workers 0,2] [--rounds 3] [--skip-index]

Renders NaviCam-like 480 px phantom frames as PNG, then times batches of 224 px through a DataLoader with the same
number of worker processes, none too (as prediction has it on two cores: between processes every batch is copied, which
weighs most where decoding is quick): the plain route is PIL, torchvision transforms and the PNGs, as the published
pipeline's; ours is the cache. Workers are warm, rounds of all routes alternate, the median counts. Targets: evaluation
10x, training 4x; the index of 3.5 million rows under 3 s and 200 MB.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

import phantom
from rarevision.config import Data
from rarevision.data import FrameDataset, FrameIndex, open_reader, read_test
from rarevision.labels import COLUMN, REGIONS

SIZE, BATCH, PASSES = 224, 32, 4
GALAR_ROWS = 3_513_715


class PlainRoute(Dataset):
    """What the published pipeline does: PIL and torchvision, frame by frame from the PNG."""

    def __init__(self, index: FrameIndex, train: bool):
        self.index = index
        bicubic = T.InterpolationMode.BICUBIC
        evaluation = [T.Resize(SIZE, bicubic), T.CenterCrop(SIZE), T.ToTensor()]
        training = [
            T.RandomResizedCrop(SIZE, (0.7, 1.0), interpolation=bicubic),
            T.RandomHorizontalFlip(),
            T.RandomVerticalFlip(),
            T.ColorJitter(0.2, 0.2, 0.2, 0.05),
            T.RandomGrayscale(0.1),
            T.RandomRotation(15),
            T.ToTensor(),
            T.RandomErasing(0.25, (0.02, 0.2)),
        ]
        self.transform = T.Compose(training if train else evaluation)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.transform(Image.open(self.index.path(row)).convert("RGB"))


class Epoch(Dataset):
    """Our frames under the key that training uses."""

    def __init__(self, frames: FrameDataset, train: bool):
        self.frames, self.train = frames, train

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.frames[(0, row) if self.train else row][0]


def render(root: Path, n: int) -> None:
    labels = np.zeros((n, 17), np.uint8)
    for k, part in enumerate(np.array_split(np.arange(n), 3)):
        labels[part, COLUMN[REGIONS[2 + k]]] = 1
    journey = phantom.Journey(labels, "navicam", (1,))
    (root / "navi_1").mkdir(parents=True)
    for row in range(n):
        image = cv2.cvtColor(journey.frame(row)[0], cv2.COLOR_RGB2BGR)
        cv2.imwrite(str(root / "navi_1" / f"frame_{row:07d}.png"), image)


def rate(loader: DataLoader) -> float:
    """Frames per second of one pass, the first batches (and the workers' start) not counted."""
    frames, start = 0, None
    for i, batch in enumerate(loader):
        if start is not None:
            frames += len(batch)
        elif i >= 2:
            start = time.perf_counter()
    return frames / (time.perf_counter() - start)


def routes(index: FrameIndex, cache, workers: int) -> dict[str, DataLoader]:
    sets = {
        "evaluation, plain": PlainRoute(index, train=False),
        "evaluation, cache": Epoch(FrameDataset(index, cache, SIZE), train=False),
        "training, plain": PlainRoute(index, train=True),
        "training, cache, paper": Epoch(FrameDataset(index, cache, SIZE, "paper"), train=True),
        "training, cache, endoscopy": Epoch(FrameDataset(index, cache, SIZE, "endoscopy"), train=True),
    }
    # several passes in one: the workers' head start at the beginning of a pass must not count for much
    rows = list(range(len(index))) * PASSES
    options = {"batch_size": BATCH, "sampler": rows, "num_workers": workers, "persistent_workers": workers > 0}
    return {name: DataLoader(data, **options) for name, data in sets.items()}


def compare(n: int, counts: list[int], rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "png"
        render(root, n)
        index, _ = read_test(root, progress=False)
        threads = max(*counts, 1)
        data = Data(cache_root=str(Path(folder) / "cache"), workers=threads)
        start = time.perf_counter()
        cache = open_reader(index, data, progress=False)
        seconds = time.perf_counter() - start
        png = sum(p.stat().st_size for p in root.rglob("*.png")) / n
        jpeg = float(cache.length.mean())
        print(f"{n} phantom frames, 480 px PNG {png / 1e3:.0f} kB -> 256 px JPEG {jpeg / 1e3:.0f} kB")
        print(f"building the cache: {n / seconds:.0f} frames/s with {threads} threads")
        for workers in counts:
            show(routes(index, cache, workers), workers, rounds)


def show(loaders: dict[str, DataLoader], workers: int, rounds: int) -> None:
    found: dict[str, list[float]] = {name: [] for name in loaders}
    for loader in loaders.values():
        rate(loader)
    for _ in range(rounds):
        for name, loader in loaders.items():
            found[name].append(rate(loader))
    medians = {name: float(np.median(values)) for name, values in found.items()}
    where = f"{workers} workers" if workers else "in this process"
    print(f"\n{'route':28s} frames/s   against plain ({where}, batch {BATCH}, {SIZE} px)")
    for name, value in medians.items():
        plain = medians[f"{name.split(',')[0]}, plain"]
        print(f"{name:28s} {value:8.0f}   {value / plain:6.1f}x")


LOAD = """
import sys, time
from pathlib import Path
from rarevision.data import FrameIndex
def memory(key):
    return next(int(l.split()[1]) / 1024 for l in Path("/proc/self/status").read_text().splitlines() if key in l)
before = memory("VmRSS")
start = time.perf_counter()
index = FrameIndex.load(sys.argv[1])
print(len(index), time.perf_counter() - start, before, memory("VmHWM"))
"""


def index_at_scale() -> None:
    lot = np.random.default_rng(0)
    studies = tuple(map(str, range(1, 81)))
    offsets = np.linspace(0, GALAR_ROWS, 81).astype(np.int64)
    frame = np.concatenate([5 * np.arange(n, dtype=np.int32) for n in np.diff(offsets)])
    labels = (lot.random((GALAR_ROWS, 17), np.float32) < 0.02).astype(np.uint8)
    index = FrameIndex(
        root=Path("data/galar"),
        studies=studies,
        offsets=offsets,
        frame=frame,
        labels=labels,
        systems=("pillcam",) * 80,
        folders=studies,
        variants=(("frame_", 6, ".PNG"),),
        variant=np.zeros(GALAR_ROWS, np.uint8),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.parquet"
        index.save(path)
        runs = [subprocess.check_output([sys.executable, "-c", LOAD, str(path)], text=True).split() for _ in range(3)]
        size = path.stat().st_size
    rows, seconds, before, after = np.median(np.array(runs, float), 0)
    print(
        f"\nindex: {rows:,.0f} rows, parquet {size / 1e6:.0f} MB (random labels; real runs of labels pack far better)"
    )
    print(
        f"load: {seconds:.2f} s, {after - before:.0f} MB at the peak, on top of {before:.0f} MB for Python's libraries"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=480)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", default=f"0,{cores}", help="worker processes of both routes, 0 = none; a list")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-index", action="store_true")
    options = parser.parse_args()
    compare(options.frames, [int(n) for n in options.workers.split(",")], options.rounds)
    if not options.skip_index:
        index_at_scale()
    print(f"\npeak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
