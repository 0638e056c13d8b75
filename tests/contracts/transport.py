"""Contract suite of transports: every rule of `runtime/transports/base.py` as a check.

A check is given `make(timeout) -> Cluster` and runs on each process of the cluster alike: with
threads there is one process that holds all ranks, with MPI there is one rank in each. So what a
check claims, it claims inside the work of the ranks, or about the ranks it has seen itself.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from partitioner.base.collectives import CollectiveLayout
from runtime.backends.parcels import Parcel
from runtime.transports import Cluster, Failure, Transport
from symgraph.core.errors import DTypeError, PeerFailed, RunError, TransportTimeout
from symgraph.core.types import DTYPES

Make = Callable[[float], Cluster]
Work = Callable[[Transport], Any]

PATIENT = 60.0  # seconds; a check that comes near it has failed
SHAPES = [(), (0, 3), (50,), (50, 20, 5), (1 << 19,)]  # the last: 4 MB of float64


def values(shape: tuple[int, ...], dtype: Any, start: int = 0) -> np.ndarray:
    """Distinct values, as far as the type has them."""
    return (np.arange(start, start + np.prod(shape, dtype=int)) % 2039).astype(dtype).reshape(shape)


def received(end: Transport, like: np.ndarray, src: int, tag: int) -> np.ndarray:
    out = np.empty(like.shape, like.dtype)
    end.recv(out, src, tag)
    return out


def run_failing(cluster: Cluster, work: Work, rank: int, error: type, match: str) -> None:
    """Run work of which `rank` raises `error`; other ranks may end well or hear of it."""
    seen: list[int] = []
    raised: BaseException | None = None

    def noted(end: Transport) -> None:
        seen.append(end.rank)
        work(end)

    try:
        cluster.run(noted)
    except Exception as caught:
        raised = caught
    if rank in seen:
        assert isinstance(raised, error), repr(raised)
        assert re.search(match, str(raised)), str(raised)
    else:
        assert raised is None or isinstance(raised, PeerFailed), repr(raised)


def check_order_of_a_channel(make: Make) -> None:
    def work(end: Transport) -> None:
        if end.rank == 0:
            tickets = [end.send(np.full(3, tag), 1, tag) for tag in range(50)]
            for ticket in tickets:
                ticket.wait()
                assert ticket.done()
        if end.rank == 1:
            for tag in range(50):
                assert received(end, np.zeros(3, int), 0, tag).tolist() == [tag] * 3

    with make(PATIENT) as cluster:
        cluster.run(work)


def check_types(make: Make) -> None:
    """Every dtype in every shape: 0-d, empty, small, large."""
    arrays = [values(shape, dtype) for dtype in DTYPES for shape in SHAPES]

    def work(end: Transport) -> None:
        for tag, array in enumerate(arrays):
            if end.rank == 0:
                end.send(array, 1, tag).wait()
            if end.rank == 1:
                np.testing.assert_array_equal(received(end, array, 0, tag), array, strict=True)

    with make(PATIENT) as cluster:
        cluster.run(work)


def check_non_contiguous_source(make: Make) -> None:
    column = np.arange(18.0).reshape(3, 3, 2)[:, 1, :]

    def work(end: Transport) -> None:
        if end.rank == 0:
            end.send(column, 1, 0).wait()
            end.send(column.T, 1, 1).wait()
        if end.rank == 1:
            assert received(end, column, 0, 0).tolist() == [[2, 3], [8, 9], [14, 15]]
            assert received(end, column.T, 0, 1).tolist() == [[2, 8, 14], [3, 9, 15]]

    with make(PATIENT) as cluster:
        cluster.run(work)


def check_tags_under_way_on_many_channels(make: Make) -> None:
    """Each channel is taken in its own order, whatever other channels hold."""

    def work(end: Transport) -> None:
        peers = [peer for peer in range(end.size) if peer != end.rank]
        tickets = [
            end.send(np.full(4, 100 * end.rank + tag), peer, tag)
            for peer in peers
            for tag in (7, 8)
        ]
        for peer in reversed(peers):
            for tag in (7, 8):
                got = received(end, np.zeros(4, int), peer, tag)
                assert got.tolist() == [100 * peer + tag] * 4
        for ticket in tickets:
            ticket.wait()

    with make(PATIENT) as cluster:
        cluster.run(work)


def check_both_send_first(make: Make) -> None:
    """Neighbours stand sending to each other, small and large, and none blocks."""

    def work(end: Transport) -> None:
        if end.rank > 1:
            return
        peer = 1 - end.rank
        for tag, shape in enumerate(SHAPES):
            ticket = end.send(values(shape, "float64", end.rank), peer, tag)
            want = values(shape, "float64", peer)
            np.testing.assert_array_equal(received(end, want, peer, tag), want)
            ticket.wait()

    with make(PATIENT) as cluster:
        cluster.run(work)


def check_sender_overwrites_after_wait(make: Make) -> None:
    def work(end: Transport) -> None:
        for tag, shape in enumerate([(50,), (1 << 19,)]):
            buffer = values(shape, "float32")
            if end.rank == 0:
                end.send(buffer, 1, tag).wait()
                buffer[:] = -1
            if end.rank == 1:
                time.sleep(0.05)  # late: a sender that did not wait would have overwritten by now
                np.testing.assert_array_equal(received(end, buffer, 0, tag), buffer)

    with make(PATIENT) as cluster:
        cluster.run(work)


def check_messages_that_travel_together(make: Make) -> None:
    """Among others, and the sender may overwrite all of them after its wait."""
    like = [values(shape, "float32") for shape in SHAPES]

    def work(end: Transport) -> None:
        for tag in range(0, 30, 10):
            start = tag if end.rank == 0 else 0
            alone, *others = (values(shape, "float32", start + i) for i, shape in enumerate(SHAPES))
            tags = tuple(range(tag + 1, tag + len(SHAPES)))
            if end.rank == 0:
                end.send(alone, 1, tag).wait()
                ticket = end.send_all(Parcel(others), 1, tags)
                ticket.wait()
                assert ticket.done()
                for array in others:
                    array[...] = -1
            if end.rank == 1:
                out = [np.zeros_like(array) for array in like]
                end.recv(out[0], 0, tag)
                end.recv_all(Parcel(out[1:]), 0, tags)
                for i, shape in enumerate(SHAPES):
                    np.testing.assert_array_equal(out[i], values(shape, "float32", tag + i))

    with make(PATIENT) as cluster:
        cluster.run(work)


def check_wrong_tag(make: Make) -> None:
    def work(end: Transport) -> None:
        if end.rank == 0:
            end.send(np.zeros(3), 1, 5)
        if end.rank == 1:
            end.recv(np.zeros(3), 0, 7)

    with make(PATIENT) as cluster:
        run_failing(cluster, work, 1, RunError, r"channel 0 -> 1: .* tag 5, but tag 7 is asked for")


def check_wrong_type(make: Make) -> None:
    """A transport that knows only the size of a message names that."""
    for out in (np.zeros((4, 3), "float32"), np.zeros((2, 3), "float64")):

        def work(end: Transport, out: np.ndarray = out) -> None:
            if end.rank == 0:
                end.send(np.zeros((2, 3), "float32"), 1, 7)
            if end.rank == 1:
                end.recv(out, 0, 7)

        wanted = re.escape(f"{out.dtype} {out.shape}")
        match = rf"channel 0 -> 1, tag 7: .* (float32 \(2, 3\)|24 bytes), .* is {wanted}"
        with make(PATIENT) as cluster:
            run_failing(cluster, work, 1, RunError, match)


def check_refusals(make: Make) -> None:
    """What a rank does wrong on its own is refused before anything is sent."""

    def work(end: Transport) -> None:
        peer = (end.rank + 1) % end.size
        with pytest.raises(RunError, match=rf"send: rank {end.rank} names itself"):
            end.send(np.zeros(3), end.rank, 0)
        with pytest.raises(RunError, match=rf"recv: rank {end.rank} names itself"):
            end.recv(np.zeros(3), end.rank, 0)
        with pytest.raises(RunError, match=rf"names rank {end.size}, but .* 0\.\.{end.size - 1}"):
            end.send(np.zeros(3), end.size, 0)
        with pytest.raises(DTypeError, match="complex128 is not carried; cast to one of bool"):
            end.send(np.zeros(3, complex), peer, 0)
        with pytest.raises(RunError, match=r"float64 \(2, 3\) is not C-contiguous"):
            end.recv(np.zeros((3, 2)).T, peer, 0)
        with pytest.raises(RunError, match=r"float32 \(3,\), but a float64 vector"):
            end.allreduce(np.zeros(3, "float32"))  # type: ignore[arg-type]

    with make(PATIENT) as cluster:
        cluster.run(work)


def check_allreduce(make: Make) -> None:
    """Sums are added in rank order, so they are the same bits on every rank and transport."""

    def work(end: Transport) -> None:
        of_rank = [np.random.default_rng(r).normal(size=5) * 10.0**r for r in range(end.size)]
        for _ in range(3):
            got = of_rank[end.rank].copy()
            end.allreduce(got)
            want = of_rank[0]
            for row in of_rank[1:]:
                want = want + row
            assert got.tobytes() == want.tobytes()

    with make(PATIENT) as cluster:
        cluster.run(work)


def blocks_of(kind: str, ranks: tuple[int, ...]) -> CollectiveLayout:
    """Ragged blocks: i gives j i + 2 j + 1 bytes, or i + 1 to all; the second rank is the root."""
    root = 1
    rows = []
    for i in range(len(ranks)):
        row = [
            i + 1 if kind in ("bcast", "allgather") else i + 2 * j + 1 for j in range(len(ranks))
        ]
        rows.append(
            [
                0
                if i == j
                or (kind in ("bcast", "scatter") and i != root)
                or (kind == "gather" and j != root)
                else size
                for j, size in enumerate(row)
            ]
        )
    return CollectiveLayout(kind, ranks, tuple(map(tuple, rows)))


def given_by(blocks: CollectiveLayout, i: int) -> np.ndarray:
    return values((blocks.given(i),), "uint8", 50 * i)


def check_collectives(make: Make) -> None:
    """Every kind among all ranks and among two, under way at once, arrives as given."""

    def work(end: Transport) -> None:
        groups = sorted({tuple(range(end.size)), (0, end.size - 1)})
        end.collectives.join([("", ranks) for ranks in groups])
        under_way = []
        for kind in ("bcast", "scatter", "gather", "allgather", "alltoall"):
            for ranks in (r for r in groups if end.rank in r):
                blocks = blocks_of(kind, ranks)
                me = ranks.index(end.rank)
                into = np.zeros(sum(blocks.column(me)), np.uint8)
                ticket = end.collectives.start(blocks, given_by(blocks, me), into)
                under_way.append((ticket, blocks, me, into))
        for ticket, blocks, me, into in under_way[::-1]:
            ticket.wait()
            assert ticket.done()
            want = [
                given_by(blocks, i)[blocks.to(i, me) :][:size]
                for i, size in enumerate(blocks.column(me))
            ]
            assert into.tobytes() == np.concatenate(want).tobytes()
        for ticket, *_ in under_way:
            deadline = time.monotonic() + PATIENT
            ticket.wait_for_return()
            while not ticket.returned():
                assert time.monotonic() < deadline

    with make(PATIENT) as cluster:
        cluster.run(work)
        cluster.run(work)


def check_exchange(make: Make) -> None:
    def work(end: Transport) -> None:
        got = end.exchange({"rank": end.rank, "digest": "é" * 5 * end.rank})
        assert got == [{"rank": r, "digest": "é" * 5 * r} for r in range(end.size)]
        assert end.exchange((end.rank, None)) == [[r, None] for r in range(end.size)]

    with make(PATIENT) as cluster:
        cluster.run(work)


def check_lent_arrays(make: Make) -> None:
    """Ranks that share memory read each other's own arrays, in the order in which they are lent."""

    def work(end: Transport) -> None:
        ranks = tuple(range(end.size))
        end.collectives.join([("", ranks)])
        if end.collectives.lend is None:
            return
        for number in range(3):
            mine = np.full(4, 10 * end.rank + number)
            ticket = end.collectives.lend(blocks_of("alltoall", ranks), {f"x{end.rank}": mine})
            ticket.wait()
            assert ticket.done()
            assert ticket.of(end.rank)[f"x{end.rank}"] is mine
            seen = [int(ticket.of(rank)[f"x{rank}"][0]) for rank in ranks]
            assert seen == [10 * rank + number for rank in ranks]

    with make(PATIENT) as cluster:
        cluster.run(work)


