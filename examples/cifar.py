"""Color images of 32x32 pixels: CIFAR's binary files, or scikit-learn's digits, enlarged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from examples.mnist import digits
from runtime.training.data.files import read_arrays
from symgraph.core.reading import reading

SIDE = 32
HELD_OUT = 0.1  # share of images to test on, if the files have no test images


class Images(NamedTuple):
    """Images and their labels."""

    #: (N, 3, 32, 32) float32, with mean 0 and standard deviation 1.
    images: Any
    #: (N,) int32.
    labels: Any

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1


def load(path: Path | None) -> tuple[Images, Images]:
    """Load images to train and to test on: digits, or CIFAR's binary files.

    Args:
        path: A file `*.bin`, or a folder of them, of which those with "test" in their name are to
            test on. None for digits.
    """
    if path is None:
        pixels, labels = digits(SIDE)
        grey = np.repeat(pixels.reshape(-1, 1, SIDE, SIDE), 3, axis=1)
        return _held_out(_normal(grey), labels)
    train, test = read_arrays(str(path))
    with reading(path, "file of CIFAR's"):
        parts = [(p["data"], np.asarray(p["label"], "int32")) for p in (train, test or {}) if p]
        images = _normal(np.concatenate([images for images, _ in parts]).reshape(-1, 3, SIDE, SIDE))
    if len(parts) == 1:
        return _held_out(images, parts[0][1])
    count = len(parts[0][1])
    return Images(images[:count], parts[0][1]), Images(images[count:], parts[1][1])


def _normal(images: Any) -> Any:
    return ((images - images.mean()) / images.std()).astype("float32")


def _held_out(images: Any, labels: Any) -> tuple[Images, Images]:
    tests = np.random.default_rng(0).random(len(labels)) < HELD_OUT
    return Images(images[~tests], labels[~tests]), Images(images[tests], labels[tests])
