"""A strict stand-in for NCCL, so that what goes from card to card is tested where there is none.

Processes that mpiexec has started are cards; `tests/fakes/fake_cupy.py` is their CuPy. The bytes go
by
MPI, straight from and to the arrays' memory. Strict is what NCCL is strict about:

- a communicator is made, and first used between two ranks, with both of them waiting for it;
- what is called on a stream is done in order, and nothing of it before the other end calls its
  part: events behind it do not come, and who waits for them waits;
- both ends must agree on the call, the number of values and their type; a communicator has one
  card, which is current, and one stream; calls of a group belong together;
- what has been aborted ends, with undefined values;
- where the network is lost (`lost`), nothing ends any more, and only who asks is told.

Other work is done when it is called: so a stream that such work is put on waits, with its thread,
for events of other streams.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from tests.fakes import fake_cupy as base
from tests.fakes import fake_streams as streams

NUMBERS = {
    "NCCL_UINT8": 1,
    "NCCL_INT32": 2,
    "NCCL_INT64": 4,
    "NCCL_FLOAT16": 6,
    "NCCL_FLOAT32": 7,
    "NCCL_FLOAT64": 8,
}
DTYPES = {n: np.dtype(name.removeprefix("NCCL_").lower()) for name, n in NUMBERS.items()}
NCCL_SUM = 0
PAUSE = 2e-4  # seconds

_streams: dict[int, Stream] = {}  # ptr -> stream
_numbers = itertools.count(1)
_running: list[threading.Thread] = []
_abandoned: list[object] = []  # MPI may still use them
_polling = threading.RLock()  # MPI is asked by one thread at a time


class NcclError(RuntimeError):
    """What NCCL refuses."""


# -- streams ---------------------------------------------------------------------------------------


class Work:
    """Something on a stream. start: once all before it is done. over: whether it is."""

    def __init__(self, start: Callable[[], None], over: Callable[[], bool]) -> None:
        self.start, self._over = start, over
        self.started = self.ended = False

    def advance(self) -> bool:
        if not self.started:
            self.started = True
            self.start()
        self.ended = self.ended or self._over()
        return self.ended


class Stream(streams.Stream):
    """Work in order, of which NCCL's is not done when it is called."""

    def __init__(self, non_blocking: bool = False) -> None:
        super().__init__(non_blocking)
        self.ptr = next(_numbers)
        self.queue: deque[Work] = deque()
        _streams[self.ptr] = self

    def put(self, work: Work) -> None:
        self.queue.append(work)
        _advance()

    def synchronize(self) -> None:
        while self.queue:
            _advance(pause=True)

    def record(self, event: streams.Event | None = None) -> Event:
        event = Event() if event is None else event
        assert isinstance(event, Event)
        event.pass_by()
        event.behind = list(self.queue)
        return event

    def wait_event(self, event: streams.Event) -> None:
        assert isinstance(event, Event)
        assert event.recorded
        self.waits += 1
        if streams.current() is self:
            event.synchronize()
        elif not event.done:
            self.put(Work(lambda: None, lambda: all(w.ended for w in event.behind)))


class Event(streams.Event):
    """A point in a stream."""

    behind: list[Work]

    @property
    def done(self) -> bool:
        assert self.recorded, "an event that no stream has recorded"
        _advance()
        return all(work.ended for work in self.behind)

    def synchronize(self) -> None:
        while not self.done:
            _advance(pause=True)


def _run() -> None:
    """What a card does: go on, whatever the processor does."""
    while True:
        _advance(pause=True)


def _advance(*, pause: bool = False) -> None:
    """Let all streams go on."""
    with _polling:
        for stream in [*_streams.values()]:
            while stream.queue and stream.queue[0].advance():
                stream.queue.popleft()
    if pause:
        time.sleep(PAUSE)


# -- communicators ---------------------------------------------------------------------------------


def _mpi() -> Any:
    from mpi4py import MPI  # the cluster has started it

    return MPI


def get_unique_id() -> bytes:
    """128 bytes, of which the first say who made it, and its number there."""
    maker, number = _mpi().COMM_WORLD.rank, next(_numbers)
    return np.array([maker, number], np.int32).tobytes().ljust(128, b"\0")


_group: list[tuple[NcclCommunicator, int, Work]] = []  # calls since groupStart
_depth = 0


