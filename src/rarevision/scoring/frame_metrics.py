"""Frame metrics per class: average precision, AUC, F1, precision, recall, with intervals over studies.

A class without positive frames has no such value: it is NaN and said, never 0. Intervals are percentiles of a bootstrap
that draws whole studies, since frames of one study are not independent; each study is first reduced to counts between
the class's positive scores, from which every resample's values follow exactly.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn.metrics import average_precision_score, roc_auc_score

from rarevision.labels import LABELS
from rarevision.scores import StudyScores

MAX_STEPS = 2048  # distinct positive scores kept per class in the bootstrap; beyond, as many of their quantiles
VALUES = ("AP", "AUC", "F1", "precision", "recall")


def frame_ap(labels: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """AP per class, float64 [C], from labels and probs [N, C]; NaN for a class without positives."""
    return np.array(
        [average_precision_score(y, p) if y.any() else np.nan for y, p in zip(labels.T, probs.T, strict=True)]
    )


def frame_table(
    studies: Sequence[StudyScores],
    thresholds: np.ndarray | None = None,
    resamples: int = 500,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """One line per label over all frames of the studies; `thresholds` float [17] (0.5 each if None) decide F1,
    precision and recall (`probs >= threshold`).

    Columns: support (positive frames), studies (that have some), baseline (the label's share of frames: the AP of a
    random ranking), AP with low and high of its `level` interval, AUC, F1, precision, recall with theirs (`AUC low`,
    ...), note. `.attrs`: "mean AP" over the labels with positive frames, and its interval "low", "high".
    """
    thresholds = np.full(len(LABELS), 0.5) if thresholds is None else np.asarray(thresholds)
    for s in studies:
        if s.labels is None:
            raise ValueError(f"study {s.study} has no labels: frame metrics need truth")
    labels, probs = (np.concatenate([getattr(s, kind) for s in studies]) for kind in ("labels", "probs"))
    study = np.repeat(np.arange(len(studies)), [len(s.frame) for s in studies])
    draws = np.random.default_rng(seed).multinomial(len(studies), np.full(len(studies), 1 / len(studies)), resamples)
    lines, samples = [], []
    for c, name in enumerate(LABELS):
        y, p = labels[:, c] > 0, probs[:, c]
        holders = len(np.unique(study[y]))
        line = {"label": name, "support": int(y.sum()), "studies": holders, "baseline": y.mean(), "note": ""}
        if not y.any():
            lines.append(line | dict.fromkeys(VALUES, np.nan) | {"note": "no positive frames: not defined"})
            samples.append(np.full(resamples, np.nan))
            continue
        hit = p >= thresholds[c]
        tp, fp, fn = (hit & y).sum(), (hit & ~y).sum(), (~hit & y).sum()
        line |= {
            "AP": average_precision_score(y, p),
            "AUC": np.nan if y.all() else roc_auc_score(y, p),
            "F1": 2 * tp / (2 * tp + fp + fn),
            "precision": tp / (tp + fp) if tp + fp else np.nan,
            "recall": tp / (tp + fn),
        }
        resampled = _resample(y, p, hit, study, draws)
        samples.append(resampled["AP"])
        if holders < 2:
            line["note"] = "positives in one study only: no interval"
        else:
            for value in VALUES:
                line[f"{value} low"], line[f"{value} high"] = _interval(resampled[value], level)
        if not tp + fp:
            line["note"] = "; ".join(filter(None, ["nothing reaches the threshold", line["note"]]))
        lines.append(line)
    order = ["support", "studies", "baseline"]
    for value in VALUES:
        order += [value, f"{value} low", f"{value} high"]
    found = pd.DataFrame(lines).set_index("label").reindex(columns=[*order, "note"])
    found = found.rename(columns={"AP low": "low", "AP high": "high"})
    defined = ~np.isnan(samples)
    means = np.nansum(samples, 0)[defined.any(0)] / defined.sum(0)[defined.any(0)]
    low, high = _interval(means, level)
    found.attrs = {"mean AP": float(found["AP"].mean()), "low": low, "high": high}
    return found


def _interval(values: np.ndarray, level: float) -> tuple[float, float]:
    values = values[~np.isnan(values)]  # resamples in which the value is not defined
    if not len(values):
        return np.nan, np.nan
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resample(
    y: np.ndarray, p: np.ndarray, hit: np.ndarray, study: np.ndarray, draws: np.ndarray
) -> dict[str, np.ndarray]:
    """Values of one class for each resample, float64 [R]; draws int [R, S] say how often a study was drawn."""
    edges = np.unique(p[y])
    if len(edges) > MAX_STEPS:
        edges = np.unique(np.quantile(edges, np.linspace(0, 1, MAX_STEPS), method="nearest"))
    # 2k+1: equal to edge k; 2k: between edges k-1 and k. Positives sit on edges, so ties are kept exactly
    code = np.searchsorted(edges, p, side="left") + np.searchsorted(edges, p, side="right")
    n_codes, n_studies = 2 * len(edges) + 1, draws.shape[1]

    def counted(mask: np.ndarray) -> np.ndarray:  # [R, codes], from the highest score down
        cells = np.bincount(study[mask] * n_codes + code[mask], minlength=n_studies * n_codes)
        return (draws @ cells.reshape(n_studies, n_codes).astype(np.float64))[:, ::-1]

    def total(mask: np.ndarray) -> np.ndarray:  # [R]
        return draws @ np.bincount(study[mask], minlength=n_studies).astype(np.float64)

    positive, negative = counted(y), counted(~y)
    above, below = positive.cumsum(1), negative.cumsum(1)
    n, m = above[:, -1], below[:, -1]
    tp, fp = total(hit & y), total(hit & ~y)
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is NaN: not defined in that resample
        precision = np.where(above > 0, above / (above + below), 0.0)
        return {
            "AP": (positive * precision).sum(1) / n,
            "AUC": (negative * (above - positive / 2)).sum(1) / (n * m),
            "F1": np.where(n > 0, 2 * tp / (tp + fp + n), np.nan),
            "precision": tp / (tp + fp),
            "recall": tp / n,
        }
