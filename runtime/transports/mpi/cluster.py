"""MPI processes as ranks: their cluster, and a context for code that calls MPI itself.

Only this file imports mpi4py, when a cluster is made.
"""

from __future__ import annotations

import atexit
import os
import platform
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from runtime.backends.device.processor import SharedCores, usable_cores
from runtime.transports.base import (
    GRACE_SECONDS,
    HEARTBEAT_SECONDS,
    TIMEOUT_SECONDS,
    Cluster,
    Doing,
    Failure,
    T,
    Transport,
    failure_of,
    launched_by_mpi,
    peer_failed,
)
from runtime.transports.mpi.collectives import Groups
from runtime.transports.mpi.endpoint import MpiTransport
from runtime.transports.mpi.guard import (
    CLOSED,
    CLOSING,
    FINALIZED,
    FINALIZING,
    RUNNING,
    STARTING,
    Guard,
    clear_segments,
    stand_guard,
)
from runtime.transports.mpi.lifeline import Lifeline
from runtime.transports.mpi.meeting import exchange_all
from runtime.transports.mpi.staging import Staging
from runtime.transports.mpi.waiter import Waiter, abandon
from symgraph.app.command_line import FAILED, exit_status, say
from symgraph.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__: list[str] = []

START_SECONDS = 60.0  # at least: the ranks of a busy machine start far apart
END_SECONDS = 60.0  # for leaving: what is left is to flush outputs and to free memory
SHARED = "/dev/shm"
# What MPICH 4 and 5 were seen to need there; with less, they end by signals 7, 11 or 15.
SHARED_BASE, SHARED_BYTES = 12 << 20, 6 << 20  # bytes: once, and for each rank of a host
UNCLOSED = "its process ended without closing its cluster"
ALL_CLOSED = "all ranks to come to the end of the run"


class _Process:
    """What the clusters of a process share."""

    #: Those that are open, the oldest first, as on every rank.
    open: dict[MpiCluster, None]
    #: Status of a failure, after which MPI_Finalize could wait for ever.
    failed = 0
    #: The failure of a rank that no call has raised.
    unsaid: Failure | None = None
    guard: Guard | None = None
    #: Seconds that MPI_Finalize may take: the longest single wait of any cluster.
    timeout = 0.0

    def __init__(self) -> None:
        self.open = {}

    def enter(self, phase: int, bound: float | None, **facts: object) -> None:
        """Tell the guard, if there is one, what begins."""
        if self.guard is not None:
            self.guard.tell(phase, bound, **facts)

    def note(self) -> None:
        """Note that a run has failed, as soon as this is heard."""
        for cluster in list(self.open):
            if cluster._lifeline.failure is not None:
                self.failed = cluster._lifeline.failure.status or FAILED


