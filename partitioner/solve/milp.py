"""The same placement as a mixed-integer programme, for the bound that it proves (HiGHS).

    minimise T       x[v, d] = 1: element v is on device d        y[e, d] = 1: d pays for net e
    each v on one d;  loads <= T;  memory <= limit;  y[e, d] >= x[v, d] - x[w, d] for v, w next to
    each other in the ring of e's elements (a part of e on d shows as a step somewhere)

Devices of a kind are alike: the element that is i-th heaviest goes to one of the first i + 1.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix, csr_matrix

from partitioner.solve.elements import Elements
from partitioner.solve.problem import Array
from partitioner.solve.sweep import weights

LARGEST = 12_000  # variables: beyond, nothing is proven in reasonable time


def programme(core: Elements, bound: float, seconds: float) -> tuple[float, Array | None] | None:
    """(lower bound, element -> device where proven optimal), None where it is too large.

    bound: a load that some placement has.
    """
    n, k, nets = len(core), core.problem.devices, len(core.nets)
    accs = core.problem.accelerators
    count = n * k + nets * accs + 1
    if count > LARGEST or seconds <= 0:
        return None
    times = np.repeat(np.stack([core.accelerator, core.cpu]), [accs, k - accs], axis=0).T
    top = np.where(np.isfinite(times) & (times <= bound), 1.0, 0.0).ravel()
    heavy = np.argsort(-core.accelerator, kind="stable")
    for i, v in enumerate(heavy[:accs]):
        top[v * k + i + 1 : v * k + accs] = 0.0
    upper = np.concatenate([top, np.ones(nets * accs), [bound]])
    found = milp(
        np.eye(1, count, count - 1)[0],
        integrality=np.repeat([1, 0], [n * k, count - n * k]),
        bounds=Bounds(0, upper),
        constraints=_constraints(core, np.where(np.isfinite(times), times, 0.0), count),
        options={"time_limit": seconds, "mip_rel_gap": 1e-6},
    )
    if found.status == 2:  # infeasible: nothing is below the bound
        return bound, None
    proven = found.mip_dual_bound if found.mip_dual_bound is not None else 0.0
    devices = None
    if found.status == 0:
        devices = found.x[: n * k].reshape(n, k).argmax(axis=1)
    return (float(proven) if math.isfinite(proven) else 0.0), devices


def _constraints(core: Elements, times: Array, count: int) -> list[LinearConstraint]:
    n, k, accs = len(core), core.problem.devices, core.problem.accelerators
    once = [(v, v * k + d, 1.0) for v in range(n) for d in range(k)]
    load = [(d, v * k + d, times[v, d]) for v in range(n) for d in range(k)]
    load += [
        (d, n * k + e * accs + d, cost) for e, (cost, _) in enumerate(core.nets)
        for d in range(accs)
    ]  # fmt: skip
    load += [(d, count - 1, -1.0) for d in range(k)]
    ring: list[tuple[int, int, float]] = []
    rows = 0
    for e, (_, members) in enumerate(core.nets):
        for v, w in zip(members, (*members[1:], members[0]), strict=True):
            for d in range(accs):
                ring += [(rows, v * k + d, 1.0), (rows, w * k + d, -1.0)]
                ring.append((rows, n * k + e * accs + d, -1.0))
                rows += 1
    found = [
        LinearConstraint(_matrix(once, n, count), 1, 1),
        LinearConstraint(_matrix(load, k, count), -np.inf, 0),
    ]
    if rows:
        found.append(LinearConstraint(_matrix(ring, rows, count), -np.inf, 0))
    limit = weights(core).limit
    if accs and core.memory.sum() > limit:
        size = [(d, v * k + d, core.memory[v] / limit) for v in range(n) for d in range(accs)]
        found.append(LinearConstraint(_matrix(size, accs, count), -np.inf, 1))
    return found


def _matrix(entries: list[tuple[int, int, float]], height: int, width: int) -> csr_matrix:
    table = np.array(entries, dtype=np.float64)
    at = (table[:, 0].astype(np.int64), table[:, 1].astype(np.int64))
    return coo_matrix((table[:, 2], at), shape=(height, width)).tocsr()
