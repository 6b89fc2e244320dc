"""The frame model: heads against their formulas, groups, autocast, rebuilding, and other trunks."""

import dataclasses
import json
import math

import numpy as np
import open_clip
import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load, save

from phantom.twin import build_twin
from rarevision.config import Model, Train
from rarevision.labels import prompts
from rarevision.model import frame_model, weights
from rarevision.model.attention import AttentionError
from rarevision.model.frame_model import (
    MAX_TAU,
    Excitation,
    build_model,
    encode_prompts,
    restore_model,
    text_embeddings,
)
from rarevision.model.replacement import FORMS
from rarevision.model.weights import ModelError


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    return build_twin(
        tmp_path_factory.mktemp("models") / "twin", image_size=32, grid=4, width=32, depth=2, embed_dim=48
    )


@pytest.fixture
def config(twin):
    return Model(source=str(twin), attention="preserve", lambda_init=0.5)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def images():
    return torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)


def test_excitation_is_its_formula():
    block = Excitation(32, 16).double().train()
    x = torch.randn(6, 32, dtype=torch.float64)
    y = x * torch.sigmoid(torch.relu(x @ block.w1.weight.T) @ block.w2.weight.T)
    expected = (y - y.mean(0)) / (y.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(block(x), expected)
    assert block.w1.out_features == 2
    assert Excitation(8, 16).w1.out_features == 1


@pytest.mark.parametrize("form", FORMS)
def test_every_form_trains_end_to_end(config, images, form):
    model = build_model(dataclasses.replace(config, attention=form)).train()
    output = model(images)
    assert output.logits.shape == output.contrastive.shape == (5, 17) and output.embeddings.shape == (5, 48)
    (output.logits.square().mean() + output.contrastive.square().mean()).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_contrastive_is_scaled_cosine_with_a_clamped_temperature(config, images):
    text = F.normalize(torch.randn(17, 48), dim=-1)
    model = build_model(config, text).eval()
    output = model(images)
    e = output.embeddings / output.embeddings.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(output.contrastive, e @ text.T / 0.07)
    model.train()
    model.tau.data.fill_(10.0)
    assert model(images).contrastive.abs().max() <= 100.01
    assert model.tau.item() == pytest.approx(math.log(100)) and model.tau.item() <= MAX_TAU + 1e-6
    model(images).contrastive.square().mean().backward()
    assert model.tau.grad.abs() > 0  # at the limit it can still come down


def test_plain_attention_is_the_source_itself(config, images, twin):
    """Normalisation, trunk and projection: the embeddings are open_clip's own image features."""
    clip, _ = weights.load_weights(config)
    model = build_model(dataclasses.replace(config, attention="plain")).eval()
    mean, std = (torch.tensor(clip.visual.preprocess_cfg[k]).view(1, 3, 1, 1) for k in ("mean", "std"))
    expected = clip.eval().encode_image((images / 255 - mean) / std)
    torch.testing.assert_close(model(images).embeddings, expected)
    torch.testing.assert_close(model(images.float() / 255).embeddings, expected)
    preserved = build_model(config).eval()(images).embeddings
    torch.testing.assert_close(preserved, expected, rtol=1e-4, atol=1e-6)


def test_text_embeddings_carry_no_dropout_noise(config):
    first, second = text_embeddings(config), text_embeddings(config)
    assert first.shape == (17, 48) and first.dtype == torch.float32 and not first.requires_grad
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first.norm(dim=-1), torch.ones(17))
    clip, folder = weights.load_weights(config)
    tokens = open_clip.get_tokenizer(f"local-dir:{folder}")(prompts())
    noisy = F.normalize(clip.train().encode_text(tokens), dim=-1)
    assert (noisy - first).abs().max() > 1e-3  # what training mode would have given
    torch.testing.assert_close(encode_prompts(clip, folder, config), first, rtol=0, atol=0)
    torch.testing.assert_close(build_model(config).text, first, rtol=0, atol=0)
    assert not torch.allclose(text_embeddings(dataclasses.replace(config, prompt="{label}")), first)


def test_the_text_tower_is_gone_and_weights_are_not_shared(config):
    model = build_model(config)
    names = dict(model.named_parameters())
    assert not any(name.startswith("text") or "embeddings" in name for name in names)
    assert sum(p.numel() for p in names.values()) < sum(p.numel() for p in weights.load_weights(config)[0].parameters())
    assert set(load(save(model.state_dict()))) == set(model.state_dict())  # safetensors refuses shared tensors


