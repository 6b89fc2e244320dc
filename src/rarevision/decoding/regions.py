"""Regions: one path through mouth, esophagus, stomach, small intestine and colon, and how sure each change is."""

from typing import NamedTuple

import numpy as np

from rarevision.decoding import chains
from rarevision.decoding.calibration import LEVELS, Calibration
from rarevision.decoding.structure import FADE, MOVES, N_REGIONS, REGION_OF, REGION_STATES, Structure

PRICE = np.full((N_REGIONS, N_REGIONS), -np.inf)  # frames that a change must be expected to put right
np.fill_diagonal(PRICE, 0.0)
for _old, _new in MOVES:
    PRICE[_old, _new] = -0.5 if _new > _old else -1.0


class RegionPath(NamedTuple):
    """The regions of one study."""

    path: np.ndarray  # int [T] region of each frame
    posterior: np.ndarray  # float32 [T, 5]
    entry: np.ndarray  # float32 [T, 5] probability that a stretch of the region begins with the frame
    leave: np.ndarray  # float32 [T, 5] that it ends with the frame


def evidence(calibration: Calibration, probs: np.ndarray) -> np.ndarray:
    """Log-likelihood of each region state, float32 [T, REGION_STATES]: the new region's onset, the old one's end."""
    each = calibration.evidence(probs, np.arange(N_REGIONS)) * np.float32(calibration.trust)
    out = np.empty((len(probs), REGION_STATES), np.float32)
    out[:, :N_REGIONS] = each[:, :, 2 * LEVELS - 1]
    for m, (old, new) in enumerate(MOVES):
        for k in range(FADE):
            out[:, N_REGIONS + FADE * m + k] = each[:, new, LEVELS + k] + each[:, old, LEVELS - 1 - k]
    return out


def posteriors(structure: Structure, evidence: np.ndarray) -> np.ndarray:
    """Probability of each region, float32 [T, 5]; `evidence` [T, REGION_STATES]."""
    full = chains.posterior(evidence, structure.region_transition, structure.region_initial)
    return full @ np.eye(N_REGIONS, dtype=np.float32)[REGION_OF]


def decode(calibration: Calibration, structure: Structure, probs: np.ndarray) -> RegionPath:
    """Posterior of the regions, and the possible path with most frames expected to be right, at a price per change."""
    posterior = posteriors(structure, evidence(calibration, probs))
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
