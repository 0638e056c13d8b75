"""MPI processes as ranks: one endpoint over non-blocking messages, and the cluster it belongs to.

Only this file knows mpi4py, and loads it when a cluster is made. Arrays travel as raw bytes (MPI
has no float16, and no array is pickled). Every wait is a poll that backs off into short sleeps, so
that there may be more ranks than cores, and looks at the lifeline, so that it ends when a peer
fails. A receiver first matches the head of its channel, whatever its tag (`Improbe`), then checks
tag and size, then takes the bytes: channels are queues here as on every other transport, and a
message that does not fit is an error instead of a truncation or a hang.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from runtime.transports.base import (
    GRACE_SECONDS,
    TIMEOUT_SECONDS,
    Cluster,
    Failure,
    T,
    Ticket,
    Transport,
    check_recv,
    check_reduced,
    check_send,
    failure_of,
    launched_by_mpi,
    message_from,
    peer_failed,
    taken_by,
    timed_out,
    type_text,
    wrong_tag,
    wrong_type,
)
from runtime.transports.guard import stand_guard
from runtime.transports.lifeline import Lifeline
from runtime.transports.mpi_collectives import Groups, MpiCollectives
from symgraph.errors import ConfigError, RunError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__: list[str] = []

# Seconds of polling before others are let run, and before the first sleep; then sleeps grow.
ALONE_SECONDS, SPIN_SECONDS, FIRST_SLEEP, LAST_SLEEP = 20e-6, 200e-6, 50e-6, 1e-3
BYTE_SECONDS = 1e-9  # polling is what moves a large message: nobody sleeps while one is under way

START_SECONDS = 60.0  # at least: the ranks of a busy machine start far apart
UNCLOSED = "its process ended without closing its cluster"

_open_clusters: set[MpiCluster] = set()
_failed = False  # a cluster of this process has failed: MPI_Finalize could wait for ever
_guard: int | None = None  # process id of this process's guard
_abandoned: list[object] = []  # requests of failed waits: MPI may still use their buffers


class _Waiter:
    """Bounded polling of one rank: ends with what is awaited, or with the error that says why."""

    def __init__(
        self, mpi: Any, rank: int, timeout: float, lifeline: Lifeline | None = None
    ) -> None:
        """`lifeline`: None while it is being spun."""
        self.rank, self.timeout = rank, timeout
        self.what = ""
        self._lifeline = lifeline
        self._error: type[Exception] = mpi.Exception

    def until(self, attempt: Callable[[], T | None], awaited: str, moving: int = 0) -> T:
        """Call `attempt` until it gives something true, and return that.

        moving: bytes of messages under way, which may need this rank to go on.
        """
        try:
            return self._poll(attempt, awaited, moving * BYTE_SECONDS)
        except self._error as error:
            # A peer's death may show as an MPI error before the lifeline tells of it.
            time.sleep(GRACE_SECONDS / 3)
            self._check(awaited)
            raise RunError(f"rank {self.rank}, waiting for {awaited}: MPI says {error}") from error
        except BaseException:
            _abandoned.append(attempt)
            raise

    def _poll(self, attempt: Callable[[], T | None], awaited: str, busy: float) -> T:
        begin = time.monotonic()
        pause = FIRST_SLEEP
        while True:
            self._check(awaited)
            if got := attempt():
                return got
            waited = time.monotonic() - begin
            if waited < busy + SPIN_SECONDS:
                if waited > busy + ALONE_SECONDS:
                    os.sched_yield()  # to a rank that has something to do, if there are few cores
                continue
            if waited > self.timeout:
                raise timed_out(self.rank, self.timeout, awaited, self.what)
            time.sleep(pause)
            pause = min(1.2 * pause, LAST_SLEEP)

    def _check(self, awaited: str) -> None:
        if self._lifeline is not None and self._lifeline.failure is not None:
            raise peer_failed(self.rank, self._lifeline.failure, awaited, self.what)


class _Sending:
    """The ticket of a message under way."""

    __slots__ = ("_dst", "_request", "_tag", "_waiter", "nbytes")

    def __init__(
        self, request: MPI.Request, waiter: _Waiter, dst: int, tag: int, nbytes: int
    ) -> None:
        self._request, self._waiter, self._dst, self._tag = request, waiter, dst, tag
        self.nbytes = nbytes

    def done(self) -> bool:
        return self._request.Test()

    def wait(self) -> None:
        self._waiter.until(self._request.Test, taken_by(self._dst, self._tag), self.nbytes)


class Line(NamedTuple):
    """What code needs that calls MPI itself: the module, a communicator, and bounded waits."""

    mpi: Any
    comm: MPI.Comm
    waiter: _Waiter


def line_of(comm: MPI.Comm, timeout: float = TIMEOUT_SECONDS) -> Line:
    """A line over a communicator of the caller's, who sees to it that failures end all ranks."""
    mpi = sys.modules["mpi4py.MPI"]
    return Line(mpi, comm, _Waiter(mpi, comm.rank, timeout))


