"""What all forms of attention are made of: the heads' queries, keys and values, and their softmax map."""

import torch
from torch import Tensor, nn


def split_heads(attn: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values `[B, H, N, d]` of tokens `[B, N, C]`, normalised where the layer does that."""
    q, k, v = attn.qkv(x).unflatten(-1, (3, -1, attn.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
    return attn.q_norm(q), attn.k_norm(k), v


def softmax_map(q: Tensor, k: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """`softmax(Q K^T / sqrt(d) + mask)`, `[B, H, queries, keys]`; a boolean mask is true where a key may be seen."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return scores.softmax(-1)


def fused_qkv(attn: nn.Module) -> nn.Linear:
    """One linear layer `C -> 3 H d` out of a timm layer's fused or separate projections and biases."""
    if attn.qkv is not None and getattr(attn, "q_bias", None) is None:
        return attn.qkv
    if attn.qkv is not None:
        weight, biases = attn.qkv.weight, [attn.q_bias, attn.k_bias, attn.v_bias]
    else:
        parts = attn.q_proj, attn.k_proj, attn.v_proj
        weight, biases = torch.cat([p.weight for p in parts]), [p.bias for p in parts]
    if all(bias is None for bias in biases):
        return linear(weight, None)
    zeros = weight.new_zeros(len(weight) // 3)  # Eva's keys have no bias
    return linear(weight, torch.cat([zeros if bias is None else bias for bias in biases]))


@torch.no_grad()
def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A new linear layer with copies of a weight `[out, in]` and a bias `[out]`."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device=weight.device, dtype=weight.dtype)
    layer.weight.copy_(weight)
    if bias is not None:
        layer.bias.copy_(bias)
    return layer
