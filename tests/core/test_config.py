import dataclasses

import pytest

from rarevision import config
from rarevision.errors import UserError
from rarevision.run.notebook import PROJECT

CONFIGS = sorted((PROJECT / "configs").rglob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_shipped_configs_load(path):
    assert config.load_config(path).name == path.stem


def test_paper_states_every_published_number():
    c = config.load_config(PROJECT / "configs/paper.toml")
    assert (c.data.frame_step, c.split.scheme, c.split.seed) == (5, "published", 42)
    assert (c.model.attention, c.model.lambda_init, c.model.reduction, c.model.dropout) == ("paper", 0.8, 16, 0.4)
    t = c.train
    assert (t.epochs, t.batch_size, t.sampler, t.loss) == (5, 128, "sqrt", "asymmetric")
    assert (t.gamma_pos, t.gamma_neg, t.shift, t.max_pos_weight, t.contrastive_weight) == (1, 4, 0.05, 100, 0.4)
    assert (t.mixup, t.smoothing, t.ema) == (0.3, 0.05, 0.999)
    assert (t.lr_backbone, t.lr_heads, t.weight_decay, t.warmup, t.clip) == (9e-5, 3e-4, 5e-4, 0.15, 1)
    h, d = c.threshold, c.decode
    assert (h.low_rare, h.low, h.high, h.step, h.default) == (0.05, 0.15, 0.85, 0.02, 0.2)
    assert (d.method, d.median, d.max_gap, d.min_length, d.compose) == ("paper", 7, 5, 3, "label_set")


def test_defaults_are_the_published_ones():
    assert dataclasses.replace(config.load_config(PROJECT / "configs/paper.toml"), name="default") == config.Config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nepoch = 3", "unknown key 'train.epoch'; did you mean 'epochs'"),
        ("[trian]\nepochs = 3", "unknown key 'trian'; did you mean 'train'"),
        ("[train]\nepochs = '3'", "train.epochs = '3' must be a valid integer"),
        ("[train]\nepochs = true", "train.epochs = True must be a valid integer"),
        ("[train]\nsampler = 'sqroot'", "must be 'none', 'inverse' or 'sqrt'"),
        ("train = 3", "train = 3 must be a table"),
        ("[train]\nepochs = 0", "train.epochs = 0 must be greater than 0"),
        ("[model]\nattention = 'preserve'", "for 'preserve'"),
        ("[decode]\nmedian = 4", "must be odd"),
        ("[decode", "cannot be read as TOML"),
    ],
)
def test_a_wrong_config_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        config.load_config(path)
    assert "mine.toml" in str(caught.value)


def test_a_missing_config_says_where_to_look(tmp_path):
    with pytest.raises(UserError, match="no such config"):
        config.load_config(tmp_path / "absent.toml")


def test_overrides_are_typed_and_checked(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nepochs = 3")
    c = config.load_config(path, ["train.epochs=1", "decode.method=ours", "train.lr_heads=1", "data.root=elsewhere"])
    assert (c.train.epochs, c.decode.method, c.train.lr_heads, c.data.root) == (1, "ours", 1.0, "elsewhere")
    with pytest.raises(UserError, match="did you mean 'epochs'"):
        config.load_config(path, ["train.epoch=1"])
    with pytest.raises(UserError, match=r"write section\.key=value"):
        config.load_config(path, ["train.epochs"])


def test_a_config_cannot_be_changed_after_loading():
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.Config().train.epochs = 9
