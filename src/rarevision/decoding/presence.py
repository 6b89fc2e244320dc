"""Presence: whether a label is emitted at all, in which order its proposals stand, and what that should earn.

The metric gives 1 for silence on an absent label and 0 for silence on a present one. With p = P(present) and A = AP
expected if present, emitting earns p * A, silence 1 - p. More proposals below the ranked ones never cost: precision
counts at hits only. So the number of events is decided by rank, and the decision is one per study and label.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from rarevision.decoding.chains import Marginals
from rarevision.decoding.posteriors import RegionPath
from rarevision.decoding.proposals import N_FEATURES, Candidates, Proposals
from rarevision.decoding.structure import N_REGIONS
from rarevision.labels import N_LABELS
from rarevision.scoring import event_ap

GROUP = np.array([0, 0, 1, 1, 1, 2, 2, 2, *[3] * 9])  # mouth, esophagus | long regions | landmarks | findings
PRIOR_AP = 1.0  # AP added to both sides of the ratio earned / expected, so that few examples move it little
TIOU = (0.5, 0.95)
RIDGE = 1.0
MIN_HIT = 0.003  # proposals less likely to hit than this are left out


@dataclass(frozen=True)
class Presence:
    """Logistic models of P(present) and P(hit); the last weight of each is the intercept."""

    absent_evidence: np.ndarray  # [12, 2] centre and spread of the evidence in studies without the label
    region: np.ndarray  # [3] weights of a region's presence, added to the log odds of its prevalence
    other: np.ndarray  # [7] the same for landmarks and findings
    hit: np.ndarray  # [4, N_FEATURES + 1] weights of a hit, for each group of labels
    ap_factor: np.ndarray  # [4] factor on the expected AP, for each group of labels

    def probability(self, prior: np.ndarray, region: RegionPath, found: Marginals) -> np.ndarray:
        """P(present) of the 17 labels; `prior` [17] from timelines."""
        known = odds(prior)
        here = region_features(region) @ self.region[:-1] + self.region[-1]
        rest = presence_features(self.absent_evidence, found) @ self.other[:-1] + self.other[-1]
        return sigmoid(known + np.append(here, rest))

    def hits(self, column: int, proposals: Proposals) -> np.ndarray:
        """Probability that each proposal is a hit if the label is present: mean of tIoU 0.5 and 0.95."""
        weights = self.hit[GROUP[column]]
        return sigmoid(proposals.features() @ weights[:-1] + weights[-1])


def unknown() -> Presence:
    """Before anything is learned: the prior, and hardly a hit."""
    hit = np.zeros((4, N_FEATURES + 1))
    hit[:, -1] = -3.0
    return Presence(np.tile([0.0, 1.0], (12, 1)), np.zeros(3), np.zeros(7), hit, np.ones(4))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -30, 30)))


def odds(prior: np.ndarray) -> np.ndarray:
    """Log odds; finite for any learned prior."""
    return np.log(prior / (1 - prior))


def region_features(region: RegionPath) -> np.ndarray:
    """What speaks for a region's presence, float64 [5, 2]: log odds of the surest frame, expected frames."""
    top = np.clip(region.posterior.max(0).astype(np.float64), 1e-3, 1 - 1e-3)
    return np.stack([odds(top), np.log1p(region.posterior.sum(0, dtype=np.float64))], 1)


def presence_features(absent: np.ndarray, found: Marginals) -> np.ndarray:
    """Features of P(present), float64 [12, 6]: evidence, raw and standardised, highest posterior, expected events.

    `absent` [12, 2]: median and spread of the evidence in studies without the label, which is not 0 where scores have
    outliers that the calibration does not foresee.
    """
    evidence = found.log_evidence
    above = (evidence - absent[:, 0]) / absent[:, 1]
    columns = [np.clip(evidence, -5, 5), np.clip(evidence, -5, 30), np.clip(above, -3, 3), np.clip(above, -3, 15)]
    columns += [found.on.max(0), np.log1p(found.entry.sum(0))]
    return np.stack(columns, 1).astype(np.float64)


def fit_absent_evidence(found: list[Marginals], truth: np.ndarray) -> np.ndarray:
    """Median and spread (mean absolute difference) [12, 2] of the evidence for absent labels; few are drawn to 0, 2."""
    evidence = np.array([f.log_evidence for f in found])
    out = np.empty((truth.shape[1], 2))
    for c in range(truth.shape[1]):
        absent = evidence[~truth[:, c], c]
        n = len(absent)
        centre = np.median(absent) * n / (n + 2) if n else 0.0
        out[c] = centre, (np.abs(absent - centre).sum() + 2 * 2.0) / (n + 2)
    return out


