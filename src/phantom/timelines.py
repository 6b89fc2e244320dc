"""Timelines: which labels occur when over a capsule study, drawn so that they are like Galar's.

Shares of studies, event lengths and regions follow the label timelines of the 80 Galar studies (Le Floch et al.,
Scientific Data 2025), shrunken to a few hundred frames. A `Habit` says how one finding occurs there.
"""

import itertools
from typing import NamedTuple

import numpy as np

from rarevision.labels import COLUMN, FINDINGS, LANDMARKS, N_LABELS, REGIONS

# Share of the 80 Galar studies that show a label; ours are given as many as rounding allows, never fewer than two.
STUDY_SHARE = {
    **dict(zip(REGIONS, (0.81, 0.81, 0.94, 1.0, 0.89), strict=True)),
    **dict(zip(LANDMARKS, (0.33, 0.72, 0.66), strict=True)),
    **dict(zip(FINDINGS, (0.16, 0.51, 0.64, 0.56, 0.38, 0.28, 0.49, 0.41, 0.20), strict=True)),
}
Segments = list[tuple[str, int, int]]  # (region, first row, row after the last), in the capsule's order, without gaps


class Habit(NamedTuple):
    """How a finding occurs."""

    share: float  # of all frames; Galar's order, its range compressed: a few hundred frames cannot hold 1 in 1,000
    median: float  # length of an event in frames, Galar's
    where: dict[str, float]  # share of events per region


HABITS = {
    "blood": Habit(0.100, 8, {"stomach": 0.11, "small intestine": 0.29, "colon": 0.60}),
    "erosion": Habit(0.028, 5, {"stomach": 0.11, "small intestine": 0.61, "colon": 0.28}),
    "hematin": Habit(0.023, 6, {"stomach": 0.03, "small intestine": 0.47, "colon": 0.50}),
    "polyp": Habit(0.021, 5, {"stomach": 0.28, "small intestine": 0.59, "colon": 0.13}),
    "lymphangioectasis": Habit(0.019, 4, {"stomach": 0.10, "small intestine": 0.90}),
    "angiectasia": Habit(0.018, 4, {"stomach": 0.02, "small intestine": 0.73, "colon": 0.25}),
    "ulcer": Habit(0.015, 4, {"small intestine": 0.75, "colon": 0.25}),
    "erythema": Habit(0.013, 5, {"stomach": 0.12, "small intestine": 0.67, "colon": 0.21}),
    "active bleeding": Habit(0.011, 4.5, {"stomach": 0.05, "small intestine": 0.95}),
}


def draw(frames: int, present: tuple[str, ...], rng: np.random.Generator) -> np.ndarray:
    """Labels, uint8 [frames, 17]: regions in order, landmarks at their changes, findings in their regions.

    `present` are the labels that the study shows; `small intestine` must be among them.
    """
    labels = np.zeros((frames, N_LABELS), np.uint8)
    segments = _regions(frames, present, rng)
    for region, start, end in segments:
        labels[start:end, COLUMN[region]] = 1
    _landmarks(present, segments, labels, rng)
    for label in HABITS:
        if label in present:
            _finding(present, label, segments, labels, rng)
    return labels


def _regions(total: int, present: tuple[str, ...], rng: np.random.Generator) -> Segments:
    """Divide `total` frames among the regions; some capsules pass the pylorus forth, back and forth again."""
    names = [region for region in REGIONS if region in present]
    lengths: dict[str, int] = {}
    for region, usual in (("mouth", 10 / 450), ("esophagus", 9 / 450)):
        if region in names:
            lengths[region] = max(3, round(total * usual * rng.uniform(0.4, 1.0)))
    rest = total - sum(lengths.values())
    share = {"stomach": rng.uniform(0.1, 0.24), "small intestine": 0.4, "colon": rng.uniform(0.28, 0.55)}
    share = {region: s for region, s in share.items() if region in names}
    lengths |= {region: round(rest * s / sum(share.values())) for region, s in share.items()}
    lengths["small intestine"] += total - sum(lengths.values())
    parts = [lengths[region] for region in names]
    if "pylorus" in present and lengths["stomach"] >= 40 and rng.random() < 0.5:
        at = names.index("stomach")
        back = int(rng.integers(8, 15)), int(rng.integers(8, 15))
        names[at + 1 : at + 1] = ["small intestine", "stomach"]
        parts[at : at + 2] = [parts[at] - back[1], *back, parts[at + 1] - back[0]]
    ends = np.cumsum(parts).tolist()
    return [(region, end - n, end) for region, n, end in zip(names, parts, ends, strict=True)]


def _landmarks(present: tuple[str, ...], segments: Segments, labels: np.ndarray, rng) -> None:
    """Label the landmarks where one region becomes the next.

    rules: landmark, its median length in frames, and the share of them before the change, as counted in Galar.
    """
    rules = {
        ("esophagus", "stomach"): ("z-line", 2, 1.0),
        ("stomach", "small intestine"): ("pylorus", 7, 0.61),
        ("small intestine", "stomach"): ("pylorus", 5, 0.5),
        ("small intestine", "colon"): ("ileocecal valve", 6, 0.88),
    }
    for (before, start, change), (after, _, end) in itertools.pairwise(segments):
        name, median, share = rules.get((before, after), ("", 0, 0))
        if name in present:
            length = _length(median, rng, most=min(3 * median, (change - start) // 2))
            ahead = max(1, round(length * share))
            labels[max(start + 1, change - ahead) : min(end, change + length - ahead), COLUMN[name]] = 1


def _length(median: float, rng, most: float) -> int:
    """Event length in frames: log-normal about Galar's median; the very long tail does not fit a short study."""
    return int(np.clip(round(median * np.exp(rng.normal(0, 0.55))), 2, max(2, most)))


def _finding(present: tuple[str, ...], label: str, segments: Segments, labels: np.ndarray, rng) -> None:
    """Place events of one finding until its share of frames is reached; focal findings keep clear of each other."""
    habit = HABITS[label]
    budget = max(2.0, len(labels) * habit.share / max(STUDY_SHARE[label], 0.2))
    spans = [(r, a, b) for r, a, b in segments if r in habit.where and b - a >= 6]
    odds = np.array([habit.where[r] * np.sqrt(b - a) for r, a, b in spans])
    own = labels[:, COLUMN[label]]
    focal = [COLUMN[x] for x in HABITS if x != "blood"]
    landmarks = [COLUMN[x] for x in LANDMARKS]
    for attempt in range(400):
        if budget <= 0:
            break
        _, a, b = spans[rng.choice(len(spans), p=odds / odds.sum())]
        length = _length(habit.median, rng, most=min(4 * habit.median, (b - a) // 3, budget + 2))
        start = int(rng.integers(a + 1, max(a + 2, b - length)))
        around = slice(max(0, start - 3), start + length + 3)
        if own[around].any() or labels[around, landmarks].any():
            continue
        if label != "blood" and attempt < 300 and labels[around][:, focal].any():
            continue  # after 300 tries a crowded study lets lesions share frames
        own[start : start + length] = 1
        if label == "active bleeding" and "blood" in present and rng.random() < 0.6:
            labels[start + 1 : start + length, COLUMN["blood"]] = 1  # what runs down is labelled blood as well
        budget -= length
    if not own.any():  # no room at all, in a very short study: it is shown nevertheless
        _, a, b = max(spans, key=lambda span: span[2] - span[1])
        own[(a + b) // 2 : (a + b) // 2 + 2] = 1
