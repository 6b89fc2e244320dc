"""One typed configuration: the commented table of defaults, read from TOML, never changed after.

The defaults are the published pipeline's (`configs/paper.toml` spells them out); a config file holds only what differs.
Unknown keys, wrong types and impossible values raise `ConfigError` naming file, key, and the nearest known key.
"""

import dataclasses
import difflib
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rarevision.errors import UserError
from rarevision.labels import PROMPT


class ConfigError(UserError):
    """A configuration that cannot be used; the message names the file, the key and what to write instead."""


@dataclass(frozen=True)
class Data:
    """Where frames and labels are, and how they are read. Paths are relative to the project folder."""

    root: str = "data/galar"  # training studies, in Galar's layout
    test_root: str = "data/rare-vision-test"  # studies to predict: <study>/frame_*.png
    test_truth: str = ""  # events JSON of the test studies, where known (the demo's); "" = unknown
    labels: str = ""  # labels folder below root; "" = the newest folder whose name contains "Labels"
    missing_labels: Literal["error", "zero"] = "error"  # a label column that a study's CSV lacks
    frame_step: int = 5  # train on every n-th labelled frame (published: 5)
    max_bad_share: float = 0.0  # share of undecodable frames tolerated per study before the run stops
    cache: bool = True  # decode each PNG once into a tar of JPEGs per study
    cache_root: str = "data/cache"  # where the tars lie
    cache_size: int = 256  # px, shorter side of a cached frame
    cache_quality: int = 95  # JPEG quality; chroma is never subsampled: colour is the finding
    field_of_view: Literal["full", "crop"] = "full"  # crop: to the capsule's round or octagonal field
    harmonise: Literal["none", "colour"] = "none"  # colour: every study mapped to one reference statistic
    workers: int = -1  # decoding processes; -1 = one per core


@dataclass(frozen=True)
class Split:
    """Studies to folds. A study (one patient) is never divided."""

    scheme: Literal["article", "published", "balanced"] = "published"
    # article: 61-80 held out, `folds` folds on 1-60; published: 85/15, one validation part; balanced: `folds`
    # folds over all studies, rare labels spread
    folds: int = 5
    seed: int = 42


@dataclass(frozen=True)
class Model:
    """Backbone, attention form and the two heads."""

    source: str = "hf-hub:microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224"  # hub name or a local folder
    revision: str = "9f341de24bfb00180f1b847274256e9b65a3a32e"  # hub revision; ignored for folders
    trunk: str = ""  # "" = the source's own image tower; else a timm ViT: `name.tag` pretrained, `name` random
    image_size: int = 0  # px; 0 = the source's (or the trunk's) own, else positions are interpolated
    attention: Literal["plain", "published", "paper", "difftransformer", "preserve"] = "paper"
    groups: Literal["halves", "adjacent"] = "halves"  # which heads form the two groups of `paper`
    lambda_init: float = 0.8  # `preserve` allows at most 0.5
    reduction: int = 16  # excitation block's bottleneck
    dropout: float = 0.4
    contrastive: bool = True  # second head: cosine to frozen text embeddings
    prior_bias: bool = False  # classifier bias starts at the logit of each label's training prevalence
    prompt: str = PROMPT


@dataclass(frozen=True)
class Train:
    """Optimisation, imbalance and regularisation."""

    epochs: int = 5
    batch_size: int = 128  # global: over all processes and accumulation steps
    accumulate: int = 1
    draws_per_epoch: int = 0  # frames drawn per epoch; 0 = as many as there are training frames
    sampler: Literal["none", "inverse", "sqrt"] = "sqrt"  # weight of a frame by its rarest active label's frequency
    loss: Literal["bce", "focal", "asymmetric"] = "asymmetric"
    gamma_pos: float = 1.0
    gamma_neg: float = 4.0
    shift: float = 0.05  # probability shift of easy negatives
    max_pos_weight: float = 100.0  # neg/pos clipped to [1, this]; 1 = off
    contrastive_weight: float = 0.4
    mixup: float = 0.3  # Beta(alpha, alpha); 0 = off
    mixup_target: Literal["labels", "losses"] = "labels"  # what is mixed; asymmetric loss is improper on soft labels
    smoothing: float = 0.05
    ema: float = 0.999  # decay; 0 = off
    augment: Literal["none", "paper", "endoscopy"] = "paper"
    lr_backbone: float = 9e-5  # OneCycle peak
    lr_heads: float = 3e-4
    weight_decay: float = 5e-4
    beta1: float = 0.9
    beta2: float = 0.999
    warmup: float = 0.15  # share of steps before the peak
    clip: float = 1.0  # gradient norm
    precision: Literal["auto", "no", "bf16", "fp16"] = "auto"  # auto: bf16 where the GPU has it, else fp32
    patience: int = 0  # epochs without a better validation score before stopping; 0 = never
    max_bad_steps: int = 20  # steps skipped for a non-finite loss before the run stops
    checkpoint_steps: int = 500  # steps between checkpoints within an epoch; 0 = only at an epoch's end
    gpus: int = 1  # processes started by notebook 03
    parallel_folds: int = 1  # folds trained side by side in a process each: a tiny model on a CPU
    threads: int = 0  # CPU threads of torch; 0 = its own choice. A tiny model is several times faster on 1
    seed: int = 42


