"""Pretrained weights: where they come from, whether they are what they claim to be, and loading them without a network.

A source is `hf-hub:OWNER/NAME` (at a pinned revision) or a folder in the hub's layout: BiomedCLIP brought by
`rarevision fetch FOLDER`, or its twin (twin.py). Folders need no network at all.
"""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import open_clip
import timm
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from torch import nn

from rarevision.config import Model
from rarevision.errors import UserError
from rarevision.files import atomic, sha256

REPOSITORY = "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224"
REVISION = "9f341de24bfb00180f1b847274256e9b65a3a32e"
WEIGHTS = "open_clip_pytorch_model.bin"
WEIGHTS_BYTES = 783_705_670
WEIGHTS_SHA256 = "52cc993c5c5ff962bd0c60931874bc001e7e9b41666a385530f4a036294576be"
TEXT_REPOSITORY = "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract"  # only its config.json is used
TEXT_REVISION = "d673b8835373c6fa116d6d8006b33d48734e305d"
CONFIG = "open_clip_config.json"
LOADING = (  # what torch, open_clip and transformers raise for files that are torn, of another kind, or do not fit
    *(RuntimeError, ValueError, OSError, EOFError, KeyError, TypeError, AttributeError),
    pickle.UnpicklingError,
)
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")


class ModelError(UserError):
    """Weights or a model folder that cannot be used; the message names the file, what was expected and found."""


def load_weights(model: Model) -> tuple[nn.Module, str]:
    """The whole CLIP model in fp32, through open_clip, and the folder it came from. Text tower included."""
    if model.source.startswith("hf-hub:"):
        folder, text = from_hub(model.source.removeprefix("hf-hub:"), model.revision)
    else:
        folder = text = Path(model.source)
        check_weights(folder)
    config = _config(folder)
    overrides: dict[str, Any] = {"vision_cfg": dict(config["vision_cfg"]), "text_cfg": dict(config["text_cfg"])}
    if "hf_model_name" in config["text_cfg"]:  # open_clip would ask the hub for the text tower's config
        overrides["text_cfg"].update(hf_model_name=str(text), hf_model_pretrained=False)
    name = config["vision_cfg"].get("timm_model_name", "")
    if name.startswith("local-dir:"):  # a trunk described in the folder itself
        overrides["vision_cfg"]["timm_model_name"] = f"local-dir:{folder / name.removeprefix('local-dir:')}"
    try:
        clip = open_clip.create_model(
            f"local-dir:{folder}", require_pretrained=True, force_image_size=model.image_size or None, **overrides
        )
    except LOADING as error:
        file = folder / WEIGHTS
        facts = f"{file.stat().st_size:,} bytes, sha256 {sha256(file)}" if file.is_file() else "missing"
        raise ModelError(f"{folder}: not loadable as {CONFIG} describes it ({WEIGHTS}: {facts}): {error}") from error
    return clip, str(folder)


def from_hub(repository: str, revision: str) -> tuple[Path, Path]:
    """A repository at a revision, from the hub or its cache: folder of the model, folder of the text tower's config."""

    def get(repo: str, file: str, at: str | None) -> Path:
        return Path(huggingface_hub.hf_hub_download(repo, file, revision=at or None))

    try:
        folder = get(repository, CONFIG, revision).parent
        for file in (WEIGHTS, *TOKENIZER):
            get(repository, file, revision)
        name = _config(folder)["text_cfg"].get("hf_model_name")
        text = get(name, "config.json", TEXT_REVISION if name == TEXT_REPOSITORY else None).parent if name else folder
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"hf-hub:{repository} at revision {revision}: {error}. Without a connection: run "
            "`rarevision fetch FOLDER` where there is one, copy FOLDER here and set model.source to it"
        ) from error
    check_weights(folder, text)
    return folder, text


def fetch_weights(folder: str | Path) -> None:
    """Bring BiomedCLIP and its text tower's config to a folder that needs no network, and check it."""
    folder = Path(folder)
    for file in (CONFIG, WEIGHTS, *TOKENIZER):
        huggingface_hub.hf_hub_download(REPOSITORY, file, revision=REVISION, local_dir=folder)
    name = _config(folder)["text_cfg"]["hf_model_name"]
    text = huggingface_hub.hf_hub_download(name, "config.json", revision=TEXT_REVISION)
    with atomic(folder / "config.json") as temporary:
        shutil.copyfile(text, temporary)
    check_weights(folder)


