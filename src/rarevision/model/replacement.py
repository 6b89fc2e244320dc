"""Putting a form of attention into every block of a pretrained transformer."""

from collections.abc import Callable
from typing import Literal

from timm.layers import Attention, AttentionRope
from timm.models.eva import EvaAttention
from torch import nn

from rarevision.model.attention import AttentionError, DiffTransformer, Paper, Preserve, Published

FORMS = ("plain", "published", "paper", "difftransformer", "preserve")
REPLACEABLE = (Attention, AttentionRope, EvaAttention)  # timm's layers whose parts the forms know how to take over


def replace_attention(
    trunk: nn.Module, form: str, groups: Literal["halves", "adjacent"] = "halves", lambda_init: float = 0.8
) -> nn.Module:
    """Give every block of a timm VisionTransformer or Eva (which DINOv3 is) the named form; pretrained weights stay.

    Works in place and returns the trunk. `groups` is for `paper` alone; `lambda_init` is not for `plain`, which leaves
    any trunk as it is, nor for `difftransformer`. New weights are drawn from torch's global generator. Raises
    `AttentionError` where the form cannot be built from the trunk's layers.
    """
    if form not in FORMS:
        raise AttentionError(f"attention form {form!r} is not one of {', '.join(FORMS)}")
    if form == "plain":
        return trunk
    make: dict[str, Callable[[nn.Module, int], nn.Module]] = {
        "published": lambda attn, index: Published(attn, lambda_init),
        "paper": lambda attn, index: Paper(attn, lambda_init, groups),
        "difftransformer": DiffTransformer,
        "preserve": lambda attn, index: Preserve(attn, lambda_init),
    }
    for index, block in enumerate(attention_blocks(trunk)):
        if problem := misfit(block.attn, form):
            raise AttentionError(problem, place=f"block {index}")
        block.attn = make[form](block.attn, index).train(block.training)
    return trunk


def attention_blocks(trunk: nn.Module) -> list[nn.Module]:
    """The trunk's blocks, each of which holds an attention layer as `attn`."""
    blocks = list(getattr(trunk, "blocks", []))
    if not blocks or not all(hasattr(block, "attn") for block in blocks):
        raise AttentionError(
            f"{type(trunk).__name__} has no transformer blocks whose attention could be replaced",
            remedy="use model.attention = 'plain', or a timm VisionTransformer or Eva",
        )
    return blocks


def misfit(attn: nn.Module, form: str) -> str:
    """Why a form cannot take over a layer; "" if it can."""
    if not isinstance(attn, REPLACEABLE):
        kind = f"{type(attn).__module__.rpartition('.')[2]}.{type(attn).__name__}"
        return (f"attention layer {kind} cannot be replaced; use model.attention = 'plain', or a trunk that is a timm "
                "VisionTransformer or Eva with its original layers")  # fmt: skip
    if form != "preserve" and attn.num_heads % 2:
        return (f"{attn.num_heads} heads cannot be paired for {form!r}; use a trunk with an even number of heads, or "
                "'preserve'")  # fmt: skip
    if getattr(attn, "num_kv_groups", 1) > 1:
        return "grouped-query attention (fewer K than Q heads) is not supported"
    if form == "difftransformer":
        width = attn.proj.out_features
        obstacles = {
            "rotary positions": not isinstance(attn, Attention),
            "a gate": attn.gate is not None,
            f"heads of {attn.num_heads} x {attn.head_dim}, not {width}": attn.num_heads * attn.head_dim != width,
        }
        if found := " and ".join(name for name, present in obstacles.items() if present):
            return f"timm's DiffAttention cannot take over a layer with {found}"
    return ""


def is_lambda(name: str) -> bool:
    """Whether a parameter, by its name, belongs to lambda: such parameters stay in fp32 and are not decayed."""
    return name.rpartition(".")[2].startswith("lambda_")
