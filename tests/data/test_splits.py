"""Splits by study: whole, disjoint, deterministic, and the rare labels spread."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rarevision.config import Split
from rarevision.data import DataError, FrameIndex, Splits
from rarevision.labels import COLUMN, LABELS


def index_of(positives: dict[str, tuple[str, ...]], systems=None, n=4) -> FrameIndex:
    """n frames per study; a study's labels are set in its first frame."""
    labels = np.zeros((n * len(positives), 17), np.uint8)
    for k, names in enumerate(positives.values()):
        labels[n * k, [COLUMN[name] for name in names]] = 1
    return FrameIndex(
        root=Path("x"),
        studies=tuple(positives),
        offsets=np.arange(len(positives) + 1) * n,
        frame=np.tile(np.arange(n, dtype=np.int32), len(positives)),
        labels=labels,
        systems=tuple(systems or ["pillcam"] * len(positives)),
        folders=tuple(positives),
        variants=(("frame_", 6, ".PNG"),),
        variant=np.zeros(n * len(positives), np.uint8),
    )


GALAR = index_of({str(k): ("colon",) for k in range(1, 81)})


def test_published_is_sklearns_85_15():
    """train_test_split over 1..80 in natural order with seed 42: the 12 studies, written down once."""
    splits = Splits.make(GALAR, Split("published", seed=42))
    assert splits.n_folds == 1 and set(splits.folds.values()) == {-1, 0}
    assert splits.validation(0) == ["1", "5", "11", "13", "19", "23", "29", "31", "32", "34", "50", "71"]
    assert len(splits.train(0)) == 68 and not set(splits.train(0)) & set(splits.validation(0))


def test_article_holds_out_61_to_80():
    splits = Splits.make(GALAR, Split("article", folds=5))
    assert splits.heldout == tuple(map(str, range(61, 81)))
    assert sorted(map(int, splits.folds)) == list(range(1, 61))
    assert [len(splits.validation(k)) for k in range(5)] == [12] * 5


def test_partial_copy_of_nine_studies():
    index = index_of({str(k): ("colon",) for k in (1, 2, 3, 39, 40, 41, 62, 63, 64)})
    splits = Splits.make(index, Split("article", folds=3))
    assert splits.heldout == ("62", "63", "64") and [len(splits.validation(k)) for k in range(3)] == [2, 2, 2]


def test_balanced_spreads_rare_labels_and_systems():
    rare = {0: ("ulcer",), 1: ("ulcer", "polyp"), 2: ("ulcer",), 3: ("polyp",), 4: ("polyp",)}
    index = index_of({str(k): ("colon", *rare.get(k, ())) for k in range(9)}, ["pillcam"] * 6 + ["olympus"] * 3)
    for seed in range(10):
        splits = Splits.make(index, Split("balanced", folds=3, seed=seed))
        counts = splits.table(index)
        assert counts["ulcer"] == [1, 1, 1] and counts["polyp"] == [1, 1, 1] and counts["colon"] == [3, 3, 3]
        assert [sum(int(s) >= 6 for s in splits.validation(k)) for k in range(3)] == [1, 1, 1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sets(st.sampled_from(LABELS)), min_size=2, max_size=25), st.data())
def test_balanced_is_a_partition_into_even_folds(names, data):
    index = index_of({f"s{k}": tuple(n) for k, n in enumerate(names)})
    folds = data.draw(st.integers(2, len(names)))
    split = Split("balanced", folds=folds, seed=data.draw(st.integers(0, 5)))
    splits = Splits.make(index, split)
    parts = [splits.validation(k) for k in range(folds)]
    assert sorted(itertools.chain(*parts)) == sorted(index.studies)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for k in range(folds):
        assert sorted(splits.train(k) + parts[k]) == sorted(index.studies)
    assert Splits.make(index, split) == splits


def test_balanced_spreads_better_than_chance():
    """Largest share of any label's holding studies in one fold, Galar-like rarity, against 200 random even splits."""
    lot = np.random.default_rng(3)
    share = np.linspace(0.1, 0.9, 17)
    index = index_of({str(k): tuple(np.array(LABELS)[lot.random(17) < share]) for k in range(40)})
    holders = index.labels.reshape(40, 4, 17).max(1)

    def unevenness(folds):
        per_fold = np.array([holders[folds == k].sum(0) for k in range(5)])
        return (per_fold.max(0) - per_fold.min(0)).sum()

    ours = unevenness(np.array([*Splits.make(index, Split("balanced")).folds.values()]))
    chance = [unevenness(lot.permutation(np.arange(40) % 5)) for _ in range(200)]
    assert ours < min(chance)


@pytest.mark.parametrize(
    ("index", "split", "message"),
    [
        (index_of({"1": ()}), Split("published"), "needs 2 studies, the data have 1"),
        (
            index_of({"1": (), "2": ()}),
            Split("balanced", folds=3),
            "split.folds = 3 needs as many studies, the data have 2",
        ),
        (index_of({"1": (), "70": ()}), Split("article", folds=2), "among 1-60, the data have 1"),
        (index_of({"a": (), "2": ()}), Split("article", folds=2), "not 'a'; use 'balanced'"),
        (index_of({"81": (), "2": ()}), Split("article", folds=2), "not '81'"),
    ],
)
def test_too_few_or_foreign_studies(index, split, message):
    with pytest.raises(DataError, match=message):
        Splits.make(index, split)


def test_saved_with_hash(tmp_path):
    splits = Splits.make(GALAR, Split("balanced"))
    splits.save(tmp_path / "splits.json")
    assert Splits.load(tmp_path / "splits.json") == splits
    facts = json.loads((tmp_path / "splits.json").read_text())
    assert facts["hash"] == splits.hash != Splits.make(GALAR, Split("balanced", seed=1)).hash
    facts["folds"]["1"] = (facts["folds"]["1"] + 1) % 5
    (tmp_path / "splits.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="edited by hand"):
        Splits.load(tmp_path / "splits.json")
    (tmp_path / "splits.json").write_text("[]")
    with pytest.raises(DataError, match="not a split file"):
        Splits.load(tmp_path / "splits.json")


def test_unknown_fold():
    with pytest.raises(DataError, match="no fold 5"):
        Splits.make(GALAR, Split("balanced")).train(5)
