"""Timeline: what is read out of a study's scores by the learned parts together, and how those are fitted.

scores -> calibration (evidence) -> regions -> findings -> proposals -> presence (order, or silence where it earns more)
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rarevision.decoding import calibration, findings, presence, regions, structure
from rarevision.decoding.calibration import Calibration
from rarevision.decoding.chains import Marginals
from rarevision.decoding.presence import Presence
from rarevision.decoding.proposals import RUN_LEVELS, Proposals, propose
from rarevision.decoding.regions import RegionPath
from rarevision.decoding.structure import N_REGIONS, Structure
from rarevision.labels import N_LABELS
from rarevision.scores import StudyScores

TRUSTS = (1.0, 0.7, 0.5, 0.35)  # shares of the regions' evidence that may be believed
JUDGES = 20  # studies that choose among them
WORTH = 1e-3  # nats a frame that a lower share must gain


@dataclass(frozen=True)
class Candidates:
    """All of one study, the surest first. `ap` [17] expected if emitted and present, `present` [17] probability."""

    column: np.ndarray  # int [n]
    rows: np.ndarray  # int [n, 2], inclusive
    hit: np.ndarray  # float [n] probability of a hit if the label is present
    ap: np.ndarray
    present: np.ndarray

    @property
    def confidence(self) -> np.ndarray:
        return self.hit * self.present[self.column]

    def kept(self, keep: np.ndarray) -> "Candidates":
        return dataclasses.replace(self, column=self.column[keep], rows=self.rows[keep], hit=self.hit[keep])


@dataclass(frozen=True)
class Timeline:
    """The learned parts; a pure function from scores to candidates."""

    calibration: Calibration
    structure: Structure
    presence: Presence

    def read(self, probs: np.ndarray) -> tuple[RegionPath, Marginals]:
        """Region path, and the other labels' posterior, of scores [T, 17]."""
        region = regions.decode(self.calibration, self.structure, probs)
        return region, findings.decode(self.calibration, self.structure, probs, region.path)

    def candidates(self, probs: np.ndarray, compose: str = "auto") -> Candidates:
        """Every proposal worth a rank. `compose`: whole runs (`per_label`), pieces (`label_set`), or both (`auto`)."""
        return self.rank(*self.propose(*self.read(probs)), compose)

    def propose(self, region: RegionPath, found: Marginals) -> tuple[np.ndarray, list[Proposals]]:
        """P(present) [17] and the proposals of all labels."""
        present = self.presence.probability(self.structure.presence, region, found)
        return present, propose(region, found, present[N_REGIONS:])

    def rank(self, present: np.ndarray, proposals: list[Proposals], compose: str = "auto") -> Candidates:
        column, rows, hit, ap = [], [], [], np.zeros(N_LABELS)
        for c, each in enumerate(proposals):
            h = self.presence.hits(c, each)
            keep = h >= presence.FLOOR
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

    def silence(self, candidates: Candidates) -> np.ndarray:
        """Labels bool [17] on which silence is expected to earn at least as much as the candidates."""
        return candidates.present * self.presence.caution[presence.GROUP] * candidates.ap <= 1 - candidates.present

    def to_json(self) -> dict[str, Any]:
        return {
            part: {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(getattr(self, part)).items()}
            for part in ("calibration", "structure", "presence")
        }

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> "Timeline":
        kinds = {"calibration": Calibration, "structure": Structure, "presence": Presence}
        return cls(
            *(
                kind(**{k: np.array(v) if isinstance(v, list) else v for k, v in table[part].items()})
                for part, kind in kinds.items()
            )
        )


