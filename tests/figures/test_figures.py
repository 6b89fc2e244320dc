"""What a reader of figures relies on: rows and axes are named, truth and prediction differ, colours hold for all."""

import itertools
from types import SimpleNamespace

import cv2
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex, to_rgb
from tiny import write_study

from rarevision import figures
from rarevision.config import Data
from rarevision.data import open_reader, read_galar
from rarevision.events import Event, from_labels
from rarevision.figures import palette, timelines
from rarevision.labels import COLUMN, LABELS, N_LABELS, REGIONS
from rarevision.scores import StudyScores
from rarevision.scoring import frame_table, score_events

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def drawn():
    """Each figure is really drawn after its test, so that what fails only then fails too."""
    with plt.rc_context():
        figures.style()
        yield
        for number in plt.get_fignums():
            plt.figure(number).canvas.draw()
        plt.close("all")


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Two studies of 24 frames."""
    root = tmp_path_factory.mktemp("galar")
    (root / "Labels").mkdir()
    for study in ("1", "2"):
        table = pd.DataFrame(write_study(root / "Galar_Frames" / study, 24, int(study)), columns=LABELS)
        table.insert(0, "index", range(24))
        table.assign(frame=5 * np.arange(24)).to_csv(root / "Labels" / f"{study}.csv", index=False)
    return read_galar(root, progress=False)[0]


def study(name: str = "1", share: float = 0.3, frames: int = 60) -> StudyScores:
    rng = np.random.default_rng(int(name))
    labels = (rng.random((frames, N_LABELS)) < share).astype(np.uint8)
    probs = np.clip(0.6 * labels + rng.random(labels.shape) * 0.4, 0, 1).astype(np.float32)
    return StudyScores(name, np.arange(frames, dtype=np.int32), probs, labels)


def reports(share: float = 0.3) -> dict:
    studies = [study(name, share) for name in "123"]
    truth = {s.study: from_labels(s.frame, s.labels) for s in studies}
    found = {s.study: from_labels(s.frame, s.probs > 0.5) for s in studies}
    silent = {s.study: [] for s in studies}
    return {"silence": score_events(truth, silent), "all": score_events(truth, found)}


def row_names(ax) -> list[str]:
    return [text.get_text() for text in ax.get_yticklabels()]


def texts(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


# ------------------------------------------------------------------------------------------------------------ colours

# What readers without one kind of cone see, in linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
VISION = {
    "all cones": np.eye(3),
    "no red cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no blue cones": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TOGETHER = {
    "lines": palette.CYCLE,
    "regions": tuple(palette.REGION_COLOUR.values()),
    "groups": (palette.BLUE, palette.ORANGE, palette.GREY),
    "a lane": (timelines.TRUE, timelines.PREDICTED, palette.BLUE),
}


def least_difference(colours, seen) -> float:
    """Smallest distance of two of the colours in CIELAB, as they are seen; about 2 is just noticeable side by side."""
    rgb = np.array([to_rgb(colour) for colour in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ np.transpose(seen), 0, 1)
    rgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    lab = cv2.cvtColor(rgb[None].astype(np.float32), cv2.COLOR_RGB2LAB)[0]
    return min(np.linalg.norm(a - b) for a, b in itertools.combinations(lab, 2))


@pytest.mark.parametrize("vision", VISION)
def test_colours_used_together_differ_for_every_reader(vision):
    for use, colours in TOGETHER.items():
        assert least_difference(colours, VISION[vision]) > 15, use


def test_that_measure_of_colours_finds_the_usual_ones_too_alike():
    assert least_difference(["tab:blue", "tab:orange", "tab:green", "tab:red"], VISION["no red cones"]) < 8


def test_lines_take_the_safe_colours():
    history = pd.DataFrame({"fold": [0, 0, 1, 1], "epoch": [1, 2, 1, 2], "loss": [3, 2, 4, 1]})
    figure = figures.training.curves(history, {"loss": "training loss"}, "fold", "title")
    (ax,) = figure.axes
    assert [to_hex(line.get_color()).upper() for line in ax.lines] == list(palette.CYCLE[:2])
    assert len({line.get_marker() for line in ax.lines}) == 2
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["fold 0", "fold 1"]
    assert (ax.get_title(loc="left"), ax.get_xlabel()) == ("training loss", "epoch")


# --------------------------------------------------------------------------------------------------- rows of the labels

LABEL_FIGURES = {
    "bars": lambda: figures.charts.bars(pd.Series(range(17), LABELS), "title", "frames", log=True),
    "bars of two": lambda: figures.charts.bars(pd.DataFrame({"a": 1.0, "b": 2.0}, LABELS), "title", "frames"),
    "durations": lambda: figures.data.durations({name: [3, 5] for name in LABELS[1:]} | {LABELS[0]: []}, "title"),
    "frame APs": lambda: figures.training.frame_aps(frame_table([study("1", 0.02), study("2", 0.02)]), "title"),
    "trade": lambda: figures.scores.trade(reports()["all"], "earned {earned}, lost {lost}, empty {empty}"),
    "thresholds": lambda: figures.scores.thresholds(
        {name: {"folds": [0.2, 0.9]} for name in LABELS}, np.full(17, 2.0), "title"
    ),
}


@pytest.mark.parametrize("kind", LABEL_FIGURES)
def test_one_named_row_per_label_and_a_named_axis(kind):
    ax = LABEL_FIGURES[kind]()
    assert sorted(row_names(ax)) == sorted(LABELS) and ax.get_xlabel() and ax.get_title(loc="left")
    bottom, top = ax.get_ylim()
    assert bottom > top, "the first label stands on top"
    assert bottom >= 16 and top <= 0, "a row is cut off"


def test_bars_of_several_columns_are_told_apart():
    ax = figures.charts.bars(pd.DataFrame({"train": 1.0, "test": 2.0}, LABELS), "title", "frames")
    shown = {text.get_text() for text in ax.get_legend().get_texts()}
    assert shown == {"anatomy", "findings", "train", "test"}
    assert len({patch.get_alpha() for patch in ax.patches}) == 2
    centres = [[patch.get_y() + patch.get_height() / 2 for patch in bars] for bars in ax.containers]
    assert np.mean(centres, axis=0) == pytest.approx(np.arange(17)), "bars stand around their label's row"


def test_log_bars_say_their_value_and_nothing_of_zero():
    ax = figures.charts.bars(pd.Series([0, 0.25, 12345], LABELS[:3]), "title", "frames", log=True)
    assert texts(ax) == ["", "0.25", "12,345"]


def test_what_has_no_positive_frame_is_said():
    few = study("1")
    few.labels[:, 1:] = 0
    table = frame_table([few])
    assert texts(figures.training.frame_aps(table, "title")).count("no positive frame") == 16
    panels = figures.scores.precision_recall(few.probs, few.labels, "title").axes
    assert [ax.get_title() or ax.get_title(loc="left") for ax in panels[:17]] == list(LABELS)
    assert sum("no positive\nframe" in texts(ax) for ax in panels) == 16


def test_cells_name_rows_and_columns_and_show_the_numbers():
    ax = figures.data.cooccurrence(study().labels, "title")
    assert row_names(ax) == [text.get_text() for text in ax.get_xticklabels()] == list(LABELS)
    assert texts(ax).count("1") == 17, "each label comes with itself"
    table = pd.DataFrame({"fold 0": [1200, 0], "fold 1": [0, 0]}, ["polyp", "ulcer"])
    ax = figures.charts.counts(table, "title")
    assert row_names(ax) == ["polyp", "ulcer"]
    assert texts(ax) == ["1,200", "0", "0", "0"]


# ------------------------------------------------------------------------------------------------------------- scores


def test_sources_stack_to_the_score():
    shown = reports()
    ax = figures.scores.sources(shown, "title")
    assert row_names(ax) == [f"{name}, mAP@{t}" for name in shown for t in (0.5, 0.95)]
    assert texts(ax) == [f"{score:.3f}" for report in shown.values() for score in report.score]
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"silence", "anatomy", "findings"}


def test_waterfall_ends_at_the_last_score():
    shown = reports()
    figure = figures.scores.waterfall(shown, "{gain} in all")
    last = shown["all"].score[0]
    assert row_names(figure.axes[0]) == list(shown)
    assert texts(figure.axes[0])[-1].startswith(f"{last:.3f}")
    assert f"{last - shown['silence'].empty:+.3f} at mAP@0.5" in figure.get_suptitle()


def test_reliability_tells_scores_from_probabilities():
    s = study()
    figure = figures.scores.reliability(s.labels, {"scores": s.probs, "decoder": s.labels * 1.0}, "title")
    for ax in figure.axes:
        lines = ax.lines[1:]  # the first is the diagonal
        assert len({line.get_color() for line in lines}) == len({line.get_marker() for line in lines}) == 2
        assert "decoder: Brier score 0.0000" in [text.get_text() for text in ax.get_legend().get_texts()]
        assert ax.get_xlabel()


# ---------------------------------------------------------------------------------------------------------- timelines

TRUTH = [Event(0, 19, ("stomach",)), Event(20, 59, ("colon",)), Event(30, 39, ("polyp",))]
FOUND = [Event(0, 24, ("stomach",)), Event(25, 59, ("colon",)), Event(33, 41, ("polyp", "ulcer"))]


def bands(ax) -> list[tuple[str, float, float, float]]:
    """Colour, lower edge, first and one past the last frame of each band."""
    boxes = [(to_hex(c.get_facecolor()[0]), path) for c in ax.collections for path in c.get_paths()]
    return [(colour, *path.get_extents().intervaly[:1], *path.get_extents().intervalx) for colour, path in boxes]


def test_timeline_tells_truth_from_prediction():
    _, regions, lanes = figures.timelines.timeline(study(), FOUND, TRUTH).axes
    assert row_names(regions) == ["predicted", "truth"]
    found = {(low, first, end) for _, low, first, end in bands(regions)}
    assert found == {(0, 0, 25), (0, 25, 60), (1, 0, 20), (1, 20, 60)}
    assert row_names(lanes) == ["polyp", "ulcer"] and lanes.get_xlabel() == "frame"
    shown = {(colour, first, end) for colour, _, first, end in bands(lanes)}
    assert shown == {(timelines.TRUE.lower(), 30, 40), ("#000000", 33, 42)}
    assert [text.get_text() for text in regions.get_legend().get_texts()] == list(REGIONS)


def test_timeline_without_truth_says_so():
    _, regions, lanes = figures.timelines.timeline(study(), FOUND).axes
    assert row_names(regions) == ["predicted", "truth unknown"]
    assert {colour for colour, *_ in bands(lanes)} == {"#000000"}


@pytest.mark.parametrize("frames", [0, 1, 60])
@pytest.mark.parametrize("truth", [None, [], TRUTH])
def test_a_study_without_events_has_a_timeline(frames, truth):
    figures.timelines.timeline(study(frames=frames), [], truth)


def test_thumbnails_show_the_middle_of_each_label(index):
    scores = StudyScores("2", index.frame[24:], np.zeros((24, N_LABELS), np.float32))
    events = [Event(0, 20, ("stomach",)), Event(30, 30, ("stomach",)), Event(60, 100, ("colon",))]
    pictures = figures.timelines.thumbnails(scores, events, index)
    assert [frame for frame, _ in pictures] == [10, 80] and pictures[0][1].shape == (40, 40, 3)
    assert [frame for frame, _ in figures.timelines.thumbnails(scores, events, index, limit=1)] == [10]
    assert len(figures.timelines.thumbnails(scores, [], index, limit=3)) == 3
    assert figures.timelines.thumbnails(study("3"), events, index) == []
    assert figures.timelines.thumbnails(scores, events, None) == []
    top = figures.timelines.timeline(scores, events, thumbnails=pictures).axes[0]
    assert [inset.get_title() for inset in top.child_axes] == ["10", "80"]


def test_event_frames_say_what_is_true(index):
    scores = StudyScores("1", index.frame[:24], np.zeros((24, N_LABELS), np.float32))
    found = [Event(0, 10, ("colon",)), Event(60, 70, ("polyp",)), Event(90, 95, ("ulcer",))]
    figure = figures.timelines.event_frames(scores, found, index, [Event(55, 90, ("polyp", "colon"))], 2)
    assert [ax.get_title() for ax in figure.axes] == ["colon, false\n0 to 10", "polyp, true\n60 to 70"]
    assert figure.get_suptitle().endswith("the first 2 of 3")
    unknown = figures.timelines.event_frames(scores, found[:1], index, None, 2)
    assert unknown.axes[0].get_title() == "colon\n0 to 10"
    figures.timelines.event_frames(scores, [], index, [], 2)


# ----------------------------------------------------------------------------------------------------- frames and model


def test_a_montage_has_a_place_for_each_label(index):
    picked = {name: np.flatnonzero(index.labels[:, COLUMN[name]])[:2] for name in LABELS}
    figure = figures.data.montage(picked, open_reader(index, Data(), from_source=True), index, 3)
    titles = [ax.get_title() for ax in figure.axes][: 3 * N_LABELS]
    assert titles[3 * COLUMN["polyp"]] == "polyp\nstudy 1"
    assert [title.partition("\n")[0] for title in titles[::3]] == list(LABELS)
    assert titles[3 * COLUMN["ulcer"]] == "ulcer\nno frame"


def test_each_system_is_shown_under_each_treatment(index):
    figure = figures.data.systems([(index, "1"), (index, "2")], {"as recorded": Data(), "cut": Data(harmonise="none")})
    assert [ax.get_title().partition("\n")[2] for ax in figure.axes] == ["as recorded", "cut"] * 2


def test_drift_has_a_line_for_each_form():
    places = ["block 1", "block 2", "features"]
    table = pd.DataFrame(
        [{"variant": form, "place": p, "cosine": 1 - 0.1 * i} for i, form in enumerate("abcdefg") for p in places]
    )
    ax = figures.model.drift(table, "title")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        f"{f}: {1 - 0.1 * i:.3f}" for i, f in enumerate("abcdefg")
    ]
    assert ax.get_xlabel() and ax.get_ylabel()


@pytest.mark.parametrize("prefix", [0, 1])
def test_attention_maps_stand_beside_their_picture(prefix):
    first, second = torch.rand(2, 2, 1, 4 + prefix, 4 + prefix)
    maps = SimpleNamespace(first=first, second=second, difference=first - second)
    figure = figures.model.attention(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), maps, "title", prefix)
    panels = [ax.get_title().partition(":")[0] for ax in figure.axes if ax.get_label() != "<colorbar>"]
    assert panels == ["", "first", "second", "difference"] * 2
    scales = {image.get_clim() for ax in figure.axes[3:8:4] for image in ax.images}
    assert all(low == -high for low, high in scales), "0 is white"
