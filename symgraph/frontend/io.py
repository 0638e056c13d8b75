"""Data iterators: batches of numpy arrays by name, as modules read them (MXNet's `mx.io`).

An iterator says what it provides (names, shapes, dtypes, which axis is the batch) and gives
batches until an epoch ends; `reset` begins the next one. Order is a function of the seed and the
epoch's number alone, so two runs, or all ranks of one, see the same batches.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from symgraph.core.errors import ConfigError, GraphError, ShapeError, nearest
from symgraph.core.types import DTYPES, Array, TensorType
from symgraph.passes.batching import Feed

HANDLES = ("pad", "discard", "roll_over")
Source = Any  # an array, a list of arrays, or arrays by name


class DataDesc(namedtuple("DataDesc", ["name", "shape"])):
    """The name and shape of an input for a whole batch, a pair; with dtype and layout.

    layout: one letter an axis, of which N is the batch ("NT", "TNC"); MXNet's DataDesc.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str

    def __new__(
        cls, name: str, shape: Sequence[int], dtype: Any = "float32", layout: str = "NCHW"
    ) -> DataDesc:
        made = super().__new__(cls, name, tuple(shape))
        made.dtype, made.layout = np.dtype(dtype).name, layout
        return made

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.name, self.shape, self.dtype, self.layout

    @property
    def feed(self) -> Feed:
        """Its type and batch axis."""
        return Feed(TensorType(self.shape, self.dtype), self.get_batch_axis(self.layout))

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        """Where a layout has its N; the first axis if it has none."""
        return max(0, (layout or "N").find("N"))


def describe(given: Any) -> DataDesc:
    """A DataDesc as it is, or from (name, shape) or (name, shape, dtype[, layout])."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(
            f"{given!r} describes no input: give a list of DataDescs, or of (name, shape)"
        )
    return given if isinstance(given, DataDesc) else DataDesc(*given)


@dataclass(eq=False)
class DataBatch:
    """The arrays of one batch, in the order of what the iterator provides (MXNet DataBatch).

    pad: how many samples at its end are there to fill it. index: the numbers of all. bucket_key: a
    length, or whatever else tells buckets apart. provide_data, provide_label: a DataDesc for each
    array, or the first of its fields, where an iterator's batches differ.
    """

    data: Sequence[Any]
    label: Sequence[Any] = ()
    pad: int = 0
    index: Array | None = None
    bucket_key: Any = None
    provide_data: Sequence[Any] = ()
    provide_label: Sequence[Any] = ()

    def __post_init__(self) -> None:
        for what, arrays in (("data", self.data), ("label", self.label)):
            if arrays is not None and not isinstance(arrays, (list, tuple)):
                given = type(arrays).__name__
                raise TypeError(f"{what} of a batch is a list of arrays, not {given}")
        # MXNet's defaults are None, and scripts give it.
        self.label, self.pad = self.label or (), self.pad or 0
        self.provide_data, self.provide_label = self.provide_data or (), self.provide_label or ()

    @property
    def described(self) -> list[DataDesc]:
        """The arrays as they are, data and labels."""
        given = (*self.provide_data, *self.provide_label)
        return [
            DataDesc(d.name, array.shape, array.dtype, d.layout)
            for d, array in zip(map(describe, given), self._arrays, strict=True)
        ]

    @property
    def feeds(self) -> dict[str, Array]:
        """Variable -> array, data and labels."""
        return {d.name: a for d, a in zip(self.described, self._arrays, strict=True)}

    @property
    def _arrays(self) -> tuple[Any, ...]:
        return (*self.data, *self.label)


class DataIter:
    """An epoch's batches, again and again (MXNet DataIter): `for batch in it: ...; it.reset()`.

    An iterator of one's own has `provide_data` and `provide_label`, as properties or set by its
    `__init__`: lists of DataDesc, or of the first of its fields. Its batches are given by `next`,
    or by `iter_next`, `getdata` and, if it has such, `getlabel`, `getpad` and `getindex`.
    """

    if TYPE_CHECKING:

        @property
        def provide_data(self) -> list[DataDesc]: ...
        @property
        def provide_label(self) -> list[DataDesc]: ...

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def next(self) -> DataBatch:
        """The next batch; StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())

    def reset(self) -> None:
        """Begin the next epoch."""

    def iter_next(self) -> bool:
        """Go to the next batch; False at the end of the epoch."""
        raise NotImplementedError(f"{type(self).__name__} has neither next nor iter_next")

    def getdata(self) -> Sequence[Any]:
        """The data of the batch to which `iter_next` went."""
        raise NotImplementedError(f"{type(self).__name__} has neither next nor getdata")

    def getlabel(self) -> Sequence[Any]:
        """Its labels."""
        return ()

    def getpad(self) -> int:
        """How many samples at its end are there to fill it."""
        return 0

    def getindex(self) -> Array | None:
        """The numbers of its samples."""
        return None

    def __iter__(self) -> Iterator[DataBatch]:
        return self

    def __next__(self) -> DataBatch:
        return self.next()


