"""Monitors: statistics of intermediate values while a network trains (MXNet's `mx.monitor`)."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from symgraph.core.types import Array

Statistic = Callable[[Any], Any]
Record = tuple[int, str, str]


class Watched(Protocol):
    """What a monitor sees: an executor or a module."""

    def set_monitor_callback(
        self,
        callback: Callable[[str, Array], None],
        monitor_all: bool,
        active: Callable[[], bool],
    ) -> None: ...

    def named_arrays(self) -> list[tuple[str, Array]]: ...


class Monitor:
    """Collects a statistic of every output of every node, every few batches (`mx.mon.Monitor`).

        monitor = mx.mon.Monitor(100, pattern=".*output")
        module.fit(..., monitor=monitor)

    A batch that it looks at runs twice, the second time with all values stored; others run as ever.
    """

    def __init__(
        self,
        interval: int,
        stat_func: Statistic | None = None,
        pattern: str = ".*",
        sort: bool = False,
        monitor_all: bool = False,
    ) -> None:
        """Make a monitor; `fit(monitor=)` or `install` gives it something to see.

        Args:
            interval: Batches from one that it looks at to the next.
            stat_func: Array -> array, number, or list of these; by default the norm divided by the
                root of the number of elements.
            pattern: A regular expression that names of values begin with.
            sort: Whether results are in the order of names.
            monitor_all: Whether what each node reads is shown, too, as `<node>_<input>`.
        """
        self.interval, self.sort, self.monitor_all = interval, sort, monitor_all
        self.stat_func = root_mean_square if stat_func is None else stat_func
        self.activated, self.step = False, 0
        self._pattern = re.compile(pattern)
        self._seen: list[tuple[int, str, Any]] = []
        self._watched: list[Watched] = []

    def install(self, exe: Watched) -> None:
        """See the passes of an executor or a module from now on, besides those of others."""
        exe.set_monitor_callback(self._look, self.monitor_all, lambda: self.activated)
        self._watched.append(exe)

    def _look(self, name: str, array: Array) -> None:
        if self._pattern.match(name):
            self._seen.append((self.step, name, self.stat_func(array)))

    def tic(self) -> None:
        """Begin a batch, and look at it if it is its turn."""
        if self.step % self.interval == 0:
            self._seen, self.activated = [], True
        self.step += 1

    def toc(self) -> list[Record]:
        """End a batch; return (number of the batch, name, statistic) of what was seen.

        Parameters and auxiliary states are added, as they are after the batch.
        """
        if not self.activated:
            return []
        for watched in self._watched:
            for name, array in watched.named_arrays():
                self._look(name, array)
        self.activated = False
        seen, self._seen = self._seen, []
        if self.sort:
            seen.sort(key=lambda record: record[1])
        return [(step, name, _text(statistic)) for step, name, statistic in seen]

    def toc_print(self) -> None:
        """End a batch, and log what was seen."""
        for step, name, text in self.toc():
            logging.info("Batch: %7d %30s %s", step, name, text)


def root_mean_square(array: Array) -> Any:
    """Return the norm of an array divided by the root of its size."""
    return np.linalg.norm(np.asarray(array)) / math.sqrt(array.size)


def _text(statistic: Any) -> str:
    values = statistic if isinstance(statistic, list) else [statistic]
    return "".join(f"{np.squeeze(np.asarray(value))}\t" for value in values)
