"""One typed configuration: the commented table of defaults, read from TOML, never changed after.

The defaults are the published pipeline's (`configs/paper.toml` spells them out); a config file holds only what differs.
"""

import contextlib
import dataclasses
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from rarevision.errors import UserError, nearest
from rarevision.files import read_toml
from rarevision.labels import PROMPT

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)  # "3" is no number, and no key is ignored
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=STRICT)
class Data:
    """Where frames and labels are, and how they are read. Paths are relative to the project folder."""

    root: str = "data/galar"  # training studies, in Galar's layout
    test_root: str = "data/rare-vision-test"  # studies to predict: <study>/frame_*.png
    test_truth: str = ""  # events JSON of the test studies, where known (the demo's); "" = unknown
    labels: str = ""  # labels folder below root; "" = the newest folder whose name contains "Labels"
    missing_labels: Literal["error", "zero"] = "error"  # a label column that a study's CSV lacks
    frame_step: PositiveInt = 5  # train on every n-th labelled frame (published: 5)
    max_bad_share: Share = 0.0  # share of undecodable frames tolerated per study before the run stops
    cache: bool = True  # decode each PNG once into a tar of JPEGs per study
    cache_root: str = "data/cache"  # where the tars lie
    cache_size: Annotated[int, Field(ge=16)] = 256  # px, shorter side of a cached frame
    cache_quality: Annotated[int, Field(ge=1, le=100)] = 95  # JPEG; chroma is never subsampled: colour is the finding
    field_of_view: Literal["full", "crop"] = "full"  # crop: to the capsule's round or octagonal field
    harmonise: Literal["none", "colour"] = "none"  # colour: every study mapped to one reference statistic
    workers: int = -1  # decoding processes; -1 = one per core


@dataclass(frozen=True, config=STRICT)
class Split:
    """Studies to folds. A study (one patient) is never divided."""

    scheme: Literal["article", "published", "balanced"] = "published"
    # article: 61-80 held out, `folds` folds on 1-60; published: 85/15, one validation part; balanced: `folds`
    # folds over all studies, rare labels spread
    folds: Annotated[int, Field(ge=2)] = 5
    seed: int = 42


@dataclass(frozen=True, config=STRICT)
class Model:
    """Backbone, attention form and the two heads."""

    source: str = "hf-hub:microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224"  # hub, open_clip folder or ""
    revision: str = "9f341de24bfb00180f1b847274256e9b65a3a32e"  # hub revision; ignored for folders
    trunk: str = ""  # "" = the source's own image tower; else a timm model: `name.tag` pretrained, `name` random
    trunk_weights: str = ""  # the trunk's weights from this file (.safetensors, .pth) instead; docs/backbones.md
    image_size: NonNegativeInt = 0  # px; 0 = the source's (or the trunk's) own, else positions are interpolated
    attention: Literal["plain", "published", "paper", "difftransformer", "preserve"] = "paper"
    groups: Literal["halves", "adjacent"] = "halves"  # which heads form the two groups of `paper`
    lambda_init: float = 0.8  # `preserve` allows at most 0.5
    reduction: PositiveInt = 16  # excitation block's bottleneck
    dropout: Share = 0.4
    contrastive: bool = True  # second head: cosine to frozen text embeddings; off by itself without a source
    prior_bias: bool = False  # classifier bias starts at the logit of each label's training prevalence
    prompt: str = PROMPT


