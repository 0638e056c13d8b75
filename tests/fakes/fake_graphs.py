"""CUDA graphs of the stand-in for CuPy: what is called while a stream captures is noted, not done.

A call is made all the same, since its result has a shape and memory; what it has written is put
back when the capture ends. A launch makes the calls again, into the same memory. As with CUDA,
nothing that goes to or comes from the host can be captured, and nobody may wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

_here = threading.local()


class CUDARuntimeError(RuntimeError):
    """CuPy's error for what CUDA reports."""


class Graph:
    """The calls of a capture."""

    def __init__(self, origin: Any) -> None:
        self._calls: list[tuple[Callable[[], Any], list[np.ndarray]]] = []
        self._before: list[tuple[np.ndarray, np.ndarray]] = []
        self.broken = False
        self.origin, self.streams = origin, {origin}  # streams that capture
        self.marks: dict[Any, Any] = {}  # by event, the stream that has recorded it
        self.loose: dict[Any, Any] = {}  # streams to be joined, and the last event of each

    def note(self, call: Callable[[], Any], written: Sequence[np.ndarray]) -> Any:
        self._before += [(array, array.copy()) for array in written]
        result = call()
        self._calls.append((call, [*arrays_of(result)]))
        return result

    def end(self) -> None:
        for array, values in reversed(self._before):
            array[...] = values
        self._before.clear()

    def launch(self, stream: Any = None) -> None:
        assert capturing() is None
        with np.errstate(all="ignore"):
            for call, results in self._calls:
                for old, new in zip(results, arrays_of(call()), strict=True):
                    if old.ctypes.data != new.ctypes.data:  # else it is a view
                        old[...] = new


def arrays_of(result: Any) -> Iterator[np.ndarray]:
    if isinstance(result, np.ndarray):
        yield result
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from arrays_of(part)


def capturing() -> Graph | None:
    """What this thread's stream captures into."""
    return getattr(_here, "graph", None)


def begin(origin: Any) -> None:
    assert capturing() is None
    _here.graph = Graph(origin)


def end() -> Graph:
    graph, _here.graph = _here.graph, None
    graph.end()
    if graph.broken:
        raise CUDARuntimeError("cudaErrorStreamCaptureInvalidated: operation failed")
    if graph.loose:
        raise CUDARuntimeError("cudaErrorStreamCaptureUnjoined: a stream has not been joined")
    return graph


def marked(stream: Any, event: Any) -> None:
    """A stream records an event, maybe in a capture."""
    graph = capturing()
    if graph is not None:
        assert stream in graph.streams, "an event of a stream that does not capture"
        graph.marks[event] = stream
        if stream in graph.loose:
            graph.loose[stream] = event


def awaited(stream: Any, event: Any) -> None:
    """A stream waits for an event: in a capture it takes part from now on."""
    graph = capturing()
    if graph is not None:
        assert event in graph.marks, "a capture waits for an event from before it"
        if stream not in graph.streams:
            graph.streams.add(stream)
            graph.loose[stream] = None
        other = graph.marks[event]
        if other is not stream and graph.loose.get(other) is event:
            del graph.loose[other]


def queued(stream: Any) -> None:
    """Work comes on a stream: while another captures, that would run at once."""
    graph = capturing()
    if graph is not None:
        assert stream in graph.streams, "work of a stream that does not capture"
        if stream is not graph.origin:
            graph.loose[stream] = None


def noted(call: Callable[[], Any], *written: np.ndarray) -> Any:
    """The result of a call, which is noted if that is what is to be done. written: by it."""
    graph = capturing()
    return call() if graph is None else graph.note(call, written)


def on_host(what: str) -> None:
    """Refuse what the host takes part in, if it would be captured."""
    graph = capturing()
    if graph is not None:
        graph.broken = True
        raise CUDARuntimeError(f"cudaErrorStreamCaptureUnsupported: {what}")


# -- memory ----------------------------------------------------------------------------------------

UNIT = 512  # bytes: what CuPy's pool rounds up to
_pieces: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by what has the memory


class MemoryPool:
    """CuPy's pool: what it has taken from the card, which it keeps.

    Its arrays are numpy's here, wherever they lie. It finds room without gaps, as CuPy's finds it
    where the largest piece came first.
    """

    def __init__(self, allocator: Callable[[int], Any] | None = None) -> None:
        self.allocator = allocator
        self.used = self._taken = 0

    def malloc(self, size: int) -> Piece:
        return Piece(self, size)

    def take(self, size: int) -> None:
        self.used += size
        self._taken = max(self._taken, self.used)

    def total_bytes(self) -> int:
        return self._taken


class Piece:
    """Memory of a pool; back in it when nobody has it any longer."""

    def __init__(self, pool: MemoryPool, size: int) -> None:
        self._pool, self._size = pool, -(-size // UNIT) * UNIT
        pool.take(self._size)

    def __del__(self) -> None:
        self._pool.take(-self._size)


class Recycled:
    """Bytes whose memory the next one of their size gets when nobody has them any longer.

    On one stream, as CuPy's pool does it: what others have called may still be at work there.
    """

    free: ClassVar[dict[object, list[np.ndarray]]] = {}

    def __init__(self, size: int, stream: object, make: Callable[[int], np.ndarray]) -> None:
        self._place = size, stream
        free = self.free.get(self._place)
        self.room = free.pop() if free else make(size)
        _pieces[id(self.room)] = self

    def __del__(self) -> None:
        self.free.setdefault(self._place, []).append(self.room)


def piece_of(array: np.ndarray) -> Any:
    """What a GPU's array has to hold as long as it is there; a view has what its base has."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    found = _pieces.get(id(array))
    if found is None and array.base is None:
        pool = getattr(_here, "pool", None) or MemoryPool()
        found = _pieces[id(array)] = pool.malloc(array.nbytes)
    return found


@contextmanager
def using_allocator(allocator: Callable[[int], Any]) -> Iterator[None]:
    """Arrays that are made within come from there."""
    before, _here.pool = getattr(_here, "pool", None), allocator.__self__
    try:
        yield
    finally:
        _here.pool = before
