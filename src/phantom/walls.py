"""Walls: the mucosa (inner lining) of the gut's five regions, as textures that `tube` wraps around the lumen.

The lumen is the hollow inside of the gut. A wall is periodic over the angle around it (0..2 pi, axis 1) and repeats
every `LENGTH` along it (axis 0). Lengths are in tube radii: 1 is about the mean radius of the small intestine. All is
drawn from a random generator; nothing comes from a picture.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np

from phantom.noise import band, band_pass, drawn, frequency, mix, soft
from rarevision.labels import REGIONS

LENGTH = 8.0  # tube radii after which a wall repeats
SHAPE = (1024, 768)  # texels along the lumen and around it: 128 and 122 per tube radius
HALF = (SHAPE[0] // 2, SHAPE[1] // 2)
Z = np.linspace(0, LENGTH, SHAPE[0], endpoint=False, dtype=np.float32)[:, None]  # depth of every texel
A = np.linspace(0, 2 * np.pi, SHAPE[1], endpoint=False, dtype=np.float32)[None, :]  # angle of every texel


class Wall(NamedTuple):
    """One region's surface."""

    radius: np.ndarray  # float32 [256, 192], tube radii; folds of the wall stand inwards
    relief: np.ndarray  # float32 [1024, 768, 4]: slope of the radius around and along the lumen, gloss, nothing
    skin: np.ndarray  # uint8 [1024, 768, 4]: RGB, nothing (OpenCV looks four channels up twice as fast as three)


def wall(region: str, rng: np.random.Generator) -> Wall:
    """The surface of one of the five regions."""
    coarse, patchy = _noise(rng, 190, 0.5), _noise(rng, 40, 0.6)
    fine = band(rng, SHAPE, 5.0, 0.45)
    radius, bump, skin, gloss = _PAINTERS[region](rng, coarse, patchy, fine)
    cavity = np.clip((cv2.GaussianBlur(radius, (0, 0), 14, borderType=cv2.BORDER_REFLECT) - radius) * 7, -1, 1)
    skin = skin * (1 + 0.22 * cavity)  # light does not reach the bottom between two folds
    surface = radius + bump
    around = (np.roll(surface, -1, 1) - np.roll(surface, 1, 1)) * (SHAPE[1] / (4 * np.pi)) / np.maximum(radius, 0.3)
    along = (np.roll(surface, -1, 0) - np.roll(surface, 1, 0)) * (SHAPE[0] / (2 * LENGTH))
    relief = np.clip(np.dstack([around, along, gloss, 0 * gloss]).astype(np.float32), -4, 4)
    texture = cv2.merge([*np.clip(skin, 0, 255).astype(np.uint8), np.zeros(SHAPE, np.uint8)])
    return Wall(cv2.resize(radius.astype(np.float32), (192, 256), interpolation=cv2.INTER_AREA), relief, texture)


def _large(field: np.ndarray) -> np.ndarray:
    """A periodic field of half the size, enlarged to the wall's."""
    padded = np.pad(field, 4, mode="wrap")
    return cv2.resize(padded, None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC)[8:-8, 8:-8]


def _noise(rng, wave: float, spread: float, around: float = 1.0) -> np.ndarray:
    """`band` at half the resolution, which is enough for long waves; `wave` in texels of that resolution."""
    return _large(band(rng, HALF, wave, spread, around))


