"""Draws: which frames an epoch trains on, in which order, and which process sees which of them.

An epoch is one array of draws, a function of (seed, epoch) alone. Every process makes the same array and takes its own
slices, so that each draw is used once whatever the number of processes, and any position can be returned to.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from torch.utils.data import Sampler

from rarevision.errors import UserError


class SamplingError(UserError):
    """A fold without frames to draw, or a batch size that cannot be shared out."""


def derived_seed(*parts: int) -> int:
    """One seed of 32 bits from several numbers; any other numbers give an unrelated one."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint32)[0])


def frame_weights(labels: np.ndarray, kind: Literal["none", "inverse", "sqrt"] = "sqrt") -> np.ndarray:
    """Sampling weight of every frame, float64 [N], from labels [N, C] of 0 and 1.

    A frame counts as its rarest active label c. Where f_c is that label's share of the frames, the weight is 1
    (`none`), 1 / f_c (`inverse`) or 1 / sqrt(f_c) (`sqrt`, as published). A frame without any label weighs as much as
    one with the commonest label.
    """
    weights = np.ones(len(labels))
    share = labels.mean(axis=0, dtype=np.float64)
    if kind == "none" or not share.any():
        return weights
    power = 1.0 if kind == "inverse" else 0.5
    for column in np.argsort(-share, kind="stable"):  # commonest first: what comes later is rarer and wins
        if share[column] > 0:
            weights[labels[:, column] > 0] = share[column] ** -power
    weights[~labels.any(axis=1)] = share.max() ** -power
    return weights


class Draws(Sampler):
    """Batch sampler of one process: lists of (epoch, row) for a map-style data set, from `start` on.

    rows      int64 [N]: the rows of the index that may be drawn
    weights   float64 [N], or None: every row once, in random order, before any comes again
    size      draws per epoch, 0 = N; rounded up to whole global batches, so that none is short: batch norm needs two
              frames, and a short batch would weigh its frames more
    batch     global batch: over `world` processes and `accumulate` steps, of which this process is `rank`

    One global batch is cut into accumulate * world parts in order; part a * world + r is process r's a-th. One process
    with `accumulate=2` and two processes with `accumulate=1` form the same parts.
    """

    def __init__(
        self,
        rows: np.ndarray,
        weights: np.ndarray | None,
        size: int,
        batch: int,
        seed: int,
        accumulate: int = 1,
        rank: int = 0,
        world: int = 1,
    ):
        if len(rows) == 0:
            raise SamplingError("no frame to draw: the training studies of this fold have no labelled frame")
        parts = accumulate * world
        if batch % parts or batch // parts < 2:
            raise SamplingError(
                f"train.batch_size = {batch} over {world} processes x {accumulate} accumulation steps must give whole "
                "parts of at least 2 frames (batch norm)",
                remedy="change batch_size or accumulate",
            )
        self.rows, self.weights, self.seed = rows, weights, seed
        self.batch, self.part, self.accumulate = batch, batch // parts, accumulate
        self.rank, self.world = rank, world
        self.steps = -(-(size or len(rows)) // batch)  # optimiser steps per epoch
        self.epoch = self.step = 0

    def start(self, epoch: int, step: int = 0) -> None:
        """Continue at optimiser step `step` of epoch `epoch`."""
        self.epoch, self.step = epoch, step

    def epoch_rows(self, epoch: int) -> np.ndarray:
        """All draws of an epoch over all processes, int64 [steps * batch]."""
        rng = np.random.default_rng([self.seed, epoch])
        size = self.steps * self.batch
        if self.weights is not None:  # with replacement; torch's multinomial stops at 2^24 rows
            bounds = np.cumsum(self.weights)
            drawn = np.searchsorted(bounds, rng.random(size) * bounds[-1], side="right")
            return self.rows[drawn.clip(max=len(bounds) - 1)]  # the product may be rounded up to the last bound
        rounds = -(-size // len(self.rows))
        return np.concatenate([rng.permutation(self.rows) for _ in range(rounds)])[:size]

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        rows = self.epoch_rows(self.epoch).reshape(self.steps, self.accumulate, self.world, self.part)
        for step in range(self.step, self.steps):
            for part in rows[step, :, self.rank]:
                yield [(self.epoch, row) for row in part.tolist()]
