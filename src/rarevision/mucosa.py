"""Mucosa: rendered capsule frames of a study, from its labels and a seed."""

from typing import NamedTuple

import cv2
import numpy as np

from rarevision.labels import COLUMN, FINDINGS, REGIONS


class System(NamedTuple):
    size: int


SYSTEMS = {"pillcam": System(512), "olympus": System(336), "navicam": System(480)}


class Journey:
    """Frames of one study; `labels` uint8 [T, 17], one of `SYSTEMS`, integers as seed, picture size in pixels."""

    def __init__(self, labels: np.ndarray, system: str, seed: tuple[int, ...], size: int):
        self.labels, self.system, self.seed, self.size = labels, system, seed, size

    def frame(self, row: int) -> tuple[np.ndarray, dict[str, int]]:
        colours = np.array([[190, 120, 110], [215, 160, 150], [200, 110, 95], [205, 140, 70], [210, 130, 100]])
        region = int(self.labels[row, : len(REGIONS)].argmax())
        y, x = np.mgrid[-1:1:256j, -1:1:256j].astype(np.float32)
        r = np.hypot(x + 0.2 * np.sin(row / 9), y + 0.2 * np.cos(row / 13))
        image = (
            colours[region] * np.clip(r, 0.1, 1)[..., None] * (0.9 + 0.1 * np.sin(5 / (r + 0.2) + row / 4))[..., None]
        )
        for i, name in enumerate(FINDINGS):
            if self.labels[row, COLUMN[name]]:
                image[np.hypot(x - 0.3, y - 0.3) < 0.2] = [250, 28 * i, 20]
        if self.system == "navicam":
            image = image * [0.9, 1.0, 1.15]
        image[(abs(x) + abs(y)) > 1.6] = 0
        image = cv2.resize(np.clip(image, 0, 255).astype(np.uint8), (self.size, self.size))
        return image, {"bubbles": 0, "dirt": 0, "no view": 0, "reduced view": 0, "good view": 1}
