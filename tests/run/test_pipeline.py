import pytest

from rarevision.run import pipeline
from rarevision.run.pipeline import PROJECT, main, open_run, selected


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
    with pytest.raises(pipeline.StageError, match="FROM=07 names no stage"):
        selected("01_eda_imbalance", "07", "")


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "message"),
    [
        (["06"], {}, 2, "stages: 00_demo"),
        ([], {}, 2, "usage"),
        (["01_eda_imbalance"], {"ONLY": "9"}, 1, "ONLY=9 names no stage"),
        (["01_eda_imbalance"], {"SET": "train.epoch=1"}, 1, "did you mean 'epochs'"),
        (["01_eda_imbalance"], {"CONFIG": "configs/dmo.toml"}, 1, "no such config"),
    ],
)
def test_a_wrong_call_is_one_clear_line(capsys, arguments, environ, code, message):
    assert main(arguments, environ) == code
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and len(error.splitlines()) == 1
