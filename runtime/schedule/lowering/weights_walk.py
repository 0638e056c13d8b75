"""Kernel that puts off weight gradients that wait in a circle.

A weight that several stages share makes messages between their W runs. Schedules do not know of
them, so two ranks can each stand at a W that waits for one behind the other's:

    rank 0   ... 0W0 3W0 ...      0W0 waits for 1W0, which stands behind 2W0
    rank 1   ... 2W0 1W0 ...      2W0 waits for 3W0, which stands behind 0W0

Nothing but Ws waits for a W, so any of them can wait longer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from partitioner.base.compiled import compiled, inner, overwrite
from partitioner.base.types import PHASES, WEIGHT

Ints = npt.NDArray[Any]

NONE = -1
_W = PHASES.index(WEIGHT)


@compiled(nogil=True)
def put_off_weights(
    start: Ints, runs: Ints, mbs: int, phase: Ints, first: Ints, needs: Ints
) -> Ints:
    """Return the runs of all ranks in an order in which no W waits in a circle.

    All ranks run in turns, one run each. Only where none can continue, the Ws at which they stand
    are put off; a rank goes back to the first of them that can run, before what follows.
    Without a circle nothing changes, and where it is not Ws that wait, the lists are returned as
    they are, for the check to tell.

    Args:
        start: By rank: its first run; one more at the end.
        phase: By body.
        first: Body b runs after the bodies needs[first[b] : first[b + 1]] of any rank.
        needs: See `first`.
    """
    ranks = len(start) - 1
    done = np.zeros(len(phase) * mbs, np.bool_)
    order, late = np.empty_like(runs), np.empty_like(runs)
    ahead, filled = start[:-1].copy(), start[:-1].copy()
    waiting = np.zeros(ranks, np.int64)  # by rank: the runs of late[start[rank]:] that wait
    left = len(runs)
    while left > 0:
        before = left
        for rank in range(ranks):
            run = _take(late[start[rank] :], waiting[rank], mbs, first, needs, done)
            if run != NONE:
                waiting[rank] -= 1
            elif ahead[rank] < start[rank + 1]:
                if not _ready(runs[ahead[rank]], mbs, first, needs, done):
                    continue
                run = runs[ahead[rank]]
                ahead[rank] += 1
            else:
                continue
            order[filled[rank]] = run
            filled[rank] += 1
            done[run] = True
            left -= 1
        if left == before and not _put_off(start, runs, mbs, phase, ahead, late, waiting):
            return runs
    return order


@inner()
def _ready(run: int, mbs: int, first: Ints, needs: Ints, done: Ints) -> bool:
    """Tell whether all that a run needs is done."""
    body, mb, ready = run // mbs, run % mbs, True
    for at in range(first[body], first[body + 1]):
        ready &= done[needs[at] * mbs + mb]
    return ready


@inner()
def _take(late: Ints, count: int, mbs: int, first: Ints, needs: Ints, done: Ints) -> int:
    """Remove from the first `count` runs the first that can run and return it, or NONE."""
    for at in range(count):
        run = int(late[at])
        if _ready(run, mbs, first, needs, done):
            overwrite(late[at : count - 1], late[at + 1 : count])
            return run
    return NONE


@inner()
def _put_off(
    start: Ints, runs: Ints, mbs: int, phase: Ints, ahead: Ints, late: Ints, waiting: Ints
) -> bool:
    """Put off the Ws at which ranks stand; tell whether there is any."""
    found = False
    for rank in range(len(ahead)):
        at = ahead[rank]
        if at < start[rank + 1] and phase[runs[at] // mbs] == _W:
            late[start[rank] + waiting[rank]] = runs[at]
            waiting[rank] += 1
            ahead[rank] += 1
            found = True
    return found
