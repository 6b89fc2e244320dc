"""The capsule: a camera and its light on their way through the gut, rendering one study's frames from its labels.

The gut is a bent tube whose radius varies over angle and depth (`mucosa`). Rays are marched on a coarse grid, refined
at full resolution, shaded with the light at the camera, and given a capsule system's colours and field of view.
Regions, landmarks and findings follow the labels frame by frame; every lesion is fixed to the wall it sits on.
"""

from typing import NamedTuple

import cv2
import numpy as np
from scipy.ndimage import gaussian_filter1d

from phantom import mucosa
from phantom.lens import LEVELS, SYSTEMS, Lens
from phantom.mucosa import soft
from rarevision.events import runs
from rarevision.labels import COLUMN, FINDINGS, LANDMARKS, REGIONS

__all__ = ["SYSTEMS", "Journey"]

COARSE = 80  # px, ray marching
STEPS = 20  # of the coarse grid
FAR = 9.0  # tube radii
EDGE_STEPS = 12  # silhouettes, full resolution
REFINE = 1  # every ray, full resolution
BOX = np.ones((3, 3), np.uint8)
ENTER = 0.7  # opacity of a lesion in its event's first and last frame


SPEED = {"mouth": 0.05, "esophagus": 0.30, "stomach": 0.05, "small intestine": 0.13, "colon": 0.07}  # radii per frame
SWAY = {"mouth": 0.15, "esophagus": 0.15, "stomach": 0.75, "small intestine": 0.45, "colon": 0.45}  # rad, view off axis
BEND = {"mouth": 0.0, "esophagus": 0.05, "stomach": 0.10, "small intestine": 0.30, "colon": 0.22}  # 1 / radii
WET = {  # level of bubbles and of turbid fluid
    "mouth": (0.2, -1),
    "esophagus": (0.6, -1),
    "stomach": (0.7, 0.2),
    "small intestine": (0.6, 0.7),
    "colon": (0.2, 1.0),
}
NARROW = {  # opening at the landmark: half axes and length, tube radii
    "z-line": (0.62, 0.62, 0.5),
    "pylorus": (0.20, 0.20, 0.24),
    "ileocecal valve": (0.46, 0.13, 0.30),
    "": (0.70, 0.70, 0.4),
}


def _wrapped(x: np.ndarray, period: int) -> np.ndarray:
    """x modulo period; OpenCV's own wrapping is five times slower."""
    return x - np.float32(period) * np.floor(x * np.float32(1 / period))


class Change(NamedTuple):
    """Where one region becomes the next: depth, the walls on both sides, the landmark or ""."""

    z: float
    before: str
    after: str
    landmark: str
    wobble: np.ndarray  # float32 [64], depth of the border over the angle


class Site(NamedTuple):
    """One event of one finding, fixed to the wall."""

    kind: str
    first: int
    last: int
    angle: float
    z: float
    turn: float
    strength: float
    lesion: mucosa.Lesion


