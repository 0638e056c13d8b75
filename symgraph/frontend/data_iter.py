"""Data iterators: batches of numpy arrays by name, as modules read them (MXNet's `mx.io`).

An iterator describes its arrays (names, shapes, dtypes, the batch axis) and returns batches until
the epoch ends; `reset` begins the next epoch. The order depends only on the seed and the number of
the epoch, so two runs, or all ranks of one run, see the same batches.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from symgraph.core.errors import ConfigError, GraphError, ShapeError, nearest
from symgraph.core.types import DTYPES, Array, TensorType
from symgraph.frontend.ndarray import viewed
from symgraph.passes.batching import Feed

HANDLES = ("pad", "discard", "roll_over")
Source = Any  # an array, a list of arrays, or arrays by name


class DataDesc(namedtuple("DataDesc", ["name", "shape"])):
    """The description of an input: the pair (name, shape), a dtype and a layout (MXNet DataDesc).

    The shape is that of a whole batch.
    """

    name: str
    shape: tuple[int, ...]
    #: Name of the dtype.
    dtype: str
    #: One letter per axis, such as "NT" or "TNC"; N is the batch axis.
    layout: str

    def __new__(
        cls, name: str, shape: Sequence[int], dtype: Any = "float32", layout: str = "NCHW"
    ) -> DataDesc:
        desc = super().__new__(cls, name, tuple(shape))
        desc.dtype, desc.layout = np.dtype(dtype).name, layout
        return desc

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.name, self.shape, self.dtype, self.layout

    @property
    def feed(self) -> Feed:
        """The type and batch axis of the input."""
        return Feed(TensorType(self.shape, self.dtype), self.get_batch_axis(self.layout))

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        """Return the position of N in a layout; 0 if it has none."""
        return max(0, (layout or "N").find("N"))


def describe(entry: Any) -> DataDesc:
    """Return a DataDesc unchanged, or make one of (name, shape[, dtype[, layout]])."""
    if isinstance(entry, str) or not isinstance(entry, Iterable):
        raise TypeError(
            f"{entry!r} does not describe an input: pass a list of DataDescs, or of (name, shape)"
        )
    return entry if isinstance(entry, DataDesc) else DataDesc(*entry)


@dataclass(eq=False)
class DataBatch:
    """The arrays of one batch (MXNet DataBatch)."""

    #: Arrays in the order of the iterator's `provide_data`.
    data: Sequence[Any]
    #: Arrays in the order of the iterator's `provide_label`.
    label: Sequence[Any] = ()
    #: Samples at the end that only fill up the batch.
    pad: int = 0
    #: Numbers of the samples within the data set.
    index: Array | None = None
    #: The batch's bucket: a length, or any other key.
    bucket_key: Any = None
    #: If batches differ: a DataDesc, or a tuple of its first fields, for each array of data.
    provide_data: Sequence[Any] = ()
    #: The same for each array of label.
    provide_label: Sequence[Any] = ()

    def __repr__(self) -> str:
        data, label = ([tuple(np.shape(a)) for a in arrays] for arrays in (self.data, self.label))
        bucket = "" if self.bucket_key is None else f", bucket {self.bucket_key!r}"
        return f"<DataBatch: data {data}, label {label}, {self.pad} padded{bucket}>"

    def __post_init__(self) -> None:
        for what, arrays in (("data", self.data), ("label", self.label)):
            if arrays is not None and not isinstance(arrays, (list, tuple)):
                kind = type(arrays).__name__
                raise TypeError(f"{what} of a batch must be a list of arrays, not {kind}")
        # MXNet's defaults are None, and scripts pass it.
        self.label, self.pad = list(self.label or ()), self.pad or 0
        self.provide_data, self.provide_label = self.provide_data or (), self.provide_label or ()

    @property
    def descriptions(self) -> list[DataDesc]:
        """Descriptions of the actual arrays of data, then label."""
        provided = (*self.provide_data, *self.provide_label)
        return [
            DataDesc(d.name, array.shape, array.dtype, d.layout)
            for d, array in zip(map(describe, provided), self._arrays, strict=True)
        ]

    @property
    def feeds(self) -> dict[str, Array]:
        """The arrays of data and label by variable name."""
        return {d.name: a for d, a in zip(self.descriptions, self._arrays, strict=True)}

    @property
    def _arrays(self) -> tuple[Any, ...]:
        return (*self.data, *self.label)


class DataIter:
    """Base class of iterators over the batches of an epoch (MXNet DataIter).

        for batch in iterator: ...
        iterator.reset()

    A subclass has `provide_data` and `provide_label`, as properties or set by `__init__`: lists of
    DataDesc, or of tuples of its first fields. It implements either `next`, or `iter_next` and
    `getdata` and, where they apply, `getlabel`, `getpad` and `getindex`.
    """

    if TYPE_CHECKING:

        @property
        def provide_data(self) -> list[DataDesc]: ...
        @property
        def provide_label(self) -> list[DataDesc]: ...

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def __repr__(self) -> str:
        given = [*getattr(self, "provide_data", ()), *getattr(self, "provide_label", ())]
        arrays = ", ".join(f"{name} {tuple(shape)}" for name, shape, *_ in given)
        return f"<{type(self).__name__}: batches of {arrays or 'unknown arrays'}>"

    def next(self) -> DataBatch:
        """Return the next batch; raise StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())

    def reset(self) -> None:
        """Begin the next epoch."""

    def iter_next(self) -> bool:
        """Advance to the next batch; return False at the end of the epoch."""
        raise NotImplementedError(f"{type(self).__name__} has neither next nor iter_next")

    def getdata(self) -> Sequence[Any]:
        """Return the data of the current batch."""
        raise NotImplementedError(f"{type(self).__name__} has neither next nor getdata")

    def getlabel(self) -> Sequence[Any]:
        """Return the labels of the current batch."""
        return ()

    def getpad(self) -> int:
        """Return the number of samples that only fill up the current batch."""
        return 0

    def getindex(self) -> Array | None:
        """Return the numbers of the samples of the current batch."""
        return None

    def __iter__(self) -> Iterator[DataBatch]:
        return self

    def __next__(self) -> DataBatch:
        return self.next()


