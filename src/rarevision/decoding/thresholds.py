"""Thresholds: one per label, fitted on studies with labels (in practice out of fold, nested by study).

`paper`: the published grid, best F1 over frames. `f1`: the exact best F1, any score may be the threshold. `event`: the
threshold whose cleaned events (median, gaps, minimum length) earn most in the challenge's metric, silence included.
"""

from dataclasses import dataclass

import numpy as np

from rarevision import config
from rarevision.decoding.cleaning import clean, run_means
from rarevision.events import runs
from rarevision.labels import LABELS, N_LABELS
from rarevision.scores import StudyScores
from rarevision.scoring import event_ap

NEVER = 2.0  # a threshold that no score reaches: the label stays silent
QUANTILES = 24  # `event`: candidate thresholds per label


@dataclass(frozen=True)
class Thresholds:
    """`values` float32 [17]: a frame is positive where its score is >= the value. `notes`: what was done otherwise."""

    values: np.ndarray
    notes: dict[str, str]


def fit_thresholds(
    studies: list[StudyScores], cfg: config.Threshold, decode: config.Decode | None = None
) -> Thresholds:
    """Thresholds of all 17 labels from studies that carry labels."""
    labels = np.concatenate([s.labels for s in studies])
    positives, n = labels.sum(0, dtype=np.int64), len(labels)
    values, notes = np.full(N_LABELS, cfg.default, np.float32), {}
    for c, name in enumerate(LABELS):
        if positives[c] < max(cfg.min_positives, 1):
            notes[name] = f"{positives[c]} positive frames in {len(studies)} studies: default {cfg.default} used"
            continue
        probs = np.concatenate([s.probs[:, c] for s in studies])
        if cfg.method == "event":
            values[c] = _best_event(studies, c, probs, decode or config.Decode())
        elif cfg.method == "f1":
            values[c] = _best_f1(probs, labels[:, c])
        else:
            low = cfg.low_rare if positives[c] / n < cfg.rare_support else cfg.low
            grid = low + cfg.step * np.arange(int(np.floor((cfg.high - low) / cfg.step + 1e-9)) + 1)
            values[c] = _best_on_grid(probs, labels[:, c], grid.astype(np.float32))
        if values[c] >= NEVER:
            notes[name] = "no threshold earns more than silence: never emitted"
    return Thresholds(values, notes)


def threshold_spread(
    studies: list[StudyScores], cfg: config.Threshold, folds: dict[str, int], decode=None
) -> dict[str, dict]:
    """Per label: the threshold fitted without each fold, and their range; how far a value depends on the studies."""
    fits = {
        k: fit_thresholds([s for s in studies if folds[s.study] != k], cfg, decode).values
        for k in sorted(set(folds.values()))
    }
    table = np.stack(list(fits.values()))
    return {
        name: {"folds": table[:, c].tolist(), "low": float(table[:, c].min()), "high": float(table[:, c].max())}
        for c, name in enumerate(LABELS)
    }


def _best_on_grid(probs: np.ndarray, truth: np.ndarray, grid: np.ndarray) -> float:
    """Grid value of the best F1 (the lowest of equals); histograms instead of one pass per threshold."""
    bins = np.searchsorted(grid, probs, side="right")  # number of grid values a score reaches
    counts = [np.bincount(bins[truth == y], minlength=len(grid) + 1)[::-1].cumsum()[::-1][1:] for y in (0, 1)]
    return float(grid[np.argmax(2 * counts[1] / np.maximum(counts[0] + counts[1] + (truth == 1).sum(), 1))])


def _best_f1(probs: np.ndarray, truth: np.ndarray) -> float:
    """Score value of the best F1 over all possible thresholds."""
    order = np.argsort(probs, kind="stable")[::-1]
    ranked = probs[order]
    hits = np.cumsum(truth[order], dtype=np.int64)
    last = np.append(ranked[1:] != ranked[:-1], True)  # a threshold takes all frames of equal score
    f1 = 2 * hits / (np.arange(1, len(hits) + 1) + hits[-1])
    return float(ranked[np.argmax(np.where(last, f1, -1.0))])


def _best_event(studies: list[StudyScores], c: int, probs: np.ndarray, cfg: config.Decode) -> float:
    """Threshold of the best mean AP (tIoU 0.5 and 0.95) of label `c`'s cleaned runs; NEVER where silence earns more."""
    share = np.mean([s.labels[:, c].mean() for s in studies])
    tails = share * np.geomspace(1 / 50, 4, QUANTILES)  # around the true share of positive frames
    candidates = np.unique(np.quantile(probs, 1 - np.minimum(tails, 1), method="higher"))
    truths = [runs(s.labels[:, c] == 1) for s in studies]
    best, gain = NEVER, sum(len(t) == 0 for t in truths)
    for value in candidates[::-1]:
        total = 0.0
        for study, truth in zip(studies, truths, strict=True):
            mask = clean(study.probs[:, c] >= value, cfg.median, cfg.max_gap, cfg.min_length)
            found = runs(mask)
            found = found[np.argsort(-run_means(study.probs[:, c], found), kind="stable")]  # the surest first
            total += np.mean([event_ap(truth, found, t) for t in (0.5, 0.95)])
        if total > gain + 1e-9:
            best, gain = float(value), total
    return best
