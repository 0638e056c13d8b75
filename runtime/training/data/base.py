"""Datasets and sources of batches: the interfaces of all kinds of data.

DataConfig ──SOURCES[kind]──▶ Dataset ──source(part, inputs, seed)──▶ Source ──▶ batches
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from symgraph.core.errors import ConfigError, nearest
from symgraph.core.types import Array
from symgraph.frontend.io import DataBatch, DataDesc
from symgraph.frontend.model import Model
from symgraph.passes.batching import Feed

Part = Literal["training", "held-out"]


LOOKED_AT = 64  # elements of an array by which batches are told apart


def brief_digest(batches: Sequence[DataBatch], found: int = 0) -> int:
    """Return a number below 2**20 that differs, most likely, if the batches of a step do.

    found: the number for all earlier batches, to tell whether those differ too.
    """
    for batch in batches:
        for name, array in sorted(batch.feeds.items()):
            some = array.reshape(-1)[:: max(1, array.size // LOOKED_AT)]
            about = f"{name} {array.shape} {batch.pad}".encode()
            found = zlib.crc32(some.tobytes(), zlib.crc32(about, found))
    return found % (1 << 20)


class Source(Protocol):
    """The batches of steps, numbered over epochs."""

    def __len__(self) -> int:
        """Return the number of steps per epoch."""
        ...

    def begins_epoch(self, step: int) -> bool:
        """Return whether an epoch begins with this step."""
        ...

    def batches(self, step: int) -> Sequence[DataBatch]:
        """Return the batches of one step."""
        ...

    def count(self, step: int) -> int:
        """Return how many samples, or labels of a text, count in one step."""
        ...


class Dataset(Protocol):
    """Data that is loaded once; several runs may take batches from it."""

    @property
    def name(self) -> str:
        """The name for messages."""
        ...

    @property
    def unit(self) -> str:
        """The unit of counts: "tokens" or "samples"."""
        ...

    @property
    def digest(self) -> str:
        """A hash that differs between ranks that read other data."""
        ...

    @property
    def identity(self) -> str:
        """A hash of what weights depend on, such as a vocabulary; "" for nothing."""
        ...

    def about(self) -> str:
        """Return what to say of the data before training."""
        ...

    def in_order(self, inputs: Inputs) -> Iterator[DataBatch]:
        """Yield all training samples once, in order, for predictions; the last batch is filled up.

        Args:
            inputs: The inputs of the network.

        Raises:
            ConfigError: The data does not fit the network, or has no samples in an order.
        """
        ...

    def source(self, part: Part, config: Any, model: Model | None) -> Source | None:
        """Return the batches of a part of the data; None for a part without any.

        Args:
            part: The part.
            config: The config of the run: the sizes of its batches, and its seed.
            model: The network that is fed; None where there is one for each bucket.

        Raises:
            ConfigError: There is not enough data for one batch, or it does not fit the network.
        """
        ...


@dataclass(frozen=True)
class Inputs:
    """The inputs that a network is fed, and the batches of arrays that fit them."""

    feeds: Mapping[str, Feed]
    #: Those that may be missing, for which zeros are fed; None: no array may be missing, and none
    #: may be there that is no input.
    optional: Collection[str] | None = None

    @classmethod
    def of(cls, model: Model | None, optional: Collection[str] | None = None) -> Inputs:
        """Return the inputs of a model; its states are not fed."""
        assert model is not None, "only text has buckets"
        return cls({name: model.feeds[name] for name in model.data}, optional)

    @property
    def batch(self) -> int:
        """The number of samples in a batch."""
        feed = next(iter(self.feeds.values()))
        return feed.type.shape[feed.axis]

    def require(self, names: Mapping[str, Any], source: str) -> None:
        """Raise ConfigError unless there is an array for each input, and for nothing else.

        If some are optional, these may be missing, and arrays of no input are left out.
        """
        known = ", ".join(self.feeds)
        for name in names:
            if name not in self.feeds and self.optional is None:
                raise ConfigError(
                    f"{source} has {name!r}, but the network has no such input; "
                    f"{nearest(name, self.feeds)}"
                )
        for name in self.feeds:
            if name not in names and name not in (self.optional or ()):
                there = ", ".join(names) or "nothing"
                raise ConfigError(
                    f"{source} lacks {name!r}: the network's inputs are {known}, but it has {there}"
                )

    def samples(self, arrays: Mapping[str, Any]) -> int:
        """Return the number of samples in a batch of arrays; a whole batch without that axis."""
        name, feed = next((n, feed) for n, feed in self.feeds.items() if n in arrays)
        shape = np.shape(arrays[name])
        return int(shape[feed.axis]) if len(shape) > feed.axis else self.batch

    def batch_of(self, arrays: Mapping[str, Any], source: str, pad: int = 0) -> DataBatch:
        """Return arrays as a batch of the inputs' shapes and types.

        Args:
            arrays: An array for each input.
            source: Where they come from, for messages.
            pad: Samples that they lack; copies of the first one take their place.
        """
        self.require(arrays, source)
        given = {n: np.asarray(arrays[n]) for n in self.feeds if n in arrays}
        if pad:
            given = {n: self._filled(n, array, pad) for n, array in given.items()}
        fitted = {n: self.fitted(n, array, source) for n, array in given.items()}
        return self.made({n: fitted[n] if n in fitted else self._zeros(n) for n in self.feeds}, pad)

    def _zeros(self, name: str) -> Array:
        shape, dtype = self.feeds[name].type
        return np.zeros(shape, dtype)

    def _filled(self, name: str, array: Array, pad: int) -> Array:
        axis = self.feeds[name].axis
        if array.ndim <= axis or not array.shape[axis]:
            return array
        first = array.take([0] * pad, axis)
        return np.concatenate([array, first], axis)

    def only_first(self, batch: DataBatch, count: int) -> DataBatch:
        """Return `count` times the first sample of a batch, with the batch's pad."""
        arrays = {
            name: array.take([0] * count, self.feeds[name].axis)
            for name, array in batch.feeds.items()
        }
        return self.made(arrays, batch.pad)

    def made(self, arrays: Mapping[str, Array], pad: int = 0) -> DataBatch:
        """Return fitted arrays as a batch, `pad` samples of which only fill it up."""
        layouts = {n: "." * feed.axis + "N" for n, feed in self.feeds.items()}
        provided = [DataDesc(n, a.shape, a.dtype, layouts[n]) for n, a in arrays.items()]
        return DataBatch([*arrays.values()], pad=pad, provide_data=provided)

    def fitted(self, name: str, value: Any, source: str) -> Array:
        """Return an array in the type of an input; ConfigError if it has another shape."""
        feed = self.feeds[name]
        array = np.asarray(value)
        shape, size = feed.type.shape, feed.type.size
        same_batch = array.ndim > feed.axis and array.shape[feed.axis] == shape[feed.axis]
        if array.size != size or not (same_batch or array.shape == shape):
            raise ConfigError(
                f"{source}: {name!r} has the shape {array.shape}, but the network's input is "
                f"{feed.type}"
            )
        return self.typed(name, array, source).reshape(shape)

    def typed(self, name: str, array: Array, source: str) -> Array:
        """Return an array in the dtype of an input; ConfigError if that changes numbers of it."""
        dtype = self.feeds[name].type.dtype
        if array.dtype == dtype:
            return array
        if array.dtype.kind not in "biuf":
            raise ConfigError(f"{source}: {name!r} is of {array.dtype}, which is no number")
        with np.errstate(all="ignore"):  # too large, or NaN
            converted = array.astype(dtype)
        if np.dtype(dtype).kind in "iu" and not np.array_equal(converted, array):
            other = array[converted != array].flat[0]
            raise ConfigError(
                f"{source}: {name!r} has {other}, which is no number of the network's type, {dtype}"
            )
        return converted
