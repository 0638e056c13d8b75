"""Placements without order: every node anywhere, only colour classes and limits hold.

For inference on one sample at a time, or with several pipelines interleaved, a device may hold
parts that do not follow each other. The start is the contiguous optimum, so the result is never
worse. Where there are few placements, all are tried. Else annealing improves the start, and a
mixed-integer programme proves a bound with what is left of the budget. The placement does not
depend on the clock, unless its end cuts the search short.
"""

from __future__ import annotations

import math

import numpy as np

from partitioner.solve.annealing import anneal, options, try_all
from partitioner.solve.bounds import lower_bound, memory_problem
from partitioner.solve.budget import Budget, Stopped
from partitioner.solve.contiguous import place_downsets
from partitioner.solve.elements import Elements, elements
from partitioner.solve.milp import programme
from partitioner.solve.problem import Problem, Solution, largest, solution, violations
from partitioner.solve.reduction import join_uncuttable, reduced
from symgraph.core.types import Array

MOST_TRIED = 1_000_000  # placements that are all tried
ROUNDS = 12
AGREEING = 3  # rounds from the start that end at the least load: it is taken for the best
MAX_STEPS = 1_500_000  # of annealing, in a round
STEPS_PER_PAIR = 5_000  # of a round, per element and device
MOVE_COST = 12  # steps of the budget for a step of annealing
START_SHARE, SEARCH_SHARE = 0.25, 0.5  # shares of the remaining budget


def place_noncontiguous(problem: Problem, budget: Budget) -> Solution | None:
    """Search for the best placement and a lower bound; None where no placement is feasible."""
    floor = lower_bound(problem)
    best = _start(problem, budget)
    if best is None:
        return None
    core = reduced(elements(problem, contiguous=False))
    core = reduced(join_uncuttable(core, largest(problem, best)))
    ways = math.prod(len(devices) for devices in options(core))
    if not ways:  # what must be together in a better placement has no device: there is none
        return solution(problem, best, largest(problem, best), "noncontiguous")
    if ways <= MOST_TRIED and ways <= budget.steps:
        found = core.assignment(try_all(core, core.devices(best)))
        floor = max(floor, largest(problem, found))
        return solution(problem, _better(problem, best, found), floor, "noncontiguous")
    best = _search(core, best, budget.part(SEARCH_SHARE), floor)
    load = largest(problem, best)
    if load > floor * (1 + 1e-9):
        core = reduced(join_uncuttable(core, load))
        proof = programme(core, load, budget)
        if proof is not None:
            floor = max(floor, min(proof[0], load))
            if proof[1] is not None:
                best = _better(problem, best, core.assignment(proof[1]))
    return solution(problem, best, floor, "noncontiguous")


def _better(problem: Problem, nodes: Array, other: Array) -> Array:
    """Return the other placement if it is feasible and has a smaller load."""
    if violations(problem, other, contiguous=False):
        return nodes
    return other if largest(problem, other) < largest(problem, nodes) else nodes


def _start(problem: Problem, budget: Budget) -> Array | None:
    """Find a feasible start: the contiguous optimum, even loads, or one that packs the memory."""
    row = place_downsets(problem, budget.part(START_SHARE))
    if row is not None:
        return np.array(row.assignment)
    even = _even(problem)
    if even is not None:
        return even
    if all(math.isinf(kind.memory_limit) for kind in problem.kinds):
        return None
    packed = place_noncontiguous(memory_problem(problem, shares=True), budget.part(START_SHARE))
    if packed is None or violations(problem, packed.assignment, contiguous=False):
        return None
    return np.array(packed.assignment)


def _even(problem: Problem) -> Array | None:
    """Put colour after colour on the device that is then loaded least, if that keeps all limits."""
    held: dict[int, list[int]] = {}
    for v, colour in enumerate(problem.colours):
        held.setdefault(colour if colour >= 0 else -2 - v, []).append(v)
    loads = np.zeros(problem.devices)
    nodes = np.zeros(len(problem.names), dtype=np.int64)
    for members in held.values():
        after = loads + [problem.kinds[g].times[members].sum() for g in problem.kind_of]
        device = int(after.argmin())
        if not math.isfinite(after[device]):
            return None
        loads[device], nodes[members] = after[device], device
    return None if violations(problem, nodes, contiguous=False) else nodes


def _search(core: Elements, nodes: Array, budget: Budget, floor: float) -> Array:
    """Anneal from the best so far and, every second round, from the start."""
    problem = core.problem
    first = core.devices(nodes)
    best, least = first, largest(problem, core.assignment(first))
    steps = min(MAX_STEPS, STEPS_PER_PAIR * len(core) * problem.devices)
    agreeing = 0
    for seed in range(ROUNDS):
        steps = int(min(steps, budget.steps / MOVE_COST))
        if steps < 1 or budget.spent or least <= floor * (1 + 1e-9) or agreeing == AGREEING:
            break
        again = seed % 2 == 1
        trial = anneal(core, first if again else best, steps, seed)
        load = largest(problem, core.assignment(trial))
        if load < least:
            best, least, agreeing = trial, load, 0
        agreeing += again and load <= least * (1 + 1e-9)
        try:
            budget.take(MOVE_COST * steps)
        except Stopped:
            break
    return _better(problem, nodes, core.assignment(best))
