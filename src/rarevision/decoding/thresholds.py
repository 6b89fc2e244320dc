"""Thresholds: one score per label from which a frame counts as positive, fitted on studies with labels.

Three methods, which the setting `threshold.method` names. `paper` takes the best F1 over frames on the published grid.
`f1` tries every score that occurs. `event` takes the threshold whose cleaned events earn most in the challenge's
metric, and silence where nothing earns more. The scores must be out of fold, else the thresholds come out too high.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rarevision import config
from rarevision.decoding import folds
from rarevision.decoding.cleaning import clean
from rarevision.events import runs
from rarevision.labels import LABELS, N_LABELS
from rarevision.scores import StudyScores
from rarevision.scoring import event_ap

NEVER = 2.0  # a threshold that no score reaches: the label stays silent
QUANTILES = 24  # `event`: candidate thresholds per label


@dataclass(frozen=True)
class Thresholds:
    """`values` float32 [17]: a frame is positive where its score is >= the value. `notes`: label -> what is special."""

    values: np.ndarray
    notes: dict[str, str]


def fit_thresholds(
    studies: list[StudyScores], cfg: config.Threshold, decode: config.Decode | None = None
) -> Thresholds:
    """Thresholds of all 17 labels; the method `event` cleans as `decode` says."""
    labels = np.concatenate([s.labels for s in studies])
    positives, n = labels.sum(0, dtype=np.int64), len(labels)
    values, notes = np.full(N_LABELS, cfg.default, np.float32), {}
    for c, name in enumerate(LABELS):
        if positives[c] < max(cfg.min_positives, 1):
            notes[name] = f"{positives[c]} positive frames in {len(studies)} studies: default {cfg.default} used"
            continue
        probs = np.concatenate([s.probs[:, c] for s in studies])
        if cfg.method == "event":
            values[c] = _best_event(studies, c, decode or config.Decode())
        elif cfg.method == "f1":
            values[c] = _best_f1(probs, labels[:, c], np.unique(probs)[::-1])
        else:
            low = cfg.low_rare if positives[c] / n < cfg.rare_support else cfg.low
            grid = low + cfg.step * np.arange(int(np.floor((cfg.high - low) / cfg.step + 1e-9)) + 1)
            values[c] = _best_f1(probs, labels[:, c], grid.astype(np.float32))
        if values[c] >= NEVER:
            notes[name] = "no threshold earns more than silence: never emitted"
    return Thresholds(values, notes)


def threshold_spread(studies: list[StudyScores], cfg: config.Config) -> dict[str, dict[str, Any]]:
    """Per label: the threshold fitted without each fold of `cfg.decode`, and their range.

    A wide range says that the threshold hangs on a few studies.
    """
    splits = folds.split(studies, cfg.decode)
    table = np.stack([fit_thresholds(outside, cfg.threshold, cfg.decode).values for outside, _ in splits])
    return {
        name: {"folds": values.tolist(), "low": float(values.min()), "high": float(values.max())}
        for name, values in zip(LABELS, table.T, strict=True)
    }


def _best_f1(probs: np.ndarray, truth: np.ndarray, values: np.ndarray) -> float:
    """The first of `values` that reaches the best F1 over frames, F1 = 2 * hits / (positive frames + true frames)."""
    found, hits = (len(p) - np.searchsorted(np.sort(p), values) for p in (probs, probs[truth == 1]))
    return float(values[np.argmax(2 * hits / (found + (truth == 1).sum()))])


def _best_event(studies: list[StudyScores], c: int, cfg: config.Decode) -> float:
    """Threshold of the best mean AP (tIoU 0.5 and 0.95) of label `c`'s cleaned runs; NEVER where silence earns more."""
    truths = [runs(s.labels[:, c] == 1) for s in studies]
    best, gain = NEVER, float(sum(len(t) == 0 for t in truths))  # silence earns 1 on each study without the label
    values, earned = event_table(studies, c, truths, cfg)
    for value, total in zip(values, earned.sum(0), strict=True):
        if total > gain + 1e-9:
            best, gain = float(value), total
    return best


def event_table(
    studies: list[StudyScores], c: int, truths: list[np.ndarray], cfg: config.Decode
) -> tuple[np.ndarray, np.ndarray]:
    """Candidate thresholds of label `c`, [k], the highest first, and what each earns on each study, [n, k].

    `truths`: the true events of each study as rows [m, 2]. Earned is the mean AP at tIoU 0.5 and 0.95.
    """
    share = np.mean([s.labels[:, c].mean() for s in studies])
    tails = share * np.geomspace(1 / 50, 4, QUANTILES)  # shares of frames, around the share that is truly positive
    probs = np.concatenate([s.probs[:, c] for s in studies])
    values = np.unique(np.quantile(probs, 1 - np.minimum(tails, 1), method="higher"))[::-1]
    earned = np.empty((len(studies), len(values)))
    for s, (study, truth) in enumerate(zip(studies, truths, strict=True)):
        for k, value in enumerate(values):
            found, _ = ranked_runs(study.probs[:, c], value, cfg)
            earned[s, k] = np.mean([event_ap(truth, found, t) for t in (0.5, 0.95)])
    return values, earned


def ranked_runs(probs: np.ndarray, threshold: float, cfg: config.Decode) -> tuple[np.ndarray, np.ndarray]:
    """Cleaned runs of `probs` [T] at or above a threshold, rows [n, 2], and the mean score of each, highest first."""
    found = runs(clean(probs >= threshold, cfg.median, cfg.max_gap, cfg.min_length))
    below = np.append(0.0, np.cumsum(probs, dtype=np.float64))
    mean = (below[found[:, 1] + 1] - below[found[:, 0]]) / (found[:, 1] - found[:, 0] + 1)
    order = np.argsort(-mean, kind="stable")
    return found[order], mean[order]
