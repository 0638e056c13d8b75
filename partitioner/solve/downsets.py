"""The contiguous optimum on any DAG: the sweep over all down-sets of what cannot be split.

A good placement found on some topological orders bounds the search: it glues what no better
placement can cut, and it stops the walk from each down-set as soon as a piece is too heavy.

Elements without forward nodes (gradients that no colour binds) may go anywhere. They are
set aside: the sweep has a cost for them that is never too high (see relax.py), which gives a lower
bound, and the placement is finished by hand. Where bound and placement do not meet, the largest
of them join the down-sets as elements without order, as many as the family allows.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import networkx as nx
import numpy as np

from partitioner.solve.bounds import lower_bound
from partitioner.solve.chain import best_chain, devices_of, topological
from partitioner.solve.elements import Elements, elements, mirrored, ordered
from partitioner.solve.lattice import TooMany, down_sets
from partitioner.solve.problem import Array, Problem, Solution, evaluate, solution, violations
from partitioner.solve.reduce import glue, reduced, timeless
from partitioner.solve.relax import place_free, relaxed
from partitioner.solve.sweep import Stopped, sweep, weights

BAND_LIMIT = 60_000  # down-sets in a band
FREE_LIMIT = 8_000  # down-sets, where elements without order multiply them
Found = tuple[float, Array]  # largest load, node -> device


def place_downsets(problem: Problem, time_limit: float) -> Solution | None:
    """The optimal contiguous placement; None where none is feasible.

    After the time limit, or on graphs too wide to enumerate: the best found, and a bound.
    """
    deadline = time.perf_counter() + time_limit
    core = elements(problem, contiguous=True)
    exact, rough = reduced(core), reduced(core, weigh=False)
    best, floor = _start(rough), lower_bound(problem)
    try:
        if len(rough) < len(exact):
            best, _ = _exact(rough, best, floor, deadline)
            floor = _weightless(core, best, floor, deadline)
        if best is None or floor < best[0] * (1 - 1e-9):
            best, floor = _exact(exact, best, floor, deadline)
    except TooMany:
        best = _banded(rough, best, deadline)
    except Stopped:
        pass
    return None if best is None else solution(problem, best[1], floor, "downsets")


def _weightless(core: Elements, best: Found | None, floor: float, deadline: float) -> float:
    """A bound: the optimum if what takes no time took no memory either, and could be joined."""
    problem = core.problem
    memory = np.where(timeless(core)[core.of], 0.0, problem.memory)
    lighter = reduced(elements(replace(problem, memory=memory), contiguous=True))
    return _exact(lighter, best, floor, deadline)[1]


def _start(core: Elements) -> Found | None:
    best = best_chain(mirrored(core), math.inf)
    return None if best is None else _finished(core, best[1])


def _finished(core: Elements, nodes: Array) -> Found:
    """A placement with its free elements where they are best; its load by the definition."""
    nodes = place_free(core, nodes)
    return max(load.total for load in evaluate(core.problem, nodes)), nodes


def _exact(
    core: Elements, best: Found | None, floor: float, deadline: float
) -> tuple[Found | None, float]:
    """The optimum and its bound. Raises TooMany or Stopped."""
    bound = best[0] if best else _sum_of_all(core)
    glued = reduced(glue(core, bound))
    if not glued.free.any():
        best = _swept(glued, best, bound, deadline)
        return best, best[0] if best else floor
    for most in (1, FREE_LIMIT):
        aside = _set_aside(glued, most)
        if not aside.free.any():
            best = _swept(aside, best, best[0] if best else bound, deadline)
            return best, best[0] if best else floor
        best, floor = _around_free(glued, aside, best, floor, deadline)
        if best is not None and floor >= best[0] * (1 - 1e-9):
            break
    return best, floor


def _set_aside(core: Elements, most: int) -> Elements:
    """The same with fewer called free: the largest are left to the down-sets, within a limit."""
    free = np.flatnonzero(core.free)
    _, arcs, kept = relaxed(core)
    room = most // len(down_sets(len(kept), arcs))
    shares = [x / max(1e-300, x[np.isfinite(x)].sum()) for x in (core.accelerator, core.memory)]
    by_size = free[np.argsort(-(shares[0] + shares[1])[free], kind="stable")]
    called = core.free.copy()
    called[by_size[: max(0, room.bit_length() - 1)]] = False
    return replace(core, free=called)


def _sum_of_all(core: Elements) -> float:
    """More than any load."""
    finite = [x[np.isfinite(x)].sum() for x in (core.accelerator, core.cpu)]
    return float(sum(finite) + sum(cost for cost, _ in core.nets)) * 1.001 + 1.0


def _swept(core: Elements, best: Found | None, bound: float, deadline: float) -> Found | None:
    """The best of all down-sets below the bound, else what there was."""
    found = sweep(weights(core), down_sets(len(core), core.arcs), bound, deadline)
    if found is None:
        return best
    return _finished(core, core.assignment(devices_of(core, found[1])))


def _around_free(
    core: Elements, aside: Elements, best: Found | None, floor: float, deadline: float
) -> tuple[Found | None, float]:
    """Free elements bound to an order for the placement, and set aside for the bound."""
    best = _swept(mirrored(aside), best, best[0] if best else _sum_of_all(core), deadline)
    bound = best[0] if best else _sum_of_all(core)
    costs, arcs, kept = relaxed(aside)
    found = sweep(costs, down_sets(len(kept), arcs), bound * (1 - 1e-9), deadline)
    if found is None:
        return best, best[0] if best else floor
    pieces = [(kind, [int(kept[v]) for v in members]) for kind, members in found[1]]
    other = _finished(core, core.assignment(devices_of(core, pieces)))
    if (best is None or other[0] < best[0]) and not violations(
        core.problem, other[1], contiguous=True
    ):
        best = other
    return best, max(floor, found[0])


def _along(core: Elements, nodes: Array) -> list[int]:
    """A topological order that goes through the devices of a placement one after another."""
    devices = _of_first(core, nodes)
    rows: nx.DiGraph[int] = nx.DiGraph()
    rows.add_nodes_from(range(core.problem.devices))
    rows.add_edges_from(
        (int(devices[a]), int(devices[b])) for a, b in core.arcs
        if devices[a] != devices[b] and not core.free[a] and not core.free[b]
    )  # fmt: skip
    rank = {d: i for i, d in enumerate(nx.lexicographical_topological_sort(rows))}
    return topological(core, lambda v, step: rank[int(devices[v])])


def _of_first(core: Elements, nodes: Array) -> Array:
    """node -> device as element -> device, by the first node of each element."""
    devices = np.zeros(len(core), dtype=np.int64)
    devices[core.of[::-1]] = nodes[::-1]
    return devices


def _banded(core: Elements, best: Found | None, deadline: float) -> Found | None:
    """The best placement near the best order so far, in bands as wide as can be enumerated.

    An element may come at most `width` places earlier than in the order of the placement.
    """
    core = mirrored(core)
    while best is not None and time.perf_counter() < deadline:
        order = _along(core, best[1])
        for width in (24, 16, 12, 8, 5, 3):
            band = frozenset((order[i], order[i + width]) for i in range(len(order) - width))
            narrowed = ordered(core, band)
            try:
                family = down_sets(len(narrowed), narrowed.arcs, BAND_LIMIT)
                found = sweep(weights(narrowed), family, best[0] * (1 - 1e-9), deadline)
            except TooMany:
                continue
            except Stopped:
                return best
            break
        if found is None:
            return best
        best = _finished(core, narrowed.assignment(devices_of(narrowed, found[1])))
    return best
