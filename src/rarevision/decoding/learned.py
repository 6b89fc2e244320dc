"""The learned decoder from top to bottom: how it turns frame scores into events, and how it is fitted.

Decoding a study takes six steps, each a method or function named here and explained in the module beside it:

1. calibrate: scores [T, 17] to log-likelihoods of label states (`calibration`)
2. order and durations: Markov chains counted on label timelines (`structure`)
3. place: probability of every region, landmark and finding at every frame (`posteriors`)
4. propose: candidate events of every label (`proposals`)
5. rank: P(label present) times P(candidate is a hit), the surest first (`presence`)
6. compose: labels on which silence is expected to score at least as much are left out (`LearnedDecoder.silent`)

`LearnedDecoder.events` runs them on one study; `fit` learns them from studies with scores and labels.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rarevision.decoding import calibration, posteriors, presence, structure
from rarevision.decoding.calibration import Calibration
from rarevision.decoding.chains import Marginals
from rarevision.decoding.posteriors import RegionPath
from rarevision.decoding.presence import Presence
from rarevision.decoding.proposals import RUN_LEVELS, Candidates, Proposals, propose, truth_rows
from rarevision.decoding.structure import N_REGIONS, Structure
from rarevision.events import Event
from rarevision.labels import N_LABELS
from rarevision.scores import StudyScores


@dataclass(frozen=True)
class LearnedDecoder:
    """The three fitted parts. Decoding is a pure function of the scores."""

    calibration: Calibration
    structure: Structure
    presence: Presence

    def events(self, frame: np.ndarray, probs: np.ndarray, compose: str = "auto") -> list[Event]:
        """Events of one study, the most confident first. `frame` int [T], `probs` [T, 17]."""
        found = self.candidates(probs, compose)
        return found.kept(~self.silent(found)[found.column]).to_events(frame)

    def candidates(self, probs: np.ndarray, compose: str = "auto") -> Candidates:
        """Steps 1 to 5. `compose`: whole runs (`per_label`), pieces cut by label set (`label_set`) or both (`auto`)."""
        region, others = self.place(probs)
        present, proposals = self.propose(region, others)
        return self.rank(present, proposals, compose)

    def place(self, probs: np.ndarray) -> tuple[RegionPath, Marginals]:
        """Steps 1 to 3: the path through the regions, and the posterior of the 12 other labels given that path."""
        region = posteriors.place_regions(self.calibration, self.structure, probs)
        return region, posteriors.place_others(self.calibration, self.structure, probs, region.path)

    def propose(self, region: RegionPath, others: Marginals) -> tuple[np.ndarray, list[Proposals]]:
        """Step 4: P(present) [17], and the proposals of each of the 17 labels."""
        present = self.presence.probability(self.structure.presence, region, others)
        return present, propose(region, others, present[N_REGIONS:])

    def rank(self, present: np.ndarray, proposals: list[Proposals], compose: str = "auto") -> Candidates:
        """Step 5: all labels' proposals in one list, in order of their confidence."""
        column, rows, hit, ap = [], [], [], np.zeros(N_LABELS)
        for c, each in enumerate(proposals):
            h = self.presence.hits(c, each)
            keep = h >= presence.MIN_HIT
            if compose == "per_label":
                keep &= each.level < len(RUN_LEVELS)
            elif compose == "label_set":  # doubtful runs stay: they are other events, not the same one cut differently
                keep &= each.piece | (each.level > 0)
            order = np.flatnonzero(keep)[np.argsort(-h[keep], kind="stable")]
            column.append(np.full(len(order), c))
            rows.append(each.rows[order])
            hit.append(h[order])
            ap[c] = presence.expected_ap(h[order])
        column, rows, hit = np.concatenate(column), np.concatenate(rows), np.concatenate(hit)
        order = np.argsort(-hit * present[column], kind="stable")
        return Candidates(column[order], rows[order], hit[order], ap, present)

    def silent(self, found: Candidates) -> np.ndarray:
        """Step 6: labels, bool [17], to leave out. A label is listed only where p * A > 1 - p.

        p is P(present); A is the expected AP of the candidates, corrected by what such candidates earned out of fold.
        Silence scores 1 on an absent label, so it is expected to earn 1 - p.
        """
        return found.present * self.presence.ap_factor[presence.GROUP] * found.ap <= 1 - found.present

    def to_json(self) -> dict[str, Any]:
        return {
            part: {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(getattr(self, part)).items()}
            for part in ("calibration", "structure", "presence")
        }

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> "LearnedDecoder":
        kinds = {"calibration": Calibration, "structure": Structure, "presence": Presence}
        return cls(
            *(
                kind(**{k: np.array(v) if isinstance(v, list) else v for k, v in table[part].items()})
                for part, kind in kinds.items()
            )
        )


