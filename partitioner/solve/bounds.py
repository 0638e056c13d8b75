"""Lower bounds on the largest load, and the problem of memory alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from partitioner.solve.elements import elements
from partitioner.solve.prices import priced
from partitioner.solve.problem import Problem


def lower_bound(problem: Problem) -> float:
    """Bound the largest load of any placement, contiguous or not.

    It is the larger of the costliest colour class on its best device and all work spread perfectly.
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
    """Put memory in the place of time: the least load is then the smallest memory limit.

    Args:
        problem: the problem; on devices without a limit nodes take no time.
        shares: whether to count memory as a share of each device's limit, so that a placement
            keeps the limits if its load is at most 1.
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
