"""A data set, a twin and a run folder small enough for tests: four studies of 24 frames, coloured by region."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from safetensors.torch import save_file

from phantom import twin
from rarevision import config as configuration
from rarevision.config import Config
from rarevision.data import FrameIndex, Splits, open_reader, read_galar
from rarevision.labels import COLUMN, LABELS
from rarevision.model import frame_model as model
from rarevision.training import launch

COLOURS = {"stomach": (170, 80, 60), "small intestine": (190, 150, 60), "colon": (90, 60, 120)}


@dataclass
class Tiny:
    root: Path
    config: Config
    index: FrameIndex
    reader: Any
    splits: Splits
    text: torch.Tensor

    def but(self, **sections: dict[str, Any]) -> "Tiny":
        """The same with other settings: `but(train={"epochs": 1})`."""
        changed = {name: replace(getattr(self.config, name), **values) for name, values in sections.items()}
        return replace(self, config=replace(self.config, **changed))

    def run_dir(self, path: Path) -> Path:
        """A folder as the notebooks leave it for launched processes."""
        self.index.save(path / launch.TRAIN_INDEX)
        self.splits.save(path / launch.SPLITS)
        (path / launch.TEXT).parent.mkdir(parents=True, exist_ok=True)
        save_file({"text_embeddings": self.text}, path / launch.TEXT)
        return path


def write_study(folder: Path, n: int, seed: int) -> np.ndarray:
    """n PNGs of 40 px, regions in thirds, a white dot for `polyp` in two of them; returns labels [n, 17]."""
    rng = np.random.default_rng(seed)
    labels = np.zeros((n, len(LABELS)), np.uint8)
    folder.mkdir(parents=True)
    for i in range(n):
        region = list(COLOURS)[3 * i // n]
        labels[i, COLUMN[region]] = 1
        pixels = np.array(COLOURS[region]) + rng.normal(0, 12, (40, 40, 3))
        if i in (n // 2, n // 2 + 1):
            labels[i, COLUMN["polyp"]] = 1
            pixels[12:20, 12:20] = 240
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"frame_{5 * i:06d}.png")
    return labels


def make(root: Path) -> Tiny:
    data = root / "galar"
    for study in range(1, 5):
        labels = write_study(data / "Galar_Frames" / str(study), 24, study)
        table = pd.DataFrame(labels, columns=LABELS)
        table.insert(0, "index", range(24))
        table["frame"] = 5 * np.arange(24)
        (data / "Labels").mkdir(exist_ok=True)
        table.to_csv(data / "Labels" / f"{study}.csv", index=False)
    folder = twin.build_twin(root / "twin", image_size=32, grid=4, width=32, depth=2, heads=2, embed_dim=32)
    config = configuration.config_from_dict(
        {
            "name": "tiny",
            "data": {"root": str(data), "frame_step": 1, "cache": False, "workers": 0},
            "split": {"scheme": "balanced", "folds": 2},
            "model": {"source": str(folder), "attention": "preserve", "lambda_init": 0.2, "dropout": 0.2},
            "train": {"epochs": 2, "batch_size": 16, "lr_backbone": 1e-3, "lr_heads": 3e-3, "ema": 0.9},
        }
    )
    index, _ = read_galar(data, progress=False)
    text = model.text_embeddings(config.model)
    return Tiny(root, config, index, open_reader(index, config.data), Splits.make(index, config.split), text)
