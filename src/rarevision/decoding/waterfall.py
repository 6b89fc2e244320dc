"""Waterfall: what each step of the learned decoder adds, every study decoded by a fit that never saw it."""

from collections.abc import Callable, Mapping

import numpy as np

from rarevision import config
from rarevision.decoding import folds, learned
from rarevision.decoding.decoder import other_timelines
from rarevision.decoding.learned import LearnedDecoder
from rarevision.decoding.proposals import Candidates
from rarevision.events import Events
from rarevision.labels import REGIONS
from rarevision.scores import StudyScores

Step = Callable[[LearnedDecoder, Candidates], Candidates]


def _silent(fitted: LearnedDecoder, found: Candidates) -> Candidates:
    return found.kept(~fitted.silent(found)[found.column])


def _in_time(found: Candidates) -> Candidates:
    return found.kept(np.argsort(found.rows[:, 0], kind="stable"))


# name, composition, whether doubtful events too, and what is done with the candidates; each step adds one thing
STEPS: tuple[tuple[str, str, bool, Step], ...] = (
    ("regions as one path", "per_label", False, lambda fitted, f: _in_time(f.kept(f.column < len(REGIONS)))),
    ("landmarks and findings", "per_label", False, lambda fitted, f: _in_time(f)),
    ("silence where it earns more", "per_label", False, lambda fitted, f: _in_time(_silent(fitted, f))),
    ("order by confidence", "per_label", False, _silent),
    ("doubtful events below", "per_label", True, _silent),
    ("cut by label set", "auto", True, _silent),
)


def waterfall_fits(
    studies: list[StudyScores], cfg: config.Config, timelines: Mapping[str, np.ndarray] | None = None
) -> list[tuple[LearnedDecoder, list[StudyScores]]]:
    """Per fold of `cfg.decode`: a decoder, and the studies that it never saw. `timelines` as in `fit_decoder`."""
    others = list(other_timelines(studies, timelines).values())
    return [(learned.fit(out, timelines=others)[0], inside) for out, inside in folds.split(studies, cfg.decode)]


def waterfall_steps(fitted: list[tuple[LearnedDecoder, list[StudyScores]]]) -> dict[str, Events]:
    """Events of every study of `fits` after each step; "silence" first."""
    found: dict[str, Events] = {name: {} for name in ("silence", *(s[0] for s in STEPS))}
    for decoder, studies in fitted:
        for study in studies:
            found["silence"][study.study] = []
            present, proposals = decoder.propose(*decoder.place(study.probs))
            for name, compose, doubtful, step in STEPS:
                kept = proposals if doubtful else [p.sure() for p in proposals]
                found[name][study.study] = step(decoder, decoder.rank(present, kept, compose)).to_events(study.frame)
    return found


def waterfall_probabilities(fitted: list[tuple[LearnedDecoder, list[StudyScores]]]) -> dict[str, np.ndarray]:
    """What the decoder makes of the scores of every study of `fits`: P(label) of each frame, float [T, 17]."""
    found = {}
    for decoder, studies in fitted:
        for study in studies:
            region, rest = decoder.place(study.probs)
            present = decoder.presence.probability(decoder.structure.presence, region, rest)
            found[study.study] = np.concatenate([region.posterior, rest.on * present[len(REGIONS) :]], axis=1)
    return found
