"""Threads as ranks: endpoints over in-process channels, and the cluster that runs them.

A message is the sender's array itself. The receiver copies it into its own buffer and then marks
the message as taken, for which the sender's ticket waits: one copy in all, and the sender may
overwrite its array once the ticket is done.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.backends.device.arrays import Mark, after, mark
from runtime.backends.device.processor import SharedCores, core_count
from runtime.backends.parcels import Parcel
from runtime.transports.base import (
    TIMEOUT_SECONDS,
    Cluster,
    Doing,
    Failure,
    T,
    Ticket,
    Transport,
    check_peer,
    check_recv,
    check_reduced,
    check_send,
    failure_of,
    message_from,
    peer_failed,
    require_same_calls,
    require_same_lengths,
    taken_by,
    timed_out,
    type_text,
    uneven,
    wrong_tag,
    wrong_type,
)
from runtime.transports.stalls import stalled, verdict
from runtime.transports.threads.collectives import Meetings, ThreadCollectives
from runtime.transports.threads.spin import changed
from symgraph.app.command_line import FAILED, exit_status, say
from symgraph.core.errors import ConfigError, PeerFailed, RunError

__all__: list[str] = []

# A Ctrl-C just before a thread blocks is noticed only when that wait ends: so waits are short.
LOOK_SECONDS = 0.1
LEAVE_SECONDS = 60.0  # for ranks to come to the end of what they compute, after a failure
CORES = core_count()


class _Mailbox:
    """Messages that have arrived for one rank, and the bell that wakes it.

    The rank first watches the count of rings for a while, without the interpreter, because falling
    asleep and being woken takes longer. If ranks outnumber the cores, it sleeps at once.
    """

    def __init__(self, size: int) -> None:
        self.messages: list[deque[_Message]] = [deque() for _ in range(size)]  # by source
        self.gathered: list[deque[Any]] = [deque() for _ in range(size)]  # by source
        self.bell = threading.Condition()
        self.rings = np.zeros(1, dtype=np.int64)
        self.patient = size > CORES

    def ring(self) -> None:
        with self.bell:
            self.rings[0] += 1
            self.bell.notify()  # nobody but the rank itself waits here

    def watch(self, ready: Callable[[], object]) -> bool:
        """Return whether `ready` becomes true soon."""
        while not self.patient:
            seen = int(self.rings[0])
            if ready():
                return True
            if not changed(self.rings, seen):
                break
        return bool(ready())

    def sleep(self, ready: Callable[[], object], timeout: float) -> bool:
        """Return whether `ready` becomes true within the timeout."""
        with self.bell:
            return bool(self.bell.wait_for(ready, timeout))


class _Wait(NamedTuple):
    """The wait of a sleeping rank for another rank, the only one that can end it."""

    ready: Callable[[], object]
    peer: int
    text: str
    since: int


class _Run:
    """The state of one call of `ThreadCluster.run`."""

    def __init__(self, size: int, alarms: Sequence[Callable[[Failure], None]]) -> None:
        self.boxes = [_Mailbox(size) for _ in range(size)]
        self.ends: dict[int, ThreadTransport] = {}  # by rank
        self._alarms = alarms  # called at the first failure
        self.meetings = Meetings()
        self.failure: Failure | None = None
        self.errors: list[BaseException] = []  # in the order they happened
        self.results: dict[int, Any] = {}  # rank -> result of its work
        self.ended = threading.Event()
        self._waits: list[_Wait | None] = [None] * size  # by rank
        self._over: set[int] = set()  # ranks whose work has ended
        self._lock = threading.Lock()

    def fail(self, failure: Failure) -> None:
        with self._lock:
            first = self.failure is None
            if first:
                self.failure = failure
        for alarm in self._alarms if first else ():
            alarm(failure)
        for box in self.boxes:
            box.ring()

    def work(self, work: Callable[[Transport], Any], rank: int, timeout: float) -> None:
        """Do one rank's work on its thread; an exception is recorded and announced, not raised."""
        endpoint = self.ends[rank] = ThreadTransport(rank, self, timeout)
        try:
            self.results[rank] = work(endpoint)
        except BaseException as raised:
            error = raised
            if isinstance(raised, SystemExit):  # which would end the program without a word
                error = RunError(f"rank {rank} called sys.exit({raised.code!r}) in its work")
                error.__cause__ = raised
            self.errors.append(error)
            self.fail(failure_of(rank, endpoint.what, error))
        finally:
            endpoint.close()
            with self._lock:
                self._over.add(rank)
                last = len(self._over) == len(self.boxes)
            self.look()
            if last:
                self.ended.set()

    def sleep(self, rank: int, wait: _Wait, timeout: float) -> bool:
        """Return whether a rank's wait ends within the timeout."""
        self._waits[rank] = wait
        try:
            self.look()
            return self.boxes[rank].sleep(lambda: self.failure is not None or wait.ready(), timeout)
        finally:
            self._waits[rank] = None

    def doing(self, rank: int) -> Doing:
        """Return what a rank is doing."""
        end, wait = self.ends.get(rank), self._waits[rank]
        what = "" if end is None else end.what
        return Doing(what) if wait is None else Doing(what, wait.text, (wait.peer,), wait.since)

    def look(self) -> None:
        """Fail the run if some ranks wait forever.

        Those have all been asleep during this check, so none of them can have ended the wait of
        another.
        """
        if self.failure is not None:
            return
        over = set(self._over)
        waits = list(self._waits)
        needs = {r: [w.peer] for r, w in enumerate(waits) if w is not None and not w.ready()}
        stuck = sorted(stalled(needs, lambda _, peer: peer in over))
        texts = {r: w.text for r in stuck if (w := waits[r]) is not None and w is self._waits[r]}
        if stuck and len(texts) == len(stuck):
            ends = over & {peer for rank in stuck for peer in needs[rank]}
            self.fail(Failure(-1, "", verdict(texts, ends)))

    def first_error(self) -> BaseException | None:
        real = [error for error in self.errors if not isinstance(error, PeerFailed)]
        return next(iter(real + self.errors), None)


