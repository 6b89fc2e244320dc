"""The lens: how a capsule system turns light into a picture, and the turbid fluid and foam that float before it.

The lens is an equidistant fisheye: the distance of a pixel from the picture's middle is proportional to the angle
between its ray and the view's axis. The picture darkens towards its edge (vignetting), is cut to the system's field of
view (an octagon or a rounded square), and has the system's white balance, gamma, contrast and saturation.
"""

from typing import NamedTuple

import cv2
import numpy as np

from phantom.noise import band, soft

GRID = 256  # px, rendering; the frame is its enlargement (half of it serves frames under 200 px)
LEVELS = 512  # steps of light per unit in `tone`


class System(NamedTuple):
    """How a capsule's pictures look."""

    size: int  # px
    view: float  # degrees across the field
    gains: tuple[float, float, float]  # white balance, RGB
    gamma: float
    contrast: float
    saturation: float
    vignette: float  # share of the light that is lost towards the edge
    corner: float  # the field is cut where |x| + |y| exceeds it: 2 cuts nothing, 1.5 leaves an octagon
    roundness: float  # exponent p of the field |x|^p + |y|^p <= 1: 2 is a circle, 40 nearly a square


SYSTEMS = {
    "pillcam": System(512, 140, (1.02, 0.96, 0.92), 1.0, 1.0, 1.0, 0.30, 2.0, 3.4),
    "olympus": System(336, 145, (1.06, 0.97, 0.80), 0.95, 1.05, 1.1, 0.22, 1.5, 40.0),
    "navicam": System(480, 140, (0.95, 0.99, 1.16), 1.12, 1.16, 0.88, 0.50, 2.0, 2.0),
}

VIEW = ("bubbles", "dirt", "no view", "reduced view", "good view")  # Galar's quality labels


