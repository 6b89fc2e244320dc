"""Augmentations: a function of (seed, epoch, row), independent draws, colour kept where it is the finding."""

import colorsys
import os

import numpy as np
import pytest

from rarevision.data.augment import PIPELINES, Augment


def frame(size=64) -> np.ndarray:
    """Red on the left, dark below: flips and turns show."""
    y, x = np.mgrid[:size, :size] / size
    return np.stack([220 - 120 * x, 130 - 60 * y, 80 + 0 * x], -1).astype(np.uint8)


def test_no_network_at_import():
    assert os.environ["NO_ALBUMENTATIONS_UPDATE"] == "1"


@pytest.mark.parametrize("name", PIPELINES)
def test_a_function_of_seed_epoch_and_row(name):
    first, second = Augment(name, 48, seed=1), Augment(name, 48, seed=1)
    keys = [(epoch, row) for epoch in range(3) for row in range(20)]
    once = {key: first(frame(), *key) for key in keys}
    for key in reversed(keys):  # another order, another instance
        assert np.array_equal(second(frame(), *key), once[key])
    assert all(a.shape == (48, 48, 3) and a.dtype == np.uint8 for a in once.values())
    assert len({a.tobytes() for a in once.values()}) == len(keys)
    assert not np.array_equal(Augment(name, 48, seed=2)(frame(), 0, 0), once[0, 0])


def test_draws_are_independent():
    """Both flips of `paper` in half the frames each, and in a quarter together: not locked to one number."""
    pipeline = Augment("paper", 64, seed=0)
    flips = []
    for row in range(300):
        image = pipeline(frame(), 0, row).astype(int)[16:48, 16:48]
        flips.append(
            (image[:, :8, 0].mean() < image[:, -8:, 0].mean(), image[:8, :, 1].mean() < image[-8:, :, 1].mean())
        )
    flips = np.array(flips)
    assert (np.abs(flips.mean(0) - 0.5) < 0.1).all() and abs(flips.all(1).mean() - 0.25) < 0.1


def test_endoscopy_never_turns_grey_and_keeps_red_red():
    """Red leads clearly in every draw, hue stays within 25 degrees; `paper` turns one in ten grey."""

    def colour(image):
        lit = image.reshape(-1, 3)[image.max(-1).ravel() > 40].astype(float)
        return lit.mean(0)

    def hue(c):
        return 360 * colorsys.rgb_to_hsv(*c / 255)[0]

    ours, theirs = Augment("endoscopy", 64, 0), Augment("paper", 64, 0)
    endoscopy = [colour(ours(frame(), 0, row)) for row in range(200)]
    assert all(r > 1.15 * g and r > 1.3 * b for r, g, b in endoscopy)
    turns = [(hue(c) - hue(colour(frame())) + 180) % 360 - 180 for c in endoscopy]
    assert np.abs(turns).max() < 25
    paper = [colour(theirs(frame(), 0, row)) for row in range(200)]
    grey = np.mean([np.ptp(c) < 2 for c in paper])
    assert 0.03 < grey < 0.2


def test_endoscopy_turns_any_way():
    """The red side points everywhere: mean direction over many draws is near none."""
    pipeline = Augment("endoscopy", 64, 0)
    angles = []
    for row in range(200):
        red = pipeline(frame(), 0, row)[16:48, 16:48, 0].astype(float)
        dy, dx = np.gradient(red)
        angles.append(np.angle(dx.mean() + 1j * dy.mean()))
    assert abs(np.exp(1j * np.array(angles)).mean()) < 0.25
