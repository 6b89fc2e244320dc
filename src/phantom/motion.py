"""Motion: the capsule's way through the gut, frame by frame, drawn so that it agrees with the labels.

The gut's own movement carries the capsule: it drifts, tumbles and sometimes lies still. It slows where a finding is
labelled, so that the lesion stays in view, and it passes a landmark exactly while the landmark is labelled.
"""

import numpy as np
from scipy.ndimage import gaussian_filter1d

from phantom.tube import Change
from phantom.walls import Wall
from rarevision.events import runs
from rarevision.labels import COLUMN, FINDINGS, LANDMARKS, REGIONS

# Per region, in the order of REGIONS: mouth, esophagus, stomach, small intestine, colon.
SPEED = np.array([0.05, 0.30, 0.05, 0.13, 0.07])  # tube radii per frame
SWAY = np.array([0.15, 0.15, 0.75, 0.45, 0.45])  # radians by which the view leaves the axis
BEND = np.array([0.0, 0.05, 0.10, 0.30, 0.22])  # curvature, 1 / tube radii
BUBBLES = np.array([0.2, 0.6, 0.7, 0.6, 0.2])  # level of foam
FLUID = np.array([-1, -1, 0.2, 0.7, 1.0])  # level of turbid fluid


class Motion:
    """Where the capsule is in each of T frames, and what floats before it. Lengths are in tube radii.

    depth    [T]     along the gut
    heading  [2, T]  radians by which the view is turned off the gut's axis: sideways, up
    roll     [T]     radians about the view's own axis
    place    [2, T]  of the capsule in the lumen's cross-section, from its middle
    bend     [2, T]  curvature of the gut ahead
    clock    [T]     time as the gut's movement counts it: it nearly stands still while the capsule does
    bubbles  [T]     amount of foam, 0 to 1.5
    fluid    [T]     amount of turbid fluid, 0 to 1.8
    changes          the changes of region, in order
    """

    def __init__(self, labels: np.ndarray, walls: dict[str, Wall], rng: np.random.Generator):
        region = labels[:, : len(REGIONS)].argmax(1)
        names = np.array(REGIONS)[region]
        self.rng, rows = rng, np.arange(len(labels), dtype=float)
        activity = np.exp(0.8 * self._drift(7, rows)) * (self._drift(11, rows) > -1.4)  # now and then it lies still
        self.clock = clock = np.cumsum(np.clip(gaussian_filter1d(activity, 1.0), 0.02, 1.6))
        step = SPEED[region] * np.clip(activity, 0.01, 2.2)
        for kind in FINDINGS:
            for first, last in runs(labels[:, COLUMN[kind]] > 0):
                step[first : last + 1] = np.clip(step[first : last + 1], 0, 1.0 / (last - first + 1))
        calm = self._travel(labels, names, step)
        smooth = gaussian_filter1d(calm, 1.0)
        sway = gaussian_filter1d(SWAY[region], 3) * smooth
        bend = gaussian_filter1d(BEND[region], 3) * smooth
        self.heading = sway * np.stack([self._drift(9, clock), self._drift(9, clock)])
        self.roll = np.cumsum(0.05 * self._drift(12, clock) * np.diff(clock, prepend=clock[0]))
        room = [walls[x].radius[int(z * 32) % 256].min() for x, z in zip(names, self.depth, strict=True)]
        room = np.clip(gaussian_filter1d(np.array(room), 2) - 0.25, 0.05, 0.6)
        self.place = room * np.tanh(0.6 * (smooth * np.stack([self._drift(10, clock), self._drift(10, clock)])))
        self.bend = bend * np.stack([self._drift(14, clock), self._drift(14, clock)])
        quiet = 1 - gaussian_filter1d((labels[:, len(REGIONS) :].any(1) | (calm < 1)).astype(float), 1.5)
        self.bubbles = np.clip(self._drift(10, rows) + BUBBLES[region] - 1, 0, 1.5) * (0.25 + 0.75 * quiet)
        self.fluid = np.clip(self._drift(14, rows) + FLUID[region] - 1, 0, 1.8) * (0.2 + 0.8 * quiet)

    def _drift(self, sigma: float, clock: np.ndarray) -> np.ndarray:
        """Smooth noise of unit variance, sampled at the times `clock`; `sigma` is its smoothness in their unit."""
        n = int(clock[-1]) + 60
        field = gaussian_filter1d(self.rng.standard_normal(n + 200), sigma)[100:-100]
        return np.interp(clock, np.arange(n), field / field.std())

    def _travel(self, labels: np.ndarray, names: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Set `depth` and `changes` from the step of every frame; returns calm [T], below 1 at landmarks.

        Around a landmark, `step` is replaced so that the capsule is where the labels say.
        """
        calm, crossed = np.ones(len(step)), []
        for row in np.flatnonzero(names[1:] != names[:-1]) + 1:
            landmark, first, distance = _passage(labels, int(row))
            rows = slice(first, first + len(distance) - 1)
            step[rows] = np.diff(distance)[: len(step) - first]
            if landmark:
                calm[max(first - 1, 0) : rows.stop] = 0.15
            crossed.append((row, landmark, distance[row - first + 1]))
        self.depth = np.cumsum(step)
        self.changes = [
            Change(
                float(self.depth[row] - distance),
                names[row - 1],
                names[row],
                landmark,
                gaussian_filter1d(self.rng.normal(0, 1, 64), 1.5, mode="wrap").astype(np.float32),
            )
            for row, landmark, distance in crossed
        ]
        return calm

    def change(self, row: int) -> Change | None:
        """The next change of region that can be seen in frame `row`."""
        depth = self.depth[row]
        return next((c for c in self.changes if depth - 0.6 < c.depth < depth + 4.5), None)

    def rotation(self, row: int) -> np.ndarray:
        """From the camera's axes to the tube's, float64 [3, 3]."""
        (cy, cp, cr), (sy, sp, sr) = (f([*self.heading[:, row], self.roll[row]]) for f in (np.cos, np.sin))
        roll = np.array([[cr, -sr, 0], [sr, cr, 0], [0, 0, 1]])
        pitch = np.array([[1, 0, 0], [0, cp, -sp], [0, sp, cp]])
        return np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]]) @ pitch @ roll


def _passage(labels: np.ndarray, row: int) -> tuple[str, int, np.ndarray]:
    """How the capsule passes the change of region before frame `row`.

    Returns the landmark there ("" if none), the first frame of its label, and the capsule's distance from the change
    (negative: still before it) in the frame before that one, in the label's frames, and in the frame after them.
    """
    landmark = next((k for k in LANDMARKS if labels[row - 1 : row + 1, COLUMN[k]].any()), "")
    first, near = row, np.array([])
    if landmark:
        spans = runs(labels[:, COLUMN[landmark]] > 0)
        first, last = next((a, b) for a, b in spans if a - 1 <= row <= b + 1)
        near = np.append(np.linspace(-1.5, -0.42, row - first), np.linspace(-0.24, -0.10, last + 1 - row))
    return landmark, int(first), np.concatenate([[-3.2], near, [0.55]])
