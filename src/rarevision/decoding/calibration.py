"""Calibration: the evidence that a frame's scores carry for and against each label.

A network's errors last. Where it is wrong on one frame it is mostly wrong on the next, and the scores of a whole study
may be too high. Frames that count as independent would count one error many times. So each label's logit x_t (log odds
of the score, in nats) is replaced by its innovation, the part that the logits before it do not predict:

    e_t = x_t - share * s_t    with    s_t = memory * s_{t-1} + (1 - memory) * x_{t-1}

s_t is an exponential average of the earlier logits. `memory` and `share` lie between 0 and 1 and are fitted by least
squares to what is left of the logits when the labels' own effect is subtracted.

A true event also raises s_t and so lowers e_t while it lasts. The label, 0 or 1, is therefore sent through the same
average; the result, between 0 and 1, is called its trace. Label and trace, the latter rounded to one of LEVELS levels,
are the label state of a frame, and a Student t distribution of e is fitted in each state. `docs/decoder.md` follows ten
frames through this.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter
from scipy.special import gammaln, stdtr

from rarevision.labels import N_LABELS, REGIONS
from rarevision.scores import StudyScores

LEVELS = 4  # levels of the trace: 0, 1/3, 2/3 and 1
STATES = 2 * LEVELS  # label state = LEVELS * label + level of its trace
MEMORIES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)  # that are tried
EXCERPT = 20_000  # frames of each study, its first, from which memory and share are fitted
MIN_SCORE = 1e-5  # scores nearer to 0 or 1 than this count as this
BASELINE = 0.2  # quantile of a study's logits that stands for its negative frames
SHRINK = 50  # the linear model weighs as much as so many frames in each state's mean and variance
FREEDOMS = (3.0, 6.0, 12.0, 100.0)  # degrees of freedom that are tried; 100 is as good as a normal distribution
SAMPLE = 20_000  # frames of a state that its distribution is fitted to, about
MIN_SCALE = 0.1  # smallest scale of a distribution, in nats
CELLS, REACH = 1024, 12.0  # cells of the table of densities; how far it goes beyond the means, in nats
BINS = 64  # of the histogram that corrects the distributions
CURVE_FRAMES = 200  # the fitted distribution weighs as much as so many frames in the histogram
MIN_GAIN = 0.05  # mean log-likelihood that the histogram must gain, in nats a frame, or it is not used
MAX_EVIDENCE = 10.0  # largest log-likelihood ratio of one frame and label, in nats


@dataclass(frozen=True)
class Calibration:
    """The fitted distributions of the innovations of 17 labels in STATES states."""

    memory: np.ndarray  # [17]
    share: np.ndarray  # [17]
    mean: np.ndarray  # [17, STATES] of the Student t, in nats
    scale: np.ndarray  # [17, STATES] of the Student t, in nats
    limits: np.ndarray  # [2] logits that scores of exactly 0 and 1 count as
    freedom: np.ndarray  # [17] degrees of freedom; few mean that a single odd frame is believed little
    span: np.ndarray  # [17, 2] where the bins of `excess` begin and end, in nats
    excess: np.ndarray  # [17, BINS, STATES] log of the density seen in a bin over the Student t's
    region_weight: float = 1.0  # factor on the regions' evidence (see `posteriors.fit_region_weight`)

    def evidence(self, probs: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Log-likelihood ratio of each label state against the state "off for long", float32 [T, columns, STATES]."""
        x = subtract_baseline(logits(probs[:, columns], self.limits), columns)
        out = np.empty((*x.shape, STATES), np.float32)
        for i, c in enumerate(columns):
            e = innovation(x[:, i], self.memory[c], self.share[c])
            # The densities are looked up in a table, which is much faster than computing them frame by frame.
            low, high = self.mean[c].min() - REACH, self.mean[c].max() + REACH
            grid = np.linspace(low, high, CELLS)
            table = log_density(grid[:, None], self.mean[c], self.scale[c], self.freedom[c])
            table += self.excess[c][_bins(grid, self.span[c])]
            table = np.clip(table - table[:, :1], -MAX_EVIDENCE, MAX_EVIDENCE).astype(np.float32)
            cell = np.rint((np.clip(e, low, high) - low) * ((CELLS - 1) / (high - low))).astype(np.int32)
            out[:, i] = table[cell]
        return out


