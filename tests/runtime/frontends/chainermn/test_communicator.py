"""Communicators on threads: the contract, nodes, names, and ranks that go wrong."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import symgraph as mx
from runtime.frontends.chainermn import create_communicator, join_ranks
from runtime.frontends.chainermn.means import buckets
from runtime.transports import ThreadCluster
from symgraph.core.errors import ConfigError, GraphError, PeerFailed, RunError
from tests.fakes.fake_nccl import fake_nccl
from tests.runtime.frontends.chainermn.checks import CHECKS, data

NAMES = ["naive", "flat", "hierarchical", "two_dimensional"]


@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CHECKS)
def test_contract(name, p):
    with ThreadCluster(p, timeout=30) as cluster:
        cluster.run(lambda end: CHECKS[name](create_communicator("flat", end)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nodes", ["aaaa", "aabb", "abab", "abba", "abcd"])
def test_means_over_nodes(name, nodes):
    def work(end):
        comm = create_communicator(name, end, node=nodes[end.rank])
        CHECKS["check_mean_gradients"](comm)

    with ThreadCluster(4, timeout=30) as cluster:
        cluster.run(work)


def test_nodes_of_different_sizes():
    def work(end):
        node = "aaab"[end.rank]
        CHECKS["check_mean_gradients"](create_communicator("hierarchical", end, node=node))
        with pytest.raises(ConfigError, match=r"as many ranks on every node.*'a': 3, 'b': 1"):
            create_communicator("two_dimensional", end, node=node)

    with ThreadCluster(4, timeout=30) as cluster:
        cluster.run(work)


def test_places_on_nodes():
    def work(end):
        comm = create_communicator("naive", end, node="abbab"[end.rank])
        return comm.intra_rank, comm.intra_size, comm.inter_rank, comm.inter_size

    with ThreadCluster(5) as cluster:
        places = cluster.run(work)
    assert places == [(0, 2, 0, 2), (0, 3, 1, 2), (1, 3, 1, 2), (1, 2, 0, 2), (2, 3, 1, 2)]


def test_unknown_names():
    with pytest.raises(ConfigError, match=r"no communicator 'single'; .*'two_dimensional'"):
        create_communicator("single")


def test_pure_nccl_says_what_is_missing(monkeypatch):
    needs = "communicator 'pure_nccl' needs GPUs and the gpu extra: "
    no_nccl, no_threads = "CuPy finds no NCCL: pip install nvidia-nccl", "it joins processes that"
    with (
        fake_nccl(cards=1, available=False),
        pytest.raises(ConfigError, match=needs + no_nccl),
    ):
        create_communicator("pure_nccl")
    with (
        fake_nccl(cards=1),
        ThreadCluster(1) as cluster,
        pytest.raises(ConfigError, match=needs + no_threads),
    ):
        cluster.run(lambda end: create_communicator("pure_nccl", end))
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ConfigError, match=f"{needs}the package cupy cannot be imported .*naive"):
        create_communicator("pure_nccl")


def test_buckets():
    arrays = [np.zeros(n, t) for n, t in [(3, "f4"), (2, "f8"), (4, "f4"), (9, "f4"), (1, "f4")]]
    sizes = [[(a.size, a.dtype.char) for a in bucket] for bucket in buckets(arrays, 28)]
    assert sizes == [[(3, "f"), (4, "f")], [(9, "f")], [(1, "f")], [(2, "d")]]
    assert [len(b) for b in buckets(arrays, 0)] == [1] * 5


def run_wrong(work, error, match):
    with ThreadCluster(2, timeout=30) as cluster, pytest.raises(error, match=match):
        cluster.run(lambda end: work(create_communicator("naive", end)))


def test_a_wrong_tag_is_named():
    def work(comm):
        comm.send(data(2), 1, tag=4) if comm.rank == 0 else comm.recv(0, tag=5)

    run_wrong(work, RunError, "the next message of rank 0 has tag 4, but tag 5 is asked for")


@pytest.mark.parametrize(
    ("work", "error", "match"),
    [
        (
            lambda some: some.send(data(2), 1, tag=4) if some.rank == 0 else some.recv(0, tag=5),
            RunError,
            "rank 1: the next message of rank 2 has tag 4, but tag 5 is asked for",
        ),
        (
            lambda some: some.bcast(data(1)) if some.rank == 0 else some.gather(data(1)),
            RunError,
            "rank 1 calls gather of root 2, but rank 2 bcast of root 2: all ranks",
        ),
        (
            lambda some: some.recv(1 - some.rank, tag=5),
            PeerFailed,
            r"rank 1 waits for tag 1 from rank 2 \(a receive from rank 2 with tag 5\)\n",
        ),
        (
            lambda some: some.multi_node_mean_grad({} if some.rank else {"w": data(2)}),
            GraphError,
            r"'w' is nothing on rank 1, but .* on rank 2",
        ),
    ],
)
def test_errors_name_ranks_by_their_numbers_among_all(work, error, match):
    """In a communicator of ranks 2 and 1, in this order, and not by those in it and among all."""

    def split(comm):
        some = comm.split(int(comm.rank > 0), -comm.rank)
        if comm.rank > 0:
            work(some)

    with ThreadCluster(3, timeout=30) as cluster, pytest.raises(error, match=match):
        cluster.run(lambda end: split(create_communicator("naive", end)))


def test_a_network_that_one_rank_does_not_describe_is_told_on_all():
    """A rank with nothing to add gave None, and ended in an AttributeError."""
    run_wrong(
        lambda comm: join_ranks(mx.sym.Variable("x") if comm.rank == 0 else None, comm),
        GraphError,
        "join_ranks: rank 1 gives no symbol; every rank needs one",
    )


def test_an_error_after_a_call_is_not_said_to_be_in_it():
    def work(comm):
        comm.allgather(data(3))
        raise ValueError("my own")

    with ThreadCluster(2, timeout=30) as cluster, pytest.raises(ValueError, match="my own") as told:
        cluster.run(lambda end: work(create_communicator("naive", end)))
    assert told.value.__notes__[-1] in ("on rank 0", "on rank 1")


def test_sums_of_different_shapes_are_named():
    run_wrong(
        lambda comm: comm.allreduce(data(2 + comm.rank)),
        RunError,
        r"rank 1 calls allreduce of float64\(3,\), but rank 0 allreduce of float64\(2,\): all",
    )


def test_a_missing_participant_ends_the_others():
    def fails(comm):
        if comm.rank == 1:
            raise ZeroDivisionError("here")
        with pytest.raises(PeerFailed, match="rank 1 failed: ZeroDivisionError: here"):
            comm.allgather(data(3))

    run_wrong(fails, ZeroDivisionError, "here")
    run_wrong(
        lambda comm: comm.bcast(data(1), 1) if comm.rank == 0 else None,
        PeerFailed,
        r"rank 0 stopped while waiting for(.|\n)*\n  rank 1 has ended$",
    )
