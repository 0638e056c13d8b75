"""The coarse graph as a placement problem for partitioner.solve, and its answers as devices.

Every class becomes a forward node and a backward node of one colour, so that gradients may go
against the order of the forward pass. Devices of one speed, memory and links are a kind; what is
pinned to a device is a node that no other kind can run. The solver charges a device for a value
once and over one link, whoever is at the other end: the cheapest link of the device makes its
answer a bound, the mean of all a good placement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partitioner.costs.machine import Machine
from partitioner.solve import STRATEGIES as SOLVERS
from partitioner.solve import Budget, Kind, Problem, Transfer
from partitioner.solve.bounds import lower_bound, memory_problem
from partitioner.solve.down_sets import TooMany, down_sets
from partitioner.solve.elements import elements
from partitioner.solve.reduce import reduced
from partitioner.solve.sweep import states
from partitioner.solve.weights import weights
from partitioner.strategies.coarse import Coarse, limits
from partitioner.strategies.loads import Loads
from partitioner.strategies.types import Constraints
from symgraph.core.errors import LimitError, PlacementError
from symgraph.core.types import Array
from symgraph.core.units import bytes_text

STATES = 1024  # sets of devices that a solver may tell apart


class CoarseProblem(NamedTuple):
    """A problem on a machine. devices: of the problem -> of the machine."""

    problem: Problem
    devices: tuple[int, ...]

    def assignment(self, found: Sequence[int], classes: int) -> list[int]:
        """class -> device of the machine."""
        return [self.devices[d] for d in found[:classes]]


def as_problem(
    coarse: Coarse, machine: Machine, constraints: Constraints, *, cheapest: bool = False
) -> CoarseProblem:
    """The problem; nodes 0 .. n-1 are the classes' forward, n .. 2n-1 their backward parts.

    cheapest: a message takes what it takes over the device's best link, not the mean of all.
    """
    n = len(coarse)
    pins = np.array(coarse.pins)
    times = [np.where((pins >= 0) & (pins != d), math.inf, x) for d, x in enumerate(coarse.times)]
    moves = [_moves(coarse, machine, d, cheapest=cheapest) for d in range(len(times))]
    rooms = [math.inf if x is None else x for x in limits(machine, constraints)]
    groups = _alike(times, moves, rooms, {*coarse.pins} - {-1})
    best, most = (np.min, max) if cheapest else (np.max, min)  # of those taken as alike
    kinds = tuple(
        Kind(
            "device",
            len(held),
            np.concatenate([best([times[d] for d in held], axis=0), np.zeros(n)]),
            best([moves[d] for d in held], axis=0),
            most(rooms[d] for d in held),
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


def _alike(
    times: Sequence[Array], moves: Sequence[Array], rooms: Sequence[float], pinned: set[int]
) -> list[list[int]]:
    """Devices that are taken as alike: those that are.

    Where so many differ that a solver could not tell their sets apart, those of about one speed.
    """
    found: dict[object, list[int]] = {}
    for d, (time, move, room) in enumerate(zip(times, moves, rooms, strict=True)):
        key = time.tobytes(), move.tobytes(), room, d if d in pinned else -1
        found.setdefault(key, []).append(d)
    held = [group for group in found.values() if group[0] in pinned]
    free = [group for group in found.values() if group[0] not in pinned]
    order = sorted((d for g in free for d in g), key=lambda d: (float(times[d].sum()), d))
    count = len(free)
    while count > 1 and math.prod(len(group) + 1 for group in free) > STATES:
        count -= 1
        free = [part.tolist() for part in np.array_split(order, count)]
    return sorted(held + free)


def _colours(coarse: Coarse) -> list[int]:
    """A colour for every class: that of its tie or pin, or its own."""
    first: dict[tuple[int, int], int] = {}
    found = list(range(len(coarse)))
    for c, (colour, pin) in enumerate(zip(coarse.colours, coarse.pins, strict=True)):
        if pin >= 0:
            found[c] = first.setdefault((1, pin), c)
        elif colour >= 0:
            found[c] = first.setdefault((0, colour), c)
    return found


def _moves(coarse: Coarse, machine: Machine, device: int, *, cheapest: bool) -> Array:
    """Time of each star's messages at that device."""
    links = [machine.link(device, b) for b in range(len(machine.devices)) if b != device]
    if not links or not coarse.stars:
        return np.zeros(len(coarse.stars))
    amounts = np.array([(star.messages, star.nbytes) for star in coarse.stars], dtype=np.float64)
    times = np.stack([amounts @ (x.latency, 1 / x.bandwidth) for x in links])
    found: Array = times.min(axis=0) if cheapest else times.mean(axis=0)
    return found


