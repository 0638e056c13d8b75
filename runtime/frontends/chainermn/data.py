"""Data of programs that run once per rank: scattered data sets, shared iterators (ChainerMN)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from runtime.frontends.chainermn.communicator import Communicator
from symgraph.core.errors import GraphError, RunError
from symgraph.core.number_checks import whole_number

T = TypeVar("T")
RAISED = {"StopIteration": StopIteration, "TypeError": TypeError}  # as such on every rank
# The attributes of an iterator that tell its position; it may lack some.
POSITION = ("epoch", "is_new_epoch", "current_position", "epoch_detail")


def create_empty_dataset(dataset: Sequence[Any]) -> list[tuple[()]]:
    """Return as many empty examples, for ranks whose part of the network reads no data."""
    return [()] * len(dataset)


def scatter_index(
    n_total_samples: int, comm: Communicator, root: int = 0, *, force_equal_length: bool = True
) -> tuple[int, int]:
    """Return the range [begin, end) of this rank's samples.

    Args:
        n_total_samples: the number of all samples; only the root's is used.
        comm: the communicator.
        root: the rank that knows the number.
        force_equal_length: whether neighbouring parts may share a sample, so that all parts have
            the same length.
    """
    total = whole_number(
        comm.bcast_obj(n_total_samples, root), "scatter_index: the number of samples", GraphError
    )
    if total < 0:
        raise GraphError(f"scatter_index: the number of samples must be 0 or more, not {total}")
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
    """Return this rank's part of the root's dataset; each rank receives only its own part.

    Args:
        dataset: an array, a tuple of arrays, or a list of examples; only the root's is used.
        comm: the communicator.
        root: the rank that has the dataset.
        shuffle: whether to shuffle the samples first.
        seed: the seed of the shuffled order.
        force_equal_length: see `scatter_index`.

    Raises:
        GraphError: the arrays of a tuple differ in length; raised on all ranks.
    """
    lengths = comm.bcast_obj(sorted(_lengths(dataset)) if comm.rank == root else None, root)
    if len(lengths) != 1:
        raise GraphError(f"scatter_dataset: arrays of lengths {lengths} do not make a dataset")
    (total,) = lengths
    begin, end = scatter_index(total, comm, root, force_equal_length=force_equal_length)
    ends = comm.gather_obj((begin, end), root)
    if ends is None:
        return comm.scatter_obj(None, root)
    order = np.random.default_rng(seed).permutation(total) if shuffle else np.arange(total)
    parts = [_take(dataset, order[b:e]) for b, e in ends]
    return comm.scatter_obj(parts, root)


def _lengths(dataset: Any) -> set[int]:
    return {len(x) for x in (dataset if isinstance(dataset, tuple) else [dataset])}


def _take(dataset: Any, rows: Any) -> Any:
    if isinstance(dataset, tuple):
        return tuple([np.asarray(x)[rows] for x in dataset])
    return dataset[rows] if isinstance(dataset, np.ndarray) else [dataset[i] for i in rows]


class MultiNodeIterator(Iterator[Any]):
    """Iterates over the master's batches on every rank; all ranks call `next` equally often.

    The attributes of POSITION are the master's, where its iterator has them.
    """

    def __init__(self, actual: Iterable[Any] | None, comm: Communicator, rank_master: int) -> None:
        self._actual = iter(actual) if comm.rank == rank_master and actual is not None else None
        self._comm, self._master = comm, rank_master
        known = None if self._actual is None else self._master_position()
        self._position: dict[str, Any] = comm.bcast_obj(known, rank_master)
        if self._position is None:
            raise GraphError(
                f"create_multi_node_iterator: rank {rank_master}, the master, passes no iterator"
            )

    def __next__(self) -> Any:
        """Return the next batch; StopIteration and the master's errors are raised on every rank."""
        failed: Exception | None = None
        sent: tuple[str, Any, dict[str, Any]] = "", None, {}
        if self._actual is not None:
            try:
                sent = "", _check_batch(next(self._actual)), self._master_position()
            except Exception as error:
                failed = error
                sent = type(error).__name__, str(error), self._master_position()
        kind, batch, self._position = self._comm.bcast_obj(sent, self._master)
        if failed is not None:
            raise failed
        if kind in RAISED:
            raise RAISED[kind](batch)
        if kind:
            raise RunError(f"the iterator of rank {self._master}: {kind}: {batch}")
        return batch

    def __getattr__(self, name: str) -> Any:
        if name in POSITION and name in self._position:
            return self._position[name]
        raise AttributeError(f"the master's iterator has no {name!r}")

    def _master_position(self) -> dict[str, Any]:
        known = [name for name in POSITION if hasattr(self._actual, name)]
        return {name: getattr(self._actual, name) for name in known}


def create_multi_node_iterator(
    actual_iterator: Iterable[Any] | None, communicator: Communicator, rank_master: int = 0
) -> MultiNodeIterator:
    """Create an iterator that yields the master's batches on every rank, with the same dtypes.

    Batches are arrays, numbers, and tuples, lists and dicts of them. A batch with text raises
    TypeError on every rank. All ranks make theirs together.

    Args:
        actual_iterator: the iterator over batches; only the master's is used.
        communicator: the communicator.
        rank_master: the rank whose iterator is read.
    """
    return MultiNodeIterator(actual_iterator, communicator, rank_master)


def create_synchronized_iterator(make: Callable[[int], T], communicator: Communicator) -> T:
    """Return `make(seed)` with one seed on all ranks, so that their iterators shuffle alike."""
    return make(communicator.bcast_obj(int(np.random.SeedSequence().generate_state(1)[0])))


def _check_batch(batch: Any) -> Any:
    """Return the batch; raise TypeError if it contains text."""
    if isinstance(batch, str) or getattr(batch, "dtype", np.dtype(int)).kind in "USO":
        raise TypeError(f"a batch holds {batch!r:.60}, which is not a number")
    if isinstance(batch, Mapping):
        _check_batch(list(batch.values()))
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            _check_batch(part)
    return batch
