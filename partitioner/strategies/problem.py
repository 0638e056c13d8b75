"""The coarse graph as a placement problem for partitioner.solve, and its answers as devices.

Every class becomes a forward node and a backward node of one colour, so that gradients may go
against the order of the forward pass. Devices of one speed, memory and links are a kind; what is
pinned to a device is a node that no other kind can run. The solver charges a device for a value
once and over one link, whichever device is at the other end: with the device's cheapest link its
answer is a bound, with the mean of all links a good placement.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partitioner.solve import STRATEGIES as SOLVERS
from partitioner.solve import Budget, Kind, Problem, Solution, Transfer
from partitioner.solve.bounds import lower_bound, memory_problem
from partitioner.solve.down_sets import TooMany, down_sets
from partitioner.solve.elements import elements
from partitioner.solve.reduction import reduced
from partitioner.solve.sweep import states
from partitioner.solve.weights import weights
from partitioner.strategies.coarse import Coarse
from partitioner.strategies.loads import Loads
from symgraph.core.errors import LimitError, PlacementError
from symgraph.core.types import Array
from symgraph.core.units import bytes_text

NOTHING = "no placement keeps all pins, groups and constraints; demand less of it"
MAX_DEVICE_SETS = 1024  # that a solver may tell apart


class CoarseProblem(NamedTuple):
    """The coarse graph as a problem of partitioner.solve."""

    problem: Problem
    #: Device of the problem -> device of the machine.
    devices: tuple[int, ...]

    def assignment(self, solution: Sequence[int], classes: int) -> list[int]:
        """Turn the solver's assignment into class -> device of the machine."""
        return [self.devices[d] for d in solution[:classes]]


def as_problem(coarse: Coarse, *, cheapest: bool = False) -> CoarseProblem:
    """Make the problem: nodes 0 .. n-1 are the classes' forward, n .. 2n-1 their backward parts.

    Args:
        coarse: the coarse graph.
        cheapest: charge a message as over the device's best link, not over the mean of all.
    """
    n = len(coarse)
    allowed = coarse.allowed.T
    times = [np.where(allowed[d], x, math.inf) for d, x in enumerate(coarse.times)]
    moves = [_moves(coarse, d, cheapest=cheapest) for d in range(len(times))]
    limits = [math.inf if x is None else x for x in coarse.limits]
    groups = _alike(times, moves, limits, _singled_out(coarse))
    best, most = (np.min, max) if cheapest else (np.max, min)  # of those taken as alike
    kinds = tuple(
        Kind(
            "device",
            len(held),
            np.concatenate([best([times[d] for d in held], axis=0), np.zeros(n)]),
            best([moves[d] for d in held], axis=0),
            most(limits[d] for d in held),
        )
        for held in groups
    )
    transfers = tuple(
        Transfer(s.centre + n * s.backward, tuple(c + n * s.backward for c in s.others), 0.0)
        for s in coarse.stars
    )
    colours = _colours(coarse)
    problem = Problem(
        (*coarse.names, *(f"{name} (backward)" for name in coarse.names)),
        kinds,
        np.concatenate([coarse.memory, np.zeros(n)]),
        transfers,
        (*colours, *colours),
        (*[False] * n, *[True] * n),
    )
    return CoarseProblem(problem, tuple(d for held in groups for d in held))


def _singled_out(coarse: Coarse) -> set[int]:
    """Find the devices that are not for the same classes as most are."""
    columns = [column.tobytes() for column in coarse.allowed.T]
    most = max(columns, key=columns.count)
    return {d for d, column in enumerate(columns) if column != most}


def _alike(
    times: Sequence[Array], moves: Sequence[Array], limits: Sequence[float], pinned: set[int]
) -> list[list[int]]:
    """Group the devices that are alike.

    If so many differ that a solver could not tell their sets apart, group those of about one speed.
    """
    groups: dict[object, list[int]] = {}
    for d, (time, move, limit) in enumerate(zip(times, moves, limits, strict=True)):
        key = time.tobytes(), move.tobytes(), limit, d if d in pinned else -1
        groups.setdefault(key, []).append(d)
    held = [group for group in groups.values() if group[0] in pinned]
    free = [group for group in groups.values() if group[0] not in pinned]
    order = sorted((d for g in free for d in g), key=lambda d: (float(times[d].sum()), d))
    count = len(free)
    while count > 1 and math.prod(len(group) + 1 for group in free) > MAX_DEVICE_SETS:
        count -= 1
        free = [part.tolist() for part in np.array_split(order, count)]
    return sorted(held + free)


def _colours(coarse: Coarse) -> list[int]:
    """Choose a colour for every class: that of its tie or pin, or its own number."""
    first: dict[tuple[int, int], int] = {}
    colours = list(range(len(coarse)))
    for c, (colour, pin) in enumerate(zip(coarse.colours, coarse.pins, strict=True)):
        if pin >= 0:
            colours[c] = first.setdefault((1, pin), c)
        elif colour >= 0:
            colours[c] = first.setdefault((0, colour), c)
    return colours


