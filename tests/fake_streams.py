"""Cards, streams and events of CuPy's stand-in, and time as these tell it.

Work is done when its call returns; streams and events check that they are used in pairs.
"""

from __future__ import annotations

import threading
import time
from types import ModuleType
from typing import Any

from tests.fake_graphs import CUDARuntimeError, begin, end, on_host

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


class Event:
    """A point in a stream; recorded before anybody waits for it."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.recorded = False
        self._disabled, self._at = disable_timing, 0.0

    def synchronize(self) -> None:
        on_host("waiting")
        assert self.recorded, "an event that no stream has recorded"

    def pass_by(self) -> None:
        self.recorded, self._at = True, time.perf_counter()

    def seen(self) -> float:
        assert not self._disabled, "the time of an event that was made with disable_timing"
        assert self.recorded, "the time of an event that no stream has recorded"
        return self._at


class Stream:
    """Work in order. busy: whether there may be some that nobody has waited for."""

    def __init__(self, non_blocking: bool = False) -> None:
        self.waits, self.busy = 0, False
        self.non_blocking = non_blocking
        self.ptr = id(self)

    def __enter__(self) -> Stream:
        _stack().append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        assert _stack().pop() is self

    def synchronize(self) -> None:
        on_host("waiting")
        self.busy = False

    def begin_capture(self, mode: int | None = None) -> None:
        assert self.non_blocking
        assert current() is self
        begin()

    def end_capture(self) -> Any:
        return end()

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.pass_by()
        return event

    def wait_event(self, event: Event) -> None:
        assert event.recorded
        self.waits += 1


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