def _vessels(rng, trees: int, width: float, along: float) -> np.ndarray:
    """Branching blood vessels as opacity 0..1, periodic; `along` pulls them towards the lumen's direction."""
    pad, (h, w) = 128, SHAPE
    canvas = np.zeros((h + 2 * pad, w + 2 * pad), np.uint8)
    starts = rng.uniform(pad, [w + pad, h + pad], (trees, 2)).tolist()
    todo = [(x, y, rng.uniform(0, 2 * math.pi), width * rng.uniform(0.7, 1.3), 60) for x, y in starts]
    while todo:
        x, y, angle, wide, steps = todo.pop()
        line = [(x, y)]
        for bend, fork in zip(rng.normal(0, 0.22, steps).tolist(), rng.random(steps).tolist(), strict=True):
            angle += bend - along * math.sin(2 * (angle - math.pi / 2))
            x, y = x + 5 * math.cos(angle), y + 5 * math.sin(angle)
            if not (0 < x < w + 2 * pad and 0 < y < h + 2 * pad):
                break
            line.append((x, y))
            if wide > 1.0 and fork < 0.12:
                side = 1 if fork < 0.06 else -1
                todo.append((x, y, angle + side * rng.uniform(0.4, 1.0), wide * 0.62, steps // 2))
        points = np.round(8 * np.array(line)).astype(np.int32)
        cv2.polylines(canvas, [points], False, int(min(255, 95 + 55 * wide)), max(1, round(wide)), cv2.LINE_AA, 3)
    for view in (canvas, canvas.T):  # what left the wall on one side comes in on the other
        view[pad : 2 * pad] = np.maximum(view[pad : 2 * pad], view[-pad:])
        view[-2 * pad : -pad] = np.maximum(view[-2 * pad : -pad], view[:pad])
    return drawn(canvas[pad:-pad, pad:-pad], 0.9)


# Every painter below takes the generator and three noise fields [1024, 768], and returns the radius of the lumen, fine
# bumps upon it (both tube radii), the colour [3, 1024, 768] (0..255) and the gloss (0..1).


def _mouth(rng, coarse, patchy, fine):
    """The palate with its ridges above, the tongue with its papillae (small knobs) below, and two rows of teeth."""
    up = -np.sin(A)
    below = soft((0.2 - up) / 0.35) * np.ones_like(Z)
    ridges = soft(np.cos(2 * np.pi * (2.5 * Z + 0.25 * np.cos(2 * A)) + 0.9 * coarse) - 0.2) * soft((up - 0.35) / 0.3)
    radius = 1 + 0.06 * coarse - 0.07 * ridges - 0.30 * below * np.exp(-((np.cos(A) / 0.6) ** 2))
    papillae = soft((_noise(rng, 4.5, 0.25) - 0.9) / 0.8)
    skin = mix(mix((232, 142, 130), (208, 104, 100), soft(0.5 + 0.4 * patchy)), (206, 108, 110), below)
    skin = mix(skin, (238, 178, 172), 0.5 * below * papillae)
    depth = np.abs((Z + 0.2 * np.cos(A) ** 2) % 4 - 1.5)  # the arch bends away from the lips
    gum = soft((0.62 - depth) / 0.25) * soft((np.abs(up) - 0.42) / 0.25)
    gap = soft((np.abs(np.sin(4.5 * A + 0.5 * np.sin(2 * A))) - 0.05) / 0.2)
    tooth = soft((0.42 - depth) / 0.16) * gap * soft((gum - 0.2) / 0.3)
    radius = radius - 0.16 * gum - 0.14 * tooth
    skin = mix(skin, (216, 104, 104), gum)
    skin = mix(skin, mix((246, 240, 220), (226, 208, 166), soft(depth * 2.5)), soft(1.6 * tooth))
    return radius, -0.0035 * papillae * below + 0.0008 * fine, skin, 0.5 + 0.4 * tooth + 0.2 * soft(coarse)


def _esophagus(rng, coarse, patchy, fine):
    """Smooth and pale, with folds along it that close the lumen, and fine vessels."""
    folds = 0.5 + 0.5 * np.cos(5 * A + 0.7 * coarse + 0.4 * np.sin(2 * np.pi * Z / LENGTH))
    radius = 0.80 + 0.06 * np.cos(2 * np.pi * 5 * Z / LENGTH + coarse) - 0.30 * folds**2.2
    vessels = _vessels(rng, 40, 1.6, 0.12)
    skin = mix(mix((236, 176, 160), (222, 150, 136), soft(0.5 + 0.3 * patchy)), (196, 92, 88), 0.45 * vessels)
    return radius, 0.0012 * fine + 0.003 * patchy, skin, np.full_like(radius, 0.75)


def _stomach(rng, coarse, patchy, fine):
    """A wide cavity with thick winding folds (rugae) that fade towards its smooth end; salmon, glossy with mucus."""
    field = band(rng, HALF, 48, 0.30, around=0.62)
    for _ in range(3):  # saturate and filter again: blobs join to winding ridges
        field = band_pass(np.tanh(1.6 * field), frequency(HALF, 0.62) + 1e-9, 48, 0.28)
    ridge = _large(np.sqrt(np.clip(0.5 + 0.5 * np.tanh(1.3 * field), 0, 1)))
    strength = soft(0.75 + 0.45 * coarse)
    radius = 1.25 + 0.10 * coarse - 0.34 * ridge * strength
    skin = mix((226, 138, 116), (212, 112, 94), soft(0.5 + 0.35 * patchy))
    skin = mix(skin, (186, 78, 66), 0.5 * (1 - ridge) * strength)
    areae = _noise(rng, 7, 0.3)  # areae gastricae: the stomach's fine cobbles
    skin *= 1 + 0.025 * areae + 0.015 * fine
    return radius, 0.0018 * areae + 0.0008 * fine + 0.002 * patchy, skin, 0.55 + 0.3 * soft(patchy)


def _small_intestine(rng, coarse, patchy, fine):
    """Thin folds (plicae) that run part of the way round, a velvet of villi, and a lumen that opens and closes."""
    warp = 0.20 * coarse + 0.10 * np.cos(A + 1.3) + 0.06 * np.cos(2 * A)
    across = np.abs((15 * Z / LENGTH + warp) % 1 - 0.5) * 2  # 1 at the crest of a fold
    crest = np.exp(-(((1 - across) / 0.30) ** 2))
    reach = soft(0.5 + 0.6 * _noise(rng, 110, 0.4, around=2.0))
    squeeze = 0.5 + 0.35 * np.cos(2 * np.pi * 3 * Z / LENGTH + 1.2 * np.cos(2 * np.pi * Z / LENGTH) + 0.5 * coarse)
    radius = 1.0 - 0.34 * squeeze + 0.10 * coarse - 0.22 * crest * reach
    villi = band(rng, SHAPE, 4.6, 0.30)
    tips = soft(0.5 + 0.5 * villi)
    skin = mix(mix((224, 150, 96), (206, 122, 72), soft(0.5 + 0.35 * patchy)), (240, 184, 132), 0.6 * crest * reach)
    skin = mix(skin, (190, 100, 66), 0.30 * _vessels(rng, 16, 1.3, 0.0))
    skin = mix(skin, (248, 200, 148), 0.22 * tips) * (1 + 0.02 * fine)
    flakes = soft((_noise(rng, 16, 0.5) - 2.3) / 0.5)  # of digested food
    skin = mix(skin, (214, 186, 84), 0.55 * flakes)
    return radius, 0.0013 * villi + 0.0005 * fine + 0.004 * patchy, skin, 0.25 + 0.25 * soft(patchy)


def _colon(rng, coarse, patchy, fine):
    """Sacs (haustra) between half-moon folds in three rows, so that the lumen looks triangular; branching vessels."""
    sector, part = np.floor(A * 3 / (2 * np.pi)), (A * 3 / (2 * np.pi)) % 1
    shift = sector + soft(0.5 + part / 0.5) + soft((part - 0.75) / 0.5)  # one third of a fold's distance per sector
    phase = 6 * Z / LENGTH + shift / 3 + 0.10 * coarse
    across = np.abs((phase % 1) - 0.5) * 2
    crest = np.exp(-(((1 - across) / 0.20) ** 2))
    middle = np.sqrt(np.sin(1.5 * A) ** 2 + 0.02)  # 1 in a sector's middle; between sectors run three bands of muscle
    moon = 0.25 + 0.75 * middle
    radius = 1.18 - 0.46 * crest * moon + 0.08 * coarse - 0.10 * (1 - middle) ** 2
    vessels = np.maximum(_vessels(rng, 26, 2.6, 0.0), 0.6 * _vessels(rng, 30, 1.2, 0.0))
    skin = mix(mix((232, 156, 122), (218, 132, 98), soft(0.5 + 0.35 * patchy)), (178, 66, 58), 0.6 * vessels)
    skin = mix(skin, (240, 186, 156), 0.4 * crest * moon)
    stool = soft((_noise(rng, 30, 0.7) - 1.9) / 0.6)
    skin = mix(skin, (176, 140, 58), 0.75 * stool) * (1 + 0.012 * fine)
    return radius, 0.0012 * fine + 0.003 * patchy - 0.012 * stool, skin, 0.6 - 0.4 * stool


_PAINTERS: dict[str, Callable] = dict(
    zip(REGIONS, (_mouth, _esophagus, _stomach, _small_intestine, _colon), strict=True)
)
