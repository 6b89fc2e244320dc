"""Pretrained weights: where they come from, whether they are what they claim to be, and loading them without a network.

A source is `hf-hub:OWNER/NAME` (at a pinned revision) or a folder in the hub's layout: BiomedCLIP brought by
`rarevision fetch FOLDER`, or its small twin, written by `rarevision twin FOLDER`. Folders need no network at all.
Weights are read as tensors only (`weights_only`): a file cannot bring code with it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import open_clip
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from torch import nn

from rarevision.config import Model
from rarevision.errors import UserError
from rarevision.files import atomic, sha256

REPOSITORY = "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224"
REVISION = "9f341de24bfb00180f1b847274256e9b65a3a32e"
WEIGHTS_BYTES = 783_705_670
WEIGHTS_SHA256 = "52cc993c5c5ff962bd0c60931874bc001e7e9b41666a385530f4a036294576be"
TEXT_REPOSITORY = "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract"  # only its config.json is used
TEXT_REVISION = "d673b8835373c6fa116d6d8006b33d48734e305d"
CONFIG = "open_clip_config.json"
WEIGHTS, SAFETENSORS = "open_clip_pytorch_model.bin", "open_clip_model.safetensors"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")


class ModelError(UserError):
    """Weights or a model folder that cannot be used; the message names the file, what was expected and found."""


def load_weights(model: Model) -> tuple[nn.Module, str]:
    """The whole CLIP model in fp32, text tower included, and the folder it came from."""
    if model.source.startswith("hf-hub:"):
        folder, text = from_hub(model.source.removeprefix("hf-hub:"), model.revision)
    else:
        folder = text = Path(model.source)
    check_weights(folder, text)
    config = read_config(folder)
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
    except (
        Exception
    ) as error:  # torch, open_clip and transformers raise many kinds for files that are torn or do not fit
        file = weights_file(folder)
        facts = f"{file.stat().st_size:,} bytes, sha256 {sha256(file)}" if file.is_file() else "missing"
        cause = f"not loadable as {CONFIG} describes it ({file.name}: {facts}): {error}"
        raise ModelError(cause, file=folder) from error
    return clip, str(folder)


def from_hub(repository: str, revision: str) -> tuple[Path, Path]:
    """A repository at a revision, from the hub or its cache: folder of the model, folder of the text tower's config."""

    def get(repo: str, file: str, at: str | None) -> Path:
        return Path(huggingface_hub.hf_hub_download(repo, file, revision=at or None))

    try:
        folder = get(repository, CONFIG, revision).parent
        for file in (WEIGHTS, *TOKENIZER):
            get(repository, file, revision)
        name = read_config(folder)["text_cfg"].get("hf_model_name")
        text = get(name, "config.json", TEXT_REVISION if name == TEXT_REPOSITORY else None).parent if name else folder
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"{error}. Without a connection: run `rarevision fetch FOLDER` where there is one, "
            "copy FOLDER here and set model.source to it",
            file=f"hf-hub:{repository} at revision {revision}",
        ) from error
    return folder, text


def fetch_weights(folder: str | Path) -> None:
    """Bring BiomedCLIP and its text tower's config to a folder that needs no network, and check it."""
    folder = Path(folder)
    for file in (CONFIG, WEIGHTS, *TOKENIZER):
        huggingface_hub.hf_hub_download(REPOSITORY, file, revision=REVISION, local_dir=folder)
    name = read_config(folder)["text_cfg"]["hf_model_name"]
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
        raise ModelError("no such folder", file=folder, remedy="`rarevision fetch FOLDER` brings BiomedCLIP, "
                         "`rarevision twin FOLDER` writes its small twin")  # fmt: skip
    config = read_config(folder)
    vision, language = config["vision_cfg"], config["text_cfg"]
    held = weights_file(folder)
    needed = [held]
    if "hf_model_name" in language:
        needed += [Path(text or folder) / "config.json", *(folder / file for file in TOKENIZER)]
    if absent := [str(file) for file in needed if not file.is_file()]:
        raise ModelError(f"missing {', '.join(absent)}", file=folder, remedy="`rarevision fetch FOLDER` brings all")
    for file in needed:
        if file.suffix == ".json":
            read_json(file)
    sums, kind = folder / "SHA256SUMS", "complete"
    if (language.get("hf_model_name"), vision.get("timm_model_name")) == (TEXT_REPOSITORY, "vit_base_patch16_224"):
        if (found := held.stat().st_size) != WEIGHTS_BYTES:
            raise ModelError(f"expected {WEIGHTS_BYTES:,} bytes (BiomedCLIP), found {found:,}", file=held,
                             remedy="fetch it again")  # fmt: skip
        compare(held, WEIGHTS_SHA256, "BiomedCLIP's")
        kind = "BiomedCLIP, the original"
    elif sums.is_file():
        for line in sums.read_text().splitlines():
            expected, _, name = line.partition("  ")
            compare(folder / name, expected, "by SHA256SUMS")
        kind = "every file as SHA256SUMS says"
    return f"{folder}: {kind}; {config['embed_dim']}-d, {vision.get('image_size', '?')} px"


def weights_file(folder: Path) -> Path:
    """The file of weights that open_clip reads in a folder: safetensors, where there are any."""
    safe = folder / SAFETENSORS
    return safe if safe.is_file() else folder / WEIGHTS


def compare(file: Path, expected: str, whose: str) -> None:
    if not file.is_file():
        raise ModelError("named in SHA256SUMS, but missing", file=file)
    if (found := sha256(file)) != expected:
        facts = f"expected sha256 {expected} ({whose}), found {found} ({file.stat().st_size:,} bytes)"
        raise ModelError(facts, file=file)


def read_config(folder: Path) -> dict[str, Any]:
    """The `model_cfg` of a folder's open_clip_config.json."""
    file = folder / CONFIG
    if not file.is_file():
        remedy = "a folder in timm's format goes into model.trunk as local-dir:FOLDER"
        raise ModelError(
            f"missing; a model folder holds {CONFIG}, {WEIGHTS}, tokenizer files", file=file, remedy=remedy
        )
    config = read_json(file)
    config = config.get("model_cfg") if isinstance(config, dict) else None
    if not isinstance(config, dict):
        raise ModelError("expected an object with `model_cfg`", file=file)
    if absent := {"embed_dim", "vision_cfg", "text_cfg"} - config.keys():
        raise ModelError(f"model_cfg lacks {', '.join(sorted(absent))}", file=file)
    return config


def read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except ValueError as error:  # not JSON, or not UTF-8
        raise ModelError(f"not valid JSON: {error}", file=file) from None
