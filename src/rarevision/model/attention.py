"""Differential attention: five ways to combine the heads of a pretrained vision transformer, and what each one does.

| form | output of the heads, before the output matrix | pretrained function at start |
|---|---|---|
| `plain` | `A V` | kept |
| `published` | `concat[x1 - lambda x2, x2]`, `x = A V`, V split with the heads | no; is `plain` with `W2 - lambda W1` |
| `paper` | `(A1 - lambda A2) V`, V of a pair of heads shared (width 2d) | no; rows sum to 1 - lambda |
| `difftransformer` | as `paper`, RMS norm, lambda by depth (timm's DiffAttention) | no |
| `preserve` | `(A1 - lambda A2) V / (1 - lambda)`, every head kept, second query `Q2` | kept, exactly |

`A = softmax(Q K^T / sqrt(d))`. `published` is what the challenge entry's code computes, `paper` what its report says;
`difftransformer` is Ye et al., "Differential Transformer" (arXiv 2410.05258). `published` and `paper` use the report's
`lambda = mean over heads of exp(lq1.lk1) - exp(lq2.lk2) + lambda_init`; `preserve` learns one scalar per head.

`replace` swaps `block.attn` in any timm VisionTransformer (or Eva, which DINOv3 is) and keeps the block's contract:
`forward(x [B, N, C], attn_mask=None, is_causal=False) -> [B, N, C]`, with SDPA's meaning of both masks.
"""

import copy
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from timm.layers import Attention, AttentionRope, DiffAttention, apply_rot_embed_cat
from timm.models.eva import EvaAttention
from torch import Tensor, nn

from rarevision.errors import UserError

Name = Literal["plain", "published", "paper", "difftransformer", "preserve"]
FORMS: tuple[str, ...] = get_args(Name)
TIMM = (Attention, AttentionRope, EvaAttention)  # the layers that can be replaced


class AttentionError(UserError):
    """A trunk or a setting that a form of attention cannot be built from."""


class Maps(NamedTuple):
    """Attention maps of one layer: rows are queries, columns keys."""

    first: Tensor  # [B, heads or pairs, N, N]
    second: Tensor | None  # same shape; None for `plain`
    difference: Tensor | None  # what V is multiplied by; None where the form subtracts no maps (`plain`, `published`)
    strength: Tensor  # lambda, [1] or [heads]; empty for `plain`


class Form(nn.Module):
    """Plain attention made of a timm layer's own pretrained parts; the base of the other forms.

    The parts are taken over, not copied: build it in place of `attn`, or from a copy.
    """

    halving = False  # needs an even number of heads

    def __init__(self, attn: nn.Module):
        super().__init__()
        self.num_heads, self.head_dim = attn.num_heads, attn.head_dim
        self.fused_attn = attn.fused_attn
        self.qkv = fused_qkv(attn)
        for name in ("q_norm", "k_norm", "attn_drop", "norm", "gate", "proj", "proj_drop"):
            setattr(self, name, getattr(attn, name))
        self.num_prefix_tokens = getattr(attn, "num_prefix_tokens", 1)
        self.rotate_half = getattr(attn, "rotate_half", False)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, rope: Tensor | None = None
    ) -> Tensor:
        if is_causal and attn_mask is not None:
            raise ValueError("give attn_mask or is_causal, not both, as scaled_dot_product_attention asks")
        gate = None if self.gate is None else self.gate(x).sigmoid()
        heads = self.combine(x, *project(self, x, rope), attn_mask, is_causal, rope)
        y = self.norm(heads.transpose(1, 2).flatten(2))
        y = y if gate is None else y * gate
        return self.proj_drop(self.proj(y))

    def combine(self, x, q, k, v, attn_mask, is_causal, rope) -> Tensor:
        """Heads `[B, H, N, d]` from the input `[B, N, C]` and its pretrained q, k, v `[B, H, N, d]`."""
        return self.attend(q, k, v, attn_mask, is_causal)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        if self.fused_attn:
            dropout = self.attn_drop.p if self.training else 0.0
            return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, is_causal)
        return self.attn_drop(softmax_map(q, k, attn_mask, is_causal)) @ v

    def strength(self) -> Tensor:
        """Lambda, `[1]` or one per head."""
        return self.qkv.weight.new_empty(0)

    def maps(self, x, q, k, attn_mask, is_causal, rope) -> Maps:
        return Maps(softmax_map(q, k, attn_mask, is_causal), None, None, self.strength())


class Vectors(Form):
    """A form with the report's lambda: four vectors per pair of heads, one scalar per layer."""

    halving = True

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


