"""Costs of nodes as they run once products are merged."""

from __future__ import annotations

import pytest

from partitioner.costs.cost import Speed
from partitioner.cutting.merging import MergedCosts, merge_whole
from symgraph.frontend.lower import lower
from symgraph.passes.gradients import gradients
from symgraph.passes.merge import home_of
from tests.helpers.recurrent import lstm_case

SPEED = Speed(1e9, 1e-4)  # a node takes long to begin, so that merging shows


def test_a_merged_product_counts_once_where_its_parts_are(unrolled):
    merged = merge_whole(unrolled)
    costs = MergedCosts(SPEED, unrolled)
    apart = sum(SPEED.seconds_of(node, unrolled) for node in unrolled)
    together = sum(costs.seconds_of(node, unrolled) for node in unrolled)
    assert together == pytest.approx(sum(SPEED.seconds_of(node, merged) for node in merged))
    assert together < 0.8 * apart
    for node in merged:
        if node.name not in unrolled.nodes and SPEED.seconds_of(node, merged):
            assert costs.seconds_of(unrolled[home_of(node)], unrolled) > 0


@pytest.fixture
def unrolled():
    """A small unrolled network with gradients, nothing merged."""
    case = lstm_case(2, 6)
    shapes = {name: array.shape for name, array in {**case.arrays, **case.feeds}.items()}
    graph = lower(case.symbol, shapes, dict.fromkeys(case.arrays, "float64"))
    return gradients(graph, [*case.arrays]).graph
