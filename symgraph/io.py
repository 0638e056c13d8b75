"""Batches: what data iterators give, under MXNet's names (`mx.io`)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from symgraph.batching import Feed
from symgraph.types import Array, TensorType


class DataDesc(NamedTuple):
    """A variable's name, and the shape, dtype and layout of its array (`mx.io.DataDesc`).

    layout: a letter an axis, N for the batch; without N the batch is the first axis.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = "NCHW"

    @property
    def feed(self) -> Feed:
        """Its type and batch axis."""
        return Feed(TensorType(tuple(self.shape), self.dtype), max(0, self.layout.find("N")))


class DataBatch(NamedTuple):
    """A batch: arrays of data and of labels, and what they are (`mx.io.DataBatch`).

    pad: how many samples at its end are pads. bucket_key: a length, or whatever else tells buckets
    apart. provide_data, provide_label: of each array in order, a DataDesc or the first of its
    fields.
    """

    data: Sequence[Array]
    label: Sequence[Array] = ()
    pad: int = 0
    bucket_key: Hashable = None
    provide_data: Sequence[DataDesc] = ()
    provide_label: Sequence[DataDesc] = ()

    @property
    def described(self) -> list[DataDesc]:
        """The arrays as they are, data and labels."""
        given = [DataDesc(*d) for d in (*self.provide_data, *self.provide_label)]
        arrays = (*self.data, *self.label)
        return [
            d._replace(shape=a.shape, dtype=str(a.dtype))
            for d, a in zip(given, arrays, strict=True)
        ]

    @property
    def feeds(self) -> dict[str, Array]:
        """Variable -> array, data and labels."""
        arrays = (*self.data, *self.label)
        return {d.name: a for d, a in zip(self.described, arrays, strict=True)}
