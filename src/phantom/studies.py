"""The phantom: a demo data set of rendered capsule studies in Galar's and the challenge's own layouts.

    rarevision phantom --config configs/demo.toml

draws label timelines (shares, event lengths and regions of findings follow the 80 Galar studies, shrunken to a few
hundred frames), renders them with `capsule` and writes training studies (PillCam-like, Olympus-like), test studies
(NaviCam-like, without labels) and, kept apart, the test truth. Everything follows from the seed; a finished study is
kept.
"""

import contextlib
import itertools
import json
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from phantom import capsule, habits
from phantom.lens import SYSTEMS, VIEW
from rarevision import config as configs
from rarevision import events, stage
from rarevision.errors import UserError
from rarevision.files import atomic, sha256, write_json
from rarevision.labels import COLUMN, LABELS, REGIONS

COLUMNS = (  # Galar's 27 columns; Olympus files have the five of VIEW before them
    *("index", *LABELS, "ampulla of vater", "foreign body", "IBD", "cancer", "esophagitis", "varices", "celiac"),
    *("section", "frame"),
)
TEST_COLUMNS = ("frame_file", *LABELS, "ampulla of vater", "foreign body", "bubbles", "dirt")
LABELS_FOLDER = "20251215_Labels_Updated"
PNG = (  # three quarters of the default's time, no larger
    *(cv2.IMWRITE_PNG_COMPRESSION, 1, cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_AVG),
    *(cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_HUFFMAN_ONLY),
)
MARKER = ".phantom"  # folder that makes a directory ours to rebuild


class PhantomError(UserError):
    """A folder that is not ours, or a data set that cannot be made."""


# ------------------------------------------------------------------------------------------------------------ studies


@dataclass(frozen=True)
class Study:
    """What one study needs: who it is, how many frames, which labels, its own seed, the picture's size in pixels."""

    name: str
    system: str
    frames: int
    present: tuple[str, ...]
    seed: tuple[int, ...]
    size: int

    @property
    def folder(self) -> str:
        if self.system == "navicam":
            return self.name
        low = (int(self.name) - 1) // 10 * 10 + 1
        return f"Galar_Frames_{low:03d}_{low + 9:03d}/{self.name}"

    @property
    def csv(self) -> str:
        return f"{self.name}.csv" if self.system == "navicam" else f"{LABELS_FOLDER}/{self.name}.csv"

    def numbers(self) -> np.ndarray:
        """Frame numbers, int64 [T]: steps of 5 (PillCam) or 1, the recording starting somewhere before the first."""
        first = int(np.random.default_rng([*self.seed, 1]).integers(1, 120))
        step = 5 if self.system == "pillcam" else 1
        return step * np.arange(first, first + self.frames)

    def labels(self) -> np.ndarray:
        """Labels, uint8 [T, 17]."""
        return habits.draw(self.frames, self.present, np.random.default_rng([*self.seed, 2]))

    def file(self, number: int) -> str:
        return f"frame_{number:07d}.png" if self.system == "navicam" else f"frame_{number:06d}.PNG"


def plan(cfg: configs.Phantom) -> tuple[list[Study], list[Study]]:
    """The training and the test studies of a configuration: identities, lengths, and who shows which label."""
    rng = np.random.default_rng([cfg.seed, 0])
    late = cfg.pillcam // 3  # some of the data article's test studies 61-80, so that its split has two sides
    names = [*_spread(1, 38, cfg.pillcam - late), *_spread(62, 80, late), *_spread(40, 60, cfg.olympus)]
    systems = ["pillcam"] * cfg.pillcam + ["olympus"] * cfg.olympus
    train = _studies(cfg, [str(n) for n in names], systems, rng, least=2)
    tests = [f"ukdd_navi_{90001 + 7 * i}" for i in range(cfg.navicam)]
    return train, _studies(cfg, tests, ["navicam"] * cfg.navicam, rng, least=0)


def _spread(low: int, high: int, n: int) -> list[int]:
    return [int(x) for x in np.linspace(low, high, n + 1)[:n] + (high - low) / (2 * n)] if n else []