def _moves(coarse: Coarse, device: int, *, cheapest: bool) -> Array:
    """Estimate the time of each star's messages at that device."""
    others = (coarse.machine.link(device, b) for b in range(len(coarse.limits)) if b != device)
    links = Counter((x.latency, x.bandwidth) for x in others)
    if not links or not coarse.stars:
        return np.zeros(len(coarse.stars))
    amounts = np.array([(star.messages, star.nbytes) for star in coarse.stars], dtype=np.float64)
    times = np.stack([amounts @ (latency, 1 / bandwidth) for latency, bandwidth in sorted(links)])
    if cheapest or len(times) == 1:
        least: Array = times.min(axis=0)
        return least
    counts = [links[link] for link in sorted(links)]
    seconds: Array = np.average(times, axis=0, weights=counts)
    return seconds


def floor(coarse: Coarse) -> float:
    """Bound the load of any placement by the largest class, and by all work spread evenly."""
    return lower_bound(as_problem(coarse, cheapest=True).problem)


def slowness(coarse: Coarse) -> Array:
    """Return the time of all classes on each device, as a multiple of that on the fastest."""
    total = coarse.times.sum(axis=1)
    slow: Array = total / total.min() if total.min() > 0 else np.ones(len(total))
    return slow


def solved(coarse: Coarse, strategy: str) -> tuple[list[int], float]:
    """Place the classes by a strategy of partitioner.solve.

    Returns:
        class -> device, and a lower bound on the largest load.

    Raises:
        PlacementError: where nothing fits; it names the smallest memory limit that works.
    """

    def solve(problem: Problem, name: str) -> Solution | None:
        return SOLVERS[name](problem, Budget(steps=coarse.constraints.steps))

    exact = _exact_strategy(coarse)
    typical = as_problem(coarse)
    best = solve(typical.problem, strategy)
    if best is None and strategy != exact:  # no order that it tries fits the memory
        best = solve(typical.problem, exact)
    if best is None:
        raise _infeasible(coarse)
    devices = typical.assignment(best.assignment, len(coarse))
    if strategy != exact:
        return devices, floor(coarse)
    cheapest = as_problem(coarse, cheapest=True)
    if _same(typical.problem, cheapest.problem):
        return devices, best.lower_bound
    other = solve(cheapest.problem, exact)
    if other is None:
        return devices, lower_bound(cheapest.problem)
    trials = [devices, cheapest.assignment(other.assignment, len(coarse))]
    return min(trials, key=lambda trial: Loads(coarse, trial).largest), other.lower_bound


def _exact_strategy(coarse: Coarse) -> str:
    return "downsets" if coarse.contiguous else "noncontiguous"


def _same(a: Problem, b: Problem) -> bool:
    """Tell whether two problems of one coarse graph have the same kinds of devices."""
    return len(a.kinds) == len(b.kinds) and all(
        x.count == y.count
        and x.memory_limit == y.memory_limit
        and np.array_equal(x.times, y.times)
        and np.array_equal(x.moves, y.moves)  # type: ignore[arg-type]  # as_problem gives them
        for x, y in zip(a.kinds, b.kinds, strict=True)
    )


def is_narrow(coarse: Coarse, most: int) -> bool:
    """Tell whether the exact search has no more than `most` states to walk.

    They are the down-sets of the coarse graph, times the sets of devices that can hold each.
    """
    core = reduced(elements(as_problem(coarse).problem, contiguous=True))
    try:
        down_sets(len(core), core.arcs, most // states(weights(core)))
    except TooMany:
        return False
    return True


def least_memory(coarse: Coarse) -> list[int] | None:
    """Place the classes so that the fullest device holds the least; None: pins and ties clash."""
    target = as_problem(coarse)
    budget = Budget(steps=coarse.constraints.steps)
    least = SOLVERS[_exact_strategy(coarse)](memory_problem(target.problem), budget)
    return None if least is None else target.assignment(least.assignment, len(coarse))


def _infeasible(coarse: Coarse) -> PlacementError:
    """Explain that nothing fits: what devices hold in the placement with the smallest limit."""
    devices = least_memory(coarse)
    if devices is None:
        return PlacementError(NOTHING)
    memory = [0] * len(coarse.limits)
    for c, d in enumerate(devices):
        memory[d] += int(coarse.memory[c])
    return too_small(coarse, memory, max(memory), "")


def too_small(coarse: Coarse, memory: list[int], smallest: int, who: str) -> LimitError:
    """Explain that devices would hold too many bytes: `memory`, where `smallest` is the least."""
    limits = coarse.limits
    over = [m - math.inf if x is None else m - x for m, x in zip(memory, limits, strict=True)]
    worst = max(range(len(memory)), key=lambda d: (over[d], memory[d], -d))
    return LimitError(
        f"{coarse.machine.devices[worst].context} would have to hold {memory[worst]} bytes "
        f"({bytes_text(memory[worst])}), but its limit is {limits[worst]} bytes; the smallest "
        f"limit that works{who} is {smallest} bytes",
        smallest,
    )
