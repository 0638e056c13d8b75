"""Data of programs that run once a rank: who reads it, and who gets which part (ChainerMN)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from runtime.frontends.chainermn.communicator import Communicator
from symgraph.core.errors import GraphError, RunError

T = TypeVar("T")
PLACE = ("epoch", "is_new_epoch", "current_position", "epoch_detail")  # of an iterator, if it knows


def create_empty_dataset(dataset: Sequence[Any]) -> list[tuple[()]]:
    """As many empty examples: for ranks whose part of the network reads no data."""
    return [()] * len(dataset)


def scatter_index(
    n_total_samples: int, comm: Communicator, root: int = 0, *, force_equal_length: bool = True
) -> tuple[int, int]:
    """[begin, end) of this rank's samples; the root's number counts.

    force_equal_length: parts overlap by at most one sample, so that all are equally long.
    """
    total = comm.bcast_obj(n_total_samples, root)
    begin, end = (total * r // comm.size for r in (comm.rank, comm.rank + 1))
    return (begin, begin + -(-total // comm.size)) if force_equal_length else (begin, end)


def scatter_dataset(
    dataset: Any,
    comm: Communicator,
    root: int = 0,
    shuffle: bool = False,
    seed: int | None = None,
    *,
    force_equal_length: bool = True,
) -> Any:
    """This rank's part of the root's dataset: an array, a tuple of arrays, or a list of examples.

    Each rank is sent its own part and no more; the other ranks' `dataset` is ignored. shuffle: in
    an order that `seed` fixes. Arrays of a tuple have one length, else GraphError on all ranks.
    """
    lengths = comm.bcast_obj(sorted(_lengths(dataset)) if comm.rank == root else None, root)
    if len(lengths) != 1:
        raise GraphError(f"scatter_dataset: arrays of lengths {lengths} are no dataset")
    (total,) = lengths
    begin, end = scatter_index(total, comm, root, force_equal_length=force_equal_length)
    ends = comm.gather_obj((begin, end), root)
    if ends is None:
        return comm.scatter_obj(None, root)
    order = np.random.default_rng(seed).permutation(total) if shuffle else np.arange(total)
    parts = [_taken(dataset, order[b:e]) for b, e in ends]
    return comm.scatter_obj(parts, root)


def _lengths(dataset: Any) -> set[int]:
    return {len(x) for x in (dataset if isinstance(dataset, tuple) else [dataset])}


def _taken(dataset: Any, rows: Any) -> Any:
    if isinstance(dataset, tuple):
        return tuple([np.asarray(x)[rows] for x in dataset])
    return dataset[rows] if isinstance(dataset, np.ndarray) else [dataset[i] for i in rows]


class MultiNodeIterator(Iterator[Any]):
    """The master's batches on every rank; each rank calls next equally often.

    epoch, is_new_epoch, current_position, epoch_detail: the master's, if its iterator has them.
    """

    def __init__(self, actual: Iterable[Any] | None, comm: Communicator, rank_master: int) -> None:
        if comm.rank == rank_master and actual is None:
            raise GraphError(
                f"create_multi_node_iterator: rank {rank_master}, the master, gives no iterator"
            )
        self._actual = iter(actual) if comm.rank == rank_master and actual is not None else None
        self._comm, self._master = comm, rank_master
        self._place: dict[str, Any] = {}

    def __next__(self) -> Any:
        """The next batch; StopIteration, and an error of the master's, come on every rank."""
        failed: Exception | None = None
        sent: tuple[type[Exception] | None, Any, dict[str, Any]] = None, None, {}
        if self._actual is not None:
            try:
                sent = None, _checked(next(self._actual)), self._known()
            except Exception as error:
                failed, sent = error, (type(error), str(error), self._known())
        kind, batch, self._place = self._comm.bcast_obj(sent, self._master)
        if failed is not None:
            raise failed
        if kind in (StopIteration, TypeError):
            raise kind(batch)
        if kind is not None:
            raise RunError(f"the iterator of rank {self._master}: {kind.__name__}: {batch}")
        return batch

    def __getattr__(self, name: str) -> Any:
        if name in PLACE and name in self._place:
            return self._place[name]
        raise AttributeError(f"the master's iterator has no {name!r}, as far as it has come")

    def _known(self) -> dict[str, Any]:
        return {name: getattr(self._actual, name) for name in PLACE if hasattr(self._actual, name)}


def create_multi_node_iterator(
    actual_iterator: Iterable[Any] | None, communicator: Communicator, rank_master: int = 0
) -> MultiNodeIterator:
    """An iterator that gives the master's batches on every rank, of exactly their dtypes.

    Batches are arrays, numbers, and tuples, lists and dicts of them; text is a TypeError on every
    rank. actual_iterator: the master's; the others' are ignored.
    """
    return MultiNodeIterator(actual_iterator, communicator, rank_master)


def create_synchronized_iterator(make: Callable[[int], T], communicator: Communicator) -> T:
    """`make(seed)` with one seed on all ranks, so that their iterators shuffle alike."""
    return make(communicator.bcast_obj(int(np.random.SeedSequence().generate_state(1)[0])))


def _checked(batch: Any) -> Any:
    """The batch; TypeError if there is text in it."""
    if isinstance(batch, str) or getattr(batch, "dtype", np.dtype(int)).kind in "USO":
        raise TypeError(f"a batch holds {batch!r:.60}, which is no number")
    if isinstance(batch, Mapping):
        _checked(list(batch.values()))
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            _checked(part)
    return batch