def groupStart() -> None:
    global _depth
    _depth += 1


def groupEnd() -> None:
    """All calls since groupStart become one piece of work on each stream."""
    global _depth
    assert _depth, "groupEnd without groupStart"
    _depth -= 1
    if _depth:
        return
    calls = _group[:]
    _group.clear()
    for comm, stream in dict.fromkeys((comm, stream) for comm, stream, _ in calls):
        parts = [work for c, s, work in calls if (c, s) == (comm, stream)]
        comm._put(stream, parts)


class NcclCommunicator:
    """Ranks of this launch, numbered anew."""

    def __init__(self, ndev: int, commId: bytes, rank: int) -> None:
        assert type(commId) is bytes
        assert len(commId) == 128
        assert 0 <= rank < ndev
        world = _mpi().COMM_WORLD
        maker, number = np.frombuffer(commId[:8], np.int32).tolist()
        self._tag = 1 + number * world.size + maker
        self._rank, self._card = rank, streams.card()
        self._stream: int | None = None
        self._aborted = self._destroyed = False
        self.lost: Exception | None = None  # the network's, and what is said of it
        self._met: set[int] = set()
        mine = np.array([rank, world.rank, self._card])
        table = np.empty((ndev, 3), np.int64)
        if world.rank == maker:
            table[0] = mine
            for row in table[1:]:
                world.Recv(row, tag=self._tag)
            for row in table[1:]:
                world.Send(table, int(row[1]), self._tag)
        else:
            world.Send(mine, maker, self._tag)
            world.Recv(table, maker, self._tag)
        if len({card for *_, card in table.tolist()}) < ndev:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: Duplicate GPU detected")
        self._world = {int(r): int(w) for r, w, _ in table}
        if not _running:
            _running.append(threading.Thread(target=_run, name="fake-card", daemon=True))
            _running[0].start()

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        part = self._sending("send", _memory(sendbuf, count, datatype), datatype, peer)
        self._call(stream, [part], [peer])

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        part = self._receiving("send", _memory(recvbuf, count, datatype), datatype, peer)
        self._call(stream, [part], [peer])

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int
    ) -> None:
        others = [r for r in self._world if r != root]
        if self._rank == root:
            memory = _memory(sendbuff, count, datatype)
            parts = [self._sending("broadcast", memory, datatype, r) for r in others]
            _memory(recvbuff, count, datatype)[...] = memory
        else:
            memory = _memory(recvbuff, count, datatype)
            parts = [self._receiving("broadcast", memory, datatype, root)]
        self._call(stream, parts, others if self._rank == root else [root])

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        given = _memory(sendbuf, count, datatype)
        got = _memory(recvbuf, count * len(self._world), datatype).reshape(len(self._world), count)
        parts = self._everyone("allGather", given, got, datatype)
        self._call(stream, parts, [r for r in self._world if r != self._rank])

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        assert op == NCCL_SUM
        given, got = _memory(sendbuf, count, datatype), _memory(recvbuf, count, datatype)
        terms = np.empty((len(self._world), count), given.dtype)
        parts = self._everyone("allReduce", given, terms, datatype)

        def add() -> None:
            total = terms[0].copy()
            for term in terms[1:]:
                total += term
            got[...] = total

        others = [r for r in self._world if r != self._rank]
        self._call(stream, parts, others, add)

    def abort(self) -> None:
        self._aborted = True

    def destroy(self) -> None:
        """All that was called must have ended."""
        if not self._aborted and self._stream is not None:
            assert not _streams[self._stream].queue
        self._destroyed = True

    def check_async_error(self) -> None:
        """Raises what went wrong after a call had returned."""
        assert not self._aborted
        assert not self._destroyed
        if self.lost:
            raise self.lost

    # -- messages --------------------------------------------------------------------------------

    def _everyone(
        self, verb: str, given: np.ndarray, rows: np.ndarray, datatype: int
    ) -> list[Work]:
        others = [r for r in self._world if r != self._rank]
        parts = [self._sending(verb, given, datatype, r) for r in others]
        parts += [self._receiving(verb, rows[r], datatype, r) for r in others]
        parts.append(Work(lambda: rows[self._rank].__setitem__(Ellipsis, given), lambda: True))
        return parts

    def _sending(self, verb: str, memory: np.ndarray, datatype: int, peer: int) -> Work:
        """A message to a rank: what it is, and then the values, which nobody takes unasked."""
        about = np.array([VERBS.index(verb), memory.size, datatype])
        requests: list[Any] = []

        def start() -> None:
            world, there = _mpi().COMM_WORLD, self._world[peer]
            requests.append(world.Isend(about, there, self._tag))
            requests.append(world.Issend([memory, _mpi().BYTE], there, self._tag))

        return Work(start, lambda: all([request.Test() for request in requests]))

    def _receiving(self, verb: str, memory: np.ndarray, datatype: int, peer: int) -> Work:
        want = [VERBS.index(verb), memory.size, datatype]
        about = np.empty(3, np.int64)
        requests: list[Any] = []

        def start() -> None:
            there = self._world[peer]
            requests.append(_mpi().COMM_WORLD.Irecv(about, there, self._tag))

        def over() -> bool:
            if len(requests) == 1 and requests[0].Test():
                assert about.tolist() == want, f"NCCL: {about} of rank {peer}, but {want} here"
                there = self._world[peer]
                requests.append(_mpi().COMM_WORLD.Irecv([memory, _mpi().BYTE], there, self._tag))
            return len(requests) == 2 and requests[1].Test()

        return Work(start, over)

    def _call(
        self,
        stream: int,
        parts: list[Work],
        peers: list[int],
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        """Put a call on its stream, now or at the end of the group."""
        if self._aborted:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: invalid argument")
        assert not self._destroyed
        assert streams.card() == self._card, "another card is current"
        assert self._stream in (None, stream), "a communicator on two streams"
        self._stream = stream
        if _depth:
            _group.extend((self, stream, part) for part in parts)
            return
        assert self._rank not in peers, "a rank that sends to itself, outside of a group"
        self._put(stream, parts, finish)

    def _put(
        self, stream: int, parts: list[Work], finish: Callable[[], None] = lambda: None
    ) -> None:
        def start() -> None:
            for part in () if self.lost else parts:
                part.started = True
                part.start()

        def over() -> bool:
            if self._aborted:
                _abandoned.append(parts)
                return True
            if self.lost:
                return False
            if all([part.advance() for part in parts]):
                finish()
                return True
            return False

        work = Work(start, over)
        _streams[stream].put(work)
        if not self._met:  # NCCL connects ranks at their first call, and waits for them
            self._met.add(self._rank)
            while not work.ended:
                _advance(pause=True)


def lose_network(error: Exception) -> None:
    """From this process's next call on, on its communicator; error: what who asks is told."""
    put = NcclCommunicator._put

    def lost(comm: NcclCommunicator, *work: Any) -> None:
        comm.lost = error
        put(comm, *work)

    NcclCommunicator._put = lost


VERBS = ("send", "broadcast", "allGather", "allReduce")


def _memory(address: int, count: int, datatype: int) -> np.ndarray:
    dtype = DTYPES[datatype]
    assert type(address) is int
    assert type(count) is int
    assert count > 0
    bytes_ = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(bytes_, dtype)


# -- the module ------------------------------------------------------------------------------------


@contextmanager
def fake_nccl(cards: int, *, available: bool = True) -> Iterator[ModuleType]:
    """Let `import cupy` give the stand-in, with these cards and with NCCL."""
    nccl = ModuleType("cupy.cuda.nccl")
    nccl.available = available
    for name, number in NUMBERS.items():
        setattr(nccl, name, number)
    nccl.NCCL_SUM, nccl.NcclError, nccl.NcclCommunicator = NCCL_SUM, NcclError, NcclCommunicator
    nccl.get_unique_id, nccl.groupStart, nccl.groupEnd = get_unique_id, groupStart, groupEnd
    null = streams.NULL
    with base.fake_cupy(cards) as cupy:
        cuda, cupy.__version__ = cupy.cuda, "14.2.0"
        cuda.Stream, cuda.Event, cuda.nccl = Stream, Event, nccl
        cuda.runtime.deviceGetPCIBusId = lambda card: f"0000:{card:02x}:00.0"
        streams.NULL, sys.modules["cupy.cuda.nccl"] = Stream(), nccl
        try:
            yield cupy
        finally:
            streams.NULL = null
            del sys.modules["cupy.cuda.nccl"]
