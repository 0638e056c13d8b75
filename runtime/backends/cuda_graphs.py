"""CUDA graphs: a run's calls as a few launches.

An unrolled network consists of thousands of short calls, and a GPU finishes one before the host has
made the next. So from the second run on, one launch of a graph replaces neighbouring calls. Calls
can be captured if they do the same with the same addresses in every run (`Call.fixed`).

The calls of a graph need not run one after the other. Those that give gradients of parameters, for
which nothing waits but the end of the step, run beside the rest. Two calls keep their order only if
one writes memory that the other uses; all addresses are known.

    layer       2  2  2  2  1  1  1  1  0  0  0  0      time steps, backward
    beside                  [ dW 2 ]    [ dW 1 ]  [ dW 0 ]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from partitioner.base.types import FORWARD
from runtime.backends.bodies import BoundBody
from runtime.backends.calls import Call, make
from runtime.backends.cuda.blas import blas_of
from runtime.backends.device.arrays import Device, address
from runtime.backends.device.table import CallContext
from symgraph.core.errors import LimitError

# Calls of the first graph of a run forward: the more calls a graph has, the longer the host takes
# to launch it, and as a step begins the card has nothing else to do.
FIRST = 96
BEGIN = -1  # stands for the begin of the graph in place of a call


class CapturedRun:
    """The calls of a run, in order, as one call.

    Calls may depend on whether the run trains, so there are launches for both cases. The first run
    makes the calls one by one, because it compiles and loads kernels, which a capture must not.
    `apart` then has the names of the nodes whose calls are still made each time.
    """

    def __init__(
        self, device: Device, context: CallContext, steps: Sequence[Call], first: int = 0
    ) -> None:
        """Prepare a run.

        Args:
            device, context, steps: The device, what its calls depend on, and the calls.
            first: The calls of the first graph, if there are many more; 0: all are in one.
        """
        self._device, self._clock, self._steps, self._first = device, context, steps, first
        self._launches: dict[bool, Sequence[Call]] = {}
        self.apart: list[str] = []

    def __call__(self) -> None:
        trains = self._clock.env.train
        launches = self._launches.get(trains)
        if launches is None:
            self._launches[trains] = ()
            launches = self._steps
        elif not launches:
            self.apart.clear()
            launches = self._launches[trains] = [*self._captured()]
        make(launches)

    def _captured(self) -> Iterator[Call]:
        for fixed, group in groupby(self._steps, lambda step: step.fixed):
            steps = [*group]
            yield from self._whole(steps) if fixed else self._each(steps)

    def _whole(self, steps: Sequence[Call]) -> Iterator[Call]:
        """Yield one launch for all calls, or several around those that cannot be captured."""
        first = self._first if len(steps) > 2 * self._first else 0
        waiting = [part for part in (steps[first:], steps[:first]) if part]  # the next ones last
        while waiting:
            some = waiting.pop()
            launch, done = self._tried(some) if len(some) > 1 else (None, len(some))
            if launch is not None:
                yield Call(f"{some[0].name} to {some[-1].name}", launch, ())
            elif done == len(some):
                yield from self._each(some)
            else:
                waiting += some[done + 1 :], some[done : done + 1], some[:done]

    def _tried(self, steps: Sequence[Call]) -> tuple[Callable[[], None] | None, int]:
        """Return one launch for all calls, or None, and the number of calls that were captured."""
        done: list[Call] = []
        queue = partial(forked, self._device, steps, done.append)
        try:
            if any(step.beside for step in steps):
                with self._device.beside():
                    blas_of(self._device.xp)  # allocates, which a capture must not
            return self._device.captured(queue), len(steps)
        except LimitError:
            raise
        except Exception:  # of the capture: the calls themselves succeeded in the first run
            return None, len(done)

    def _each(self, steps: Sequence[Call]) -> Iterator[Call]:
        self.apart += [step.name for step in steps]
        yield from steps


# -- beside other calls --------------------------------------------------------------------------


def forked(device: Device, steps: Sequence[Call], done: Callable[[Call], None]) -> None:
    """Make calls while they are captured, some of them beside the others.

    Those wait for each other only where memory demands it.

    Args:
        device: The device that captures.
        steps: The calls.
        done: Is told each that has been made.
    """
    forks, waits = any(step.beside for step in steps), last_conflicts(steps)
    wanted, events = {*waits} - {BEGIN}, dict[int, Any]()
    known = {False: BEGIN, True: BEGIN}  # the last call of the other side that each waits for
    if forks:
        device.wait(device.record(beside=False), beside=True)
    for at, (step, last) in enumerate(zip(steps, waits, strict=True)):
        beside = step.beside
        if last > known[beside]:
            device.wait(events[last], beside=beside)
            known[beside] = last
        with device.beside() if beside else nullcontext():
            step.function(*step.args)
        if at in wanted:
            events[at] = device.record(beside=beside)
        done(step)
    if forks:
        device.wait(device.record(beside=True), beside=False)


def last_conflicts(steps: Sequence[Call]) -> list[int]:
    """Return for each call the last one before it, on the other side, that must have ended.

    That is one which writes what this one reads or writes, or reads what it writes; `BEGIN` if
    there is none.
    """
    found = [BEGIN] * len(steps)
    rows = [
        (address(array), address(array) + array.nbytes, at, step.beside, writes)
        for at, step in enumerate(steps)
        for writes, arrays in enumerate(step.arrays)
        for array in arrays
    ]
    begin, end, at, beside, writes = np.array(rows, np.int64).reshape(-1, 5).T
    for place in np.flatnonzero(beside):
        this = int(at[place])
        conflicts = (begin < end[place]) & (begin[place] < end) & (beside == 0)
        others = at[conflicts & ((writes | writes[place]) == 1)]
        before = others[others < this]
        found[this] = max(found[this], int(before.max(initial=BEGIN)))
        for other in others[others > this].tolist():
            found[other] = max(found[other], this)
    return found


def replayed(device: Device, context: CallContext, body: BoundBody) -> BoundBody:
    """Return the same run with all calls captured as one."""
    first = FIRST if body.key.phase == FORWARD else 0
    replay = CapturedRun(device, context, body.steps, first)
    return body._replace(steps=(Call(str(body.key), replay, ()),))