def _studies(cfg: configs.Phantom, names: list[str], systems: list[str], rng, least: int) -> list[Study]:
    n = len(names)
    if n == 0:
        return []
    lengths = rng.uniform(0.75, 1.25, n)
    lengths = np.maximum(40, np.round(cfg.frames * lengths / lengths.mean())).astype(int)
    present: list[set[str]] = [set() for _ in range(n)]
    for label, share in habits.STUDY_SHARE.items():
        count = min(n, max(least, round(share * n)))
        fits = [i for i in range(n) if _needs(label) <= present[i]]
        load = {i: len(present[i]) + rng.uniform(0, 6) for i in fits}
        for i in sorted(fits, key=load.__getitem__)[:count]:
            present[i].add(label)
    sizes = {k: cfg.size or SYSTEMS[k].size for k in SYSTEMS}
    return [
        Study(name, system, int(length), tuple(x for x in LABELS if x in shown), (cfg.seed, _code(name)), sizes[system])
        for name, system, length, shown in zip(names, systems, lengths, present, strict=True)
    ]


def _code(name: str) -> int:
    return int(name.rsplit("_", 1)[-1])


def _needs(label: str) -> set[str]:
    """Landmarks lie between two regions."""
    return {
        "z-line": {"esophagus", "stomach"},
        "pylorus": {"stomach", "small intestine"},
        "ileocecal valve": {"small intestine", "colon"},
    }.get(label, set())


# ------------------------------------------------------------------------------------------------------------ layouts


def write_phantom(
    cfg: configs.Phantom, root: Path | str, test_root: Path | str, truth: Path | str, workers: int = -1
) -> dict:
    """Write the data set; returns {"studies", "frames", "rendered", "seconds"}, `rendered` = frames made by this call.

    The same configuration and renderer find finished studies and keep them; anything else is first removed and made
    anew. PhantomError if a place holds something that this module did not write, or lies within another.
    """
    started = time.time()
    root, test_root, truth = places = [Path(place).absolute() for place in (root, test_root, truth)]
    for inner, outer in itertools.permutations(places, 2):
        if inner.is_relative_to(outer):
            raise PhantomError(f"{inner}: lies in {outer}; training studies, test studies and truth are kept apart")
    ours = [place for place in (root, test_root) if (place / MARKER / "paths.json").exists()]
    for place in {*places} - {*ours} - ({truth} if ours else set()):
        if place.is_file() or (place.is_dir() and any(place.iterdir())):
            raise PhantomError(f"{place}: exists and is no phantom data set; it is left alone, choose another path")
    train, test = plan(cfg)
    code = [sha256(__file__), stage.code_hash(capsule.__file__), stage.code_hash(habits.__file__)]
    key = {"phantom": asdict(replace(cfg, build=True)), "code": code, "cv2": cv2.__version__, "numpy": np.__version__}
    for folder, studies in ((root, train), (test_root, test)):
        _claim(folder, [*(s.folder for s in studies), *(s.csv for s in studies)], key)
    jobs = [(root, s, key) for s in train] + [(test_root, s, key) for s in test]
    todo = [job for job in jobs if not _stage(*job).current()]
    total = sum(s.frames for _, s, _ in todo)
    workers = min(len(todo), len(os.sched_getaffinity(0)) if workers < 0 else max(workers, 1))
    with tqdm(total=total, unit="frame", desc="phantom", disable=not total) as bar:
        if workers <= 1:
            for job in todo:
                bar.update(write_study(*job))
        else:
            with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
                longest = sorted(todo, key=lambda job: -job[1].frames * job[1].size)
                for done in as_completed([pool.submit(write_study, *job) for job in longest]):
                    bar.update(done.result())
    if train:
        _metadata(root, train)
    known = {s.name: events.from_label_sets(s.numbers(), s.labels()) for s in test}
    if not truth.exists() or todo or events.read_events(truth) != known:
        events.write_events(truth, known)
    return {
        "studies": len(jobs),
        "frames": sum(s.frames for _, s, _ in jobs),
        "rendered": total,
        "seconds": round(time.time() - started, 1),
    }


