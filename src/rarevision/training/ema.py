"""Exponential moving average of a model: its weights, and the batch-norm statistics that belong to them."""

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

STATISTICS_DECAY = 0.9  # at least: torch's own momentum of 0.1, where the weights follow faster


class Ema:
    """`average = d * average + (1 - d) * model` after every optimiser step, with `d = min(decay, (1 + n) / (10 + n))`.

    The warm-up of d (n updates so far; TensorFlow's) forgets the random start in runs far shorter than 1 / (1 - decay)
    steps; 0.999 is reached after 9,000. decay = 0 follows the model exactly.

    Live batch-norm statistics are those of features that averaged weights do not produce. So the live model's batch
    norms are set to keep the last batch's mean and variance (momentum 1), and these are averaged with the weights' d
    (no less than 0.9): both averages then look back over the same steps. Other buffers are copied.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.updates = 0
        self.statistics = set()
        for name, part in model.named_modules():
            if isinstance(part, _BatchNorm):
                part.momentum = 1.0
                self.statistics |= {f"{name}.{kind}".lstrip(".") for kind in ("running_mean", "running_var")}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        ours, live = self.module.state_dict(), model.state_dict()
        weights = [name for name, _ in model.named_parameters()]
        for names, d in ((weights, decay), (list(self.statistics), max(decay, STATISTICS_DECAY))):
            if names:
                torch._foreach_lerp_([ours[n] for n in names], [live[n] for n in names], 1 - d)
        for name in ours.keys() - set(weights) - self.statistics:
            ours[name].copy_(live[name])
