"""Samples of arrays in files: in another order each epoch, with a held-out part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from runtime.training.data.base import Inputs, Part, Source
from runtime.training.data.files import Arrays, read_array, read_arrays
from symgraph.app.config import Config
from symgraph.app.data_config import ArraysData
from symgraph.core.errors import ConfigError
from symgraph.core.types import Array
from symgraph.core.units import count_text
from symgraph.frontend.io import DataBatch
from symgraph.frontend.model import Model

Rows = npt.NDArray[np.int64]
DIGESTED = 64  # samples of each array that the digest is made of


@dataclass(frozen=True, eq=False)
class ArraysDataset:
    """Arrays by input, and the samples of each part."""

    data: ArraysData
    name: str
    train: Arrays
    #: The arrays of the held-out part; None: samples of `train`.
    valid: Arrays | None
    unit: str = "samples"
    identity: str = ""

    @property
    def samples(self) -> int:
        """The number of samples in the training files."""
        return len(next(iter(self.train.values())))

    @cached_property
    def digest(self) -> str:
        found = hashlib.blake2b(digest_size=16)
        for arrays in (self.train, self.valid or {}):
            for name in sorted(arrays):
                array = np.atleast_1d(arrays[name])
                found.update(f"{name} {array.shape} {array.dtype}".encode())
                rows = np.linspace(0, len(array) - 1, min(len(array), DIGESTED)).astype(int)
                found.update(np.ascontiguousarray(array[rows]).tobytes())
        return found.hexdigest()

    def about(self) -> str:
        shapes = ", ".join(f"{n} {a.dtype}{list(a.shape[1:])}" for n, a in self.train.items())
        train, valid = (len(self._rows(part, 0)[1]) for part in ("training", "held-out"))
        return f"{self.name}: {train:,} training and {valid:,} held-out samples of {shapes}"

    def _rows(self, part: Part, seed: int) -> tuple[Arrays, Rows]:
        """Return the arrays of a part and the numbers of its samples in them."""
        _require_samples(self.name, self.train)
        if self.valid is not None:
            _require_samples(f"the held-out part of {self.name}", self.valid)
            arrays = self.train if part == "training" else self.valid
            return arrays, np.arange(len(next(iter(arrays.values()))))
        held_out = round(self.data.held_out * self.samples)
        order = np.random.default_rng([seed, 0]).permutation(self.samples)
        rows = np.sort(order[:held_out] if part == "held-out" else order[held_out:])
        return self.train, rows

    def in_order(self, inputs: Inputs) -> Iterator[DataBatch]:
        self._require(inputs, self.train)
        read = {name: self.train[name] for name in inputs.feeds if name in self.train}
        _require_samples(self.name, read)
        rows, scale = np.arange(len(next(iter(read.values())))), dict(self.data.scale)
        samples = Samples(inputs, read, rows, scale, self.name, None, padded=True)
        for step in range(len(samples)):
            yield from samples.batches(step)

    def _require(self, inputs: Inputs, arrays: Arrays) -> None:
        """Raise ConfigError unless arrays fit the inputs, and only inputs are scaled."""
        inputs.require(arrays, self.name)
        for name in self.data.scale:
            if name not in inputs.feeds:
                raise ConfigError(f"data.scale: the network has no input {name!r}")

    def source(self, part: Part, config: Config, model: Model | None) -> Source | None:
        inputs, seed = Inputs.of(model), config.train.seed
        arrays, rows = self._rows(part, seed)
        if part == "held-out" and not len(rows):
            return None
        self._require(inputs, arrays)
        training = part == "training"
        if training and len(rows) < inputs.batch:
            raise ConfigError(
                f"{self.name}: {count_text(len(rows), 'sample')} to train on, fewer than a batch "
                f"of {inputs.batch}; use smaller batches"
            )
        return Samples(
            inputs,
            arrays,
            rows,
            dict(self.data.scale),
            self.name,
            seed if training and self.data.shuffle else None,
            padded=not training,
        )


@dataclass(eq=False)
class Samples:
    """Some samples of arrays as batches."""

    inputs: Inputs
    arrays: Arrays
    #: The numbers of these samples.
    rows: Rows
    scale: Mapping[str, float]
    name: str
    #: The seed of the order, which is another one in each epoch; None: the order of `rows`.
    seed: int | None
    #: Whether the last batch of an epoch is filled up, else it is left out if it is not full.
    padded: bool
    _epoch: int = -1
    _ordered: Rows = field(default_factory=lambda: np.empty(0, np.int64))  # of that epoch

    def __len__(self) -> int:
        batch = self.inputs.batch
        return -(-len(self.rows) // batch) if self.padded else len(self.rows) // batch

    def begins_epoch(self, step: int) -> bool:
        return step % len(self) == 0

    def count(self, step: int) -> int:
        first = step % len(self) * self.inputs.batch
        return min(self.inputs.batch, len(self.rows) - first)

    def batches(self, step: int) -> list[DataBatch]:
        epoch, number = divmod(step, len(self))
        batch = self.inputs.batch
        rows = self._order(epoch)[number * batch : (number + 1) * batch]
        taken = {n: self._taken(n, rows) for n in self.inputs.feeds if n in self.arrays}
        return [self.inputs.batch_of(taken, self.name, batch - len(rows))]

    def _order(self, epoch: int) -> Rows:
        if self.seed is None:
            return self.rows
        if epoch != self._epoch:
            rng = np.random.default_rng([self.seed, epoch + 1])
            self._epoch, self._ordered = epoch, rng.permutation(self.rows)
        return self._ordered

    def _taken(self, name: str, rows: Rows) -> Array:
        """Return samples of an array, scaled, with the batch axis where the network has it."""
        feed = self.inputs.feeds[name]
        array = np.asarray(self.arrays[name][rows])
        one = [*feed.type.shape]
        del one[feed.axis]
        if array.shape[1:] != tuple(one) and array[0].size == np.prod(one):
            array = array.reshape(len(rows), *one)  # images as rows, or rows as images
        if name in self.scale:
            array = (array * self.scale[name]).astype(feed.type.dtype)
        return np.ascontiguousarray(np.moveaxis(array, 0, feed.axis)) if feed.axis else array


def load_arrays(data: ArraysData) -> ArraysDataset:
    """Read the files that a config names."""
    if data.path is not None:
        train, valid = read_arrays(data.path)
        name = data.path
    else:
        train, valid = {n: read_array(path) for n, path in data.files.items()}, None
        name = ", ".join(data.files.values())
    if data.valid_path is not None:
        valid, _ = read_arrays(data.valid_path)
    elif data.valid_files:
        valid = {n: read_array(path) for n, path in data.valid_files.items()}
    return ArraysDataset(data, name, train, valid)


def _require_samples(name: str, arrays: Arrays) -> None:
    """Raise ConfigError unless all arrays have equally many samples, at least one."""
    counts = {n: len(a) if a.ndim else 0 for n, a in arrays.items()}
    if len(set(counts.values())) != 1:
        shown = ", ".join(f"{n} {count}" for n, count in counts.items())
        what = f": the numbers of samples differ: {shown}" if shown else " has no arrays"
        raise ConfigError(f"{name}{what}")
    if 0 in counts.values():
        raise ConfigError(f"{name} has no samples")
    for n, array in arrays.items():
        if not array.nbytes:
            raise ConfigError(
                f"{name}: the samples of {n!r}, {array.dtype}{[*array.shape[1:]]}, are empty"
            )
