"""Iterators over samples in files: MNIST's images, tables of numbers, LibSVM's lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from symgraph.core.errors import ConfigError, ShapeError
from symgraph.core.reading import reading
from symgraph.core.types import Array
from symgraph.frontend.data_iter import DataBatch, NDArrayIter
from symgraph.frontend.idx_file import read_idx


class _FileIter(NDArrayIter):
    """An iterator whose `getdata` and `getlabel` are one array, as of MXNet's over files."""

    def next(self) -> DataBatch:
        if not self.iter_next():
            raise StopIteration
        return DataBatch([self.getdata()], [self.getlabel()], self.getpad(), self.getindex())

    def getdata(self) -> Any:
        return super().getdata()[0]

    def getlabel(self) -> Any:
        return super().getlabel()[0]


class MNISTIter(_FileIter):
    """Iterator over MNIST's files (`mx.io.MNISTIter`): numbers from 0 to 1 (255 / 256).

    Samples that do not fill a batch are left out.

    Args:
        image: path of the images, an IDX file that may be compressed.
        label: path of the labels.
        batch_size: images per batch.
        shuffle: whether the images are in a random order, the same in each epoch (MXNet).
        flat: whether images are rows of 784 numbers, not of shape (1, 28, 28).
        seed: seed of the order.
        silent: accepted without effect.
        num_parts: parts that the images are dealt out to, for several processes.
        part_index: which part this iterator has.
        input_shape: shape of an image, instead of what `flat` says.
        data_shape: accepted without effect.
        data_name: name of the images.
        label_name: name of the labels.

    Raises:
        ConfigError: a file cannot be read, or its samples do not fill a batch.
    """

    def __init__(
        self,
        image: str | Path = "./train-images-idx3-ubyte",
        label: str | Path = "./train-labels-idx1-ubyte",
        batch_size: int = 128,
        shuffle: bool = True,
        flat: bool = False,
        seed: int = 0,
        silent: bool = False,
        num_parts: int = 1,
        part_index: int = 0,
        input_shape: Sequence[int] | None = None,
        data_shape: Sequence[int] | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
    ) -> None:
        images, labels = read_idx(Path(image)), read_idx(Path(label))
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise ConfigError(
                f"{image} holds an array of shape {images.shape} and {label} one of "
                f"{labels.shape}: not images and a label for each"
            )
        if not 0 <= part_index < num_parts:
            raise ConfigError(f"part_index is {part_index}, but there are {num_parts} parts")
        size = len(images) // num_parts
        part = slice(part_index * size, (part_index + 1) * size)
        shape = input_shape or ([-1] if flat else [1, *images.shape[1:]])
        order = np.random.default_rng(seed).permutation(size) if shuffle else np.arange(size)
        pixels = images[part][order].astype(np.float32) / 256.0
        super().__init__(
            pixels.reshape(size, *shape),
            labels[part][order].astype(np.float32),
            batch_size,
            last_batch_handle="discard",
            data_name=data_name,
            label_name=label_name,
        )


class CSVIter(_FileIter):
    """Iterator over tables of numbers (`mx.io.CSVIter`).

    Args:
        data_csv: path of the data, a sample per line, with commas between numbers.
        data_shape: shape of a sample.
        label_csv: path of the labels; None: all are 0.
        label_shape: shape of a sample's label.
        batch_size: samples per batch.
        round_batch: without effect: the last batch is filled up with the first samples, `pad` of
            them. (In MXNet, False leaves there what the batch before held.)
        dtype: dtype of the data.
        data_name: name of the data.
        label_name: name of the labels.

    Raises:
        ConfigError: a file cannot be read.
        ShapeError: lines do not have the numbers of a sample.
    """

    def __init__(
        self,
        data_csv: str | Path,
        data_shape: Sequence[int],
        label_csv: str | Path | None = None,
        label_shape: Sequence[int] = (1,),
        batch_size: int = 1,
        round_batch: bool = True,
        dtype: str = "float32",
        data_name: str = "data",
        label_name: str = "softmax_label",
    ) -> None:
        data = _table(data_csv, data_shape, dtype)
        label = np.zeros((len(data), *label_shape), np.float32)
        if label_csv is not None and str(label_csv) != "NULL":
            label = _table(label_csv, label_shape, "float32")
        super().__init__(
            data,
            label.reshape(len(label), *_without_one(label_shape)),
            batch_size,
            data_name=data_name,
            label_name=label_name,
        )


class LibSVMIter(_FileIter):
    """Iterator over LibSVM's files, as dense arrays (`mx.io.LibSVMIter`).

    A line is a label and `place:number` for each number that is not 0; places count from 0.

    Args:
        data_libsvm: path of the data, with labels.
        data_shape: shape of a sample, (features,).
        label_libsvm: path of the labels, in the same format; None: those of the data.
        label_shape: shape of a sample's label.
        batch_size: samples per batch.
        round_batch: as of `CSVIter`.
        data_name: name of the data.
        label_name: name of the labels.

    Raises:
        ConfigError: a file cannot be read, or has a line that is none of these.
    """

    def __init__(
        self,
        data_libsvm: str | Path,
        data_shape: Sequence[int],
        label_libsvm: str | Path | None = None,
        label_shape: Sequence[int] = (1,),
        batch_size: int = 1,
        round_batch: bool = True,
        data_name: str = "data",
        label_name: str = "softmax_label",
    ) -> None:
        data, label = _sparse_lines(data_libsvm, math.prod(data_shape))
        if label_libsvm is not None and str(label_libsvm) != "NULL":
            label, _ = _sparse_lines(label_libsvm, math.prod(label_shape))
        super().__init__(
            data.reshape(len(data), *data_shape),
            label.reshape(len(label), *_without_one(label_shape)),
            batch_size,
            data_name=data_name,
            label_name=label_name,
        )


def _without_one(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a label's shape; one number has no axis, as in MXNet."""
    return () if tuple(shape) == (1,) else tuple(shape)


def _table(path: str | Path, shape: Sequence[int], dtype: str) -> Array:
    with reading(path, "table of numbers"):
        try:
            rows = np.loadtxt(path, dtype, delimiter=",", ndmin=2)
        except ValueError as error:
            raise ConfigError(f"{path} is not a table of numbers: {error}") from None
    if rows.shape[1] != math.prod(shape):
        raise ShapeError(
            f"{path} has {rows.shape[1]} numbers a line, but a sample of shape {tuple(shape)} "
            f"has {math.prod(shape)}"
        )
    return rows.reshape(len(rows), *shape)


def _sparse_lines(path: str | Path, features: int) -> tuple[Array, Array]:
    """Return (samples, features) of numbers, and the labels."""
    with reading(path, "file in LibSVM's format"):
        lines = [
            line.split() for line in Path(path).read_text("utf-8").splitlines() if line.split()
        ]
    data = np.zeros((len(lines), features), np.float32)
    labels: list[Any] = []
    for number, words in enumerate(lines):
        try:
            pairs = [word.split(":") for word in words if ":" in word]
            places = [int(place) for place, _ in pairs]
            data[number, places] = [float(value) for _, value in pairs]
            if places and min(places) < 0:
                raise IndexError(f"index {min(places)} is below 0")
            labels.append([float(w) for word in words if ":" not in word for w in word.split(",")])
        except (ValueError, IndexError) as error:
            raise ConfigError(f"{path}, line {number + 1}: {error}") from None
    return data, np.array(labels, np.float32)
