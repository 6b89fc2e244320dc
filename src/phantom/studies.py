"""Studies: which recordings the demo data set has, and what each is made of."""

from dataclasses import dataclass

import numpy as np

from phantom import timelines
from phantom.lens import SYSTEMS
from rarevision.config import Phantom
from rarevision.labels import LABELS

LABELS_FOLDER = "20251215_Labels_Updated"  # Galar's folder of label tables
SIDES = {  # the regions between which a landmark lies
    "z-line": {"esophagus", "stomach"},
    "pylorus": {"stomach", "small intestine"},
    "ileocecal valve": {"small intestine", "colon"},
}


@dataclass(frozen=True)
class Study:
    """One recording. Its labels, frame numbers and pictures all follow from these few facts."""

    name: str
    system: str  # a key of `SYSTEMS`; NaviCam-like studies are test studies
    frames: int
    present: tuple[str, ...]  # labels that it shows
    seed: tuple[int, ...]
    size: int  # px, of its square frames

    @property
    def folder(self) -> str:
        """Where the frames lie; Galar keeps ten studies in a folder, the challenge's test set one."""
        if self.system == "navicam":
            return self.name
        low = (int(self.name) - 1) // 10 * 10 + 1
        return f"Galar_Frames_{low:03d}_{low + 9:03d}/{self.name}"

    @property
    def csv(self) -> str:
        return f"{self.name}.csv" if self.system == "navicam" else f"{LABELS_FOLDER}/{self.name}.csv"

    @property
    def step(self) -> int:
        """Distance of the numbers of two frames: Galar kept every fifth frame of a PillCam's recording."""
        return 5 if self.system == "pillcam" else 1

    def numbers(self) -> np.ndarray:
        """Frame numbers, int64 [T]; the first is not 0, as a recording starts before the capsule is swallowed."""
        first = int(np.random.default_rng([*self.seed, 1]).integers(1, 120))
        return self.step * np.arange(first, first + self.frames)

    def labels(self) -> np.ndarray:
        """Labels, uint8 [T, 17]."""
        return timelines.draw(self.frames, self.present, np.random.default_rng([*self.seed, 2]))

    def file(self, number: int) -> str:
        return f"frame_{number:07d}.png" if self.system == "navicam" else f"frame_{number:06d}.PNG"


def plan(cfg: Phantom) -> tuple[list[Study], list[Study]]:
    """The training and the test studies of a configuration."""
    rng = np.random.default_rng([cfg.seed, 0])
    late = cfg.pillcam // 3  # studies 61-80 are the test side of the data article's split: it shall have two sides
    train = {str(n): "pillcam" for n in [*_spread(1, 38, cfg.pillcam - late), *_spread(62, 80, late)]}
    train |= {str(n): "olympus" for n in _spread(40, 60, cfg.olympus)}
    test = {f"ukdd_navi_{90001 + 7 * i}": "navicam" for i in range(cfg.navicam)}
    return _studies(cfg, train, rng, least=2), _studies(cfg, test, rng, least=0)


def _spread(low: int, high: int, n: int) -> list[int]:
    """n study numbers, evenly between two of Galar's."""
    return [int(x) for x in np.linspace(low, high, n + 1)[:n] + (high - low) / (2 * n)] if n else []


def _studies(cfg: Phantom, systems: dict[str, str], rng: np.random.Generator, least: int) -> list[Study]:
    """Studies from their names and systems; a label is shown by its share of them, but by no fewer than `least`."""
    n = len(systems)
    if n == 0:
        return []
    lengths = rng.uniform(0.75, 1.25, n)
    lengths = np.maximum(40, np.round(cfg.frames * lengths / lengths.mean())).astype(int)
    present: list[set[str]] = [set() for _ in range(n)]
    for label, share in timelines.STUDY_SHARE.items():
        fits = [i for i in range(n) if SIDES.get(label, set()) <= present[i]]
        load = {i: len(present[i]) + rng.uniform(0, 6) for i in fits}
        for i in sorted(fits, key=load.__getitem__)[: min(n, max(least, round(share * n)))]:
            present[i].add(label)
    return [
        Study(
            name=name,
            system=system,
            frames=int(length),
            present=tuple(label for label in LABELS if label in shown),
            seed=(cfg.seed, int(name.rsplit("_", 1)[-1])),
            size=cfg.size or SYSTEMS[system].size,
        )
        for (name, system), length, shown in zip(systems.items(), lengths, present, strict=True)
    ]
