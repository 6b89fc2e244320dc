"""Waterfall: what each step of the learned decoder adds, every study decoded by a fit that never saw it."""

from collections.abc import Callable

import numpy as np

from rarevision import config, timeline
from rarevision.decoding import assign_folds, to_events
from rarevision.events import Events
from rarevision.labels import REGIONS
from rarevision.scores import StudyScores
from rarevision.timeline import Candidates, Timeline

Step = Callable[[Timeline, Candidates], Candidates]


def _silent(fitted: Timeline, found: Candidates) -> Candidates:
    return found.kept(~fitted.silence(found)[found.column])


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


def cross_validate(studies: list[StudyScores], cfg: config.Config) -> dict[str, Events]:
    """Events per step, out of fold by `cfg.decode`'s folds; "silence" first."""
    folds = assign_folds(studies, cfg.decode.folds, cfg.decode.seed)
    steps: dict[str, Events] = {name: {} for name in ("silence", *(s[0] for s in STEPS))}
    for k in sorted(set(folds.values())):
        fitted, _ = timeline.fit([s for s in studies if folds[s.study] != k])
        for study in (s for s in studies if folds[s.study] == k):
            steps["silence"][study.study] = []
            region, found = fitted.read(study.probs)
            present, proposals = fitted.propose(region, found)
            for name, compose, doubtful, step in STEPS:
                kept = proposals if doubtful else [p.sure() for p in proposals]
                chosen = step(fitted, fitted.rank(present, kept, compose))
                steps[name][study.study] = to_events(study.frame, chosen)
    return {name: {s.study: events[s.study] for s in studies} for name, events in steps.items()}
