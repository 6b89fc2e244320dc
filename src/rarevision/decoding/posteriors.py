"""Posteriors: how probable each label is at each frame, given all frame scores of the study.

First the regions, as one path through mouth, esophagus, stomach, small intestine and colon; then the landmarks and
findings, each as a Markov chain of its own whose onsets depend on where the path is.
"""

from typing import NamedTuple

import numpy as np

from rarevision.decoding import chains
from rarevision.decoding.calibration import LEVELS, STATES, Calibration
from rarevision.decoding.structure import FADE, MOVES, N_REGIONS, REGION_OF, REGION_STATES, Structure, contexts
from rarevision.labels import N_LABELS
from rarevision.scores import StudyScores

PRICE = np.full((N_REGIONS, N_REGIONS), -np.inf)  # right frames that a change of region must be expected to gain
np.fill_diagonal(PRICE, 0.0)
for _old, _new in MOVES:
    PRICE[_old, _new] = -0.5 if _new > _old else -1.0


OTHERS = np.arange(N_REGIONS, N_LABELS)  # landmarks, then findings
ON = np.arange(STATES) >= LEVELS  # label states in which the label is on
REGION_WEIGHTS = (1.0, 0.7, 0.5, 0.35)  # tried in this order
WEIGHT_STUDIES = 20  # studies that choose among them
MIN_GAIN = 1e-3  # nats a frame that the next smaller weight must gain


class RegionPath(NamedTuple):
    """The regions of one study."""

    path: np.ndarray  # int [T] region of each frame
    posterior: np.ndarray  # float32 [T, 5]
    entry: np.ndarray  # float32 [T, 5] probability that a stretch of the region begins with the frame
    leave: np.ndarray  # float32 [T, 5] that it ends with the frame


def region_evidence(calibration: Calibration, probs: np.ndarray) -> np.ndarray:
    """Log-likelihood of each region state, float32 [T, REGION_STATES]: the new region's onset, the old one's end."""
    each = calibration.evidence(probs, np.arange(N_REGIONS)) * np.float32(calibration.region_weight)
    out = np.empty((len(probs), REGION_STATES), np.float32)
    out[:, :N_REGIONS] = each[:, :, 2 * LEVELS - 1]
    for m, (old, new) in enumerate(MOVES):
        for k in range(FADE):
            out[:, N_REGIONS + FADE * m + k] = each[:, new, LEVELS + k] + each[:, old, LEVELS - 1 - k]
    return out


def region_posterior(structure: Structure, evidence: np.ndarray) -> np.ndarray:
    """Probability of each region, float32 [T, 5]; `evidence` [T, REGION_STATES]."""
    full = chains.posterior(evidence, structure.region_transition, structure.region_initial)
    return full @ np.eye(N_REGIONS, dtype=np.float32)[REGION_OF]


def place_regions(calibration: Calibration, structure: Structure, probs: np.ndarray) -> RegionPath:
    """Posterior of the regions, and the possible path with most frames expected to be right, at a price per change."""
    posterior = region_posterior(structure, region_evidence(calibration, probs))
    path = expected_path(posterior)
    # A change sits exactly at a row in so far as the posterior steps there.
    step = np.diff(posterior, axis=0, prepend=np.zeros((1, N_REGIONS)), append=np.zeros((1, N_REGIONS)))
    return RegionPath(path, posterior, np.maximum(step[:-1], 0), np.maximum(-step[1:], 0))


def expected_path(posterior: np.ndarray) -> np.ndarray:
    """The path int [T] with the highest expected number of right frames less the price of its changes; exact.

    Stretches in which one region is practically certain are taken as one step: to change inside one never pays.
    """
    top = posterior.argmax(1)
    sure = posterior.max(1) > 0.999
    same = (top[1:] == top[:-1]) & sure[1:] & sure[:-1]
    start = np.flatnonzero(np.append(True, ~same))
    score = np.add.reduceat(posterior.astype(np.float64), start, axis=0)
    return np.repeat(chains.best_path(score, PRICE, np.zeros(N_REGIONS)), np.diff(np.append(start, len(top))))


def place_others(
    calibration: Calibration, structure: Structure, probs: np.ndarray, path: np.ndarray
) -> chains.Marginals:
    """Posterior of landmarks and findings [T, 12], each on the assumption that the label occurs in the study.

    `log_evidence` [12] of the result compares that assumption with absence, in nats. An event may start anywhere; its
    odds depend on the region, or for a landmark on the distance to the change between the regions it divides.
    """
    evidence = calibration.evidence(probs, OTHERS)
    where = contexts(path)
    for i in range(len(OTHERS)):
        evidence[:, i, LEVELS] += structure.onset[i][where[:, i]]
    return chains.marginals(evidence, structure.transition[OTHERS], structure.initial[OTHERS], ON)


def fit_region_weight(studies: list[StudyScores], unseen: list[tuple[Calibration, Structure]]) -> float:
    """The factor on the regions' evidence under which the true regions are likeliest.

    A network can mistake one region for another over hundreds of frames, above all on a study or a capsule system that
    it never saw. The innovations treat that as a single surprise, so the evidence is too strong. The factor is lowered
    as long as that helps, on at most WEIGHT_STUDIES studies, each with the parts `unseen` that were fitted without it.
    """
    some = range(0, len(studies), -(-len(studies) // WEIGHT_STUDIES))
    evidence = [region_evidence(unseen[i][0], studies[i].probs) for i in some]
    truth = [np.asarray(studies[i].labels)[:, :N_REGIONS].argmax(1) for i in some]
    best, chosen = -np.inf, REGION_WEIGHTS[0]
    for weight in REGION_WEIGHTS:
        likely = 0.0
        for i, e, y in zip(some, evidence, truth, strict=True):
            posterior = region_posterior(unseen[i][1], e * np.float32(weight))
            likely += np.log(np.maximum(posterior[np.arange(len(y)), y], 1e-6)).mean() / len(some)
        if likely < best + MIN_GAIN:
            break
        best, chosen = likely, weight
    return chosen
