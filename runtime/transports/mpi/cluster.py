"""MPI processes as ranks: their cluster, and a context for code that calls MPI itself.

Only this file imports mpi4py, when a cluster is made.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from runtime.transports.base import (
    GRACE_SECONDS,
    TIMEOUT_SECONDS,
    Cluster,
    Doing,
    Failure,
    T,
    Transport,
    failure_of,
    launched_by_mpi,
)
from runtime.transports.mpi.collectives import Groups
from runtime.transports.mpi.endpoint import MpiTransport
from runtime.transports.mpi.guard import stand_guard
from runtime.transports.mpi.lifeline import Lifeline
from runtime.transports.mpi.meeting import exchange_all
from runtime.transports.mpi.staging import Staging
from runtime.transports.mpi.waiter import Waiter, abandon
from symgraph.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__: list[str] = []

START_SECONDS = 60.0  # at least: the ranks of a busy machine start far apart
UNCLOSED = "its process ended without closing its cluster"

_open_clusters: set[MpiCluster] = set()
_failed = 0  # status of a cluster's failure, after which MPI_Finalize could wait for ever
_guard: int | None = None  # process id of this process's guard


class MpiContext(NamedTuple):
    """What code that calls MPI itself needs."""

    #: The module mpi4py.MPI.
    mpi: Any
    comm: MPI.Comm
    #: Bounded waits.
    waiter: Waiter
    #: The places of the communicator's ranks in the cluster.
    ranks: tuple[int, ...]
    #: A name of the communicator, the same on all of its ranks.
    name: str
    #: Messages in transit of all contexts of a cluster, with their buffers.
    sent: deque[tuple[MPI.Request, Any]]


def context_of(comm: MPI.Comm, timeout: float = TIMEOUT_SECONDS) -> MpiContext:
    """Return a context for the caller's communicator; the caller makes failures end all ranks."""
    mpi = sys.modules["mpi4py.MPI"]
    waiter = Waiter(mpi, comm.rank, timeout)
    return MpiContext(mpi, comm, waiter, tuple(range(comm.size)), "line", deque())


class MpiCluster(Cluster):
    """All processes that `mpiexec` started; `run` works in the calling thread of each.

    Make it early, and on every process: if MPI is not running yet, the process forks and its parent
    becomes a guard (see `guard.py`), so no other threads may run. After a failure the cluster
    cannot be used any more, and `leave` ends the process.
    """

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        """Join all ranks; `timeout`: seconds a single wait may take."""
        mpi = _load_mpi()
        world = mpi.COMM_WORLD
        self.rank, self.size, self.timeout = world.rank, world.size, timeout
        patience = max(timeout, START_SECONDS)
        waiter = Waiter(mpi, self.rank, patience)
        self._comm, request = world.Idup()
        waiter.until(request.Test, "all ranks to start")
        exchange = partial(exchange_all, self._comm, waiter)
        self._lifeline = Lifeline.open(self.rank, self.size, exchange, patience, _guard)
        self._waiter = Waiter(mpi, self.rank, timeout, self._lifeline)
        self._mpi = mpi
        self._sent: deque[tuple[MPI.Request, Any]] = deque()  # by contexts
        self._groups: Groups = {}
        self._staging = Staging(mpi.__file__, os.environ)
        self._closed = False
        _open_clusters.add(self)

    @property
    def ranks(self) -> tuple[int]:
        """See `Cluster.ranks`."""
        return (self.rank,)

    def context(self) -> MpiContext:
        """For programs that call MPI themselves, beside or instead of `run`."""
        ranks = tuple(range(self.size))
        return MpiContext(self._mpi, self._comm, self._waiter, ranks, "world", self._sent)

    def abort(self, failure: Failure) -> None:
        """See `Transport.abort`."""
        self._lifeline.abort(failure)

    def alarm(self, call: Callable[[Failure], None]) -> None:
        """See `Cluster.alarm`."""

        def heard() -> None:
            failure = self._lifeline.failure
            assert failure is not None
            call(failure)

        self._lifeline.alarms.append(heard)

    def doing(self, rank: int) -> Doing:
        """See `Cluster.doing`."""
        return self._waiter.doing()

    def run(self, work: Callable[[Transport], T]) -> list[T]:
        """See `Cluster.run`; the result of this process's rank alone."""
        if self._closed:
            raise RunError("run: this MPI cluster is closed; make a new one")
        status = self._waiter.status
        self._waiter.what = ""
        status.runs += 1
        status.inside = True
        endpoint = self._endpoint()
        try:
            result = work(endpoint)
            endpoint.close()
            status.inside = False
        except BaseException as error:
            self._lifeline.abort(failure_of(self.rank, self._waiter.what, error))
            endpoint.close()
            abandon(endpoint)
            raise
        return [result]

    def close(self) -> None:
        """See `Cluster.close`; waits up to `timeout` seconds until every rank has said goodbye."""
        while self._sent and not self._closed and self._lifeline.failure is None:
            self._waiter.until(self._sent[0][0].Test, "its messages to leave")
            self._sent.popleft()
        self._close(self.timeout)

    def leave(self, status: int) -> NoReturn:
        """End this process with `status`, without MPI_Finalize, which may hang after a failure.

        Stays alive up to `GRACE_SECONDS`, until every rank has heard of the failure and leaves as
        well. `MPI_Abort` would end the others before they can report what happened.
        """
        if status:
            self._lifeline.abort(Failure(self.rank, "", f"it left with status {status}", status))
        _flush()
        self._close(GRACE_SECONDS)
        os._exit(status)

    def _endpoint(self) -> MpiTransport:
        return MpiTransport(
            self._mpi, self._comm, self._waiter, self._lifeline, self._groups, self._staging
        )

    def _close(self, timeout: float) -> None:
        global _failed
        if self._closed:
            return
        self._closed = True
        _open_clusters.discard(self)
        self._lifeline.close(timeout)
        if self._lifeline.failure is not None:
            _failed = self._lifeline.failure.status
        else:
            for comm in filter(None, (*self._groups.values(), self._comm)):
                comm.Free()


def _load_mpi() -> Any:
    """Initialise MPI, once, behind a guard; return mpi4py's MPI module."""
    global _guard
    if "mpi4py.MPI" not in sys.modules:
        if launched_by_mpi(os.environ):
            try:
                _guard = stand_guard()
            except RuntimeError as error:
                raise RunError(f"make the MPI cluster before starting threads: {error}") from None
        try:
            import mpi4py

            mpi4py.rc.finalize = False  # _at_exit decides
            from mpi4py import MPI  # noqa: F401  (initialises MPI)
        except (ImportError, RuntimeError) as error:
            raise ConfigError(
                f"transport 'mpi' needs mpi4py and an MPI library ({error}): "
                "pip install 'symgraph[mpi]', or use transport 'threads'"
            ) from error
        atexit.register(_at_exit)
    return sys.modules["mpi4py.MPI"]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()


def _at_exit() -> None:
    """Finalise MPI; after a failure, which could make that hang, exit with the failure's status.

    A rank whose own work succeeded hears of the failure here. If it exited without the status,
    mpiexec would kill the rest.
    """
    for cluster in list(_open_clusters):
        cluster._lifeline.abort(Failure(cluster.rank, "", UNCLOSED))
        cluster._close(GRACE_SECONDS)
    MPI = sys.modules["mpi4py.MPI"]
    if not MPI.Is_initialized() or MPI.Is_finalized():
        return
    if _failed:
        _flush()
        os._exit(_failed)
    MPI.Finalize()
