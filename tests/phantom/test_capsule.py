"""Rendered frames: continuous, deterministic, unlike between systems, and showing what their labels say."""

import numpy as np
import pytest

from phantom import capsule
from phantom.lens import SYSTEMS, VIEW
from rarevision.labels import COLUMN, FINDINGS, REGIONS

SIZE = 128


def labels_of(region: str, n: int) -> np.ndarray:
    labels = np.zeros((n, 17), np.uint8)
    labels[:, COLUMN[region]] = 1
    return labels


@pytest.fixture(scope="module")
def journey() -> capsule.Journey:
    """90 frames of small intestine with one event of each finding, eight frames long and four apart."""
    labels = labels_of("small intestine", 12 * len(FINDINGS))
    for i, name in enumerate(FINDINGS):
        labels[12 * i + 2 : 12 * i + 10, COLUMN[name]] = 1
    return capsule.Journey(labels, "pillcam", (5,), SIZE)


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_changes_its_frames_and_no_other(journey, name):
    start = 12 * FINDINGS.index(name)
    shares = []
    for row in range(start, start + 12):
        with_it, without = (journey.frame(row, findings)[0].astype(int) for findings in (True, False))
        shares.append((np.abs(with_it - without).max(2) > 14).mean())
    assert max(shares[:2] + shares[10:]) == 0, "outside its event"
    assert min(shares[3:9]) > 0.001, "visible from entering to leaving"
    assert max(shares) < (0.7 if name in ("blood", "hematin") else 0.35), "a part of the wall"
    if name in ("erosion", "angiectasia", "lymphangioectasis"):
        assert max(shares) < 0.1, "small"


def shift(journey, name) -> np.ndarray:
    """Mean change of RGB where a finding changes anything, at the middle of its event."""
    row = 12 * FINDINGS.index(name) + 6
    with_it, without = (journey.frame(row, findings)[0].astype(int) for findings in (True, False))
    changed = np.abs(with_it - without).max(2) > 14
    return (with_it - without)[changed].mean(0)


@pytest.mark.parametrize("name", ["active bleeding", "blood", "angiectasia", "erythema"])
def test_blood_and_vessels_are_redder(journey, name):
    r, g, _ = shift(journey, name)
    assert r - g > 10 and g < -5


def test_hematin_is_dark_and_spots_are_white(journey):
    hematin, fresh, (_, g, b) = (shift(journey, name) for name in ("hematin", "active bleeding", "lymphangioectasis"))
    assert (hematin < -15).all() and fresh[0] > hematin[0] + 20, "darker than fresh blood"
    assert g > 10 and b > 20


def test_motion_is_continuous(journey):
    frames = np.stack([journey.frame(row, findings=False)[0].astype(int) for row in range(0, 60)])
    near = np.abs(frames[1:] - frames[:-1]).mean((1, 2, 3))
    far = np.abs(frames[30:] - frames[:-30]).mean((1, 2, 3))
    assert np.median(near) < 0.5 * np.median(far)
    assert near.max() < np.median(far)


def test_deterministic_and_seeded():
    labels = labels_of("colon", 6)
    one, same, other = (capsule.Journey(labels, "olympus", seed, SIZE).frame(3)[0] for seed in ((1, 2), (1, 2), (1, 3)))
    assert (one == same).all()
    assert np.abs(one.astype(int) - other).mean() > 5


def test_regions_differ_in_colour():
    """Stomach and esophagus are pink, the small intestine is tan: blue against red tells."""
    tint = {}
    for region in ("esophagus", "stomach", "small intestine"):
        image = capsule.Journey(labels_of(region, 2), "pillcam", (4,), SIZE).frame(0)[0].astype(float)
        tint[region] = image[..., 2].sum() / image[..., 0].sum()
    assert tint["small intestine"] < tint["stomach"] < tint["esophagus"]


def test_systems_differ_in_field_and_colour():
    mean, shown = {}, {}
    for system in SYSTEMS:
        journey = capsule.Journey(labels_of("colon", 3), system, (2,), SIZE)
        image, field = journey.frame(1)[0].astype(float), journey.lens.field[..., 0]
        assert field[0, 0] == 0 and field[SIZE // 2, 4] > 0, "cut corners, open sides"
        assert image[field == 0].max() == 0
        mean[system], shown[system] = image.sum((0, 1)) / image.sum(), (field > 0).mean()
    assert mean["navicam"][2] > max(mean["pillcam"][2], mean["olympus"][2]) + 0.03, "another white balance"
    assert abs(shown["navicam"] - np.pi / 4) < 0.03, "a round field"
    assert abs(shown["olympus"] - 0.875) < 0.03, "an octagon: corners of a quarter side each"


def test_quality_labels_follow_what_covers_the_wall():
    journey = capsule.Journey(labels_of("colon", 4), "olympus", (3,), SIZE)
    image = np.full((journey.lens.grid, journey.lens.grid, 3), 150.0, np.float32)
    level = np.full(image.shape[:2], 400, np.int32)
    seen = {}
    for fluid, bubbles in ((0.0, 0.0), (1.8, 0.0), (0.0, 1.5)):
        painted = image.copy()
        seen[fluid, bubbles] = journey.lens.cover(painted, level, fluid, bubbles, 0.0, 0.0)
        assert (np.abs(painted - image).mean() > 5) == (fluid + bubbles > 0)
    assert set(seen[0.0, 0.0]) == set(VIEW)
    assert seen[0.0, 0.0] == {"bubbles": 0, "dirt": 0, "no view": 0, "reduced view": 0, "good view": 1}
    assert seen[1.8, 0.0]["dirt"] and not seen[1.8, 0.0]["bubbles"] and not seen[1.8, 0.0]["good view"]
    assert seen[0.0, 1.5]["bubbles"] and not seen[0.0, 1.5]["dirt"]


def test_z_line_shows_two_mucosas():
    """The salmon stomach appears in the pale esophagus while the z-line is labelled, and not four frames earlier."""
    labels = labels_of("esophagus", 24)
    labels[12:, : len(REGIONS)] = 0
    labels[12:, COLUMN["stomach"]] = 1
    labels[9:12, COLUMN["z-line"]] = 1
    journey = capsule.Journey(labels, "pillcam", (6,), SIZE)

    def pale(row: int) -> float:
        image = journey.frame(row)[0].astype(float)
        lit = image.max(2) > 90
        return (image[..., 2] / (image[..., 0] + 1))[lit].mean()

    assert pale(5) > pale(11) + 0.02 and pale(8) > pale(11) + 0.02


def test_a_frame_without_a_region_is_refused():
    labels = labels_of("colon", 3)
    labels[1] = 0
    with pytest.raises(ValueError, match="exactly one of the five regions"):
        capsule.Journey(labels, "pillcam", (1,), SIZE)
