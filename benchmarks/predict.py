"""Prediction in frames per second: where the time goes, against a plain loop over the PNGs; training speed beside it.

    python benchmarks/predict.py                       the tiny twin on this machine
    python benchmarks/predict.py --size base           ViT-B/16 at 224 px, random weights: BiomedCLIP's cost
    python benchmarks/predict.py --size base --frames 4096 --workers 16 --train      on a GPU machine

Renders NaviCam-like 480 px phantom frames as PNG. The plain route is what the published pipeline does: PIL, torchvision
transforms, one DataLoader pass per fold's model. Ours is `predict.predict` itself, files written included: from the
cache, and from the PNGs without one. Parts are then timed alone: decoding (the loader with no model), transfer to the
device, models (one batch in memory, again and again). Targets: 2x the plain route on a CPU with the twin; with the
base model the loader is faster than the models.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from frames import render
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, Dataset
from torchvision import transforms as T

import phantom
from rarevision.config import Config, Data, Model, Predict, Train
from rarevision.data import FrameDataset, FrameIndex, open_reader, read_test
from rarevision.labels import N_LABELS
from rarevision.model import FrameModel, Loss, build_model
from rarevision.training import loader, predict_studies, score_batches

TEST_SET = 161_025  # frames of the challenge's three studies


class PlainRoute(Dataset):
    def __init__(self, index: FrameIndex, size: int):
        self.index = index
        normalise = T.Normalize((0.481, 0.458, 0.408), (0.269, 0.261, 0.276))
        resize = T.Resize(size, T.InterpolationMode.BICUBIC)
        self.transform = T.Compose([resize, T.CenterCrop(size), T.ToTensor(), normalise])

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.transform(Image.open(self.index.path(row)).convert("RGB"))


class Unnormalised(torch.nn.Module):
    """The same model for the plain route, whose frames arrive normalised: undone and done again, at next to no cost."""

    def __init__(self, inner: FrameModel):
        super().__init__()
        self.inner = inner

    def forward(self, images: torch.Tensor) -> tuple:
        return self.inner(images * self.inner.std + self.inner.mean)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


@torch.inference_mode()
def plain(models: list, index: FrameIndex, batch: int, workers: int, device: torch.device, precision: str) -> float:
    """Seconds for every model's pass over all frames."""
    data = DataLoader(PlainRoute(index, models[0].image_size), batch, num_workers=workers)
    start = time.perf_counter()
    for one in models:
        wrapped = Unnormalised(one)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            for images in data:
                wrapped(images.to(device)).logits.sigmoid().cpu()
    return time.perf_counter() - start


def ours(models: list, index: FrameIndex, config: Config, read, folder: Path) -> float:
    start = time.perf_counter()
    predict_studies(models, index, read, list(index.studies), folder, config, progress=False)
    return time.perf_counter() - start


