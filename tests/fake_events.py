"""Time as CuPy's stand-in tells it: events that note the clock, ranges that note their names."""

from __future__ import annotations

import threading
import time
from types import ModuleType


class Timed:
    """What an event knows of time: when it was recorded last; its work was done by then."""

    def __init__(self, disable_timing: bool) -> None:
        self._disabled, self._at = disable_timing, None

    def pass_by(self) -> None:
        self._at = time.perf_counter()

    def seen(self) -> float:
        assert not self._disabled, "the time of an event that was made with disable_timing"
        assert self._at is not None, "the time of an event that no stream has recorded"
        return self._at


def get_elapsed_time(start: Timed, end: Timed) -> float:
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
