"""Findings: when each label that is not a region is on, given the region path; landmarks alike."""

import numpy as np

from rarevision.decoding import chains
from rarevision.decoding.calibration import LEVELS, STATES, Calibration
from rarevision.decoding.structure import N_REGIONS, Structure, contexts
from rarevision.labels import N_LABELS

COLUMNS = np.arange(N_REGIONS, N_LABELS)  # landmarks, then findings
ON = np.arange(STATES) >= LEVELS


def decode(calibration: Calibration, structure: Structure, probs: np.ndarray, path: np.ndarray) -> chains.Marginals:
    """Posterior of the 12 labels [T, 12] if present; `log_evidence` [12]: of presence against absence, in nats.

    An event may start anywhere, at the odds that its region, or a landmark's distance to the region change, gives it.
    """
    evidence = calibration.evidence(probs, COLUMNS)
    where = contexts(path)
    for i in range(len(COLUMNS)):
        evidence[:, i, LEVELS] += structure.onset[i][where[:, i]]
    return chains.marginals(evidence, structure.transition[COLUMNS], structure.initial[COLUMNS], ON)