def parts(models: list, index: FrameIndex, config: Config, read, device: torch.device, precision: str) -> dict:
    """Seconds per frame of decoding, transfer and models, each alone."""
    size, batch = models[0].image_size, config.predict.batch_size
    rows = np.arange(len(index))
    frames = FrameDataset(index, read, size)
    batches = loader(frames, BatchSampler(rows.tolist(), batch, drop_last=False), config.data, device)
    for _ in batches:  # starts the workers
        pass
    start = time.perf_counter()
    held = [images for images, *_ in batches]
    found = {"decode": (time.perf_counter() - start) / len(rows)}
    start = time.perf_counter()
    for images in held:
        images.to(device)
    synchronise(device)
    found["transfer"] = (time.perf_counter() - start) / len(rows)
    n = len(held[0])
    item = (held[0].to(device), torch.zeros(n, N_LABELS), torch.arange(n), [""] * n)
    embeddings = config.predict.embeddings
    list(score_batches(models, [item], device, precision, embeddings=embeddings))
    rounds = max(2, len(held) // 2)
    start = time.perf_counter()
    list(score_batches(models, [item] * rounds, device, precision, embeddings=embeddings))
    found["models"] = (time.perf_counter() - start) / (n * rounds)
    return found


def training(one: FrameModel, index: FrameIndex, read, batch: int, data: Data, device, precision: str) -> dict:
    """Frames per second of training steps on a batch in memory, and of the augmenting loader."""
    one = one.train()
    optimizer = torch.optim.AdamW(one.parameter_groups(Train()))
    loss = Loss(Train(), torch.ones(N_LABELS))
    images = torch.randint(0, 256, (batch, 3, one.image_size, one.image_size), dtype=torch.uint8, device=device)
    labels = (torch.rand(batch, N_LABELS, device=device) < 0.1).float()
    times = []
    for _ in range(8):
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            output = one(images)
        loss(output, labels)[0].backward()
        optimizer.step()
        optimizer.zero_grad()
        synchronise(device)
        times.append(time.perf_counter() - start)
    keys = [[(0, row) for row in rows] for rows in BatchSampler(range(len(index)), batch, drop_last=False)]
    frames = FrameDataset(index, read, one.image_size, "paper")
    batches = loader(frames, keys, data, device)
    list(batches)
    start = time.perf_counter()
    list(batches)
    return {"steps": batch / statistics.median(times[2:]), "loader": len(index) / (time.perf_counter() - start)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=("twin", "base"), default="twin")
    parser.add_argument("--attention", default="preserve")
    parser.add_argument("--frames", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", action="store_true", help="time training steps too")
    o = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "no"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = Model(attention=o.attention, lambda_init=0.2, contrastive=False)
        if o.size == "twin":
            settings = replace(settings, source=str(phantom.build_twin(folder / "twin")))
        else:
            settings = replace(settings, trunk="vit_base_patch16_224")
        models = [build_model(settings).to(device).eval() for _ in range(o.folds)]
        size = models[0].image_size
        cached = Data(cache_root=str(folder / "cache"), cache_size=256 if size > 128 else size, workers=o.workers)
        config = Config(data=cached, predict=Predict(batch_size=o.batch))
        render(folder / "png", o.frames)
        index, _ = read_test(folder / "png", progress=False)
        start = time.perf_counter()
        cache = open_reader(index, cached, progress=False)
        building = time.perf_counter() - start
        png = open_reader(index, replace(cached, cache=False), progress=False)

        n, found = len(index), {"plain": [], "ours, PNG": [], "ours, cache": []}
        for i in range(o.rounds):
            found["plain"].append(plain(models, index, o.batch, o.workers, device, precision))
            found["ours, PNG"].append(ours(models, index, config, png, folder / f"png-{i}"))
            found["ours, cache"].append(ours(models, index, config, cache, folder / f"cache-{i}"))
        what = f"{device.type}, {precision}, {torch.get_num_threads()} threads, {o.workers} workers, batch {o.batch}"
        print(f"{o.size} model, {size} px, {o.attention} attention, {o.folds} folds; {n} PNGs of 480 px; {what}")
        print(f"{'route':14s} frames/s  against plain   the test set ({TEST_SET:,} frames)")
        seconds = {name: statistics.median(values) for name, values in found.items()}
        for name, value in seconds.items():
            print(f"{name:14s} {n / value:8.0f} {seconds['plain'] / value:11.1f}x {TEST_SET * value / n:14.0f} s")
        print(f"building the cache, once: {n / building:.0f} frames/s")
        for name, read in (("cache", cache), ("PNG", png)):
            alone = parts(models, index, config, read, device, precision)
            total = sum(alone.values())
            shares = ", ".join(f"{k} {1 / v:.0f} frames/s ({v / total:.0%})" for k, v in alone.items())
            print(f"parts alone, {name}: {shares}")
        if o.train:
            rates = training(models[0], index, cache, o.batch, cached, device, precision)
            print(f"training: steps {rates['steps']:.0f} frames/s, augmenting loader {rates['loader']:.0f} frames/s")


if __name__ == "__main__":
    main()
