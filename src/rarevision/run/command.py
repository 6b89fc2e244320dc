"""The command `rarevision`: every task of this project that is not a notebook.

rarevision --help
rarevision score --help
"""

import io
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

import phantom as demo
from rarevision.config import Model, config_from_dict, merged
from rarevision.data import read_test, verify_data
from rarevision.errors import UserError
from rarevision.event_files import read_events
from rarevision.files import read_toml
from rarevision.model import build_model, check_weights, fetch_weights
from rarevision.run import ablate as ablation
from rarevision.run import pipeline
from rarevision.run.notebook import project_path
from rarevision.scores import read_studies
from rarevision.scoring import (
    bootstrap_intervals,
    check_submission,
    compare_reports,
    describe_submission,
    score_events,
)
from rarevision.training import predict_in_run, train_in_run

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__.splitlines()[0])

DEMO, GRID, TRIALS = map(project_path, ("configs/demo.toml", "configs/ablations", "runs/ablation"))
INTERRUPTED = 130  # the exit code by which shells know Ctrl-C
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="override the config")]
RunDir = Annotated[Path, typer.Option(help="where everything of the run lies")]
RunConfig = Annotated[Path, typer.Option("--config", help="a TOML file, or the JSON that a notebook left")]


@app.command()
def verify(
    root: Annotated[Path, typer.Argument(help="folder of training studies, or of test studies")],
    full: Annotated[bool, typer.Option(help="decode every frame instead of reading headers and ends")] = False,
    labels: Annotated[str, typer.Option(help="labels folder below root")] = "",
    workers: Annotated[int, typer.Option(help="threads; -1 = one per core")] = -1,
) -> int:
    """Check a data set before hours of training; exit 1 with the list of faults."""
    return verify_data(root, full=full, labels=labels, workers=workers)


@app.command()
def fetch(folder: Annotated[Path, typer.Argument(help="where BiomedCLIP shall lie")]) -> None:
    """Bring BiomedCLIP to a folder that needs no network from then on, and check it."""
    fetch_weights(folder)
    print(check_weights(folder))


@app.command()
def weights(
    path: Annotated[Path, typer.Argument(help="an open_clip folder, or with --trunk a file of weights")],
    trunk: Annotated[str, typer.Option(help="the timm model that the file's weights are for")] = "",
) -> None:
    """Check pretrained weights: is a folder complete and what it should be, or what of a file fits a timm model?"""
    settings = Model(source="", trunk=trunk, trunk_weights=str(path), attention="plain")
    print(build_model(settings).recipe["trunk_weights"] if trunk else check_weights(path))


@app.command()
def train(
    config: RunConfig,
    run_dir: RunDir,
    fold: Annotated[int, typer.Option(help="which fold to train")],
    data_key: Annotated[str, typer.Option(help="changes when the frames' content does")] = "",
    force: Annotated[bool, typer.Option("--force", help="begin anew, whatever checkpoint there is")] = False,
    override: Overrides = None,
) -> None:
    """Train one fold of a run, in this process or as one of several (accelerate launch, torchrun, srun)."""
    train_in_run(run_dir, config, fold, data_key, force, override or [])


@app.command()
def predict(config: RunConfig, run_dir: RunDir, override: Overrides = None) -> None:
    """Score the studies of a run, in this process or as one of several."""
    predict_in_run(run_dir, config, override or [])


@app.command()
def score(
    truth: Annotated[Path, typer.Argument(help="events JSON of the truth (also .json.gz)")],
    prediction: Annotated[Path, typer.Argument(help="events JSON to be scored")],
    versus: Annotated[Path | None, typer.Option(help="another prediction: is the difference real?")] = None,
    bootstrap: Annotated[int, typer.Option(min=0, max=100_000, help="95 % intervals from so many draws")] = 0,
    fps: Annotated[float | None, typer.Option(help="frame numbers per second, for false events per hour")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="everything as JSON, full precision")] = False,
) -> int:
    """The challenge's score of a prediction, and where it comes from."""
    if fps is not None and not 0 < fps < float("inf"):
        raise typer.BadParameter("must be positive", param_hint="--fps")
    reports = []
    try:
        known = read_events(truth)
        for path in (prediction, *([versus] if versus else [])):
            events = read_events(path)
            try:
                reports.append(score_events(known, events, fps=fps))
            except UserError as error:
                raise UserError(f"{path} against {truth}: {error}") from None
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    extra = {}
    if bootstrap:
        extra["intervals over studies"] = bootstrap_intervals(reports[0], bootstrap)
    if versus:
        extra[f"difference to {versus}"] = compare_reports(reports[0], reports[1], bootstrap or 2000)
    print(reports[0].to_json(extra) if as_json else reports[0].to_text(extra))
    return 0


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="the submission's JSON")],
    frames: Annotated[Path | None, typer.Option(help="TEST_ROOT: folder with <study>/frame_<number>.png")] = None,
    scores: Annotated[Path | None, typer.Option(help="RUN_DIR/probs/test: the frames of the score files")] = None,
) -> int:
    """Say OK of a submission (exit 0), or list every fault (exit 1)."""
    try:
        if frames is not None and scores is None:
            index, _ = read_test(frames, progress=False)
            known = {study: index.frame[index.rows(study)] for study in index.studies}
        elif scores is not None and frames is None:
            known = {s.study: s.frame for s in read_studies(scores)}
        else:
            raise typer.BadParameter("give one of them", param_hint="--frames / --scores")
    except (UserError, OSError) as error:
        print(f"error: the test frames cannot be read: {error}", file=sys.stderr)
        return 2
    events, faults = check_submission(file, known)
    if not faults:
        print(f"OK: {file}: {describe_submission(events)}")
        return 0
    for fault in faults:
        print(f"{file}: {fault}")
    print(f"{len(faults)} fault{'s' * (len(faults) > 1)} in {file}")
    return 1


