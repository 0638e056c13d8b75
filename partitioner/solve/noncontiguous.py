"""Placements without order: every node anywhere, only colour classes and limits hold.

For inference on one sample at a time, or with several pipelines interleaved, a device may hold
parts that do not follow each other. The start is the contiguous optimum, so the result is never
worse; annealing improves it, and a mixed-integer programme proves a bound in the time that is
left. The placement does not depend on the time, unless the limit cuts the search short.
"""

from __future__ import annotations

import math
import time

import numpy as np

from partitioner.solve.anneal import anneal
from partitioner.solve.bounds import lower_bound, memory_problem
from partitioner.solve.downsets import place_downsets
from partitioner.solve.elements import Elements, elements
from partitioner.solve.milp import programme
from partitioner.solve.problem import Array, Problem, Solution, evaluate, solution, violations
from partitioner.solve.reduce import glue, reduced

ROUNDS, STEPS = 12, 1_500_000  # the steps of a round at most; small problems take fewer
STEPS_EACH = 5_000  # for an element and a device
START_SHARE, SEARCH_SHARE = 0.25, 0.6  # of the time limit


def place_noncontiguous(problem: Problem, time_limit: float) -> Solution | None:
    """The best placement found, with a proven lower bound; None where none is feasible."""
    start = time.perf_counter()
    floor = lower_bound(problem)
    best = _start(problem, time_limit)
    if best is None:
        return None
    core = reduced(elements(problem, contiguous=False))
    load = _load(problem, best)
    core = reduced(glue(core, load))
    best = _search(core, best, start + SEARCH_SHARE * time_limit, floor)
    load = _load(problem, best)
    if load > floor * (1 + 1e-9):
        left = min(start + time_limit - time.perf_counter(), 3600.0)
        core = reduced(glue(core, load))
        found = programme(core, load, left)
        if found is not None:
            floor = max(floor, min(found[0], load))
            if found[1] is not None:
                best = _better(problem, best, core.assignment(found[1]))
    return solution(problem, best, floor, "noncontiguous")


def _load(problem: Problem, nodes: Array) -> float:
    return max(load.total for load in evaluate(problem, nodes))


def _better(problem: Problem, nodes: Array, other: Array) -> Array:
    """The other placement if it is feasible and has a smaller load."""
    if violations(problem, other, contiguous=False):
        return nodes
    return other if _load(problem, other) < _load(problem, nodes) else nodes


def _start(problem: Problem, time_limit: float) -> Array | None:
    """A feasible placement: the contiguous one, else one that packs the memory."""
    found = place_downsets(problem, START_SHARE * time_limit)
    if found is not None:
        return np.array(found.assignment)
    if not math.isfinite(problem.memory_limit):
        return None
    packed = place_noncontiguous(memory_problem(problem), START_SHARE * time_limit)
    if packed is None or violations(problem, packed.assignment, contiguous=False):
        return None
    return np.array(packed.assignment)


def _search(core: Elements, nodes: Array, deadline: float, floor: float) -> Array:
    """Annealing from the best so far and, every second round, from the start."""
    problem = core.problem
    first = _of_elements(core, nodes)
    best, least = first, _load(problem, core.assignment(first))
    steps = min(STEPS, STEPS_EACH * len(core) * problem.devices)
    for seed in range(ROUNDS):
        if time.perf_counter() > deadline or least <= floor * (1 + 1e-9):
            break
        trial = anneal(core, first if seed % 2 else best, steps, seed)
        load = _load(problem, core.assignment(trial))
        if load < least:
            best, least = trial, load
    return _better(problem, nodes, core.assignment(best))


def _of_elements(core: Elements, nodes: Array) -> Array:
    """node -> device as element -> device. What was joined may have been apart: the first rules."""
    devices = np.zeros(len(core), dtype=np.int64)
    devices[core.of[::-1]] = nodes[::-1]
    return devices
