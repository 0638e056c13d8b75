"""Orders: topological orders and ancestors in directed acyclic graphs of the nodes 0 .. n-1."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

Near = Sequence[Collection[int]]  # the neighbours of each node on one side


def neighbours(n: int, arcs: Iterable[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    """List the predecessors and the successors of every node, in the order of the arcs."""
    before: list[list[int]] = [[] for _ in range(n)]
    after: list[list[int]] = [[] for _ in range(n)]
    for a, b in arcs:
        before[b].append(a)
        after[a].append(b)
    return before, after


def topological(before: Near, after: Near, key: Callable[[int, int], Any]) -> list[int]:
    """Sort by Kahn's algorithm; of the nodes that are ready, the one with the smallest key is next.

    Args:
        before: the predecessors of each node.
        after: the successors of each node.
        key: called with a node and the step at which it became ready; returns what is compared.
    """
    waits = [len(sources) for sources in before]
    ready = [(key(v, 0), v) for v, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        v = heapq.heappop(ready)[1]
        order.append(v)
        for b in after[v]:
            waits[b] -= 1
            if not waits[b]:
                heapq.heappush(ready, (key(b, len(order)), b))
    return order


def closures(near: Near, order: Iterable[int]) -> list[int]:
    """Bit sets of each node and all that it reaches by way of its neighbours on one side.

    Args:
        near: the neighbours: predecessors for ancestors, successors for descendants.
        order: the nodes, each after its neighbours.
    """
    reach = [1 << v for v in range(len(near))]
    for v in order:
        for u in near[v]:
            reach[v] |= reach[u]
    return reach


def find_cycle(arcs: Iterable[tuple[int, int]]) -> list[int]:
    """Return the nodes of a cycle, the smallest first, or an empty list if there is none."""
    import networkx as nx  # on demand: most programs never ask

    try:
        cycle = [a for a, _ in nx.find_cycle(nx.DiGraph(list(arcs)))]
    except nx.NetworkXNoCycle:
        return []
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]