@app.command()
def ablate(
    config: Path = DEMO,
    grid: Annotated[Path, typer.Option(help="one TOML file per variant")] = GRID,
    run_dir: Path = TRIALS,
    out: Annotated[Path | None, typer.Option(help="folder for ablation.md, .csv and .png; default: run-dir")] = None,
    seeds: int = 3,
    only: Annotated[str, typer.Option(help="variants whose name begins so; the base is always there")] = "",
) -> None:
    """Train every variant of configs/ablations with several seeds, and write the table and its figure."""
    asked = shlex.join(["rarevision", *(sys.argv[1:] if "ablate" in sys.argv[1:2] else ["ablate"])])
    print(ablation.ablate(config, grid, run_dir, out, seeds, only, asked))


@app.command()
def stage(name: Annotated[str, typer.Argument(help=", ".join(pipeline.STAGES))]) -> int:
    """Run one stage of a run; settings come from the environment, as run_all.sh says."""
    if name not in pipeline.STAGES:
        raise typer.BadParameter(f"no stage {name!r}; stages: {', '.join(pipeline.STAGES)}")
    return pipeline.run_stage(name, dict(os.environ))


@app.command()
def summary() -> int:
    """The closing table of a run; settings come from the environment, as run_all.sh says."""
    return pipeline.run_stage("summary", dict(os.environ))


@app.command()
def phantom(
    config: Annotated[Path | None, typer.Option(help="its [phantom] and [data] are the defaults")] = None,
    root: Annotated[Path | None, typer.Option(help="training studies")] = None,
    test_root: Annotated[Path | None, typer.Option(help="test studies")] = None,
    truth: Annotated[Path | None, typer.Option(help="events JSON of the test studies")] = None,
    seed: int | None = None,
    pillcam: int | None = None,
    olympus: int | None = None,
    navicam: int | None = None,
    frames: int | None = None,
    size: int | None = None,
    workers: Annotated[int | None, typer.Option(help="processes; -1 = one per core")] = None,
) -> None:
    """Render the demo data set in the data set's own file layouts."""
    given = {"seed": seed, "pillcam": pillcam, "olympus": olympus, "navicam": navicam, "frames": frames, "size": size}
    options = {"phantom": {k: v for k, v in given.items() if v is not None}}
    settings = config_from_dict(merged(read_toml(config) if config else {}, options), config or "options")
    known = truth or (Path(settings.data.test_truth) if settings.data.test_truth else None)
    if known is None or not (config or (root and test_root)):
        raise typer.BadParameter("say where: --config with data.test_truth, or --root, --test-root and --truth")
    facts = demo.write_phantom(
        settings.phantom,
        root or settings.data.root,
        test_root or settings.data.test_root,
        known,
        settings.data.workers if workers is None else workers,
    )
    rate = f", {facts['rendered'] / max(facts['seconds'], 0.1):.0f} frames/s" if facts["rendered"] else ", all kept"
    print(f"{facts['studies']} studies, {facts['frames']} frames, {facts['rendered']} rendered{rate}")


@app.command()
def twin(
    folder: Path,
    image_size: int = 0,
    grid: int = 8,
    width: int = 96,
    depth: int = 4,
    heads: int = 4,
    embed_dim: int = 128,
    seed: int = 0,
) -> None:
    """Write a small twin of BiomedCLIP in the hub's file layout."""
    demo.build_twin(folder, image_size, grid, width, depth, heads, embed_dim, seed)
    print(check_weights(folder))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; an error that the user can mend is one line without a traceback."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends quietly
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a character still shows the rest
    given = None if arguments is None else list(arguments)
    try:
        code = app(args=given, prog_name="rarevision", standalone_mode=False) or 0
    except TyperException as error:  # a wrong call: typer says what is wrong with it
        error.show()  # type: ignore[attr-defined]
        return getattr(error, "exit_code", 2)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    if code == INTERRUPTED:
        print("stopped; the same command goes on where it was", file=sys.stderr)
    return code
