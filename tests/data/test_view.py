"""The field of view: round, octagonal or full, whatever else is burned into the frame; colours brought together."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import phantom as demo
from rarevision.config import Data
from rarevision.data import read_test
from rarevision.data.view import SAMPLE, Field, View, colour_map, find_field, study_view
from rarevision.labels import COLUMN

REAL = Path(__file__).parents[3] / "shared" / "real_frames"


def recording(field: Field, side=160, text=True, n=12, seed=0) -> np.ndarray:
    """Frames uint8 [n, side, side, 3]: a lumen that wanders inside `field`, noise and text outside."""
    lot = np.random.default_rng(seed)
    inside, (y, x) = field.mask(side, side), np.mgrid[:side, :side]
    frames = []
    for _ in range(n):
        cx, cy = lot.uniform(0.3, 0.7, 2) * side
        light = np.clip(np.hypot(x - cx, y - cy) / side * 2.2, 0.02, 1)
        image = light[..., None] * np.array([210, 140, 90]) * inside[..., None] + lot.integers(0, 8, (side, side, 3))
        image = np.ascontiguousarray(image.clip(0, 255).astype(np.uint8))
        if text:
            cv2.putText(image, "12:34", (0, side - 3), cv2.FONT_HERSHEY_PLAIN, 0.8, (255, 255, 255))
        frames.append(image)
    return np.stack(frames)


def overlap(a: Field, b: Field, side=160) -> float:
    a, b = a.mask(side, side), b.mask(side, side)
    return (a & b).sum() / (a | b).sum()


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["circle", "octagon"]),
    st.integers(0, 10),
    st.integers(0, 10),
    st.integers(110, 148),
    st.integers(0, 9),
)
def test_round_and_octagonal_fields_are_found_beside_text(kind, left, top, side, seed):
    truth = Field(kind, (left, top, left + side, top + side), cut=side // 4 if kind == "octagon" else 0)
    found = find_field(recording(truth, seed=seed))
    assert found.kind == kind and overlap(found, truth) > 0.95
    assert np.abs(np.subtract(found.box, truth.box)).max() <= 3


def test_text_close_to_the_field_does_not_widen_it():
    truth = Field("circle", (5, 5, 155, 155))
    frames = recording(truth, text=False)
    for frame in frames:
        cv2.putText(frame, "ABC", (1, 12), cv2.FONT_HERSHEY_PLAIN, 1.0, (255, 255, 255))
        cv2.putText(frame, "45%", (122, 158), cv2.FONT_HERSHEY_PLAIN, 1.0, (255, 255, 255))
    assert overlap(find_field(frames), truth) > 0.95


def test_full_frames_and_dark_recordings_stay_whole():
    whole = Field("full", (0, 0, 160, 160))
    assert find_field(recording(whole, text=False)) == whole
    assert find_field(np.zeros((3, 160, 120, 3), np.uint8)) == Field("full", (0, 0, 120, 160))


@pytest.fixture(scope="module")
def phantom() -> dict[str, np.ndarray]:
    """Frames of one phantom study per capsule system, at 128 px."""
    labels = np.zeros((SAMPLE, 17), np.uint8)
    labels[:, COLUMN["small intestine"]] = 1
    found = {}
    for system in demo.SYSTEMS:
        journey = demo.Journey(labels, system, (5,), 128)
        found[system] = np.stack([journey.frame(row)[0] for row in range(0, SAMPLE, 4)])
    return found


def test_phantom_fields_of_all_systems(phantom):
    for system, frames in phantom.items():
        field, lit = find_field(frames), frames.max((0, 3)) > 24
        mask = field.mask(128, 128)
        assert (mask & lit).sum() / (mask | lit).sum() > 0.95, system
        assert field.kind == {"navicam": "circle", "olympus": "octagon"}.get(system, field.kind) != "full"


def test_harmonised_systems_are_closer():
    """Hue (ratios of channels) and level, over all pixels that are not dark: a third and half of the distance.

    Two whole journeys per system, each another patient's: content must not pass for the capsule's colour.
    """
    labels, regions = np.zeros((60, 17), np.uint8), ("stomach", "small intestine", "colon")
    shares = ((10, 40), (20, 30), (5, 35), (15, 45), (8, 25), (12, 50))  # where small intestine and colon begin
    studies = {}
    for k, cuts in enumerate(shares):
        system, own = list(demo.SYSTEMS)[k % 3], labels.copy()
        for name, part in zip(regions, np.split(np.arange(60), cuts), strict=True):
            own[part, COLUMN[name]] = 1
        journey = demo.Journey(own, system, (11 + k,), 128)
        studies[system, k] = np.stack([journey.frame(row)[0] for row in range(0, 60, 6)])

    def look(frames, field, lut):
        pixels = frames[:, field.mask(128, 128)].reshape(-1, 3)
        pixels = np.stack([lut[pixels[:, c], c] for c in range(3)], 1)[pixels.max(1) > 60].astype(float) + 1
        hue = np.log(pixels[:, :2] / pixels[:, 1:]).mean(0)
        return np.concatenate([hue, np.log(np.percentile(pixels, [25, 50, 75], 0)).ravel()])

    same = np.repeat(np.arange(256)[:, None], 3, 1)
    looks = []
    for frames in studies.values():
        field = find_field(frames)
        looks.append([look(frames, field, lut) for lut in (same, colour_map(frames, field))])
    looks = np.array(looks)  # [studies, before and after, values]
    systems = np.array([system for system, _ in studies])
    before, after = np.ptp([looks[systems == system].mean(0) for system in demo.SYSTEMS], 0)
    assert after[:2].sum() < before[:2].sum() / 3 and after[2:].sum() < before[2:].sum() / 2


def test_colour_is_measured_exactly_over_many_large_frames():
    """Sums over a study's 12 million pixels leave float32's precision: a study at the reference must stay as it is."""
    frames = np.full((SAMPLE, 512, 512, 3), (148, 77, 43), np.uint8)
    frames[::2] = (135, 70, 39)
    lut = colour_map(frames, Field("full", (0, 0, 512, 512))).astype(int)
    for values in ((148, 77, 43), (135, 70, 39)):
        assert np.abs(lut[list(values), range(3)] - values).max() <= 12


def test_colour_map_keeps_order_grey_and_bounds(phantom):
    for frames in phantom.values():
        lut = colour_map(frames, find_field(frames)).astype(int)
        assert lut.shape == (256, 3) and (lut[0] == 0).all() and (np.diff(lut, axis=0) >= 0).all()
    nothing = colour_map(np.zeros((2, 32, 32, 3), np.uint8), Field("full", (0, 0, 32, 32)))
    assert (nothing == np.arange(256)[:, None]).all()


def test_view_crops_and_blanks_outside():
    field = Field("circle", (10, 20, 110, 120))
    frame = recording(field)[0]
    out = View(field, crop=True).apply(frame)
    assert out.shape == (100, 100, 3) and not out[0, 0].any()  # text and noise are gone
    centre = out[30:70, 30:70]
    assert np.array_equal(centre, frame[50:90, 40:80])
    octagon = Field("octagon", (0, 0, 160, 160), cut=40)
    common = View(octagon, crop=True, round=True).apply(np.full((160, 160, 3), 9, np.uint8))
    assert np.array_equal(common[..., 0] > 0, Field("circle", (0, 0, 160, 160)).mask(160, 160))
    other_size = np.full((50, 50, 3), 7, np.uint8)
    assert np.array_equal(View(field, crop=True).apply(other_size), other_size)


def test_study_view_follows_the_config(tmp_path):
    folder = tmp_path / "set" / "a"
    folder.mkdir(parents=True)
    truth = Field("circle", (4, 4, 156, 156))
    for i, frame in enumerate(recording(truth)):
        Image.fromarray(frame).save(folder / f"frame_{i:06d}.png")
    (folder / "frame_000003.png").write_bytes(b"")  # judged where frames are read, not here
    index, _ = read_test(tmp_path / "set", progress=False)
    assert study_view(index, "a", Data()) is None
    crop = study_view(index, "a", Data(field_of_view="crop"))
    assert crop.crop and crop.lut is None and overlap(crop.field, truth) > 0.95
    colour = study_view(index, "a", Data(harmonise="colour"))
    assert not colour.crop and colour.lut is not None
    assert study_view(index, "a", Data(field_of_view="crop", harmonise="colour")).round


@pytest.mark.skipif(not REAL.exists(), reason="real exams are not beside the checkout")
def test_real_exams_have_octagonal_fields():
    index, _ = read_test(REAL, progress=False)
    for study in index.studies:
        field = study_view(index, study, Data(field_of_view="crop")).field
        assert field.kind == "octagon" and field.box == (0, 0, 336, 336) and 50 <= field.cut <= 60