class MpiTransport:
    """One process's endpoint."""

    def __init__(
        self, mpi: Any, comm: MPI.Intracomm, waiter: _Waiter, lifeline: Lifeline, groups: Groups
    ) -> None:
        """groups: of ranks that have a communicator of their own."""
        self.rank, self.size, self.timeout = comm.rank, comm.size, waiter.timeout
        self.collectives = MpiCollectives(comm, waiter, groups)
        self._mpi, self._comm, self._waiter, self._lifeline = mpi, comm, waiter, lifeline
        self._tags: int = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB) + 1
        self._status = mpi.Status()
        self._sending: deque[_Sending] = deque()  # keeps the buffers of messages under way
        self._closed = False

    def send(self, array: npt.NDArray[Any], dst: int, tag: int) -> Ticket:
        """See `Transport.send`."""
        self._check_open("send")
        check_send(array, self.rank, dst, self.size)
        self._advance()
        buffer = [_bytes(np.ascontiguousarray(array)), self._mpi.BYTE]
        request = self._comm.Isend(buffer, dst, tag % self._tags)
        ticket = _Sending(request, self._waiter, dst, tag, array.nbytes)
        self._sending.append(ticket)
        return ticket

    def recv(self, out: npt.NDArray[Any], src: int, tag: int) -> None:
        """See `Transport.recv`; of a wrong type only the size shows, and only if it differs."""
        self._check_open("recv")
        check_recv(out, self.rank, src, self.size)
        awaited = message_from(src, tag)
        comm, status, any_tag = self._comm, self._status, self._mpi.ANY_TAG

        def arrived() -> MPI.Message | None:
            self._advance()
            return comm.Improbe(src, any_tag, status)

        self._advance()
        message = self._waiter.until(arrived, awaited, sum(s.nbytes for s in self._sending))
        if status.Get_tag() != tag % self._tags:
            raise wrong_tag(src, self.rank, status.Get_tag(), tag)
        size = status.Get_count(self._mpi.BYTE)
        if size != out.nbytes:
            wanted = f"{type_text(out)}, {out.nbytes} bytes"
            raise wrong_type(src, self.rank, tag, f"{size} bytes", wanted)
        request = message.Irecv([_bytes(out), self._mpi.BYTE])
        self._waiter.until(request.Test, awaited, size)

    def allreduce(self, array: npt.NDArray[np.float64]) -> None:
        """See `Transport.allreduce`; gathers and adds here, since MPI's own order is not fixed."""
        self._check_open("allreduce")
        check_reduced(array, self.rank)
        rows = np.empty((self.size, array.size))
        request = self._comm.Iallgather(np.ascontiguousarray(array), rows)
        self._waiter.until(request.Test, "allreduce with all ranks")
        array[:] = rows[0]
        for row in rows[1:]:
            array += row

    def exchange(self, obj: Any) -> list[Any]:
        """See `Transport.exchange`."""
        self._check_open("exchange")
        return _exchange(self._comm, self._waiter, obj)

    def waiting_for(self, what: str) -> None:
        """See `Transport.waiting_for`."""
        self._waiter.what = what

    def abort(self, failure: Failure) -> None:
        """See `Transport.abort`."""
        self._lifeline.abort(failure)

    def close(self) -> None:
        """See `Transport.close`; waits for messages under way, unless the run has failed."""
        self._closed = True
        while self._sending and self._lifeline.failure is None:
            self._sending[0].wait()
            self._sending.popleft()
        if self._lifeline.failure is None:
            self.collectives.finish()

    def _advance(self) -> None:
        """Let go of what is sent. MPICH's Improbe does not go on with messages that are not."""
        while self._sending and self._sending[0].done():
            self._sending.popleft()
        self.collectives.advance()

    def _check_open(self, verb: str) -> None:
        if self._closed:
            raise RunError(f"{verb}: rank {self.rank}'s endpoint is closed; it serves one run only")


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
        waiter = _Waiter(mpi, self.rank, patience)
        self._comm, request = world.Idup()
        waiter.until(request.Test, "all ranks to start")
        self._lifeline = Lifeline.open(
            self.rank, self.size, lambda obj: _exchange(self._comm, waiter, obj), patience, _guard
        )
        self._waiter = _Waiter(mpi, self.rank, timeout, self._lifeline)
        self._mpi = mpi
        self._groups: Groups = {}
        self._closed = False
        _open_clusters.add(self)

    @property
    def ranks(self) -> tuple[int]:
        """See `Cluster.ranks`."""
        return (self.rank,)

    def line(self) -> Line:
        """For programs that call MPI themselves, beside or instead of `run`."""
        return Line(self._mpi, self._comm, self._waiter)

    def abort(self, failure: Failure) -> None:
        """See `Transport.abort`."""
        self._lifeline.abort(failure)

    def run(self, work: Callable[[Transport], T]) -> list[T]:
        """See `Cluster.run`; the result of this process's rank alone."""
        if self._closed:
            raise RunError("run: this MPI cluster is closed; make a new one")
        self._waiter.what = ""
        endpoint = MpiTransport(self._mpi, self._comm, self._waiter, self._lifeline, self._groups)
        try:
            result = work(endpoint)
            endpoint.close()
        except BaseException as error:
            self._lifeline.abort(failure_of(self.rank, self._waiter.what, error))
            endpoint.close()
            _abandoned.append(endpoint)
            raise
        return [result]

    def close(self) -> None:
        """See `Cluster.close`; waits, at most `timeout`, until every rank has said goodbye."""
        self._close(self.timeout)

    def leave(self, status: int) -> NoReturn:
        """End this process with `status`, without MPI_Finalize, which may hang after a failure.

        Stays up to `GRACE_SECONDS`, until every rank has heard of the failure and leaves as well.
        `MPI_Abort` would end the others before they can say what happened.
        """
        if status:
            self._lifeline.abort(Failure(self.rank, "", f"it left with status {status}"))
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # nobody reads it any more
                stream.flush()
        self._close(GRACE_SECONDS)
        os._exit(status)

    def _close(self, timeout: float) -> None:
        global _failed
        if self._closed:
            return
        self._closed = True
        _open_clusters.discard(self)
        self._lifeline.close(timeout)
        if self._lifeline.failure is not None:
            _failed = True
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


def _at_exit() -> None:
    """Finalise MPI, unless ranks that failed or went on without us would make that hang."""
    for cluster in list(_open_clusters):
        cluster._lifeline.abort(Failure(cluster.rank, "", UNCLOSED))
        cluster._close(GRACE_SECONDS)
    MPI = sys.modules["mpi4py.MPI"]
    if not _failed and MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """A C-contiguous array's memory as a vector of bytes."""
    return array.reshape(-1).view(np.uint8)


def _exchange(comm: MPI.Comm, waiter: _Waiter, obj: Any) -> list[Any]:
    mine = np.frombuffer(json.dumps(obj).encode(), np.uint8)
    sizes = np.empty(comm.size, np.int64)
    request = comm.Iallgather(np.array([mine.size]), sizes)
    waiter.until(request.Test, "exchange with all ranks")
    joined = np.empty(sizes.sum(), np.uint8)
    request = comm.Iallgatherv(mine, [joined, sizes.tolist()])
    waiter.until(request.Test, "exchange with all ranks")
    return [json.loads(part.tobytes()) for part in np.split(joined, np.cumsum(sizes)[:-1])]
