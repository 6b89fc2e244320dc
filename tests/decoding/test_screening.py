"""Screening: cuts that can be followed by hand, and what is asked is what new studies give."""

import dataclasses

import numpy as np
import pytest
from test_decoding import made_up, settings

from rarevision.decoding import decoder as decoding
from rarevision.decoding import screening
from rarevision.decoding.learned import Candidates
from rarevision.events import Event
from rarevision.labels import COLUMN, N_LABELS
from rarevision.scores import StudyScores

POLYP, ULCER, COLON = (COLUMN[name] for name in ("polyp", "ulcer", "colon"))


def study(frames, *events):
    labels = np.zeros((frames, N_LABELS), np.uint8)
    for c, first, last in events:
        labels[first : last + 1, c] = 1
    return StudyScores("s", 5 * np.arange(frames) + 7, np.zeros((frames, N_LABELS), np.float32), labels)


def candidates(*each):
    """(column, first, last, confidence), the surest first."""
    column, first, last, hit = (np.array(v) for v in zip(*each, strict=True))
    return Candidates(column, np.stack([first, last], 1), hit, np.zeros(N_LABELS), np.ones(N_LABELS))


# Four polyps of one patient, of which the list has two; one ulcer of another, listed last; a third without findings.
STUDIES = [
    study(100, (POLYP, 0, 4), (POLYP, 20, 24), (POLYP, 40, 44), (POLYP, 60, 64)),
    study(50, (ULCER, 10, 19)),
    study(20),
]
LISTS = [
    candidates(
        (COLON, 0, 99, 0.99), (POLYP, 0, 9, 0.9), (POLYP, 5, 9, 0.8), (POLYP, 24, 24, 0.5), (ULCER, 60, 64, 0.4)
    ),
    candidates((POLYP, 10, 19, 0.7), (ULCER, 15, 24, 0.3)),
    candidates((ULCER, 0, 1, 0.2)),
]


def test_distinct_by_hand():
    assert screening.distinct(LISTS[0]).rows.tolist() == [[0, 9], [24, 24], [60, 64]]


@pytest.mark.parametrize(
    ("asked", "cut"),
    [
        (0.125, 0.9),  # one of four polyps is a quarter of one patient's findings, an eighth on average
        (0.2, 0.5),  # two of four
        (0.25, 0.5),
        (0.5, 0.3),  # and the other patient's ulcer: three quarters on average
        (0.75, 0.3),
        (0.9, 0.0),  # two polyps are not on the list: nothing is cut
    ],
)
def test_recall_cut_by_hand(asked, cut):
    assert screening.recall_cut([s.labels for s in STUDIES], LISTS, asked) == cut


@pytest.mark.parametrize(
    ("asked", "cut"),
    [
        (0.01, screening.NOTHING),  # the surest covers a tenth of one study of three
        (0.034, 0.9),
        (0.102, 0.7),  # and 10 of 50 frames: 0.3 / 3
        (0.11, 0.5),  # and 1 of 100
        (0.15, 0.4),  # and 5 of 100: 0.36 / 3 = 0.12; the next has 5 new ones of 50
        (0.18, 0.3),  # 0.46 / 3 = 0.153; the last has 2 of 20
        (1.0, 0.2),
    ],
)
def test_share_cut_by_hand(asked, cut):
    assert screening.share_cut([100, 50, 20], LISTS, asked) == cut


def test_measure_by_hand():
    """Frames 7, 12, 17 ...: rows 0-9 are frames 7 to 56 (an event ends before the next frame)."""
    listed = [[Event(7, 56, ("polyp",)), Event(307, 331, ("ulcer",))], [Event(57, 61, ("polyp",))], []]
    got = screening.measure(STUDIES, listed)
    assert got == {"recall": pytest.approx(1 / 8), "share": pytest.approx((0.15 + 0.02) / 3), "pooled": 0.2}
    assert screening.measure(STUDIES[2:], [[]]) == {"recall": None, "share": 0.0, "pooled": None}
    assert screening.recall_cut([STUDIES[2].labels], LISTS[2:], 0.5) == 0.0


@pytest.mark.parametrize("asked", [0.5, 0.9])
def test_new_studies_give_the_recall_asked(asked):
    """Out of fold, 45 studies. One study's recall has a spread of at most 0.5: three standard errors are 0.22."""
    _, _, report = decoding.cross_validate(
        made_up(45, seed=5, gain=4.0), settings("screen", screen_recall=asked, folds=3)
    )
    got = report["screen"]
    assert (got["by"], got["asked"]) == ("recall", asked)
    assert abs(got["got"] - asked) < 0.15


def test_new_studies_cost_the_share_asked():
    """A study's share has a spread of about 0.03 here: three standard errors are 0.02."""
    studies, shown = made_up(24, seed=5, gain=4.0), []
    for share in (0.02, 0.06):
        found, _, report = decoding.cross_validate(studies, settings("screen", screen_share=share, folds=3))
        got = report["screen"]
        assert (got["by"], got["asked"]) == ("share", share)
        assert abs(got["got"] - share) < 0.02
        shown.append(sum(map(len, found.values())))
    assert shown[0] < shown[1]


def test_a_recall_out_of_reach_is_said(monkeypatch):
    """Candidates that lack two polyps of six findings: the decoder says that it cuts nothing; 75 % can be had."""
    monkeypatch.setattr(decoding.learned, "fit", lambda *_: (None, LISTS))
    decoder = decoding.fit_decoder(STUDIES, settings("screen", screen_recall=0.9))
    assert decoder.cut == 0 and "nothing is cut" in decoder.notes["screen"]
    decoder = decoding.fit_decoder(STUDIES, settings("screen", screen_recall=0.75))
    assert decoder.cut == 0.3 and decoder.notes == {}


def test_an_event_rich_study_does_not_decide():
    """A study with 90 unfindable events moves the pooled recall, not the cut of the others."""
    rich = study(400, *((ULCER, 4 * i, 4 * i + 1) for i in range(90)))
    none = dataclasses.replace(LISTS[2], column=np.array([POLYP]), rows=np.array([[399, 399]]), hit=np.array([0.01]))
    labels = [STUDIES[1].labels] * 9 + [rich.labels]
    assert screening.recall_cut(labels, [LISTS[1]] * 9 + [none], 0.9) == 0.3
