"""CUDA graphs: a run's calls as a few launches.

An unrolled network consists of thousands of short calls, and a GPU finishes one before the host has
made the next. So from the second run on, one launch of a graph replaces neighbouring calls. Calls
can be captured if they do the same with the same addresses in every run (`Call.fixed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from runtime.backends.bodies import BoundBody, Call, make
from runtime.backends.device.arrays import Device
from runtime.backends.device.table import CallContext
from symgraph.core.errors import LimitError

# Calls of a run's first graph: the more calls a graph has, the longer the host takes to launch it,
# and as a step begins the card has nothing else to do.
FIRST = 96


class CapturedRun:
    """The calls of a run, in order, as one call.

    Calls may depend on whether the run trains, so there are launches for both cases. The first run
    makes the calls one by one, because it compiles and loads kernels, which a capture must not.
    `apart` then has the names of the nodes whose calls are still made each time.
    """

    def __init__(self, device: Device, context: CallContext, steps: Sequence[Call]) -> None:
        self._device, self._clock, self._steps = device, context, steps
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
        first = FIRST if len(steps) > 2 * FIRST else 0
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

        def calls() -> None:
            for step in steps:
                step.function(*step.args)
                done.append(step)

        try:
            return self._device.captured(calls), len(steps)
        except LimitError:
            raise
        except Exception:  # of the capture: the calls themselves succeeded in the first run
            return None, len(done)

    def _each(self, steps: Sequence[Call]) -> Iterator[Call]:
        self.apart += [step.name for step in steps]
        yield from steps


def replayed(
    device: Device, context: CallContext, body: BoundBody, adding: Sequence[Call]
) -> tuple[BoundBody, list[Call]]:
    """Return the same run with all calls, the sums included, captured as one."""
    replay = CapturedRun(device, context, (*body.steps, *adding))
    return body._replace(steps=(Call(str(body.key), replay, ()),)), []
