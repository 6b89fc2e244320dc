"""Attention forms: equal to literal references, to each other where algebra says so, and to the pretrained layer."""

import copy
import math

import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import Attention, AttentionRope, DiffAttention
from timm.models.eva import EvaAttention
from torch import nn

from rarevision.model.attention import AttentionError, DiffTransformer, Form, Paper, Preserve, Published
from rarevision.model.comparison import attention_maps, fold, strengths
from rarevision.model.heads import split_heads
from rarevision.model.replacement import FORMS, is_lambda, replace_attention

B, N, H, D = 2, 7, 4, 6
C = H * D
PAIRED = ("published", "paper", "difftransformer")


def layer(peaked=False, dtype=torch.float64, fused=True, heads=H, **kwargs):
    """A timm layer with weights of unit scale; `peaked`: attention as concentrated as a pretrained layer's."""
    attn = Attention(C, num_heads=heads, qkv_bias=True, **kwargs).to(dtype).eval()
    with torch.no_grad():
        for parameter in attn.parameters():
            parameter.normal_(std=C**-0.5)
        attn.qkv.weight[: 2 * C] *= 4 if peaked else 1
    attn.fused_attn = fused
    return attn


def trunk(dtype=torch.float32, **kwargs):
    """A small timm ViT whose blocks do something (timm's own start is almost the identity)."""
    model = timm.create_model("test_vit", num_classes=0, img_size=64, num_heads=4, **kwargs).to(dtype).eval()
    with torch.no_grad():
        for block in model.blocks:
            for linear in (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2):
                linear.weight.normal_(std=linear.in_features**-0.5)
            block.attn.qkv.weight[:128] *= 3
    return model


def weight(attn, one):
    """The literal softmax of head `one`'s queries with its own keys, as a function of the input."""

    def at(x):
        qkv = x @ attn.qkv.weight.T + attn.qkv.bias
        q, k = qkv[..., one * D : (one + 1) * D], qkv[..., C + one * D : C + (one + 1) * D]
        scores = torch.einsum("bid,bjd->bij", q, k) / math.sqrt(D)
        return scores.exp() / scores.exp().sum(-1, keepdim=True)

    return at


def value(attn, head, x):
    qkv = x @ attn.qkv.weight.T + attn.qkv.bias
    return qkv[..., 2 * C + head * D : 2 * C + (head + 1) * D]


