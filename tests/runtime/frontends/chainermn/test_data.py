"""The data side: who reads what, with exact types, and where all ranks stop."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.frontends import chainermn
from runtime.transports import ThreadCluster
from symgraph.core.errors import GraphError, RunError


def on_ranks(p, work):
    """Results of `work(communicator)` by rank."""
    with ThreadCluster(p, timeout=30) as cluster:
        return cluster.run(lambda end: work(chainermn.create_communicator("naive", end)))


class Serial:
    """Batches of arange(n) in order, over some epochs; knows its epoch, as Chainer's does."""

    def __init__(self, n: int, batch: int, epochs: int, dtype: str = "int64") -> None:
        self.items = np.arange(n).astype(dtype)
        self.batch, self.epochs = batch, epochs
        self.epoch = self.current_position = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.epoch >= self.epochs:
            raise StopIteration
        rows = np.arange(self.current_position, self.current_position + self.batch)
        self.epoch += int(rows[-1] + 1 >= len(self.items))
        self.current_position = int(rows[-1] + 1) % len(self.items)
        return self.items[rows % len(self.items)]


def test_empty_dataset():
    assert chainermn.create_empty_dataset([1, 2, 3]) == [(), (), ()]


@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 7, 12])
def test_indexes_cover_everything(p, n):
    equal = on_ranks(p, lambda comm: chainermn.scatter_index(n, comm))
    assert {end - begin for begin, end in equal} == {-(-n // p)}
    assert set().union(*(range(*ends) for ends in equal)) == set(range(n))
    parts = on_ranks(p, lambda comm: chainermn.scatter_index(n, comm, force_equal_length=False))
    assert [i for ends in parts for i in range(*ends)] == list(range(n))


@pytest.mark.parametrize("total", [-5, 5.5, None])
def test_what_is_no_number_of_samples_is_an_error_on_all_ranks(total):
    """-5 samples were the ranges (0, -1) and (-3, -4)."""

    def work(comm):
        with pytest.raises(GraphError, match="the number of samples"):
            chainermn.scatter_index(total if comm.rank == 0 else 8, comm)

    on_ranks(2, work)


@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_scattered_datasets(root, shuffle):
    ids = 2**31 + 5 + np.arange(8)
    dataset = {
        "array": ids,
        "tuple": (np.eye(8, dtype="float16"), ids),
        "list": [(i, str(i)) for i in range(8)],
    }
    for kind, data in dataset.items():

        def work(comm, data=data):
            given = data if comm.rank == root else None
            return chainermn.scatter_dataset(
                given, comm, root, shuffle, seed=5, force_equal_length=False
            )

        parts = on_ranks(3, work)
        order = np.random.default_rng(5).permutation(8) if shuffle else np.arange(8)
        if kind == "array":
            assert np.concatenate(parts).dtype == ids.dtype
            assert np.array_equal(np.concatenate(parts), ids[order])
        elif kind == "tuple":
            assert np.array_equal(np.concatenate([part[1] for part in parts]), ids[order])
            assert parts[1][0].dtype == "float16"
        else:
            assert [x for part in parts for x in part] == [data[i] for i in order]


def test_what_is_no_dataset_is_an_error_on_all_ranks():
    def work(comm):
        with pytest.raises(GraphError, match=r"arrays of lengths \[2, 3\] do not make a dataset"):
            chainermn.scatter_dataset((np.ones(2), np.ones(3)) if comm.rank == 0 else None, comm)

    on_ranks(2, work)


@pytest.mark.parametrize("batch", [4, 7])
@pytest.mark.parametrize("master", [0, 1])
def test_every_rank_sees_the_masters_batches(batch, master):
    """X11: 100 items over 3 epochs; all ranks stop together, and know the epoch."""

    def work(comm):
        own = Serial(100, batch, 3) if comm.rank == master else None
        shared = chainermn.create_multi_node_iterator(own, comm, master)
        return [(batch, shared.epoch, shared.current_position) for batch in shared]

    alone = Serial(100, batch, 3)
    want = [(batch, alone.epoch, alone.current_position) for batch in alone]
    for got in on_ranks(3, work):
        assert len(got) == len(want)
        for (a, *place), (b, *other) in zip(got, want, strict=True):
            assert np.array_equal(a, b)
            assert place == other


def test_types_are_exact():
    """ChainerMN hands everything over as float32, which loses ids above 2**24."""
    batch = [(np.array([2**24 + 1, 2**31 + 5]), 2**53 + 1), {"x": np.ones(2, "float16")}]

    def work(comm):
        return next(chainermn.create_multi_node_iterator([batch] if comm.rank == 0 else None, comm))

    for (ids, number), table in on_ranks(2, work):
        assert ids.tolist() == [2**24 + 1, 2**31 + 5]
        assert ids.dtype == "int64"
        assert number == 2**53 + 1
        assert table["x"].dtype == "float16"


def failing():
    """Fails with an error that cannot be pickled: other ranks waited, and got a later broadcast."""

    class LocalError(EOFError):
        pass

    raise LocalError("no more")
    yield


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ([[(np.ones(2), "text")]], TypeError, "a batch holds 'text', which is not a number"),
        ([np.array(["a"])], TypeError, "which is not a number"),
        (map(lambda _: 1 // 0, [0]), (ZeroDivisionError, RunError), "by zero"),
        (failing(), (EOFError, RunError), "no more"),
    ],
)
def test_errors_of_the_master_come_on_every_rank(given, error, match):
    def work(comm):
        own = given if comm.rank == 0 else None
        with pytest.raises(error, match=match):
            next(chainermn.create_multi_node_iterator(own, comm))

    on_ranks(2, work)


def test_a_master_without_iterator():
    def work(comm):
        own = [1] if comm.rank == 0 else None
        with pytest.raises(GraphError, match="rank 1, the master, passes no iterator"):
            chainermn.create_multi_node_iterator(own, comm, 1)

    on_ranks(2, work)


def test_the_epoch_is_known_before_the_first_batch():
    """A loop `while shared.epoch < 3` began with "the master's iterator has no 'epoch'"."""

    def work(comm):
        own = Serial(6, 3, 3) if comm.rank == 1 else None
        shared, count = chainermn.create_multi_node_iterator(own, comm, 1), 0
        while shared.epoch < 3:
            count += len(next(shared))
        return count

    assert on_ranks(2, work) == [18, 18]


def test_what_the_iterator_does_not_know():
    def work(comm):
        shared = chainermn.create_multi_node_iterator([1], comm)
        next(shared)
        with pytest.raises(AttributeError, match="has no 'epoch'"):
            _ = shared.epoch

    on_ranks(1, work)


def test_synchronized_iterators_shuffle_alike():
    def work(comm):
        make = lambda seed: iter(np.random.default_rng(seed).permutation(50))  # noqa: E731
        return list(chainermn.create_synchronized_iterator(make, comm))

    first, *rest = on_ranks(3, work)
    assert sorted(first) == list(range(50))
    assert all(other == first for other in rest)
