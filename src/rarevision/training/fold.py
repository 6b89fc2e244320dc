"""The training of one fold: its steps, its epochs, its state.

What is random (draws, augmentation, mixup, dropout) is a function of the seed and the position in the epoch, never of
what ran before; so the sampler's position is the whole state of the random generators, a resumed run is bit-equal to an
uninterrupted one (on CPU), and the number of processes does not change the batches.
"""

import contextlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils.data import BatchSampler
from tqdm.auto import tqdm

from rarevision.config import Config
from rarevision.data import FrameDataset, FrameIndex, Reader, Splits
from rarevision.errors import UserError
from rarevision.files import atomic
from rarevision.labels import ANATOMY, LABELS
from rarevision.model import Loss, build_model, mixup, positive_weights
from rarevision.scoring import frame_ap
from rarevision.training import batch_norm, checkpoint
from rarevision.training.ema import Ema
from rarevision.training.forward import limit_threads, loader, mixed_precision, score_batches, watched
from rarevision.training.sampling import Draws, frame_weights


class TrainingError(UserError):
    """A training that cannot go on; the message says why and what to do."""


def one_cycle(step: int, total: int, warmup: float) -> float:
    """Share of the peak learning rate at a step: cosine from 1/25 to 1, then to 1/250,000.

    Smith and Topin 2018 (arXiv:1708.07120) with the constants of torch's OneCycleLR, as a function of the step
    alone: no state to lose, no error past the end, Adam's betas left alone.
    """
    peak, last = warmup * total - 1, total - 1
    low, share = (1 / 25, step / peak) if step <= peak else (1 / 25e4, max(last - step, 0) / (last - peak))
    return low + (1 - low) * (1 - math.cos(math.pi * share)) / 2