class NDArrayIter(DataIter):
    """Iterator over batches of arrays in memory (MXNet NDArrayIter).

    Args:
        data: an array, a list of arrays, or arrays by name. All have the same number of samples
            along the axis N of `layout`. As in MXNet, float64 becomes float32; integers stay exact.
        label: as `data`; None for none.
        batch_size: samples per batch.
        shuffle: whether each epoch has a random order.
        last_batch_handle: what happens to samples that do not fill a batch: "pad" fills it with the
            first samples, "discard" drops them, "roll_over" puts them first in the next epoch.
        data_name: name of a single array of `data`; several are called `_<number>_<data_name>`.
        label_name: the same for `label`.
        layout: one letter per axis; N is the batch axis.
        seed: seed of the random order.

    Raises:
        ConfigError: if no batch of that size can be made, or an argument is out of range.
        ShapeError: if the numbers of samples differ.
        GraphError: if an array holds no numbers, or has no axis.
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
        self.data = _by_name(data, data_name)
        self.label = _by_name(label, label_name)
        self.layout = layout
        self._axis = DataDesc.get_batch_axis(layout)
        self.num_data = self._count()
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size!r}, but must be a number of 1 or more")
        if batch_size > self.num_data and (last_batch_handle != "pad" or not self.num_data):
            raise ConfigError(f"{self.num_data} samples do not fill a batch of {batch_size}")
        self._shuffle, self._seed = shuffle, seed
        self._handle = last_batch_handle
        self._epoch = -1
        self._rest = np.empty(0, np.int64)  # samples rolled over from the last epoch
        self.reset()

    def _count(self) -> int:
        counts: dict[str, int] = {
            name: a.shape[self._axis] for name, a in {**self.data, **self.label}.items()
        }
        if not self.data or len(set(counts.values())) != 1:
            raise ShapeError(
                f"all arrays must have the same number of samples, but they have {counts}"
            )
        return next(iter(counts.values()))

    def _describe(self, arrays: Mapping[str, Array]) -> list[DataDesc]:
        descriptions = []
        for name, array in arrays.items():
            shape = list(array.shape)
            shape[self._axis] = self.batch_size
            descriptions.append(DataDesc(name, shape, array.dtype, self.layout))
        return descriptions

    @property
    def provide_data(self) -> list[DataDesc]:
        return self._describe(self.data)

    @property
    def provide_label(self) -> list[DataDesc]:
        return self._describe(self.label)

    def reset(self) -> None:
        """Begin the next epoch; samples rolled over from the last one come first."""
        self._epoch += 1
        order = np.arange(self.num_data)
        if self._shuffle:
            order = np.random.default_rng((self._seed, self._epoch)).permutation(self.num_data)
        #: The numbers of the epoch's samples, in order.
        self.idx = np.concatenate([self._rest, order])
        self._rest = self.idx[:0]
        self._at = 0

    def hard_reset(self) -> None:
        """Begin the next epoch and drop the samples rolled over from the last one."""
        self._rest = self._rest[:0]
        self.reset()

    def iter_next(self) -> bool:
        left = len(self.idx) - self._at
        if left < self.batch_size and (left <= 0 or self._handle != "pad"):
            if self._handle == "roll_over":
                self._rest = self.idx[self._at :]
                self._at = len(self.idx)
            return False
        rows = self.idx[self._at : self._at + self.batch_size]
        self._pad = self.batch_size - len(rows)
        if self._pad:
            rows = np.concatenate([rows, np.resize(self.idx, self._pad)])
        self._at += self.batch_size
        self._rows = rows
        return True

    def getdata(self) -> list[Array]:
        return self._rows_of(self.data)

    def getlabel(self) -> list[Array]:
        return self._rows_of(self.label)

    def getpad(self) -> int:
        return self._pad

    def getindex(self) -> Array:
        return self._rows

    def _rows_of(self, arrays: Mapping[str, Array]) -> list[Array]:
        return [viewed(array.take(self._rows, axis=self._axis)) for array in arrays.values()]


def _by_name(source: Source, default: str) -> dict[str, Array]:
    """Return the arrays by name: one is called `default`, several `_<number>_<default>`."""
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
