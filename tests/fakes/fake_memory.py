"""Who uses the memory of the stand-in's cards, and whether in an order that streams keep.

The stand-in does what it is asked for at once, so the values are right in whatever order streams
might have done it. Instead every use of a piece of memory is noted, byte by byte, with the stream
that it is on: one that writes what another stream has used, or that reads what another has written,
without an event between them, is an error, as on a card it would sometimes be. Of interest is what
lasts: the memory that devices give (`arrays.Device.bytes`), and not what calls make for themselves.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Iterable
from functools import partial

import numpy as np

from tests.fakes import fake_streams as streams
from tests.fakes.fake_graphs import capturing, noted, queued

_lock = threading.RLock()
_memories: dict[int, Memory] = {}  # by where they begin


class Memory:
    """For each byte, and by the number of a stream, its last work that has written or read it."""

    def __init__(self, owner: np.ndarray) -> None:
        self.begin, self.size = owner.ctypes.data, owner.nbytes
        self.marks: tuple[dict[int, np.ndarray], dict[int, np.ndarray]] = {}, {}

    def last(self, marks: dict[int, np.ndarray], stream: int, array: np.ndarray) -> np.ndarray:
        """The marks of an array's elements, in its shape."""
        if stream not in marks:
            marks[stream] = np.zeros(self.size, np.int64)
        start = marks[stream][array.ctypes.data - self.begin :]
        step = start.itemsize
        strides = (*(s * step for s in array.strides), step)
        return np.lib.stride_tricks.as_strided(start, (*array.shape, array.itemsize), strides)


def watch(owner: np.ndarray) -> None:
    """From now on, note who uses this memory, as long as it is there."""
    begin = owner.ctypes.data
    with _lock:
        _memories[begin] = Memory(owner)
    weakref.finalize(owner, _memories.pop, begin, None)


def uses(reads: Iterable[np.ndarray] = (), writes: Iterable[np.ndarray] = ()) -> None:
    """What is called next reads and writes these, now or whenever the graph is launched."""
    queued(streams.current())
    if _memories:
        noted(partial(_use, [*reads], [*writes], streams.current()))


def _use(reads: list[np.ndarray], writes: list[np.ndarray], stream: streams.Stream) -> None:
    if capturing() is not None or type(stream) is not streams.Stream:  # fake_nccl's wait themselves
        return
    with _lock:
        stream.work += 1
        for arrays, write in ((reads, False), (writes, True)):
            for array in arrays:
                memory = _memory(array)
                if memory is not None and array.size:
                    _note(memory, array, stream, write)


def _memory(array: np.ndarray) -> Memory | None:
    """That an array lies in."""
    begins = sorted(_memories)
    at = bisect_right(begins, array.ctypes.data) - 1
    found = _memories.get(begins[at]) if at >= 0 else None  # a thread may have freed it
    return found if found is not None and array.ctypes.data < found.begin + found.size else None


def _note(memory: Memory, array: np.ndarray, stream: streams.Stream, write: bool) -> None:
    written, read = memory.marks
    for verb, marks in (("written", written), ("read", read))[: 1 + write]:
        for other in [*marks]:
            last = int(memory.last(marks, other, array).max())
            assert stream.knows(other) >= last, (
                f"stream {stream.number} {'writes' if write else 'reads'} what stream {other} has "
                f"{verb}, and no event says when"
            )
    memory.last(written if write else read, stream.number, array)[...] = stream.work
