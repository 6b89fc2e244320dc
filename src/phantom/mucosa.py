"""Mucosa: the gut's wall, region by region, and the lesions on it, as textures that `capsule` wraps around a tube.

A wall is periodic over the angle (0..2 pi, axis 1) and over `LENGTH` tube radii along the lumen (axis 0). Everything is
drawn from a generator; nothing comes from a picture.
"""

import math
from typing import NamedTuple

import cv2
import numpy as np
from scipy import fft

LENGTH = 8.0  # tube radii after which a wall repeats
SHAPE = (1024, 768)  # texels along the lumen and around it: 128 and 122 per tube radius


class Wall(NamedTuple):
    """One region's surface."""

    radius: np.ndarray  # float32 [256, 192], tube radii: folds stand inwards
    relief: np.ndarray  # float32 [1024, 768, 4]: slope of the radius around and along the lumen, gloss, nothing
    skin: np.ndarray  # uint8 [1024, 768, 4]: RGB, nothing (OpenCV looks four channels up twice as fast as three)


class Lesion(NamedTuple):
    """One finding as a patch of the wall; `half` is its half extent in tube radii."""

    half: float
    skin: np.ndarray  # uint8 [128, 128, 4], RGB and opacity
    relief: np.ndarray | None  # float32 [128, 128, 2], slopes added to the wall's


# -------------------------------------------------------------------------------------------------------------- fields


def band(rng, shape, wave: float, spread: float = 0.35, around: float = 1.0) -> np.ndarray:
    """Periodic noise of one wavelength (texels), float32, mean 0, variance 1; `around` > 1 lengthens it along z."""
    spectrum = fft.rfft2(rng.standard_normal(shape, np.float32))
    fy = fft.fftfreq(shape[0])[:, None] * around
    fx = fft.rfftfreq(shape[1])[None, :]
    f = np.sqrt(fy * fy + fx * fx).astype(np.float32)
    f[0, 0] = 1e-9
    field = fft.irfft2(spectrum * np.exp(-((np.log(f * wave) / spread) ** 2)), s=shape)
    return (field / field.std()).astype(np.float32)


def soft(x: np.ndarray) -> np.ndarray:
    """Smooth step from 0 at 0 to 1 at 1."""
    x = np.clip(x, 0, 1)
    return x * x * (3 - 2 * x)


def _large(field: np.ndarray) -> np.ndarray:
    """A periodic half-size field at full size."""
    padded = np.pad(field, 4, mode="wrap")
    return cv2.resize(padded, None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC)[8:-8, 8:-8]


def _mix(colour, other, share: np.ndarray) -> np.ndarray:
    """From one colour to another, float32 [3, ...]; colours are triples or such fields."""
    colour, other = (np.asarray(c, np.float32).reshape(3, *np.shape(c)[1:] or (1, 1)) for c in (colour, other))
    return colour + (other - colour) * np.asarray(share, np.float32)


def _vessels(rng, trees: int, width: float, along: float) -> np.ndarray:
    """Branching vessels as opacity 0..1, periodic; `along` pulls them towards the lumen's direction."""
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
    for view in (canvas, canvas.T):
        view[pad : 2 * pad] = np.maximum(view[pad : 2 * pad], view[-pad:])
        view[-2 * pad : -pad] = np.maximum(view[-2 * pad : -pad], view[:pad])
    return cv2.GaussianBlur(canvas[pad:-pad, pad:-pad], (0, 0), 0.9).astype(np.float32) / 255


# --------------------------------------------------------------------------------------------------------------- walls