def _stage(root: Path, study: Study, key: dict) -> stage.Stage:
    return stage.Stage(root / MARKER, study.name, {**key, "study": asdict(study)})


def _claim(root: Path, paths: list[str], key: dict) -> None:
    """Mark `root` as ours and clear what an older configuration or renderer left there."""
    marker = root / MARKER / "paths.json"
    old = json.loads(marker.read_text()) if marker.exists() else {"key": key, "paths": paths}
    for path in old["paths"] if old["key"] != key else []:
        target = root / path
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    if old["key"] != key:
        shutil.rmtree(root / MARKER / "manifests", ignore_errors=True)
        for folder in {(root / path).parent for path in old["paths"]} - {root}:
            with contextlib.suppress(OSError):
                folder.rmdir()  # only if empty
    if old["key"] != key or not marker.exists():  # a rerun that changes nothing leaves the folder's time alone
        write_json(marker, {"key": key, "paths": paths})


def write_study(root: Path, study: Study, key: dict) -> int:
    """Render one study below `root`, its CSV, then its manifest; returns the number of frames."""
    cv2.setNumThreads(1)  # studies are spread over processes
    current = _stage(root, study, key)
    labels, numbers = study.labels(), study.numbers()
    journey = capsule.Journey(labels, study.system, study.seed, study.size)
    folder = root / study.folder
    part = root / MARKER / f"{study.name}.part"  # a half-written study never lies where frames are looked for
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    views = []
    for row, number in enumerate(numbers):
        image, view = journey.frame(row)
        ok, data = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), PNG)
        if not ok:
            raise PhantomError(f"{study.name}: frame {number} cannot be encoded as PNG")
        (part / study.file(int(number))).write_bytes(data)
        views.append(view)
    table = _test_table(study, numbers) if study.system == "navicam" else _table(study, numbers, labels, views)
    with atomic(root / study.csv) as temporary:
        table.to_csv(temporary, index=False, sep=";" if study.system == "navicam" else ",")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.replace(part, folder)
    current.finish([root / study.csv, *folder.iterdir()], frames=len(numbers))
    return len(numbers)


def _table(study: Study, numbers: np.ndarray, labels: np.ndarray, views: list[dict[str, int]]) -> pd.DataFrame:
    """Galar's label table: 27 columns, 32 for Olympus."""
    step = 5 if study.system == "pillcam" else 1
    table = {"index": numbers // step, **{name: labels[:, i] for name, i in COLUMN.items()}, "frame": numbers}
    table["IBD"] = labels[:, COLUMN["ulcer"]]
    table["section"] = np.array(REGIONS)[labels[:, : len(REGIONS)].argmax(1)]
    if study.system == "olympus":
        table |= {name: [view[name] for view in views] for name in VIEW}
        return pd.DataFrame(table).reindex(columns=[*VIEW, *COLUMNS], fill_value=0)
    return pd.DataFrame(table).reindex(columns=COLUMNS, fill_value=0)


def _test_table(study: Study, numbers: np.ndarray) -> pd.DataFrame:
    """The challenge's table: file names and 21 empty label columns."""
    return pd.DataFrame({"frame_file": [study.file(int(n)) for n in numbers]}).reindex(columns=TEST_COLUMNS)


def _metadata(root: Path, studies: list[Study]) -> None:
    """metadata.csv with the stray spaces of the original."""
    rng = np.random.default_rng(len(studies))
    lines = ["File Name,Capsule System,Gender,Age"]
    for study in studies:
        system = {"pillcam": "PillCam", "olympus": "Olympus"}[study.system]
        lines.append(f"{study.name} , {system},{rng.choice(['F', 'M'])} , {rng.integers(24, 86)}")
    text = "\n".join(lines) + "\n"
    if not (root / "metadata.csv").exists() or (root / "metadata.csv").read_text() != text:
        with atomic(root / "metadata.csv") as temporary:
            temporary.write_text(text)
