"""Cards, streams and events of CuPy's stand-in, and time as these tell it.

Work is done when its call returns. Streams and events check that they are used in pairs, and know
which works of other streams must have come before theirs, see tests/fakes/fake_memory.py.
"""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial
from types import ModuleType
from typing import Any

from tests.fakes.fake_graphs import CUDARuntimeError, awaited, begin, end, marked, noted, on_host

CARDS = [1]  # how many this machine has; an error's text: what CUDA says instead


def count() -> int:
    if isinstance(CARDS[0], str):
        raise CUDARuntimeError(CARDS[0])
    return CARDS[0]


here = threading.local()


def _stack() -> list[Stream]:
    if not hasattr(here, "streams"):
        here.streams = []
    return here.streams


def current() -> Stream:
    return _stack()[-1] if _stack() else NULL


Before = dict[int, int]  # a stream's number -> how many of its works come before
OVER: Before = {}  # what somebody has waited for: before all that is asked for now
NUMBERS = itertools.count(1)


_lock = threading.Lock()


def _join(before: Before, event: Event) -> None:
    _add(before, event.before)


def _add(before: Before, more: Before) -> None:
    with _lock:
        for stream, works in more.items():
            before[stream] = max(works, before.get(stream, 0))


class Event:
    """A point in a stream; recorded before anybody waits for it."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.recorded = False
        self.before: Before = {}
        self._disabled, self._at = disable_timing, 0.0

    def synchronize(self) -> None:
        on_host("waiting")
        assert self.recorded, "an event that no stream has recorded"
        _add(OVER, self.before)

    @property
    def done(self) -> bool:
        """As late as can be: whether somebody has waited for all that comes before it."""
        assert self.recorded
        return all(OVER.get(stream, 0) >= works for stream, works in self.before.items())

    def pass_by(self) -> None:
        self.recorded, self._at = True, time.perf_counter()

    def seen(self) -> float:
        assert not self._disabled, "the time of an event that was made with disable_timing"
        assert self.recorded, "the time of an event that no stream has recorded"
        return self._at


class Stream:
    """Work in order. busy: whether there may be some that nobody has waited for.

    work: how many works there were that used what is watched.
    """

    def __init__(self, non_blocking: bool = False, priority: int | None = None) -> None:
        self.waits, self.busy = 0, False
        self.non_blocking = non_blocking
        self.ptr = id(self)
        self.number, self.work = next(NUMBERS), 0
        self._before: Before = {}  # of other streams

    def knows(self, stream: int) -> int:
        """How many works of a stream come before what this one does next."""
        if stream == self.number:
            return self.work
        return max(self._before.get(stream, 0), OVER.get(stream, 0))

    def __enter__(self) -> Stream:
        _stack().append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        assert _stack().pop() is self

    def synchronize(self) -> None:
        on_host("waiting")
        self.busy = False
        self.end()

    def end(self) -> None:
        """Somebody has waited for all its work."""
        _add(OVER, {**self._before, self.number: self.work})

    def begin_capture(self, mode: int | None = None) -> None:
        assert self.non_blocking
        assert current() is self
        begin(self)

    def end_capture(self) -> Any:
        return end()

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        marked(self, event)
        noted(partial(self._pass, event))
        return event

    def _pass(self, event: Event) -> None:
        event.pass_by()
        event.before = {**self._before, self.number: self.work}

    def wait_event(self, event: Event) -> None:
        assert event.recorded
        self.waits += 1
        awaited(self, event)
        noted(partial(_join, self._before, event))


NULL = Stream()


def card() -> int:
    """The number of the current one."""
    found: int = getattr(here, "cards", [0])[-1]
    return found


class Device:
    """A card."""

    def __init__(self, number: int) -> None:
        assert 0 <= number < CARDS[0]
        self.id = number

    def __enter__(self) -> Device:
        here.cards = [*getattr(here, "cards", [0]), self.id]
        return self

    def __exit__(self, *exc: object) -> None:
        assert here.cards.pop() == self.id


# -- time ------------------------------------------------------------------------------------------


def get_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds."""
    return (end.seen() - start.seen()) * 1e3


def nvtx() -> ModuleType:
    """cupy.cuda.nvtx; `closed`: the names of ranges, in the order in which they ended."""
    module, here = ModuleType("cupy.cuda.nvtx"), threading.local()
    module.closed = []

    def push(name: str, id_color: int = -1) -> None:
        assert type(name) is str
        here.open = [*getattr(here, "open", []), name]

    def pop() -> None:
        module.closed.append(here.open.pop())

    module.RangePush, module.RangePop = push, pop
    return module
