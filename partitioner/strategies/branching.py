"""Branching: devices are forbidden to classes where a placement breaks `apart` or `at_most`.

Strategies know ties, and the devices that a class may be on. Where a placement breaks another
demand, every placement that keeps it is in one of these branches:

    A and B apart, but both on device d          d is forbidden to A    or    d is forbidden to B
    A on k devices at most, but on k + 1 of them       one of these k + 1 is forbidden to A

Placements are looked at in the order of their loads, so where a strategy finds the best placement
of every branch, the first that keeps all demands is the best that does. Of devices that are alike,
one is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count, pairwise

import numpy as np

from partitioner.strategies.branch_and_bound import twins
from partitioner.strategies.coarse import Coarse
from partitioner.strategies.loads import Loads
from partitioner.strategies.rules import Demands, settled
from symgraph.core.errors import PlacementError

MAX_BRANCHES = 60  # placements that are branched; then classes get devices that keep all demands

NONE = "no placement of this strategy keeps all constraints"
Assignment = tuple[Sequence[int], float]  # class -> device; a lower bound on the largest load
Branch = tuple[frozenset[int], int]  # classes, and the device that is forbidden to them


def branched(coarse: Coarse, assign: Callable[[Coarse], Assignment]) -> Assignment:
    """Assign classes to devices so that no two sets of `apart` meet, nor a set is on too many.

    Raises:
        PlacementError: there is no such assignment, or the strategy finds none.
    """
    found: list[tuple[float, int, Coarse, Sequence[int], float]] = []
    failed: list[PlacementError] = []
    number = count()

    def add(narrowed: Coarse) -> None:
        try:
            devices, bound = assign(narrowed)
        except PlacementError as error:
            failed.append(error)
        else:
            load = Loads(narrowed, devices).largest
            heappush(found, (load, next(number), narrowed, devices, bound))

    add(coarse)
    for _ in range(MAX_BRANCHES):
        if not found:
            raise failed[0] if failed else PlacementError(NONE)
        _, _, narrowed, devices, bound = heappop(found)
        branches = _branches(narrowed, devices)
        if not branches:
            return devices, min([bound, *(other[-1] for other in found)])
        for classes, device in branches:
            fewer = narrowed.without(classes, device)
            if fewer is not None:
                add(fewer)
    devices, _ = assign(_settled(coarse))
    return devices, min((other[-1] for other in found), default=0.0)


def _branches(coarse: Coarse, devices: Sequence[int]) -> list[Branch]:
    """List the branches for the first demand that is broken; [] if none is."""
    for a, b in coarse.apart:
        both = {devices[c] for c in a} & {devices[c] for c in b}
        if both:
            return [(a, min(both)), (b, min(both))]
    for held, most in coarse.at_most:
        used = sorted({devices[c] for c in held})
        if len(used) > most:
            twin = twins(coarse)
            return [(held, d) for d in used[: most + 1] if twin[d] not in used[: most + 1]]
    return []


def _settled(coarse: Coarse) -> Coarse:
    """Leave the classes of such demands the devices that a search over the demands alone finds.

    Those of `apart` have one device; the others as many as they may, the first ones.
    """
    ties = [pair for part in coarse.parts for pair in pairwise(part)]
    choice = settled(Demands([], coarse.allowed, [*coarse.apart], [*coarse.at_most]), ties)
    if choice is None:
        raise PlacementError(NONE)
    allowed, k = coarse.allowed.copy(), len(coarse.limits)
    for held, most in coarse.at_most:
        used = sorted({choice[c] for c in held})
        more = [d for d in range(k) if d not in used]
        allowed[np.ix_(sorted(held), more[most - len(used) :])] = False
    for c in {c for pair in coarse.apart for side in pair for c in side}:
        allowed[c] = np.arange(k) == choice[c]
    return replace(coarse, allowed=allowed)