def logistic(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray, ridge: float = RIDGE, offset: np.ndarray | float = 0.0
) -> np.ndarray:
    """Ridge logistic regression by Newton steps: weights [k] and intercept, for x [n, k], y [n] in [0, 1].

    `offset` [n]: log odds known beforehand.

    The ridge acts on standardised features; two pseudo-observations at the mean, one of them positive, keep it finite.
    """
    offset = np.broadcast_to(offset, len(x))
    offset = np.append(offset, np.tile(np.average(offset, weights=weight), 2))
    x = np.concatenate([x, np.tile(np.average(x, axis=0, weights=weight), (2, 1))])
    y, weight = np.append(y, [1.0, 0.0]), np.append(weight, [0.5, 0.5])
    centre = np.average(x, axis=0, weights=weight)
    spread = np.sqrt(np.average((x - centre) ** 2, axis=0, weights=weight))
    spread[spread < 1e-6] = np.inf  # a feature that does not vary has no weight
    z = np.column_stack([(x - centre) / spread, np.ones(len(x))])
    penalty = np.diag(np.append(np.full(x.shape[1], ridge), 0.0))
    beta = np.zeros(z.shape[1])
    for _ in range(50):
        p = sigmoid(z @ beta + offset)
        step = np.linalg.solve(
            (z.T * (weight * p * (1 - p) + 1e-9)) @ z + penalty, z.T @ (weight * (y - p)) - penalty @ beta
        )
        beta += step * min(1.0, 3 / max(np.abs(step).max(), 1e-12))
        if np.abs(step).max() < 1e-8:
            break
    slope = beta[:-1] / spread
    return np.append(slope, beta[-1] - slope @ centre)


def fit_presence(priors: np.ndarray, placed: list[tuple[RegionPath, Marginals]], occurs: np.ndarray) -> Presence:
    """P(present) from the posteriors of V studies; `priors` float and `occurs` bool [V, 17]. Hits are learned later."""
    absent = fit_absent_evidence([found for _, found in placed], occurs[:, N_REGIONS:])
    sides = (
        (slice(0, N_REGIONS), [region_features(region) for region, _ in placed]),
        (slice(N_REGIONS, None), [presence_features(absent, found) for _, found in placed]),
    )
    weights = []
    for side, parts in sides:
        x, y = np.concatenate(parts), occurs[:, side].reshape(-1).astype(np.float64)
        weights.append(logistic(x, y, np.ones(len(x)), offset=odds(priors[:, side]).reshape(-1)))
    return dataclasses.replace(unknown(), absent_evidence=absent, region=weights[0], other=weights[1])


def hit_rows(truth: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Share of TIOU at which each of `rows` [n, 2] meets some event of `truth` [m, 2], whatever its rank."""
    if not len(truth) or not len(rows):
        return np.zeros(len(rows))
    n, m = len(rows), len(truth)
    middle = (rows[:, 0] + rows[:, 1] + 1) // 2
    order = np.argsort(truth[:, 0], kind="stable")
    t = truth[order]
    out = np.zeros(n)
    for tiou in TIOU:
        hit = np.zeros(n, bool)
        for centre in (middle, (rows[:, 0] + rows[:, 1]) // 2):
            j = np.clip(np.searchsorted(t[:, 0], centre, "right") - 1, 0, m - 1)
            shared = np.minimum(t[j, 1], rows[:, 1]) - np.maximum(t[j, 0], rows[:, 0]) + 1
            union = (t[j, 1] - t[j, 0]) + (rows[:, 1] - rows[:, 0]) + 2 - shared
            hit |= (shared > 0) & (shared >= tiou * union)
        out += hit / len(TIOU)
    return out


def fit_hits(proposals: list[list[Proposals]], truths: list[list[np.ndarray]]) -> np.ndarray:
    """Weights of the hit model of each group; a study and label weighs by the root of its number of proposals."""
    parts = [[], [], [], []]
    for study, truth in zip(proposals, truths, strict=True):
        for c in range(N_LABELS):
            if len(truth[c]) and len(study[c].rows):
                n = len(study[c].rows)
                parts[GROUP[c]].append((study[c].features(), hit_rows(truth[c], study[c].rows), np.full(n, n**-0.5)))
    out = unknown().hit  # stays so for a group without an example
    for g, part in enumerate(parts):
        if part:
            out[g] = logistic(*(np.concatenate(a) for a in zip(*part, strict=True)))
    return out


def mean_ap(truth: np.ndarray, rows: np.ndarray) -> float:
    """Mean AP at TIOU of one study and label: `truth` [m, 2], `rows` [n, 2] in rank order."""
    if not len(truth) or not len(rows):
        return float(len(truth) == len(rows))
    return float(np.mean([event_ap(truth, rows, t) for t in TIOU]))


def expected_ap(hits: np.ndarray) -> float:
    """Expected AP of ranked proposals, each a hit with its probability; the events are as many as the expected hits."""
    if not len(hits):
        return 0.0
    return float((hits * np.cumsum(hits) / np.arange(1, len(hits) + 1)).sum() / max(hits.sum(), 1.0))


def fit_ap_factor(candidates: list[Candidates], truths: list[list[np.ndarray]]) -> np.ndarray:
    """Factor [4] on the expected AP of each group: what present labels earned out of fold over what was expected."""
    expected, earned = np.full((2, 4), PRIOR_AP)
    for found, truth in zip(candidates, truths, strict=True):
        for c in np.flatnonzero([len(t) > 0 for t in truth]):
            expected[GROUP[c]] += found.ap[c]
            earned[GROUP[c]] += mean_ap(truth[c], found.rows[found.column == c])
    return np.minimum(earned / expected, 1.0)
