"""Contract of transports, stalls: waits that never end are errors at once, and no others are."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import numpy as np
import pytest

from runtime.transports import Cluster, Transport
from symgraph.core.errors import PeerFailed, RunError
from tests.contracts.transport import PATIENT, WAITS, Make, Work, received

SOON = PATIENT / 3  # seconds in which a stall is found, on a busy machine too
LATE = 1.2  # seconds in which one would have been found


def stall_of(cluster: Cluster, work: Work) -> str:
    """What each local rank that waits for ever hears; some ranks may end well."""
    begin = time.monotonic()
    try:
        cluster.run(work)
    except PeerFailed as error:
        assert time.monotonic() - begin < SOON
        return str(error)
    return ""


def check_ended_rank(make: Make) -> None:
    """Whoever waits for a rank whose work has ended hears so at once, and both are named."""
    for name, wait in WAITS.items():
        waiting = (0,) if name in ("recv", "ticket") else (0, 2)

        def work(end: Transport, wait: Work = wait, waiting: tuple[int, ...] = waiting) -> None:
            if end.rank in waiting:
                end.waiting_for("1F0.3")
                wait(end)

        with make(PATIENT) as cluster:
            text = stall_of(cluster, work)
            if {*waiting} & {*cluster.ranks}:
                assert re.search("^rank . stopped .*: ranks that wait for ever:$", text, re.M), text
                assert re.search(r"^  rank \d waits for .*\(1F0\.3\)$", text, re.M), text
                assert re.search("^  rank 1 has ended$", text, re.M), text


def check_ranks_that_wait_for_each_other(make: Make) -> None:
    """A ring of ranks, each of which receives before it sends."""

    def work(end: Transport) -> None:
        end.waiting_for(f"step of rank {end.rank}")
        end.recv(np.zeros(3), (end.rank + 1) % end.size, 7)

    with make(PATIENT) as cluster:
        text = stall_of(cluster, work)
        for rank in range(cluster.size):
            peer = (rank + 1) % cluster.size
            assert f"\n  rank {rank} waits for tag 7 from rank {peer} (step of rank {rank})" in text


def check_message_of_an_ended_rank(make: Make) -> None:
    """What was sent before its sender's end is received, however late: that is no stall."""

    def work(end: Transport) -> None:
        if end.rank == 1:
            end.send(np.full(3, 4.0), 0, 7)
        if end.rank == 0:
            time.sleep(LATE)
            assert received(end, np.zeros(3), 1, 7).tolist() == [4.0] * 3

    with make(PATIENT) as cluster:
        cluster.run(work)


def check_late_rank(make: Make) -> None:
    """Who waits for a rank that is at work, or that waits for such a one, is not stalled."""

    def work(end: Transport) -> None:
        if end.rank == 0:
            time.sleep(LATE)
        else:
            end.recv(np.zeros(3), end.rank - 1, 7)
        if end.rank + 1 < end.size:
            end.send(np.zeros(3), end.rank + 1, 7).wait()
        end.allreduce(np.ones(1))

    with make(PATIENT) as cluster:
        cluster.run(work)


def check_different_collectives(make: Make) -> None:
    def work(end: Transport) -> None:
        message = "rank 1 has come to exchange, but rank 0 to allreduce: all ranks make the same"
        with pytest.raises(RunError, match=message):
            end.exchange(None) if end.rank == 1 else end.allreduce(np.zeros(3))
        with pytest.raises(RunError, match=r"vectors of ranks 0\.\.\d have 1, 2"):
            end.allreduce(np.zeros(end.rank + 1))

    with make(PATIENT) as cluster:
        cluster.run(work)


STALLS: list[Callable[[Make], None]] = [
    check_ended_rank,
    check_ranks_that_wait_for_each_other,
    check_message_of_an_ended_rank,
    check_late_rank,
    check_different_collectives,
]
