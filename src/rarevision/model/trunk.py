"""The trunk: the image transformer under the heads, from a CLIP model or from timm, and what builds it again.

Both functions return a timm model and its part of the recipe, which is JSON: `architecture` (a timm name) and its
`arguments`, `image_size` (px), `embed_dim` (width of the projection that follows; 0 without one), and `mean` and `std`
of the pixels 0..1 that it was pretrained on. `build_again` is the way back, without any pretrained weights.
"""

from pathlib import Path
from typing import Any

import timm
from torch import nn

from rarevision.model.weights import ModelError, read_config, read_json


def clip_trunk(clip: nn.Module, folder: str) -> tuple[nn.Module, dict[str, Any]]:
    """The image tower of a CLIP model that was loaded from a folder."""
    vision = read_config(Path(folder))["vision_cfg"]
    tower = clip.visual
    if not hasattr(tower, "trunk"):
        raise ModelError(f"its image tower {type(tower).__name__} is not a timm model", file=folder)
    if vision.get("timm_proj", "linear") not in ("linear", "none", ""):
        raise ModelError(f"projection {vision['timm_proj']!r} of the image tower is not supported", file=folder)
    name = vision["timm_model_name"]
    if name.startswith("local-dir:"):
        name = f"local-dir:{Path(folder) / name.removeprefix('local-dir:')}"
    recipe = architecture(name)
    if vision.get("timm_pool"):
        recipe["arguments"]["global_pool"] = vision["timm_pool"]
    projected = any(isinstance(layer, nn.Linear) for layer in tower.head)
    recipe |= {"image_size": tower.image_size[0], "embed_dim": tower.head[-1].out_features if projected else 0}
    return tower.trunk, recipe | pixel_statistics(tower.preprocess_cfg)


def timm_trunk(name: str, image_size: int) -> tuple[nn.Module, dict[str, Any]]:
    """A timm model: pretrained where the name says which weights, random where it is the architecture alone.

    `vit_small_patch14_dinov2.lvd142m` and `hf-hub:...` are fetched or read from the hub's cache, `local-dir:FOLDER`
    from config.json and model.safetensors there; `vit_small_patch14_dinov2` is random. image_size 0: the model's own.
    """
    size = {"img_size": image_size} if image_size else {}
    try:
        trunk = timm.create_model(name, pretrained="." in name or ":" in name, num_classes=0, **size)
    except Exception as error:  # timm, torch and the hub raise many kinds for names and files that cannot be used
        raise ModelError(f"model.trunk {name!r}: {error}") from error
    if not hasattr(trunk, "patch_embed"):
        raise ModelError(f"model.trunk {name!r}: {type(trunk).__name__} is not a vision transformer")
    described = trunk.pretrained_cfg
    recipe = architecture(name if name.startswith("local-dir:") else described["architecture"])
    recipe |= {"image_size": trunk.patch_embed.img_size[0]}
    return trunk, recipe | pixel_statistics(described)


def build_again(recipe: dict[str, Any]) -> nn.Module:
    """A trunk of the recipe's architecture and size, with random weights."""
    return timm.create_model(
        recipe["architecture"], pretrained=False, num_classes=0, img_size=recipe["image_size"], **recipe["arguments"]
    )


def architecture(name: str) -> dict[str, Any]:
    """Architecture and arguments of a timm name or of `local-dir:FOLDER`; the image size is kept apart."""
    if not name.startswith("local-dir:"):
        return {"architecture": name, "arguments": {}}
    config = read_json(Path(name.removeprefix("local-dir:")) / "config.json")
    arguments = {key: value for key, value in config.get("model_args", {}).items() if key != "img_size"}
    return {"architecture": config["architecture"], "arguments": arguments}


def pixel_statistics(described: dict[str, Any]) -> dict[str, list[float]]:
    return {"mean": list(described["mean"]), "std": list(described["std"])}