class _Message:
    """Arrays in transit; to their sender, the ticket."""

    __slots__ = ("_copied", "_dst", "_sender", "mark", "parcel", "tags", "taken")

    def __init__(
        self, sender: ThreadTransport, parcel: Parcel, dst: int, tags: Sequence[int]
    ) -> None:
        self._sender, self._dst = sender, dst
        self.parcel, self.tags, self.taken = parcel, tags, False
        self.mark = mark(parcel.arrays[0])
        self._copied: Mark | None = None  # the end of the receiver's copy

    def done(self) -> bool:
        if self.taken:
            after(self._copied, self.parcel.arrays[0])
        return self.taken

    def wait(self) -> None:
        self._sender.wait_until(self.done, taken_by(self._dst, self.tags[0]), self._dst)

    def copy_to(self, parcel: Parcel) -> None:
        """Copy the arrays, once the work that makes them is done."""
        after(self.mark, parcel.arrays[0])
        parcel.fill(self.parcel)
        self._copied = mark(parcel.arrays[0])

    def take(self) -> None:
        """Tell the sender that its array is no longer needed."""
        self.taken = True
        self._sender.box.ring()


class ThreadTransport:
    """One rank's endpoint among threads."""

    def __init__(self, rank: int, run: _Run, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, len(run.boxes), timeout
        self.box = run.boxes[rank]
        self.what = ""
        self._run = run
        self._closed = False
        self.collectives = ThreadCollectives(self, run.meetings)

    def open(self, channels: Sequence[tuple[int, int]]) -> None:
        """See `Transport.open`; nothing to prepare."""

    def send(self, array: npt.NDArray[Any], dst: int, tag: int) -> Ticket:
        """See `Transport.send`."""
        return self.send_all(Parcel([array]), dst, (tag,))

    def recv(self, out: npt.NDArray[Any], src: int, tag: int) -> None:
        """See `Transport.recv`."""
        self.recv_all(Parcel([out]), src, (tag,))

    def send_all(self, parcel: Parcel, dst: int, tags: Sequence[int]) -> Ticket:
        """See `Transport.send_all`."""
        self._check_open("send")
        for array in parcel.arrays:
            check_send(array, self.rank, dst, self.size)
        message = _Message(self, parcel, dst, tags)
        box = self._run.boxes[dst]
        box.messages[self.rank].append(message)
        box.ring()
        return message

    def recv_all(self, parcel: Parcel, src: int, tags: Sequence[int]) -> None:
        """See `Transport.recv_all`."""
        self._check_open("recv")
        check_peer("recv", self.rank, src, self.size)
        if not parcel.writable:
            for out in parcel.arrays:
                check_recv(out, self.rank, src, self.size)
        channel = self.box.messages[src]
        self.wait_until(channel.__len__, message_from(src, tags[0]), src)
        message = channel.popleft()
        sent = message.parcel
        if message.tags != tags or sent.types != parcel.types:
            raise self._misfit(src, message, parcel, tags)
        message.copy_to(parcel)
        message.take()

    def allreduce(self, array: npt.NDArray[np.float64]) -> None:
        """See `Transport.allreduce`."""
        check_reduced(array, self.rank)
        rows = self._gather(array.copy(), "allreduce")
        require_same_lengths([row.size for row in rows])
        array[:] = rows[0]
        for row in rows[1:]:
            array += row

    def exchange(self, obj: Any) -> list[Any]:
        """See `Transport.exchange`."""
        return [json.loads(text) for text in self._gather(json.dumps(obj), "exchange")]

    def waiting_for(self, what: str) -> None:
        """See `Transport.waiting_for`."""
        self.what = what

    def abort(self, failure: Failure) -> None:
        """See `Transport.abort`."""
        self._run.fail(failure)

    def close(self) -> None:
        """See `Transport.close`."""
        self._closed = True

    def ring(self, rank: int) -> None:
        """Let a rank check again what it waits for."""
        self._run.boxes[rank].ring()

    def wait_until(self, ready: Callable[[], object], awaited: str, peer: int) -> None:
        """Return once `ready()` is true; raise if the run fails or the timeout is over.

        peer: the rank that makes it true.
        """
        run = self._run
        if not self.box.watch(lambda: run.failure is not None or ready()):
            text = f"{awaited} ({self.what})" if self.what else awaited
            wait = _Wait(ready, peer, text, time.perf_counter_ns())
            if not run.sleep(self.rank, wait, self.timeout):
                raise timed_out(self.rank, self.timeout, awaited, self.what)
        if run.failure is not None:
            raise peer_failed(self.rank, run.failure, awaited, self.what)

    def _misfit(self, src: int, message: _Message, parcel: Parcel, tags: Sequence[int]) -> RunError:
        """Return the error for a message that is not what this rank receives."""
        for sent, tag in zip(message.tags, tags, strict=False):
            if sent != tag:
                return wrong_tag(src, self.rank, sent, tag)
        for array, out, tag in zip(message.parcel.arrays, parcel.arrays, tags, strict=False):
            if (array.shape, array.dtype) != (out.shape, out.dtype):
                return wrong_type(src, self.rank, tag, type_text(array), type_text(out))
        return uneven(src, self.rank, len(message.tags), len(tags))

    def _gather(self, item: Any, verb: str) -> list[Any]:
        self._check_open(verb)
        for box in self._run.boxes:
            box.gathered[self.rank].append((verb, item))
            box.ring()
        items = []
        for src, arrived in enumerate(self.box.gathered):
            self.wait_until(arrived.__len__, f"{verb} with rank {src}", src)
            items.append(arrived.popleft())
        require_same_calls([verb for verb, _ in items])
        return [item for _, item in items]

    def _check_open(self, verb: str) -> None:
        if self._closed:
            raise RunError(f"{verb}: rank {self.rank}'s endpoint is closed; it serves one run only")


class ThreadCluster(Cluster):
    """Ranks as threads of this process, named "symgraph-rank-<r>", which live until `close`.

    A forgotten `close` does not keep the interpreter from exiting: the threads are workers of an
    executor, which Python stops at exit.
    """

    def __init__(self, size: int, timeout: float = TIMEOUT_SECONDS) -> None:
        """`timeout`: seconds a single wait may take."""
        if size < 1:
            raise ConfigError(f"a thread cluster needs at least 1 rank, not {size}")
        self.size, self.timeout = size, timeout
        self.cores = max(1, CORES // size)
        self._shared = SharedCores(self.cores)
        changed(np.zeros(1, dtype=np.int64), 1)  # compiled before any rank waits
        self._busy = threading.Lock()
        self._closed = False
        self._alarms: list[Callable[[Failure], None]] = []
        self._current: _Run | None = None
        self._ranks = [
            ThreadPoolExecutor(1, initializer=_name_thread, initargs=(rank,))
            for rank in range(size)
        ]
        # All threads start before any run: Ctrl-C while a pool starts its thread would lose it.
        self._await_idle()

    @property
    def ranks(self) -> range:
        """See `Cluster.ranks`."""
        return range(self.size)

    def run(self, work: Callable[[Transport], T]) -> list[T]:
        """See `Cluster.run`; results of all ranks. The first real error is raised here."""
        if self._closed:
            raise RunError("run: this thread cluster is closed; make a new one")
        if not self._busy.acquire(blocking=False):
            raise RunError("run: this thread cluster is busy with another run; make a second one")
        try:
            with self._shared.limit():
                return self._run(work)
        finally:
            self._busy.release()

    def alarm(self, call: Callable[[Failure], None]) -> None:
        """See `Cluster.alarm`."""
        self._alarms.append(call)

    def doing(self, rank: int) -> Doing:
        """See `Cluster.doing`."""
        run = self._current
        return Doing() if run is None else run.doing(rank)

    def close(self) -> None:
        """See `Cluster.close`; joins the rank threads."""
        self._closed = True
        for rank in self._ranks:
            rank.shutdown()

    def leave(self, status: int, why: str = "") -> None:
        """See `Cluster.leave`; all ranks are in this process, which goes on.

        If a rank has not stopped within `LEAVE_SECONDS`, stuck in code that is not ours, the
        process ends here: no thread can be stopped from outside.
        """
        late = self._await_idle(LEAVE_SECONDS)
        if late is not None:
            say(f"error: rank {late} did not stop within {LEAVE_SECONDS:g} s; the process ends")
            os._exit(status or FAILED)
        self.close()

    def _run(self, work: Callable[[Transport], T]) -> list[T]:
        run = self._current = _Run(self.size, self._alarms)
        try:
            for rank, thread in enumerate(self._ranks):
                thread.submit(run.work, work, rank, self.timeout)
            while not run.ended.wait(LOOK_SECONDS):
                pass
        except BaseException as interrupt:  # Ctrl-C
            run.fail(Failure(-1, "", "interrupted", exit_status(interrupt)))
            self._await_idle(LEAVE_SECONDS)
            raise
        finally:
            self._current = None
            if run.ended.is_set():
                run.ends.clear()  # so that what a run holds is freed now, not by the next search
        error = run.first_error()
        if error is not None:
            raise error
        return [run.results[rank] for rank in range(self.size)]

    def _await_idle(self, seconds: float | None = None) -> int | None:
        """Wait until each rank's thread has done all work submitted to it; return one that has not.

        seconds: the longest wait; None: no limit.
        """
        if self._closed:
            return None
        end = None if seconds is None else time.monotonic() + seconds
        for rank, thread in enumerate(self._ranks):
            try:
                thread.submit(int).result(end and max(end - time.monotonic(), 0.0))
            except TimeoutError:
                return rank
        return None


def _name_thread(rank: int) -> None:
    threading.current_thread().name = f"symgraph-rank-{rank}"
