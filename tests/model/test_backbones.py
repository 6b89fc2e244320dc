"""Trunks other than BiomedCLIP's: which forms of attention each takes, and weights from other people's files."""

import argparse
import dataclasses
import json
import re
import sys

import open_clip
import pytest
import timm
import torch
from safetensors.torch import save_file

from rarevision.config import Model, Train
from rarevision.errors import UserError
from rarevision.model import FORMS, build_model, comparison, restore_model, text_embeddings
from rarevision.model.checkpoint_file import load_checkpoint_file
from rarevision.model.weights import ModelError
from rarevision.run import command

SMALL = {"depth": 2, "embed_dim": 48, "num_heads": 4}
ALL = set(FORMS)
UNTURNED = ALL - {"difftransformer"}  # where positions are rotary: timm's differential layer knows none
# What it is -> timm's name, arguments that make it small, image size in px, the forms that apply
TRANSFORMERS = {
    "DeiT": ("deit_small_patch16_224", SMALL, 48, ALL),
    "ViT-S": ("vit_small_patch16_224", SMALL, 48, ALL),
    "ViT, norms of queries and keys": ("vit_small_patch16_224", SMALL | {"qk_norm": True}, 48, ALL),
    "ViT, three heads": ("vit_small_patch16_224", SMALL | {"num_heads": 3}, 48, {"plain", "preserve"}),
    "ViT, registers and mean": ("test_vit2", {}, 64, ALL),
    "ViT, rotary": ("vit_small_patch16_rope_224", SMALL, 48, UNTURNED),
    "DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", SMALL, 42, ALL),
    "SigLIP with attention pooling": ("vit_base_patch16_siglip_224", SMALL, 48, ALL),
    "CLIP": ("vit_base_patch16_clip_quickgelu_224", SMALL, 48, ALL),
    "DINOv3": ("vit_small_patch16_dinov3", SMALL, 48, UNTURNED),
    "DINOv3 with biases": ("vit_small_patch16_dinov3_qkvb", SMALL, 48, UNTURNED),
    "EVA-02": ("eva02_tiny_patch14_224", SMALL, 42, UNTURNED),
    "EVA-02, norms of queries and keys": ("eva02_tiny_patch14_224", SMALL | {"qk_norm": True}, 42, UNTURNED),
    "EVA-CLIP": ("eva02_base_patch16_clip_224", SMALL, 48, UNTURNED),
}
REFUSED = {
    "difftransformer": r"^block 0: timm's DiffAttention cannot take over .*rotary positions$",
    "ViT, three heads": r"^block 0: 3 heads cannot be paired for .* or 'preserve'$",
}
OTHERS = {
    "resnet18": ({}, 64),
    "convnext_atto": ({}, 64),
    "swin_tiny_patch4_window7_224": ({"depths": [1, 1], "embed_dim": 24, "num_heads": [2, 4]}, 56),
    "test_maxvit": ({}, 64),
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def drawn(name, arguments, size):
    """A random trunk all of whose parts matter: timm starts with small weights and layer scales of 1e-5."""
    arguments = dict(arguments) | ({"img_size": size} if "resnet" not in name and "convnext" not in name else {})
    trunk = timm.create_model(name, num_classes=0, **arguments).eval()
    with torch.no_grad():
        for key, value in trunk.named_parameters():
            if value.ndim > 1 and "relative_position" not in key:
                value.normal_(std=value[0].numel() ** -0.5)
            elif "gamma" in key:
                value.uniform_(0.5, 1.0)
            elif "bias" in key:
                value.normal_(std=0.1)
    return trunk, arguments


def folder(path, name, arguments, size):
    """A trunk in timm's folder format; returns the settings that take it, without any source of texts."""
    trunk, arguments = drawn(name, arguments, size)
    save_file({key: value.contiguous() for key, value in trunk.state_dict().items()}, path / "model.safetensors")
    pixels = {"num_classes": 0, "mean": [0.5, 0.4, 0.3], "std": [0.3, 0.2, 0.25]}
    described = {"architecture": name, "model_args": arguments, "pretrained_cfg": pixels}
    (path / "config.json").write_text(json.dumps(described))
    return Model(source="", trunk=f"local-dir:{path}", image_size=size, attention="plain", lambda_init=0.4)


def pictures(size):
    return torch.randint(0, 256, (3, 3, size, size), dtype=torch.uint8)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_every_form_applies_or_says_why_not(tmp_path, name):
    *described, size, fitting = TRANSFORMERS[name]
    plain = folder(tmp_path, *described, size)
    images, embeddings = pictures(size), {}
    for form in FORMS:
        settings = dataclasses.replace(plain, attention=form)
        if form not in fitting:
            with pytest.raises(UserError, match=REFUSED.get(name, REFUSED["difftransformer"])):
                build_model(settings)
            continue
        model = build_model(settings).eval()
        assert model.tau is None and model.text is None  # no text tower, no contrastive head
        with torch.no_grad():
            embeddings[form] = model(images).embeddings
        model.train()(images).logits.square().mean().backward()
        assert all(p.grad is not None for p in model.trunk.blocks.parameters())
        model.eval()
        again = restore_model(json.loads(json.dumps(model.recipe)), model.state_dict())
        assert torch.equal(again(images).logits, model(images).logits)
    scale = embeddings["plain"].abs().max()
    torch.testing.assert_close(embeddings["preserve"] / scale, embeddings["plain"] / scale, rtol=0, atol=1e-5)
    for form in fitting - {"plain", "preserve"}:  # attention matters in this trunk: another form gives other features
        assert ((embeddings[form] - embeddings["plain"]) / scale).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["ViT, norms of queries and keys", "DINOv3", "EVA-02, norms of queries and keys"])