def check_weights(folder: str | Path, text: str | Path | None = None) -> str:
    """Raise `ModelError` unless the folder is complete and its files are the ones they should be; else a line about it.

    A folder whose config is BiomedCLIP's claims to be the original and is held against the pinned size and sha256; a
    folder with SHA256SUMS against that. text: folder of the text tower's config.json, where it is another.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; `rarevision fetch FOLDER` brings BiomedCLIP, "
                         "`rarevision twin FOLDER` writes its small twin")  # fmt: skip
    config = _config(folder)
    needed = [folder / WEIGHTS]
    if "hf_model_name" in config["text_cfg"]:
        needed += [Path(text or folder) / "config.json", *(folder / file for file in TOKENIZER)]
    absent = [str(file) for file in needed if not file.is_file()]
    if absent:
        raise ModelError(f"{folder}: missing {', '.join(absent)}; `rarevision fetch FOLDER` brings all")
    for file in needed:
        if file.suffix == ".json":
            _json(file)
    original = (config["text_cfg"].get("hf_model_name"), config["vision_cfg"].get("timm_model_name")) == (
        TEXT_REPOSITORY,
        "vit_base_patch16_224",
    )
    if original:
        found = (folder / WEIGHTS).stat().st_size
        if found != WEIGHTS_BYTES:
            raise ModelError(f"{folder / WEIGHTS}: expected {WEIGHTS_BYTES:,} bytes (BiomedCLIP), found {found:,}; "
                             "fetch it again")  # fmt: skip
        _compare(folder / WEIGHTS, WEIGHTS_SHA256, "BiomedCLIP's")
    sums = folder / "SHA256SUMS"
    if sums.is_file() and not original:
        for line in sums.read_text().splitlines():
            expected, _, name = line.partition("  ")
            if not (folder / name).is_file():
                raise ModelError(f"{folder / name}: named in SHA256SUMS, but missing")
            _compare(folder / name, expected, "by SHA256SUMS")
    kind = "BiomedCLIP, the original" if original else "every file as SHA256SUMS says" if sums.is_file() else "complete"
    return f"{folder}: {kind}; {config['embed_dim']}-d, {config['vision_cfg'].get('image_size', '?')} px"


def _compare(file: Path, expected: str, whose: str) -> None:
    found = sha256(file)
    if found != expected:
        raise ModelError(f"{file}: expected sha256 {expected} ({whose}), found {found} ({file.stat().st_size:,} bytes)")


def _config(folder: Path) -> dict[str, Any]:
    """The `model_cfg` of open_clip_config.json."""
    file = folder / CONFIG
    try:
        config = _json(file)["model_cfg"]
        absent = {"embed_dim", "vision_cfg", "text_cfg"} - config.keys()
    except FileNotFoundError:
        raise ModelError(f"{file}: missing; a model folder holds {CONFIG}, {WEIGHTS}, tokenizer files") from None
    except (KeyError, TypeError, AttributeError):
        raise ModelError(f"{file}: expected an object with `model_cfg`") from None
    if absent:
        raise ModelError(f"{file}: model_cfg lacks {', '.join(sorted(absent))}")
    return config


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{file}: not valid JSON: {error}") from None


def clip_trunk(clip: nn.Module, folder: str) -> tuple[nn.Module, dict[str, Any]]:
    """The timm trunk of a CLIP model and what `restore` needs to build it again."""
    vision = _config(Path(folder))["vision_cfg"]
    if not hasattr(clip.visual, "trunk"):
        raise ModelError(f"{folder}: its image tower {type(clip.visual).__name__} is not a timm model")
    if vision.get("timm_proj", "linear") not in ("linear", "none", ""):
        raise ModelError(f"{folder}: projection {vision['timm_proj']!r} of the image tower is not supported")
    name = vision["timm_model_name"]
    if name.startswith("local-dir:"):
        name = f"local-dir:{Path(folder) / name.removeprefix('local-dir:')}"
    found = _architecture(name)
    if vision.get("timm_pool"):
        found["arguments"]["global_pool"] = vision["timm_pool"]
    cfg = clip.visual.preprocess_cfg
    size = clip.visual.image_size[0]
    has_projection = any(isinstance(layer, nn.Linear) for layer in clip.visual.head)
    return clip.visual.trunk, found | {
        "image_size": size,
        "embed_dim": clip.visual.head[-1].out_features if has_projection else 0,
        "mean": list(cfg["mean"]),
        "std": list(cfg["std"]),
    }


def timm_trunk(name: str, image_size: int) -> tuple[nn.Module, dict[str, Any]]:
    """A timm model as trunk: pretrained where the name says which weights, random where it is the architecture alone.

    `vit_small_patch14_dinov2.lvd142m` and `hf-hub:...` are fetched or read from the hub's cache, `local-dir:FOLDER`
    from config.json and model.safetensors there; `vit_small_patch14_dinov2` is random.
    """
    pretrained = "." in name or ":" in name
    size = {"img_size": image_size} if image_size else {}
    try:
        trunk = timm.create_model(name, pretrained=pretrained, num_classes=0, **size)
    except LOADING as error:
        raise ModelError(f"model.trunk {name!r}: {error}") from error
    if not hasattr(trunk, "patch_embed"):
        raise ModelError(f"model.trunk {name!r}: {type(trunk).__name__} is not a vision transformer")
    cfg = trunk.pretrained_cfg
    found = _architecture(name if name.startswith("local-dir:") else cfg["architecture"])
    return trunk, found | {
        "image_size": trunk.patch_embed.img_size[0],
        "mean": list(cfg["mean"]),
        "std": list(cfg["std"]),
    }


def _architecture(name: str) -> dict[str, Any]:
    """Architecture and size arguments of a timm name; `img_size` is kept apart."""
    if not name.startswith("local-dir:"):
        return {"architecture": name, "arguments": {}}
    config = _json(Path(name.removeprefix("local-dir:")) / "config.json")
    arguments = {k: v for k, v in config.get("model_args", {}).items() if k != "img_size"}
    return {"architecture": config["architecture"], "arguments": arguments}
