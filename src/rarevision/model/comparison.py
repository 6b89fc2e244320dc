"""The forms of attention compared before any training: what is left of the pretrained features, and what each costs.

`trunk` is a timm transformer with its original layers, which is never changed; `images` are normalised,
`[B, 3, S, S]`. Begin with `feature_drift`.
"""

import copy
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from rarevision.model.attention import AttentionError, DiffTransformer, Form, Maps, Published
from rarevision.model.replacement import attention_blocks, replace_attention

# Name in the tables -> arguments of `replace_attention`; lambda_init as in the report, and the most `preserve` allows.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"form": "plain"},
    "published": {"form": "published", "lambda_init": 0.8},
    "paper, halves": {"form": "paper", "groups": "halves", "lambda_init": 0.8},
    "paper, adjacent": {"form": "paper", "groups": "adjacent", "lambda_init": 0.8},
    "difftransformer": {"form": "difftransformer"},
    "preserve": {"form": "preserve", "lambda_init": 0.5},
}


def with_attention(trunk: nn.Module, name: str, seed: int = 0) -> nn.Module:
    """A copy of the trunk with one of `VARIANTS`, in eval mode; `seed` draws its new weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return replace_attention(copy.deepcopy(trunk), **VARIANTS[name]).eval()


def fitting_forms(trunk: nn.Module) -> tuple[list[str], dict[str, str]]:
    """Names of the `VARIANTS` that can be built from a trunk, and for the others why they cannot."""
    names, refused = [], {}
    for name in VARIANTS:
        try:
            with_attention(trunk, name)
            names.append(name)
        except AttentionError as error:
            refused[name] = str(error)
    return names, refused


def feature_drift(trunk: nn.Module, images: Tensor, seed: int = 0) -> pd.DataFrame:
    """How far the features of each variant are from those of the pretrained trunk, after each block and at the end.

    One row per variant that fits and place: `cosine` to the pretrained features (mean over tokens and images) and
    relative `difference` (Euclidean norms over all of them). `block` counts from 1; the last row of a variant, place
    "features", is the trunk's output and has block 0.
    """
    plain, rows = features(with_attention(trunk, "plain"), images), []
    for name in fitting_forms(trunk)[0]:
        found = features(with_attention(trunk, name, seed), images)
        for block, (place, one) in enumerate(plain.items(), 1):
            cosine = F.cosine_similarity(one, found[place], dim=-1).mean().item()
            last = place == "features"
            rows.append((name, place, 0 if last else block, cosine, relative_difference(one, found[place])))
    return pd.DataFrame(rows, columns=["variant", "place", "block", "cosine", "difference"])


def folding_error(trunk: nn.Module, images: Tensor, seed: int = 0) -> pd.DataFrame:
    """The `published` trunk against the plain one that it folds into, in float64: relative difference at each place.

    All are zero to rounding (1e-12), whatever lambda is. That the two are the same function is shown at `Published`.
    """
    published = with_attention(trunk, "published", seed).double()
    folded = copy.deepcopy(published)
    for block in attention_blocks(folded):
        block.attn = fold(block.attn)
    one, two = features(published, images.double()), features(folded, images.double())
    return pd.DataFrame({"place": one.keys(), "difference": [relative_difference(one[p], two[p]) for p in one]})


@torch.no_grad()
def fold(attn: Published) -> Form:
    """The plain layer that equals a `published` one: output matrix `[W1, W2 - lambda W1]`. `attn` stays as it is."""
    if not isinstance(attn.norm, nn.Identity) or attn.gate is not None:
        raise AttentionError("cannot fold: a norm or a gate stands between the heads and the output matrix")
    plain = Form(copy.deepcopy(attn))
    one, two = attn.proj.weight.chunk(2, dim=1)
    plain.proj.weight.copy_(torch.cat([one, two - attn.strength() * one], dim=1))
    return plain


def attention_cost(trunk: nn.Module, image_size: int) -> pd.DataFrame:
    """Parameters and multiply-adds (half of torch's floating-point operations) of one image, per variant that fits."""
    rows = {}
    for name in fitting_forms(trunk)[0]:
        model = with_attention(trunk, name)
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = False  # torch counts matrix products, not what happens in a fused kernel
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.zeros(1, 3, image_size, image_size))
        rows[name] = sum(p.numel() for p in model.parameters()), counter.get_total_flops() // 2
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["parameters", "multiply-adds"])
    table = table.join((table / table.loc["plain"]).add_suffix(" / plain"))
    return table.rename_axis("variant").reset_index()


def strengths(trunk: nn.Module) -> Tensor:
    """Lambda of every block, float32 `[blocks, 1]` or `[blocks, heads]`; `[blocks, 0]` for `plain`."""
    layers = [block.attn for block in attention_blocks(trunk)]
    values = [attn.strength() if isinstance(attn, (Form, DiffTransformer)) else torch.empty(0) for attn in layers]
    return torch.stack(values).detach().float().cpu()


def attention_maps(trunk: nn.Module, images: Tensor) -> list[Maps]:
    """Maps of every block; tokens are counted with the prefix tokens (class token, registers) first."""

    def see(attn, args, kwargs, output) -> Maps:
        form = attn if isinstance(attn, (Form, DiffTransformer)) else Form(attn)  # plain: timm's own layer
        return form.maps(args[0], kwargs.get("rope"))

    return watch(trunk, images, [block.attn for block in attention_blocks(trunk)], see)[0]


def features(trunk: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Tokens `[B, N, C]` after every block, by its number from 1, then the pooled features `[B, C]`.

    The features alone where the trunk has no transformer blocks.
    """
    try:
        blocks = attention_blocks(trunk)
    except AttentionError:  # a convolutional or window-attention trunk
        blocks = []
    tokens, pooled = watch(trunk, images, blocks, lambda block, args, kwargs, output: output)
    return {f"block {i}": one for i, one in enumerate(tokens, 1)} | {"features": pooled}


@torch.no_grad()
def watch(trunk: nn.Module, images: Tensor, modules: list[nn.Module], see: Callable) -> tuple[list, Tensor]:
    """Run the trunk; what `see(module, args, kwargs, output)` returns of each module, and the trunk's own output."""
    seen: list = []
    handles = [
        module.register_forward_hook(lambda *call: seen.append(see(*call)), with_kwargs=True) for module in modules
    ]
    try:
        return seen, trunk(images)
    finally:
        for handle in handles:
            handle.remove()


def relative_difference(one: Tensor, two: Tensor) -> float:
    return ((two - one).norm() / one.norm()).item()
