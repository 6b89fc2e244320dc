"""Frame scores to events.

In come scores of whole studies (`rarevision.scores`); out come events in the order of confidence. Begin with
`cross_validate`, which says what a decoder is worth on studies that it has not seen, then `fit_decoder`.

fit_decoder               fit the decoder that the settings name
Decoder                   a fitted decoder: `decode(frame, probs)` gives events
cross_validate            events of every study from a decoder that did not see it, and a report
distinct                  a list with at most one event per stretch and label, for a reader
truth_events              events of the labels, as the challenge writes its truth
published_events          the published decoder: threshold, median, gaps, minimum length
fit_thresholds            one threshold per label
threshold_spread          the thresholds without each fold: how far they can be trusted
waterfall_fits            learned decoders per fold, for the waterfall
waterfall_steps           events after each step of the learned decoder
waterfall_probabilities   what the learned decoder makes of scores: probabilities per frame
"""

from rarevision.decoding.decoder import (
    Decoder,
    cross_validate,
    distinct,
    fit_decoder,
    published_events,
    truth_events,
)
from rarevision.decoding.thresholds import fit_thresholds, threshold_spread
from rarevision.decoding.waterfall import waterfall_fits, waterfall_probabilities, waterfall_steps

__all__ = [
    "Decoder",
    "cross_validate",
    "distinct",
    "fit_decoder",
    "fit_thresholds",
    "published_events",
    "threshold_spread",
    "truth_events",
    "waterfall_fits",
    "waterfall_probabilities",
    "waterfall_steps",
]