def gather_all(end: Transport) -> None:
    ranks = tuple(range(end.size))
    blocks = blocks_of("allgather", ranks)
    end.collectives.join([("", ranks)])
    into = np.zeros(sum(blocks.column(end.rank)), np.uint8)
    end.collectives.start(blocks, given_by(blocks, end.rank), into).wait()


# What a rank may be waiting in when another one fails.
WAITS: dict[str, Work] = {
    "recv": lambda end: end.recv(np.zeros(3), 1, 7),
    "ticket": lambda end: end.send(
        np.zeros(1 << 21), 1, 7
    ).wait(),  # 16 MB: no transport buffers it
    "allreduce": lambda end: end.allreduce(np.zeros(3)),
    "exchange": lambda end: end.exchange(None),
    "allgather": gather_all,
}


def check_exception_reaches_every_wait(make: Make) -> None:
    for wait in WAITS.values():

        def work(end: Transport, wait: Work = wait) -> None:
            end.waiting_for(f"step of rank {end.rank}")
            if end.rank == 1:
                raise ZeroDivisionError("division by zero")
            message = (
                rf"rank {end.rank} stopped while waiting for .* \(step of rank {end.rank}\): "
                "rank 1 failed at step of rank 1: ZeroDivisionError: division by zero"
            )
            for _ in range(2):  # the current wait, and the next
                with pytest.raises(PeerFailed, match=message):
                    wait(end)

        with make(PATIENT) as cluster:
            run_failing(cluster, work, 1, ZeroDivisionError, "division by zero")


