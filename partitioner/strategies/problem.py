"""The coarse graph as a placement problem for partitioner.solve, with pins.

Every class becomes a forward node and a backward node of one colour, so that gradients may go
against the order of the forward pass. The solver's devices are alike: a machine whose devices
differ counts as one with the fastest device, the mean link and the least memory on each.

Pins are put as memory: what is pinned to a device takes `unit` bytes more than it does, more than
all classes together. Each device has room for one unit, so no two of them share a device; with a
memory limit, the devices without a pin have a stand-in of one unit.
"""

from __future__ import annotations

import math

import numpy as np

from partitioner.machine import Machine
from partitioner.solve import STRATEGIES as SOLVERS
from partitioner.solve import Problem, Solution, Transfer
from partitioner.solve.bounds import memory_problem
from partitioner.solve.elements import elements
from partitioner.solve.lattice import TooMany, down_sets
from partitioner.solve.reduce import reduced
from partitioner.strategies.coarse import Coarse, limits
from partitioner.strategies.types import Constraints
from symgraph.errors import PlacementError
from symgraph.units import bytes_text


def as_problem(coarse: Coarse, machine: Machine, limit: float) -> Problem:
    """The problem; nodes 0 .. n-1 are the classes' forward, n .. 2n-1 their backward parts."""
    n, k = len(coarse), len(machine.devices)
    first, colours = _representatives(coarse)
    bound = math.isfinite(limit) and int(coarse.memory.sum()) > limit
    unit = _unit(coarse) if first else 0
    memory = (coarse.memory if bound else np.zeros(n)).astype(np.float64)
    memory[list(first.values())] += unit
    standins = k - len(first) if first and bound else 0
    room = unit + limit if bound else unit if first else math.inf
    transfers = [
        Transfer(
            star.centre + n * star.backward,
            tuple(c + n * star.backward for c in star.others),
            _seconds(machine, star.messages, star.nbytes),
        )
        for star in coarse.stars
    ]
    transfers += [Transfer(2 * n + i, (2 * n + i + 1,), 0.0) for i in range(standins - 1)]
    nothing = np.zeros(standins)
    return Problem(
        (*coarse.names, *(f"{name} (backward)" for name in coarse.names), *["nothing"] * standins),
        np.concatenate([coarse.forward, coarse.backward, nothing]),
        np.full(2 * n + standins, math.inf),
        np.concatenate([memory, np.zeros(n), nothing + unit]),
        tuple(transfers), k, memory_limit=room,
        colours=(*colours, *colours, *[-1] * standins),
        backward=(*[False] * n, *[True] * n, *[False] * standins),
    )  # fmt: skip


def _representatives(coarse: Coarse) -> tuple[dict[int, int], tuple[int, ...]]:
    """Pinned device -> its first class; and a colour for every class."""
    first: dict[int, int] = {}
    colours = [len(coarse) + c for c in range(len(coarse))]
    by_colour: dict[int, int] = {}
    for c, (colour, pin) in enumerate(zip(coarse.colours, coarse.pins, strict=True)):
        if colour >= 0:
            colours[c] = by_colour.setdefault(colour, c)
        if pin >= 0:
            first.setdefault(pin, c)
    return first, tuple(colours)


def _unit(coarse: Coarse) -> int:
    return int(coarse.memory.sum()) + 1


def _seconds(machine: Machine, messages: int, nbytes: int) -> float:
    """Time of messages over the mean of all links."""
    k = len(machine.devices)
    links = [machine.link(a, b) for a in range(k) for b in range(k) if a != b]
    times = [messages * x.latency + nbytes / x.bandwidth for x in links]
    return float(np.mean(times)) if times else 0.0


def solved(
    coarse: Coarse, machine: Machine, constraints: Constraints, strategy: str, seconds: float
) -> tuple[list[int], Solution]:
    """class -> device by a strategy of partitioner.solve.

    Raises PlacementError, naming the smallest memory limit that works, where there is none.
    """
    given = [x for x in limits(machine, constraints) if x is not None]
    problem = as_problem(coarse, machine, min(given, default=math.inf))
    exact = "downsets" if coarse.contiguous else "noncontiguous"
    found = SOLVERS[strategy](problem, seconds)
    if found is None and strategy != exact:  # no order that it tries fits the memory
        found = SOLVERS[exact](problem, seconds)
    if found is None:
        least = SOLVERS[exact](memory_problem(problem), seconds)
        raise _infeasible(coarse, machine, constraints, least)
    return _on_devices(coarse, machine, found), found


def is_narrow(coarse: Coarse, machine: Machine, most: int) -> bool:
    """Whether the coarse graph has no more down-sets than that: what the exact search walks."""
    core = reduced(elements(as_problem(coarse, machine, math.inf), contiguous=True))
    try:
        down_sets(len(core), core.arcs, most)
    except TooMany:
        return False
    return True


def _on_devices(coarse: Coarse, machine: Machine, found: Solution) -> list[int]:
    """class -> device of the machine: the pinned where they are pinned, the others in order."""
    first, _ = _representatives(coarse)
    device = {found.assignment[c]: pin for pin, c in first.items()}
    free = iter(d for d in range(len(machine.devices)) if d not in first)
    for d in dict.fromkeys(found.assignment[: len(coarse)]):
        if d not in device:
            device[d] = next(free)
    return [device[d] for d in found.assignment[: len(coarse)]]


def _infeasible(
    coarse: Coarse, machine: Machine, constraints: Constraints, least: Solution | None
) -> PlacementError:
    """Why nothing fits; least: the placement with the smallest memory limit."""
    if least is None:
        return PlacementError("no placement keeps all pins and groups; pin fewer of them")
    memory = [0] * len(machine.devices)
    for c, d in enumerate(_on_devices(coarse, machine, least)):
        memory[d] += int(coarse.memory[c])
    return too_small(machine, constraints, memory, max(memory), "")


def too_small(
    machine: Machine, constraints: Constraints, memory: list[int], smallest: int, who: str
) -> PlacementError:
    """The error of a placement whose devices would hold that much."""
    given = limits(machine, constraints)
    over = [m - math.inf if x is None else m - x for m, x in zip(memory, given, strict=True)]
    worst = max(range(len(memory)), key=lambda d: (over[d], memory[d], -d))
    return PlacementError(
        f"{machine.devices[worst].context} would have to hold {memory[worst]} bytes "
        f"({bytes_text(memory[worst])}), but its limit is {given[worst]} bytes; the smallest "
        f"limit that works{who} is {smallest} bytes"
    )
