"""Local search on the coarse graph: moves that relieve the slowest device, never ending worse.

It sees what the exact strategies do not: devices and links that differ, limits of single devices,
a value that is sent to several receivers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, islice

from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.strategies.branch import searched
from partitioner.strategies.coarse import Coarse, coarsen, limits, parts
from partitioner.strategies.finish import finish
from partitioner.strategies.loads import Loads
from partitioner.strategies.problem import solved
from partitioner.strategies.types import Constraints, Placed
from symgraph.core.graph import Graph

ROUNDS = 200  # improvements, at most
TRIALS = 20_000  # moves looked at for one improvement, at most

Moves = list[tuple[int, int]]  # class and device
Score = tuple[float, list[float]]  # bytes over the limits; loads, the largest first


def place_refined(graph: Graph, costs: Costs, machine: Machine, constraints: Constraints) -> Placed:
    """The chain placement, improved by moves of classes for as long as one helps."""
    coarse = coarsen(graph, costs, machine, constraints, contiguous=True)
    devices, bound = solved(coarse, machine, constraints, "chain")
    devices = refined(coarse, machine, constraints, devices)
    return finish(graph, coarse, machine, constraints, devices, "refine", bound)


def proven(
    coarse: Coarse, machine: Machine, constraints: Constraints, devices: Sequence[int], bound: float
) -> tuple[list[int], float]:
    """A start refined, then searched until it meets the bound or the search ends: the same with
    what is proved of it."""
    found = refined(coarse, machine, constraints, devices)
    if bound < max(Loads(coarse, machine, found).seconds) * (1 - 1e-9):
        found, done = searched(coarse, machine, constraints, found)
        if done:
            bound = max(Loads(coarse, machine, found).seconds)
    return found, bound


def swapped(
    coarse: Coarse, machine: Machine, constraints: Constraints, devices: Sequence[int]
) -> list[int]:
    """The same pieces, each on the device that suits it, as far as swaps of two lead there."""
    loads = Loads(coarse, machine, devices)
    bounds = [math.inf if x is None else x for x in limits(machine, constraints)]
    free = [d for d in range(len(bounds)) if d not in coarse.pins]
    score, better = _score(loads, bounds), True
    while better:
        better = False
        for a, b in combinations(free, 2):
            undo = loads.move(_swap(loads, a, b))
            after = _score(loads, bounds)
            if _better(after, score):
                score, better = after, True
            else:
                loads.move(undo)
    return loads.devices


def refined(
    coarse: Coarse, machine: Machine, constraints: Constraints, devices: Sequence[int]
) -> list[int]:
    """class -> device, no worse than the start: the loads of the slowest devices, in that order.

    A contiguous start stays so; colours stay together, pins where they are.
    """
    loads = Loads(coarse, machine, devices)
    bounds = [math.inf if x is None else x for x in limits(machine, constraints)]
    keep = coarse.contiguous and loads.acyclic()
    score = _score(loads, bounds)
    for _ in range(ROUNDS):
        for moves in islice(_moves(coarse, loads, bounds), TRIALS):
            undo = loads.move(moves)
            after = _score(loads, bounds)
            if _better(after, score) and (not keep or loads.acyclic()):
                score = after
                break
            loads.move(undo)
        else:
            break
    return loads.devices


def _swap(loads: Loads, a: int, b: int) -> Moves:
    """Everything on two devices the other way round."""
    other = {a: b, b: a}
    return [(c, other[d]) for c, d in enumerate(loads.devices) if d in other]


def _score(loads: Loads, bounds: Sequence[float]) -> Score:
    over = sum(max(0.0, m - x) for m, x in zip(loads.memory, bounds, strict=True))
    return over, sorted(loads.seconds, reverse=True)


def _better(a: Score, b: Score) -> bool:
    """Whether a is less than b by more than rounding, of which an idle device has the others'."""
    if a[0] != b[0]:
        return a[0] < b[0]
    rounding = 1e-9 * max(a[1][0], b[1][0])
    for x, y in zip(a[1], b[1], strict=True):
        if abs(x - y) > rounding:
            return x < y
    return False


def _moves(coarse: Coarse, loads: Loads, bounds: Sequence[float]) -> Iterator[Moves]:
    """Moves off the slowest or fullest device, then swaps with it, of parts or as a whole."""
    k = len(loads.seconds)
    full = [d for d in range(k) if loads.memory[d] > bounds[d]]
    worst = max(full or range(k), key=lambda d: (loads.seconds[d], -d))
    loose = [p for p in parts(coarse) if all(coarse.pins[c] < 0 for c in p)]
    here = [p for p in loose if loads.devices[p[0]] == worst]
    there = [p for p in loose if loads.devices[p[0]] != worst]
    for part in here:
        yield from ([(c, d) for c in part] for d in range(k) if d != worst)
    if worst not in coarse.pins:
        yield from (_swap(loads, worst, d) for d in range(k) if d not in coarse.pins)
    for part in here:
        for other in there:
            d = loads.devices[other[0]]
            yield [*((c, d) for c in part), *((c, worst) for c in other)]
