"""Frame metrics per class: average precision (AP), AUC, F1, precision and recall, with intervals over studies.

A class without positive frames has no such value: it is NaN and said, never 0. The bootstrap draws whole studies; each
study is first reduced to counts between the class's positive scores, from which every draw's values follow exactly.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score

from rarevision.labels import LABELS
from rarevision.scores import StudyScores
from rarevision.scoring.bootstrap import draw_studies, limits

MAX_STEPS = 2048  # distinct positive scores kept per class in the bootstrap; beyond, as many of their quantiles
VALUES = ("AP", "AUC", "F1", "precision", "recall")


def frame_ap(labels: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """AP per class, float64 [C], from labels and probs [N, C]; NaN for a class without positives."""
    return np.array(
        [average_precision_score(y, p) if y.any() else np.nan for y, p in zip(labels.T, probs.T, strict=True)]
    )


def frame_table(
    studies: Sequence[StudyScores], thresholds: np.ndarray | None = None, resamples: int = 500, seed: int = 0
) -> pd.DataFrame:
    """One line per label over all frames of the studies; `thresholds` float [17] (0.5 each if None) decide F1,
    precision and recall (`probs >= threshold`).

    Columns: support (positive frames), studies (that have some), baseline (the label's share of frames: the AP of a
    random ranking), AP with low and high of its 95 % interval, AUC, F1, precision, recall with theirs (`AUC low`,
    ...), note. `.attrs`: "mean AP" over the labels with positive frames, and its interval "low", "high".
    """
    thresholds = np.full(len(LABELS), 0.5) if thresholds is None else np.asarray(thresholds)
    for s in studies:
        if s.labels is None:
            raise ValueError(f"study {s.study} has no labels: frame metrics need truth")
    labels, probs = (np.concatenate([getattr(s, kind) for s in studies]) for kind in ("labels", "probs"))
    study = np.repeat(np.arange(len(studies)), [len(s.frame) for s in studies])
    draws = draw_studies(len(studies), resamples, seed)
    lines, samples = [], []
    for c, name in enumerate(LABELS):
        y, p = labels[:, c] > 0, probs[:, c]
        hit = p >= thresholds[c]
        holders, notes = len(np.unique(study[y])), []
        line = {"label": name, "support": int(y.sum()), "studies": holders, "baseline": y.mean()}
        if not holders:
            notes.append("no positive frames: not defined")
        else:
            precision, recall, f1, _ = precision_recall_fscore_support(y, hit, average="binary", zero_division=np.nan)
            line |= {"AP": average_precision_score(y, p), "AUC": np.nan if y.all() else roc_auc_score(y, p)}
            line |= {"F1": f1, "precision": precision, "recall": recall}
            resampled = _resample(y, p, hit, study, draws)
            samples.append(resampled["AP"])
            if not hit.any():
                notes.append("nothing reaches the threshold")
            if holders == 1:
                notes.append("positives in one study only: no interval")
            else:
                low, high = limits(np.stack([resampled[value] for value in VALUES], axis=1))
                line |= {f"{value} low": x for value, x in zip(VALUES, low, strict=True)}
                line |= {f"{value} high": x for value, x in zip(VALUES, high, strict=True)}
        lines.append(line | {"note": "; ".join(notes)})
    columns = [f"{value}{limit}" for value in VALUES for limit in ("", " low", " high")]
    found = pd.DataFrame(lines).set_index("label").reindex(columns=["support", "studies", "baseline", *columns, "note"])
    found = found.rename(columns={"AP low": "low", "AP high": "high"})
    means = np.ma.masked_invalid(np.reshape(samples, (-1, resamples))).mean(axis=0).filled(np.nan)
    low, high = limits(means[:, None]).ravel()
    found.attrs = {"mean AP": float(found["AP"].mean()), "low": float(low), "high": float(high)}
    return found


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