@dataclass(frozen=True, config=STRICT)
class Train:
    """Optimisation, imbalance and regularisation."""

    epochs: PositiveInt = 5
    batch_size: Annotated[int, Field(ge=2)] = 128  # global: over all processes and accumulation steps
    accumulate: PositiveInt = 1
    draws_per_epoch: NonNegativeInt = 0  # frames drawn per epoch; 0 = as many as there are training frames
    sampler: Literal["none", "inverse", "sqrt"] = "sqrt"  # weight of a frame by its rarest active label's frequency
    loss: Literal["bce", "focal", "asymmetric"] = "asymmetric"
    gamma_pos: float = 1.0
    gamma_neg: float = 4.0
    shift: Share = 0.05  # probability shift of easy negatives
    max_pos_weight: Annotated[float, Field(ge=1)] = 100.0  # neg/pos clipped to [1, this]; 1 = off
    contrastive_weight: float = 0.4
    mixup: float = 0.3  # Beta(alpha, alpha); 0 = off
    mixup_target: Literal["labels", "losses"] = "labels"  # what is mixed; asymmetric loss is improper on soft labels
    smoothing: Share = 0.05
    ema: Share = 0.999  # decay; 0 = off
    augment: Literal["none", "paper", "endoscopy"] = "paper"
    lr_backbone: float = 9e-5  # OneCycle peak
    lr_heads: float = 3e-4
    weight_decay: float = 5e-4
    beta1: float = 0.9
    beta2: float = 0.999
    warmup: Annotated[float, Field(gt=0, lt=1)] = 0.15  # share of steps before the peak
    clip: float = 1.0  # gradient norm
    precision: Literal["auto", "no", "bf16", "fp16"] = "auto"  # auto: bf16 where the GPU has it, else fp32
    patience: int = 0  # epochs without a better validation score before stopping; 0 = never
    max_bad_steps: int = 20  # steps skipped for a non-finite loss before the run stops
    checkpoint_steps: NonNegativeInt = 500  # steps between checkpoints within an epoch; 0 = only at an epoch's end
    gpus: PositiveInt = 1  # processes started by notebook 03
    parallel_folds: PositiveInt = 1  # folds trained side by side in a process each: a tiny model on a CPU
    threads: NonNegativeInt = 0  # CPU threads of torch; 0 = its own choice. A tiny model is several times faster on 1
    seed: int = 42


@dataclass(frozen=True, config=STRICT)
class Predict:
    """Frame scores of whole studies."""

    batch_size: PositiveInt = 256
    checkpoint: Literal["best", "last"] = "best"  # of each fold; best: by validation AP
    step: PositiveInt = 1  # predict every n-th frame
    flips: bool = False  # mean over the four mirror images
    embeddings: bool = True
    precision: Literal["auto", "no", "bf16", "fp16"] = "auto"


@dataclass(frozen=True, config=STRICT)
class Threshold:
    """Per-class thresholds, fitted out of fold."""

    method: Literal["paper", "f1", "event"] = "paper"
    low_rare: PositiveFloat = 0.05  # `paper`: grid start for classes under `rare_support`
    low: PositiveFloat = 0.15
    high: Annotated[float, Field(lt=1)] = 0.85
    step: PositiveFloat = 0.02
    rare_support: float = 0.01  # share of positive frames
    default: float = 0.2  # class without positives
    min_positives: int = 1  # fewer positive frames than this: `default` is used, and said


@dataclass(frozen=True, config=STRICT)
class Decode:
    """Scores to events."""

    method: Literal["paper", "ours", "screen"] = "paper"
    median: PositiveInt = 7  # frames, odd
    max_gap: NonNegativeInt = 5  # frames filled
    min_length: PositiveInt = 3  # frames kept
    compose: Literal["label_set", "per_label", "auto"] = "label_set"  # auto: chosen per label, out of fold
    choose: bool = True  # `ours`: per label silence, a threshold or the learned decoder; false: all learned
    distinct: bool = False  # `ours`: at most one event per stretch and label
    screen_recall: Annotated[float, Field(gt=0, le=1)] = 0.9  # `screen`: its list touches this share of the findings
    screen_share: Annotated[float, Field(ge=0, le=1)] = 0.0  # `screen`: its list is this share of frames; 0 = by recall
    folds: Annotated[int, Field(ge=2)] = 5  # of the out-of-fold fit, by study
    seed: int = 42


