"""Local search on the coarse graph: moves that relieve the slowest device, never ending worse.

It sees what the exact strategies do not: devices and links that differ, limits of single devices,
a value that is sent to several receivers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, islice

from partitioner.strategies.branch_and_bound import searched
from partitioner.strategies.coarse import Coarse, Moves
from partitioner.strategies.loads import Loads

MAX_IMPROVEMENTS = 200
MAX_TRIALS = 20_000  # moves looked at for one improvement
TRIAL_COST = 4_000  # steps of the budget for looking at a move

Score = tuple[float, list[float]]  # bytes over the limits; loads, the largest first


def proven(coarse: Coarse, devices: Sequence[int], bound: float) -> tuple[list[int], float]:
    """Refine a placement, then search until it meets the bound or the search ends.

    Returns:
        class -> device, and the bound that is then proved.
    """
    best = refined(coarse, devices)
    if bound < Loads(coarse, best).largest * (1 - 1e-9):
        best, done = searched(coarse, best)
        if done:
            bound = Loads(coarse, best).largest
    return best, bound


def swapped(coarse: Coarse, devices: Sequence[int]) -> list[int]:
    """Exchange the pieces of two devices for as long as that helps; return class -> device.

    Of idle devices that are alike, one is tried.
    """
    loads, bounds = Loads(coarse, devices), _bounds(coarse)
    score, better = _score(loads, bounds), True
    idle, worth = _idle(loads, coarse.alike)
    while better:
        better = False
        for a, b in combinations(range(len(bounds)), 2):
            if not (worth[a] and worth[b]) or (idle[a] and idle[b]):
                continue
            moves = _swap(loads, a, b)
            if not coarse.allows(moves):
                continue
            undo = loads.move(moves)
            after = _score(loads, bounds)
            if _better(after, score):
                score, better = after, True
                idle, worth = _idle(loads, coarse.alike)
            else:
                loads.move(undo)
    return loads.devices


def _idle(loads: Loads, alike: Sequence[int]) -> tuple[list[bool], list[bool]]:
    """Tell of each device whether it is idle, and whether no idle one before it is like it."""
    busy, seen = {*loads.devices}, set[int]()
    worth = []
    for d, number in enumerate(alike):
        worth.append(d in busy or number not in seen)
        if d not in busy:
            seen.add(number)
    return [d not in busy for d in range(len(alike))], worth


def refined(coarse: Coarse, devices: Sequence[int]) -> list[int]:
    """Move classes for as long as that helps; return class -> device.

    The result is no worse than the start: by the loads of the slowest devices, in that order. A
    contiguous start stays so; colours stay together, and where they may be.
    """
    loads, bounds = Loads(coarse, devices), _bounds(coarse)
    keep = coarse.contiguous and loads.acyclic()
    score = _score(loads, bounds)
    left = int(coarse.constraints.steps / TRIAL_COST)
    for _ in range(MAX_IMPROVEMENTS):
        moved = filter(coarse.allows, _moves(coarse, loads, bounds))
        for moves in islice(moved, min(MAX_TRIALS, left)):
            left -= 1
            undo = loads.move(moves)
            after = _score(loads, bounds)
            if _better(after, score) and (not keep or loads.acyclic()):
                score = after
                break
            loads.move(undo)
        else:
            break
    return loads.devices


def _bounds(coarse: Coarse) -> list[float]:
    return [math.inf if x is None else x for x in coarse.limits]


def _swap(loads: Loads, a: int, b: int) -> Moves:
    """List the moves that exchange everything on two devices."""
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
    """Yield moves off the slowest or fullest device, then swaps with it, of parts or as a whole."""
    k = len(loads.seconds)
    full = [d for d in range(k) if loads.memory[d] > bounds[d]]
    worst = max(full or range(k), key=lambda d: (loads.seconds[d], -d))
    off = [p for p in coarse.parts if loads.devices[p[0]] == worst]
    others = [p for p in coarse.parts if loads.devices[p[0]] != worst]
    for part in off:
        yield from ([(c, d) for c in part] for d in range(k) if d != worst)
    yield from (_swap(loads, worst, d) for d in range(k))
    for part in off:
        for other in others:
            d = loads.devices[other[0]]
            yield [*((c, d) for c in part), *((c, worst) for c in other)]