def fit(
    studies: list[StudyScores], compose: str = "auto", timelines: list[np.ndarray] | None = None, folds: int = 5
) -> tuple[LearnedDecoder, list[Candidates]]:
    """Learn the decoder from `studies`, which have scores and labels.

    `timelines`: labels uint8 [T, 17] of further studies without scores; order, durations and prevalence use them too.
    Presence and hits (steps 5 and 6) are learned on studies that the calibration and structure did not see, because on
    its own training studies a calibration is surer than it will be on new ones. Returns the decoder, and the candidates
    of each study from parts fitted without it.
    """
    splits = list(_splits(len(studies), folds))
    # Steps 1 and 2, on all studies and without each fold.
    final, unseen = _fit_calibration_and_structure(studies, splits, list(timelines or []))
    # Step 3, each study by the parts that did not see it.
    placed = [decoder.place(s.probs) for decoder, s in zip(unseen, studies, strict=True)]
    truths = [truth_rows(s.labels) for s in studies]
    occurs = np.array([[len(t) > 0 for t in truth] for truth in truths])
    priors = np.array([decoder.structure.presence for decoder in unseen])
    # Step 4, with P(present) learned on the other folds.
    present, proposals = np.empty(occurs.shape), [None] * len(studies)
    for train, test in splits:
        fitted = presence.fit_presence(priors[train], [placed[i] for i in train], occurs[train])
        for i in test:
            unseen[i] = dataclasses.replace(unseen[i], presence=fitted)
            present[i], proposals[i] = unseen[i].propose(*placed[i])
    # Steps 5 and 6, with P(hit) learned on the other folds.
    ranked: list[Candidates] = [None] * len(studies)
    for train, test in splits:
        hit = presence.fit_hits([proposals[i] for i in train], [truths[i] for i in train])
        for i in test:
            fitted = dataclasses.replace(unseen[i].presence, hit=hit)
            ranked[i] = dataclasses.replace(unseen[i], presence=fitted).rank(present[i], proposals[i], compose)
    last = dataclasses.replace(
        presence.fit_presence(priors, placed, occurs),
        hit=presence.fit_hits(proposals, truths),
        ap_factor=presence.fit_ap_factor(ranked, truths),
    )
    return dataclasses.replace(final, presence=last), ranked


def _fit_calibration_and_structure(
    studies: list[StudyScores], splits: list[tuple[np.ndarray, np.ndarray]], timelines: list[np.ndarray]
) -> tuple[LearnedDecoder, list[LearnedDecoder]]:
    """A decoder fitted on all studies, and for each study one fitted without it; nothing known yet of presence."""

    def fitted(some: list[StudyScores]) -> LearnedDecoder:
        scored = calibration.fit(some)
        learned = structure.fit([s.labels for s in some] + timelines, scored.memory)
        return LearnedDecoder(scored, learned, presence.unknown())

    final = fitted(studies)
    unseen = [final] * len(studies)
    for train, test in splits:
        decoder = fitted([studies[i] for i in train])
        for i in test:
            unseen[i] = decoder
    weight = posteriors.fit_region_weight(studies, [(d.calibration, d.structure) for d in unseen])
    final, *unseen = (
        dataclasses.replace(d, calibration=dataclasses.replace(d.calibration, region_weight=weight))
        for d in (final, *unseen)
    )
    return final, unseen


def _splits(n: int, folds: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and test indices of each fold; a single study is both, as there is no other."""
    folds = min(folds, n)
    for k in range(folds):
        test = np.arange(k, n, folds)
        yield (np.setdiff1d(np.arange(n), test) if n > 1 else test), test