def literal_lambda(form):
    per_head = [
        math.exp((form.lambda_q1[h] @ form.lambda_k1[h]).item())
        - math.exp((form.lambda_q2[h] @ form.lambda_k2[h]).item())
        for h in range(H // 2)
    ]
    return sum(per_head) / len(per_head) + form.lambda_init


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def x():
    return torch.randn(B, N, C, dtype=torch.float64)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("peaked", [True, False])
@pytest.mark.parametrize("groups", ["halves", "adjacent"])
def test_paper_is_the_softmax_difference(x, groups, peaked, fused, monkeypatch):
    monkeypatch.setattr(Paper, "maps_on_cpu", False)
    attn = layer(peaked, fused=fused)
    form = Paper(attn, 0.8, groups).double()
    pairs = [(0, 2), (1, 3)] if groups == "halves" else [(0, 1), (2, 3)]
    lam, heads = literal_lambda(form), [None] * H
    for one, two in pairs:
        difference = weight(attn, one)(x) - lam * weight(attn, two)(x)
        shared = torch.cat([value(attn, one, x), value(attn, two, x)], -1)  # V of width 2d
        heads[one], heads[two] = (difference @ shared).split(D, -1)
    expected = torch.cat(heads, -1) @ attn.proj.weight.T + attn.proj.bias
    torch.testing.assert_close(form(x), expected, rtol=1e-10, atol=1e-12)


def test_paper_rows_sum_to_one_minus_lambda_and_go_negative(x):
    form = Paper(layer(peaked=True), 0.8).double()
    maps = form.maps(x)
    rows = maps.difference.sum(-1)
    torch.testing.assert_close(rows, (1 - form.strength()).expand_as(rows))
    assert (maps.difference < 0).any()
    torch.testing.assert_close(maps.first.sum(-1), torch.ones_like(rows))


@pytest.mark.parametrize("fused", [True, False])
def test_published_is_what_the_released_code_computes(x, fused):
    attn = layer(peaked=True, fused=fused)
    form = Published(attn, 0.8).double()
    lam = literal_lambda(form)
    heads = [weight(attn, h)(x) @ value(attn, h, x) for h in range(H)]
    heads[:2] = [heads[0] - lam * heads[2], heads[1] - lam * heads[3]]
    expected = torch.cat(heads, -1) @ attn.proj.weight.T + attn.proj.bias
    torch.testing.assert_close(form(x), expected, rtol=1e-10, atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(lam=st.floats(-5, 5), peaked=st.booleans(), seed=st.integers(0, 99))
def test_published_folds_into_plain_attention_for_any_lambda(lam, peaked, seed):
    torch.manual_seed(seed)
    attn = layer(peaked)
    form = Published(copy.deepcopy(attn), lam).double()
    x = torch.randn(B, N, C, dtype=torch.float64)
    folded = fold(form)
    stock = layer()  # timm's own layer takes the folded weights under their own names
    stock.load_state_dict(folded.state_dict(), strict=True)
    torch.testing.assert_close(stock(x), form(x), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(form.proj.weight, attn.proj.weight, rtol=0, atol=0)  # the original is untouched


def test_folding_a_lambda_of_zero_changes_nothing(x):
    attn = layer()
    form = Published(attn, 0.0).double()
    for name in ("lambda_q1", "lambda_q2"):
        getattr(form, name).data.zero_()
    torch.testing.assert_close(fold(form).proj.weight, attn.proj.weight, rtol=0, atol=0)


def test_fold_refuses_what_stands_in_between():
    with pytest.raises(AttentionError, match="norm or a gate"):
        fold(Published(layer(scale_norm=True, norm_layer=nn.LayerNorm), 0.8))


@pytest.mark.parametrize("peaked", [True, False])
@pytest.mark.parametrize("lambda_init", [0.1, 0.5])
def test_preserve_starts_as_the_pretrained_function(peaked, lambda_init):
    attn = layer(peaked, torch.float32)
    x = torch.randn(B, 50, C)
    expected = copy.deepcopy(attn)(x)
    found = Preserve(attn, lambda_init)(x)
    assert (found - expected).norm() <= 1e-6 * expected.norm()


def test_preserve_equals_its_equation_after_the_start(x):
    attn = layer(peaked=True)
    form = Preserve(attn, 0.4).double()
    torch.testing.assert_close(form.strength(), torch.full((H,), 0.4, dtype=torch.float64), rtol=1e-6, atol=0)
    form.q2.weight.data.normal_(std=0.3)
    form.lambda_gain.data.uniform_(-0.4, 1.5)
    lam = form.strength()
    q2 = x @ form.q2.weight.T + form.q2.bias
    heads = []
    for h in range(H):
        k = (x @ attn.qkv.weight.T + attn.qkv.bias)[..., C + h * D : C + (h + 1) * D]
        second = (torch.einsum("bid,bjd->bij", q2[..., h * D : (h + 1) * D], k) / math.sqrt(D)).softmax(-1)
        heads.append((weight(attn, h)(x) - lam[h] * second) / (1 - lam[h]) @ value(attn, h, x))
    expected = torch.cat(heads, -1) @ attn.proj.weight.T + attn.proj.bias
    torch.testing.assert_close(form(x), expected, rtol=1e-10, atol=1e-12)
    form.fused_attn = False
    torch.testing.assert_close(form(x), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("fused", [True, False])
def test_preserve_trains_both_queries_at_once_and_lambda_from_the_second_step(x, fused):
    form = Preserve(layer(fused=fused), 0.5).double()
    target = torch.randn_like(x)

    def step():
        form.zero_grad()
        F.mse_loss(form(x), target).backward()
        return form.qkv.weight.grad[:C], form.q2.weight.grad, form.lambda_gain.grad

    first, second, gain = step()
    assert first.norm() > 0
    # d loss/d Q1 is scaled 1 / (1 - lambda) = 2, d loss/d Q2 -lambda / (1 - lambda) = -1
    torch.testing.assert_close(second, -first / 2)
    torch.testing.assert_close(gain, torch.zeros_like(gain), rtol=0, atol=1e-14)
    torch.optim.SGD(form.parameters(), lr=0.1).step()
    assert step()[2].abs().min() > 1e-8


@pytest.mark.parametrize("lambda_init", [0.0, 0.51, 0.8, -0.1])
def test_preserve_keeps_lambda_init_small(lambda_init):
    with pytest.raises(AttentionError, match=r"\(0, 0.5\]"):
        Preserve(layer(), lambda_init)


def test_preserve_is_one_attention_call_and_paper_has_equal_widths(x, monkeypatch):
    calls, genuine = [], F.scaled_dot_product_attention

    def spy(q, k, v, *args, **kwargs):
        calls.append((q.shape, k.shape, v.shape))
        return genuine(q, k, v, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    monkeypatch.setattr(Paper, "maps_on_cpu", False)
    Preserve(layer(), 0.5).double()(x)
    assert [tuple(map(tuple, c)) for c in calls] == [((B, H, 2 * N, D), (B, H, N, D), (B, H, N, D))]
    calls.clear()
    Paper(layer(), 0.8).double()(x)
    assert calls and all(q[-1] == k[-1] == v[-1] == D for q, k, v in calls)


def test_difftransformer_keeps_the_pretrained_weights(x):
    attn = layer(peaked=True, attn_drop=0.1, proj_drop=0.2)
    qkv, proj = attn.qkv.weight.clone(), attn.proj.weight.clone()
    new = DiffTransformer(attn, 3)
    assert isinstance(new, DiffAttention) and new.num_heads == H // 2 and new.head_dim == D
    torch.testing.assert_close(new.qkv.weight, qkv, rtol=0, atol=0)
    torch.testing.assert_close(new.proj.weight, proj, rtol=0, atol=0)
    assert new.lambda_init == pytest.approx(0.8 - 0.6 * math.exp(-0.9))
    assert (new.attn_drop_p, new.proj_drop.p) == (0.1, 0.2)
    new.eval()
    lam, heads = float(new._compute_lambda()), []
    for one in (0, 2):  # literal: adjacent heads, V of width 2d, RMS norm, times 1 - lambda_init
        shared = torch.cat([value(attn, one, x), value(attn, one + 1, x)], -1)
        y = (weight(attn, one)(x) - lam * weight(attn, one + 1)(x)) @ shared
        heads.append(y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (1 - new.lambda_init))
    expected = torch.cat(heads, -1) @ proj.T + attn.proj.bias
    torch.testing.assert_close(new(x), expected, rtol=1e-6, atol=1e-7)  # lambda is fp32


def build(form, attn):
    if form == "difftransformer":
        return DiffTransformer(attn, 1).double().eval()
    classes = {"plain": Form, "published": lambda a: Published(a, 0.8), "paper": lambda a: Paper(a, 0.8),
               "adjacent": lambda a: Paper(a, 0.8, "adjacent"), "preserve": lambda a: Preserve(a, 0.5)}  # fmt: skip
    new = classes[form](attn).double().eval()
    if form == "preserve":
        new.q2.weight.data.normal_(std=0.3)
    return new


MASKS = {
    "window": lambda: torch.ones(N, N).tril(2).triu(-2).bool(),
    "additive": lambda: torch.randn(N, N, dtype=torch.float64),
    "per head": lambda: torch.randn(B, H, N, N, dtype=torch.float64),
    "padding": lambda: (torch.arange(N) < N - 2).view(1, 1, 1, N),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", ["plain", "published", "paper", "adjacent", "preserve"])
def test_masks_mean_the_same_fused_and_literal(x, form, mask, monkeypatch):
    monkeypatch.setattr(Paper, "maps_on_cpu", False)
    mask, new = MASKS[mask](), build(form, layer(peaked=True))
    fused = new(x, attn_mask=mask)
    new.fused_attn = False
    torch.testing.assert_close(new(x, attn_mask=mask), fused, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(new(x), fused, rtol=1e-3)  # the mask is not ignored


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("form", ["plain", "published", "paper", "adjacent", "difftransformer", "preserve"])
def test_a_causal_layer_does_not_see_later_tokens(x, form, fused, monkeypatch):
    monkeypatch.setattr(Paper, "maps_on_cpu", False)
    new = build(form, layer(peaked=True, fused=fused))
    changed = x.clone()
    changed[:, 4:] += 1
    torch.testing.assert_close(new(x, is_causal=True)[:, :4], new(changed, is_causal=True)[:, :4])
    assert not torch.allclose(new(x)[:, :4], new(changed)[:, :4], rtol=1e-3)
    torch.testing.assert_close(new(x, is_causal=True), new(x, attn_mask=torch.ones(N, N).tril().bool()))
    if form != "difftransformer":
        with pytest.raises(ValueError, match="not both"):
            new(x, attn_mask=torch.ones(N, N).bool(), is_causal=True)


@pytest.mark.parametrize("form", ["plain", "published", "paper", "adjacent", "preserve", "difftransformer"])
def test_maps_times_values_give_the_layer(x, form):
    """The maps that the figures show are the maps that the layer uses."""
    new = build(form, layer(peaked=True))
    host = nn.Module()
    host.blocks = nn.ModuleList([nn.Module()])
    host.blocks[0].attn = new
    host.forward = lambda images: new(images)
    (maps,) = attention_maps(host, x)
    _, _, v = split_heads(new, x)
    if form in ("plain", "published"):
        both = maps.first if maps.second is None else torch.cat([maps.first, maps.second], 1)
        heads = both @ v
        if form == "published":
            heads = torch.cat([heads[:, :2] - new.strength() * heads[:, 2:], heads[:, 2:]], 1)
    elif form == "preserve":
        heads = maps.difference @ v
    else:
        one, two = (v.chunk(2, 1)) if form == "paper" else (v[:, 0::2], v[:, 1::2])
        both = maps.difference @ one, maps.difference @ two
        heads = torch.cat(both, 1) if form == "paper" else torch.stack(both, 2).flatten(1, 2)
    if form == "difftransformer":
        pair = heads.unflatten(1, (2, 2)).transpose(2, 3).flatten(3)  # [B, pairs, N, 2d]
        heads = (new.sub_norm(pair) * (1 - new.lambda_init)).unflatten(3, (2, D)).transpose(2, 3).flatten(1, 2)
    expected = new.proj(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(expected, new(x), rtol=1e-6, atol=1e-8)


PARTS = {
    "query and key norm": {"qk_norm": True, "norm_layer": nn.LayerNorm},
    "norm of the heads": {"scale_norm": True, "norm_layer": nn.LayerNorm},
    "gate": {"gated": True},
    "narrow heads": {"attn_head_dim": 4},
}


@pytest.mark.parametrize("kwargs", PARTS.values(), ids=PARTS)
def test_every_part_of_timms_layer_is_carried_over(x, kwargs):
    attn = Attention(C, num_heads=H, qkv_bias=True, **kwargs).double().eval()
    for parameter in attn.parameters():
        nn.init.normal_(parameter, std=0.2)
    expected = attn(x)
    torch.testing.assert_close(Form(attn)(x), expected)
    torch.testing.assert_close(Preserve(attn, 0.5).double()(x), expected)


@pytest.mark.parametrize("cls", [EvaAttention, AttentionRope])
@pytest.mark.parametrize("fused_qkv", [True, False])
@pytest.mark.parametrize("rotate_half", [True, False])
def test_rotary_layers_are_carried_over(x, cls, fused_qkv, rotate_half):
    dim = H * 8
    attn = cls(dim, H, qkv_fused=fused_qkv, rotate_half=rotate_half, norm_layer=nn.LayerNorm).double().eval()
    for parameter in attn.parameters():
        nn.init.normal_(parameter, std=0.3)
    x, rope = torch.randn(B, N, dim, dtype=torch.float64), torch.randn(N - 1, 16, dtype=torch.float64)
    expected = attn(x, rope=rope)
    torch.testing.assert_close(Form(attn)(x, rope=rope), expected)
    torch.testing.assert_close(Preserve(attn, 0.5).double()(x, rope=rope), expected)
    assert not torch.allclose(Form(attn)(x), expected)


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "vit_small_patch14_dinov2"])
def test_preserve_keeps_the_dino_trunks(name):
    model = timm.create_model(name, num_classes=0, img_size=56 if "14" in name else 64, depth=2, init_values=1.0).eval()
    images = torch.randn(2, 3, *model.patch_embed.img_size)
    expected = model(images)
    found = replace_attention(copy.deepcopy(model), "preserve", lambda_init=0.5)(images)
    assert (found - expected).norm() <= 2e-6 * expected.norm()
    changed = replace_attention(copy.deepcopy(model), "paper")(images)
    assert (changed - expected).norm() > 1e-3 * expected.norm()


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_trunk_is_replaced_and_the_old_weights_stay(form):
    model = trunk()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    replace_attention(model, form, lambda_init=0.5)
    after = model.state_dict()
    assert all(torch.equal(after[k], v) for k, v in before.items())
    added = set(after) - set(before)
    assert all(any(s in name for s in ("lambda_", "q2.", "sub_norm")) for name in added) and (form == "plain") == (
        not added
    )
    assert strengths(model).shape == (6, {"plain": 0, "preserve": 4}.get(form, 1))
    images = torch.randn(2, 3, 64, 64)
    model.train()
    model(images, attn_mask=None).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert len(attention_maps(model, images)) == 6 and attention_maps(model, images)[0].first.shape[-2:] == (17, 17)


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_a_trunk_stays_in_the_mode_it_was_in(form, mode):
    """Else an evaluated trunk would drop attention weights at random."""
    model = replace_attention(trunk(attn_drop_rate=0.5).train(mode), form, lambda_init=0.5)
    assert {part.training for part in model.modules()} == {mode}
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(model(images), model(images)) != mode


@pytest.mark.parametrize("form", ["published", "paper", "preserve", "difftransformer"])
def test_lambdas_stay_fp32_and_learn_under_autocast(form):
    model = replace_attention(trunk(torch.bfloat16), form, lambda_init=0.5)
    lambdas = {n: p for n, p in model.named_parameters() if is_lambda(n)}
    assert lambdas and all(p.dtype == torch.float32 for p in lambdas.values())
    model = replace_attention(trunk(), form, lambda_init=0.5)
    if form == "preserve":
        for block in model.blocks:
            block.attn.q2.weight.data.mul_(1.5)
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, 3, 64, 64)).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for n, p in model.named_parameters() if is_lambda(n))


@pytest.mark.parametrize("form", PAIRED)
def test_odd_heads_are_refused(form):
    with pytest.raises(AttentionError, match=r"block 0: 3 heads cannot be paired for .*even number"):
        replace_attention(timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, depth=1), form)


def test_odd_heads_are_fine_where_none_are_paired():
    odd = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, depth=1)
    replace_attention(odd, "preserve", lambda_init=0.5)
    assert odd.blocks[0].attn.lambda_gain.shape == (3,)


def test_other_trunks_and_names_are_refused():
    with pytest.raises(AttentionError, match="ResNet has no transformer blocks"):
        replace_attention(timm.create_model("resnet18"), "paper")
    with pytest.raises(AttentionError, match="'difference' is not one of plain"):
        replace_attention(trunk(), "difference")
    with pytest.raises(AttentionError, match="Paper cannot be replaced"):
        replace_attention(replace_attention(trunk(), "paper"), "preserve", lambda_init=0.5)
    with pytest.raises(AttentionError, match="rotary positions"):
        replace_attention(timm.create_model("vit_small_patch16_dinov3", img_size=32, depth=1), "difftransformer")
