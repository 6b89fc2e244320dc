"""The capsule's view: where the picture lies in a frame, and its colours beside those of other capsules.

A frame shows a round (PillCam, NaviCam) or octagonal (Olympus) field on black, often with text burned in beside it. The
field is the same in all frames of a study, so it is found once per study, from frames spread over the recording.
"""

from dataclasses import dataclass

import cv2
import numpy as np
from scipy.special import gamma

from rarevision.config import Data
from rarevision.data.errors import FrameError
from rarevision.data.index import FrameIndex

SAMPLE = 48  # frames per study that field and colours are measured on
# Grey levels, by the brightest channel. Outside the field there is only compression noise, below DARK; pixels above
# BRIGHT are reflections of the capsule's lamp.
DARK, BRIGHT = 12, 250
# Mean log intensity per channel (R, G, B) and mean spread that `harmonise` maps every study to, near those of real
# recordings. Fixed numbers: training and test studies are treated alike, no study's colours depend on another's.
LOG_MEAN, LOG_SPREAD = np.array([5.00, 4.35, 3.75]), 0.55
POWERS = np.arange(2, 8.01, 0.2)
POWER_SHARES = gamma(1 + 1 / POWERS) ** 2 / gamma(1 + 2 / POWERS)  # of its box that |x|^p + |y|^p <= 1 covers


@dataclass(frozen=True)
class Field:
    """The picture's place in a frame."""

    kind: str  # 'circle' | 'octagon' | 'full'
    box: tuple[int, int, int, int]  # px: left, top, right, bottom
    cut: int = 0  # px along the edge: the triangle that each corner of an octagon lacks
    power: float = 2.0  # p of a rim |x|^p + |y|^p = 1: 2 for a circle, about 3 for the PillCam's rounded square

    def mask(self, height: int, width: int) -> np.ndarray:
        """bool [height, width], True inside the field."""
        left, top, right, bottom = self.box
        y, x = np.mgrid[:height, :width] + 0.5
        inside = (x > left) & (x < right) & (y > top) & (y < bottom)
        if self.kind == "circle":
            a, b = (right - left) / 2, (bottom - top) / 2
            inside &= np.abs((x - left - a) / a) ** self.power + np.abs((y - top - b) / b) ** self.power <= 1
        elif self.kind == "octagon":
            side_x, side_y = np.minimum(x - left, right - x), np.minimum(y - top, bottom - y)
            inside &= side_x + side_y >= self.cut
        return inside


@dataclass(frozen=True)
class View:
    """What is done to each frame of one study after decoding: crop to the field, black outside it, colours mapped."""

    field: Field
    crop: bool = False
    lut: np.ndarray | None = None  # uint8 [256, 3], new value of each channel's grey levels
    round: bool = False  # keep the inscribed ellipse only: the same field in every system

    def apply(self, image: np.ndarray) -> np.ndarray:
        """uint8 [H, W, 3] -> uint8 [h, w, 3]; a frame whose size differs from its study's is only mapped in colour."""
        if self.lut is not None:
            image = cv2.LUT(image, self.lut[None])
        if not self.crop:
            return image
        left, top, right, bottom = self.field.box
        if bottom > image.shape[0] or right > image.shape[1]:
            return image
        field = Field("circle", self.field.box) if self.round else self.field
        mask = field.mask(*image.shape[:2])[top:bottom, left:right]
        return np.where(mask[..., None], image[top:bottom, left:right], np.uint8(0))


def find_field(frames: np.ndarray) -> Field:
    """Field of frames uint8 [n, H, W, 3] of one study: the largest connected region that is ever lit.

    Burned-in text is another region, hence ignored. What fits neither circle nor octagon nor rectangle (IoU under 0.9;
    a recording that is dark throughout) is taken as a field that fills the frame.
    """
    height, width = frames.shape[1:3]
    lit = (frames.max(axis=(0, 3)) > 2 * DARK).astype(np.uint8)
    lit = cv2.morphologyEx(lit, cv2.MORPH_OPEN, np.ones((5, 5), np.uint8))  # thin strokes do not tie text to the field
    n, regions, facts, _ = cv2.connectedComponentsWithStats(lit)
    full = Field("full", (0, 0, width, height))
    if n < 2:
        return full
    largest = 1 + int(facts[1:, cv2.CC_STAT_AREA].argmax())
    region = (regions == largest).astype(np.uint8)
    outline, _ = cv2.findContours(region, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(region, outline, -1, 1, cv2.FILLED)  # dark lumen that was never lit belongs to it
    region = region.astype(bool)
    left, top, w, h = (int(v) for v in facts[largest, :4])
    box = (left, top, left + w, top + h)
    cut = round(float(np.sqrt(max(w * h - region.sum(), 0) / 2)))  # four corner triangles are 2 * cut^2
    filled = POWERS[np.abs(POWER_SHARES - region.sum() / (w * h)).argmin()]
    candidates = [Field("full", box), Field("circle", box), Field("circle", box, power=float(filled))]
    if 0.03 * w < cut < 0.5 * min(w, h):
        candidates.append(Field("octagon", box, cut))

    def overlap(field: Field) -> float:
        mask = field.mask(height, width)
        return (mask & region).sum() / (mask | region).sum()

    best = max(candidates, key=overlap)
    return best if overlap(best) >= 0.9 and region.mean() > 0.2 else full


def colour_map(frames: np.ndarray, field: Field) -> np.ndarray:
    """uint8 [256, 3]: a gain per channel and one gamma that bring a study's log intensities to the reference.

    One gamma for all channels keeps grey grey; it stays within [0.7, 1.4], gains within [1/2, 2]: blood stays red.
    """
    pixels = frames[:, field.mask(*frames.shape[1:3])].reshape(-1, 3)
    grey = pixels.max(1)
    pixels = pixels[(grey > 2 * DARK) & (grey < BRIGHT)]  # neither the dark lumen nor reflections
    if len(pixels) < 1000:
        return np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, 1)
    pixels = pixels[:: max(1, len(pixels) // 1_000_000)]
    logs = np.log(np.maximum(pixels, 1).astype(np.float64))  # a float32 sum over ten million pixels is off by a third
    mean = logs.mean(0)
    power = np.clip(LOG_SPREAD / max(logs.std(0).mean(), 1e-3), 0.7, 1.4)
    gain = np.clip(LOG_MEAN - mean, -np.log(2), np.log(2))
    level = np.log(np.maximum(np.arange(256), 0.5))[:, None]
    mapped = np.exp((level - mean) * power + mean + gain)
    mapped[0] = 0
    return np.clip(np.rint(mapped), 0, 255).astype(np.uint8)


def study_view(index: FrameIndex, study: str, data: Data) -> View | None:
    """The view of one study under `data.field_of_view` and `data.harmonise`; None where both leave frames alone."""
    if data.field_of_view == "full" and data.harmonise == "none":
        return None
    rows = index.rows(study)
    frames: list[np.ndarray] = []
    for row in np.unique(np.linspace(rows.start, rows.stop - 1, SAMPLE).round().astype(int)):
        try:
            image = index.image(int(row))
        except FrameError:
            continue  # counted and judged where the frame itself is read
        if not frames or image.shape == frames[0].shape:
            frames.append(image)
    if not frames:
        return View(Field("full", (0, 0, 1, 1)))
    stack = np.stack(frames)
    field = find_field(stack)
    colour = data.harmonise == "colour"
    crop = data.field_of_view == "crop"
    return View(field, crop, colour_map(stack, field) if colour else None, round=crop and colour)
