"""The pipeline: a stage's notebook run, skipped or refused, and the closing table.

rarevision stage 03_training     settings from the environment, as run_all.sh documents them
rarevision summary
"""

import os
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any

from phantom import build_twin, twin, write_phantom
from rarevision.config import Config
from rarevision.errors import UserError
from rarevision.run.notebook import PROJECT, STEPS, Run, notebook_source, open_run, project_path, shown
from rarevision.stage import Stage, code_hash

STAGES = ("00_demo", *STEPS)


def execute(run: Run, parameters: dict[str, Any]) -> None:
    """Run a notebook through papermill; leave it in RUN_DIR/notebooks as .ipynb and .html, whether it fails or not."""
    # These take a second to import, which a stage that is skipped, and every other command, need not wait for.
    import jupytext
    import nbconvert
    import papermill
    from papermill.exceptions import PapermillExecutionError

    os.environ.pop("MPLBACKEND", None)  # a value from the shell would keep figures out of the notebook
    folder = run.path("notebooks")
    folder.mkdir(parents=True, exist_ok=True)
    source, executed = folder / f".{run.name}.source.ipynb", folder / f"{run.name}.ipynb"
    page = executed.with_suffix(".html")
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
    except PapermillExecutionError as error:
        # a UserError renders itself as its text alone; anything else is a fault of ours and shows where it arose
        mendable = not any("Traceback" in line for line in error.traceback)
        print(f"{run.name}: {error.evalue}" if mendable else error, file=sys.stderr)
        raise UserError(f"failed; see {shown(page)}") from None
    finally:
        source.unlink(missing_ok=True)
        if executed.exists():
            page.write_text(nbconvert.HTMLExporter().from_filename(str(executed))[0])


def build_demo(config: Config) -> None:
    """Stage 00: the rendered data set and the small model, where the config asks for them and they are not there."""
    if not config.phantom.build:
        print(f"00_demo: nothing to build for config {config.name!r}")
        return
    root, test_root, truth = map(project_path, (config.data.root, config.data.test_root, config.data.test_truth))
    facts = write_phantom(config.phantom, root, test_root, truth)
    print(f"00_demo: {facts['frames']} frames in {facts['studies']} studies, {facts['rendered']} rendered now")
    source = project_path(config.model.source)
    made = Stage(source, "twin", {"image_size": config.model.image_size, "code": code_hash(twin.__file__)})
    if not made.current():
        build_twin(source, image_size=config.model.image_size)
        made.finish(p for p in source.rglob("*") if p.is_file() and made.path.parent not in p.parents)
        print(f"00_demo: {shown(source)} built")


def summary(run: Run) -> str:
    """The closing table: the score where truth is known, silence's beside it, speed, and where the files are."""
    rows: dict[str, str] = {}
    seconds = 0.0
    for name, step in STEPS.items():
        one = Run(name, run.config, run.dir)
        manifest = Stage(run.dir, name, {}).manifest()
        if manifest is None:
            rows[name] = "not done"
            continue
        seconds += manifest["seconds"]
        if not step.roots and (why := one.stage.why_not_current()):
            rows[name] = f"out of date ({why}): FROM={name[:2]} ./run_all.sh"
            continue
        rows |= {title: str(value) for title, value in manifest["notes"].get("summary", {}).items()}
    rows |= {"stages took": f"{seconds:.0f} s", "notebooks": shown(run.path("notebooks"))}
    width = max(map(len, rows))
    return "\n".join(f"{title:<{width}}  {value}" for title, value in rows.items())


def selected(name: str, first: str, only: str) -> bool:
    """FROM and ONLY name stages by number or by name; one that names none is an error, not an empty run."""
    for setting, value in (("FROM", first), ("ONLY", only)):
        if value and not any(stage.startswith(value) for stage in STAGES):
            raise UserError(f"{setting}={value} names no stage; stages: {', '.join(STAGES)}")
    if only:
        return name.startswith(only)
    return not first or name[:2] >= first[:2]


def run_stage(name: str, environ: Mapping[str, str]) -> int:
    """Run one stage, or skip it where nothing changed; 0 when it is done. `environ`: the settings of run_all.sh."""
    config, data_root, run_dir = (environ.get(key, "") for key in ("CONFIG", "DATA_ROOT", "RUN_DIR"))
    config = config or "configs/demo.toml"
    test_root = "" if name == "00_demo" else environ.get("TEST_ROOT", "")  # the demo's own test studies in any case
    try:
        try:
            override = shlex.split(environ.get("SET", ""))
        except ValueError as error:
            raise UserError(f"SET={environ['SET']}: {error}", remedy="quote values as in a shell") from None
        run = open_run(name, config, data_root, test_root, run_dir, override)
        if name == "summary":
            print(summary(run))
        elif selected(name, environ.get("FROM", ""), environ.get("ONLY", "")):
            if name == "00_demo":
                build_demo(run.config)
            else:
                parameters = {"CONFIG": config, "DATA_ROOT": data_root, "TEST_ROOT": test_root, "RUN_DIR": str(run.dir)}
                force = environ.get("FORCE", "") not in ("", "0")
                run_notebook(run, parameters | {"OVERRIDE": override, "FORCE": force})
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return 0


def run_notebook(run: Run, parameters: dict[str, Any]) -> None:
    """Execute a stage's notebook where something it is made from has changed, or where FORCE is set."""
    reason = "FORCE=1" if parameters["FORCE"] else run.stage.why_not_current()
    if not reason:
        print(f"{run.name}: unchanged, skipped")
        return
    print(f"{run.name}: running ({reason})", flush=True)
    began = time.time()
    execute(run, parameters)
    manifest = run.stage.manifest()
    if manifest is None:
        raise UserError(f"the notebook ended without a manifest ({shown(run.stage.path)}), so it is not done")
    print(f"{run.name}: {time.time() - began:.0f} s, peak {manifest['notes']['peak_memory_mb']} MB")