class Fold:
    """The training of one fold: `run()` trains or resumes it, writing below `folder`."""

    def __init__(
        self,
        config: Config,
        index: FrameIndex,
        reader: Reader,
        splits: Splits,
        fold: int,
        text: Tensor | None,
        folder: Path,
        identity: dict[str, Any],
        code: str,
        progress: bool,
    ):
        self.config, self.index, self.fold, self.folder, self.progress = config, index, fold, folder, progress
        t = self.train = config.train
        limit_threads(t.threads)
        AcceleratorState._reset_state()  # else a process keeps the precision of its first fold
        self.accelerator = Accelerator(
            mixed_precision=mixed_precision(t.precision, torch.device("cuda" if torch.cuda.is_available() else "cpu")),
            log_with="tensorboard",
            project_dir=str(folder),
        )
        self.world, self.rank = self.accelerator.num_processes, self.accelerator.process_index
        self.device, self.main = self.accelerator.device, self.accelerator.is_main_process
        self.rows = self._rows(splits.train(fold), reader)
        self.validation = self._rows(splits.validation(fold), reader)
        self.identity, self.code = identity, code

        labels = index.labels[self.rows]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed(0))
            model = build_model(config.model, text, labels.mean(0))
        self.recipe = model.recipe
        self.norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
        if self.world > 1:
            batch_norm.share(model)
        model.to(self.device)
        self.ema = Ema(model, t.ema)
        optimizer = torch.optim.AdamW(model.parameter_groups(t), betas=(t.beta1, t.beta2))
        self.peaks = [group["lr"] for group in optimizer.param_groups]
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.loss = Loss(t, positive_weights(labels, t.max_pos_weight).to(self.device))

        weights = None if t.sampler == "none" else frame_weights(labels, t.sampler)
        seed = self._seed(1)
        self.draws = Draws(
            self.rows, weights, t.draws_per_epoch, t.batch_size, seed, t.accumulate, self.rank, self.world
        )
        size = model.image_size
        frames = FrameDataset(index, reader, size, t.augment, seed)
        self.batches = loader(frames, self.draws, config.data, self.device)
        mine = self.validation[self.rank :: self.world]
        plain = FrameDataset(index, reader, size, "none", seed)
        self.checks = loader(
            plain, BatchSampler(mine.tolist(), config.predict.batch_size, drop_last=False), config.data, self.device
        )

        self.total = t.epochs * self.draws.steps
        self.epoch = self.step = self.bad_steps = 0
        self.sums = [0.0, 0.0, 0.0, 0]  # of this epoch's steps: loss, classification, contrastive, steps
        self.log: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {"epoch": -1, "ap": -1.0}

    def _rows(self, studies: list[str], reader: Reader) -> np.ndarray:
        """Every `frame_step`-th frame of the studies, without those that the reader knows to be undecodable."""
        parts = [np.arange(len(self.index))[self.index.rows(s)][:: self.config.data.frame_step] for s in studies]
        rows = np.concatenate(parts or [np.empty(0, np.int64)])
        return rows[~np.isin(rows, np.fromiter(reader.bad, np.int64, len(reader.bad)))]

    def _seed(self, *parts: int) -> int:
        return int(np.random.SeedSequence([self.train.seed, self.fold, *parts]).generate_state(1, np.uint32)[0])

    # --- state -------------------------------------------------------------------------------------------------------

    def _save(self, finished: bool = False) -> None:
        if not self.main:
            return
        model = self.accelerator.unwrap_model(self.model)
        tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
        tensors |= {f"ema.{k}": v for k, v in self.ema.module.state_dict().items()}
        tensors |= {f"optimizer.{k}": v for k, v in checkpoint.optimizer_tensors(self.optimizer).items()}
        meta = {
            "fold": self.fold,
            "epoch": self.epoch,  # position: the next step to take
            "step": self.step,
            "steps_per_epoch": self.draws.steps,
            "finished": finished,
            "processes": self.world,
            "best": self.best,
            "bad_steps": self.bad_steps,
            "ema_updates": self.ema.updates,
            "sums": self.sums,
            "log": self.log,
            "rng": "a function of (train.seed, fold, epoch, step)",
            "schedule": "a function of the step",
            "identity": self.identity,
            "recipe": self.recipe,
            "code": self.code,
        }
        checkpoint.save(self.folder / "last", tensors, meta)

    def resume(self) -> bool:
        """Load `last` if there is one; True if its training is complete. CheckpointError if it is of another run."""
        if not checkpoint.exists(self.folder / "last"):
            return False
        tensors, meta = checkpoint.load(self.folder / "last")
        checkpoint.refuse_another_run(self.folder / "last", meta["identity"], self.identity)
        if meta["code"] != self.code:
            if meta["finished"]:
                self._say("trained by other code: training anew")
                return False
            self._say("the code changed since the checkpoint")

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        self.accelerator.unwrap_model(self.model).load_state_dict(part("model."))
        self.ema.module.load_state_dict(part("ema."))
        self.ema.updates = meta["ema_updates"]
        checkpoint.load_optimizer(self.optimizer, part("optimizer."))
        for name in ("epoch", "step", "bad_steps", "sums", "log", "best"):
            setattr(self, name, meta[name])
        self.accelerator.wait_for_everyone()  # all have read it
        if self.main and self.step == 0 and self.best["epoch"] == self.epoch:  # perhaps killed before `best` was made
            self._save(meta["finished"])  # `last` may be damaged, or gone: what was read was then the one before
            checkpoint.link(self.folder / "last", self.folder / "best")
        if not meta["finished"]:
            self._say(f"resumed at epoch {self.epoch + 1}, step {self.step} of {self.draws.steps}")
        return meta["finished"]

    def _say(self, text: str) -> None:
        if self.main:
            tqdm.write(f"fold {self.fold}: {text}")

    def _note(self, entry: dict[str, Any]) -> None:
        """Keep a line of metrics.jsonl; the checkpoint holds them all, so that a resumed run repeats none."""
        self.log.append(entry)
        if self.main:
            with atomic(self.folder / "metrics.jsonl") as temporary:
                temporary.write_text("".join(json.dumps(e, allow_nan=False) + "\n" for e in self.log))

    # --- work --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.accelerator.init_trackers("tensorboard")
        try:
            while self.epoch < self.train.epochs and not self._stopped():
                began, start = time.perf_counter(), self.step
                with watched():
                    self._train_epoch()
                    rate = (self.draws.steps - start) * self.train.batch_size / max(time.perf_counter() - began, 1e-9)
                    self._end_epoch(rate)
        except OSError as error:
            raise TrainingError(
                f"fold {self.fold}: {error}; its checkpoints are kept: mend it and run again"
            ) from error
        if self.epoch < self.train.epochs:
            self._say(f"no better for {self.train.patience} epochs: stopped, best is epoch {self.best['epoch']}")
        self._save(finished=True)

    def _stopped(self) -> bool:
        """Whether it is time to stop early: of the state alone, so that a resumed run decides alike."""
        return 0 < self.train.patience <= self.epoch - max(self.best["epoch"], 0)

    def _parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for images, labels, rows, reasons in self.batches:
            if any(reasons):
                bad = [r for r in reasons if r]
                raise TrainingError(
                    f"{bad[0]}; {len(bad)} such frame(s) in one batch. Mend or remove them (`rarevision "
                    "verify` lists all), or use the cache with data.max_bad_share, which leaves them "
                    "out. Training resumes from the last checkpoint"
                )
            yield images.to(self.device, non_blocking=True), labels.to(self.device), rows

    def _train_epoch(self) -> None:
        t = self.train
        self.model.train()
        self.draws.start(self.epoch, self.step)
        parts = self._parts()
        bar = tqdm(
            total=self.draws.steps * t.batch_size,
            initial=self.step * t.batch_size,
            desc=f"fold {self.fold} epoch {self.epoch + 1}/{t.epochs}",
            unit="frame",
            leave=False,
            disable=not (self.progress and self.main),
        )
        with bar, contextlib.closing(parts):
            for step in range(self.step, self.draws.steps):
                values = self._step([next(parts) for _ in range(t.accumulate)])
                self.step = step + 1
                if values is not None:
                    self.sums = [a + b for a, b in zip(self.sums, [*values, 1], strict=True)]
                    if step % 10 == 0:
                        place = self.epoch * self.draws.steps + step
                        lr = self.optimizer.param_groups[0]["lr"]
                        self.accelerator.log({"train/loss": values[0], "train/lr_backbone": lr}, step=place)
                bar.update(t.batch_size)
                if t.checkpoint_steps and self.step % t.checkpoint_steps == 0 and self.step < self.draws.steps:
                    self._save()

    def _step(self, parts: list[tuple[Tensor, Tensor, Tensor]]) -> list[float] | None:
        """One optimiser step; the mean losses over all processes, or None where it was skipped."""
        t, place = self.train, self.epoch * self.draws.steps + self.step
        scale = one_cycle(place, self.total, t.warmup)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * scale
        model = self.accelerator.unwrap_model(self.model)
        statistics = [(m.running_mean.clone(), m.running_var.clone()) for m in self.norms]
        values = torch.zeros(3, device=self.device)
        for i, (images, labels, _) in enumerate(parts):
            number = i * self.world + self.rank  # of this part in the global batch, whoever computes it
            torch.manual_seed(self._seed(2, place, number))
            images, labels = mixup(images, labels, t.mixup, np.random.default_rng(self._seed(3, place, number)))
            last = i + 1 == len(parts)
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                total, terms = self.loss(self.model(images), labels)
                self.accelerator.backward(total / len(parts))
            values += torch.stack([total, *terms.values(), *[total * 0] * (2 - len(terms))]).detach() / len(parts)
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), t.clip or math.inf)
        values = self.accelerator.reduce(values, "mean")
        # a loss that is not finite on one process makes the summed gradient so on all: they agree without asking
        scaler = self.accelerator.scaler  # fp16's own: it meets infinite gradients, skips and goes on
        broken = not bool(values.isfinite().all()) or not (bool(norm.isfinite()) or scaler)
        if not broken or scaler:
            self.optimizer.step()
        self.optimizer.zero_grad()
        if broken:  # its features are in the running statistics too
            for m, (mean, var) in zip(self.norms, statistics, strict=True):
                m.running_mean.copy_(mean)
                m.running_var.copy_(var)
            self._skipped(parts, values)
            return None
        self.ema.update(model)
        return values.tolist()

    def _skipped(self, parts: list[tuple[Tensor, Tensor, Tensor]], values: Tensor) -> None:
        """Name the frames of a batch whose loss or gradient is not finite; stop the run where it keeps happening."""
        rows = np.sort(np.concatenate(gather_object([np.concatenate([p[2].numpy() for p in parts])])))
        frames: dict[str, list[int]] = {}
        for row, code in zip(rows, self.index.study_of(rows), strict=True):
            frames.setdefault(self.index.studies[code], []).append(int(self.index.frame[row]))
        self.bad_steps += 1
        what = "loss" if not bool(values.isfinite().all()) else "gradient"
        self._note({"event": "skipped", "epoch": self.epoch + 1, "step": self.step, "what": what, "frames": frames})
        few = "; ".join(f"study {s} frames {str(f[:4])[1:-1]}{' ...' if len(f) > 4 else ''}" for s, f in frames.items())
        self._say(f"step {self.step} of epoch {self.epoch + 1} skipped, its {what} is not finite: {few}")
        if self.bad_steps > self.train.max_bad_steps:
            raise TrainingError(
                f"fold {self.fold}: {self.bad_steps} steps had a non-finite loss or gradient, train.max_bad_steps = "
                f"{self.train.max_bad_steps}; their frames are in {self.folder / 'metrics.jsonl'}. Lower the learning "
                "rates, or look at those frames"
            )

    def _end_epoch(self, rate: float) -> None:
        """Validate the averaged model, log one line, save."""
        loss, probs = self._validate()
        ap = frame_ap(self.index.labels[self.validation], probs)  # NaN where a class has no positives
        parts = {"AP": ap, "anatomy": ap[: len(ANATOMY)], "findings": ap[len(ANATOMY) :]}
        mean = {name: None if np.isnan(part).all() else float(np.nanmean(part)) for name, part in parts.items()}
        n = max(self.sums[3], 1)
        entry = {
            "event": "epoch",
            "epoch": self.epoch + 1,
            "loss": self.sums[0] / n,
            "classification": self.sums[1] / n,
            "contrastive": self.sums[2] / n,
            "validation_loss": loss,
            "ap": mean["AP"],
            "ap_anatomy": mean["anatomy"],
            "ap_findings": mean["findings"],
            "ap_per_class": {name: None if np.isnan(v) else float(v) for name, v in zip(LABELS, ap, strict=True)},
            "skipped_steps": self.bad_steps,
            "frames_per_second": round(rate, 1),
        }
        self._note(entry)
        self.accelerator.log(
            {f"validation/{k}": v for k, v in entry.items() if isinstance(v, float)},
            step=(self.epoch + 1) * self.draws.steps,
        )
        shown = " ".join(f"{name} -" if value is None else f"{name} {value:.3f}" for name, value in mean.items())
        self._say(
            f"epoch {self.epoch + 1}/{self.train.epochs}  loss {entry['loss']:.4f}  validation {loss:.4f}  {shown}  "
            f"{rate:.0f} frames/s"
        )
        improved = (mean["AP"] or 0.0) > self.best["ap"]
        if improved:
            self.best = {"epoch": self.epoch + 1, "ap": mean["AP"] or 0.0}
        self.epoch, self.step, self.sums = self.epoch + 1, 0, [0.0, 0.0, 0.0, 0]
        self._save()
        if improved and self.main:
            checkpoint.link(self.folder / "last", self.folder / "best")

    def _validate(self) -> tuple[float, np.ndarray]:
        """Mean hard-label loss and probabilities [N, 17] of the averaged model over the validation frames."""
        total, parts = 0.0, []
        precision = self.accelerator.mixed_precision
        for scored in score_batches([self.ema.module], self.checks, self.device, precision):
            if any(scored.reasons):
                raise TrainingError(f"validation: {next(r for r in scored.reasons if r)}; mend or remove the frame")
            loss, _ = self.loss(scored, scored.labels.to(self.device), smoothing=False)
            total += float(loss) * len(scored.rows)
            parts.append(scored.probs)
        mine = np.concatenate(parts) if parts else np.zeros((0, len(LABELS)), np.float32)
        every = gather_object([(total, mine)])
        probs = np.empty((len(self.validation), len(LABELS)), np.float32)
        for rank, (_, part) in enumerate(every):
            probs[rank :: self.world] = part
        return sum(t for t, _ in every) / max(len(self.validation), 1), probs
