"""Lower bounds on the largest load, and the problem of memory alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from partitioner.solve.elements import elements
from partitioner.solve.problem import Array, Problem, Transfer


def lower_bound(problem: Problem) -> float:
    """What no placement is below, contiguous or not.

    The larger of: the costliest colour class on its best device; all work spread perfectly.
    """
    core = elements(problem, contiguous=False)
    cpu = core.cpu if problem.cpus else np.full(len(core), np.inf)
    acc = core.accelerator if problem.accelerators else np.full(len(core), np.inf)
    single = float(np.minimum(acc, cpu).max())
    return max(single, _spread(problem, acc, cpu))


def _spread(problem: Problem, acc: Array, cpu: Array) -> float:
    """The load of a fractional placement without communication.

    Work moves to the CPU cores by the accelerator time that it saves there; the load is where
    what remains on K accelerators and what has gone to L cores meet.
    """
    must = float(cpu[~np.isfinite(acc)].sum())
    both = np.isfinite(acc) & np.isfinite(cpu) & (acc > 0)
    work = float(acc[np.isfinite(acc)].sum())
    k, cores = problem.accelerators, problem.cpus
    if not k:
        return must / cores if cores else np.inf
    if not cores:
        return work / k
    moved = must
    a, c = acc[both], cpu[both]
    for v in np.argsort(-a / np.maximum(c, 1e-300), kind="stable"):
        if (moved + c[v]) / cores > (work - a[v]) / k:
            # the share x of v with (moved + x c) / cores == (work - x a) / k
            share = (work * cores - moved * k) / (c[v] * k + a[v] * cores)
            return (work - max(0.0, share) * a[v]) / k if share >= 0 else moved / cores
        moved += c[v]
        work -= a[v]
    return max(moved / cores, work / k)


def memory_problem(problem: Problem) -> Problem:
    """The same with memory for time: its smallest largest load is the smallest memory limit.

    CPU cores have no limit, so they take what they can for nothing.
    """
    return replace(
        problem,
        accelerator=np.where(np.isfinite(problem.accelerator), problem.memory, np.inf),
        cpu=np.where(np.isfinite(problem.cpu), 0.0, np.inf),
        memory=np.zeros(len(problem.names)),
        transfers=tuple(Transfer(t.source, t.targets, 0.0) for t in problem.transfers),
        memory_limit=math.inf,
    )