_process = _Process()


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

    def __init__(
        self, timeout: float = TIMEOUT_SECONDS, heartbeat: float = HEARTBEAT_SECONDS
    ) -> None:
        """Join all ranks.

        Args:
            timeout: Seconds a single wait may take.
            heartbeat: Seconds of silence after which a rank counts as lost.
        """
        patience = max(timeout, START_SECONDS)
        try:
            self._join(timeout, patience, heartbeat)
        except BaseException as error:  # the others may wait for this rank in MPI
            _process.failed = exit_status(error)
            raise
        self._closed = False
        self._raised = False  # whether the failure has been raised
        _process.timeout = max(_process.timeout, timeout)
        _process.open[self] = None
        self._lifeline.alarms.append(_process.note)
        _process.note()

    def _join(self, timeout: float, patience: float, heartbeat: float) -> None:
        mpi = _load_mpi(patience, heartbeat)
        _process.enter(STARTING, patience)
        world = mpi.COMM_WORLD
        self.rank, self.size, self.timeout = world.rank, world.size, timeout
        waiter = Waiter(mpi, self.rank, patience)
        self._comm, request = world.Idup()
        waiter.until(request.Test, "all ranks to start")
        exchange = partial(exchange_all, self._comm, waiter)
        guard = _process.guard
        places = exchange([platform.node(), usable_cores()])
        self._lifeline = Lifeline.open(self.rank, self.size, exchange, patience, guard)
        clear_segments()
        _process.enter(RUNNING, None, rank=self.rank, heartbeat=heartbeat)
        if guard is not None:
            guard.outlive()
        cores = [mine for host, mine in places if host == platform.node()]
        ours = len(set().union(*cores))
        own_core, self.cores = len(cores) <= ours, max(1, ours // len(cores))
        self._shared = SharedCores(self.cores)
        self._waiter = Waiter(mpi, self.rank, timeout, self._lifeline, own_core=own_core)
        self._mpi = mpi
        self._sent: deque[tuple[MPI.Request, Any]] = deque()  # by contexts
        self._groups: Groups = {}
        self._staging = Staging(mpi.__file__, os.environ)

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
            with self._shared.limit():
                result = work(endpoint)
            endpoint.close()
            status.inside = False
            if self._lifeline.failure is not None:
                abandon(endpoint)
        except BaseException as error:
            self._raised = True
            self._lifeline.abort(failure_of(self.rank, self._waiter.what, error))
            endpoint.close()
            abandon(endpoint)
            _process.enter(RUNNING, None)  # it has noticed
            raise
        return [result]

    def close(self) -> None:
        """See `Cluster.close`; waits up to `timeout` seconds until every rank has said goodbye."""
        while self._sent and not self._closed and self._lifeline.failure is None:
            self._waiter.until(self._sent[0][0].Test, "its messages to leave")
            self._sent.popleft()
        self._close(self.timeout)

    def complete(self) -> None:
        """See `Cluster.complete`."""
        self.close()
        failure = self._lifeline.failure
        if failure is not None:
            self._raised, _process.unsaid = True, None
            raise peer_failed(self.rank, failure, ALL_CLOSED, "")

    def leave(self, status: int, why: str = "") -> NoReturn:
        """End this process with `status`, without MPI_Finalize, which may hang after a failure.

        Stays alive up to `GRACE_SECONDS`, until every rank has heard of the failure and leaves as
        well. `MPI_Abort` would end the others before they can report what happened.
        """
        _ignore_interrupts()
        _process.enter(CLOSING, END_SECONDS)
        if status:
            _process.failed = status
            why = why or f"it left with status {status}"
            self._lifeline.abort(Failure(self.rank, "", why, status))
        _flush()
        self._close(GRACE_SECONDS)
        os._exit(status)

    def _endpoint(self) -> MpiTransport:
        return MpiTransport(
            self._mpi, self._comm, self._waiter, self._lifeline, self._groups, self._staging
        )

    def _close(self, timeout: float) -> None:
        if self._closed:
            return
        self._closed = True
        if not _process.failed:
            _process.enter(CLOSING, timeout + END_SECONDS)
        self._lifeline.close(timeout)
        _process.open.pop(self, None)
        if self._lifeline.failure is None:
            for comm in filter(None, (*self._groups.values(), self._comm)):
                comm.Free()
            _process.enter(CLOSED, None)
            return
        abandon((self._comm, self._groups, self._sent))
        if not self._raised:
            _process.unsaid = self._lifeline.failure


def open_cluster() -> MpiCluster | None:
    """Return this process's oldest open cluster, the same on every rank; None if none is open."""
    return next(iter(_process.open), None)


def _load_mpi(patience: float, heartbeat: float) -> Any:
    """Initialise MPI, once, behind a guard; return mpi4py's MPI module."""
    if "mpi4py.MPI" not in sys.modules:
        if launched_by_mpi(os.environ):
            _require_shared_memory(os.environ)
            try:
                _process.guard = stand_guard(patience, heartbeat)
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


def _require_shared_memory(environment: Mapping[str, str]) -> None:
    """Raise RunError if MPICH's segments do not fit into /dev/shm: it would die of a bus error.

    All ranks of a host come to the same result, also if others have made their segment already:
    the first one says it, the others end.
    """
    ranks = int(environment.get("MPI_LOCALNRANKS", "0"))
    needed = SHARED_BASE + SHARED_BYTES * ranks
    with suppress(FileNotFoundError):
        found = os.statvfs(SHARED)
        total, free = (blocks * found.f_frsize for blocks in (found.f_blocks, found.f_bavail))
        if not ranks or (total >= needed and free >= SHARED_BASE + SHARED_BYTES):
            return
        if environment.get("MPI_LOCALRANKID") != "0":
            raise SystemExit(FAILED)
        raise RunError(
            f"{SHARED} has {free >> 20} of {total >> 20} MiB left, but MPI needs {needed >> 20} "
            f"for {ranks} ranks: remove old files in it, or make it larger (docker run --shm-size)"
        )


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on: this process is leaving, in a bounded time."""
    with suppress(ValueError):  # another thread than the main one
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()


def _at_exit() -> None:
    """Finalise MPI; after a failure, which could make that hang, exit with the failure's status.

    A rank whose own work succeeded hears of the failure here. If it exited without the status,
    mpiexec would kill the rest.
    """
    _ignore_interrupts()
    for cluster in list(_process.open):
        cluster._raised = True  # or it would not be open
        cluster._lifeline.abort(Failure(cluster.rank, "", UNCLOSED))
        cluster._close(GRACE_SECONDS)
    MPI = sys.modules["mpi4py.MPI"]
    if not MPI.Is_initialized() or MPI.Is_finalized():
        return
    if _process.failed:
        if _process.unsaid is not None:
            rank = MPI.COMM_WORLD.rank
            say(f"error: {peer_failed(rank, _process.unsaid, ALL_CLOSED, '')}")
        _flush()
        os._exit(_process.failed)
    _process.enter(FINALIZING, max(_process.timeout, END_SECONDS))
    MPI.Finalize()
    _process.enter(FINALIZED, END_SECONDS)