def check_first_failure_wins(make: Make) -> None:
    """A rank that tells more than its exception says, and then raises, is heard once."""

    def work(end: Transport) -> None:
        if end.rank == 0:
            end.abort(Failure(0, "1F0 (step 12), node 'fc'", "out of cheese"))
            raise ValueError("an exception that says less")
        with pytest.raises(
            PeerFailed, match=r"rank 0 failed at 1F0 \(step 12\), node 'fc': out of"
        ):
            end.recv(np.zeros(3), 0, 7)

    with make(PATIENT) as cluster:
        run_failing(cluster, work, 0, ValueError, "says less")


def check_timeout(make: Make) -> None:
    heard = threading.Event()

    def work(end: Transport) -> None:
        if end.rank == 0:
            end.waiting_for("1F0.3")
            end.recv(np.zeros(3), 1, 7)
        if end.rank == 1:
            heard.wait(4)  # at work: it might still send, also if rank 0 is woken late

    message = r"rank 0 waited more than 0\.5 s for tag 7 from rank 1 \(1F0\.3\)"
    with make(0.5) as cluster:
        cluster.alarm(lambda failure: heard.set())
        run_failing(cluster, work, 0, TransportTimeout, message)


def check_runs_one_after_another(make: Make) -> None:
    def work(end: Transport) -> int:
        assert len(end.exchange(None)) == end.size
        return end.rank

    with make(PATIENT) as cluster:
        for _ in range(3):
            ranks = cluster.run(work)
            assert ranks == sorted(set(ranks) & set(range(cluster.size)))


def check_close(make: Make) -> None:
    ends: list[Transport] = []

    def work(end: Transport) -> None:
        ends.append(end)

    cluster = make(PATIENT)
    cluster.run(work)
    for end in ends:
        end.close()
        end.close()
        with pytest.raises(RunError, match=rf"send: rank {end.rank}'s endpoint is closed"):
            end.send(np.zeros(3), (end.rank + 1) % end.size, 0)
    cluster.close()
    cluster.close()
    with pytest.raises(RunError, match="cluster is closed"):
        cluster.run(work)


CHECKS: list[Callable[[Make], None]] = [
    check_order_of_a_channel,
    check_types,
    check_non_contiguous_source,
    check_tags_under_way_on_many_channels,
    check_both_send_first,
    check_sender_overwrites_after_wait,
    check_messages_that_travel_together,
    check_wrong_tag,
    check_wrong_type,
    check_refusals,
    check_allreduce,
    check_exchange,
    check_collectives,
    check_lent_arrays,
    check_exception_reaches_every_wait,
    check_first_failure_wins,
    check_timeout,
    check_runs_one_after_another,
    check_close,
]
