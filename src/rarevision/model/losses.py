"""Losses of 17 independent labels: asymmetric focal loss, focal loss, cross-entropy, the contrastive term, mixup.

Everything is computed in fp32 from logits by `logsigmoid`, so that no small constant decides a value: in fp16 the usual
`log(p + 1e-8)` is log(0), since 1e-8 rounds to zero there.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch.nn import functional as F

from rarevision.config import Train

FOCAL_GAMMA = 2.0  # Lin et al. 2017, arXiv:1708.02002
TINY = 1e-8  # smallest base of a power: its gradient at 0 is infinite for exponents below 1


def positive_weights(labels: np.ndarray, limit: float) -> torch.Tensor:
    """Weight of the positive term per class, neg/pos clipped to [1, limit], from labels [N, C]; float32 [C].

    A class without positives gets 1: there is nothing to weigh up.
    """
    positives = labels.sum(axis=0, dtype=np.int64)
    ratio = (len(labels) - positives) / np.maximum(positives, 1)
    return torch.from_numpy(np.where(positives > 0, np.clip(ratio, 1.0, limit), 1.0).astype(np.float32))


def mixup(
    images: torch.Tensor, targets: torch.Tensor, alpha: float, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Convex combination of a batch with a permutation of itself (arXiv:1710.09412), one Beta(alpha, alpha) per batch.

    `images` [B, 3, S, S], uint8 or float in 0..1, come back as float in 0..1, `targets` [B, C] as soft labels. Whether
    the labels or the losses are mixed is then the loss's matter: see `asymmetric`.
    """
    if alpha == 0 or len(images) < 2:
        return images, targets
    share = float(rng.beta(alpha, alpha))
    partner = torch.from_numpy(rng.permutation(len(images))).to(images.device)
    images = images.float() / 255 if images.dtype == torch.uint8 else images
    return torch.lerp(images[partner], images, share), torch.lerp(targets[partner], targets, share)


def asymmetric(
    logits: torch.Tensor,
    targets: torch.Tensor,
    gamma_pos: float = 1.0,
    gamma_neg: float = 4.0,
    shift: float = 0.05,
    pos_weight: torch.Tensor | None = None,
    mixed: Literal["labels", "losses"] = "labels",
) -> torch.Tensor:
    """Asymmetric focal loss per element (Ridnik et al. 2021, arXiv:2009.14119), fp32 [B, C]; mean is the caller's.

    Hard target: `-w (1-p)^gamma_pos log p` or `-pm^gamma_neg log(1-pm)`, `pm = max(p - shift, 0)`. Soft target y:

    - `labels`: the authors' code (and timm's), one focusing weight `(1-pt)^(gamma_pos y + gamma_neg (1-y))` for both
      terms. It is not proper: y = 0.05, 0.3, 0.7 have their minimum at p = 0.05, 0.07, 0.92;
    - `losses`: y times the positive's loss plus 1-y times the negative's, which is what mixing two losses means; minima
      at 0.42, 0.57, 0.71: not proper either, but monotone without a jump.
    """
    x, y = logits.float(), targets.float()
    log_p = F.logsigmoid(x)
    p_neg = (torch.sigmoid(x) - shift).clamp(min=0)  # shifted probability of a negative
    log_neg = torch.log1p(-p_neg) if shift > 0 else F.logsigmoid(-x)  # 1 - p_neg >= shift: the log is safe
    weight = 1.0 if pos_weight is None else pos_weight
    if mixed == "losses":
        positive = y * torch.sigmoid(-x).clamp(min=TINY) ** gamma_pos * log_p
        return -(weight * positive + (1 - y) * p_neg.clamp(min=TINY) ** gamma_neg * log_neg)
    base = (y * torch.sigmoid(-x) + (1 - y) * p_neg).clamp(min=TINY)  # 1 - pt
    focus = base ** (gamma_pos * y + gamma_neg * (1 - y))
    return -focus * (weight * y * log_p + (1 - y) * log_neg)


@dataclass
class Loss:
    """`L = L_cls + contrastive_weight * L_con`, each the mean over batch and classes: the weight is their ratio.

    Called with the model's output (`.logits` and `.contrastive` [B, C], the latter may be None) and labels [B, C] in
    [0, 1]; returns the total, a differentiable scalar, and its parts.
    """

    config: Train
    pos_weight: torch.Tensor  # float32 [C]

    def __call__(self, output, labels: torch.Tensor, smoothing: bool = True) -> tuple[torch.Tensor, dict]:
        c, logits, targets = self.config, output.logits.float(), labels.float()
        if smoothing:  # move each target towards 0.5 by this share of the way
            targets = targets * (1 - c.smoothing) + 0.5 * c.smoothing
        weight = self.pos_weight.to(targets.device)
        if c.loss == "bce":
            values = F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weight, reduction="none")
        else:
            focal = (FOCAL_GAMMA, FOCAL_GAMMA, 0.0)
            gammas_and_shift = focal if c.loss == "focal" else (c.gamma_pos, c.gamma_neg, c.shift)
            values = asymmetric(logits, targets, *gammas_and_shift, weight, c.mixup_target)
        parts = {"classification": values.mean()}
        total = parts["classification"]
        if output.contrastive is not None:
            values = F.binary_cross_entropy_with_logits(output.contrastive.float(), targets, reduction="none")
            parts["contrastive"] = values.mean()
            total = total + c.contrastive_weight * parts["contrastive"]
        return total, parts
