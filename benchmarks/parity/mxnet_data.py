"""Made-up data in the formats that MXNet's tests and examples read, so that nothing is loaded."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

IDX = {"images": 3, "labels": 1}


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images (count, 28, 28) of ten random shapes with noise, and their classes."""
    shapes = np.random.default_rng(0).integers(0, 2, (10, 7, 7)) * 200
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    images = shapes[labels].repeat(4, axis=1).repeat(4, axis=2)
    return (images + rng.integers(0, 56, images.shape)).astype("u1"), labels.astype("u1")


def write_mnist(folder: Path, train: int = 6000, test: int = 10_000) -> None:
    """Write the four files of MNIST, with fewer images than there are."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count, seed in (("train", train, 1), ("t10k", test, 2)):
        for what, array in zip(IDX, digits(count, seed), strict=True):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            path = folder / f"{part}-{what}-idx{array.ndim}-ubyte"
            path.write_bytes(head + array.tobytes())


def write_few_digits(folder: Path) -> None:
    """Write MNIST's files with as few images as examples need."""
    write_mnist(folder, 2000, 500)


def write_mnist_gz(folder: Path) -> None:
    """Write MNIST's files, each compressed too."""
    write_few_digits(folder)
    for path in sorted(folder.glob("*-ubyte")):
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))


def write_ptb(folder: Path) -> None:
    """Write texts in the format of the Penn Treebank: sentences of words that follow each other."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    for part, count in (("train", 400), ("valid", 100), ("test", 100)):
        lines = []
        for _ in range(count):
            start, length = rng.integers(0, 40), rng.integers(6, 34)
            words = [f"w{(start + 3 * t + rng.integers(0, 2)) % 50}" for t in range(length)]
            lines.append(f" {' '.join(words)} \n")
        (folder / f"ptb.{part}.txt").write_text("".join(lines))


def write_reviews(folder: Path) -> None:
    """Write sentences with a positive or negative word, as the MR data set has them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(4)
    for ending, word in (("pos", "good"), ("neg", "bad")):
        lines = [
            " ".join([*(f"w{i}" for i in rng.integers(0, 60, rng.integers(4, 12))), word])
            for _ in range(750)
        ]
        (folder / f"rt-polarity.{ending}").write_text("\n".join(lines))


def write_ratings(folder: Path) -> None:
    """Write ratings of films by users, as MovieLens 10M has them, and an empty archive."""
    (folder / "ml-10M100K").mkdir(parents=True, exist_ok=True)
    (folder / "ml-10m.zip").write_bytes(b"")
    rng = np.random.default_rng(5)
    for part, count in (("train", 2048), ("test", 512)):
        rows = zip(rng.integers(1, 500, count), rng.integers(1, 300, count), strict=True)
        lines = [f"{user}::{film}::{1 + (user + film) % 5}::0\n" for user, film in rows]
        (folder / "ml-10M100K" / f"r1.{part}").write_text("".join(lines))
