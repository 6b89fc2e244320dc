"""The trunk: the image network under the heads, from a CLIP model, from timm or from a file, and what builds it again.

`clip_trunk` and `timm_trunk` return a timm model and its part of the recipe, which is JSON: `architecture` (a timm
name) and its `arguments`, `image_size` (px), `embed_dim` (width of the projection that follows; 0 without one), and
`mean` and `std` of the pixels 0..1 that it was pretrained on. `build_again` is the way back, without any weights.
"""

from pathlib import Path
from typing import Any

import timm
import torch
from open_clip.transformer import VisionTransformer
from timm.models import load_model_config_from_hf, parse_model_name, split_model_name_tag
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import nn

from rarevision.config import Model
from rarevision.model.checkpoint_file import load_checkpoint_file
from rarevision.model.weights import ModelError, read_config, read_json


def clip_trunk(clip: nn.Module, folder: str) -> tuple[nn.Module, nn.Module, dict[str, Any]]:
    """The image tower of a CLIP model that was loaded from a folder, and the projection that follows it."""
    config, tower = read_config(Path(folder)), clip.visual
    if isinstance(tower, VisionTransformer):
        trunk, projection, recipe = openai_trunk(tower, config, folder)
    elif hasattr(tower, "trunk"):
        trunk, projection, recipe = tower.trunk, *timm_projection(tower, config["vision_cfg"], folder)
    else:
        raise ModelError(f"its image tower {type(tower).__name__} is not a timm model", file=folder)
    linear = isinstance(projection, nn.Linear)
    recipe |= {"image_size": tower.image_size[0], "embed_dim": projection.out_features if linear else 0}
    if linear and projection.bias is not None:
        recipe["projection_bias"] = True
    return trunk, projection, recipe | pixel_statistics(tower.preprocess_cfg)


def timm_projection(tower: nn.Module, vision: dict[str, Any], folder: str) -> tuple[nn.Module, dict[str, Any]]:
    """The projection after open_clip's timm tower, which may be the trunk's own classifier, and the trunk's recipe."""
    if (vision.get("timm_proj", "linear") or "none") not in ("linear", "none"):
        raise ModelError(f"projection {vision['timm_proj']!r} of the image tower is not supported", file=folder)
    name = vision["timm_model_name"]
    if name.startswith("local-dir:"):
        name = f"local-dir:{Path(folder) / name.removeprefix('local-dir:')}"
    recipe = architecture(name)
    if vision.get("timm_pool"):
        recipe["arguments"]["global_pool"] = vision["timm_pool"]
    projection = tower.head[-1] if len(tower.head) else nn.Identity()
    if tower.trunk.num_classes and not len(tower.head):  # such as EVA-CLIP's
        projection = tower.trunk.get_classifier()
        tower.trunk.reset_classifier(0)
    if not isinstance(projection, nn.Linear | nn.Identity):
        raise ModelError(f"pooling {vision['timm_pool']!r} of the image tower is not supported", file=folder)
    return projection, recipe


@torch.no_grad()
def openai_trunk(
    tower: VisionTransformer, config: dict[str, Any], folder: str
) -> tuple[nn.Module, nn.Module, dict[str, Any]]:
    """open_clip's own vision transformer as timm's, with timm's renaming of its weights."""
    vision = config["vision_cfg"]
    width, patch, depth = tower.conv1.out_channels, tower.conv1.kernel_size[0], len(tower.transformer.resblocks)
    recipe: dict[str, Any] = {
        "architecture": f"vit_base_patch16_clip_{'quickgelu_' if config.get('quick_gelu') else ''}224",
        "arguments": {
            "patch_size": patch,
            "embed_dim": width,
            "depth": depth,
            "num_heads": width // vision.get("head_width", 64),
            "mlp_ratio": vision.get("mlp_ratio", 4.0),
        },
    }
    trunk = create(recipe["architecture"], tower.image_size[0], **recipe["arguments"])
    weights = {f"visual.{name}": value for name, value in tower.state_dict().items()}
    images = torch.randn(2, 3, *tower.image_size, generator=torch.Generator().manual_seed(0))
    try:
        state = checkpoint_filter_fn(weights, trunk)
        projection = nn.Linear(width, tower.output_dim, bias=False)
        projection.weight.copy_(state.pop("head.weight"))
        state.pop("head.bias")
        trunk.load_state_dict(state)
        torch.testing.assert_close(projection(trunk.eval()(images)), tower.eval()(images), rtol=1e-3, atol=1e-4)
    except (KeyError, RuntimeError, AssertionError) as error:  # options that OpenAI's CLIP does not have
        cause = "its image tower has parts or settings that OpenAI's CLIP, and so timm's transformer, does not have"
        raise ModelError(cause, file=folder) from error
    return trunk, projection, recipe


def timm_trunk(model: Model) -> tuple[nn.Module, dict[str, Any]]:
    """A timm model: pretrained where the name says which weights, random where it is the architecture alone.

    `vit_small_patch14_dinov2.lvd142m` and `hf-hub:...` are fetched or read from the hub's cache, `local-dir:FOLDER`
    from config.json and model.safetensors there; `vit_small_patch14_dinov2` is random. With `model.trunk_weights` the
    weights come from that file instead, and the name gives the architecture and the pixels' mean and deviation.
    """
    name = model.trunk
    try:
        pretrained = ("." in name or ":" in name) and not model.trunk_weights
        trunk = create(name, model.image_size, pretrained)
        recipe = architecture(name)
    except ModelError:
        raise
    except Exception as error:  # timm, torch and the hub raise many kinds for names and files that cannot be used
        raise ModelError(f"model.trunk {name!r}: {error}") from error
    if model.trunk_weights:
        recipe["trunk_weights"] = load_checkpoint_file(trunk, model.trunk_weights)
    described = trunk.pretrained_cfg
    sizes = getattr(getattr(trunk, "patch_embed", None), "img_size", None)
    recipe["image_size"] = sizes[0] if sizes else model.image_size or described["input_size"][-1]
    return trunk, recipe | pixel_statistics(described)


def build_again(recipe: dict[str, Any]) -> nn.Module:
    """A trunk of the recipe's architecture and size, with random weights."""
    return create(recipe["architecture"], recipe["image_size"], **recipe["arguments"])


def create(name: str, image_size: int, pretrained: bool = False, **arguments: Any) -> nn.Module:
    """A timm model without a classifier, for images of a size (0: its own) where it has to know that."""
    size = {"img_size": image_size} if image_size else {}
    try:
        return timm.create_model(name, pretrained=pretrained, num_classes=0, **size, **arguments)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        return timm.create_model(name, pretrained=pretrained, num_classes=0, **arguments)  # convolutions take any size


def architecture(name: str) -> dict[str, Any]:
    """Architecture and arguments of a timm name, of `local-dir:FOLDER` or `hf-hub:NAME`; image size is kept apart."""
    source, identifier = parse_model_name(name)
    if source is None:
        return {"architecture": split_model_name_tag(name)[0], "arguments": {}}
    if source == "local-dir":
        config = read_json(Path(identifier) / "config.json")
        found, arguments = config["architecture"], config.get("model_args")
    else:
        _, found, arguments = load_model_config_from_hf(identifier)
    kept = {key: value for key, value in (arguments or {}).items() if key not in ("img_size", "num_classes")}
    return {"architecture": found, "arguments": kept}


def pixel_statistics(described: dict[str, Any]) -> dict[str, list[float]]:
    return {"mean": list(described["mean"]), "std": list(described["std"])}
