"""The capsule: a camera and its light on their way through the gut, rendering one study's frames from its labels.

For every pixel a ray is followed from the camera until it meets the wall of the `tube` (ray marching): coarsely for a
small picture first, then refined at full resolution. The point it meets has a colour, a slope and a gloss; the light
sits at the camera, so that walls facing it are bright and what lies deep is dark. At last the `lens` lays fluid and
foam over the picture and gives it a capsule system's colours and field of view.
"""

import cv2
import numpy as np

from phantom.lens import LEVELS, Lens
from phantom.lesions import Site, lesion
from phantom.motion import Motion
from phantom.noise import soft
from phantom.tube import Tube
from phantom.walls import wall
from rarevision.events import runs
from rarevision.labels import COLUMN, FINDINGS, REGIONS

COARSE = 80  # px across the small picture
STEPS = 20  # of a ray there
EDGE_STEPS = 12  # of a ray anew at full resolution, where it passes the edge of something near
FAR = 9.0  # tube radii at which a ray ends
BOX = np.ones((3, 3), np.uint8)


class Journey:
    """Frames of one study; `labels` uint8 [T, 17], a key of `SYSTEMS`, integers as seed, size in px (0: its own)."""

    def __init__(self, labels: np.ndarray, system: str, seed: tuple[int, ...], size: int = 0):
        if labels.ndim != 2 or (labels[:, : len(REGIONS)].sum(1) != 1).any():
            raise ValueError("every row of labels needs exactly one of the five regions")
        self.rng = np.random.default_rng([*seed, 3])
        self.lens = Lens(system, size, self.rng, COARSE)
        self.region = labels[:, : len(REGIONS)].argmax(1)
        self.walls = {
            REGIONS[k]: wall(REGIONS[k], np.random.default_rng([*seed, 4, int(k)])) for k in np.unique(self.region)
        }
        self.motion = Motion(labels, self.walls, self.rng)
        films = ("blood", "hematin", "erythema")  # painted first, focal lesions on top
        self.sites = [
            self._site(kind, int(first), int(last))
            for kind in sorted(FINDINGS, key=lambda kind: kind not in films)
            for first, last in runs(labels[:, COLUMN[kind]] > 0)
        ]

    def frame(self, row: int, findings: bool = True) -> tuple[np.ndarray, dict[str, int]]:
        """Frame `row`, uint8 [size, size, 3] RGB, and Galar's five quality labels, computed from what covers the wall.

        `findings=False` renders the same frame without its lesions.
        """
        sites = [site for site in self.sites if findings and site.first <= row <= site.last]
        tube = self._tube(row, [site for site in sites if site.kind == "polyp"])
        t, angle, radius, ahead, d = self._march(row, tube)
        depth = ahead + np.float32(self.motion.depth[row])
        skin, slope = tube.surface(angle, depth)
        for site in sites:
            site.paint(row, angle, radius, depth, skin, slope)
        image, level = self._lit(t, angle, d, skin, slope)
        edge = soft(np.abs(t - cv2.blur(t, (3, 3))) / t * 10)  # one ray a pixel leaves stairs at edges: blur them
        image += (cv2.GaussianBlur(image, (5, 5), 1.2) - image) * cv2.merge([edge] * 3)
        motion = self.motion
        move = 6 * float(motion.clock[row]), 40 * float(motion.roll[row])
        view = self.lens.cover(image, level, float(motion.fluid[row]), float(motion.bubbles[row]), *move)
        return self.lens.develop(image), view

    def _tube(self, row: int, polyps: list[Site]) -> Tube:
        return Tube(self.walls, REGIONS[self.region[row]], self.motion.change(row), polyps)

    def _march(self, row: int, tube: Tube) -> tuple[np.ndarray, ...]:
        """Where every pixel's ray meets the wall, float32 [n, n]: distance t from the camera, angle around the lumen
        (degrees), distance from its axis, depth from the camera; and the rays' directions [3, n, n]."""
        turn, n = self.motion.rotation(row).astype(np.float32), self.lens.grid
        (ox, oy), (kx, ky) = self.motion.place[:, row].tolist(), (0.5 * self.motion.bend[:, row]).tolist()
        start = np.float32(self.motion.depth[row])

        def at(t, d):
            """Cylinder coordinates of the point at distance t; the bent gut is straightened, so that rays curve."""
            z = d[2] * t
            x, y = ox + d[0] * t - kx * z * z, oy + d[1] * t - ky * z * z
            rho, angle = cv2.cartToPolar(x, y, angleInDegrees=True)
            return rho, angle, z

        def march(t, d, steps, stride):
            for _ in range(steps):
                rho, angle, z = at(t, d)
                gap = tube.radius(angle, z + start) - rho
                t = np.clip(t + np.clip(0.65 * gap, -0.3, stride * (0.12 + 0.2 * t)), 0.03, FAR)
            return t

        rays = {k: (turn @ d).reshape(3, k, k) for k, d in self.lens.rays.items()}
        coarse = march(np.full((COARSE, COARSE), 0.05, np.float32), rays[COARSE], STEPS, 1.0)
        t, low, high = (cv2.resize(x, (n, n)) for x in (coarse, cv2.erode(coarse, BOX), cv2.dilate(coarse, BOX)))
        d = rays[n]
        edge = np.flatnonzero(high - low > 0.15 * low)  # edges of near things: march anew from before the near side
        if len(edge):
            edge = np.resize(edge, (-(-len(edge) // 64), 64))
            t.ravel()[edge] = march(0.96 * low.ravel()[edge], d.reshape(3, -1)[:, edge], EDGE_STEPS, 1.0)
        t = march(t, d, 1, 0.2)
        rho, angle, z = at(t, d)
        return t, angle, rho, z, d

    def _lit(self, t, angle, d, skin: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The wall under the capsule's light: RGB float32 [n, n, 3], and the light's level int32 [n, n] of `Lens.lit`.

        The wall's normal is -e_rho + slope_around e_angle + slope_along e_z.
        """
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
        shine = shine * shine * shine  # 12th power in all: a wet highlight
        shine = shine * shine * slope[..., 2] * np.clip(0.4 * near, 0, 1)
        image += cv2.merge([200 * soft((shine - 0.45) / 0.4)] * 3)
        return image, level

    def _site(self, kind: str, first: int, last: int) -> Site:
        """Fix an event to the wall: of some spots in its middle frame, the one best in view from first to last."""
        n, rng, depth_of = self.lens.grid, self.rng, self.motion.depth
        rows = first, (middle := (first + last) // 2), last
        seen = {row: self._march(row, self._tube(row, [])) for row in rows}
        _, angle, radius, ahead, _ = seen[middle]

        def quality(at: tuple[int, int]) -> float:
            depth = ahead[at] + depth_of[middle]
            return sum(self._clarity(row, seen[row][0], angle[at], radius[at], depth - depth_of[row]) for row in rows)

        spots = [(rng.uniform(0.08, 0.36) * n, rng.uniform(0, 2 * np.pi)) for _ in range(32)]
        pixel = max(((int(n / 2 + r * np.sin(p)), int(n / 2 + r * np.cos(p))) for r, p in spots), key=quality)
        down = 0.0 if np.cos(np.radians(angle[pixel])) > 0 else np.pi
        turn = down if kind == "active bleeding" else rng.uniform(0, 2 * np.pi)
        depth, strength = float(depth_of[middle] + ahead[pixel]), float(rng.uniform(0.8, 1.0))
        return Site(kind, first, last, float(angle[pixel]), depth, turn, strength, lesion(kind, rng))

    def _clarity(self, row: int, distance: np.ndarray, angle: float, radius: float, ahead: float) -> float:
        """How well a spot of the wall shows in frame `row`, about 1 at best, 0 where it is hidden or out of the field.

        `distance` [n, n] is that of the wall in the frame; `ahead` the spot's depth from the camera.
        """
        kx, ky = 0.5 * self.motion.bend[:, row]
        c, s = np.cos(np.radians(angle)), np.sin(np.radians(angle))
        spot = np.array([radius * c + kx * ahead**2, radius * s + ky * ahead**2, ahead])
        ray = self.motion.rotation(row).T @ (spot - [*self.motion.place[:, row], 0])
        away = np.linalg.norm(ray)
        r = np.arccos(np.clip(ray[2] / away, -1, 1)) / np.radians(self.lens.system.view / 2)  # 1 = edge of the field
        x, y = ((ray[:2] / np.hypot(*ray[:2]) * r + 1) * self.lens.grid / 2).astype(int)
        if r < 0.8 and abs(distance[y, x] - away) < 0.12 * away:
            return 1 - 0.5 * abs(away - 0.9) - 0.5 * max(r - 0.6, 0)
        return 0.0
