"""A run as a notebook sees it: which stages there are, what each is made from, and how one is opened and closed.

A notebook begins with `run = start_stage("03_training", CONFIG, ...)` and ends with `run.finish(outputs)`: it leaves
the same manifest from Jupyter as under papermill.
"""

import functools
import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rarevision
from rarevision.config import Config, load_config
from rarevision.errors import UserError
from rarevision.files import digest, fingerprint, sha256
from rarevision.stage import Stage, code_hash

PROJECT = Path(rarevision.__file__).resolve().parents[2]


@dataclass(frozen=True)
class Step:
    """What a stage's result depends on: config sections, data folders, and earlier stages' files (globs in RUN_DIR)."""

    sections: tuple[str, ...]
    roots: tuple[str, ...] = ()  # fields of `Data` whose folders are fingerprinted
    files: tuple[str, ...] = ()


STEPS = {
    "01_eda_imbalance": Step(("data", "split", "train"), ("root", "test_root")),
    "02_model_differential_attention": Step(("data", "model"), (), ("index/train.parquet", "index/test.parquet")),
    "03_training": Step(
        ("data", "split", "model", "train", "predict"),
        ("root", "test_root"),
        ("splits.json", "model/text_embeddings.safetensors"),
    ),
    "04_threshold_tuning": Step(("threshold", "decode"), (), ("probs/oof/*", "labels/oof/*")),
    "05_temporal_decoding": Step(
        ("threshold", "decode", "submission", "data"), (), ("thresholds.json", "probs/**/*", "labels/**/*")
    ),
}


class Run:
    """One stage of one run: its configuration, its folder, and the manifest that says it is done."""

    def __init__(self, name: str, config: Config, run_dir: Path):
        self.name, self.config, self.dir = name, config, run_dir

    def path(self, *parts: str) -> Path:
        return self.dir.joinpath(*parts)

    def need(self, relative: str, stage: str) -> Path:
        """A file of an earlier stage, or an error that names the stage to run first."""
        path = self.dir / relative
        if not path.exists():
            raise UserError(f"{shown(path)} is missing: run notebook {stage} first (or FROM={stage[:2]} ./run_all.sh)")
        return path

    def data(self, field: str) -> Path:
        """Folder or file of the `[data]` section, as an absolute path."""
        return project_path(getattr(self.config.data, field))

    def key(self) -> dict[str, Any]:
        """Hashes of everything the stage is made from; equal keys mean an equal result."""
        step = STEPS[self.name]
        table = self.config.as_dict()
        key: dict[str, Any] = {section: digest(table[section]) for section in step.sections}
        key["code"] = code_hash(notebook_source(self.name))
        for field in step.roots:
            folder = self.data(field)
            key[f"data.{field}"] = fingerprint(folder) if folder.exists() else "absent"
        for pattern in step.files:
            found = sorted(p for p in self.dir.glob(pattern) if p.is_file() and not p.name.startswith("."))
            key[pattern] = digest([(p.relative_to(self.dir).as_posix(), sha256(p)) for p in found])
        if self.config.data.test_truth:
            truth = self.data("test_truth")
            key["data.test_truth"] = sha256(truth) if truth.exists() else "absent"
        return key

    @functools.cached_property
    def stage(self) -> Stage:
        """With the key as it was when first asked for: what changes later is not what the stage was made from."""
        return Stage(self.dir, self.name, self.key())

    def fingerprint(self, field: str) -> str:
        """`fingerprint` of a data folder as the stage began; the walk over all files is not made again."""
        return self.stage.key[f"data.{field}"]

    def finish(self, outputs: Iterable[str | Path] = (), **notes: Any) -> None:
        """Write the manifest; call it last."""
        peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        path = self.stage.finish(outputs, peak_memory_mb=peak // 1024, config=self.config.as_dict(), **notes)
        print(f"{self.name} is done: {shown(path)}")


def start_stage(
    name: str, config: str, data_root: str = "", test_root: str = "", run_dir: str = "", override: Iterable[str] = ()
) -> Run:
    """Open a stage from a notebook's parameters; from here it is not done until `finish`, and its time runs.

    Parameters are as in `open_run`. The working folder becomes the project's: paths are relative to it.
    """
    os.chdir(PROJECT)
    run = open_run(name, config, data_root, test_root, run_dir, override)
    run.stage.path.unlink(missing_ok=True)
    return run


def open_run(
    name: str, config: str, data_root: str = "", test_root: str = "", run_dir: str = "", override: Iterable[str] = ()
) -> Run:
    """A stage's settings and folder; "" stands for the config's own value, `override` is as in `load_config`."""
    cfg = load_config(project_path(config), tuple(override))
    data, submission = cfg.data, cfg.submission.name or cfg.name
    if data_root:
        data = replace(data, root=str(data_root))
        cfg = replace(cfg, phantom=replace(cfg.phantom, build=False))  # nobody renders into a folder of real data
    if test_root and project_path(test_root) != project_path(data.test_root):
        truth = data.test_truth if any(o.startswith("data.test_truth=") for o in override) else ""
        data = replace(data, test_root=str(test_root), test_truth=truth)
        # another test set never overwrites the first one's submission
        submission = cfg.submission.name or f"{cfg.name}-{Path(test_root).name}"
    cfg = replace(cfg, data=data, submission=replace(cfg.submission, name=submission))
    return Run(name, cfg, project_path(run_dir or f"runs/{cfg.name}"))


def project_path(path: str | Path) -> Path:
    """Paths of configs and parameters are relative to the project folder, wherever a notebook runs."""
    return PROJECT / Path(path).expanduser()


def shown(path: Path) -> str:
    """A path as people should see it: relative to the project where it lies inside."""
    return str(path.relative_to(PROJECT)) if path.is_relative_to(PROJECT) else str(path)


def notebook_source(name: str) -> Path:
    return PROJECT / "notebooks" / f"{name}.py"
