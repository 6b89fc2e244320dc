"""Lesions: the nine findings as patches of the wall, and the sites where a study carries them."""

from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np

from phantom.noise import band, drawn, mix, soft
from rarevision.labels import FINDINGS

N = 128  # texels along a patch's side
POLYP = 0.62  # radius of a polyp in its patch's half extents; `tube` lets it stand out by as much
ENTER = 0.7  # opacity of a lesion in its event's first and last frame
_Y, _X = np.mgrid[-1 : 1 : N * 1j, -1 : 1 : N * 1j].astype(np.float32)


class Lesion(NamedTuple):
    """One finding as a patch of the wall."""

    half: float  # half of the patch's side, tube radii
    skin: np.ndarray  # uint8 [128, 128, 4], RGB and opacity
    relief: np.ndarray | None  # float32 [128, 128, 2], slopes added to the wall's; None: the lesion is flat


class Site(NamedTuple):
    """One event of one finding, fixed to the wall: the capsule passes it, it does not move along."""

    kind: str
    first: int  # rows of the event, both included
    last: int
    angle: float  # degrees around the lumen
    depth: float  # along the gut, tube radii
    turn: float  # radians, of the patch on the wall
    strength: float  # opacity
    lesion: Lesion

    def offset(self, angle: np.ndarray, radius: np.ndarray, depth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distance of points of the wall from the lesion's centre, around and along the lumen, in tube radii."""
        turn = angle - np.float32(self.angle)
        turn -= 360 * np.round(turn * np.float32(1 / 360))
        return turn * np.float32(np.pi / 180) * radius, depth - np.float32(self.depth)

    def paint(self, row: int, angle, radius, depth, skin: np.ndarray, slope: np.ndarray) -> None:
        """Lay the lesion over the wall as seen in frame `row`: changes `skin` [n, n, 3] and `slope` [n, n, 4]."""
        around, along = self.offset(angle, radius, depth)
        scale = N / 2 / self.lesion.half
        c, s = float(np.cos(self.turn)) * scale, float(np.sin(self.turn)) * scale
        u, v = around * c + along * s + N / 2, along * c - around * s + N / 2
        patch = cv2.remap(self.lesion.skin, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
        at_end = row in (self.first, self.last) and self.last > self.first
        fade = self.strength * (ENTER if at_end else 1.0)
        skin += (patch[..., :3] - skin) * (patch[..., 3:].astype(np.float32) * np.float32(fade / 255))
        if self.lesion.relief is not None:
            bump = cv2.remap(self.lesion.relief, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
            bump *= np.float32(fade)
            slope[..., 0] += bump[..., 0] * (c / scale) - bump[..., 1] * (s / scale)
            slope[..., 1] += bump[..., 0] * (s / scale) + bump[..., 1] * (c / scale)


def lesion(kind: str, rng: np.random.Generator) -> Lesion:
    """One finding of `labels.FINDINGS`, every one different."""
    ragged = np.hypot(_X, _Y * rng.uniform(1.0, 1.5)) * (1 + 0.11 * _noise(rng, 50, 0.5))
    half, colour, opacity, height = _PAINTERS[kind](rng, ragged)
    opacity = opacity * soft((0.98 - np.maximum(np.abs(_X), np.abs(_Y))) / 0.1)
    colour = np.broadcast_to(np.asarray(colour, np.float32).reshape(3, *np.shape(colour)[1:] or (1, 1)), (3, N, N))
    skin = np.dstack([*colour, 255 * opacity])
    relief = None
    if height is not None:
        dy, dx = np.gradient(cv2.GaussianBlur(-height.astype(np.float32), (0, 0), 1.5), 2 / N)
        relief = np.dstack([dx, dy]).astype(np.float32)
    return Lesion(half, np.clip(skin, 0, 255).astype(np.uint8), relief)


def _noise(rng, wave: float, spread: float) -> np.ndarray:
    return band(rng, (N, N), wave, spread)


def _dots(rng, n: int, sizes: tuple[float, float], spread: float) -> np.ndarray:
    """Opacity of n round spots, their radii (texels) within `sizes`, scattered normally with `spread` half extents."""
    canvas = np.zeros((N, N), np.uint8)
    for x, y in np.clip(rng.normal(0, spread, (n, 2)), -0.85, 0.85):
        centre = (round(8 * (x + 1) * N / 2), round(8 * (y + 1) * N / 2))
        cv2.circle(canvas, centre, round(8 * rng.uniform(*sizes)), 255, -1, cv2.LINE_AA, 3)
    return drawn(canvas, 0.9)


# Every painter below takes the generator and a distance from the patch's middle with a ragged rim (1 = edge), and
# returns half the patch's side (tube radii), RGB (three numbers or a field [3, 128, 128]), opacity (0..1) and the
# height into the lumen (half extents; None: flat).


def _active_bleeding(rng, ragged):
    """A stream of fresh blood that runs down into a pool."""
    bend = 0.16 * np.sin(2.2 * _Y + rng.uniform(0, 6)) + 0.06 * np.sin(7 * _Y)
    width = 0.05 + 0.10 * soft((_Y + 0.8) / 1.4)
    stream = soft((width - np.abs(_X - bend)) / 0.05) * soft((_Y + 0.78) / 0.06) * soft((0.9 - _Y) / 0.3)
    pool = soft((0.42 - np.hypot(_X - bend, (_Y - 0.5) * 1.4) * (1 + 0.2 * _noise(rng, 30, 0.5))) / 0.08)
    opacity = np.maximum(stream, pool)
    return rng.uniform(0.55, 0.8), mix((206, 8, 12), (168, 4, 8), pool), 0.94 * opacity, 0.05 * opacity


def _angiectasia(rng, ragged):
    """A knot of widened small vessels: red, flat, branching like a fern."""
    canvas = np.zeros((N, N), np.uint8)
    todo = [(np.array([N / 2, N / 2]), t, 3) for t in np.arange(8) * np.pi / 4 + rng.uniform(-0.4, 0.4, 8)]
    while todo:
        point, angle, wide = todo.pop()
        line = [point]
        for _ in range(int(rng.integers(5, 9))):
            angle += rng.normal(0, 0.3)
            point = point + 4.2 * np.array([np.cos(angle), np.sin(angle)])
            line.append(point)
            if wide > 1 and rng.random() < 0.4:
                todo.append((point, angle + rng.choice([-1, 1]) * rng.uniform(0.5, 1.0), wide - 1))
        points = np.round(8 * np.array(line)).astype(np.int32)
        cv2.polylines(canvas, [points], False, 200 + 18 * wide, wide, cv2.LINE_AA, 3)
    opacity = np.clip(np.maximum(0.9 * drawn(canvas, 1.2), 0.55 * soft((0.5 - ragged) / 0.3)), 0, 0.92)
    return rng.uniform(0.20, 0.32), (176, 18, 24), opacity, None


def _blood(rng, ragged):
    """A film of blood, thin and see-through at the rim, dark where it stands."""
    deep = 0.75 + 0.42 * _noise(rng, 60, 0.6) + 0.12 * _noise(rng, 16, 0.5) - 1.0 * ragged
    film = soft(deep / 0.9)
    colour = mix((184, 22, 16), (96, 6, 6), soft((deep - 0.2) / 0.7))
    return rng.uniform(1.1, 1.6), colour, 0.96 * np.sqrt(film), 0.02 * film


def _erosion(rng, ragged):
    """A small flat defect of the mucosa: a pale spot with a red halo."""
    centre = soft((0.26 - ragged) / 0.12)
    halo = np.exp(-((ragged / 0.52) ** 2))
    colour = mix((186, 44, 38), (246, 234, 198), centre)
    return rng.uniform(0.22, 0.32), colour, np.maximum(0.92 * centre, 0.66 * halo), None


def _erythema(rng, ragged):
    """Reddened mucosa, mottled and without a sharp edge."""
    mottle = 0.75 + 0.25 * np.clip(_noise(rng, 22, 0.6), -1, 1)
    return rng.uniform(0.6, 0.9), (190, 40, 40), 0.52 * mottle * soft((1.0 - ragged) / 0.7), None


def _hematin(rng, ragged):
    """Old, digested blood: dark grounds as of coffee in a brownish film."""
    grounds = np.maximum(_dots(rng, int(rng.integers(80, 150)), (0.8, 2.6), 0.40), _dots(rng, 8, (3, 5), 0.3))
    film = 0.34 * soft((0.8 + 0.4 * _noise(rng, 30, 0.6) - ragged) / 0.5)
    half, colour = rng.uniform(0.8, 1.2), mix((92, 50, 26), (34, 18, 12), grounds)
    return half, colour, np.maximum(0.93 * grounds, film), 0.012 * grounds


def _lymphangioectasis(rng, ragged):
    """Widened lymph vessels: a cluster of white dots."""
    spots = _dots(rng, int(rng.integers(26, 48)), (1.8, 4.2), 0.38)
    return rng.uniform(0.30, 0.45), (250, 244, 228), 0.88 * spots, 0.02 * spots


def _polyp(rng, ragged):
    """A round growth that stands into the lumen, its foot in shadow."""
    smooth = np.hypot(_X, _Y) / POLYP
    dome = np.sqrt(np.clip(1 - smooth**2, 0, None))
    foot = np.exp(-(((smooth - 1.06) / 0.13) ** 2))
    colour = mix((206, 88, 74), (228, 124, 104), soft(0.5 + 0.4 * _noise(rng, 12, 0.5)))
    colour = mix(colour, (96, 26, 22), soft(foot))
    return rng.uniform(0.30, 0.44), colour, np.maximum(0.75 * soft(dome * 3), 0.6 * foot), 0.9 * POLYP * dome


def _ulcer(rng, ragged):
    """A deep defect of the mucosa: a base coated with yellowish fibrin in a raised red rim."""
    base = soft((0.50 - ragged) / 0.10)
    rim = np.exp(-(((ragged - 0.60) / 0.14) ** 2))
    fibrin = soft(0.5 + 0.3 * _noise(rng, 12, 0.5))
    colour = mix((178, 46, 40), mix((240, 226, 176), (222, 200, 130), fibrin), base)
    return rng.uniform(0.30, 0.48), colour, np.maximum(0.92 * base, 0.70 * rim), 0.10 * rim - 0.14 * base


_KINDS = _active_bleeding, _angiectasia, _blood, _erosion, _erythema, _hematin, _lymphangioectasis, _polyp, _ulcer
_PAINTERS: dict[str, Callable] = dict(zip(FINDINGS, _KINDS, strict=True))
