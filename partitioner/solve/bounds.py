"""Lower bounds on the largest load, and the problem of memory alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from partitioner.solve.elements import elements
from partitioner.solve.prices import priced
from partitioner.solve.problem import Problem


def lower_bound(problem: Problem) -> float:
    """What no placement is below, contiguous or not.

    The larger of: the costliest colour class on its best device; all work spread perfectly.
    """
    core = elements(problem, contiguous=False)
    if not core.kinds:
        return math.inf
    single = float(core.times.min(axis=0).max())
    if math.isinf(single):
        return math.inf
    counts = np.array([kind.count for kind in core.kinds])
    spread = priced(core.times, core.prices).sum() / (counts * core.prices).sum()
    return max(single, float(spread))


def memory_problem(problem: Problem, *, shares: bool = False) -> Problem:
    """The same with memory for time: its smallest largest load is the smallest memory limit.

    Devices without a limit take what they can for nothing. shares: memory as a share of each
    device's limit, so that up to a load of 1 there is a placement.
    """
    kinds = []
    for kind in problem.kinds:
        limit = kind.memory_limit
        taken = problem.memory if math.isfinite(limit) else np.zeros(len(problem.names))
        if shares:
            taken = np.where(taken > 0, taken / max(limit, 1e-300), 0.0)
        times = np.where(np.isfinite(kind.times), taken, math.inf)
        still = np.zeros(len(problem.transfers))
        kinds.append(replace(kind, times=times, moves=still, memory_limit=math.inf))
    return replace(problem, kinds=tuple(kinds), memory=np.zeros(len(problem.names)))
