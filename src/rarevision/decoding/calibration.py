"""Calibration: frame scores to evidence, without the part of a score that the scores before it predict.

A network's errors last: the logit of a frame is predicted well by the logits before it, whatever the label. Treating
frames as independent counts the same error many times, and a study-wide shift of the scores counts in every frame.
So each label's logit x is turned into its innovation e_t = x_t - share * s_t, where s_t = memory * s_{t-1} +
(1 - memory) * x_{t-1}, which has neither. The label enters the same filter: e_t depends on the label now and on the
label's trace, the same s of 0 and 1, in LEVELS steps. Mean and variance of e in each label state are learned, memory
and share by least squares on what the labels leave. So onsets and ends stand out and long events are not overcounted.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter
from scipy.special import gammaln, stdtr

from rarevision.labels import N_LABELS, REGIONS
from rarevision.scores import StudyScores

LEVELS = 4  # steps of the label's trace
STATES = 2 * LEVELS  # label state = LEVELS * label + level of its trace
MEMORIES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
MIN_SCORE = 1e-5  # scores nearer to 0 or 1 than this count as this
BASELINE = 0.2  # quantile of a study's logits that stands for its negative frames; findings and landmarks only
SHRINK = 50  # frames' worth of weight of the linear model in each state's mean and variance
FREEDOMS = (3.0, 6.0, 12.0, 100.0)  # degrees of freedom that may be chosen; the last is as good as normal
SAMPLE = 20_000
MIN_SCALE = 0.1  # scale of an innovation, in logits
CELLS, REACH = 1024, 12.0  # of the table of densities, and how far it goes beyond the means, in logits
BINS = 64  # of the densities' excess over the curves
CURVE_FRAMES = 200  # frames that weigh as much as the curve in a bin's density
MIN_GAIN = 0.05  # nats a frame that the bins must gain over the curve, or the curve is kept
MAX_EVIDENCE = 10.0  # largest log-likelihood ratio of one frame and label, in nats


@dataclass(frozen=True)
class Calibration:
    """`memory`, `share`, `freedom` [17]; `mean`, `scale` [17, STATES] of each label state's Student t.

    `excess` [17, BINS, STATES]: log of the density seen in each bin over the Student t's, where that is far off, as for
    scores that pile up at 0 or 1; `span` [17, 2]: where the bins begin and end.
    """

    memory: np.ndarray
    share: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    limits: np.ndarray  # [2] logits that scores of exactly 0 and 1 count as
    freedom: np.ndarray  # degrees of freedom: how much a single odd frame is believed
    span: np.ndarray
    excess: np.ndarray
    region_weight: float = 1.0  # factor on the regions' evidence (see `posteriors.fit_region_weight`)

    def evidence(self, probs: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Log-likelihood of each label state against the state "off for long", float32 [T, columns, STATES], nats."""
        x = subtract_baseline(logits(probs[:, columns], self.limits), columns)
        out = np.empty((*x.shape, STATES), np.float32)
        for i, c in enumerate(columns):
            e = innovation(x[:, i], self.memory[c], self.share[c])
            low, high = self.mean[c].min() - REACH, self.mean[c].max() + REACH
            grid = np.linspace(low, high, CELLS)
            table = log_density(grid[:, None], self.mean[c], self.scale[c], self.freedom[c])
            table += self.excess[c][_bins(grid, self.span[c])]
            table = np.clip(table - table[:, :1], -MAX_EVIDENCE, MAX_EVIDENCE).astype(np.float32)
            cell = np.rint((np.clip(e, low, high) - low) * ((CELLS - 1) / (high - low))).astype(np.int32)
            out[:, i] = table[cell]
        return out


def log_density(e: np.ndarray, mean: np.ndarray, scale: np.ndarray, freedom: float) -> np.ndarray:
    """Student t, up to a constant of `freedom`."""
    return -0.5 * (freedom + 1) * np.log1p(((e - mean) / scale) ** 2 / freedom) - np.log(scale)


def _bins(e: np.ndarray, span: np.ndarray) -> np.ndarray:
    """Bin of each innovation; the first and the last are open."""
    return np.clip((e - span[0]) / (span[1] - span[0]) * BINS, 0, BINS - 1).astype(np.int64)