def test_logits_and_heads_stay_fp32_under_autocast(config, images):
    model = build_model(config).train()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(images)
    assert {t.dtype for t in output} == {torch.float32}
    (output.logits.sum() + output.contrastive.sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("form", FORMS)
def test_parameter_groups_hold_every_parameter_once(config, form):
    train = Train(lr_backbone=1e-4, lr_heads=3e-4, weight_decay=0.01)
    model = build_model(dataclasses.replace(config, attention=form))
    groups = {g["name"]: g for g in model.parameter_groups(train)}
    held = [id(p) for g in groups.values() for p in g["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    names = {id(p): n for n, p in model.named_parameters()}
    named = {name: {names[id(p)] for p in g["params"]} for name, g in groups.items()}
    assert ("lambdas" in named) == (form != "plain")
    assert all("lambda_" in n for n in named.get("lambdas", ()))
    assert named["heads"] == {"excitation.w1.weight", "excitation.w2.weight", "classifier.weight"}
    assert named["heads, no decay"] == {"excitation.norm.weight", "excitation.norm.bias", "classifier.bias", "tau"}
    assert {"trunk.pos_embed", "trunk.cls_token", "trunk.norm.weight", "trunk.blocks.0.attn.qkv.bias"} <= named[
        "backbone, no decay"
    ]
    assert {"trunk.blocks.0.attn.qkv.weight", "projection.weight", "trunk.patch_embed.proj.weight"} <= named["backbone"]
    assert {n: (g["lr"], g["weight_decay"]) for n, g in groups.items() if n != "lambdas"} == {
        "backbone": (1e-4, 0.01),
        "backbone, no decay": (1e-4, 0.0),
        "heads": (3e-4, 0.01),
        "heads, no decay": (3e-4, 0.0),
    }
    if form != "plain":
        assert (groups["lambdas"]["lr"], groups["lambdas"]["weight_decay"]) == (3e-4, 0.0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("contrastive", [True, False])
def test_a_trained_model_is_rebuilt_from_recipe_and_weights_alone(config, images, monkeypatch, form, contrastive):
    model = build_model(dataclasses.replace(config, attention=form, groups="adjacent", contrastive=contrastive)).train()
    model(images).logits.sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    recipe, state = json.loads(json.dumps(model.recipe)), model.state_dict()
    monkeypatch.setattr(frame_model, "load_weights", None)
    again = restore_model(recipe, load(save(state)))
    model.eval()
    for one, two in zip(model(images), again(images), strict=True):
        assert one is two is None or torch.equal(one, two)
    with pytest.raises(ModelError, match="do not fit"):
        restore_model(recipe, {k: v for k, v in state.items() if k != "classifier.bias"})
    with pytest.raises(ModelError, match="do not fit"):
        restore_model(recipe, state | {"text.transformer": torch.zeros(1)})


def test_the_bias_starts_at_the_label_prior(config):
    prevalence = np.linspace(0, 1, 17)
    bias = build_model(dataclasses.replace(config, prior_bias=True), prevalence=prevalence).classifier.bias
    np.testing.assert_allclose(torch.sigmoid(bias).detach()[1:-1], prevalence[1:-1], rtol=1e-5)
    assert torch.isfinite(bias).all()
    with pytest.raises(ModelError, match="prevalence"):
        build_model(dataclasses.replace(config, prior_bias=True))


@pytest.mark.parametrize("size", [0, 64])
@pytest.mark.parametrize("trunk", ["test_vit", "vit_small_patch16_dinov3"])
def test_any_timm_vit_can_stand_in(config, trunk, size, monkeypatch):
    made, create = [], timm.create_model

    def small(name, **kwargs):  # DINOv3's layers, two of them
        made.append(name)
        return create(name, **kwargs, **({"depth": 2} if "dino" in name else {}))

    monkeypatch.setattr(timm, "create_model", small)
    model = build_model(dataclasses.replace(config, trunk=trunk, image_size=size, attention="paper")).eval()
    assert model.image_size == size or (not size and model.image_size in (160, 256))
    x = torch.randint(0, 256, (2, 3, model.image_size, model.image_size), dtype=torch.uint8)
    output = model(x)
    assert output.embeddings.shape == (2, 48)  # projected to the text embeddings' space
    again = restore_model(json.loads(json.dumps(model.recipe)), model.state_dict())
    assert torch.equal(again(x).logits, output.logits) and set(made) >= {trunk}


def test_a_trunk_alone_needs_no_source():
    model = build_model(Model(source="nowhere", trunk="test_vit", contrastive=False, image_size=32)).eval()
    assert model(torch.zeros(1, 3, 32, 32)).embeddings.shape == (1, 64)


def test_a_trunk_comes_from_a_folder_in_timms_format(config, tmp_path):
    genuine = timm.create_model("test_vit", num_classes=0, img_size=32, patch_size=8)
    (tmp_path / "model.safetensors").write_bytes(save(genuine.state_dict()))
    cfg = {
        "architecture": "test_vit",
        "model_args": {"img_size": 32, "patch_size": 8},
        "pretrained_cfg": {"num_classes": 0},
    }
    (tmp_path / "config.json").write_text(json.dumps(cfg))
    model = build_model(dataclasses.replace(config, trunk=f"local-dir:{tmp_path}")).eval()
    assert model.image_size == 32
    for name, value in genuine.state_dict().items():
        torch.testing.assert_close(model.trunk.state_dict()[name], value, rtol=0, atol=0)
    x = torch.zeros(2, 3, 32, 32)
    assert torch.equal(restore_model(model.recipe, model.state_dict())(x).logits, model(x).logits)


@pytest.mark.parametrize("trunk", ["vit_enormous", "local-dir:nowhere", "resnet18"])
def test_a_trunk_that_cannot_be_used_is_named(config, trunk):
    with pytest.raises((ModelError, AttentionError), match=r"vit_enormous|nowhere|ResNet"):
        build_model(dataclasses.replace(config, trunk=trunk))


def test_another_image_size_interpolates_the_positions(config):
    model = build_model(dataclasses.replace(config, image_size=64)).eval()
    assert model.image_size == 64 and model.trunk.pos_embed.shape[1] == 65
    x = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    assert torch.equal(restore_model(model.recipe, model.state_dict())(x).logits, model(x).logits)


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 3, 32, 31), (2, 32, 32, 3), (2, 3, 64, 64)])
def test_images_of_another_shape_are_refused(config, shape):
    with pytest.raises(ValueError, match=r"must be \[B, 3, 32, 32\]"):
        build_model(config)(torch.zeros(shape, dtype=torch.uint8))


def test_text_embeddings_of_another_source_are_refused(config):
    with pytest.raises(ModelError, match=r"\(17, 64\) do not fit"):
        build_model(config, torch.zeros(17, 64))
