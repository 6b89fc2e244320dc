"""Splits: which studies train, validate and stay held out. One study is one patient and is never divided.

`article`    studies 61-80 held out, folds on 1-60 (Le Floch et al., Galar, Scientific Data 2025), spread as `balanced`
`published`  the challenge entry's 85/15: sklearn's train_test_split(studies in natural order, test_size=0.15,
             random_state=seed); one validation part (fold 0), the rest always trains (fold -1)
`balanced`   K folds of equal size (to one study) whose rare labels and capsule systems are spread by iterative
             stratification (Sechidis et al., ECML 2011) over studies
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

from rarevision.config import Split
from rarevision.data.errors import DataError
from rarevision.data.index import FrameIndex
from rarevision.files import digest, write_json
from rarevision.labels import LABELS
from rarevision.scores import natural

ARTICLE_TRAIN, ARTICLE_TEST = range(1, 61), range(61, 81)


@dataclass(frozen=True)
class Splits:
    """Which fold each study validates; in all other folds it trains."""

    folds: dict[str, int]  # by study; -1 = trains in every fold
    heldout: tuple[str, ...]  # studies that are never trained or tuned on
    n_folds: int
    scheme: str
    seed: int

    @classmethod
    def make(cls, index: FrameIndex, split: Split) -> "Splits":
        """Split the studies of an index; the same studies, labels and seed give the same split."""
        studies = sorted(index.studies, key=natural)
        if split.scheme == "published":
            if len(studies) < 2:
                raise DataError(f"split.scheme = 'published' needs 2 studies, the data have {len(studies)}")
            _, validation = train_test_split(studies, test_size=0.15, random_state=split.seed)
            folds = {s: 0 if s in set(validation) else -1 for s in studies}
            return cls(folds, (), 1, split.scheme, split.seed)
        heldout: tuple[str, ...] = ()
        if split.scheme == "article":
            strange = [s for s in studies if not s.isdigit() or not 1 <= int(s) <= 80]
            if strange:
                raise DataError(
                    f"split.scheme = 'article' is about Galar's studies 1-80, not {strange[0]!r}; use 'balanced'"
                )
            heldout = tuple(s for s in studies if int(s) in ARTICLE_TEST)
            studies = [s for s in studies if int(s) in ARTICLE_TRAIN]
        if len(studies) < split.folds:
            where = " among 1-60" if split.scheme == "article" else ""
            raise DataError(
                f"split.folds = {split.folds} needs as many studies{where}, the data have {len(studies)}; "
                "lower split.folds"
            )
        return cls(_balance(index, studies, split), heldout, split.folds, split.scheme, split.seed)

    def train(self, k: int) -> list[str]:
        """The studies that fold k trains on."""
        return [study for study, fold in self.folds.items() if fold != self._known(k)]

    def validation(self, k: int) -> list[str]:
        """The studies that fold k is measured on."""
        return [study for study, fold in self.folds.items() if fold == self._known(k)]

    def _known(self, k: int) -> int:
        if not 0 <= k < self.n_folds:
            raise DataError(f"no fold {k}: the split has {self.n_folds} (0..{self.n_folds - 1})")
        return k

    def table(self, index: FrameIndex) -> dict[str, list[int]]:
        """Positive frames of each label per fold, for the eye: {label: [fold 0, fold 1, ...]}."""
        parts = [index.select(self.validation(k)) for k in range(self.n_folds)]
        return {name: [int(np.asarray(part.labels)[:, i].sum()) for part in parts] for i, name in enumerate(LABELS)}

    @property
    def hash(self) -> str:
        return digest(asdict(self))

    def save(self, path: str | Path) -> None:
        write_json(path, asdict(self) | {"hash": self.hash})

    @classmethod
    def load(cls, path: str | Path) -> "Splits":
        try:
            facts = json.loads(Path(path).read_text())
            recorded = facts.pop("hash")
            splits = cls(**facts | {"heldout": tuple(facts["heldout"])})
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: not a split file ({error!r}); run stage 01 again") from None
        if splits.hash != recorded:
            raise DataError(f"{path}: edited by hand, its hash no longer fits; run stage 01 again")
        return splits


def _balance(index: FrameIndex, studies: list[str], split: Split) -> dict[str, int]:
    """Study -> fold by iterative stratification (Sechidis et al., ECML 2011), capsule systems counted as labels.

    The rarest label's studies are placed first, each in the fold that still lacks that label most.
    """
    if index.labels is None:
        raise DataError(f"the studies of {index.root} have no labels to balance folds over")
    systems = sorted(set(index.systems))
    frames = np.array([index.labels[index.rows(s)].sum(0) for s in studies])  # [n, 17] positive frames
    system = np.array([[index.systems[index.studies.index(s)] == name for name in systems] for s in studies])
    has = np.concatenate([frames > 0, system], 1)  # [n, 17 + systems]
    weight = np.concatenate([frames / np.maximum(frames.sum(0), 1), system / np.maximum(system.sum(0), 1)], 1)
    wanted = np.repeat(has.sum(0)[None] / split.folds, split.folds, 0).astype(float)  # studies each fold still lacks
    room = np.array([len(part) for part in np.array_split(studies, split.folds)])  # studies each fold may take
    held = np.zeros((split.folds, has.shape[1]))  # share of each label's frames already in a fold
    lot = np.random.default_rng(split.seed)
    tie = lot.permutation(split.folds)  # which of folds that lack as much goes first
    left, folds = list(lot.permutation(len(studies))), {}
    while left:
        counts = has[left].sum(0)
        label = int(np.where(counts > 0, counts, len(studies) + 1).argmin())
        # the study with most of that label's frames first: small ones even out what large ones leave
        study = max((s for s in left if has[s, label]), key=lambda s: weight[s, label])
        open_folds = [k for k in range(split.folds) if room[k] > 0]
        fold = max(open_folds, key=lambda k: (wanted[k, label], -held[k, label], room[k], tie[k]))
        wanted[fold] -= has[study]
        held[fold] += weight[study]
        room[fold] -= 1
        folds[studies[study]] = fold
        left.remove(study)
    return {study: folds[study] for study in studies}
