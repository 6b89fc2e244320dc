import pytest

from rarevision.errors import UserError
from rarevision.run import command, pipeline
from rarevision.run.notebook import PROJECT, open_run
from rarevision.run.pipeline import run_stage, selected


def test_settings_replace_the_config_and_never_mix_test_sets(tmp_path):
    demo = open_run("05_temporal_decoding", "configs/demo.toml")
    assert demo.dir == PROJECT / "runs/demo" and demo.config.submission.name == "demo"
    assert demo.config.phantom.build and demo.config.data.test_truth
    other = open_run("05_temporal_decoding", "configs/demo.toml", test_root=str(tmp_path / "exams"))
    assert other.config.data.test_root == str(tmp_path / "exams")
    assert other.config.data.test_truth == "", "the demo's truth says nothing about other studies"
    assert other.config.submission.name == "demo-exams", "the demo's submission is not overwritten"
    mine = open_run("01_eda_imbalance", "configs/demo.toml", data_root=str(tmp_path), run_dir=str(tmp_path / "r"))
    assert not mine.config.phantom.build, "nobody renders into a folder of real data"
    assert mine.dir == tmp_path / "r"


def test_from_and_only_select_by_number():
    chosen = [s for s in pipeline.STAGES if selected(s, "03", "")]
    assert chosen == ["03_training", "04_threshold_tuning", "05_temporal_decoding"]
    assert [s for s in pipeline.STAGES if selected(s, "", "04")] == ["04_threshold_tuning"]
    assert all(selected(s, "", "") for s in pipeline.STAGES)
    with pytest.raises(UserError, match="FROM=07 names no stage"):
        selected("01_eda_imbalance", "07", "")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"ONLY": "9"}, "ONLY=9 names no stage"),
        ({"SET": "train.epoch=1"}, "did you mean 'epochs'"),
        ({"CONFIG": "configs/dmo.toml"}, "no such config"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(capsys, environ, message):
    assert run_stage("01_eda_imbalance", environ) == 1
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and len(error.splitlines()) == 1


def test_a_stage_that_does_not_exist_is_refused_with_those_that_do(capsys):
    assert command.main(["stage", "06"]) == 2
    assert "stages: 00_demo" in capsys.readouterr().err
