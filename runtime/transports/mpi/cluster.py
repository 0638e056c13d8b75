"""MPI processes as ranks: the cluster they form, and lines for programs that call MPI themselves.

Only this file knows mpi4py, and loads it when a cluster is made.
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
    """What code needs that calls MPI itself.

    The module, a communicator, bounded waits, the places of the communicator's ranks in the
    cluster, a name for these that is the same on all of them, and the messages of all lines that
    are under way, with their buffers.
    """

    mpi: Any
    comm: MPI.Comm
    waiter: Waiter
    ranks: tuple[int, ...]
    name: str
    sent: deque[tuple[MPI.Request, Any]]


def context_of(comm: MPI.Comm, timeout: float = TIMEOUT_SECONDS) -> MpiContext:
    """A line over a communicator of the caller's, who sees to it that failures end all ranks."""
    mpi = sys.modules["mpi4py.MPI"]
    waiter = Waiter(mpi, comm.rank, timeout)
    return MpiContext(mpi, comm, waiter, tuple(range(comm.size)), "line", deque())


class MpiCluster(Cluster):
    """All processes that `mpiexec` started; `run` works in the calling thread of each.

    Make it early, on every process alike: if MPI is not running yet, the process forks and its
    parent becomes a guard (see `guard.py`), so no other threads may run. After a failure the
    cluster is of no more use, and `leave` ends the process.
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
        self._sent: deque[tuple[MPI.Request, Any]] = deque()  # by lines
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

    def run(self, work: Callable[[Transport], T]) -> list[T]:
        """See `Cluster.run`; the result of this process's rank alone."""
        if self._closed:
            raise RunError("run: this MPI cluster is closed; make a new one")
        stand = self._waiter.stand
        self._waiter.what = ""
        stand.runs += 1
        stand.inside = True
        endpoint = self._endpoint()
        try:
            result = work(endpoint)
            endpoint.close()
            stand.inside = False
        except BaseException as error:
            self._lifeline.abort(failure_of(self.rank, self._waiter.what, error))
            endpoint.close()
            abandon(endpoint)
            raise
        return [result]

    def close(self) -> None:
        """See `Cluster.close`; waits, at most `timeout`, until every rank has said goodbye."""
        while self._sent and not self._closed and self._lifeline.failure is None:
            self._waiter.until(self._sent[0][0].Test, "its messages to leave")
            self._sent.popleft()
        self._close(self.timeout)

    def leave(self, status: int) -> NoReturn:
        """End this process with `status`, without MPI_Finalize, which may hang after a failure.

        Stays up to `GRACE_SECONDS`, until every rank has heard of the failure and leaves as well.
        `MPI_Abort` would end the others before they can say what happened.
        """
        if status:
            self._lifeline.abort(Failure(self.rank, "", f"it left with status {status}", status))
        _flush()
        self._close(GRACE_SECONDS)
        os._exit(status)

    def _endpoint(self) -> MpiTransport:
        """A run's."""
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
    """Initialise MPI, once, behind a guard; returns mpi4py's MPI module."""
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
    """Finalise MPI; after a failure, which would make that hang, end with its status, as all do.

    A rank whose own work went well hears of it here. Without a status, mpiexec would kill the rest.
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
