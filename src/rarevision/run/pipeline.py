"""The pipeline: which stages there are, what each is made from, and how a notebook is run, skipped or refused.

    rarevision stage 03_training     settings from the environment, as run_all.sh documents them
    rarevision summary

A notebook begins with `run = pipeline.start("03_training", CONFIG, ...)` and ends with `run.finish(outputs)`: it leaves
the same manifest from Jupyter as under papermill.
"""

import os
import resource
import shlex
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rarevision
from phantom import build_twin, twin, write_phantom
from rarevision import config as configuration
from rarevision.config import Config
from rarevision.errors import UserError
from rarevision.files import digest, fingerprint, sha256
from rarevision.stage import Stage, code_hash

PROJECT = Path(rarevision.__file__).resolve().parents[2]


class StageError(UserError):
    """A stage that cannot run; the message says what is missing and what to do."""


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
STAGES = ("00_demo", *STEPS)


class Run:
    """One stage of one run: its configuration, its folder, and the manifest that says it is done."""

    def __init__(self, name: str, config: Config, run_dir: Path):
        self.name, self.config, self.dir = name, config, run_dir
        self._stage: Stage | None = None

    def path(self, *parts: str) -> Path:
        return self.dir.joinpath(*parts)

    def need(self, relative: str, stage: str) -> Path:
        """A file of an earlier stage, or an error that names the stage to run first."""
        path = self.dir / relative
        if not path.exists():
            raise StageError(f"{shown(path)} is missing: run notebook {stage} first (or FROM={stage[:2]} ./run_all.sh)")
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

    def begin(self) -> "Run":
        """From here the stage is not done until `finish`; the time starts."""
        self._stage = Stage(self.dir, self.name, self.key())
        self._stage.path.unlink(missing_ok=True)
        return self

    def fingerprint(self, field: str) -> str:
        """`fingerprint` of a data folder as the stage began; the walk over all files is not made again."""
        return self._stage.key[f"data.{field}"]

    def finish(self, outputs: Iterable[str | Path] = (), **notes: Any) -> None:
        """Write the manifest; call it last."""
        peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        # the key is taken at the start: what changed while the stage ran is not what it was made from
        path = self._stage.finish(outputs, peak_memory_mb=peak // 1024, config=self.config.as_dict(), **notes)
        print(f"{self.name} is done: {shown(path)}")


def start_stage(
    name: str, config: str, data_root: str = "", test_root: str = "", run_dir: str = "", override: Iterable[str] = ()
) -> Run:
    """Open a stage from a notebook's parameters (strings; "" = the config's value, `override` as in `config.load`).

    The working folder becomes the project's: paths in configs and parameters are relative to it.
    """
    os.chdir(PROJECT)
    return open_run(name, config, data_root, test_root, run_dir, override).begin()


def open_run(
    name: str, config: str, data_root: str = "", test_root: str = "", run_dir: str = "", override: Iterable[str] = ()
) -> Run:
    cfg = configuration.load_config(project_path(config), tuple(override))
    data = cfg.data
    if data_root:
        data = replace(data, root=str(data_root))
        cfg = replace(cfg, phantom=replace(cfg.phantom, build=False))
    if test_root and project_path(test_root) != project_path(data.test_root):
        truth = data.test_truth if any(o.startswith("data.test_truth=") for o in override) else ""
        data = replace(data, test_root=str(test_root), test_truth=truth)
        if not cfg.submission.name:  # another test set never overwrites the first one's submission
            cfg = replace(cfg, submission=replace(cfg.submission, name=f"{cfg.name}-{Path(test_root).name}"))
    cfg = replace(cfg, data=data)
    if not cfg.submission.name:
        cfg = replace(cfg, submission=replace(cfg.submission, name=cfg.name))
    return Run(name, cfg, project_path(run_dir or f"runs/{cfg.name}"))


def project_path(path: str | Path) -> Path:
    """Paths of configs and parameters are relative to the project folder, wherever a notebook runs."""
    return PROJECT / Path(path).expanduser()


def shown(path: Path) -> str:
    """A path as people should see it: relative to the project where it lies inside."""
    return str(path.relative_to(PROJECT)) if path.is_relative_to(PROJECT) else str(path)


def notebook_source(name: str) -> Path:
    return PROJECT / "notebooks" / f"{name}.py"


def execute(run: Run, parameters: dict[str, Any]) -> None:
    """Run a notebook through papermill; leave it in RUN_DIR/notebooks as .ipynb and .html, whether it fails or not."""
    import jupytext
    import nbconvert
    import papermill

    os.environ.pop("MPLBACKEND", None)  # a value from the shell would keep figures out of the notebook
    folder = run.path("notebooks")
    folder.mkdir(parents=True, exist_ok=True)
    source, executed = folder / f".{run.name}.source.ipynb", folder / f"{run.name}.ipynb"
    jupytext.write(jupytext.read(notebook_source(run.name)), source)
    try:
        papermill.execute_notebook(
            source,
            executed,
            parameters,
            cwd=str(PROJECT),
            progress_bar=False,
            log_output=False,
            extra_arguments=["--log-level=CRITICAL"],  # the kernel's own notices are no news to the reader
            stdout_file=sys.stdout,
            stderr_file=sys.stderr,  # tqdm's bars
        )
    finally:
        source.unlink(missing_ok=True)
        if executed.exists():
            html, _ = nbconvert.HTMLExporter().from_filename(str(executed))
            executed.with_suffix(".html").write_text(html)


def build_demo(config: Config) -> None:
    """Stage 00: the rendered data set and the small model, where the config asks for them and they are not there."""

    if not config.phantom.build:
        print(f"00_demo: nothing to build for config {config.name!r}")
        return
    data = config.data
    facts = write_phantom(config.phantom, *(project_path(p) for p in (data.root, data.test_root, data.test_truth)))
    print(f"00_demo: {facts['frames']} frames in {facts['studies']} studies, {facts['rendered']} rendered now")
    source = project_path(config.model.source)
    made = Stage(source, "twin", {"image_size": config.model.image_size, "code": code_hash(twin.__file__)})
    if not made.current():
        build_twin(source, image_size=config.model.image_size)
        made.finish(p for p in source.rglob("*") if p.is_file() and made.path.parent not in p.parents)
        print(f"00_demo: {shown(source)} built")


def summary(run: Run) -> str:
    """The closing table: the score where truth is known, silence's beside it, speed, and where the files are."""
    rows: list[tuple[str, str]] = []
    seconds = 0.0
    for name in STEPS:
        manifest = Stage(run.dir, name, {}).manifest()
        if manifest is None:
            rows.append((name, "not done"))
            continue
        seconds += manifest["seconds"]
        notes = manifest["notes"]
        step = Run(name, run.config, run.dir)
        if not STEPS[name].roots and (why := Stage(run.dir, name, step.key()).why_not_current()):
            rows.append((name, f"out of date ({why}): FROM={name[:2]} ./run_all.sh"))
            continue
        for title, value in notes.get("summary", {}).items():
            rows.append((title, str(value)))
    rows.append(("stages took", f"{seconds:.0f} s"))
    rows.append(("notebooks", shown(run.path("notebooks"))))
    width = max(len(title) for title, _ in rows)
    return "\n".join(f"{title:<{width}}  {value}" for title, value in rows)


def selected(name: str, first: str, only: str) -> bool:
    """FROM and ONLY name stages by number or by name; one that names none is an error, not an empty run."""
    for setting, value in (("FROM", first), ("ONLY", only)):
        if value and not any(stage.startswith(value) for stage in STAGES):
            raise StageError(f"{setting}={value} names no stage; stages: {', '.join(STAGES)}")
    if only:
        return name.startswith(only)
    return not first or name[:2] >= first[:2]


def run_stage(name: str, environ: dict[str, str]) -> int:
    """Run one stage, or skip it where nothing changed; 0 when it is done. `environ`: the settings of run_all.sh."""
    setting = {k: environ.get(k, "") for k in ("CONFIG", "DATA_ROOT", "TEST_ROOT", "RUN_DIR", "FROM", "ONLY", "FORCE")}
    override = shlex.split(environ.get("SET", ""))
    try:
        config = setting["CONFIG"] or "configs/demo.toml"
        run = open_run(name, config, setting["DATA_ROOT"], setting["TEST_ROOT"], setting["RUN_DIR"], override)
        if name == "summary":
            print(summary(run))
            return 0
        if not selected(name, setting["FROM"], setting["ONLY"]):
            return 0
        if name == "00_demo":  # the demo's own test studies, whatever TEST_ROOT says
            build_demo(open_run(name, config, setting["DATA_ROOT"], "", setting["RUN_DIR"], override).config)
            return 0
        stage = Stage(run.dir, name, run.key())
        reason = "FORCE=1" if setting["FORCE"] not in ("", "0") else stage.why_not_current()
        if not reason:
            print(f"{name}: unchanged, skipped")
            return 0
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    print(f"{name}: running ({reason})", flush=True)
    parameters = {
        "CONFIG": config,
        "DATA_ROOT": setting["DATA_ROOT"],
        "TEST_ROOT": setting["TEST_ROOT"],
        "RUN_DIR": str(run.dir),
        "OVERRIDE": override,
        "FORCE": reason == "FORCE=1",
    }
    from papermill.exceptions import PapermillExecutionError

    began = time.time()
    try:
        execute(run, parameters)
    except PapermillExecutionError as error:
        # a UserError renders itself as its text alone; anything else is a fault of ours and shows where it arose
        ours = not any("Traceback" in line for line in error.traceback)
        print(f"{name}: {error.evalue}" if ours else error, file=sys.stderr)
        print(f"{name}: failed; see {shown(run.path('notebooks', name + '.html'))}", file=sys.stderr)
        return 1
    manifest = stage.manifest()
    if manifest is None:
        print(
            f"{name}: the notebook ended without a manifest ({shown(stage.path)}), so it is not done", file=sys.stderr
        )
        return 1
    print(f"{name}: {time.time() - began:.0f} s, peak {manifest['notes']['peak_memory_mb']} MB")
    return 0
