"""The same placement as a mixed-integer programme, for the bound that it proves (HiGHS).

    minimise T       x[v, d] = 1: element v is on device d        y[e, d] = 1: d pays for net e
    each v on one d;  loads <= T;  memory <= limit;  y[e, d] >= x[v, d] - x[w, d] for v, w next to
    each other in the ring of e's elements (a part of e on d shows as a step somewhere)

Devices of a kind are alike: the element that is i-th heaviest goes, if it goes to that kind, to
one of its first i + 1. HiGHS counts its nodes, so where the clock does not stop it, it finds the
same every time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partitioner.solve.budget import Budget
from partitioner.solve.elements import Elements
from partitioner.solve.highs import Row, matrix, minimise
from symgraph.core.types import Array

MAX_VARIABLES = 12_000  # larger programmes prove nothing in reasonable time
STEPS_PER_VARIABLE = 1_000.0  # steps of the budget for each node of the search
STEPS_PER_PAIR = 10.0  # for the first node, per pair of variables: no option of HiGHS limits it
NO_LIMIT = 1e9  # seconds or nodes


def programme(core: Elements, bound: float, budget: Budget) -> tuple[float, Array | None] | None:
    """Solve the programme, unless it is too large.

    Args:
        core: the elements.
        bound: a load that some placement has.
        budget: the budget of the search.

    Returns:
        A lower bound, and element -> device where that is proven optimal.
    """
    n, k, nets = len(core), core.problem.devices, len(core.nets)
    count = n * k + nets * k + 1
    nodes = (budget.steps - STEPS_PER_PAIR * count**2) / (STEPS_PER_VARIABLE * count)
    if count > MAX_VARIABLES or budget.spent or nodes < 1:
        return None
    times = core.times[core.kind_of].T
    top = _allowed(core, times <= bound)
    result = minimise(
        np.eye(1, count, count - 1)[0],
        _constraints(core, np.where(np.isfinite(times), times, 0.0), count),
        np.concatenate([top, np.ones(nets * k), [bound]]),
        integrality=np.repeat([1, 0], [n * k, count - n * k]),
        options={
            "mip_rel_gap": 1e-6,
            "time_limit": min(budget.seconds, NO_LIMIT),
            "node_limit": int(min(nodes, NO_LIMIT)),
        },
    )
    if result.status == 2:  # infeasible: nothing is below the bound
        return bound, None
    proven = result.mip_dual_bound if result.mip_dual_bound is not None else 0.0
    devices = None
    if result.status == 0:
        devices = result.x[: n * k].reshape(n, k).argmax(axis=1)
    return (float(proven) if math.isfinite(proven) else 0.0), devices


def _allowed(core: Elements, runs: Array) -> Array:
    """Return the upper bounds of all x[v, d]: 1 where v may go to d."""
    top = runs.astype(np.float64)
    heavy = np.argsort(-core.times.min(axis=0), kind="stable")
    first = 0
    for kind in core.kinds:
        for i, v in enumerate(heavy[: kind.count]):
            top[v, first + i + 1 : first + kind.count] = 0.0
        first += kind.count
    return top.ravel()


def _constraints(core: Elements, times: Array, count: int) -> list[Row]:
    n, k, kind_of = len(core), core.problem.devices, core.kind_of
    once = [(v, v * k + d, 1.0) for v in range(n) for d in range(k)]
    load = [(d, v * k + d, times[v, d]) for v in range(n) for d in range(k)]
    load += [
        (d, n * k + e * k + d, costs[kind_of[d]])
        for e, (costs, _) in enumerate(core.nets)
        for d in range(k)
    ]
    load += [(d, count - 1, -1.0) for d in range(k)]
    ring: list[tuple[int, int, float]] = []
    rows = 0
    for e, (costs, members) in enumerate(core.nets):
        paying = [d for d in range(k) if costs[kind_of[d]] > 0]
        for v, w in zip(members, (*members[1:], members[0]), strict=True):
            for d in paying:
                ring += [(rows, v * k + d, 1.0), (rows, w * k + d, -1.0)]
                ring.append((rows, n * k + e * k + d, -1.0))
                rows += 1
    constraints: list[Row] = [
        (_matrix(once, n, count), 1, 1),
        (_matrix(load, k, count), -np.inf, 0),
    ]
    if rows:
        constraints.append((_matrix(ring, rows, count), -np.inf, 0))
    limits = core.limits[kind_of]
    tight = [d for d in range(k) if core.memory.sum() > limits[d]]
    if tight:
        size = [
            (i, v * k + d, core.memory[v] / max(limits[d], 1e-300))
            for i, d in enumerate(tight)
            for v in range(n)
        ]
        constraints.append((_matrix(size, len(tight), count), -np.inf, 1))
    return constraints


def _matrix(entries: list[tuple[int, int, float]], height: int, width: int) -> Any:
    table = np.array(entries, dtype=np.float64)
    rows, columns = table[:, :2].T.astype(np.int64)
    return matrix(table[:, 2], rows, columns, (height, width))