def test_rotary_positions_and_norms_enter_both_maps(tmp_path, name):
    """Q2 starts as a copy of Q: the second map is the pretrained one only if Q2 is normalised and turned as Q is."""
    *described, size, _ = TRANSFORMERS[name]
    model = build_model(folder(tmp_path, *described, size))
    images = model.normalise(pictures(size))
    plain = comparison.attention_maps(model.trunk, images)
    preserve = comparison.attention_maps(comparison.with_attention(model.trunk, "preserve"), images)
    for one, two in zip(plain, preserve, strict=True):
        assert one.first.std() > 0.01  # the heads look somewhere
        torch.testing.assert_close(two.first, one.first, rtol=0, atol=1e-6)
        torch.testing.assert_close(two.second, one.first, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_convolutions_and_windows_are_plain_alone(tmp_path, name):
    arguments, size = OTHERS[name]
    plain = folder(tmp_path, name, arguments, size)
    model, images = build_model(plain).eval(), pictures(size)
    output = model(images)
    assert model.recipe["mean"] == [0.5, 0.4, 0.3] and model.recipe["std"] == [0.3, 0.2, 0.25]
    assert output.logits.shape == (3, 17) and output.embeddings.shape == (3, model.trunk.num_features)
    again = restore_model(json.loads(json.dumps(model.recipe)), model.state_dict())
    assert torch.equal(again(images).logits, output.logits)
    held = [p for group in model.parameter_groups(Train()) for p in group["params"]]
    assert len(held) == len(list(model.parameters()))
    for form in FORMS[1:]:
        with pytest.raises(UserError, match=r"no transformer blocks.*model.attention = 'plain'") as refused:
            build_model(dataclasses.replace(plain, attention=form))
        assert "\n" not in str(refused.value)
    assert comparison.fitting_forms(model.trunk)[0] == ["plain"]
    assert list(comparison.feature_drift(model.trunk, model.normalise(images)).place) == ["features"]
    assert comparison.attention_cost(model.trunk, size).variant.tolist() == ["plain"]


@pytest.fixture
def vit():
    """A random trunk, its state dict, and a second trunk of the same architecture to be loaded."""
    trunk, arguments = drawn("vit_small_patch16_224.dino", SMALL, 48)
    return trunk.state_dict(), timm.create_model("vit_small_patch16_224.dino", num_classes=0, **arguments)


def prefixed(state, prefix):
    return {prefix + name: value for name, value in state.items()}


def dino(state):
    """A training checkpoint as DINO writes it (GastroNet's ViT-S is one): two networks, their heads, and settings."""
    student = prefixed({name: value + 1 for name, value in state.items()}, "module.backbone.")
    teacher = prefixed(state, "backbone.") | {"head.mlp.0.weight": torch.zeros(3, 3)}
    optimizer = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": []}
    return {
        "student": student,
        "teacher": teacher,
        "optimizer": optimizer,
        "args": argparse.Namespace(arch="vit_small"),
    }


def video(state):
    """As EndoFM's: a video transformer, whose space attention is a ViT's, with layers and a table for time besides."""
    blocks = {f"backbone.blocks.{i}.temporal_attn.qkv.weight": torch.zeros(2, 2) for i in range(2)}
    return {"teacher": prefixed(state, "backbone.") | blocks | {"backbone.time_embed": torch.zeros(1, 8, 48)}}


FILES = {
    "names as timm's": (lambda state: state, ["30 of 30 tensors of vit_small_patch16_224"]),
    "a wrapped model": (lambda state: {"state_dict": prefixed(state, "module.")}, ["30 of 30"]),
    "another project's prefix": (lambda state: prefixed(state, "net.encoder.vit."), ["behind 'net.encoder.vit.'"]),
    "DINO": (dino, ["are in teacher, their names behind 'backbone.'", "not used: head.mlp.*.weight"]),
    "EndoFM": (video, ["30 of 30", r"blocks.*.temporal_attn.qkv.weight (2), time_embed"]),
}


@pytest.mark.parametrize("kind", FILES)
def test_weights_come_from_other_peoples_files(tmp_path, vit, kind):
    state, trunk = vit
    write, expected = FILES[kind]
    torch.save(write(state), tmp_path / "weights.pth")
    report = load_checkpoint_file(trunk, tmp_path / "weights.pth")
    for words in expected:
        assert words in report
    for name, value in trunk.state_dict().items():
        assert torch.equal(value, state[name])


def test_positions_are_resampled_and_said_so(tmp_path, vit):
    state, _ = vit
    save_file(state, tmp_path / "weights.safetensors")
    trunk = timm.create_model("vit_small_patch16_224.dino", num_classes=0, **SMALL, img_size=96)
    assert "resampled: pos_embed 1x10x48 to 1x37x48" in load_checkpoint_file(trunk, tmp_path / "weights.safetensors")
    assert (
        torch.equal(trunk.pos_embed[:, 0], state["pos_embed"][:, 0]) and trunk.pos_embed[:, 1:].std() > 0.03
    )  # timm draws 0.02


def test_the_names_of_the_original_clip_are_timms_to_rename(tmp_path):
    clip = open_clip.model.CLIP(32, {**VISION, "image_size": 48}, TEXT, quick_gelu=True).eval()
    torch.save(clip.state_dict(), tmp_path / "clip.pt")
    trunk = timm.create_model("vit_base_patch16_clip_quickgelu_224", num_classes=0, img_size=48, **SMALL).eval()
    report = load_checkpoint_file(trunk, tmp_path / "clip.pt")
    x = torch.randn(2, 3, 48, 48)
    torch.testing.assert_close(trunk(x) @ clip.visual.proj, clip.visual(x), rtol=1e-4, atol=1e-5)
    assert "not used: head.bias, head.weight" in report


UNFIT = {
    "a block is missing": (
        lambda s: {k: v for k, v in s.items() if "blocks.1." not in k},
        "not in the file: blocks.*.attn",
    ),
    "another width": (lambda s: s | {"norm.weight": torch.ones(64)}, "of another shape: norm.weight 64 instead of 48"),
    "another network": (lambda s: {"layer1.conv.weight": torch.zeros(2)}, "0 of 30 tensors"),
    "no tensors": (lambda s: {"epoch": 3}, "holds no dictionary of tensors"),
    "a list": (lambda s: [1, 2], "not readable as weights"),
    "a pickled class": (lambda s: {"state_dict": s, "model": Evil()}, "not readable as weights"),
}


class Evil:
    def __reduce__(self):
        return print, ("code from a weights file was run",)


@pytest.mark.parametrize("kind", UNFIT)
def test_weights_that_do_not_fit_are_listed(tmp_path, vit, kind, capfd):
    state, trunk = vit
    before = {name: value.clone() for name, value in trunk.state_dict().items()}
    write, message = UNFIT[kind]
    torch.save(write(state), tmp_path / "weights.pth")
    with pytest.raises(ModelError, match=f"(?s)weights.pth: .*{re.escape(message)}"):
        load_checkpoint_file(trunk, tmp_path / "weights.pth")
    assert all(torch.equal(value, before[name]) for name, value in trunk.state_dict().items())
    assert "was run" not in capfd.readouterr().out


def test_a_file_can_be_tried_before_a_run(tmp_path, capsys):
    state = timm.create_model("test_vit", num_classes=10).state_dict()
    torch.save({"model": state}, tmp_path / "mine.pth")
    assert command.main(["weights", str(tmp_path / "mine.pth"), "--trunk", "test_vit"]) == 0
    assert "tensors of test_vit are in it" in capsys.readouterr().out
    assert command.main(["weights", str(tmp_path / "mine.pth"), "--trunk", "test_vit2"]) == 1
    assert "not in the file: " in capsys.readouterr().err


def test_a_model_takes_a_trunk_from_a_file(tmp_path):
    state = timm.create_model("test_vit", num_classes=10, img_size=64).state_dict()
    save_file(state, tmp_path / "mine.safetensors")
    settings = Model(source="", trunk="test_vit", trunk_weights=str(tmp_path / "mine.safetensors"), image_size=64)
    assert text_embeddings(settings).shape == (17, 0)
    model = build_model(settings, text_embeddings(settings)).eval()
    assert torch.equal(model.trunk.patch_embed.proj.weight, state["patch_embed.proj.weight"])
    assert "not used: head.bias, head.weight" in model.recipe["trunk_weights"]
    images = pictures(64)
    assert torch.equal(restore_model(model.recipe, model.state_dict())(images).logits, model(images).logits)
    with pytest.raises(ModelError, match="no such file"):
        build_model(dataclasses.replace(settings, trunk_weights="nowhere.pth"))


VISION = {"layers": 2, "width": 48, "head_width": 12, "patch_size": 16, "image_size": 48}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
SIGLIP, EVA = "vit_base_patch16_siglip_224", "eva02_base_patch16_clip_224"
TOWERS = {  # open_clip's settings of an image tower, and the width of the joint space
    "OpenAI's CLIP": ({"vision_cfg": VISION, "quick_gelu": True}, 32),
    "CLIP with GELU": ({"vision_cfg": VISION | {"patch_size": 24}}, 32),
    "SigLIP": (
        {"vision_cfg": {"timm_model_name": SIGLIP, "timm_pool": "map", "timm_proj": "none", "image_size": 48}},
        48,
    ),
    "EVA-CLIP": (
        {"vision_cfg": {"timm_model_name": EVA, "timm_pool": "token", "timm_proj": None, "image_size": 48}},
        32,
    ),
}


def clip_folder(path, name):
    """An open_clip folder with random weights, its timm trunk made small by a description of its own."""
    config, width = TOWERS[name]
    vision, kind = dict(config["vision_cfg"]), open_clip.model.CLIP
    if architecture := vision.get("timm_model_name"):
        (path / "trunk").mkdir()
        small = {"architecture": architecture, "model_args": SMALL | {"img_size": 48}, "pretrained_cfg": {}}
        (path / "trunk" / "config.json").write_text(json.dumps(small))
        vision["timm_model_name"], kind = f"local-dir:{path / 'trunk'}", open_clip.model.CustomTextCLIP
    model = {"embed_dim": width, **config, "vision_cfg": vision, "text_cfg": TEXT}
    clip = kind(**model).eval()
    if architecture:
        model |= {"custom_text": True, "vision_cfg": vision | {"timm_model_name": "local-dir:trunk"}}
    preprocess = {"mean": [0.5, 0.4, 0.3], "std": [0.3, 0.2, 0.25]}
    (path / "open_clip_config.json").write_text(json.dumps({"model_cfg": model, "preprocess_cfg": preprocess}))
    save_file(clip.state_dict(), path / "open_clip_model.safetensors")
    return clip


@pytest.mark.parametrize("name", TOWERS)
def test_any_open_clip_folder_is_a_source(tmp_path, name):
    clip, images = clip_folder(tmp_path, name), pictures(48)
    settings = Model(source=str(tmp_path), attention="preserve", lambda_init=0.4)
    model = build_model(settings).eval()
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in ([0.5, 0.4, 0.3], [0.3, 0.2, 0.25]))
    torch.testing.assert_close(
        model(images).embeddings, clip.encode_image((images / 255 - mean) / std), rtol=1e-4, atol=1e-5
    )
    assert model(images).contrastive.shape == (3, 17)  # it has a text tower: the head is there
    again = restore_model(json.loads(json.dumps(model.recipe)), model.state_dict())
    assert torch.equal(again(images).contrastive, model(images).contrastive)


@pytest.mark.parametrize(
    ("vision", "message"),
    [
        (VISION | {"attentional_pool": True, "attn_pooler_heads": 4}, "parts or settings that OpenAI's CLIP"),
        (VISION | {"pool_type": "avg"}, "parts or settings that OpenAI's CLIP"),
        (VISION | {"layers": [1, 1, 1, 1]}, "image tower ModifiedResNet is not a timm model"),
        (
            {"timm_model_name": "test_vit", "timm_proj": "mlp", "image_size": 160},
            "projection 'mlp' .* is not supported",
        ),
    ],
)
def test_other_image_towers_are_refused_in_a_line(tmp_path, monkeypatch, vision, message):
    monkeypatch.setitem(TOWERS, "other", ({"vision_cfg": vision}, 32))
    if "timm_model_name" in vision:
        monkeypatch.setattr(sys.modules[__name__], "SMALL", {})
    clip_folder(tmp_path, "other")
    with pytest.raises(ModelError, match=message) as refused:
        build_model(Model(source=str(tmp_path)))
    assert "\n" not in str(refused.value)
