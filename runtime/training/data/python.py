"""Batches from a user's function."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from runtime.training.data.base import Inputs, Part, Source
from runtime.training.data.files import Arrays
from symgraph.app.config import Config
from symgraph.app.data_config import PythonData
from symgraph.core.errors import ConfigError
from symgraph.core.types import Array
from symgraph.frontend.io import DataBatch
from symgraph.frontend.model import Model, call_function, users_code

LONGEST = 100_000  # batches of an epoch that is counted


class Epochs:
    """The epochs of a function; it is called for each, unless it returns a function itself."""

    def __init__(self, key: str, path: str, data: PythonData) -> None:
        self.key, self.path, self.data = key, path, data
        self._of_epoch: Any = None

    def start(self, epoch: int) -> Iterator[Any]:
        """Begin an epoch."""
        offered = {"batch_size": self.data.batch_size, "epoch": epoch}
        offered = {name: value for name, value in offered.items() if value is not None}
        found = self._of_epoch
        if found is None:
            found = call_function(self.key, self.path, self.data.args, offered)
        with users_code(self.key, self.path):
            if callable(found):
                self._of_epoch = found
                found = found(epoch)
            if not hasattr(found, "__iter__"):
                raise ConfigError(
                    f"{self.key}: {self.path} returns {type(found).__name__}, not an iterable of "
                    "batches, such as a list or generator of dicts from inputs to arrays"
                )
            return iter(found)

    def next(self, batches: Iterator[Any]) -> Arrays | None:
        """Return the next batch; None at the end of the epoch."""
        with users_code(self.key, self.path):
            batch = next(batches, None)
            if isinstance(batch, Mapping):
                return {str(name): self._array(name, batch[name]) for name in batch}
        if batch is None:
            return None
        raise ConfigError(
            f"{self.key}: {self.path} yields {type(batch).__name__}, not dicts from the network's "
            "inputs to arrays"
        )

    def _array(self, name: object, value: object) -> Array:
        try:
            return np.asarray(value)
        except ValueError as error:  # lists of different lengths
            raise ConfigError(f"{self.key}: {self.path}: {name!r} is no array: {error}") from None


@dataclass(frozen=True, eq=False)
class PythonDataset:
    """Batches from a function, and perhaps held-out ones from another."""

    data: PythonData
    unit: str = "samples"
    identity: str = ""

    @property
    def name(self) -> str:
        return self.data.function

    @cached_property
    def digest(self) -> str:
        epochs = Epochs("data.function", self.data.function, self.data)
        first = epochs.next(epochs.start(0)) or {}
        found = hashlib.blake2b(digest_size=16)
        for name in sorted(first):
            array = first[name]
            found.update(f"{name} {array.shape} {array.dtype}".encode())
            found.update(array.tobytes())
        return found.hexdigest()

    def about(self) -> str:
        held_out = f"held-out ones from {self.data.valid}" if self.data.valid else "none held out"
        return f"batches from {self.data.function}, {held_out}"

    def in_order(self, inputs: Inputs) -> Iterator[DataBatch]:
        epochs = Epochs("data.function", self.data.function, self.data)
        source = FromFunction(epochs, inputs, self.data.batches, padded=True)
        batches = epochs.start(0)
        left = -1 if self.data.batches is None else self.data.batches
        while left and (arrays := epochs.next(batches)) is not None:
            left -= 1
            yield source.batch_of(arrays)

    def source(self, part: Part, config: Config, model: Model | None) -> Source | None:
        inputs = Inputs.of(model)
        if part == "training":
            epochs = Epochs("data.function", self.data.function, self.data)
            return FromFunction(epochs, inputs, self.data.batches, padded=False)
        if self.data.valid is None:
            return None
        return FromFunction(Epochs("data.valid", self.data.valid, self.data), inputs, None, True)


@dataclass(eq=False)
class FromFunction:
    """Batches of epochs, which are gone through in order; an earlier step starts them anew."""

    epochs: Epochs
    inputs: Inputs
    #: Batches per epoch; None: as many as there are.
    given: int | None
    #: Whether batches with too few samples are filled up; else only the last one of an epoch may
    #: have too few, and is left out.
    padded: bool
    _epoch: int = -1
    _first: int = 0  # the step at which the epoch began
    _next: int = 0  # the step of the next batch
    _iterator: Iterator[Any] = field(default_factory=lambda: iter(()))
    _ahead: DataBatch | None = None  # the batch of step _next, which has been read

    @cached_property
    def _counted(self) -> int:
        batches = self.epochs.start(0)
        for count in range(LONGEST):
            if self._read_from(batches, 0) is None:
                if count:
                    self._epoch = -1  # the function may have gone on in the iterator of this epoch
                    return count
                raise ConfigError(self._no_batch(0))
        raise ConfigError(
            f"{self.epochs.key}: {self.epochs.path} has more than {LONGEST:,} batches: set "
            "data.batches to say how many an epoch has, or train.steps"
        )

    def __len__(self) -> int:
        return self.given or self._counted

    def begins_epoch(self, step: int) -> bool:
        self._read(step)
        return step == self._first

    def count(self, step: int) -> int:
        return self.inputs.batch

    def batches(self, step: int) -> list[DataBatch]:
        return [self._read(step)]

    def _read(self, step: int) -> DataBatch:
        """Return the batch of a step."""
        if step < self._next or self._epoch < 0:
            self._epoch, self._first, self._next, self._ahead = 0, 0, 0, None
            self._iterator = self.epochs.start(0)
        while self._next < step or self._ahead is None:
            if self._ahead is not None:
                self._next += 1
            self._ahead = self._batch()
        return self._ahead

    def _batch(self) -> DataBatch:
        """Read the batch of step _next, from the next epoch if this one has ended."""
        for _ in range(2):
            over = self.given is not None and self._next - self._first >= self.given
            arrays = None if over else self._read_from(self._iterator, self._epoch)
            if arrays is not None:
                return self.batch_of(arrays)
            if self._next == self._first and self._epoch >= 0 and not over:
                break
            self._epoch, self._first = self._epoch + 1, self._next
            self._iterator = self.epochs.start(self._epoch)
        raise ConfigError(self._no_batch(self._epoch))

    def _read_from(self, batches: Iterator[Any], epoch: int) -> Arrays | None:
        """Return an epoch's next batch to use; None at its end."""
        arrays = self.epochs.next(batches)
        if arrays is None or self.padded or not self._missing(arrays):
            return arrays
        if self.epochs.next(batches) is None:
            return None
        raise ConfigError(
            f"{self.epochs.key}: {self.epochs.path} yields a batch of "
            f"{self.inputs.samples(arrays)} samples in epoch {epoch} and others after it: only the "
            f"last may have fewer than {self.inputs.batch}; yield whole batches"
        )

    def batch_of(self, arrays: Mapping[str, Any]) -> DataBatch:
        """Return what the function yields as a batch, filled up if it lacks samples."""
        return self.inputs.batch_of(arrays, self.epochs.path, self._missing(arrays))

    def _no_batch(self, epoch: int) -> str:
        whole = "" if self.padded else f"whole batch of {self.inputs.batch} samples"
        return f"{self.epochs.key}: {self.epochs.path} has no {whole or 'batch'} in epoch {epoch}"

    def _missing(self, arrays: Arrays) -> int:
        """Return how many samples a batch lacks."""
        self.inputs.require(arrays, self.epochs.path)
        return max(0, self.inputs.batch - self.inputs.samples(arrays))


def load_python(data: PythonData) -> PythonDataset:
    """Return the batches of the functions that a config names."""
    return PythonDataset(data)
