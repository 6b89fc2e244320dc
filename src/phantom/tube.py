"""The tube: the piece of gut in front of the capsule, as its radius and its colour at any angle and depth.

The gut is a tube whose radius varies over the angle around it (degrees) and the depth along it. Where one region
becomes the next, two walls are blended, and the lumen narrows to the opening of the landmark that lies there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

from phantom.lesions import POLYP, Site
from phantom.noise import soft
from phantom.walls import LENGTH, Wall

NARROW = {  # opening at a landmark: its two half axes and its length along the gut, tube radii
    "z-line": (0.62, 0.62, 0.5),
    "pylorus": (0.20, 0.20, 0.24),
    "ileocecal valve": (0.46, 0.13, 0.30),
    "": (0.70, 0.70, 0.4),
}


class Change(NamedTuple):
    """Where one region becomes the next."""

    depth: float
    before: str
    after: str
    landmark: str  # "" where the labels show none
    wobble: np.ndarray  # float32 [64], how far the border strays along the gut, over the angle; unit noise

    def share(self, angle: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """Share of the region behind: 0 before the change, 1 behind it. The z-line is jagged."""
        jag = cv2.remap(self.wobble[None], angle * (64 / 360), np.zeros_like(angle), 1, borderMode=cv2.BORDER_WRAP)
        early, reach, width = (0.30, 0.16, 0.05) if self.landmark == "z-line" else (0.0, 0.05, 0.16)
        return soft((depth - self.depth + early - reach * jag) / width + 0.5)


class Tube:
    """The gut around one place: one wall, or two where a change is in view, and the polyps that stand into it.

    `angle` (degrees) and `depth` (tube radii) are float32 arrays of one shape [...].
    """

    def __init__(self, walls: dict[str, Wall], region: str, change: Change | None, polyps: Sequence[Site] = ()):
        names = (change.before, change.after) if change else (region,)
        self.walls, self.change, self.polyps = [walls[name] for name in names], change, polyps

    def radius(self, angle: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """Radius of the lumen, float32 [...]."""
        radius = self._bare(angle, depth)
        for site in self.polyps:
            around, along = site.offset(angle, radius, depth)
            reach = np.float32((POLYP * site.lesion.half) ** 2)
            radius = radius - np.float32(0.9) * np.sqrt(np.maximum(reach - around * around - along * along, 0))
        return radius

    def _bare(self, angle: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """The radius without polyps."""
        radius, *behind = self._look("radius", angle, depth)
        if self.change is not None:
            radius = radius + (behind[0] - radius) * self.change.share(angle, depth)
            a, b, length = NARROW[self.change.landmark]
            c, s = cv2.polarToCart(np.ones_like(angle), angle, angleInDegrees=True)
            opening = np.float32(a * b) / np.sqrt(np.float32(b * b) * c * c + np.float32(a * a) * s * s)
            ring = np.exp(-(((depth - np.float32(self.change.depth)) * np.float32(1 / length)) ** 2))
            radius = radius + (opening - radius) * ring
        return radius

    def surface(self, angle: np.ndarray, depth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Colour float32 [..., 3] (0..255) of the wall without lesions, and float32 [..., 4]: its slopes and gloss."""
        skins = self._look("skin", angle, depth)
        skin, *skin_behind = (cv2.cvtColor(x, cv2.COLOR_RGBA2RGB).astype(np.float32) for x in skins)
        slope, *slope_behind = self._look("relief", angle, depth)
        if self.change is not None:
            share = self.change.share(angle, depth)[..., None]
            skin, slope = skin + (skin_behind[0] - skin) * share, slope + (slope_behind[0] - slope) * share
            h = np.float32(0.02)
            rise = self._bare(angle, depth + h) - self._bare(angle, depth - h)
            ring = np.exp(-(((depth - self.change.depth) / 0.8) ** 2))
            slope[..., 1] += (rise / (2 * h) - slope[..., 1]) * ring * 0.8
            if self.change.landmark == "ileocecal valve":  # its lips are full and pale
                lips = 0.75 * np.exp(-(((depth - self.change.depth + 0.12) / 0.30) ** 2))
                skin += (np.array([240, 182, 132], np.float32) - skin) * cv2.merge([lips] * 3)
        return skin, slope

    def _look(self, texture: str, angle: np.ndarray, depth: np.ndarray) -> list[np.ndarray]:
        """The texture of that name of every wall, looked up bilinearly."""
        textures = [getattr(wall, texture) for wall in self.walls]
        length, around = textures[0].shape[:2]
        u, v = angle * np.float32(around / 360), depth * np.float32(length / LENGTH)
        v = v - np.float32(length) * np.floor(v * np.float32(1 / length))  # OpenCV's wrapping is five times slower
        return [cv2.remap(x, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP) for x in textures]