@dataclass(frozen=True)
class Predict:
    """Frame scores of whole studies."""

    batch_size: int = 256
    checkpoint: Literal["best", "last"] = "best"  # of each fold; best: by validation AP
    step: int = 1  # predict every n-th frame
    flips: bool = False  # mean over the four mirror images
    embeddings: bool = True
    precision: Literal["auto", "no", "bf16", "fp16"] = "auto"


@dataclass(frozen=True)
class Threshold:
    """Per-class thresholds, fitted out of fold."""

    method: Literal["paper", "f1", "event"] = "paper"
    low_rare: float = 0.05  # `paper`: grid start for classes under `rare_support`
    low: float = 0.15
    high: float = 0.85
    step: float = 0.02
    rare_support: float = 0.01  # share of positive frames
    default: float = 0.2  # class without positives
    min_positives: int = 1  # fewer positive frames than this: `default` is used, and said


@dataclass(frozen=True)
class Decode:
    """Scores to events."""

    method: Literal["paper", "ours", "screen"] = "paper"
    median: int = 7  # frames, odd
    max_gap: int = 5  # frames filled
    min_length: int = 3  # frames kept
    compose: Literal["label_set", "per_label", "auto"] = "label_set"  # auto: chosen per label, out of fold
    screen_recall: float = 0.9  # `screen`: share of a study's findings that the ranked list, cut there, touches
    screen_share: float = 0.0  # `screen`: cut at this share of a study's frames to look at instead; 0 = by recall
    folds: int = 5  # of the out-of-fold fit, by study
    seed: int = 42


@dataclass(frozen=True)
class Phantom:
    """The rendered demo data set; written by stage 00 when `build` is true."""

    build: bool = False
    seed: int = 7
    pillcam: int = 6  # studies
    olympus: int = 3
    navicam: int = 2  # test studies
    frames: int = 450  # mean frames per study
    size: int = 0  # px of every frame; 0 = each system's own (512, 336, 480)


@dataclass(frozen=True)
class Submission:
    """Where the events of the test studies go."""

    folder: str = "submissions"
    name: str = ""  # <folder>/<name>.json; "" = the config's name


@dataclass(frozen=True)
class Config:
    """Everything that decides a run. `name` is the config file's stem."""

    name: str = "default"
    data: Data = field(default_factory=Data)
    split: Split = field(default_factory=Split)
    model: Model = field(default_factory=Model)
    train: Train = field(default_factory=Train)
    predict: Predict = field(default_factory=Predict)
    threshold: Threshold = field(default_factory=Threshold)
    decode: Decode = field(default_factory=Decode)
    phantom: Phantom = field(default_factory=Phantom)
    submission: Submission = field(default_factory=Submission)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def load_config(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Read a TOML file; `overrides` are `section.key=value` with TOML values (`train.epochs=1`)."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config; choose one of configs/*.toml") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for item in overrides:
        _override(table, item)
    table.setdefault("name", path.stem)
    return config_from_dict(table, str(path))


def config_from_dict(table: dict[str, Any], where: str = "config") -> Config:
    config = _build(Config, table, where, "")
    _check(config, where)
    return config