class NDArrayIter(DataIter):
    """Batches of arrays that are in memory (MXNet NDArrayIter).

    data, label: an array, several, or arrays by name; all have as many samples along the N of
    `layout`. float64 becomes float32, as in MXNet; integers stay exact. last_batch_handle: what
    to do with samples that do not fill a batch: "pad" it with the first ones, "discard" them, or
    let them "roll_over" to be the first of the next epoch. seed: of the order, when `shuffle`.
    """

    def __init__(
        self,
        data: Source,
        label: Source = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
        layout: str = "NCHW",
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size)
        if last_batch_handle not in HANDLES:
            raise ConfigError(
                f"last_batch_handle={last_batch_handle!r}; {nearest(last_batch_handle, HANDLES)}"
            )
        self.data = _named(data, data_name)
        self.label = _named(label, label_name)
        self.layout = layout
        self._axis = DataDesc.get_batch_axis(layout)
        self.num_data = self._count()
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size!r}, but must be a number of 1 or more")
        if batch_size > self.num_data and (last_batch_handle != "pad" or not self.num_data):
            raise ConfigError(f"no batch of {batch_size} can be made of {self.num_data} samples")
        self._shuffle, self._seed = shuffle, seed
        self._handle = last_batch_handle
        self._epoch = -1
        self._rest = np.empty(0, np.int64)  # samples that rolled over
        self.reset()

    def _count(self) -> int:
        counts: dict[str, int] = {
            name: a.shape[self._axis] for name, a in {**self.data, **self.label}.items()
        }
        if not self.data or len(set(counts.values())) != 1:
            raise ShapeError(f"arrays must have one number of samples each, but have {counts}")
        return next(iter(counts.values()))

    def _describe(self, arrays: Mapping[str, Array]) -> list[DataDesc]:
        found = []
        for name, array in arrays.items():
            shape = list(array.shape)
            shape[self._axis] = self.batch_size
            found.append(DataDesc(name, shape, array.dtype, self.layout))
        return found

    @property
    def provide_data(self) -> list[DataDesc]:
        return self._describe(self.data)

    @property
    def provide_label(self) -> list[DataDesc]:
        return self._describe(self.label)

    def reset(self) -> None:
        """Begin the next epoch, with the samples that rolled over first."""
        self._epoch += 1
        order = np.arange(self.num_data)
        if self._shuffle:
            order = np.random.default_rng((self._seed, self._epoch)).permutation(self.num_data)
        self._order = np.concatenate([self._rest, order])
        self._rest = self._order[:0]
        self._at = 0

    def hard_reset(self) -> None:
        """Begin the next epoch without samples that rolled over."""
        self._rest = self._rest[:0]
        self.reset()

    def iter_next(self) -> bool:
        left = len(self._order) - self._at
        if left < self.batch_size and (left <= 0 or self._handle != "pad"):
            if self._handle == "roll_over":
                self._rest = self._order[self._at :]
                self._at = len(self._order)
            return False
        rows = self._order[self._at : self._at + self.batch_size]
        self._pad = self.batch_size - len(rows)
        if self._pad:
            rows = np.concatenate([rows, np.resize(self._order, self._pad)])
        self._at += self.batch_size
        self._rows = rows
        return True

    def getdata(self) -> list[Array]:
        return self._taken(self.data)

    def getlabel(self) -> list[Array]:
        return self._taken(self.label)

    def getpad(self) -> int:
        return self._pad

    def getindex(self) -> Array:
        return self._rows

    def _taken(self, arrays: Mapping[str, Array]) -> list[Array]:
        return [array.take(self._rows, axis=self._axis) for array in arrays.values()]


def _named(source: Source, default: str) -> dict[str, Array]:
    """Arrays by name: a single one is called `default`, several `_<number>_<default>`."""
    if source is None:
        return {}
    if isinstance(source, Mapping):
        named = dict(source)
    elif isinstance(source, (list, tuple)):
        many = len(source) > 1
        named = {f"_{i}_{default}" if many else default: a for i, a in enumerate(source)}
    else:
        named = {default: source}
    return {name: _array(name, value) for name, value in named.items()}


def _array(name: str, value: Any) -> Array:
    array = np.asarray(value)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.dtype.name not in DTYPES or not array.ndim:
        raise GraphError(f"data {name!r} is {array.dtype}{list(array.shape)}, not samples")
    return array
