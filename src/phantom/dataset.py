"""The data set on disk: rendered studies in Galar's and in the challenge's own file layouts.

Training studies have Galar's label tables; test studies have the challenge's tables with empty label columns, and
their truth lies apart in an events file. A study is written whole or not at all, and a finished one is kept: each has
a manifest (`rarevision.stage`) in the folder `MARKER`, which also tells that a directory is ours to rebuild.
"""

import contextlib
import itertools
import json
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from phantom import capsule
from phantom.lens import VIEW
from phantom.studies import Study, plan
from rarevision import event_files, events, stage
from rarevision.config import Phantom
from rarevision.errors import UserError
from rarevision.files import atomic, sha256, write_json
from rarevision.labels import COLUMN, LABELS, REGIONS

COLUMNS = (  # Galar's 27 columns; Olympus files have the five of VIEW before them
    *("index", *LABELS, "ampulla of vater", "foreign body", "IBD", "cancer", "esophagitis", "varices", "celiac"),
    *("section", "frame"),
)
TEST_COLUMNS = ("frame_file", *LABELS, "ampulla of vater", "foreign body", "bubbles", "dirt")
PNG = (  # three quarters of the default's time, no larger
    *(cv2.IMWRITE_PNG_COMPRESSION, 1, cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_AVG),
    *(cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_HUFFMAN_ONLY),
)
MARKER = ".phantom"


def write_phantom(
    cfg: Phantom, root: Path | str, test_root: Path | str, truth: Path | str, workers: int = -1
) -> dict[str, Any]:
    """Write the data set; returns {"studies", "frames", "rendered", "seconds"}, `rendered` = frames made by this call.

    The same configuration and renderer find finished studies and keep them; anything else is first removed and made
    anew. `workers` are processes, -1 = one per core. UserError if a place holds something that was not written here,
    or lies within another.
    """
    started = time.time()
    root, test_root, truth = (Path(place).absolute() for place in (root, test_root, truth))
    _check_places(root, test_root, truth)
    train, test = plan(cfg)
    here = Path(__file__)
    code = [sha256(here.with_name(f"{name}.py")) for name in ("dataset", "studies", "timelines")]
    code.append(stage.code_hash(here.with_name("capsule.py")))  # with all that the pictures depend on
    key = {"phantom": asdict(replace(cfg, build=True)), "code": code, "cv2": cv2.__version__, "numpy": np.__version__}
    _claim(root, train, key)
    _claim(test_root, test, key)
    jobs = [*((root, study) for study in train), *((test_root, study) for study in test)]
    todo = [(place, study) for place, study in jobs if not _stage(place, study, key).current()]
    todo.sort(key=lambda job: -job[1].frames * job[1].size)  # the longest first: no process ends long after the others
    total = sum(study.frames for _, study in todo)
    workers = min(len(todo), workers if workers >= 0 else len(os.sched_getaffinity(0)))
    spread = ProcessPoolExecutor(workers, get_context("spawn")) if workers > 1 else contextlib.nullcontext()
    with tqdm(total=total, unit="frame", desc="phantom", disable=not total) as bar, spread as pool:
        each = pool.map if pool else map
        for frames in each(write_study, *([job[i] for job in todo] for i in (0, 1)), itertools.repeat(key)):
            bar.update(frames)
    if train:
        _write_metadata(root / "metadata.csv", train)
    known = {study.name: events.from_label_sets(study.numbers(), study.labels()) for study in test}
    if not truth.exists() or event_files.read_events(truth) != known:
        event_files.write_events(truth, known)
    frames = sum(study.frames for _, study in jobs)
    return {"studies": len(jobs), "frames": frames, "rendered": total, "seconds": round(time.time() - started, 1)}


