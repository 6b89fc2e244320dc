"""Frame scores to events."""

from rarevision.decoding.decoder import (
    Decoder,
    assign_folds,
    cross_validate,
    fit_decoder,
    published_events,
    truth_events,
)
from rarevision.decoding.thresholds import fit_thresholds, threshold_spread
from rarevision.decoding.waterfall import waterfall_fits, waterfall_probabilities, waterfall_steps

__all__ = [
    "Decoder",
    "assign_folds",
    "cross_validate",
    "fit_decoder",
    "fit_thresholds",
    "published_events",
    "threshold_spread",
    "truth_events",
    "waterfall_fits",
    "waterfall_probabilities",
    "waterfall_steps",
]
