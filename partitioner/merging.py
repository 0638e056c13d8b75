"""Merging for a placement: products over time become large ones where they run together."""

from __future__ import annotations

from collections.abc import Hashable

from partitioner.owners import owners
from partitioner.segments import time_segments
from partitioner.types import Placement
from symgraph.attribute import lookup
from symgraph.graph import Graph, Node
from symgraph.merge import home_of, merge_products, sum_products
from symgraph.simplify import share


def merge(graph: Graph, placement: Placement, time_segment: int | None = None) -> Graph:
    """The same graph with the products of each time segment merged, sums of products, and no
    call made twice.

    Products are merged within a ctx_group, so that the numbers are the same wherever groups are
    placed, and only if they are on one stage. A gradient that sums products over time is one
    product in the last segment of the backward phase.
    """
    owner = owners(graph, placement, time_segments(graph, time_segment))

    def group(node: Node) -> str | None:
        return lookup(graph[home_of(node)].tags, "ctx_group")

    def home(node: Node) -> Hashable:
        return owner[node.name], group(node)

    def over_time(node: Node) -> Hashable:
        stage, phase, _ = owner[node.name]
        return stage, phase, group(node)

    merged = sum_products(merge_products(graph, home), over_time)
    owner = owners(merged, placement, time_segments(merged, time_segment))
    return share(merged, lambda node: owner[node.name])
