"""The fake cluster keeps the contract of transports; with it, every hang is found and no other."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
import pytest

from runtime.transports import Failure, Transport
from symgraph.core.errors import PeerFailed
from tests.contracts.stalls import (
    STALLS,
    check_ended_rank,
    check_late_rank,
    check_message_of_an_ended_rank,
)
from tests.contracts.transport import (
    CHECKS,
    WAITS,
    check_exception_reaches_every_wait,
    check_timeout,
    received,
)
from tests.fakes.fake_cluster import FakeCluster

CAPACITIES = [0, 1, 2, None]


def kept(capacity: int | None) -> list[Any]:
    """The checks that hold: no wait times out, and a buffered message's ticket never waits."""
    sends = [check_exception_reaches_every_wait, check_ended_rank]
    slow = [check_late_rank, check_message_of_an_ended_rank]  # and no other with other capacities
    broken = [check_timeout, *([] if capacity == 0 else [*sends, *slow])]
    return [check for check in (*CHECKS, *STALLS) if check not in broken]


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("capacity", "check"),
    [(capacity, check) for capacity in CAPACITIES for check in kept(capacity)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_it_keeps_the_contract(check, capacity):
    check(lambda timeout: FakeCluster(3, capacity, seed=1))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_tickets_are_done_while_the_channel_has_room(capacity):
    """Five messages are sent, then one after another is received."""
    found: list[list[bool]] = []

    def work(end: Transport) -> None:
        if end.rank == 1:
            for tag in range(5):
                end.exchange(None)
                assert received(end, np.zeros(1, int), 0, tag)[0] == tag
                end.exchange(None)
            return
        tickets = [end.send(np.array([tag]), 1, tag) for tag in range(5)]
        for _ in range(5):
            found.append([ticket.done() for ticket in tickets])
            end.exchange(None)
            end.exchange(None)
        assert all(ticket.done() for ticket in tickets)

    with FakeCluster(2, capacity, seed=0) as cluster:
        cluster.run(work)
    room = 5 if capacity is None else capacity
    assert found == [[tag < taken + room for tag in range(5)] for taken in range(5)]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_message_that_is_not_buffered_is_the_senders_array_itself(capacity):
    """Whoever overwrites it before its ticket is done is found out."""
    got: list[int] = []

    def work(end: Transport) -> None:
        if end.rank == 0:
            arrays = [np.array([tag]) for tag in range(4)]
            for tag, array in enumerate(arrays):
                end.send(array, 1, tag)
            for array in arrays:
                array[:] = -1
            end.exchange(None)
        else:
            end.exchange(None)
            got.extend(int(received(end, np.zeros(1, int), 0, tag)[0]) for tag in range(4))

    with FakeCluster(2, capacity, seed=0) as cluster:
        cluster.run(work)
    room = 4 if capacity is None else capacity
    assert got == [tag if tag < room else -1 for tag in range(4)]


def test_delays_are_of_the_seed_and_the_rank(monkeypatch):
    slept: dict[str, list[float]] = {}

    def sleep(seconds: float) -> None:
        slept.setdefault(threading.current_thread().name, []).append(seconds)

    monkeypatch.setattr(time, "sleep", sleep)

    def delays(seed: int) -> list[list[float]]:
        slept.clear()
        with FakeCluster(2, 0, seed, delay=0.5) as cluster:
            cluster.run(lambda end: [end.exchange(None) for _ in range(20)])
        return [slept[name] for name in sorted(slept)]

    first, again, other = delays(1), delays(1), delays(2)
    assert first == again
    for several in (first, other):
        assert len(several) == 2
        assert len({*several[0], *several[1]}) == 80
        assert all(0.005 < seconds <= 0.5 for rank in several for seconds in rank)
    assert not {*first[0]} & {*other[0]}


# -- hangs ---------------------------------------------------------------------------------------


HUNG = "ranks that wait for ever"


def hears_of_it(cluster: FakeCluster, work: Any) -> dict[int, PeerFailed]:
    """Run work that hangs; what each rank that waited has heard."""
    heard: dict[int, PeerFailed] = {}

    def noted(end: Transport) -> None:
        try:
            work(end)
        except PeerFailed as error:
            heard[end.rank] = error
            raise

    with cluster, pytest.raises(PeerFailed, match=HUNG):
        cluster.run(noted)
    return heard


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_ranks_that_receive_from_each_other_hang_and_say_where(capacity):
    def work(end: Transport) -> None:
        if end.rank < 2:
            end.waiting_for(f"R{end.rank}.0")
            end.recv(np.zeros(3), 1 - end.rank, 7)

    heard = hears_of_it(FakeCluster(3, capacity, seed=0), work)
    assert str(heard[0]) == (
        "rank 0 stopped while waiting for tag 7 from rank 1 (R0.0): ranks that wait for ever:\n"
        "  rank 0 waits for tag 7 from rank 1 (R0.0)\n"
        "  rank 1 waits for tag 7 from rank 0 (R1.0)"
    )
    assert sorted(heard) == [0, 1]


@pytest.mark.parametrize("messages", [1, 2, 3, 4])
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_crossed_sends_hang_where_channels_have_no_room(capacity, messages):
    """Both ranks send and wait for their tickets, and only then receive."""

    def work(end: Transport) -> None:
        tickets = [end.send(np.array([tag]), 1 - end.rank, tag) for tag in range(messages)]
        for ticket in tickets:
            ticket.wait()
        for tag in range(messages):
            assert received(end, np.zeros(1, int), 1 - end.rank, tag)[0] == tag

    if capacity is None or messages <= capacity:
        with FakeCluster(2, capacity, seed=0) as cluster:
            cluster.run(work)
    else:
        heard = hears_of_it(FakeCluster(2, capacity, seed=0), work)
        assert sorted(heard) == [0, 1]
        assert f"rank 0 waits for rank 1 to take tag {capacity}" in str(heard[0])


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_rank_that_waits_for_one_at_its_end_hangs(wait):
    cluster = FakeCluster(2, 0, seed=0)
    heard = hears_of_it(cluster, lambda end: wait(end) if end.rank == 0 else None)
    assert list(heard) == [0]


def test_an_error_is_no_hang():
    """The others may all wait when a rank fails; what they hear of is the failure."""
    heard: list[PeerFailed] = []

    def work(end: Transport) -> None:
        if end.rank == 0:
            time.sleep(0.02)  # until the others wait
            raise ZeroDivisionError
        try:
            end.recv(np.zeros(3), 0, 7)
        except PeerFailed as error:
            heard.append(error)
            raise

    with FakeCluster(3, 0, seed=0) as cluster, pytest.raises(ZeroDivisionError):
        cluster.run(work)
    assert len(heard) == 2
    assert all("rank 0 failed: ZeroDivisionError" in str(error) for error in heard)


def test_an_abort_is_no_hang():
    def work(end: Transport) -> None:
        if end.rank == 0:
            end.abort(Failure(0, "", "gave up"))
        else:
            end.recv(np.zeros(3), 0, 7)

    with (
        FakeCluster(2, 0, seed=0) as cluster,
        pytest.raises(PeerFailed, match="rank 0 failed: gave up"),
    ):
        cluster.run(work)


def test_it_is_usable_after_a_hang():
    def hangs(end: Transport) -> None:
        end.send(np.full(3, -1.0), 1 - end.rank, 7).wait()

    def works(end: Transport) -> float:
        ticket = end.send(np.full(3, float(end.rank)), 1 - end.rank, 7)
        got = received(end, np.zeros(3), 1 - end.rank, 7)
        ticket.wait()
        return got[0]

    with FakeCluster(2, 0, seed=0) as cluster:
        for _ in range(3):
            with pytest.raises(PeerFailed, match=HUNG):
                cluster.run(hangs)
            assert cluster.run(works) == [1.0, 0.0]


@pytest.mark.parametrize("seed", range(40))
def test_it_hangs_if_and_only_if_a_message_is_missing(seed):
    """Random messages, received as they are sent; of odd seeds, a channel's last is not sent."""
    rng = random.Random(seed)
    ranks = rng.randint(2, 4)
    pairs = [tuple(rng.sample(range(ranks), 2)) for _ in range(30)]
    last = {pair: tag for tag, pair in enumerate(pairs)}
    missing = rng.choice(sorted(last.values())) if seed % 2 else None

    def work(end: Transport) -> None:
        tickets = []
        for tag, (src, dst) in enumerate(pairs):
            if src == end.rank and tag != missing:
                tickets.append(end.send(np.array([tag]), dst, tag))
            if dst == end.rank:
                assert received(end, np.zeros(1, int), src, tag)[0] == tag
        for ticket in tickets:
            ticket.wait()

    cluster = FakeCluster(ranks, rng.choice(CAPACITIES), seed)
    if missing is None:
        with cluster:
            cluster.run(work)
    else:
        src, dst = pairs[missing]
        heard = hears_of_it(cluster, work)
        assert f"rank {dst} waits for tag {missing} from rank {src}" in str(heard[dst])
