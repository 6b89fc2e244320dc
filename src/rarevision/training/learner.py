"""What learns in a fold: the model, its moving average, the optimiser and the loss, moved by one step at a time."""

import contextlib
import math

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from rarevision.config import Config
from rarevision.model import Loss, build_model, mixup, positive_weights
from rarevision.training import batch_norm, checkpoint
from rarevision.training.ema import Ema
from rarevision.training.sampling import derived_seed

Part = tuple[Tensor, Tensor, Tensor]  # images uint8 [B, 3, S, S], labels float32 [B, 17], rows of the index int64 [B]


def one_cycle(step: int, total: int, warmup: float) -> float:
    """Share of the peak learning rate at a step: cosine from 1/25 to 1, then to 1/250,000.

    Smith and Topin 2018 (arXiv:1708.07120) with the constants of torch's OneCycleLR, as a function of the step
    alone: no state to lose, no error past the end, Adam's betas left alone.
    """
    peak, last = warmup * total - 1, total - 1
    low, share = (1 / 25, step / peak) if step <= peak else (1 / 25e4, max(last - step, 0) / (last - peak))
    return low + (1 - low) * (1 - math.cos(math.pi * share)) / 2


class Learner:
    """Model, average, optimiser and loss of one fold, for labels [N, 17] of its training frames.

    model  the model itself, `wrapped` the same for several processes; `ema.module` its average
    """

    def __init__(self, config: Config, text: Tensor | None, labels: np.ndarray, accelerator: Accelerator, fold: int):
        t = self.train = config.train
        self.accelerator, self.seed = accelerator, (t.seed, fold)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(*self.seed, 0))
            self.model = build_model(config.model, text, labels.mean(0))
        if accelerator.num_processes > 1:
            batch_norm.share(self.model)
        self.model.to(accelerator.device)
        self.norms = [m for m in self.model.modules() if isinstance(m, nn.BatchNorm1d)]
        self.ema = Ema(self.model, t.ema)
        optimizer = torch.optim.AdamW(self.model.parameter_groups(t), betas=(t.beta1, t.beta2))
        self.peaks = [group["lr"] for group in optimizer.param_groups]
        self.wrapped, self.optimizer = accelerator.prepare(self.model, optimizer)
        self.loss = Loss(t, positive_weights(labels, t.max_pos_weight).to(accelerator.device))

    def step(self, parts: list[Part], place: int, total: int) -> tuple[list[float], str]:
        """Optimiser step number `place` of the training's `total`, on this process's parts of a global batch.

        Returns the mean loss, classification and contrastive term over all processes, and what is not finite ("loss",
        "gradient" or ""). Where something is not, weights and batch-norm statistics stay as they were.
        """
        scale = one_cycle(place, total, self.train.warmup)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * scale
        statistics = [(m.running_mean.clone(), m.running_var.clone()) for m in self.norms]
        values = self._gradients(parts, place)
        norm = self.accelerator.clip_grad_norm_(self.wrapped.parameters(), self.train.clip or math.inf)
        # a loss that is not finite on one process makes the summed gradient so on all: they agree without asking
        scaler = self.accelerator.scaler  # fp16's own: it meets infinite gradients, skips and goes on
        finite = bool(values.isfinite().all())
        broken = not finite or not (bool(norm.isfinite()) or scaler)
        if not broken or scaler:
            self.optimizer.step()
        self.optimizer.zero_grad()
        if broken:
            for m, (mean, var) in zip(self.norms, statistics, strict=True):
                m.running_mean.copy_(mean)
                m.running_var.copy_(var)
            return values.tolist(), "gradient" if finite else "loss"
        self.ema.update(self.model)
        return values.tolist(), ""

    def _gradients(self, parts: list[Part], place: int) -> Tensor:
        """Gradients of the mean loss over all parts of a global batch; returns loss and its two terms [3].

        A part's dropout and mixup follow from `place` and from the part's number in the global batch, whichever process
        computes it.
        """
        values = torch.zeros(3, device=self.accelerator.device)
        for i, (images, labels, _) in enumerate(parts):
            number = i * self.accelerator.num_processes + self.accelerator.process_index
            torch.manual_seed(derived_seed(*self.seed, 2, place, number))
            rng = np.random.default_rng(derived_seed(*self.seed, 3, place, number))
            images, labels = mixup(images, labels, self.train.mixup, rng)
            with contextlib.nullcontext() if i + 1 == len(parts) else self.accelerator.no_sync(self.wrapped):
                total, terms = self.loss(self.wrapped(images), labels)
                self.accelerator.backward(total / len(parts))
            values += torch.stack([total, *terms.values(), *[total * 0] * (2 - len(terms))]).detach() / len(parts)
        return self.accelerator.reduce(values, "mean")

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint keeps: `model.*`, `ema.*`, `optimizer.<parameter>.*`."""
        found = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        found |= {f"ema.{k}": v for k, v in self.ema.module.state_dict().items()}
        return found | {f"optimizer.{k}": v for k, v in checkpoint.optimizer_tensors(self.optimizer).items()}

    def load(self, tensors: dict[str, Tensor], updates: int) -> None:
        """Take up what `tensors` gave, after so many updates of the average."""
        self.model.load_state_dict(checkpoint.below(tensors, "model."))
        self.ema.module.load_state_dict(checkpoint.below(tensors, "ema."))
        self.ema.updates = updates
        checkpoint.load_optimizer(self.optimizer, checkpoint.below(tensors, "optimizer."))
