"""Calibration: frame scores to evidence, with what a score repeats of its own past taken out.

A network's errors last: the logit of a frame is predicted well by the logits before it, whatever the label. Treating
frames as independent counts the same error many times, and a study-wide shift of the scores counts in every frame.
So each label's logit x is turned into its innovation e_t = x_t - share * s_t, where s_t = memory * s_{t-1} +
(1 - memory) * x_{t-1}, which has neither. The label enters the same filter: e_t depends on the label now and on the
label's trace, the same s of 0 and 1, in LEVELS steps. Mean and variance of e in each label state are learned, memory
and share by least squares on what the labels leave. So onsets and ends stand out and long events are not overcounted.
"""

from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from rarevision.labels import N_LABELS, REGIONS
from rarevision.scores import StudyScores

LEVELS = 4  # steps of the label's trace
STATES = 2 * LEVELS  # label state = LEVELS * label + level of its trace
MEMORIES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
LIMIT = 11.5  # |logit| of a score of exactly 0 or 1
BASE = 0.2  # quantile of a study's logits that stands for its negative frames; findings and landmarks only
SHRINK = 50  # frames' worth of weight of the linear model in each state's mean and variance
STRONGEST = 10.0  # nats that one frame of one label may say


@dataclass(frozen=True)
class Calibration:
    """`memory`, `share` [17]; `mean`, `variance` [17, STATES] of the innovation in each label state."""

    memory: np.ndarray
    share: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    def evidence(self, probs: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Log-likelihood of each label state against `never of late`, float32 [T, len(columns), STATES]."""
        x = base_removed(logits(probs[:, columns]), columns)
        out = np.empty((*x.shape, STATES), np.float32)
        for i, c in enumerate(columns):
            e = innovation(x[:, i], self.memory[c], self.share[c]).astype(np.float32)
            # -(e - m)^2 / 2v - log(v) / 2, as a quadratic in e, less the same of state 0
            m, v = self.mean[c], self.variance[c]
            terms = np.stack([-0.5 / v, m / v, -0.5 * m * m / v - 0.5 * np.log(v)])
            terms = (terms - terms[:, :1]).astype(np.float32)
            out[:, i] = (e[:, None] * terms[0] + terms[1]) * e[:, None] + terms[2]
        return np.clip(out, -STRONGEST, STRONGEST, out=out)


def logits(probs: np.ndarray) -> np.ndarray:
    """Logits of scores in [0, 1], float32, held within +-LIMIT."""
    p = np.asarray(probs, np.float32)
    with np.errstate(divide="ignore"):
        return np.clip(np.log(p) - np.log1p(-p), -LIMIT, LIMIT)


def base_removed(x: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Logits [T, C] less the study's own base, except for the regions, which may fill a study."""
    thin = x[:: max(1, len(x) // 5000)]
    return x - np.where(np.asarray(columns) < len(REGIONS), 0.0, np.quantile(thin, BASE, axis=0)).astype(np.float32)


def filtered(x: np.ndarray, memory: float) -> np.ndarray:
    """s_t of the module's text, from 0 before the first frame."""
    return lfilter([0, 1 - memory], [1, -memory], x, axis=0)


def innovation(x: np.ndarray, memory: float, share: float) -> np.ndarray:
    """e_t = x_t - share * s_t; before the first frame the score is taken to have been what it is there."""
    first = x[0]
    return x - share * (filtered(x - first, memory) + first)


def states(label: np.ndarray, memory: float) -> np.ndarray:
    """Label states int [T] of a 0/1 label [T]."""
    level = np.rint(filtered(label.astype(np.float64), memory) * (LEVELS - 1)).astype(np.int64)
    return label.astype(np.int64) * LEVELS + level


def _gain(xs: list[np.ndarray], ys: list[np.ndarray]) -> float:
    """Mean difference of positive and negative frames of a study; a study weighs by its positives, up to 100."""
    gains, weights = [0.0], [1.0]
    for x, y in zip(xs, ys, strict=True):
        n = int(y.sum())
        if 0 < n < len(y):
            gains.append(x[y == 1].mean() - x[y == 0].mean())
            weights.append(min(n, 100))
    return max(float(np.average(gains, weights=weights)), 0.0)


def _memory(residuals: list[np.ndarray], memories: tuple[float, ...]) -> tuple[float, float, float]:
    """Memory and share that predict the residuals best, and the variance left; every study weighs the same."""
    best = (0.0, 0.0, np.inf)
    for memory in memories:
        whole = across = power = 0.0
        for r in residuals:
            s = filtered(r, memory)
            across, power, whole = across + s @ r / len(r), power + s @ s / len(r), whole + r @ r / len(r)
        share = float(np.clip(across / power, 0, 1)) if power > 0 else 0.0
        left = (whole - 2 * share * across + share**2 * power) / len(residuals)
        if left < best[2]:
            best = (memory, share, left)
    return best


def fit(studies: list[StudyScores], excerpt: int = 20_000) -> Calibration:
    """Learn all 17 labels' innovations; memory and share from `excerpt` frames of each study."""
    memory, share, gains, left = np.zeros((4, N_LABELS))
    mean, variance = np.zeros((2, N_LABELS, STATES))
    xs = [base_removed(logits(s.probs), np.arange(N_LABELS)) for s in studies]
    regions = np.arange(len(REGIONS))
    for columns in (regions, *([c] for c in range(len(REGIONS), N_LABELS))):
        parts = {}
        for c in columns:
            ys = [s.labels[:, c] for s in studies]
            gains[c] = _gain([x[:, c] for x in xs], ys)
            rest = [x[:excerpt, c] - gains[c] * y[:excerpt] for x, y in zip(xs, ys, strict=True)]
            parts[c] = [r - r.mean() for r in rest]
        # One memory for all regions: they change together.
        common, *_ = _memory([r / (np.std(r) + 1e-6) for p in parts.values() for r in p], MEMORIES)
        for c in columns:
            memory[c], share[c], left[c] = _memory(parts[c], (common,))
    for c in range(N_LABELS):
        n, total, square = np.zeros((3, STATES))
        for s, x in zip(studies, xs, strict=True):
            state, e = states(s.labels[:, c], memory[c]), innovation(x[:, c], memory[c], share[c]).astype(np.float64)
            n += np.bincount(state, minlength=STATES)
            total += np.bincount(state, e, STATES)
            square += np.bincount(state, e * e, STATES)
        quiet = total[0] / max(n[0], 1)
        spread = max(square[0] / max(n[0], 1) - quiet**2, 1e-2)
        label, level = np.divmod(np.arange(STATES), LEVELS)
        linear = quiet + gains[c] * (label - share[c] * level / (LEVELS - 1))
        mean[c] = (total + SHRINK * linear) / (n + SHRINK)
        variance[c] = (square - 2 * mean[c] * total + n * mean[c] ** 2 + SHRINK * spread) / (n + SHRINK)
    return Calibration(memory, share, mean, np.maximum(variance, 1e-2))
