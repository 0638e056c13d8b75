"""Orders of directed acyclic graphs: topological ones, closures and cycles."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.orders import closures, find_cycle, neighbours, topological

DIAMOND = [(3, 1), (3, 2), (1, 0), (2, 0)]  # 3 before 1 and 2, both before 0


def test_neighbours_are_in_the_order_of_the_arcs():
    assert neighbours(4, DIAMOND) == ([[1, 2], [3], [3], []], [[], [0], [0], [1, 2]])


def test_of_what_is_ready_the_smallest_key_comes_next():
    near = neighbours(4, DIAMOND)
    assert topological(*near, lambda v, step: v) == [3, 1, 2, 0]
    assert topological(*near, lambda v, step: -v) == [3, 2, 1, 0]
    assert topological(*neighbours(4, [(0, 3)]), lambda v, step: -step) == [0, 3, 1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed):
    rng = np.random.default_rng(seed)
    names = rng.permutation(12)
    arcs = [
        (int(names[a]), int(names[b])) for b in range(12) for a in range(b) if rng.random() < 0.2
    ]
    before, after = neighbours(12, arcs)
    order = topological(before, after, lambda v, step: v)
    assert sorted(order) == list(range(12))
    assert all(order.index(a) < order.index(b) for a, b in arcs)
    assert find_cycle(arcs) == []
    above, below = closures(before, order), closures(after, reversed(order))
    for a in range(12):
        for b in range(12):
            assert above[b] >> a & 1 == below[a] >> b & 1
    assert all(above[b] >> a & 1 for a, b in arcs)


def test_a_cycle_is_named_from_its_smallest_node_along_its_arcs():
    assert find_cycle([(0, 5), (5, 7), (7, 6), (6, 5), (7, 8)]) == [5, 7, 6]
