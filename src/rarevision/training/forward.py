"""The forward pass over frames: decoded ahead of the models, each batch once through all of them."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from rarevision.config import Data
from rarevision.data import DataError, FrameDataset, FrameError
from rarevision.errors import UserError
from rarevision.labels import N_LABELS

MIRRORS = ((), (3,), (2,), (2, 3))  # flipped dimensions of [B, 3, S, S]


class Guarded(Dataset):
    """A data set whose undecodable frames arrive as black images with the reason, instead of ending a worker.

    Items: image uint8 [3, S, S], labels float32 [17], row, reason ("" = a good frame).
    """

    def __init__(self, frames: FrameDataset):
        self.frames = frames

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[Tensor, Tensor, int, str]:
        try:
            return *self.frames[key], ""
        except FrameError as error:
            row = key[1] if isinstance(key, tuple) else key
            size = self.frames.image_size
            blank = torch.zeros(3, size, size, dtype=torch.uint8)
            return blank, torch.zeros(N_LABELS), row, f"{error.path}: {error.reason}"


def workers(data: Data, device: torch.device) -> int:
    """Decoding processes of this process: as asked, or by its share of the cores.

    A GPU leaves them all free. On a CPU the model needs them: a quarter decodes from the cache (none of two: it is a
    tenth of the work, and a process beside the model's threads costs more), half where PNGs are decoded.
    """
    if data.workers >= 0:
        return data.workers
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if device.type == "cuda":
        return max(1, cores)
    return cores // 4 if data.cache else max(1, cores // 2)


def loader(frames: FrameDataset, batches: Iterable[list], data: Data, device: torch.device) -> DataLoader:
    """Frames decoded ahead of the model, in the order of `batches`: lists of keys of the data set."""
    n = workers(data, device)
    return DataLoader(
        Guarded(frames),
        batch_sampler=batches,
        num_workers=n,
        persistent_workers=n > 0,
        prefetch_factor=4 if n else None,
        pin_memory=device.type == "cuda",
    )


def mixed_precision(asked: str, device: torch.device) -> str:
    """The settings' "no" | "bf16" | "fp16"; "auto" is bf16 on a GPU that has it, else "no", which is fp32."""
    if asked != "auto":
        return asked
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "no"


class DecodeError(UserError):
    """A decoding process that died."""


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Within, the death of a decoding process is one clear error; torch raises it wherever the main thread just is."""
    try:
        yield
    except DataError as error:  # out of a decoding process it comes with its traceback before it
        raise DataError(str(error).rpartition("DataError: ")[2]) from None
    except RuntimeError as error:
        if "DataLoader worker (pid" not in str(error):
            raise
        raise DecodeError(
            f"a decoding process died ({str(error).splitlines()[0]}); where memory ran out, lower data.workers or the "
            "batch size. What is finished is kept: run again to go on"
        ) from None


class Scored(NamedTuple):
    rows: np.ndarray  # int64 [B]
    probs: np.ndarray  # float32 [B, 17], mean over models and mirror images
    embeddings: np.ndarray | None  # float16 [B, D], likewise
    reasons: Sequence[str]  # [B], "" where the frame could be decoded
    logits: Tensor  # float32 [B, 17] of the last model, unmirrored, with its contrastive twin: for the loss
    contrastive: Tensor | None
    labels: Tensor  # float32 [B, 17]


@torch.inference_mode()
def score_batches(
    models: Sequence[nn.Module],
    batches: DataLoader,
    device: torch.device,
    precision: str = "auto",
    flips: bool = False,
    embeddings: bool = False,
) -> Iterator[Scored]:
    """Run every model over every decoded batch. The models are on `device`, in eval mode.

    `precision`: as in the settings, "auto" | "no" | "bf16" | "fp16". `flips`: mean over the four mirror images.
    """
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mixed_precision(precision, device))
    views = MIRRORS if flips else MIRRORS[:1]
    for images, labels, rows, reasons in batches:
        images = images.to(device, non_blocking=True)
        probs, features = 0.0, 0.0
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            for dims in reversed(views):
                view = images.flip(dims) if dims else images
                for model in models:
                    output = model(view)
                    probs = probs + output.logits.float().sigmoid()
                    if embeddings:
                        features = features + output.embeddings.float()
        n = len(models) * len(views)
        yield Scored(
            rows.numpy(),
            (probs / n).cpu().numpy(),
            (features / n).half().cpu().numpy() if embeddings else None,
            reasons,
            output.logits.float(),
            output.contrastive,
            labels,
        )