def logits(probs: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Logits of scores in [0, 1], float32, held within `limits`."""
    p = np.asarray(probs, np.float32)
    with np.errstate(divide="ignore"):
        return np.clip(np.log(p) - np.log1p(-p), *limits.astype(np.float32))


def score_limits(probs: list[np.ndarray]) -> np.ndarray:
    """Logits [2] of half the smallest score above 0, and of 1 less half the smallest gap below 1.

    A score that was rounded to 0 or 1 would otherwise have an infinite logit.
    """
    low = min(float(p[p > 0].min(initial=0.5)) for p in probs)
    high = min(float(1 - p[p < 1].max(initial=0.5)) for p in probs)
    low, high = (max(v / 2, MIN_SCORE) for v in (low, high))
    return np.array([np.log(low / (1 - low)), np.log((1 - high) / high)])


def subtract_baseline(x: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Logits [T, C] less a low quantile of their own study, so that studies with high scores resemble the others.

    Regions are left as they are: one of them may fill a study, so that no frame is negative.
    """
    thin = x[:: max(1, len(x) // 5000)]
    return x - np.where(np.asarray(columns) < len(REGIONS), 0.0, np.quantile(thin, BASELINE, axis=0)).astype(np.float32)


def filtered(x: np.ndarray, memory: float) -> np.ndarray:
    """The average s_t of the module's text, which is 0 before the first frame."""
    return lfilter([0, 1 - memory], [1, -memory], x, axis=0)


def innovation(x: np.ndarray, memory: float, share: float) -> np.ndarray:
    """The innovation e_t of logits [T]; all logits before the first frame are taken to equal the first."""
    return x - share * (filtered(x - x[0], memory) + x[0])


def states(label: np.ndarray, memory: float) -> np.ndarray:
    """Label states int [T] of a 0/1 label [T]."""
    level = np.rint(filtered(label.astype(np.float64), memory) * (LEVELS - 1)).astype(np.int64)
    return label.astype(np.int64) * LEVELS + level


def fit(studies: list[StudyScores]) -> Calibration:
    """Learn the innovations of all 17 labels from studies with labels."""
    memory, share, gain = np.zeros((3, N_LABELS))
    limits = score_limits([s.probs for s in studies])
    xs = [subtract_baseline(logits(s.probs, limits), np.arange(N_LABELS)) for s in studies]
    # The regions share one memory, because they change together.
    for columns in (range(len(REGIONS)), *([c] for c in range(len(REGIONS), N_LABELS))):
        unexplained = {}
        for c in columns:
            ys = [s.labels[:, c] for s in studies]
            gain[c] = _gain([x[:, c] for x in xs], ys)
            rest = [x[:EXCERPT, c] - gain[c] * y[:EXCERPT] for x, y in zip(xs, ys, strict=True)]
            unexplained[c] = [r - r.mean() for r in rest]
        common, _ = _memory([r / (np.std(r) + 1e-6) for rest in unexplained.values() for r in rest], MEMORIES)
        for c in columns:
            memory[c], share[c] = _memory(unexplained[c], (common,))
    densities = []
    for c in range(N_LABELS):
        state = np.concatenate([states(s.labels[:, c], memory[c]) for s in studies])
        e = np.concatenate([innovation(x[:, c], memory[c], share[c]) for x in xs])
        densities.append(_densities(e, state, gain[c], share[c]))
    mean, scale, freedom, span, excess = (np.array(p) for p in zip(*densities, strict=True))
    return Calibration(memory, share, mean, scale, limits, freedom, span, excess)


def _gain(xs: list[np.ndarray], ys: list[np.ndarray]) -> float:
    """Mean logit of a study's positive frames less that of its negative ones, at least 0.

    The mean over studies, each weighted by the number of its positive frames, up to 100.
    """
    gains, weights = [0.0], [1.0]
    for x, y in zip(xs, ys, strict=True):
        n = int(y.sum())
        if 0 < n < len(y):
            gains.append(x[y == 1].mean() - x[y == 0].mean())
            weights.append(min(n, 100))
    return max(float(np.average(gains, weights=weights)), 0.0)


def _memory(residuals: list[np.ndarray], memories: tuple[float, ...]) -> tuple[float, float]:
    """The memory and the share of least squared error of prediction, every study weighing the same."""
    best = (np.inf, 0.0, 0.0)
    for memory in memories:
        whole = across = power = 0.0
        for r in residuals:
            s = filtered(r, memory)
            across, power, whole = across + s @ r / len(r), power + s @ s / len(r), whole + r @ r / len(r)
        share = float(np.clip(across / power, 0, 1)) if power > 0 else 0.0
        error = (whole - 2 * share * across + share**2 * power) / len(residuals)
        if error < best[0]:
            best = (error, memory, share)
    return best[1:]


def _densities(e: np.ndarray, state: np.ndarray, gain: float, share: float) -> tuple[np.ndarray, ...]:
    """Mean and scale [STATES] of the innovations `e` [T] in each state, their degrees of freedom, and `_excess`.

    Maximum likelihood by iterative reweighting, the usual way to fit a Student t (Lange, Little and Taylor 1989). A
    state with few frames is drawn towards a linear model: an event raises the logit by `gain`, of which the average
    predicts `share` times the trace.
    """
    order = np.argsort(state, kind="stable")
    edges = np.searchsorted(state[order], np.arange(STATES + 1))
    parts = [e[order[a:b][:: max(1, (b - a) // SAMPLE)]].astype(np.float64) for a, b in itertools.pairwise(edges)]
    label, level = np.divmod(np.arange(STATES), LEVELS)
    linear = gain * (label - share * level / (LEVELS - 1))
    base = parts[0] if len(parts[0]) else e - linear[state]  # the second for a label that is never off
    quiet, common = float(np.median(base)), float(np.std(base)) + MIN_SCALE
    best = (-np.inf,)
    for freedom in FREEDOMS:
        mean, scale, likelihood = np.empty(STATES), np.empty(STATES), 0.0
        constant = gammaln((freedom + 1) / 2) - gammaln(freedom / 2) - 0.5 * np.log(freedom)
        for s, part in enumerate(parts):
            start = quiet if s == 0 else mean[0] + linear[s]
            spread = common if s == 0 else scale[0]
            m, v = start, spread**2
            for _ in range(8):
                w = (freedom + 1) / (freedom + (part - m) ** 2 / v)
                m = (w @ part + SHRINK * start) / (w.sum() + SHRINK)
                v = (w @ (part - m) ** 2 + SHRINK * spread**2) / (len(part) + SHRINK)
            mean[s], scale[s] = m, max(np.sqrt(v), MIN_SCALE)
            likelihood += (constant + log_density(part, m, scale[s], freedom)).sum()
        if likelihood > best[0]:
            best = (likelihood, mean, scale, freedom)
    return *best[1:], *_excess(parts, *best[1:])


def log_density(e: np.ndarray, mean: np.ndarray, scale: np.ndarray, freedom: float) -> np.ndarray:
    """Log density of the Student t, up to a constant that depends on `freedom` alone."""
    return -0.5 * (freedom + 1) * np.log1p(((e - mean) / scale) ** 2 / freedom) - np.log(scale)


def _excess(parts: list[np.ndarray], mean: np.ndarray, scale: np.ndarray, freedom: float) -> tuple[np.ndarray, ...]:
    """Span [2] of the bins, and the log of what is seen in each over what the Student t expects, [BINS, STATES].

    It corrects distributions that are no Student t at all, as of scores that pile up at 0. A state keeps 0 in all bins
    unless a histogram of every second frame gains at least MIN_GAIN on the frames between them.
    """
    low, high = np.quantile(np.concatenate(parts), [0.001, 0.999])
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


def _bins(e: np.ndarray, span: np.ndarray) -> np.ndarray:
    """Bin of each innovation; the first and the last bin reach to infinity."""
    return np.clip((e - span[0]) / (span[1] - span[0]) * BINS, 0, BINS - 1).astype(np.int64)
