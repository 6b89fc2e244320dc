"""Drift of the forms from the pretrained function, the folding proof on a whole trunk, and the count of operations."""

import copy

import pytest
import timm
import torch

from rarevision.model.comparison import (
    VARIANTS,
    attention_cost,
    feature_drift,
    fitting_forms,
    folding_error,
    strengths,
    with_attention,
)


@pytest.fixture(scope="module")
def trunk():
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=0, img_size=64, num_heads=4).eval()
    for block in model.blocks:
        for linear in (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2):
            torch.nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        block.attn.qkv.weight.data[:128] *= 2
    return model


@pytest.fixture(scope="module")
def images():
    return torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def test_only_preserve_and_plain_start_where_pretraining_ended(trunk, images):
    before = copy.deepcopy(trunk.state_dict())
    table = feature_drift(trunk, images).pivot(index="variant", columns="place", values="cosine")
    assert set(table.index) == set(VARIANTS) and list(table.columns) == [
        *(f"block {i}" for i in range(1, 7)),
        "features",
    ]
    assert (table.loc[["plain", "preserve"]] > 1 - 1e-5).all(axis=None)
    assert (table.drop(["plain", "preserve"]) < 0.99).all(axis=None)
    assert table.loc["published", "features"] > table.loc["paper, halves", "features"]
    after = trunk.state_dict()
    assert all(torch.equal(after[k], v) for k, v in before.items())


def test_the_same_seed_draws_the_same_lambdas(trunk, images):
    state = torch.get_rng_state()
    one, two, other = (strengths(with_attention(trunk, "published", seed)) for seed in (3, 3, 4))
    assert torch.equal(one, two) and not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_published_trunk_folds_into_a_plain_one(trunk, images):
    table = folding_error(trunk, images)
    assert list(table.place)[-1] == "features" and table.difference.max() < 1e-12
    # the folding is of something: with lambda left out, the trunks differ
    plain = feature_drift(trunk, images).query("variant == 'published' and place == 'features'").difference.item()
    assert plain > 0.1 and next(trunk.parameters()).dtype == torch.float32


def test_cost_counts_the_second_query(trunk):
    table = attention_cost(trunk, 64).set_index("variant")
    n, c, depth = 17, 64, 6
    assert (table["multiply-adds"].drop("preserve") <= table["multiply-adds"]["plain"]).all()
    extra = table["multiply-adds"]["preserve"] - table["multiply-adds"]["plain"]
    assert extra == depth * (n * c * c + 2 * n * n * c)  # Q2, its map, its map times V
    assert table["parameters"]["preserve"] - table["parameters"]["plain"] == depth * (c * c + c + 4)
    assert table["parameters"]["published"] - table["parameters"]["plain"] == depth * 4 * 2 * 16


def test_what_a_trunk_does_not_allow_is_left_out_and_said():
    assert fitting_forms(timm.create_model("test_vit", num_classes=0, img_size=32, depth=1, num_heads=4)) == (
        [*VARIANTS],
        {},
    )
    odd = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, depth=1)
    names, refused = fitting_forms(odd)
    assert names == ["plain", "preserve"]
    assert set(refused) == set(VARIANTS) - set(names)
    assert all("3 heads cannot be paired" in reason for reason in refused.values())
    assert (
        set(feature_drift(odd, torch.zeros(1, 3, 32, 32)).variant) == set(attention_cost(odd, 32).variant) == set(names)
    )