def _check_places(root: Path, test_root: Path, truth: Path) -> None:
    for inner, outer in itertools.permutations((root, test_root, truth), 2):
        if inner.is_relative_to(outer):
            remedy = "training studies, test studies and truth are kept apart"
            raise UserError(f"lies in {outer}", file=inner, remedy=remedy)
    ours = {place for place in (root, test_root) if (place / MARKER / "paths.json").exists()}
    for place in {root, test_root, truth} - ours - ({truth} if ours else set()):
        if place.is_file() or (place.is_dir() and any(place.iterdir())):
            remedy = "it is left alone, choose another path"
            raise UserError("exists and is no phantom data set", file=place, remedy=remedy)


def _claim(root: Path, studies: list[Study], key: dict[str, Any]) -> None:
    """Mark `root` as ours, and clear what an older configuration or renderer left there."""
    marker = root / MARKER / "paths.json"
    now = {"key": key, "paths": [path for study in studies for path in (study.folder, study.csv)]}
    old = json.loads(marker.read_text()) if marker.exists() else None
    if old == now:
        return
    if old is not None:
        for target in (root / path for path in old["paths"]):
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                target.parent.rmdir()  # only if empty
        shutil.rmtree(root / MARKER / "manifests", ignore_errors=True)
    write_json(marker, now)


def _stage(root: Path, study: Study, key: dict[str, Any]) -> stage.Stage:
    return stage.Stage(root / MARKER, study.name, {**key, "study": asdict(study)})


def write_study(root: Path, study: Study, key: dict[str, Any]) -> int:
    """Render one study below `root`, then its CSV, then its manifest; returns the number of frames.

    `key` is what the manifest shall record as the study's origin, besides the study itself.
    """
    cv2.setNumThreads(1)  # studies are spread over processes
    current = _stage(root, study, key)
    labels, numbers = study.labels(), study.numbers()
    journey = capsule.Journey(labels, study.system, study.seed, study.size)
    folder = root / study.folder
    part = root / MARKER / f"{study.name}.part"  # a half-written study never lies where frames are looked for
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    views = []
    for row, number in enumerate(numbers.tolist()):
        image, view = journey.frame(row)
        _, data = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), PNG)
        (part / study.file(number)).write_bytes(data.tobytes())
        views.append(view)
    with atomic(root / study.csv) as temporary:
        _table(study, views).to_csv(temporary, index=False, sep=";" if study.system == "navicam" else ",")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.replace(part, folder)
    current.finish([root / study.csv, *folder.iterdir()], frames=len(numbers))
    return len(numbers)


def _table(study: Study, views: list[dict[str, int]]) -> pd.DataFrame:
    """The study's CSV: Galar's label table, or the challenge's with its label columns empty."""
    labels, numbers = study.labels(), study.numbers()
    if study.system == "navicam":
        return pd.DataFrame({"frame_file": map(study.file, numbers.tolist())}).reindex(columns=TEST_COLUMNS)
    table: dict[str, Any] = {name: labels[:, i] for name, i in COLUMN.items()}
    table |= {"index": numbers // study.step, "frame": numbers}
    table["IBD"] = labels[:, COLUMN["ulcer"]]
    table["section"] = np.array(REGIONS)[labels[:, : len(REGIONS)].argmax(1)]
    quality = VIEW if study.system == "olympus" else ()
    table |= {name: [view[name] for view in views] for name in quality}
    return pd.DataFrame(table).reindex(columns=[*quality, *COLUMNS], fill_value=0)


def _write_metadata(path: Path, studies: list[Study]) -> None:
    """Galar's table of studies and patients, with the stray spaces of the original."""
    rng = np.random.default_rng(len(studies))
    lines = ["File Name,Capsule System,Gender,Age"]
    for study in studies:
        system = {"pillcam": "PillCam", "olympus": "Olympus"}[study.system]
        lines.append(f"{study.name} , {system},{rng.choice(['F', 'M'])} , {rng.integers(24, 86)}")
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:  # a rerun that changes nothing leaves the file's time alone
        with atomic(path) as temporary:
            temporary.write_text(text)