def _override(table: dict, item: str) -> None:
    key, sep, text = item.partition("=")
    if not sep:
        raise ConfigError(f"override {item!r}: write section.key=value")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string: decode.method=ours
    *sections, last = key.strip().split(".")
    for name in sections:
        table = table.setdefault(name, {})
    table[last] = value


def _build(cls: type, table: Any, where: str, prefix: str) -> Any:
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: [{prefix}] must be a table, not {table!r}")
    hints = get_type_hints(cls)
    values = {}
    for key, value in table.items():
        name = f"{prefix}.{key}" if prefix else key
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(hints))}"
            raise ConfigError(f"{where}: unknown key {name!r}{hint}")
        kind = hints[key]
        values[key] = (
            _build(kind, value, where, name) if dataclasses.is_dataclass(kind) else _typed(kind, value, where, name)
        )
    return cls(**values)


def _typed(kind: Any, value: Any, where: str, name: str) -> Any:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ConfigError(f"{where}: {name} = {value!r} is not one of {', '.join(map(repr, get_args(kind)))}")
        return value
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{where}: {name} = {value!r} must be of type {kind.__name__}")
    return value


def _check(config: Config, where: str) -> None:
    """Values that no later stage could use."""
    d, s, m, t, p, h, c, f = (
        getattr(config, k) for k in ("data", "split", "model", "train", "predict", "threshold", "decode", "phantom")
    )
    rules = [
        (d.frame_step >= 1, "data.frame_step must be at least 1"),
        (0 <= d.max_bad_share < 1, "data.max_bad_share must lie in [0, 1)"),
        (d.cache_size >= 16, "data.cache_size must be at least 16 px"),
        (1 <= d.cache_quality <= 100, "data.cache_quality must lie in 1..100"),
        (s.folds >= 2, "split.folds must be at least 2"),
        (m.image_size >= 0, "model.image_size must be positive, or 0 for the source's own"),
        (m.reduction >= 1, "model.reduction must be at least 1"),
        (0 <= m.dropout < 1, "model.dropout must lie in [0, 1)"),
        (
            m.attention != "preserve" or 0 < m.lambda_init <= 0.5,
            "model.lambda_init must lie in (0, 0.5] for 'preserve'",
        ),
        ("{label}" in m.prompt, "model.prompt must contain {label}"),
        (t.epochs >= 1 and t.batch_size >= 2 and t.accumulate >= 1, "train.epochs, batch_size, accumulate: too small"),
        (t.batch_size % (t.accumulate * max(t.gpus, 1)) == 0, "train.batch_size must divide by accumulate * gpus"),
        (t.checkpoint_steps >= 0 and t.threads >= 0, "train.checkpoint_steps and threads must not be negative"),
        (t.parallel_folds >= 1, "train.parallel_folds must be at least 1"),
        (t.draws_per_epoch >= 0 and t.max_pos_weight >= 1, "train.draws_per_epoch >= 0 and max_pos_weight >= 1"),
        (
            0 <= t.ema < 1 and 0 <= t.smoothing < 1 and 0 <= t.shift < 1,
            "train.ema, smoothing, shift must lie in [0, 1)",
        ),
        (0 < t.warmup < 1, "train.warmup must lie in (0, 1)"),
        (p.batch_size >= 1 and p.step >= 1, "predict.batch_size and predict.step must be at least 1"),
        (0 < h.low_rare <= h.high < 1 and 0 < h.low <= h.high and h.step > 0, "threshold grid is empty"),
        (c.median >= 1 and c.median % 2 == 1, "decode.median must be odd"),
        (c.max_gap >= 0 and c.min_length >= 1, "decode.max_gap >= 0 and decode.min_length >= 1"),
        (0 < c.screen_recall <= 1, "decode.screen_recall must lie in (0, 1]"),
        (0 <= c.screen_share <= 1, "decode.screen_share must lie in [0, 1]; 0 cuts by decode.screen_recall"),
        (c.folds >= 2, "decode.folds must be at least 2"),
        (
            0 <= f.pillcam <= 50 and 0 <= f.olympus <= 20 and f.navicam >= 0,
            "phantom: at most 50 pillcam, 20 olympus",
        ),
        (
            f.frames >= 40 and f.size >= 0 and f.seed >= 0,
            "phantom: frames >= 40, size and seed >= 0",
        ),
    ]
    for holds, message in rules:
        if not holds:
            raise ConfigError(f"{where}: {message}")
