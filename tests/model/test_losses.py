import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.loss import AsymmetricLossMultiLabel
from torchvision.ops import sigmoid_focal_loss

from rarevision.config import Train
from rarevision.model import losses


def logit(p):
    return math.log(p / (1 - p))


def test_hand_values():
    x = torch.tensor([[logit(0.5), logit(0.25), logit(0.03)]])
    positive = losses.asymmetric(x, torch.ones(1, 3))
    negative = losses.asymmetric(x, torch.zeros(1, 3))
    assert positive[0].tolist() == pytest.approx(
        [0.5 * math.log(2), 0.75 * math.log(4), 0.97 * -math.log(0.03)], rel=1e-5
    )
    # shifted by 0.05: 0.45 and 0.20 remain, 0.03 is an easy negative and costs nothing
    assert negative[0].tolist() == pytest.approx([0.45**4 * -math.log(0.55), 0.2**4 * -math.log(0.8), 0], abs=1e-7)


@given(
    st.floats(-6, 6),  # beyond, timm's 1 - sigmoid loses digits
    st.floats(0, 1),
    st.sampled_from([(0.0, 0.0), (1.0, 4.0), (2.0, 2.0), (0.5, 3.0)]),
    st.sampled_from([0.0, 0.05, 0.2]),
    st.floats(1, 100),
)
@settings(max_examples=150, deadline=None)
def test_agrees_with_timm(x, y, gammas, shift, weight):
    x, y = torch.full((1, 1), x), torch.full((1, 1), y)
    reference = AsymmetricLossMultiLabel(gammas[1], gammas[0], shift, reduction="none", pos_weight=weight)(x, y)
    ours = losses.asymmetric(x, y, *gammas, shift, torch.tensor([weight]))
    torch.testing.assert_close(ours, reference, rtol=2e-4, atol=2e-6)


def test_both_forms_agree_on_hard_labels_and_losses_are_linear():
    g = torch.Generator().manual_seed(0)
    x, a, b = torch.randn(64, 17, generator=g), *(torch.rand(2, 64, 17, generator=g) < 0.2).float()
    torch.testing.assert_close(losses.asymmetric(x, a), losses.asymmetric(x, a, mixed="losses"))
    mixed = losses.asymmetric(x, 0.3 * a + 0.7 * b, mixed="losses")
    torch.testing.assert_close(mixed, 0.3 * losses.asymmetric(x, a) + 0.7 * losses.asymmetric(x, b))
    assert not torch.allclose(mixed, losses.asymmetric(x, 0.3 * a + 0.7 * b), atol=1e-3)


@pytest.mark.parametrize(("target", "labels", "mixed"), [(0.05, 0.05, 0.417), (0.3, 0.073, 0.57), (0.7, 0.925, 0.708)])
def test_minimisers_on_soft_labels(target, labels, mixed):
    """The trap of soft labels: not proper, and the two ways of mixing differ."""
    p = torch.linspace(1e-4, 1 - 1e-4, 50_001, dtype=torch.float64)
    y = torch.full_like(p, target)
    for form, expected in (("labels", labels), ("losses", mixed)):
        best = p[losses.asymmetric(torch.logit(p).float(), y, mixed=form).argmin()]
        assert best.item() == pytest.approx(expected, abs=2e-3)


def test_focal_agrees_with_torchvision_and_bce_with_torch():
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(32, 17, generator=g) * 3, (torch.rand(32, 17, generator=g) < 0.3).float()
    output = SimpleNamespace(logits=x, contrastive=None)
    ones = torch.ones(17)
    total, _ = losses.Loss(Train(loss="focal", smoothing=0.0), ones)(output, y)
    torch.testing.assert_close(total, sigmoid_focal_loss(x, y, alpha=-1, gamma=2, reduction="mean"))
    weight = torch.linspace(1, 9, 17)
    total, _ = losses.Loss(Train(loss="bce", smoothing=0.1), weight)(output, y)
    expected = torch.nn.BCEWithLogitsLoss(pos_weight=weight)(x, y * 0.9 + 0.05)
    torch.testing.assert_close(total, expected)


def test_total_is_one_to_weight():
    x = torch.randn(8, 17, generator=torch.Generator().manual_seed(2))
    y = (x > 1).float()
    config = Train(contrastive_weight=0.4)
    total, parts = losses.Loss(config, torch.ones(17))(SimpleNamespace(logits=x, contrastive=2 * x), y)
    torch.testing.assert_close(total, parts["classification"] + 0.4 * parts["contrastive"])
    smoothed = y * 0.95 + 0.025
    torch.testing.assert_close(
        parts["contrastive"], torch.nn.functional.binary_cross_entropy_with_logits(2 * x, smoothed)
    )
    _, hard = losses.Loss(config, torch.ones(17))(SimpleNamespace(logits=x, contrastive=None), y, smoothing=False)
    torch.testing.assert_close(hard["classification"], losses.asymmetric(x, y).mean())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("gammas", [(1.0, 4.0), (0.0, 0.0), (0.5, 0.5)])
@pytest.mark.parametrize("shift", [0.0, 0.05])
def test_extreme_logits_stay_finite(dtype, gammas, shift):
    """Half precision inputs and saturated logits: value and gradient finite for both targets, hard and smoothed."""
    x = torch.tensor([[-6e4, -200, -20, 0, 20, 200, 6e4]], dtype=dtype).repeat(3, 1).requires_grad_()
    y = torch.tensor([[0.0], [0.975], [1.0]]).expand(3, 7)
    for mixed in ("labels", "losses"):
        value = losses.asymmetric(x, y, *gammas, shift, torch.full((7,), 100.0), mixed)
        assert value.dtype == torch.float32
        assert value.isfinite().all()
        (grad,) = torch.autograd.grad(value.mean(), x)
        assert grad.isfinite().all()


def test_positive_weights_are_clipped():
    labels = np.zeros((1000, 4), np.uint8)
    labels[:800, 0] = 1  # common: 0.25 -> 1
    labels[:100, 1] = 1  # 9
    labels[:1, 2] = 1  # 999 -> 100
    assert losses.positive_weights(labels, 100.0).tolist() == [1, 9, 100, 1]
    assert losses.positive_weights(labels, 1.0).tolist() == [1, 1, 1, 1]


def test_mixup_mixes_images_and_labels_alike():
    rng = np.random.default_rng(0)
    images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 3, 2, 2) * 50
    mixed, soft = losses.mixup(images, torch.eye(4), 0.3, rng)
    torch.testing.assert_close(mixed[:, 0, 0, 0] * 255, soft @ torch.tensor([0.0, 50, 100, 150]))
    torch.testing.assert_close(losses.mixup(images / 255, torch.eye(4), 0.3, np.random.default_rng(0))[0], mixed)
    torch.testing.assert_close(soft.sum(1), torch.ones(4))
    again, _ = losses.mixup(images, torch.eye(4), 0.3, np.random.default_rng(0))
    assert torch.equal(mixed, again)
    same, labels = losses.mixup(images, torch.eye(4), 0.0, rng)
    assert same is images
    assert torch.equal(labels, torch.eye(4))