def floor(coarse: Coarse, machine: Machine, constraints: Constraints) -> float:
    """What no placement of the classes is below: the largest class, and all work spread evenly."""
    return lower_bound(as_problem(coarse, machine, constraints, cheapest=True).problem)


def slowness(coarse: Coarse) -> Array:
    """The time of all classes on each device, as a multiple of that on the fastest."""
    total = coarse.times.sum(axis=1)
    slow: Array = total / total.min() if total.min() > 0 else np.ones(len(total))
    return slow


def solved(
    coarse: Coarse, machine: Machine, constraints: Constraints, strategy: str
) -> tuple[list[int], float]:
    """class -> device by a strategy of partitioner.solve, and a bound on the largest load.

    Raises PlacementError, naming the smallest memory limit that works, where nothing fits.
    """
    exact = "downsets" if coarse.contiguous else "noncontiguous"
    typical = as_problem(coarse, machine, constraints)
    found = SOLVERS[strategy](typical.problem, Budget(steps=constraints.steps))
    if found is None and strategy != exact:  # no order that it tries fits the memory
        found = SOLVERS[exact](typical.problem, Budget(steps=constraints.steps))
    if found is None:
        raise _infeasible(coarse, machine, constraints)
    devices = typical.assignment(found.assignment, len(coarse))
    cheapest = as_problem(coarse, machine, constraints, cheapest=True)
    if strategy != exact:
        return devices, floor(coarse, machine, constraints)
    if _same(typical.problem, cheapest.problem):
        return devices, found.lower_bound
    other = SOLVERS[exact](cheapest.problem, Budget(steps=constraints.steps))
    if other is None:
        return devices, lower_bound(cheapest.problem)
    trials = [devices, cheapest.assignment(other.assignment, len(coarse))]
    loads = [max(Loads(coarse, machine, trial).seconds) for trial in trials]
    return trials[loads.index(min(loads))], other.lower_bound


def _same(a: Problem, b: Problem) -> bool:
    """Whether two problems of one coarse graph have the same kinds of devices."""
    return len(a.kinds) == len(b.kinds) and all(
        x.count == y.count
        and x.memory_limit == y.memory_limit
        and np.array_equal(x.times, y.times)
        and np.array_equal(x.moves, y.moves)  # type: ignore[arg-type]  # as_problem gives them
        for x, y in zip(a.kinds, b.kinds, strict=True)
    )


def is_narrow(coarse: Coarse, machine: Machine, constraints: Constraints, most: int) -> bool:
    """Whether the exact search has no more to walk than that: down-sets of the coarse graph, times
    the sets of devices that can hold each."""
    core = reduced(elements(as_problem(coarse, machine, constraints).problem, contiguous=True))
    try:
        down_sets(len(core), core.arcs, most // states(weights(core)))
    except TooMany:
        return False
    return True


def _infeasible(coarse: Coarse, machine: Machine, constraints: Constraints) -> PlacementError:
    """Why nothing fits: what the devices hold in the placement with the smallest limit."""
    exact = "downsets" if coarse.contiguous else "noncontiguous"
    target = as_problem(coarse, machine, constraints)
    least = SOLVERS[exact](memory_problem(target.problem), Budget(steps=constraints.steps))
    if least is None:
        return PlacementError("no placement keeps all pins and groups; pin fewer of them")
    memory = [0] * len(machine.devices)
    for c, d in enumerate(target.assignment(least.assignment, len(coarse))):
        memory[d] += int(coarse.memory[c])
    return too_small(machine, constraints, memory, max(memory), "")


def too_small(
    machine: Machine, constraints: Constraints, memory: list[int], smallest: int, who: str
) -> LimitError:
    """The error of a placement whose devices would hold that much."""
    given = limits(machine, constraints)
    over = [m - math.inf if x is None else m - x for m, x in zip(memory, given, strict=True)]
    worst = max(range(len(memory)), key=lambda d: (over[d], memory[d], -d))
    return LimitError(
        f"{machine.devices[worst].context} would have to hold {memory[worst]} bytes "
        f"({bytes_text(memory[worst])}), but its limit is {given[worst]} bytes; the smallest "
        f"limit that works{who} is {smallest} bytes"
    )
