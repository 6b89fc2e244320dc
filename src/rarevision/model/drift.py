"""Drift: how far each form of attention is from the pretrained function before any training, and what it costs.

For notebook 02. Images are normalised `[B, 3, S, S]`; the trunk is a timm VisionTransformer with its original layers,
and is never changed.
"""

import copy

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from rarevision.model.attention import AttentionError, fold, layers, replace_attention

# name in the tables -> arguments of `replace`; lambda_init as the report has it, and the most `preserve` allows
VARIANTS = {
    "plain": {"form": "plain"},
    "published": {"form": "published", "lambda_init": 0.8},
    "paper, halves": {"form": "paper", "groups": "halves", "lambda_init": 0.8},
    "paper, adjacent": {"form": "paper", "groups": "adjacent", "lambda_init": 0.8},
    "difftransformer": {"form": "difftransformer"},
    "preserve": {"form": "preserve", "lambda_init": 0.5},
}


def with_attention(trunk: nn.Module, name: str, seed: int = 0) -> nn.Module:
    """A copy of the trunk with one of `VARIANTS`, in eval mode; `seed` draws its lambda vectors."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return replace_attention(copy.deepcopy(trunk), **VARIANTS[name]).eval()


def fitting_forms(trunk: nn.Module) -> tuple[list[str], dict[str, str]]:
    """Names of `VARIANTS` that can be built from a trunk (odd heads, rotary positions, ...), and why others cannot."""
    names, refused = [], {}
    for name in VARIANTS:
        try:
            with_attention(trunk, name)
            names.append(name)
        except AttentionError as error:
            refused[name] = str(error)
    return names, refused


@torch.no_grad()
def features(trunk: nn.Module, images: Tensor) -> list[Tensor]:
    """Tokens `[B, N, C]` after every block, then the pooled features `[B, C]`."""
    found: list[Tensor] = []
    handles = [block.register_forward_hook(lambda _, args, out: found.append(out)) for _, block in layers(trunk)]
    try:
        found.append(trunk(images))
    finally:
        for handle in handles:
            handle.remove()
    return found


def feature_drift(trunk: nn.Module, images: Tensor, seed: int = 0) -> pd.DataFrame:
    """One row per variant that fits and place: cosine to `plain` (mean over tokens and images) and relative difference.

    `block` counts from 1; the last row of a variant, block = 0 and place = "features", is the trunk's output.
    """
    plain, rows = features(with_attention(trunk, "plain"), images), []
    for name in fitting_forms(trunk)[0]:
        for index, (one, two) in enumerate(
            zip(plain, features(with_attention(trunk, name, seed), images), strict=True), 1
        ):
            last = index == len(plain)
            rows.append(
                {
                    "variant": name,
                    "place": "features" if last else f"block {index}",
                    "block": 0 if last else index,
                    "cosine": F.cosine_similarity(one, two, dim=-1).mean().item(),
                    "difference": ((two - one).norm() / one.norm()).item(),
                }
            )
    return pd.DataFrame(rows)


def folding_error(trunk: nn.Module, images: Tensor, seed: int = 0) -> pd.DataFrame:
    """The `published` trunk against the plain one with folded output matrices, in float64: relative differences.

    Rows are the places of `drift`; they are zero to rounding (1e-12), whatever lambda is.
    """
    published = with_attention(trunk, "published", seed).double()
    folded = copy.deepcopy(published)
    for _, block in layers(folded):
        block.attn = fold(block.attn)
    pairs = zip(features(published, images.double()), features(folded, images.double()), strict=True)
    differences = [((two - one).norm() / one.norm()).item() for one, two in pairs]
    places = [f"block {i}" for i in range(1, len(differences))] + ["features"]
    return pd.DataFrame({"place": places, "difference": differences})


def attention_cost(trunk: nn.Module, image_size: int) -> pd.DataFrame:
    """Parameters and multiply-adds (half of torch's floating-point operations) of one image, per variant."""
    rows = []
    for name in fitting_forms(trunk)[0]:
        model = with_attention(trunk, name)
        for _, block in layers(model):
            block.attn.fused_attn = False  # torch counts matrix products, not what happens in a fused kernel
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.zeros(1, 3, image_size, image_size))
        parameters = sum(p.numel() for p in model.parameters())
        rows.append({"variant": name, "parameters": parameters, "multiply-adds": counter.get_total_flops() // 2})
    table = pd.DataFrame(rows)
    for column in ("parameters", "multiply-adds"):
        table[f"{column} / plain"] = table[column] / table.loc[0, column]
    return table
