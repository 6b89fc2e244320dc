import numpy as np
import pandas as pd
import pytest
import tiny

from rarevision import config
from rarevision.run import ablate, command, notebook


def test_shipped_variants_change_what_they_say():
    found = ablate.variants(notebook.project_path("configs/demo.toml"), notebook.project_path("configs/ablations"))
    base = found["base"]
    assert next(iter(found)) == "base"
    assert len(found) == 16
    for name, one in found.items():
        different = [k for k in ("data", "split", "model", "train", "predict") if getattr(one, k) != getattr(base, k)]
        assert different == ([] if name == "base" else different[:1])
    assert found["attention-paper"].model.attention == "paper"
    assert found["attention-paper"].train == base.train


def test_summary_by_hand():
    results = pd.DataFrame(
        [("base", 0, 0.5), ("base", 1, 0.3), ("x", 0, 0.6), ("x", 1, 0.5), ("y", 1, 0.2)],
        columns=["variant", "seed", "ap"],
    )
    table = ablate.ablation_summary(results)
    assert table.loc["x", "ap"] == pytest.approx(0.55)
    assert table.loc["x", "ap sd"] == pytest.approx(0.05 * 2**0.5)
    assert table.loc["x", "ap diff"] == pytest.approx(0.15)  # of +0.1 and +0.2, paired by seed
    assert table.loc["x", "ap diff sd"] == pytest.approx(0.05 * 2**0.5)
    assert table.loc["y", "ap diff"] == pytest.approx(-0.1)  # seed 1 only
    assert np.isnan(table.loc["y", "ap sd"])
    text = ablate.markdown(table)
    assert "| base | 2 | 0.400 ± 0.141 |" in text
    assert "| x | 2 | 0.550 ± 0.071 (+0.150 ± 0.071) |" in text
    assert len(ablate.ablation_figure(results).axes) == 1


def test_it_trains_what_is_missing_and_only_that(tmp_path, monkeypatch, capsys):
    world = tiny.make(tmp_path / "tiny")
    table = world.config.as_dict()
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "base.toml").write_text("[train]\nepochs = 1\n")
    (tmp_path / "grid" / "loss-bce.toml").write_text('[train]\nloss = "bce"\n')
    lines = [f"[{s}]\n" + "".join(f"{k} = {_toml(v)}\n" for k, v in table[s].items()) for s in table if s != "name"]
    (tmp_path / "c.toml").write_text("\n".join(lines))
    assert config.load_config(tmp_path / "c.toml").train == world.config.train
    options = [
        "--config",
        str(tmp_path / "c.toml"),
        "--grid",
        str(tmp_path / "grid"),
        "--run-dir",
        str(tmp_path / "run"),
    ]
    assert command.main(["ablate", *options, "--seeds", "1"]) == 0
    first = (tmp_path / "run" / "ablation.md").read_text()
    assert "| loss-bce | 1 |" in first
    assert (tmp_path / "run" / "ablation.png").stat().st_size > 1000
    capsys.readouterr()
    assert command.main(["ablate", *options, "--seeds", "2"]) == 0
    said = capsys.readouterr().out
    assert said.count("unchanged, skipped") == 2
    assert said.count("epoch 1/1") == 2
    results = pd.read_csv(tmp_path / "run" / "results.csv")
    assert sorted(zip(results.variant, results.seed, strict=True)) == [
        ("base", 0), ("base", 1), ("loss-bce", 0), ("loss-bce", 1)
    ]  # fmt: skip
    assert results.ap.between(0, 1).all()


def _toml(value):
    return str(value).lower() if isinstance(value, bool) else repr(value)