def logits(probs: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Logits of scores in [0, 1], float32, held within `limits`."""
    p = np.asarray(probs, np.float32)
    with np.errstate(divide="ignore"):
        return np.clip(np.log(p) - np.log1p(-p), *limits.astype(np.float32))


def score_limits(probs: list[np.ndarray]) -> np.ndarray:
    """Logits of half the smallest score above 0, and of 1 less half the smallest gap to 1.

    A score rounded to 0 or 1 would else be an enormous outlier.
    """
    low = min((float(p[p > 0].min(initial=0.5)) for p in probs), default=0.5)
    high = min((float(1 - p[p < 1].max(initial=0.5)) for p in probs), default=0.5)
    low, high = (max(v / 2, MIN_SCORE) for v in (low, high))
    return np.array([np.log(low / (1 - low)), np.log((1 - high) / high)])


def subtract_baseline(x: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Logits [T, C] less the study's own base, except for the regions, which may fill a study."""
    thin = x[:: max(1, len(x) // 5000)]
    return x - np.where(np.asarray(columns) < len(REGIONS), 0.0, np.quantile(thin, BASELINE, axis=0)).astype(np.float32)


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
    memory, share, gains = np.zeros((3, N_LABELS))
    limits = score_limits([s.probs for s in studies])
    xs = [subtract_baseline(logits(s.probs, limits), np.arange(N_LABELS)) for s in studies]
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
            memory[c], share[c], _ = _memory(parts[c], (common,))
    parts = []
    for c in range(N_LABELS):
        state = np.concatenate([states(s.labels[:, c], memory[c]) for s in studies])
        e = np.concatenate([innovation(x[:, c], memory[c], share[c]) for x in xs])
        parts.append(_densities(e, state, gains[c], share[c]))
    mean, scale, freedom, span, excess = (np.array(p) for p in zip(*parts, strict=True))
    return Calibration(memory, share, mean, scale, limits, freedom, span, excess)


def _densities(e: np.ndarray, state: np.ndarray, gain: float, share: float) -> tuple[np.ndarray, ...]:
    """Mean and scale of the innovations of each state, degrees of freedom common to them, span and excess of the bins.

    Maximum likelihood by reweighting, from at most SAMPLE frames a state; a state with few frames is drawn towards the
    linear model: the gain, less the share of it that the trace predicts.
    """
    order = np.argsort(state, kind="stable")
    edges = np.searchsorted(state[order], np.arange(STATES + 1))
    parts = [e[order[a:b][:: max(1, (b - a) // SAMPLE)]].astype(np.float64) for a, b in itertools.pairwise(edges)]
    label, level = np.divmod(np.arange(STATES), LEVELS)
    linear = gain * (label - share * level / (LEVELS - 1))
    base = parts[0] if len(parts[0]) else e - linear[state]  # a label that is never off
    quiet, common = float(np.median(base)), float(np.std(base)) + MIN_SCALE
    best = (-np.inf,)
    for freedom in FREEDOMS:
        mean, scale, likelihood = np.empty(STATES), np.empty(STATES), 0.0
        for s, part in enumerate(parts):
            start = quiet if s == 0 else mean[0] + linear[s]
            spread = common if s == 0 else scale[0]
            m, v, weight = start, spread**2, SHRINK
            for _ in range(8):
                w = (freedom + 1) / (freedom + (part - m) ** 2 / v)
                m = (w @ part + weight * start) / (w.sum() + weight)
                v = (w @ (part - m) ** 2 + weight * spread**2) / (len(part) + weight)
            mean[s], scale[s] = m, max(np.sqrt(v), MIN_SCALE)
            constant = gammaln((freedom + 1) / 2) - gammaln(freedom / 2) - 0.5 * np.log(freedom)
            likelihood += (constant + log_density(part, m, scale[s], freedom)).sum()
        if likelihood > best[0]:
            best = (likelihood, mean, scale, freedom)
    return *best[1:], *_excess(parts, *best[1:])


def _excess(parts: list[np.ndarray], mean: np.ndarray, scale: np.ndarray, freedom: float) -> tuple[np.ndarray, ...]:
    """Span of the bins and what the curves lack or have too much there, [BINS, STATES], rounded to 0.001.

    0 for a state whose curve is hardly worse: where half of the frames' excess gains less than MIN_GAIN on the other
    half.
    """
    pooled = np.concatenate(parts)
    low, high = np.quantile(pooled, [0.001, 0.999])
    span = np.array([low - MIN_SCALE, high + MIN_SCALE])
    edges = np.linspace(*span, BINS + 1)[1:-1]
    out = np.zeros((BINS, STATES))
    for s, part in enumerate(parts):
        below = stdtr(freedom, (edges - mean[s]) / scale[s])
        curve = np.maximum(np.diff(below, prepend=0.0, append=1.0), 1e-4)
        counts = np.array([np.bincount(_bins(part[k::2], span), minlength=BINS) for k in (0, 1)])
        half, whole = (
            (n + CURVE_FRAMES * curve) / (n.sum() + CURVE_FRAMES) / curve for n in (counts[0], counts.sum(0))
        )
        if counts[1] @ np.log(half) > MIN_GAIN * max(counts[1].sum(), 1):
            out[:, s] = np.log(whole)
    return span, np.round(out, 3)
