"""The whole chain, shrunken, through papermill: frames to a validated submission, then what a second run does."""

import json
import os
import shlex
import shutil

import nbformat
import numpy as np
import pytest

from rarevision import UserError, read_events, scores
from rarevision.decoding import decoder as decoding
from rarevision.files import sha256
from rarevision.run import command, pipeline
from rarevision.run.notebook import STEPS

SMALL = {
    "phantom.pillcam": 3,
    "phantom.olympus": 3,
    "phantom.navicam": 1,
    "phantom.frames": 60,
    "phantom.size": 96,
    "data.frame_step": 1,
    "data.cache_size": 32,
    "data.workers": 0,
    "split.folds": 2,
    "model.image_size": 32,
    "train.epochs": 1,
    "train.draws_per_epoch": 96,
    "train.batch_size": 32,
    "decode.folds": 2,
}


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Settings of the small run, after it has run once."""
    folder = tmp_path_factory.mktemp("chain")
    paths = {
        "data.root": folder / "galar",
        "data.test_root": folder / "test",
        "data.test_truth": folder / "truth.json",
        "data.cache_root": folder / "cache",
        "model.source": folder / "twin",
        "submission.folder": folder / "submissions",
    }
    override = [f"{k}={json.dumps(v)}" for k, v in SMALL.items()] + [f"{k}={v}" for k, v in paths.items()]
    environ = {"CONFIG": "configs/demo.toml", "RUN_DIR": str(folder / "run"), "SET": shlex.join(override)}
    for name in pipeline.STAGES:
        assert pipeline.run_stage(name, environ) == 0, name
    return folder, environ


def test_a_valid_submission_comes_out(chain):
    folder, _ = chain
    path = folder / "submissions" / "demo.json"
    assert command.main(["check", str(path), "--frames", str(folder / "test")]) == 0
    assert list(read_events(path)) == [p.stem for p in sorted((folder / "run/probs/test").glob("*.npz"))]
    manifest = json.loads((folder / "submissions" / "demo.manifest.json").read_text())
    assert manifest["sha256"] == sha256(path)


def test_every_training_study_is_scored_once_out_of_fold(chain):
    run = chain[0] / "run"
    studies = scores.read_studies(run / "probs/oof", run / "labels/oof")
    split = json.loads((run / "splits.json").read_text())
    assert {s.study for s in studies} == set(split["folds"]) and len(studies) == 6
    assert all(np.ptp(s.probs) > 0 for s in studies)


def test_executed_notebooks_hold_figures_and_no_errors(chain):
    for name in STEPS:
        book = nbformat.read(chain[0] / f"run/notebooks/{name}.ipynb", as_version=4)
        outputs = [o for c in book.cells if c.cell_type == "code" for o in c.outputs]
        assert not [o for o in outputs if o.output_type == "error"]
        assert any("image/png" in o.get("data", {}) for o in outputs), f"{name} shows no figure"
        assert (chain[0] / f"run/notebooks/{name}.html").stat().st_size > 10_000


def test_an_unchanged_stage_is_skipped_and_a_changed_one_is_not(chain, capsys):
    _, environ = chain
    before = {n: os.stat(chain[0] / f"run/manifests/{n}.json").st_mtime_ns for n in STEPS}
    for name in pipeline.STAGES:
        assert pipeline.run_stage(name, environ) == 0
    said = capsys.readouterr().out
    assert all(f"{name}: unchanged, skipped" in said for name in STEPS)
    assert before == {n: os.stat(chain[0] / f"run/manifests/{n}.json").st_mtime_ns for n in STEPS}
    changed = environ | {"SET": environ["SET"] + " decode.method=paper"}
    assert pipeline.run_stage("03_training", changed) == 0
    assert "unchanged" in capsys.readouterr().out, "scores do not depend on the decoder"
    assert pipeline.run_stage("05_temporal_decoding", changed) == 0
    assert "running (changed: decode)" in capsys.readouterr().out


def test_other_settings_under_a_finished_run_name_the_two_ways_out(chain, capfd):
    _, environ = chain
    try:
        assert pipeline.run_stage("03_training", environ | {"SET": environ["SET"] + " model.dropout=0.2"}) == 1
        said = capfd.readouterr().err
        assert "model.dropout: 0.1 in the checkpoint, 0.2 now" in said and "Traceback" not in said
        assert "Use another RUN_DIR, or FORCE=1" in said
    finally:
        assert pipeline.run_stage("03_training", environ) == 0


def test_the_summary_shows_no_figures_of_another_decoder(chain, capsys):
    _, environ = chain
    other = environ | {"SET": environ["SET"] + " decode.method=paper"}
    for setting in (other, environ):
        assert pipeline.run_stage("05_temporal_decoding", setting) == 0
    capsys.readouterr()
    assert pipeline.run_stage("summary", environ) == 0
    assert "mAP@0.5, out of fold" in capsys.readouterr().out
    assert pipeline.run_stage("summary", other) == 0
    said = capsys.readouterr().out
    assert "05_temporal_decoding  out of date (changed: decode): FROM=05" in said and "mAP" not in said


def test_decoder_knows_the_score_to_expect(chain):
    table = json.loads((chain[0] / "run/decoder.json").read_text())
    said = json.loads((chain[0] / "run/scores.json").read_text())
    assert table["expected"]["score"] == [said["ours"][m] for m in ("mAP@0.5", "mAP@0.95")]
    assert table["expected"]["data_hash"] == table["data_hash"]


def test_scores_from_elsewhere_need_nothing_else(chain, tmp_path):
    """Only probs/ and labels/oof, as another team would bring them: no frames, splits, thresholds or test labels."""
    theirs, mine = chain[0] / "run", tmp_path / "mine"
    for part in ("probs/oof", "probs/test", "labels/oof"):
        (mine / part).mkdir(parents=True)
        for path in (theirs / part).glob("*.npz"):
            shutil.copy(path, mine / part)
    next((mine / "probs/oof").glob("*.npz")).unlink()  # a study with labels alone: its timeline still teaches
    absent = [f"data.root={tmp_path}/none", f"data.test_root={tmp_path}/none"]
    settings = shlex.join([*absent, f"submission.folder={tmp_path}", "submission.name=mine", "decode.folds=2"])
    environ = {"CONFIG": "configs/galar.toml", "RUN_DIR": str(mine), "SET": settings}
    for name in ("04_threshold_tuning", "05_temporal_decoding"):
        assert pipeline.run_stage(name, environ) == 0
    listed = read_events(tmp_path / "mine.json")
    assert list(listed) == [p.stem for p in (mine / "probs/test").glob("*.npz")]
    assert command.main(["check", str(tmp_path / "mine.json"), "--scores", str(mine / "probs/test")]) == 0
    decoder = json.loads((mine / "decoder.json").read_text())
    scored = scores.read_studies(mine / "probs/oof", mine / "labels/oof")
    assert len(scored) == 5 and decoder["expected"]["score"]
    everything = decoding.data_hash(scored, scores.read_timelines(mine / "labels/oof"))
    assert decoder["data_hash"] == decoder["expected"]["data_hash"] == everything != decoding.data_hash(scored)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda frame, probs: (frame, probs * 20 - 10), "logits"),
        (lambda frame, probs: (frame, probs[:, :16]), "16"),
        (lambda frame, probs: (frame[::-1], probs), "must ascend"),
        (lambda frame, probs: (np.where(frame == frame[3], frame[2], frame), probs), "must ascend; row 3"),
        (lambda frame, probs: (frame, np.where(np.arange(len(frame))[:, None] == 5, np.nan, probs)), "probs[5, 0]"),
        (lambda frame, probs: (frame[:-1], probs[:-1]), "different frames"),
    ],
    ids=["logits", "16 labels", "not sorted", "frame twice", "not a number", "frame without label"],
)
def test_another_models_bad_file_is_named(chain, tmp_path, capsys, damage, said):
    shutil.copytree(chain[0] / "run/probs", tmp_path / "probs")
    shutil.copytree(chain[0] / "run/labels", tmp_path / "labels")
    path = sorted((tmp_path / "probs/oof").glob("*.npz"))[1]
    with np.load(path) as table:
        frame, probs = damage(table["frame"], table["probs"].astype(np.float32))
    np.savez(path, frame=frame, probs=probs)
    with pytest.raises(UserError) as error:
        scores.read_studies(tmp_path / "probs/oof", tmp_path / "labels/oof")
    assert path.name in str(error.value) and said in str(error.value)


def test_a_bad_file_is_one_clear_line_and_the_stage_is_not_done(chain, capsys):
    folder, environ = chain
    score = next((folder / "run/probs/oof").glob("*.npz"))
    whole = score.read_bytes()
    score.write_bytes(whole[:200])
    try:
        assert pipeline.run_stage("04_threshold_tuning", environ) == 1
        error = capsys.readouterr().err
        assert error.splitlines()[0].startswith("04_threshold_tuning: ") and score.name in error.splitlines()[0]
        assert "04_threshold_tuning: failed" in error and "Traceback" not in error
        assert not (folder / "run/manifests/04_threshold_tuning.json").exists()
        assert (folder / "run/notebooks/04_threshold_tuning.html").exists()
    finally:
        score.write_bytes(whole)
    assert pipeline.run_stage("04_threshold_tuning", environ) == 0
