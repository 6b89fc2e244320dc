"""Differential attention: the forms that can take the place of a vision transformer's pretrained attention.

Plain attention turns queries Q, keys K and values V of `H` heads, each `[B, H, N, d]` (images, heads, tokens, channels
of a head), into `A V` with the attention map `A = softmax(Q K^T / sqrt(d))`. Differential attention has two maps, `A1`
and `A2`, and subtracts `lambda` times the second from the first.

| form              | where it comes from                                   | equals the pretrained layer at the start |
|-------------------|-------------------------------------------------------|------------------------------------------|
| `plain`           | the pretrained layer itself                           | yes                                      |
| `published`       | the code that the challenge entry released            | no: plain with another output matrix     |
| `paper`           | the equation in that entry's report                   | no: rows sum to 1 - lambda               |
| `difftransformer` | Ye et al., Differential Transformer, arXiv 2410.05258 | no: it has a norm of its own             |
| `preserve`        | this project                                          | yes, exactly                             |

Each class is built from one of timm's attention layers, whose pretrained parts it takes over (it does not copy them),
and can be called as timm's blocks call that layer. `replacement.py` puts a form into a whole transformer.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import DiffAttention, apply_rot_embed_cat
from torch import Tensor, nn

from rarevision.errors import UserError
from rarevision.model.heads import fused_qkv, linear, softmax_map, split_heads


class AttentionError(UserError):
    """A transformer or a setting that a form of attention cannot be built from."""


class Maps(NamedTuple):
    """Attention maps of one layer: rows are queries, columns are keys."""

    first: Tensor  # [B, H, N, N], or [B, H / 2, N, N] where the form pairs its heads
    second: Tensor | None  # the same shape; None for `plain`
    difference: Tensor | None  # what V is multiplied by; None where no map is subtracted (`plain`, `published`)
    strength: Tensor  # lambda, [1] or [H]; empty for `plain`


class Form(nn.Module):
    """Plain attention, `A V`, made of the parts of a timm layer; the base of the other forms."""

    def __init__(self, attn: nn.Module):
        super().__init__()
        self.num_heads, self.head_dim = attn.num_heads, attn.head_dim
        self.fused_attn = attn.fused_attn  # whether torch's fused kernels compute it, or the map is written out
        self.qkv = fused_qkv(attn)
        for name in ("q_norm", "k_norm", "attn_drop", "norm", "gate", "proj", "proj_drop"):
            setattr(self, name, getattr(attn, name))
        self.num_prefix_tokens = getattr(attn, "num_prefix_tokens", 1)
        self.rotate_half = getattr(attn, "rotate_half", False)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, rope: Tensor | None = None
    ) -> Tensor:
        """Tokens `[B, N, C]` to tokens `[B, N, C]`; both masks mean what they do in `scaled_dot_product_attention`."""
        if is_causal:
            if attn_mask is not None:
                raise ValueError("give attn_mask or is_causal, not both, as scaled_dot_product_attention asks")
            attn_mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        heads = self.combine(*self.project(x, rope), attn_mask)
        y = self.norm(heads.transpose(1, 2).flatten(2))
        if self.gate is not None:
            y = y * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(y))

    def project(self, x: Tensor, rope: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of tokens, normalised and rotated where the pretrained layer does that."""
        q, k, v = split_heads(self, x)
        if rope is not None:
            q, k = self.rotate(q, rope).type_as(v), self.rotate(k, rope).type_as(v)
        return q, k, v

    def rotate(self, heads: Tensor, rope: Tensor) -> Tensor:
        """Rotary positions, of the patches and not of the class and register tokens before them."""
        prefix, patches = heads.tensor_split([self.num_prefix_tokens], dim=2)
        return torch.cat([prefix, apply_rot_embed_cat(patches, rope, half=self.rotate_half)], dim=2)

    def combine(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None) -> Tensor:
        """The heads' outputs `[B, H, N, d]` from what `project` returns."""
        return self.attend(q, k, v, attn_mask)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None) -> Tensor:
        if self.fused_attn:
            dropout = self.attn_drop.p if self.training else 0.0
            return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout)
        return self.attn_drop(softmax_map(q, k, attn_mask)) @ v

    def strength(self) -> Tensor:
        """Lambda: `[1]` for the layer, or `[H]`, one per head."""
        return self.qkv.weight.new_empty(0)

    def maps(self, x: Tensor, rope: Tensor | None = None) -> Maps:
        """The maps with which `forward` treats the same tokens."""
        q, k, _ = self.project(x, rope)
        return self.pair(softmax_map(q, k))

    def pair(self, maps: Tensor) -> Maps:
        """Sort the softmax maps of the queries and keys that `project` returns into first and second ones."""
        return Maps(maps, None, None, self.strength())