class Published(Vectors):
    """`concat[x1 - lambda x2, x2]` of the two halves of the heads' outputs: the released code.

    With `W = [W1 W2]` the output matrix, `W1 (x1 - lambda x2) + W2 x2 = W1 x1 + (W2 - lambda W1) x2`: no attention map
    is subtracted from another. `fold` returns that plain layer.
    """

    def combine(self, x, q, k, v, attn_mask, is_causal, rope):
        one, two = self.attend(q, k, v, attn_mask, is_causal).chunk(2, dim=1)
        return torch.cat([(one - self.strength() * two).type_as(one), two], dim=1)

    def maps(self, x, q, k, attn_mask, is_causal, rope):
        one, two = softmax_map(q, k, attn_mask, is_causal).chunk(2, dim=1)
        return Maps(one, two, None, self.strength())


class Paper(Vectors):
    """`(A1 - lambda A2) V` per pair of heads, V of both heads shared: the report's equation.

    groups: `halves` pairs head h with h + H/2, `adjacent` 2h with 2h + 1. Each half of V stays in its own head's place,
    so that the pretrained output matrix meets the values it was trained on. Fused, the pair's V (width 2d) is taken in
    two parts of width d: flash kernels refuse unequal widths. That makes each map twice, which on a CPU costs twice the
    time of writing the maps out (benchmarks/attention.py), so there they are written out.
    """

    maps_on_cpu = True

    def __init__(self, attn: nn.Module, lambda_init: float, groups: Literal["halves", "adjacent"] = "halves"):
        super().__init__(attn, lambda_init)
        self.groups = groups

    def split(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        return heads.chunk(2, dim=1) if self.groups == "halves" else (heads[:, 0::2], heads[:, 1::2])

    def split_mask(self, attn_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """A mask with one plane per head is divided as the heads are; any other serves both groups."""
        if attn_mask is None or attn_mask.ndim < 3 or attn_mask.shape[-3] != self.num_heads:
            return attn_mask, attn_mask
        return self.split(attn_mask if attn_mask.ndim == 4 else attn_mask[None])

    def pair(self, q, k, attn_mask, is_causal) -> list[Tensor]:
        parts = zip(self.split(q), self.split(k), self.split_mask(attn_mask), strict=True)
        return [softmax_map(*part, is_causal) for part in parts]

    def combine(self, x, q, k, v, attn_mask, is_causal, rope):
        strength, values = self.strength(), self.split(v)
        if self.fused_attn and not (self.maps_on_cpu and q.device.type == "cpu"):
            (q1, q2), (k1, k2), (m1, m2) = self.split(q), self.split(k), self.split_mask(attn_mask)
            outputs = [self.attend(q1, k1, u, m1, is_causal) - strength * self.attend(q2, k2, u, m2, is_causal)
                       for u in values]  # fmt: skip
        else:
            first, second = map(self.attn_drop, self.pair(q, k, attn_mask, is_causal))
            difference = (first - strength * second).type_as(v)
            outputs = [difference @ u for u in values]
        joined = torch.cat(outputs, dim=1) if self.groups == "halves" else torch.stack(outputs, dim=2).flatten(1, 2)
        return joined.type_as(v)

    def maps(self, x, q, k, attn_mask, is_causal, rope):
        first, second = self.pair(q, k, attn_mask, is_causal)
        return Maps(first, second, first - self.strength() * second, self.strength())


class Preserve(Form):
    """`(A1 - lambda A2) V / (1 - lambda)`: every head, K and V kept; Q2 starts as a copy of Q, so A2 = A1.

    Written with `gain = lambda / (1 - lambda)`, the learned scalar per head: `x1 + gain (x1 - x2)`. That has no pole at
    lambda = 1 and is exactly `x1` at start. Both queries get gradient at the first step (scaled 1 + gain and -gain,
    hence lambda_init <= 0.5); lambda itself from the second on, when x1 and x2 have come apart.
    """

    def __init__(self, attn: nn.Module, lambda_init: float):
        if not 0 < lambda_init <= 0.5:
            raise AttentionError(f"lambda_init {lambda_init} of 'preserve' must lie in (0, 0.5]: 0 leaves Q2 without "
                                 "gradient, more scales the queries' gradients beyond 2 and -1")  # fmt: skip
        super().__init__(attn)
        weight, bias, rows = self.qkv.weight, self.qkv.bias, self.num_heads * self.head_dim
        self.q2 = nn.Linear(weight.shape[1], rows, bias is not None, device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            self.q2.weight.copy_(weight[:rows])
            if bias is not None:
                self.q2.bias.copy_(bias[:rows])
        gain = torch.full((self.num_heads,), lambda_init / (1 - lambda_init), device=weight.device)  # always fp32
        self.lambda_gain = nn.Parameter(gain)

    def strength(self) -> Tensor:
        return self.lambda_gain / (1 + self.lambda_gain)

    def second_query(self, x: Tensor, rope: Tensor | None) -> Tensor:
        q2 = self.q_norm(self.q2(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2))
        return q2 if rope is None else rotate(self, q2, rope)

    def combine(self, x, q, k, v, attn_mask, is_causal, rope):
        n = q.shape[2]
        if is_causal:  # SDPA's own causal mask would run on through the second queries
            attn_mask = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
        if attn_mask is not None and attn_mask.shape[-2] > 1:
            attn_mask = torch.cat([attn_mask, attn_mask], dim=-2)
        queries = torch.cat([q, self.second_query(x, rope).type_as(q)], dim=2)  # one call for both maps
        one, two = self.attend(queries, k, v, attn_mask, False).chunk(2, dim=2)
        return (one + self.lambda_gain[:, None, None] * (one - two)).type_as(v)

    def maps(self, x, q, k, attn_mask, is_causal, rope):
        first = softmax_map(q, k, attn_mask, is_causal)
        second = softmax_map(self.second_query(x, rope), k, attn_mask, is_causal)
        gain = self.lambda_gain[:, None, None]
        return Maps(first, second, first + gain * (first - second), self.strength())


def fused_qkv(attn: nn.Module) -> nn.Linear:
    """One `[3 H d, C]` linear layer out of a timm layer's fused or separate projections and biases."""
    if attn.qkv is not None and getattr(attn, "q_bias", None) is None:
        return attn.qkv
    if attn.qkv is not None:
        weight, biases = attn.qkv.weight, [attn.q_bias, attn.k_bias, attn.v_bias]
    else:
        parts = attn.q_proj, attn.k_proj, attn.v_proj
        weight, biases = torch.cat([p.weight for p in parts]), [p.bias for p in parts]
    bias = None
    if any(b is not None for b in biases):  # Eva's keys have none
        bias = torch.cat([weight.new_zeros(len(weight) // 3) if b is None else b for b in biases])
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def project(attn: nn.Module, x: Tensor, rope: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values `[B, H, N, d]`, normalised and rotated where the layer does that."""
    q, k, v = attn.qkv(x).unflatten(-1, (3, -1, attn.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
    q, k = attn.q_norm(q), attn.k_norm(k)
    if rope is not None:
        q, k = rotate(attn, q, rope).type_as(v), rotate(attn, k, rope).type_as(v)
    return q, k, v


def rotate(attn: nn.Module, heads: Tensor, rope: Tensor) -> Tensor:
    prefix, patches = heads.split([attn.num_prefix_tokens, heads.shape[2] - attn.num_prefix_tokens], dim=2)
    return torch.cat([prefix, apply_rot_embed_cat(patches, rope, half=attn.rotate_half)], dim=2)


def softmax_map(q: Tensor, k: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """`softmax(q k^T / sqrt(d) + mask)`, `[B, H, Nq, Nk]`."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return scores.softmax(-1)


def replace_attention(trunk: nn.Module, form: str, groups: str = "halves", lambda_init: float = 0.8) -> nn.Module:
    """Give every block of a timm VisionTransformer or Eva the named form, in place; the pretrained weights stay.

    `lambda_init` does not apply to `plain` and `difftransformer` (which has its own schedule by depth). New lambda
    vectors are drawn from torch's global generator. Raises `AttentionError` for an odd number of heads where heads are
    paired, and for trunks whose attention layer is not timm's.
    """
    if form not in FORMS:
        raise AttentionError(f"attention form {form!r} is not one of {', '.join(FORMS)}")
    for index, block in layers(trunk):
        attn = block.attn
        if not isinstance(attn, TIMM):
            raise AttentionError(f"block {index}: attention layer {type(attn).__name__} cannot be replaced; use a timm "
                                 "VisionTransformer or Eva trunk with its original layers")  # fmt: skip
        if form == "plain":
            continue
        if form != "preserve" and attn.num_heads % 2:
            raise AttentionError(f"block {index}: {attn.num_heads} heads cannot be paired for {form!r}; "
                                 "use a trunk with an even number of heads, or 'preserve'")  # fmt: skip
        if getattr(attn, "num_kv_groups", 1) > 1:
            raise AttentionError(f"block {index}: grouped-query attention (fewer K than Q heads) is not supported")
        block.attn = {
            "published": lambda a, i: Published(a, lambda_init),
            "paper": lambda a, i: Paper(a, lambda_init, groups),
            "difftransformer": difftransformer,
            "preserve": lambda a, i: Preserve(a, lambda_init),
        }[form](attn, index)
        block.attn.train(block.training)
    return trunk


def difftransformer(attn: nn.Module, index: int) -> DiffAttention:
    """timm's DiffAttention with the pretrained qkv and proj: H / 2 differential heads over pairs of adjacent ones."""
    dim = attn.proj.out_features
    problems = {
        "rotary positions": not isinstance(attn, Attention),
        "a gate": attn.gate is not None,
        f"heads of {attn.num_heads} x {attn.head_dim}, not {dim}": attn.num_heads * attn.head_dim != dim,
    }
    if problem := " and ".join(name for name, found in problems.items() if found):
        raise AttentionError(f"block {index}: timm's DiffAttention cannot take over a layer with {problem}")
    new = DiffAttention(dim, attn.num_heads // 2, attn_drop=attn.attn_drop.p, depth=index)
    new = new.to(attn.qkv.weight.device)
    new.sub_norm.to(attn.qkv.weight.dtype)  # the lambdas stay fp32
    new.fused_attn = attn.fused_attn
    for name in ("qkv", "q_norm", "k_norm", "norm", "proj", "proj_drop"):
        setattr(new, name, getattr(attn, name))
    return new


def layers(trunk: nn.Module) -> Iterator[tuple[int, nn.Module]]:
    """The blocks that hold an attention layer, with their index."""
    blocks = getattr(trunk, "blocks", None)
    if blocks is None or not len(blocks) or not all(hasattr(block, "attn") for block in blocks):
        raise AttentionError(f"{type(trunk).__name__} has no blocks with `attn`; use a timm VisionTransformer or Eva")
    yield from enumerate(blocks)


@torch.no_grad()
def fold(attn: Published) -> Form:
    """The plain layer that equals a `published` one: output matrix `[W1, W2 - lambda W1]`. `attn` stays as it is."""
    if not isinstance(attn.norm, nn.Identity) or attn.gate is not None:
        raise AttentionError("cannot fold: a norm or a gate stands between the heads and the output matrix")
    plain = Form(copy.deepcopy(attn))
    one, two = attn.proj.weight.chunk(2, dim=1)
    plain.proj.weight.copy_(torch.cat([one, two - attn.strength() * one], dim=1))
    return plain


def strengths(trunk: nn.Module) -> Tensor:
    """Lambda of every layer, float32 `[depth, 1]` or `[depth, heads]`; `[depth, 0]` for `plain`."""
    values = []
    for _, block in layers(trunk):
        attn = block.attn
        if isinstance(attn, DiffAttention):
            values.append(attn._compute_lambda().reshape(1))
        else:
            values.append(attn.strength() if isinstance(attn, Form) else torch.empty(0))
    return torch.stack(values).detach().float().cpu()


def is_lambda(name: str) -> bool:
    """Whether a parameter's name is that of a lambda (its own group: fp32, no weight decay)."""
    return name.rpartition(".")[2].startswith("lambda_")


@torch.no_grad()
def attention_maps(trunk: nn.Module, images: Tensor) -> list[Maps]:
    """Maps of every layer for normalised images `[B, 3, S, S]`; `N` counts the prefix tokens (class token) first."""
    found: list[Maps] = []

    def keep(attn, args, kwargs):
        x, mask = args[0], kwargs.get("attn_mask")
        causal, rope = kwargs.get("is_causal", False), kwargs.get("rope")
        if isinstance(attn, DiffAttention):
            q, k, _ = project(attn, x)
            first = softmax_map(q[:, 0::2], k[:, 0::2], mask, causal)
            second = softmax_map(q[:, 1::2], k[:, 1::2], mask, causal)
            strength = attn._compute_lambda().reshape(1)
            found.append(Maps(first, second, first - strength * second, strength))
        else:
            form = attn if isinstance(attn, Form) else Form(attn)
            q, k, _ = project(form, x, rope)
            found.append(form.maps(x, q, k, mask, causal, rope))

    handles = [block.attn.register_forward_pre_hook(keep, with_kwargs=True) for _, block in layers(trunk)]
    try:
        trunk(images)
    finally:
        for handle in handles:
            handle.remove()
    return found
