"""The training of one fold, top to bottom: build, resume, epochs of steps, validation, checkpoints.

What is random (draws, augmentation, mixup, dropout) is a function of the seed and the position in the epoch, never of
what ran before. So a checkpoint needs no state of random generators, a resumed run is bit-equal to an uninterrupted one
(on CPU), and the number of processes does not change the batches.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import gather_object
from torch import Tensor
from torch.utils.data import BatchSampler
from tqdm.auto import tqdm

from rarevision.config import Config
from rarevision.data import FrameDataset, FrameIndex, Reader, Splits
from rarevision.errors import UserError
from rarevision.files import atomic
from rarevision.labels import LABELS
from rarevision.scoring import frame_ap
from rarevision.training import checkpoint, launch
from rarevision.training.forward import loader, mixed_precision, score_batches, watched
from rarevision.training.learner import Learner, Part
from rarevision.training.metrics import epoch_line, epoch_metrics, skipped_line
from rarevision.training.sampling import Draws, derived_seed, frame_weights

STATE = ("epoch", "step", "bad_steps", "sums", "log", "best")  # what a checkpoint keeps of a Fold, as JSON


class TrainingError(UserError):
    """A training that cannot go on; the message says why and what to do."""


class Fold:
    """The training of one fold: `resume()` takes up what lies below `folder`, `run()` trains to the end."""

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
        self.config, self.train, self.index, self.fold, self.folder = config, config.train, index, fold, folder
        self.identity, self.code, self.progress = identity, code, progress
        if self.train.threads:
            torch.set_num_threads(self.train.threads)
        AcceleratorState._reset_state()  # else a process keeps the precision of its first fold
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        precision = mixed_precision(self.train.precision, device)
        self.accelerator = Accelerator(
            cpu=launch.without_gpu(), mixed_precision=precision, log_with="tensorboard", project_dir=str(folder)
        )
        self.world, self.rank = self.accelerator.num_processes, self.accelerator.process_index
        self.device, self.main = self.accelerator.device, self.accelerator.is_main_process
        self.epoch = self.step = self.bad_steps = 0  # the next step to take, and how many were skipped
        self.sums = [0.0, 0.0, 0.0, 0]  # of this epoch's steps: loss, classification, contrastive, steps
        self.log: list[dict[str, Any]] = []  # the lines of metrics.jsonl
        self.best: dict[str, Any] = {"epoch": -1, "ap": -1.0}
        rows = self._rows(splits.train(fold), reader)
        self.validation = self._rows(splits.validation(fold), reader)
        self.learner = Learner(config, text, index.labels[rows], self.accelerator, fold)
        self._build_loaders(rows, reader, derived_seed(self.train.seed, fold, 1))

    def _rows(self, studies: list[str], reader: Reader) -> np.ndarray:
        """Every `frame_step`-th frame of the studies, without those that the reader knows to be undecodable."""
        parts = [np.arange(len(self.index))[self.index.rows(s)][:: self.config.data.frame_step] for s in studies]
        rows = np.concatenate(parts or [np.empty(0, np.int64)])
        return rows[~np.isin(rows, np.fromiter(reader.bad, np.int64, len(reader.bad)))]

    def _build_loaders(self, rows: np.ndarray, reader: Reader, seed: int) -> None:
        """`batches` of drawn and augmented training frames, `checks` of this process's validation frames in order."""
        t, data, size = self.train, self.config.data, self.learner.model.image_size
        weights = None if t.sampler == "none" else frame_weights(self.index.labels[rows], t.sampler)
        self.draws = Draws(rows, weights, t.draws_per_epoch, t.batch_size, seed, t.accumulate, self.rank, self.world)
        self.batches = loader(FrameDataset(self.index, reader, size, t.augment, seed), self.draws, data, self.device)
        mine = self.validation[self.rank :: self.world].tolist()
        order = BatchSampler(mine, self.config.predict.batch_size, drop_last=False)
        self.checks = loader(FrameDataset(self.index, reader, size), order, data, self.device)

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
        self.learner.load(tensors, meta["ema_updates"])
        for name in STATE:
            setattr(self, name, meta[name])
        self.accelerator.wait_for_everyone()  # all have read it
        if self.main and self.step == 0 and self.best["epoch"] == self.epoch:  # perhaps killed before `best` was made
            self._save(meta["finished"])  # `last` may be damaged, or gone: what was read was then the one before
            checkpoint.link(self.folder / "last", self.folder / "best")
        if not meta["finished"]:
            self._say(f"resumed at epoch {self.epoch + 1}, step {self.step} of {self.draws.steps}")
        return meta["finished"]

    def run(self) -> None:
        """Train from the present position to the end, or until `train.patience` is over."""
        self.accelerator.init_trackers("tensorboard")
        try:
            # whether to stop early follows from the state alone, so that a resumed run decides alike
            while self.epoch < self.train.epochs:
                if 0 < self.train.patience <= self.epoch - max(self.best["epoch"], 0):
                    self._say(f"no better for {self.train.patience} epochs, stopped: best is {self.best['epoch']}")
                    break
                with watched():
                    self._end_epoch(self._train_epoch())
        except OSError as error:
            raise TrainingError(f"fold {self.fold}: {error}", remedy="mend it and run again: it resumes") from error
        self._save(finished=True)

    def _train_epoch(self) -> float:
        """The epoch's steps that are left; returns frames per second."""
        t, began, first = self.train, time.perf_counter(), self.step
        self.learner.wrapped.train()
        self.draws.start(self.epoch, self.step)
        bar = tqdm(
            total=self.draws.steps * t.batch_size,
            initial=self.step * t.batch_size,
            desc=f"fold {self.fold} epoch {self.epoch + 1}/{t.epochs}",
            unit="frame",
            leave=False,
            disable=not (self.progress and self.main),
        )
        with bar, contextlib.closing(self._parts()) as parts:
            for step in range(first, self.draws.steps):
                batch = [next(parts) for _ in range(t.accumulate)]
                place = self.epoch * self.draws.steps + step
                values, fault = self.learner.step(batch, place, t.epochs * self.draws.steps)
                if fault:
                    self._skipped(batch, fault)
                else:
                    self.sums = [a + b for a, b in zip(self.sums, [*values, 1], strict=True)]
                    if step % 10 == 0:
                        rate = self.learner.optimizer.param_groups[0]["lr"]
                        self.accelerator.log({"train/loss": values[0], "train/lr_backbone": rate}, step=place)
                self.step = step + 1
                bar.update(t.batch_size)
                if t.checkpoint_steps and self.step % t.checkpoint_steps == 0 and self.step < self.draws.steps:
                    self._save()
        return (self.draws.steps - first) * t.batch_size / max(time.perf_counter() - began, 1e-9)

    def _parts(self) -> Iterator[Part]:
        for images, labels, rows, reasons in self.batches:
            if any(reasons):
                bad = [r for r in reasons if r]
                raise TrainingError(
                    f"{bad[0]}; {len(bad)} such frame(s) in one batch. Mend or remove them (`rarevision verify` lists "
                    "all), or use the cache with data.max_bad_share, which leaves them out. Training resumes from the "
                    "last checkpoint"
                )
            yield images.to(self.device, non_blocking=True), labels.to(self.device), rows

    def _skipped(self, parts: list[Part], fault: str) -> None:
        """Name the frames of a batch whose loss or gradient is not finite; stop the run where it keeps happening."""
        rows = np.sort(np.concatenate(gather_object([np.concatenate([p[2].numpy() for p in parts])])))
        study = self.index.study_of(rows)
        frames = {self.index.studies[k]: self.index.frame[rows[study == k]].tolist() for k in np.unique(study)}
        entry = {"event": "skipped", "epoch": self.epoch + 1, "step": self.step, "what": fault, "frames": frames}
        self.bad_steps += 1
        self._note(entry)
        self._say(skipped_line(entry))
        if self.bad_steps > self.train.max_bad_steps:
            raise TrainingError(
                f"fold {self.fold}: {self.bad_steps} steps had a non-finite loss or gradient, train.max_bad_steps = "
                f"{self.train.max_bad_steps}; their frames are in {self.folder / 'metrics.jsonl'}. Lower the learning "
                "rates, or look at those frames"
            )

    def _end_epoch(self, rate: float) -> None:
        """Validate the averaged model, log one line, save."""
        loss, probs = self._validate()
        ap = frame_ap(self.index.labels[self.validation], probs)
        self.epoch += 1
        entry = epoch_metrics(self.epoch, self.sums, loss, ap, self.bad_steps, rate)
        self._note(entry)
        curves = {f"validation/{name}": value for name, value in entry.items() if isinstance(value, float)}
        self.accelerator.log(curves, step=self.epoch * self.draws.steps)
        self._say(epoch_line(entry, self.train.epochs))
        improved = (entry["ap"] or 0.0) > self.best["ap"]
        if improved:
            self.best = {"epoch": self.epoch, "ap": entry["ap"] or 0.0}
        self.step, self.sums = 0, [0.0, 0.0, 0.0, 0]
        self._save()
        if improved and self.main:
            checkpoint.link(self.folder / "last", self.folder / "best")

    def _validate(self) -> tuple[float, np.ndarray]:
        """Mean hard-label loss and probabilities [N, 17] of the averaged model over the validation frames."""
        total, parts = 0.0, [np.zeros((0, len(LABELS)), np.float32)]
        average, precision = self.learner.ema.module, self.accelerator.mixed_precision
        for scored in score_batches([average], self.checks, self.device, precision):
            if any(scored.reasons):
                raise TrainingError(f"validation: {next(r for r in scored.reasons if r)}; mend or remove the frame")
            loss, _ = self.learner.loss(scored, scored.labels.to(self.device), smoothing=False)
            total += float(loss) * len(scored.rows)
            parts.append(scored.probs)
        every = gather_object([(total, np.concatenate(parts))])
        probs = np.empty((len(self.validation), len(LABELS)), np.float32)
        for rank, (_, part) in enumerate(every):
            probs[rank :: self.world] = part
        return sum(t for t, _ in every) / max(len(self.validation), 1), probs

    def _save(self, finished: bool = False) -> None:
        if not self.main:
            return
        meta = {name: getattr(self, name) for name in STATE} | {
            "fold": self.fold,
            "steps_per_epoch": self.draws.steps,
            "finished": finished,
            "processes": self.world,
            "ema_updates": self.learner.ema.updates,
            "identity": self.identity,
            "recipe": self.learner.model.recipe,
            "code": self.code,
        }
        checkpoint.save(self.folder / "last", self.learner.tensors(), meta)

    def _say(self, text: str) -> None:
        if self.main:
            tqdm.write(f"fold {self.fold}: {text}")

    def _note(self, entry: dict[str, Any]) -> None:
        """Keep a line of metrics.jsonl; the checkpoint holds them all, so that a resumed run repeats none."""
        self.log.append(entry)
        if self.main:
            with atomic(self.folder / "metrics.jsonl") as temporary:
                temporary.write_text("".join(json.dumps(e, allow_nan=False) + "\n" for e in self.log))