class VectorLambda(Form):
    """The report's lambda, one number per layer, from four learned vectors of `d` channels per pair of heads:

    `lambda = mean over pairs of exp(lambda_q1 . lambda_k1) - exp(lambda_q2 . lambda_k2) + lambda_init`.
    """

    def __init__(self, attn: nn.Module, lambda_init: float):
        super().__init__(attn)
        self.lambda_init = lambda_init
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            vectors = torch.empty(self.num_heads // 2, self.head_dim, device=self.qkv.weight.device)  # always fp32
            self.register_parameter(name, nn.Parameter(nn.init.normal_(vectors, std=0.1)))

    def strength(self) -> Tensor:
        one = (self.lambda_q1 * self.lambda_k1).sum(-1).exp()
        two = (self.lambda_q2 * self.lambda_k2).sum(-1).exp()
        return (one - two + self.lambda_init).mean(0, keepdim=True)


class Published(VectorLambda):
    """`concat[x1 - lambda x2, x2]`, where `x1` and `x2` are the two halves of the heads of `A V`: the released code.

    No attention map is subtracted from another. With the output matrix written as `W = [W1 W2]`, the layer gives
    `W1 (x1 - lambda x2) + W2 x2 = W1 x1 + (W2 - lambda W1) x2`: plain attention with another output matrix.
    """

    def combine(self, q, k, v, attn_mask):
        one, two = self.attend(q, k, v, attn_mask).chunk(2, dim=1)
        return torch.cat([(one - self.strength() * two).type_as(one), two], dim=1)

    def pair(self, maps):
        return Maps(*maps.chunk(2, dim=1), None, self.strength())


class Paper(VectorLambda):
    """`(A1 - lambda A2) V` for each pair of heads, V being the values of both (width 2d): the report's equation.

    The report does not say which heads form a pair. `groups` does: "halves" pairs head h with h + H / 2, "adjacent"
    pairs 2h with 2h + 1. Each half of a pair's result stays in the place of the head whose values it was made from, so
    that the pretrained output matrix meets the values it was trained on.

    Fast kernels refuse values wider than queries, so the fused computation takes a pair's values in two parts of width
    d. That computes each map twice. On a CPU it costs twice the time of writing the maps out (benchmarks/attention.py),
    which is therefore done there; `maps_on_cpu = False` turns that off.
    """

    maps_on_cpu = True

    def __init__(self, attn: nn.Module, lambda_init: float, groups: Literal["halves", "adjacent"] = "halves"):
        super().__init__(attn, lambda_init)
        self.groups = groups

    def split(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Heads (dimension 1) to the first and the second ones of all pairs."""
        return heads.chunk(2, dim=1) if self.groups == "halves" else (heads[:, 0::2], heads[:, 1::2])

    def join(self, one: Tensor, two: Tensor) -> Tensor:
        """The inverse of `split`."""
        return torch.cat([one, two], dim=1) if self.groups == "halves" else torch.stack([one, two], 2).flatten(1, 2)

    def combine(self, q, k, v, attn_mask):
        strength, outputs = self.strength(), []
        if self.fused_attn and not (self.maps_on_cpu and q.device.type == "cpu"):
            for values in self.split(v):
                one, two = self.split(self.attend(q, k, self.join(values, values), attn_mask))
                outputs.append(one - strength * two)
        else:
            first, second = map(self.attn_drop, self.split(softmax_map(q, k, attn_mask)))
            difference = (first - strength * second).type_as(v)
            outputs += [difference @ values for values in self.split(v)]
        return self.join(*outputs).type_as(v)

    def pair(self, maps):
        first, second = self.split(maps)
        return Maps(first, second, first - self.strength() * second, self.strength())


class DiffTransformer(DiffAttention):
    """`(1 - lambda_init) RMSNorm((A1 - lambda A2) V)` for each pair of adjacent heads, V being the values of both.

    This is timm's layer after Ye et al. (arXiv 2410.05258) with the pretrained matrices. `lambda_init` rises with the
    block's index: 0.8 - 0.6 exp(-0.3 index). Lambda is made of vectors as in the report, shared by all pairs.
    """

    def __init__(self, attn: nn.Module, index: int):
        super().__init__(attn.proj.out_features, attn.num_heads // 2, attn_drop=attn.attn_drop.p, depth=index)
        self.to(attn.qkv.weight.device)
        self.sub_norm.to(attn.qkv.weight.dtype)  # the lambdas stay fp32
        self.fused_attn = attn.fused_attn
        for name in ("qkv", "q_norm", "k_norm", "norm", "proj", "proj_drop"):
            setattr(self, name, getattr(attn, name))

    def strength(self) -> Tensor:
        return self._compute_lambda().reshape(1)

    def maps(self, x: Tensor, rope: None = None) -> Maps:
        q, k, _ = split_heads(self, x)
        maps = softmax_map(q, k)
        first, second = maps[:, 0::2], maps[:, 1::2]
        return Maps(first, second, first - self.strength() * second, self.strength())


class Preserve(Form):
    """`(A1 - lambda A2) V / (1 - lambda)` in every head; the second map has a query of its own, `Q2`, and shares K.

    `Q2` starts as a copy of Q. So A2 = A1, and the layer starts as the pretrained function, whatever lambda is. It is
    computed as `x1 + gain (x1 - x2)`, with `x1 = A1 V`, `x2 = A2 V` and the learned `gain = lambda / (1 - lambda)` of
    each head: this has no pole at lambda = 1. Both queries get a gradient from the first step on, scaled by 1 + gain
    and by -gain, hence lambda_init <= 0.5; lambda itself from the second step on, when x1 and x2 have come apart.
    """

    def __init__(self, attn: nn.Module, lambda_init: float):
        if not 0 < lambda_init <= 0.5:
            raise AttentionError(f"lambda_init {lambda_init} of 'preserve' must lie in (0, 0.5]: 0 leaves Q2 without "
                                 "gradient, more scales the queries' gradients beyond 2 and -1")  # fmt: skip
        super().__init__(attn)
        weight, bias, rows = self.qkv.weight, self.qkv.bias, self.num_heads * self.head_dim
        self.q2 = linear(weight[:rows], None if bias is None else bias[:rows])
        gain = torch.full((self.num_heads,), lambda_init / (1 - lambda_init), device=weight.device)  # always fp32
        self.lambda_gain = nn.Parameter(gain)

    def strength(self) -> Tensor:
        return self.lambda_gain / (1 + self.lambda_gain)

    def project(self, x, rope=None):
        """As in every form, but with the second queries behind the first: `[B, H, 2N, d]`."""
        q, k, v = super().project(x, rope)
        q2 = self.q_norm(self.q2(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2))
        q2 = q2 if rope is None else self.rotate(q2, rope)
        return torch.cat([q, q2.type_as(q)], dim=2), k, v

    def combine(self, q, k, v, attn_mask):
        if attn_mask is not None and attn_mask.shape[-2] > 1:  # else one row serves all queries
            attn_mask = torch.cat([attn_mask, attn_mask], dim=-2)
        return self.subtract(*self.attend(q, k, v, attn_mask).chunk(2, dim=2)).type_as(v)

    def subtract(self, one: Tensor, two: Tensor) -> Tensor:
        return one + self.lambda_gain[:, None, None] * (one - two)

    def pair(self, maps):
        first, second = maps.chunk(2, dim=2)
        return Maps(first, second, self.subtract(first, second), self.strength())