class Lens:
    """One capsule's optics and the fluids it meets.

    `size` is the frame's in px (0: the system's own), `coarse` that of the small picture whose rays are needed as well.
    """

    def __init__(self, system: str, size: int, rng: np.random.Generator, coarse: int):
        s = self.system = SYSTEMS[system]
        self.size = size or s.size
        self.grid = GRID if self.size >= 200 else GRID // 2
        more = ((0, GRID + 1), (0, GRID + 1), (0, 0))  # a window may begin anywhere
        self.foam, self.clouds = (np.pad(tile, more, mode="wrap") for tile in (foam(rng), clouds(rng)))
        self.rays = {n: self._rays(n)[0] for n in (coarse, self.grid)}  # px across -> unit vectors float32 [3, n * n]
        self.vignette = (1 - s.vignette * self._rays(self.grid)[1] ** 2 / 1.3).astype(np.float32)
        y, x = np.mgrid[-1 : 1 : self.size * 1j, -1 : 1 : self.size * 1j]
        round_ = (abs(x) ** s.roundness + abs(y) ** s.roundness) ** (1 / s.roundness)
        inside = 1 - np.maximum((abs(x) + abs(y)) / s.corner, round_)
        self.field = np.clip(inside * self.size / 3 * 255, 0, 255).astype(np.uint8)[..., None].repeat(3, 2)
        level = np.linspace(0, 4, 4 * LEVELS, dtype=np.float32)[:, None]  # light to brightness: the dark glows red
        self.tone = (1.12 * (1 - np.exp(-1.5 * level)) ** np.array([0.82, 1.02, 1.12])).astype(np.float32)
        gains = np.array(s.gains) * rng.uniform(0.96, 1.04, 3)  # no two capsules and no two patients are alike
        value = np.clip(np.linspace(0, 1, 256)[:, None] * gains, 0, 1.3) ** s.gamma
        value = 0.45 + (value - 0.45) * s.contrast
        self.colours = np.clip(255 * value, 0, 255).astype(np.uint8).reshape(256, 1, 3)
        self.saturate = (s.saturation * np.eye(3) + (1 - s.saturation) / 3).astype(np.float32)

    def _rays(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Directions of n x n pixels, float32 [3, n * n], and their distance [n, n] from the middle (1 = edge)."""
        y, x = np.mgrid[-1 + 1 / n : 1 - 1 / n : n * 1j, -1 + 1 / n : 1 - 1 / n : n * 1j]
        r = np.hypot(x, y)
        angle = r * np.radians(self.system.view / 2)
        k = np.sin(angle) / np.maximum(r, 1e-6)
        return np.stack([x * k, y * k, np.cos(angle)]).reshape(3, -1).astype(np.float32), r

    def lit(self, level: np.ndarray) -> np.ndarray:
        """Brightness float32 [n, n, 3], about 0 to 1, of levels of light int32 [n, n], `LEVELS` per unit."""
        return np.take(self.tone, np.clip(level, 0, 4 * LEVELS - 1), axis=0)

    def cover(self, image: np.ndarray, level: np.ndarray, fluid: float, bubbles: float, dx: float, dy: float) -> dict:
        """Paint turbid fluid and foam, their amounts about 0 to 1.8, into `image`; (dx, dy) px is how far they moved.

        Returns Galar's quality labels, computed from the share of the picture that is covered.
        """
        covered = foamy = murky = 0.0
        if fluid > 0:
            cloud = self._window(self.clouds, dx, dy)
            alpha = soft((cloud[..., 0] - 1.7 + 2.2 * fluid) / 2.2)
            shade = 1 + 0.07 * cloud[..., 1] + 0.45 * cloud[..., 2]
            opaque = np.clip(0.93 * alpha * (1 + 0.10 * cloud[..., 1]) + 0.4 * alpha * cloud[..., 2], 0, 0.96)
            colour = np.array([152, 140, 56], np.float32) * self.lit(level // 4 + 430) * shade[..., None]
            image += (colour - image) * cv2.merge([opaque] * 3)
            murky, covered = float((alpha > 0.35).mean()), float((alpha > 0.6).mean())
        if bubbles > 0:
            mask = soft((self._window(self.clouds, 200 - dx, 90.0)[..., 0] - 1.9 + 1.8 * bubbles) / 0.3)
            sheet = self._window(self.foam, 2 * dx, dy).astype(np.float32)
            opaque = mask * sheet[..., 3] * np.float32(1 / 255)
            image += (sheet[..., :3] * self.lit(level // 2 + 500) - image) * cv2.merge([opaque] * 3)
            foamy = float((mask > 0.5).mean())
            covered = max(covered, foamy)
        view = "no view" if covered > 0.75 else "reduced view" if covered > 0.3 else "good view"
        found = {"bubbles": foamy > 0.08, "dirt": murky > 0.15, view: True}
        return {name: int(found.get(name, False)) for name in VIEW}

    def _window(self, tile: np.ndarray, dx: float, dy: float) -> np.ndarray:
        """The part of a periodic tile that is seen when it has moved by (dx, dy) px, fractions included."""
        n = len(tile) - GRID - 1
        x, y = int(np.floor(dx)) % n, int(np.floor(dy)) % n
        window = tile[y : y + GRID + 1, x : x + GRID + 1]
        scale = GRID / self.grid
        shift = np.array([[scale, 0, dx % 1], [0, scale, dy % 1]], np.float32)
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        return cv2.warpAffine(window, shift, (self.grid, self.grid), flags=flags, borderMode=cv2.BORDER_REPLICATE)

    def develop(self, image: np.ndarray) -> np.ndarray:
        """The system's colours, enlargement and field of view: float32 [n, n, 3] to uint8 [size, size, 3]."""
        image = cv2.transform(np.clip(image, 0, 255), self.saturate)
        image = cv2.LUT(np.clip(image, 0, 255).astype(np.uint8), self.colours)
        image = cv2.resize(image, (self.size, self.size), interpolation=cv2.INTER_CUBIC)
        return cv2.multiply(image, self.field, scale=1 / 255)


def foam(rng, size: int = 384) -> np.ndarray:
    """A sheet of bubbles, uint8 [size, size, 4] RGB and opacity, periodic: rims, a dark inside, two reflections."""
    pad = 48
    canvas = np.zeros((size + 2 * pad, size + 2 * pad, 4), np.uint8)
    canvas[..., :3] = (168, 158, 84)
    canvas[..., 3] = 150
    taken = np.zeros((size, size), np.uint8)
    for radius in np.sort(np.exp(rng.normal(1.35, 0.5, 9000)))[::-1]:
        x, y = rng.uniform(0, size, 2)
        if taken[int(y), int(x)]:
            continue
        for dx in (-size, 0, size):
            for dy in (-size, 0, size):
                cx, cy = x + dx + pad, y + dy + pad
                if 0 < cx < size + 2 * pad and 0 < cy < size + 2 * pad:
                    cv2.circle(taken, (round(x + dx), round(y + dy)), round(radius * 1.2 + 1.5), 1, -1)
                    _bubble(canvas, cx, cy, min(radius, pad - 8))
    return cv2.GaussianBlur(canvas[pad:-pad, pad:-pad], (0, 0), 0.6)


def _bubble(canvas: np.ndarray, x: float, y: float, r: float) -> None:
    """Draw one bubble; positions are in sixteenths of a pixel, as OpenCV's `shift` of 4 bits has it."""

    def disc(dx, dy, radius, colour, thick=-1):
        centre = (round(16 * (x + dx * r)), round(16 * (y + dy * r)))
        cv2.circle(canvas, centre, round(16 * radius), colour, thick, cv2.LINE_AA, 4)

    disc(0, 0, r, (96, 78, 34, 120))
    disc(0, 0, r * 0.8, (120, 92, 44, 60))
    disc(0, 0, r, (206, 196, 116, 200), 1)
    if r > 3:
        disc(0, 0, r * 0.84, (70, 52, 22, 130), 1)
        disc(0.35, 0.45, r * 0.14, (226, 216, 150, 170))
    disc(-0.34, -0.42, max(0.7, r * 0.17), (255, 252, 236, 250))


def clouds(rng, size: int = 512) -> np.ndarray:
    """Turbid fluid, float32 [size, size, 4], periodic: density (unit variance), swirls, flecks 0..1, nothing."""
    field = band(rng, (size, size), 300, 0.5) + 0.5 * band(rng, (size, size), 100, 0.6)
    y, x = np.mgrid[0:size, 0:size].astype(np.float32)
    u, v = (offset + 16 * band(rng, (size, size), 150, 0.4) for offset in (x, y))

    def stirred(wave: float, spread: float) -> np.ndarray:
        return cv2.remap(band(rng, (size, size), wave, spread), u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)

    swirl = 0.7 * stirred(70, 0.7) + 0.5 * stirred(22, 0.8)
    flecks = soft((stirred(15, 0.6) - 2.2) / 0.7)
    return np.dstack([field / field.std(), swirl, flecks, 0 * x]).astype(np.float32)