def fit(
    studies: list[StudyScores], compose: str = "auto", timelines: list[np.ndarray] | None = None, folds: int = 5
) -> tuple[Timeline, list[Candidates]]:
    """Learn everything from studies with labels; `timelines` uint8 [T, 17]: more labels without scores, for structure.

    Presence and hits are learned from readings by a calibration and a structure that did not see the study, as it will
    be at test time: evidence is surer on the studies it was fitted on. Returns the model, and each study's candidates
    as a model that saw it in no part of the reading makes them (`folds`).
    """
    more = list(timelines or [])
    n = len(studies)
    blank = _blank(studies, more)
    readers = [blank] * n
    for train, test in _splits(n, folds):
        reader = _blank([studies[i] for i in train], more)
        for i in test:
            readers[i] = reader
    trust = _trust(studies, readers)
    blank, *readers = (_trusting(reader, trust) for reader in (blank, *readers))
    read = [reader.read(s.probs) for reader, s in zip(readers, studies, strict=True)]
    truths = [truth_rows(s.labels) for s in studies]
    there = np.array([[len(t) > 0 for t in truth] for truth in truths])
    priors = np.array([r.structure.presence for r in readers])
    judges, present = [blank.presence] * n, np.empty((n, N_LABELS))
    for train, test in _splits(n, folds):
        judge = _fit_presence(priors, read, there, train)
        for i in test:
            judges[i], present[i] = judge, judge.probability(priors[i], *read[i])
    made = [propose(*r, p[N_REGIONS:]) for r, p in zip(read, present, strict=True)]
    outside: list[Candidates | None] = [None] * n
    for train, test in _splits(n, folds):
        judge = _fit_hits(judges[test[0]], made, truths, train)
        for i in test:
            outside[i] = dataclasses.replace(readers[i], presence=judge).rank(present[i], made[i], compose)
    everyone = np.arange(n)
    final = _fit_hits(_fit_presence(priors, read, there, everyone), made, truths, everyone)
    final = dataclasses.replace(final, caution=_caution(outside, truths))
    return dataclasses.replace(blank, presence=final), outside


def _blank(studies: list[StudyScores], more: list[np.ndarray]) -> Timeline:
    """Calibration and structure; nothing learned yet of presence and hits."""
    scored = calibration.fit(studies)
    learned = structure.fit([s.labels for s in studies] + more, scored.memory)
    return Timeline(scored, learned, presence.unknown())


def _trusting(reader: Timeline, trust: float) -> Timeline:
    return dataclasses.replace(reader, calibration=dataclasses.replace(reader.calibration, trust=trust))


def _trust(studies: list[StudyScores], readers: list[Timeline]) -> float:
    """How much of the regions' evidence to believe: the share under which the true regions are likeliest.

    A network that takes a stretch of one region for another does so for hundreds of frames, and does so more on a study
    or a capsule system that it never saw; the innovations see one surprise. Lowered as long as that helps, on at most
    JUDGES studies, each read by one of `readers` that did not see it.
    """
    some = range(0, len(studies), -(-len(studies) // JUDGES))
    evidence = [regions.evidence(readers[i].calibration, studies[i].probs) for i in some]
    truth = [studies[i].labels[:, :N_REGIONS].argmax(1) for i in some]
    best, chosen = -np.inf, TRUSTS[0]
    for trust in TRUSTS:
        likely = 0.0
        for i, e, y in zip(some, evidence, truth, strict=True):
            posterior = regions.posteriors(readers[i].structure, e * np.float32(trust))
            likely += np.log(np.maximum(posterior[np.arange(len(y)), y], 1e-6)).mean() / len(some)
        if likely < best + WORTH:
            break
        best, chosen = likely, trust
    return chosen


def _splits(n: int, folds: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    folds = min(folds, n)
    for k in range(folds):
        test = np.arange(k, n, folds)
        yield (np.setdiff1d(np.arange(n), test) if n > 1 else test), test


def _fit_presence(priors: np.ndarray, read: list, there: np.ndarray, train: np.ndarray) -> Presence:
    usual, region, rest = presence.fit_presence(priors[train], [read[i] for i in train], there[train])
    return dataclasses.replace(presence.unknown(), usual=usual, region=region, present=rest)


def _fit_hits(model: Presence, made: list, truths: list, train: np.ndarray) -> Presence:
    return dataclasses.replace(model, hit=presence.fit_hits([made[i] for i in train], [truths[i] for i in train]))


def _caution(candidates: list[Candidates], truths: list[list[np.ndarray]]) -> np.ndarray:
    """Factors [4] on the expected AP, per group: what present labels earned out of fold over what was expected."""
    expected, earned = np.full((2, 4), presence.TRUST)
    for found, truth in zip(candidates, truths, strict=True):
        for c in np.flatnonzero([len(t) > 0 for t in truth]):
            expected[presence.GROUP[c]] += found.ap[c]
            earned[presence.GROUP[c]] += presence.mean_ap(truth[c], found.rows[found.column == c])
    return np.minimum(earned / expected, 1.0)


def truth_rows(labels: np.ndarray) -> list[np.ndarray]:
    """The challenge's truth events of each label as rows int [n, 2]: stretches of an unchanged label set."""
    change = np.append(0, np.flatnonzero((labels[1:] != labels[:-1]).any(1)) + 1)
    until = np.append(change[1:], len(labels)) - 1
    return [np.stack([change, until], 1)[labels[change, c] == 1] for c in range(N_LABELS)]
