"""Merging for a placement: products over time become large ones where they run together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable

from partitioner.base.node_bodies import assign_bodies
from partitioner.base.segments import time_segments
from partitioner.base.types import Placement
from partitioner.costs.cost import Costs
from symgraph.core.context import cpu
from symgraph.core.graph import Graph, Node
from symgraph.core.tags import lookup
from symgraph.passes.merge import home_of, merge_products, sum_products
from symgraph.passes.simplify import share


def merge(
    graph: Graph,
    placement: Placement,
    time_segment: int | None = None,
    others: Iterable[Graph] = (),
) -> Graph:
    """Merge the products of each time segment and sums of products, and make no call twice.

    Products are merged within a ctx_group, so that the numbers are the same wherever groups are
    placed, and only if they are on one stage. A gradient that sums products over time is one
    product in the last segment of the backward phase.

    Args:
        others: the graph for other sizes of micro-batches, which are all cut alike: calls that are
            equal for one size alone, as sums to (N, 4) and (1, 4) are for N = 1, are both made.
    """
    body_of = assign_bodies(graph, placement, time_segments(graph, time_segment))

    def group(node: Node) -> str | None:
        return lookup(graph[home_of(node)].tags, "ctx_group")

    def home(node: Node) -> Hashable:
        return body_of[node.name], group(node)

    def over_time(node: Node) -> Hashable:
        stage, phase, _ = body_of[node.name]
        return stage, phase, group(node)

    merged = sum_products(merge_products(graph, home), over_time)
    if merged is not graph:
        body_of = assign_bodies(merged, placement, time_segments(merged, time_segment))
    alike = [graph.nodes for graph in others]

    def apart(node: Node) -> Hashable:
        same = [nodes[node.name].attrs for nodes in alike if node.name in nodes]
        return body_of[node.name], *[tuple(sorted(attrs.items())) for attrs in same]

    return share(merged, apart)


def merge_whole(graph: Graph, time_segment: int | None = None) -> Graph:
    """Merge a graph as if all of it were on one device."""
    stage = Placement(dict.fromkeys(graph.nodes, 0), (0,), (cpu(0),))
    return merge(graph, stage, time_segment)


class MergedCosts:
    """Seconds of a graph's nodes with its products merged, as they will run.

    A merged product's time counts for one of its parts, and the others take none: they read one
    weight, so they are on one device anyway.
    """

    def __init__(self, costs: Costs, graph: Graph) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        merged = merge_whole(graph)
        for node in merged:
            seconds = costs.seconds_of(node, merged)
            if seconds:
                same = graph.nodes.get(node.name)
                kept = same is not None and same.op == node.op
                self._seconds[node.name if kept else home_of(node)] += seconds

    def seconds_of(self, node: Node, graph: Graph) -> float:
        """Return the seconds of a node of the graph that was merged."""
        return self._seconds.get(node.name, 0.0)
