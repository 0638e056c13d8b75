"""Transfer of a placement to a network that is unrolled over another number of time steps.

The buckets of a network have the same groups and parameters, but not the same nodes: automatic
names are shifted, and there are fewer time steps. So nodes are matched by what does not change:
their group, operator, parameters and the fed variables that they depend on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable

from partitioner.base.stages import form_stages
from partitioner.base.types import Placement
from symgraph.core.graph import Graph, Node
from symgraph.core.tags import lookup
from symgraph.passes.shards import place_of


def carry(
    graph: Graph, known: Graph, placement: Placement, parameters: Collection[str]
) -> Placement:
    """Place `graph` as `known` is placed, every parameter on the same rank.

    A node goes where most nodes of `known` are that have its group, operator, parameters and feeds
    (a reshaped label is not a reshaped word), else its group, operator and parameters, else most of
    its group, else its first input, else rank 0.

    Args:
        graph: the network to place.
        known: the network that is placed.
        placement: the placement of `known`.
        parameters: the variables of `known` that are not fed.
    """
    rank_of = placement.rank_of
    votes: dict[Hashable, Counter[int]] = {}
    feeds = _feeds(known, parameters)
    for node in known:
        if node.origin is None:
            for mark in _marks(node, parameters, feeds[node.name]):
                votes.setdefault(mark, Counter())[rank_of[placement.stage_of[node.name]]] += 1
    rank_of_node: dict[str, int] = {}
    feeds = _feeds(graph, parameters)
    for node in graph:
        if node.origin is None:
            marks = _marks(node, parameters, feeds[node.name])
            known_by = [mark for mark in marks if mark in votes]
            ranks = [votes[mark].most_common(1)[0][0] for mark in known_by]
            ranks += [rank_of_node[v.node] for v in node.inputs[:1]]
            rank_of_node[node.name] = ranks[0] if ranks else 0
    stage_of, ranks_of_stages = form_stages(graph, rank_of_node)
    return Placement(stage_of, ranks_of_stages, placement.devices)


def _feeds(graph: Graph, parameters: Collection[str]) -> dict[str, frozenset[str]]:
    """Find the fed variables that each forward node depends on."""
    feeds: dict[str, frozenset[str]] = {}
    for node in graph:
        if node.origin is None:
            fed = [node.name] if node.is_variable and node.name not in parameters else []
            feeds[node.name] = frozenset(fed).union(*[feeds[v.node] for v in node.inputs])
    return feeds


def _marks(node: Node, parameters: Collection[str], feeds: frozenset[str]) -> list[Hashable]:
    """List what a node is matched by, the surest first."""
    if node.name in parameters:
        return [node.name]
    group = lookup(node.tags, "ctx_group")
    if node.is_variable:
        return [("variable", node.name), *([("group", group)] if group else [])]
    read = tuple([v.node for v in node.inputs if v.node in parameters])
    known_by = (group, place_of(node), node.op, read)
    marks: list[Hashable] = [(known_by, feeds), known_by] if group or read else []
    return [*marks, *([("group", group)] if group else [])]
