"""Program that the MPI tests start on every rank."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from runtime.transports import Transport, make_cluster
from runtime.transports.mpi.cluster import MpiCluster
from symgraph.core.errors import ConfigError
from tests.contracts.stalls import STALLS
from tests.contracts.transport import CHECKS, PATIENT


def say(text: str) -> None:
    """One line in one write, so that lines of several ranks do not mix."""
    os.write(1, f"{text}\n".encode())


def contract() -> None:
    for check in (*CHECKS, *STALLS):
        check(MpiCluster)
    from mpi4py import MPI

    # The clusters that failed on purpose keep the package from doing this.
    MPI.Finalize()
    say("contract kept")


def trained() -> None:
    """A run that goes well, and then ends as programs do."""
    with MpiCluster(PATIENT) as cluster:
        total = np.ones(1)
        cluster.run(lambda end: end.allreduce(total))
    say(f"sum {total[0]:g}")


class Named:
    """A communicator that requires its receives to name their source; counts them."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.received = comm, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def Irecv(self, buffer: Any, source: int, tag: int) -> Any:
        return self._named(source, self.comm.Irecv(buffer, source, tag))

    def Improbe(self, source: int, tag: int, status: Any) -> Any:
        return self._named(source, self.comm.Improbe(source, tag, status))

    def _named(self, source: int, result: Any) -> Any:
        assert source in range(self.comm.size), source
        self.received += 1
        return result


def named() -> None:
    """Small and large messages in a ring: receives that could take anybody's would do as well."""

    def work(end: Any) -> None:
        end._comm = comm = Named(end._comm)
        before, after = (end.rank - 1) % end.size, (end.rank + 1) % end.size
        for tag, size in enumerate((1, 1 << 16)):
            ticket = end.send(np.full(size, end.rank), after, tag)
            out = np.empty(size, np.int64)
            end.recv(out, before, tag)
            assert (out == before).all()
            ticket.wait()
        assert comm.received >= 2
        say("all sources named")

    with MpiCluster(PATIENT) as cluster:
        cluster.run(work)


def wrong_size() -> None:
    try:
        make_cluster("mpi", 5, PATIENT)
    except ConfigError as error:
        say(str(error))
        sys.exit(2)


def failing(fail: Callable[[], Any], rank: int) -> None:
    """A run in which one rank fails while all others wait, handled as the command line does."""
    cluster = MpiCluster(PATIENT)

    def work(end: Transport) -> None:
        end.waiting_for(f"R{end.rank}.3")
        if end.rank == rank:
            for other in {*range(end.size)} - {rank}:
                end.recv(np.zeros(1), other, 0)  # it has come to its last wait
            fail()
        else:
            end.send(np.zeros(1), rank, 0)
        end.recv(np.zeros(3), (end.rank + 1) % end.size, 7)

    try:
        cluster.run(work)
    except Exception as error:
        say(f"{type(error).__name__}: {error}")
        cluster.leave(1)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_guard() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(2.5)  # at work, until it has heard of it


def divide() -> None:
    _ = 1 / 0


def uncaught() -> None:
    """No handling at all: the traceback ends the program, with the cluster open."""
    cluster = MpiCluster(PATIENT)
    cluster.run(lambda end: divide() if end.rank == 1 else end.exchange(None))


def unclosed() -> None:
    """Rank 1 ends well, but without closing its cluster, while the others still wait for it."""
    cluster = MpiCluster(PATIENT)
    if cluster.rank != 1:
        try:
            cluster.run(lambda end: end.recv(np.zeros(3), 1, 7))
        except Exception as error:
            say(str(error))
            cluster.leave(1)


def stay(busy: bool) -> None:
    """Ranks that would stay for ever, at work or waiting for one that is; they say who they are."""

    def work(end: Transport) -> None:
        end.exchange(None)
        say(f"process {os.getpid()}")
        while busy or end.rank == 0:
            time.sleep(0.1)
        end.recv(np.zeros(3), (end.rank + 1) % end.size, 7)

    MpiCluster(PATIENT).run(work)


CASES: dict[str, Callable[[], None]] = {
    "contract": contract,
    "trained": trained,
    "named": named,
    "wrong-size": wrong_size,
    "kill-rank-1": lambda: failing(kill, 1),
    "kill-rank-0": lambda: failing(kill, 0),
    "kill-guard-1": lambda: failing(kill_guard, 1),
    "raise": lambda: failing(divide, 1),
    "uncaught": uncaught,
    "unclosed": unclosed,
    "wait": lambda: stay(busy=False),
    "work": lambda: stay(busy=True),
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