class Journey:
    """Frames of one study; `labels` uint8 [T, 17], a key of `SYSTEMS`, integers as seed, size in px (0: its own)."""

    def __init__(self, labels: np.ndarray, system: str, seed: tuple[int, ...], size: int = 0):
        if labels.ndim != 2 or (labels[:, : len(REGIONS)].sum(1) != 1).any():
            raise ValueError("every row of labels needs exactly one of the five regions")
        self.labels = labels
        self.rng = np.random.default_rng([*seed, 3])
        self.lens = Lens(system, size, self.rng, COARSE)
        self.region = labels[:, : len(REGIONS)].argmax(1)
        self.walls = {
            REGIONS[k]: mucosa.wall(REGIONS[k], np.random.default_rng([*seed, 4, int(k)]))
            for k in np.unique(self.region)
        }
        self._travel()
        films = ("blood", "hematin", "erythema")  # painted first, focal lesions on top
        self.sites = [
            self._site(kind, int(first), int(last))
            for kind in sorted(FINDINGS, key=lambda kind: kind not in films)
            for first, last in runs(labels[:, COLUMN[kind]] > 0)
        ]

    # ---------------------------------------------------------------------------------------------------------- camera

    def _drift(self, sigma: float, clock: np.ndarray) -> np.ndarray:
        """Smooth noise of unit variance, sampled at `clock` (rows; it stands still while the capsule does)."""
        n = int(clock[-1]) + 60
        field = gaussian_filter1d(self.rng.standard_normal(n + 200), sigma)[100:-100]
        return np.interp(clock, np.arange(n), field / field.std())

    def _travel(self) -> None:
        """Depth, heading, place in the lumen and bend of the tube for every frame."""
        n = len(self.region)
        rows = np.arange(n, dtype=float)
        names = np.array(REGIONS)[self.region]
        activity = np.exp(0.8 * self._drift(7, rows)) * (self._drift(11, rows) > -1.4)  # now and then it lies still
        clock = np.cumsum(np.clip(gaussian_filter1d(activity, 1.0), 0.02, 1.6))
        step = np.array([SPEED[x] for x in names]) * np.clip(activity, 0.01, 2.2)
        for kind in FINDINGS:
            for first, last in runs(self.labels[:, COLUMN[kind]] > 0):
                step[first : last + 1] = np.clip(step[first : last + 1], 0, 1.0 / (last - first + 1))
        calm, rest = np.ones(n), []
        for row in np.flatnonzero(np.diff(self.region)) + 1:
            name = next((k for k in LANDMARKS if self.labels[row - 1 : row + 1, COLUMN[k]].any()), "")
            first, last, there = row, row - 1, np.array([])
            if name:
                spans = runs(self.labels[:, COLUMN[name]] > 0)
                first, last = next((a, b) for a, b in spans if a - 1 <= row <= b + 1)
                ahead, behind = max(row - first, 0), last + 1 - row
                there = np.append(np.linspace(-1.5, -0.42, ahead), np.linspace(-0.24, -0.10, behind))
                calm[max(first - 1, 0) : last + 2] = 0.15
            there = np.concatenate([[-3.2], there, [0.55]])  # it comes into view with its label and leaves with it
            step[first : last + 2] = np.diff(there)[: n - first]
            rest.append((row, name, there[row - first + 1]))
        self.z = np.cumsum(step)
        self.changes = [
            Change(
                float(self.z[row] - there),
                names[row - 1],
                names[row],
                name,
                gaussian_filter1d(self.rng.normal(0, 1, 64), 1.5, mode="wrap").astype(np.float32),
            )
            for row, name, there in rest
        ]
        smooth = gaussian_filter1d(calm, 1.0)
        sway = gaussian_filter1d(np.array([SWAY[x] for x in names]), 3) * smooth
        bend = gaussian_filter1d(np.array([BEND[x] for x in names]), 3) * smooth
        self.heading = sway * np.stack([self._drift(9, clock), self._drift(9, clock)])
        self.roll = np.cumsum(0.05 * self._drift(12, clock) * np.diff(clock, prepend=clock[0]))
        room = [self.walls[x].radius[int(z * 32) % 256].min() for x, z in zip(names, self.z, strict=True)]
        room = np.clip(gaussian_filter1d(np.array(room), 2) - 0.25, 0.05, 0.6)
        place = smooth * np.stack([self._drift(10, clock), self._drift(10, clock)])
        self.place = room * np.tanh(0.6 * place)
        self.bend = bend * np.stack([self._drift(14, clock), self._drift(14, clock)])
        self.clock = clock
        quiet = 1 - gaussian_filter1d((self.labels[:, len(REGIONS) :].any(1) | (calm < 1)).astype(float), 1.5)
        wet = np.array([WET[x] for x in names])
        self.bubbles = np.clip(self._drift(10, rows) + wet[:, 0] - 1, 0, 1.5) * (0.25 + 0.75 * quiet)
        self.fluid = np.clip(self._drift(14, rows) + wet[:, 1] - 1, 0, 1.8) * (0.2 + 0.8 * quiet)

    # ------------------------------------------------------------------------------------------------------- the tube

    def _change(self, z: float) -> Change | None:
        """The next change of region that can be seen from depth z."""
        return next((c for c in self.changes if z - 0.6 < c.z < z + 4.5), None)

    def _sides(self, row: int, change: Change | None) -> tuple[str, str]:
        here = REGIONS[self.region[row]]
        return (change.before, change.after) if change else (here, here)

    @staticmethod
    def _border(change: Change, angle: np.ndarray, z: np.ndarray) -> np.ndarray:
        """0 before the change, 1 behind it; the z-line is jagged."""
        jag = cv2.remap(change.wobble[None], angle * (64 / 360), np.zeros_like(angle), 1, borderMode=cv2.BORDER_WRAP)
        early, reach, width = (0.30, 0.16, 0.05) if change.landmark == "z-line" else (0.0, 0.05, 0.16)
        return soft((z - change.z + early - reach * jag) / width + 0.5)

    def _radius(self, row: int, angle: np.ndarray, z: np.ndarray, change: Change | None, bumps=()) -> np.ndarray:
        """Radius of the lumen, float32 like `angle` (degrees) and `z`; `bumps` are polyps, they stand into it."""

        def look(region: str) -> np.ndarray:
            return cv2.remap(self.walls[region].radius, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)

        u, v = angle * (192 / 360), _wrapped(z * (256 / mucosa.LENGTH), 256)
        before, after = self._sides(row, change)
        radius = look(before)
        if change:
            share = self._border(change, angle, z)
            radius = radius + (look(after) - radius) * share
            a, b, length = NARROW[change.landmark]
            c, sn = cv2.polarToCart(np.ones_like(angle), angle, angleInDegrees=True)
            opening = np.float32(a * b) / np.sqrt(np.float32(b * b) * c * c + np.float32(a * a) * sn * sn)
            ring = np.exp(-(((z - np.float32(change.z)) * np.float32(1 / length)) ** 2))
            radius = radius + (opening - radius) * ring
        for site in bumps:
            around, along = self._from(site, angle, radius, z)
            reach = np.float32((mucosa.POLYP * site.lesion.half) ** 2)
            radius = radius - np.float32(0.9) * np.sqrt(np.maximum(reach - around * around - along * along, 0))
        return radius

    @staticmethod
    def _from(site: Site, angle: np.ndarray, rho: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distance on the wall from a lesion's centre, around and along the lumen, in tube radii."""
        turn = angle - np.float32(site.angle)
        turn -= 360 * np.round(turn * np.float32(1 / 360))
        return turn * np.float32(np.pi / 180) * rho, z - np.float32(site.z)

    def _turn(self, row: int) -> np.ndarray:
        """Rotation from the camera to the tube, 3 x 3."""
        (cy, cp, cr), (sy, sp, sr) = (f([*self.heading[:, row], self.roll[row]]) for f in (np.cos, np.sin))
        roll = np.array([[cr, -sr, 0], [sr, cr, 0], [0, 0, 1]])
        pitch = np.array([[1, 0, 0], [0, cp, -sp], [0, sp, cp]])
        return np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]]) @ pitch @ roll

    def _march(self, row: int, bumps=()) -> tuple[np.ndarray, ...]:
        """Hit points at full resolution: distance, angle (degrees), radius, depth from the camera, directions."""
        turn = self._turn(row).astype(np.float32)
        change = self._change(self.z[row])
        (ox, oy), (kx, ky) = self.place[:, row].tolist(), (0.5 * self.bend[:, row]).tolist()

        def at(t, d):
            z = d[2] * t
            x, y = ox + d[0] * t - kx * z * z, oy + d[1] * t - ky * z * z
            rho, angle = cv2.cartToPolar(x, y, angleInDegrees=True)
            return rho, angle, z

        def march(t, d, steps, stride):
            for _ in range(steps):
                rho, angle, z = at(t, d)
                gap = self._radius(row, angle, z + np.float32(self.z[row]), change, bumps) - rho
                t = np.clip(t + np.clip(0.65 * gap, -0.3, stride * (0.12 + 0.2 * t)), 0.03, FAR)
            return t

        n = self.lens.grid
        rays = {k: (turn @ d).reshape(3, k, k) for k, d in self.lens.rays.items()}
        coarse = march(np.full((COARSE, COARSE), 0.05, np.float32), rays[COARSE], STEPS, 1.0)
        t, low, high = (cv2.resize(x, (n, n)) for x in (coarse, cv2.erode(coarse, BOX), cv2.dilate(coarse, BOX)))
        d = rays[n]
        edge = np.flatnonzero(high - low > 0.15 * low)  # silhouettes: march their rays anew, from before the near side
        if len(edge):
            edge = np.resize(edge, (-(-len(edge) // 64), 64))
            t.ravel()[edge] = march(0.96 * low.ravel()[edge], d.reshape(3, -1)[:, edge], EDGE_STEPS, 1.0)
        t = march(t, d, REFINE, 0.2)
        return (t, *(at(t, d)[k] for k in (1, 0, 2)), d)

    # -------------------------------------------------------------------------------------------------------- findings

    def _site(self, kind: str, first: int, last: int) -> Site:
        """Fix an event to the wall: of some spots in its middle frame, the one best in view from first to last."""
        rows, n = (first, (first + last) // 2, last), self.lens.grid
        seen = {row: self._march(row)[:4] for row in rows}
        angle, rho, z = seen[rows[1]][1:]

        def quality(y: int, x: int) -> float:
            worth = 0.0
            for row in rows:
                ahead = z[y, x] + self.z[rows[1]] - self.z[row]
                kx, ky = 0.5 * self.bend[:, row]
                c, s = np.cos(np.radians(angle[y, x])), np.sin(np.radians(angle[y, x]))
                place = np.array([rho[y, x] * c + kx * ahead**2, rho[y, x] * s + ky * ahead**2, ahead])
                ray = self._turn(row).T @ (place - [*self.place[:, row], 0])
                distance = np.linalg.norm(ray)
                r = np.arccos(np.clip(ray[2] / distance, -1, 1)) / np.radians(self.lens.system.view / 2)
                px = (ray[:2] / np.hypot(*ray[:2]) * r + 1) * n / 2
                if r < 0.8 and abs(seen[row][0][int(px[1]), int(px[0])] - distance) < 0.12 * distance:
                    worth += 1 - 0.5 * abs(distance - 0.9) - 0.5 * max(r - 0.6, 0)
            return worth

        spots = [(self.rng.uniform(0.08, 0.36) * n, self.rng.uniform(0, 2 * np.pi)) for _ in range(32)]
        pixels = [(int(n / 2 + r * np.sin(p)), int(n / 2 + r * np.cos(p))) for r, p in spots]
        y, x = max(pixels, key=lambda pixel: quality(*pixel))
        down = 0.0 if np.cos(np.radians(angle[y, x])) > 0 else np.pi
        turn = down if kind == "active bleeding" else self.rng.uniform(0, 2 * np.pi)
        deep, strength = float(self.z[rows[1]] + z[y, x]), float(self.rng.uniform(0.8, 1.0))
        return Site(kind, first, last, float(angle[y, x]), deep, turn, strength, mucosa.lesion(kind, self.rng))

    def _paint(self, row: int, site: Site, angle, rho, z, skin: np.ndarray, slope: np.ndarray) -> None:
        """Lay a lesion on the wall: `skin` [n, n, 3] and `slope` [n, n, 2] are changed in place."""
        around, along = self._from(site, angle, rho, z + np.float32(self.z[row]))
        scale = mucosa.N / 2 / site.lesion.half
        c, s = float(np.cos(site.turn)) * scale, float(np.sin(site.turn)) * scale
        u, v = around * c + along * s + mucosa.N / 2, along * c - around * s + mucosa.N / 2
        patch = cv2.remap(site.lesion.skin, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
        edge = min(row - site.first, site.last - row)
        fade = site.strength * (ENTER if edge == 0 and site.last > site.first else 1.0)
        alpha = patch[..., 3:].astype(np.float32) * np.float32(fade / 255)
        skin += (patch[..., :3] - skin) * alpha
        if site.lesion.relief is not None:
            bump = cv2.remap(site.lesion.relief, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
            bump *= np.float32(fade)
            slope[..., 0] += bump[..., 0] * (c / scale) - bump[..., 1] * (s / scale)
            slope[..., 1] += bump[..., 0] * (s / scale) + bump[..., 1] * (c / scale)

    # ----------------------------------------------------------------------------------------------------------- light

    def frame(self, row: int, findings: bool = True) -> tuple[np.ndarray, dict[str, int]]:
        """Frame `row`, uint8 [size, size, 3] RGB, and Galar's five quality labels, computed from what covers the wall.

        `findings=False` renders the same frame without its lesions.
        """
        seen = [site for site in self.sites if findings and site.first <= row <= site.last]
        t, angle, rho, z, d = self._march(row, [site for site in seen if site.kind == "polyp"])
        skin, slope = self._surface(row, angle, z)
        for site in seen:
            self._paint(row, site, angle, rho, z, skin, slope)
        # The surface's normal is -e_rho + slope_around e_angle + slope_along e_z; the light sits at the camera.
        c, s = cv2.polarToCart(np.ones_like(angle), angle, angleInDegrees=True)
        facing = d[0] * c + d[1] * s - slope[..., 0] * (d[1] * c - d[0] * s) - slope[..., 1] * d[2]
        facing /= np.sqrt(1 + slope[..., 0] ** 2 + slope[..., 1] ** 2)
        np.clip(facing, 0, 1, out=facing)
        near = self.lens.vignette / (0.20 + t * t)
        light = near * (0.22 + 0.78 * facing)  # light also travels inside the tissue
        exposure = 0.92 / (0.12 + float(light[::8, ::8].mean()))
        level = (exposure * LEVELS * light).astype(np.int32)
        image = skin * self.lens.lit(level)
        shine = facing**2
        shine = shine * shine * shine  # 12th power twice: a wet highlight
        shine = shine * shine * slope[..., 2] * np.clip(0.4 * near, 0, 1)
        image += cv2.merge([200 * soft((shine - 0.45) / 0.4)] * 3)
        edge = soft(np.abs(t - cv2.blur(t, (3, 3))) / t * 10)  # silhouettes: one ray a pixel leaves stairs
        image += (cv2.GaussianBlur(image, (5, 5), 1.2) - image) * cv2.merge([edge] * 3)
        move = 6 * float(self.clock[row]), 40 * float(self.roll[row])
        view = self.lens.cover(image, level, float(self.fluid[row]), float(self.bubbles[row]), *move)
        return self.lens.develop(image), view

    def _surface(self, row: int, angle: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Colour float32 [n, n, 3] (0..255) of the bare wall, and float32 [n, n, 4]: its slopes and gloss."""
        change = self._change(self.z[row])
        deep = z + np.float32(self.z[row])
        u = angle * np.float32(mucosa.SHAPE[1] / 360)
        v = _wrapped(deep * np.float32(mucosa.SHAPE[0] / mucosa.LENGTH), mucosa.SHAPE[0])

        def look(region: str):
            wall = self.walls[region]
            skin = cv2.remap(wall.skin, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
            relief = cv2.remap(wall.relief, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
            return cv2.cvtColor(skin, cv2.COLOR_RGBA2RGB).astype(np.float32), relief

        before, after = self._sides(row, change)
        skin, slope = look(before)
        if change:
            share = self._border(change, angle, deep)[..., None]
            other, steep = look(after)
            skin, slope = skin + (other - skin) * share, slope + (steep - slope) * share
            h = np.float32(0.02)
            rise = self._radius(row, angle, deep + h, change) - self._radius(row, angle, deep - h, change)
            ring = np.exp(-(((deep - change.z) / 0.8) ** 2))
            slope[..., 1] += (rise / (2 * h) - slope[..., 1]) * ring * 0.8
            if change.landmark == "ileocecal valve":  # its lips are full and pale
                lips = 0.75 * np.exp(-(((deep - change.z + 0.12) / 0.30) ** 2))
                skin += (np.float32([240, 182, 132]) - skin) * cv2.merge([lips] * 3)
        return skin, slope