def wall(region: str, rng) -> Wall:
    """The surface of one of the five regions."""
    half = (SHAPE[0] // 2, SHAPE[1] // 2)
    coarse = _large(band(rng, half, 190, 0.5))
    patchy = _large(band(rng, half, 40, 0.6))
    fine = band(rng, SHAPE, 5.0, 0.45)
    z = np.linspace(0, LENGTH, SHAPE[0], endpoint=False, dtype=np.float32)[:, None]
    a = np.linspace(0, 2 * np.pi, SHAPE[1], endpoint=False, dtype=np.float32)[None, :]
    radius, bump, skin, gloss = _REGIONS[region](rng, half, z, a, coarse, patchy, fine)
    cavity = np.clip((cv2.GaussianBlur(radius, (0, 0), 14, borderType=cv2.BORDER_REFLECT) - radius) * 7, -1, 1)
    skin = skin * (1 + 0.22 * cavity)  # light does not reach the bottom between two folds
    surface = radius + bump
    relief = np.zeros((*SHAPE, 4), np.float32)
    around = np.roll(surface, -1, 1) - np.roll(surface, 1, 1)
    relief[..., 0] = around * (SHAPE[1] / (4 * np.pi)) / np.maximum(radius, 0.3)
    relief[..., 1] = (np.roll(surface, -1, 0) - np.roll(surface, 1, 0)) * (SHAPE[0] / (2 * LENGTH))
    relief[..., 2] = gloss
    texture = cv2.merge([*np.clip(skin, 0, 255).astype(np.uint8), np.zeros(SHAPE, np.uint8)])
    small = cv2.resize(radius.astype(np.float32), (192, 256), interpolation=cv2.INTER_AREA)
    return Wall(small, np.clip(relief, -4, 4), texture)


def _mouth(rng, half, z, a, coarse, patchy, fine):
    """Palate above with its ridges, tongue with papillae below, two rows of teeth."""
    up = -np.sin(a)
    below = soft((0.2 - up) / 0.35) * np.ones_like(z)
    ridges = soft(np.cos(2 * np.pi * (2.5 * z + 0.25 * np.cos(2 * a)) + 0.9 * coarse) - 0.2) * soft((up - 0.35) / 0.3)
    radius = 1 + 0.06 * coarse - 0.07 * ridges - 0.30 * below * np.exp(-((np.cos(a) / 0.6) ** 2))
    papillae = soft((_large(band(rng, half, 4.5, 0.25)) - 0.9) / 0.8)
    skin = _mix(_mix((232, 142, 130), (208, 104, 100), soft(0.5 + 0.4 * patchy)), (206, 108, 110), below)
    skin = _mix(skin, (238, 178, 172), 0.5 * below * papillae)
    depth = np.abs((z + 0.2 * np.cos(a) ** 2) % 4 - 1.5)  # the arch bends away from the lips
    gum = soft((0.62 - depth) / 0.25) * soft((np.abs(up) - 0.42) / 0.25)
    gap = soft((np.abs(np.sin(4.5 * a + 0.5 * np.sin(2 * a))) - 0.05) / 0.2)
    tooth = soft((0.42 - depth) / 0.16) * gap * soft((gum - 0.2) / 0.3)
    radius = radius - 0.16 * gum - 0.14 * tooth
    skin = _mix(skin, (216, 104, 104), gum)
    skin = _mix(skin, _mix((246, 240, 220), (226, 208, 166), soft(depth * 2.5)), soft(1.6 * tooth))
    gloss = 0.5 + 0.4 * tooth + 0.2 * soft(coarse)
    return radius, -0.0035 * papillae * below + 0.0008 * fine, skin, gloss


def _esophagus(rng, half, z, a, coarse, patchy, fine):
    """Smooth, pale, with longitudinal folds that close the lumen and fine vessels along it."""
    folds = 0.5 + 0.5 * np.cos(5 * a + 0.7 * coarse + 0.4 * np.sin(2 * np.pi * z / LENGTH))
    radius = 0.80 + 0.06 * np.cos(2 * np.pi * 5 * z / LENGTH + coarse) - 0.30 * folds**2.2
    vessels = _vessels(rng, 40, 1.6, 0.12)
    skin = _mix(_mix((236, 176, 160), (222, 150, 136), soft(0.5 + 0.3 * patchy)), (196, 92, 88), 0.45 * vessels)
    return radius, 0.0012 * fine + 0.003 * patchy, skin, np.full_like(radius, 0.75)


def _stomach(rng, half, z, a, coarse, patchy, fine):
    """Thick winding folds (rugae) on a wide cavity, fading to the smooth antrum; salmon, glossy with mucus."""
    field = band(rng, half, 48, 0.30, around=0.62)
    for _ in range(3):  # saturate and filter again: blobs join to winding ridges
        spectrum = fft.rfft2(np.tanh(1.6 * field))
        fy, fx = fft.fftfreq(half[0])[:, None] * 0.62, fft.rfftfreq(half[1])[None, :]
        f = np.sqrt(fy * fy + fx * fx) + 1e-9
        field = fft.irfft2(spectrum * np.exp(-((np.log(f * 48) / 0.28) ** 2)), s=half).astype(np.float32)
        field /= field.std()
    ridge = _large(np.sqrt(np.clip(0.5 + 0.5 * np.tanh(1.3 * field), 0, 1)))
    strength = soft(0.75 + 0.45 * coarse)
    radius = 1.25 + 0.10 * coarse - 0.34 * ridge * strength
    skin = _mix(
        _mix((226, 138, 116), (212, 112, 94), soft(0.5 + 0.35 * patchy)), (186, 78, 66), 0.5 * (1 - ridge) * strength
    )
    areae = _large(band(rng, half, 7, 0.3))
    skin *= 1 + 0.025 * areae + 0.015 * fine
    return radius, 0.0018 * areae + 0.0008 * fine + 0.002 * patchy, skin, 0.55 + 0.3 * soft(patchy)


def _small_intestine(rng, half, z, a, coarse, patchy, fine):
    """Thin circular folds (plicae) that run part of the way round, a velvet of villi, a lumen that opens and closes."""
    warp = 0.20 * coarse + 0.10 * np.cos(a + 1.3) + 0.06 * np.cos(2 * a)
    across = np.abs((15 * z / LENGTH + warp) % 1 - 0.5) * 2  # 1 at the crest
    crest = np.exp(-(((1 - across) / 0.30) ** 2))
    reach = soft(0.5 + 0.6 * _large(band(rng, half, 110, 0.4, around=2.0)))
    squeeze = 0.5 + 0.35 * np.cos(2 * np.pi * 3 * z / LENGTH + 1.2 * np.cos(2 * np.pi * z / LENGTH) + 0.5 * coarse)
    radius = 1.0 - 0.34 * squeeze + 0.10 * coarse - 0.22 * crest * reach
    villi = band(rng, SHAPE, 4.6, 0.30)
    tips = soft(0.5 + 0.5 * villi)
    skin = _mix(_mix((224, 150, 96), (206, 122, 72), soft(0.5 + 0.35 * patchy)), (240, 184, 132), 0.6 * crest * reach)
    skin = _mix(skin, (190, 100, 66), 0.30 * _vessels(rng, 16, 1.3, 0.0))
    skin = _mix(skin, (248, 200, 148), 0.22 * tips) * (1 + 0.02 * fine)
    flakes = soft((_large(band(rng, half, 16, 0.5)) - 2.3) / 0.5)
    skin = _mix(skin, (214, 186, 84), 0.55 * flakes)
    return radius, 0.0013 * villi + 0.0005 * fine + 0.004 * patchy, skin, 0.25 + 0.25 * soft(patchy)


def _colon(rng, half, z, a, coarse, patchy, fine):
    """Haustra: sacs between half-moon folds in three rows, so that the lumen looks triangular; branching vessels."""
    sector, part = np.floor(a * 3 / (2 * np.pi)), (a * 3 / (2 * np.pi)) % 1
    shift = sector + soft(0.5 + part / 0.5) + soft((part - 0.75) / 0.5)  # one third of a fold's distance per sector
    phase = 6 * z / LENGTH + shift / 3 + 0.10 * coarse
    across = np.abs((phase % 1) - 0.5) * 2
    crest = np.exp(-(((1 - across) / 0.20) ** 2))
    middle = np.sqrt(np.sin(1.5 * a) ** 2 + 0.02)  # of a sector; between them run the three bands of muscle
    moon = 0.25 + 0.75 * middle
    radius = 1.18 - 0.46 * crest * moon + 0.08 * coarse - 0.10 * (1 - middle) ** 2
    vessels = np.maximum(_vessels(rng, 26, 2.6, 0.0), 0.6 * _vessels(rng, 30, 1.2, 0.0))
    skin = _mix(_mix((232, 156, 122), (218, 132, 98), soft(0.5 + 0.35 * patchy)), (178, 66, 58), 0.6 * vessels)
    skin = _mix(skin, (240, 186, 156), 0.4 * crest * moon)
    stool = soft((_large(band(rng, half, 30, 0.7)) - 1.9) / 0.6)
    skin = _mix(skin, (176, 140, 58), 0.75 * stool) * (1 + 0.012 * fine)
    return radius, 0.0012 * fine + 0.003 * patchy - 0.012 * stool, skin, 0.6 - 0.4 * stool


_REGIONS = {
    "mouth": _mouth,
    "esophagus": _esophagus,
    "stomach": _stomach,
    "small intestine": _small_intestine,
    "colon": _colon,
}

# ------------------------------------------------------------------------------------------------------------- lesions

N = 128  # texels of a lesion's patch
POLYP = 0.62  # radius of a polyp in its patch's half extents; `capsule` lets it stand out by as much
_Y, _X = np.mgrid[-1 : 1 : N * 1j, -1 : 1 : N * 1j].astype(np.float32)


def lesion(kind: str, rng) -> Lesion:
    """One finding of `labels.FINDINGS`, every one different."""
    ragged = np.hypot(_X, _Y * rng.uniform(1.0, 1.5)) * (1 + 0.11 * band(rng, (N, N), 50, 0.5))
    half, colour, opacity, height = _LESIONS[kind](rng, ragged)
    opacity = opacity * soft((0.98 - np.maximum(np.abs(_X), np.abs(_Y))) / 0.1)
    colour = np.broadcast_to(np.asarray(colour, np.float32).reshape(3, *np.shape(colour)[1:] or (1, 1)), (3, N, N))
    skin = np.dstack([*colour, 255 * opacity])
    relief = None
    if height is not None:  # given in half extents, inwards
        dy, dx = np.gradient(cv2.GaussianBlur(-height.astype(np.float32), (0, 0), 1.5), 2 / N)
        relief = np.dstack([dx, dy]).astype(np.float32)
    return Lesion(half, np.clip(skin, 0, 255).astype(np.uint8), relief)


def _dots(rng, n: int, sizes, spread: float) -> np.ndarray:
    """Opacity of n round spots, their radii (texels) within `sizes`, scattered normally with `spread` half extents."""
    canvas = np.zeros((N, N), np.uint8)
    for x, y in np.clip(rng.normal(0, spread, (n, 2)), -0.85, 0.85):
        centre = (round(8 * (x + 1) * N / 2), round(8 * (y + 1) * N / 2))
        cv2.circle(canvas, centre, round(8 * rng.uniform(*sizes)), 255, -1, cv2.LINE_AA, 3)
    return cv2.GaussianBlur(canvas, (0, 0), 0.9).astype(np.float32) / 255


def _angiectasia(rng, ragged):
    canvas = np.zeros((N, N), np.uint8)
    todo = [(np.array([N / 2, N / 2]), t, 3) for t in np.arange(8) * np.pi / 4 + rng.uniform(-0.4, 0.4, 8)]
    while todo:  # fern-like: branches leave branches
        point, angle, wide = todo.pop()
        line = [point]
        for _ in range(int(rng.integers(5, 9))):
            angle += rng.normal(0, 0.3)
            point = point + 4.2 * np.array([np.cos(angle), np.sin(angle)])
            line.append(point)
            if wide > 1 and rng.random() < 0.4:
                todo.append((point, angle + rng.choice([-1, 1]) * rng.uniform(0.5, 1.0), wide - 1))
        cv2.polylines(
            canvas, [np.round(8 * np.array(line)).astype(np.int32)], False, 200 + 18 * wide, wide, cv2.LINE_AA, 3
        )
    fern = cv2.GaussianBlur(canvas, (0, 0), 1.2).astype(np.float32) / 255
    opacity = np.clip(np.maximum(0.9 * fern, 0.55 * soft((0.5 - ragged) / 0.3)), 0, 0.92)
    return rng.uniform(0.20, 0.32), np.array([176, 18, 24]), opacity, None


def _ulcer(rng, ragged):
    base = soft((0.50 - ragged) / 0.10)
    rim = np.exp(-(((ragged - 0.60) / 0.14) ** 2))
    fibrin = soft(0.5 + 0.3 * band(rng, (N, N), 12, 0.5))
    colour = _mix((178, 46, 40), _mix((240, 226, 176), (222, 200, 130), fibrin), base)
    return rng.uniform(0.30, 0.48), colour, np.maximum(0.92 * base, 0.70 * rim), 0.10 * rim - 0.14 * base


def _erosion(rng, ragged):
    centre = soft((0.26 - ragged) / 0.12)
    halo = np.exp(-((ragged / 0.52) ** 2))
    colour = _mix((186, 44, 38), (246, 234, 198), centre)
    return rng.uniform(0.22, 0.32), colour, np.maximum(0.92 * centre, 0.66 * halo), None


def _erythema(rng, ragged):
    mottle = 0.75 + 0.25 * np.clip(band(rng, (N, N), 22, 0.6), -1, 1)
    return rng.uniform(0.6, 0.9), np.array([190, 40, 40]), 0.52 * mottle * soft((1.0 - ragged) / 0.7), None


def _lymphangioectasis(rng, ragged):
    spots = _dots(rng, int(rng.integers(26, 48)), (1.8, 4.2), 0.38)
    return rng.uniform(0.30, 0.45), np.array([250, 244, 228]), 0.88 * spots, 0.02 * spots


def _polyp(rng, ragged):
    smooth = np.hypot(_X, _Y) / POLYP
    dome = np.sqrt(np.clip(1 - smooth**2, 0, None))
    foot = np.exp(-(((smooth - 1.06) / 0.13) ** 2))
    colour = _mix((206, 88, 74), (228, 124, 104), soft(0.5 + 0.4 * band(rng, (N, N), 12, 0.5)))
    colour = _mix(colour, (96, 26, 22), soft(foot))
    return rng.uniform(0.30, 0.44), colour, np.maximum(0.75 * soft(dome * 3), 0.6 * foot), 0.9 * POLYP * dome


def _active_bleeding(rng, ragged):
    bend = 0.16 * np.sin(2.2 * _Y + rng.uniform(0, 6)) + 0.06 * np.sin(7 * _Y)
    width = 0.05 + 0.10 * soft((_Y + 0.8) / 1.4)
    stream = soft((width - np.abs(_X - bend)) / 0.05) * soft((_Y + 0.78) / 0.06) * soft((0.9 - _Y) / 0.3)
    pool = soft((0.42 - np.hypot(_X - bend, (_Y - 0.5) * 1.4) * (1 + 0.2 * band(rng, (N, N), 30, 0.5))) / 0.08)
    opacity = np.maximum(stream, pool)
    return rng.uniform(0.55, 0.8), _mix((206, 8, 12), (168, 4, 8), pool), 0.94 * opacity, 0.05 * opacity


def _blood(rng, ragged):
    deep = 0.75 + 0.42 * band(rng, (N, N), 60, 0.6) + 0.12 * band(rng, (N, N), 16, 0.5) - 1.0 * ragged
    film = soft(deep / 0.9)  # thin and see-through at the rim, dark where it stands
    colour = _mix((184, 22, 16), (96, 6, 6), soft((deep - 0.2) / 0.7))
    return rng.uniform(1.1, 1.6), colour, 0.96 * np.sqrt(film), 0.02 * film


def _hematin(rng, ragged):
    grounds = np.maximum(_dots(rng, int(rng.integers(80, 150)), (0.8, 2.6), 0.40), _dots(rng, 8, (3, 5), 0.3))
    film = 0.34 * soft((0.8 + 0.4 * band(rng, (N, N), 30, 0.6) - ragged) / 0.5)
    return (
        rng.uniform(0.8, 1.2),
        _mix((92, 50, 26), (34, 18, 12), grounds),
        np.maximum(0.93 * grounds, film),
        0.012 * grounds,
    )


_LESIONS = {
    "active bleeding": _active_bleeding,
    "angiectasia": _angiectasia,
    "blood": _blood,
    "erosion": _erosion,
    "erythema": _erythema,
    "hematin": _hematin,
    "lymphangioectasis": _lymphangioectasis,
    "polyp": _polyp,
    "ulcer": _ulcer,
}
