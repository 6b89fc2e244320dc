"""Augmentations: albumentations on uint8 frames, the same for the same (seed, epoch, row) in whatever worker it runs.

`paper`      the published pipeline: random resized crop 0.7-1, flips, colour jitter, grayscale,
             rotation 15 degrees, random erasing
`endoscopy`  ours. A capsule turns freely: any rotation, mirrored too, is as likely as the next. It sees the wall from
             near and far: mild scale. Cameras differ in white balance, gamma and sharpness: shifts of those, towards
             other capsule systems. Colour is the finding: hue moves by a few degrees only and nothing turns grey.
             Findings are small: erasing takes at most a tenth of the width.
"""

import os

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it would ask the network for a newer version at import

import random

import albumentations as A
import cv2
import numpy as np

from rarevision.data.image import square

LINEAR = cv2.INTER_LINEAR  # the cache is already close to the model's size; nothing is shrunk by much


def paper(size: int) -> list[A.BasicTransform]:
    return [
        A.RandomResizedCrop((size, size), scale=(0.7, 1.0), ratio=(0.75, 4 / 3), interpolation=LINEAR),
        A.HorizontalFlip(p=0.5),
        A.VerticalFlip(p=0.5),
        A.ColorJitter(brightness=(0.8, 1.2), contrast=(0.8, 1.2), saturation=(0.8, 1.2), hue=(-0.05, 0.05), p=0.8),
        A.ToGray(p=0.1),
        A.Rotate((-15, 15), interpolation=LINEAR, border_mode=cv2.BORDER_CONSTANT, p=0.5),
        A.Erasing(scale=(0.02, 0.2), p=0.25),
    ]


def endoscopy(size: int) -> list[A.BasicTransform]:
    return [
        A.RandomResizedCrop((size, size), scale=(0.8, 1.0), ratio=(0.95, 1.05), interpolation=LINEAR),
        A.HorizontalFlip(p=0.5),
        A.Affine(rotate=(-180, 180), scale=(0.9, 1.1), interpolation=LINEAR, border_mode=cv2.BORDER_CONSTANT, p=0.9),
        A.MultiplicativeNoise((0.9, 1.12), per_channel=True, p=0.5),  # white balance: black stays black
        A.RandomGamma((75, 130), p=0.5),
        A.HueSaturationValue((-4, 4), (-20, 20), (-15, 15), p=0.3),
        A.OneOf([A.GaussianBlur((3, 5), p=1), A.MotionBlur((3, 7), p=1)], p=0.15),
        A.OneOf(
            [
                A.ImageCompression(quality_range=(50, 95), p=1),
                A.MultiplicativeNoise((0.95, 1.05), elementwise=True, p=1),
            ],
            p=0.15,
        ),
        A.CoarseDropout((1, 2), (0.03, 0.1), (0.03, 0.1), p=0.2),
    ]


PIPELINES = {"paper": paper, "endoscopy": endoscopy}


class Augment:
    """uint8 [h, w, 3] -> uint8 [size, size, 3], a function of (seed, epoch, row) and the image alone.

    Nothing is drawn where `name` is "none" or `epoch` is None: the frame is brought to its square as for evaluation.
    """

    def __init__(self, name: str, size: int, seed: int):
        self.size, self.seed = size, seed
        self.pipeline = None if name == "none" else A.Compose(PIPELINES[name](size))

    def __call__(self, image: np.ndarray, epoch: int | None, row: int) -> np.ndarray:
        if self.pipeline is None or epoch is None:
            return square(image, self.size)
        entropy = np.random.SeedSequence([self.seed, epoch, row])
        # One generator for all transforms: Compose.set_random_seed gives each the same numbers, and then both flips
        # always happen together.
        self.pipeline.set_random_state(np.random.default_rng(entropy), random.Random(int(entropy.generate_state(1)[0])))
        return self.pipeline(image=image)["image"]
