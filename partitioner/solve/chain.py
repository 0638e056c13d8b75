"""The exact optimum for one topological order at a time, over several orders.

Fast, and often the true optimum; on graphs with parallel branches it may be far off, because the
best pieces are no intervals of any order at hand. It gives the exact methods their start.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import numpy as np

from partitioner.solve.bounds import lower_bound
from partitioner.solve.budget import Budget
from partitioner.solve.down_sets import prefixes
from partitioner.solve.elements import Elements, elements, mirrored
from partitioner.solve.problem import Problem, Solution, solution
from partitioner.solve.sweep import Pieces, sweep
from partitioner.solve.weights import weights
from symgraph.core.orders import Near, neighbours, topological
from symgraph.core.types import Array

RANDOM_ORDERS = 12


def orders(core: Elements) -> Iterator[list[int]]:
    """Yield topological orders: by number both ways, depth and breadth first, narrow, random."""
    near = neighbours(len(core), sorted(core.arcs))
    yield topological(*near, lambda v, step: v)
    yield topological(*near, lambda v, step: -v)
    yield topological(*near, lambda v, step: -step)
    yield topological(*near, lambda v, step: step)
    yield _narrow(core, *near)
    rng = np.random.default_rng(0)
    for _ in range(RANDOM_ORDERS):
        keys = rng.random(len(core))
        yield topological(*near, lambda v, step, keys=keys: keys[v])  # type: ignore[misc]


def _narrow(core: Elements, before: Near, after: Near) -> list[int]:
    """Build the order that cuts as little as it can at every step."""
    waits = [len(sources) for sources in before]
    held = core.nets_of
    inside, sizes = [0] * len(core.nets), [len(members) for _, members in core.nets]
    costs = [max(costs) for costs, _ in core.nets]

    def change(v: int) -> float:
        opened = sum(costs[e] for e in held[v] if not inside[e])
        closed = sum(costs[e] for e in held[v] if inside[e] + 1 == sizes[e])
        return opened - closed

    changes: dict[int, float] = {}  # of the elements that are ready
    heap: list[tuple[float, int]] = []  # the same, and entries that are out of date

    def weigh(some: Iterable[int]) -> None:
        for v in some:
            changes[v] = change(v)
            heapq.heappush(heap, (changes[v], v))

    weigh(v for v in range(len(core)) if not waits[v])
    order = []
    while heap:
        value, v = heapq.heappop(heap)
        if changes.get(v) != value:
            continue
        del changes[v]
        order.append(v)
        near: set[int] = set()
        for e in held[v]:
            inside[e] += 1
            if inside[e] in (1, sizes[e] - 1):  # opened, or all but one are in
                near.update(core.nets[e][1])
        for b in after[v]:
            waits[b] -= 1
        weigh(sorted(near & changes.keys()))
        weigh(b for b in after[v] if not waits[b])
    return order


def devices_of(core: Elements, pieces: Pieces) -> Array:
    """Turn a chain of pieces into element -> device; each kind is numbered along the chain."""
    devices = np.zeros(len(core), dtype=np.int64)
    kind_of = core.problem.kind_of
    following = [kind_of.index(g) for g in dict.fromkeys(kind_of)]
    for kind, members in pieces:
        devices[members] = following[kind]
        following[kind] += 1
    return devices


def best_chain(core: Elements, bound: float) -> tuple[float, Array] | None:
    """Find the best chain over all orders with a load below the bound: (load, node -> device)."""
    best = None
    costs = weights(core)
    for order in dict.fromkeys(map(tuple, orders(core))):
        chain = sweep(costs, prefixes(order), bound, Budget())
        if chain is not None:
            bound = chain[0]
            best = bound, core.assignment(devices_of(core, chain[1]))
    return best


def place_chain(problem: Problem, budget: Budget) -> Solution | None:
    """Find the best contiguous placement over some topological orders; None if none is feasible.

    It takes little time, so it does not look at the budget.
    """
    best = best_chain(mirrored(elements(problem, contiguous=True)), float("inf"))
    if best is None:
        return None
    return solution(problem, best[1], lower_bound(problem), "chain")
