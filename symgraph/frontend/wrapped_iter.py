"""Iterators around others: batches made ahead, and epochs of another length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from symgraph.core.errors import ConfigError
from symgraph.core.types import Array
from symgraph.frontend.data_iter import DataBatch, DataDesc, DataIter, describe

if TYPE_CHECKING:
    from concurrent.futures import Future

Renamed = Sequence[Mapping[str, str]] | None


class ResizeIter(DataIter):
    """Epochs of `size` batches of another iterator, which begins anew at its end (MXNet).

    Args:
        data_iter: the iterator.
        size: batches of an epoch.
        reset_internal: whether `reset` resets the iterator too.
    """

    def __init__(self, data_iter: DataIter, size: int, reset_internal: bool = True) -> None:
        super().__init__(data_iter.batch_size)
        self.data_iter, self.size, self.reset_internal = data_iter, size, reset_internal
        self._taken = 0
        if hasattr(data_iter, "default_bucket_key"):
            self.default_bucket_key = data_iter.default_bucket_key

    @property
    def provide_data(self) -> list[DataDesc]:
        return self.data_iter.provide_data

    @property
    def provide_label(self) -> list[DataDesc]:
        return self.data_iter.provide_label

    def reset(self) -> None:
        self._taken = 0
        if self.reset_internal:
            self.data_iter.reset()

    def next(self) -> DataBatch:
        if self._taken == self.size:
            raise StopIteration
        self._taken += 1
        try:
            return self.data_iter.next()
        except StopIteration:
            self.data_iter.reset()
            return self.data_iter.next()


class PrefetchingIter(DataIter):
    """One or several iterators whose next batches are made in threads of their own (MXNet).

    Batches of several iterators are joined: the arrays of the first one, then of the second.

    Args:
        iters: an iterator, or several.
        rename_data: new names of data by old one, for each iterator; None keeps all.
        rename_label: the same for labels.

    Raises:
        ConfigError: in `next`, if the iterators have different numbers of batches, or pad
            differently.
    """

    def __init__(
        self,
        iters: DataIter | list[DataIter],
        rename_data: Renamed = None,
        rename_label: Renamed = None,
    ) -> None:
        self.iters = list(iters) if isinstance(iters, (list, tuple)) else [iters]
        self.rename_data, self.rename_label = rename_data, rename_label
        super().__init__(self.provide_data[0].shape[0])
        from concurrent.futures import ThreadPoolExecutor  # which few programs need

        self._pool = ThreadPoolExecutor(len(self.iters), "prefetch")
        self._order()

    def _order(self) -> None:
        """Begin to make the next batches."""
        self._coming: list[Future[DataBatch | None]] = [
            self._pool.submit(_next, made) for made in self.iters
        ]

    @property
    def provide_data(self) -> list[DataDesc]:
        return list(_renamed([i.provide_data for i in self.iters], self.rename_data))

    @property
    def provide_label(self) -> list[DataDesc]:
        return list(_renamed([i.provide_label for i in self.iters], self.rename_label))

    def reset(self) -> None:
        for coming in self._coming:
            coming.exception()  # waits; what a dropped batch raised does not matter
        for made in self.iters:
            made.reset()
        self._order()

    def next(self) -> DataBatch:
        batches = [coming.result() for coming in self._coming]
        if all(batch is None for batch in batches):
            raise StopIteration
        found = [batch for batch in batches if batch is not None]
        if len(found) < len(batches) or len({batch.pad for batch in found}) > 1:
            raise ConfigError("the iterators of a PrefetchingIter end at different samples")
        self._order()
        first, several = found[0], len(found) > 1 or self.rename_data or self.rename_label
        if not several:
            return first
        return DataBatch(
            [array for batch in found for array in batch.data],
            [array for batch in found for array in batch.label],
            first.pad,
            first.index,
            first.bucket_key,
            self._described([batch.provide_data for batch in found], self.rename_data),
            self._described([batch.provide_label for batch in found], self.rename_label),
        )

    def _described(self, provided: list[Sequence[Any]], renames: Renamed) -> list[DataDesc]:
        """Return a batch's own descriptions if all parts have them; the iterator's hold else."""
        return list(_renamed(provided, renames)) if all(provided) else []

    def getindex(self) -> Array | None:
        """Return None: batches hold their indices."""
        return None


def _next(source: DataIter) -> DataBatch | None:
    try:
        return source.next()
    except StopIteration:
        return None


def _renamed(provided: Sequence[Sequence[Any]], renames: Renamed) -> Iterator[DataDesc]:
    for place, descriptions in enumerate(provided):
        names: Mapping[str, str] = {} if renames is None else renames[place]
        for entry in map(describe, descriptions):
            name = names.get(entry.name, entry.name)
            yield DataDesc(name, entry.shape, entry.dtype, entry.layout)