@dataclass(frozen=True, config=STRICT)
class Phantom:
    """The rendered demo data set; written by stage 00 when `build` is true."""

    build: bool = False
    seed: NonNegativeInt = 7
    pillcam: Annotated[int, Field(ge=0, le=50)] = 6  # studies
    olympus: Annotated[int, Field(ge=0, le=20)] = 3
    navicam: NonNegativeInt = 2  # test studies
    frames: Annotated[int, Field(ge=40)] = 450  # mean frames per study
    size: NonNegativeInt = 0  # px of every frame; 0 = each system's own (512, 336, 480)


@dataclass(frozen=True, config=STRICT)
class Submission:
    """Where the events of the test studies go."""

    folder: str = "submissions"
    name: str = ""  # <folder>/<name>.json; "" = the config's name


@dataclass(frozen=True, config=STRICT)
class Config:
    """Everything that decides a run. `name` is the config file's stem."""

    name: str = "default"
    data: Data = Data()
    split: Split = Split()
    model: Model = Model()
    train: Train = Train()
    predict: Predict = Predict()
    threshold: Threshold = Threshold()
    decode: Decode = Decode()
    phantom: Phantom = Phantom()
    submission: Submission = Submission()

    def __post_init__(self) -> None:
        m, t, h = self.model, self.train, self.threshold
        for holds, rule in (
            (m.attention != "preserve" or 0 < m.lambda_init <= 0.5, "for 'preserve', model.lambda_init is in (0, 0.5]"),
            (m.trunk or (m.source and not m.trunk_weights), "no model.source, or model.trunk_weights: set model.trunk"),
            ("{label}" in m.prompt, "model.prompt must contain {label}"),
            (t.batch_size % (t.accumulate * t.gpus) == 0, "train.batch_size must divide by accumulate * gpus"),
            (max(h.low, h.low_rare) <= h.high, "threshold.low and low_rare must not exceed high"),
            (self.decode.median % 2 == 1, "decode.median must be odd"),
        ):
            if not holds:
                raise ValueError(rule)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file; `overrides` are `section.key=value` with TOML values (`train.epochs=1`)."""
    table = read_toml(path)
    for item in overrides:
        table = merged(table, _override(item))
    return config_from_dict({"name": Path(path).stem, **table}, path)


def config_from_dict(table: dict[str, Any], source: str | Path = "config") -> Config:
    """Settings from a table of tables, checked; an error names their source."""
    try:
        # as JSON: pydantic's strict mode takes a table for a section there, and only there
        return TypeAdapter(Config).validate_json(json.dumps(table, default=str))
    except ValidationError as error:
        raise _refusal(error, source) from None


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two tables of tables as one; where both have a value, that of `above` holds."""
    both = {k: merged(below[k], v) for k, v in above.items() if isinstance(v, dict) and isinstance(below.get(k), dict)}
    return below | above | both


def _override(item: str) -> dict[str, Any]:
    key, sign, text = item.partition("=")
    for value in (text, json.dumps(text, ensure_ascii=False)):  # a bare word is a string: decode.method=ours
        with contextlib.suppress(tomllib.TOMLDecodeError):
            return tomllib.loads(f"{key}{sign}{value}")
    raise UserError(f"override {item!r}: write section.key=value")


def _refusal(error: ValidationError, source: str | Path) -> UserError:
    """The first fault that pydantic found, in this project's words."""
    fault = error.errors(include_url=False)[0]
    name = ".".join(map(str, fault["loc"]))
    if fault["type"] == "value_error":  # a rule between settings
        return UserError(str(fault["ctx"]["error"]), file=source)
    if fault["type"] != "unexpected_keyword_argument":
        reason = fault["msg"].replace("Input should", "must").replace("an object", "a table")
        return UserError(f"{name} = {fault['input']!r} {reason}", file=source)
    *section, key = map(str, fault["loc"])
    known = [f.name for f in dataclasses.fields(getattr(Config, *section) if section else Config)]
    return UserError(f"unknown key {name!r}", file=source, remedy=nearest(key, known))
