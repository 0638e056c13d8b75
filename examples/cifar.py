"""Color images of 32x32 pixels: files in CIFAR's formats, or scikit-learn's digits, enlarged."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from examples.mnist import digits
from symgraph.core.reading import read_bytes, reading
from symgraph.errors import ConfigError

SIDE = 32
PIXELS = 3 * SIDE * SIDE
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
    """Load images to train and to test on: digits, or a file or folder in CIFAR's formats.

    All files of a folder are read; those with "test" in their name are for testing. Files `*.bin`
    have one label byte (CIFAR-100: two, the last one is used) and 3072 pixel bytes per image. Other
    files are pickled dicts of `data` and `labels` (or `fine_labels`).
    """
    if path is None:
        images, labels = digits(SIDE)
        grey = np.repeat(images.reshape(-1, 1, SIDE, SIDE), 3, axis=1)
        return _held_out(_normal(grey), labels)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [f for f in files if f.suffix == ".bin" or _is_pickle(f)]
    if not files:
        raise ConfigError(f"--data: {path} has no images in CIFAR's formats")
    parts = [read(file) for file in files]
    scaled = _normal(np.concatenate([p.images for p in parts]) / np.float32(255))
    labels = np.concatenate([p.labels for p in parts])
    tests = np.repeat(["test" in f.name for f in files], [len(p) for p in parts])
    if tests.all() or not tests.any():
        return _held_out(scaled, labels)
    return Images(scaled[~tests], labels[~tests]), Images(scaled[tests], labels[tests])


def read(file: Path) -> Images:
    """Read the images of one file, as bytes of shape (N, 3, 32, 32), and their labels."""
    raw = read_bytes(file, "file of CIFAR's")
    if file.suffix != ".bin":
        return _unpickled(file, raw)
    for head in (1, 2):
        if raw and len(raw) % (head + PIXELS) == 0:
            rows = np.frombuffer(raw, np.uint8).reshape(-1, head + PIXELS)
            return _images(rows[:, head:], rows[:, head - 1])
    raise ConfigError(
        f"--data: {file} has {len(raw)} bytes, which is not a number of images of 1 or 2 "
        f"label bytes and {PIXELS} pixels"
    )


def _images(pixels: Any, labels: Any) -> Images:
    return Images(np.reshape(pixels, (-1, 3, SIDE, SIDE)), np.asarray(labels, "int32"))


def _normal(images: Any) -> Any:
    return ((images - images.mean()) / images.std()).astype("float32")


def _held_out(images: Any, labels: Any) -> tuple[Images, Images]:
    tests = np.random.default_rng(0).random(len(labels)) < HELD_OUT
    return Images(images[~tests], labels[~tests]), Images(images[tests], labels[tests])


class _Arrays(pickle.Unpickler):
    """An unpickler of arrays and containers only, which runs nothing else that a file names."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")):
            return super().find_class(module, name)
        if name == "_reconstruct" and module.startswith(("numpy.core.", "numpy._core.")):
            return super().find_class("numpy._core.multiarray", name)
        raise pickle.UnpicklingError(f"{module}.{name} is not an array")


def _is_pickle(file: Path) -> bool:
    return file.is_file() and not file.suffix and file.read_bytes()[:1] == b"\x80"


def _unpickled(file: Path, raw: bytes) -> Images:
    with reading(file, "file of CIFAR's"):
        content = _Arrays(io.BytesIO(raw), encoding="bytes").load()
        fields = {k.decode() if isinstance(k, bytes) else k: v for k, v in content.items()}
        labels: Sequence[int] = fields.get("fine_labels", fields.get("labels"))
        return _images(fields["data"], labels)
