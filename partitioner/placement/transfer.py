"""The carried placement: one decision for networks that differ in how far they are unrolled.

The buckets of a network have the same groups and parameters, but not the same nodes: names that
are given automatically are shifted, and there are fewer time steps. So nodes are known again by
what stays: their group, their operator, the parameters that they read and the fed variables that
they depend on.
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
    """A placement of `graph` with every parameter where `placement` of `known` has it.

    parameters: the variables of `known` that are not fed. A node goes where most nodes of `known`
    are that have its group, operator, parameters and feeds (a reshaped label is no reshaped word),
    else its group, operator and parameters, else most of its group, else its first input, else
    rank 0.
    """
    rank_of = placement.rank_of
    votes: dict[Hashable, Counter[int]] = {}
    feeds = _feeds(known, parameters)
    for node in known:
        if node.origin is None:
            for mark in _marks(node, parameters, feeds[node.name]):
                votes.setdefault(mark, Counter())[rank_of[placement.stage_of[node.name]]] += 1
    found: dict[str, int] = {}
    feeds = _feeds(graph, parameters)
    for node in graph:
        if node.origin is None:
            marks = _marks(node, parameters, feeds[node.name])
            known_by = [mark for mark in marks if mark in votes]
            ranks = [votes[mark].most_common(1)[0][0] for mark in known_by]
            ranks += [found[v.node] for v in node.inputs[:1]]
            found[node.name] = ranks[0] if ranks else 0
    stage_of, ranks_of_stages = form_stages(graph, found)
    return Placement(stage_of, ranks_of_stages, placement.devices)


def _feeds(graph: Graph, parameters: Collection[str]) -> dict[str, frozenset[str]]:
    """The fed variables that each forward node depends on."""
    found: dict[str, frozenset[str]] = {}
    for node in graph:
        if node.origin is None:
            own = [node.name] if node.is_variable and node.name not in parameters else []
            found[node.name] = frozenset(own).union(*[found[v.node] for v in node.inputs])
    return found


def _marks(node: Node, parameters: Collection[str], feeds: frozenset[str]) -> list[Hashable]:
    """What a node is known by, the surest first."""
    if node.name in parameters:
        return [node.name]
    group = lookup(node.tags, "ctx_group")
    if node.is_variable:
        return [("variable", node.name), *([("group", group)] if group else [])]
    read = tuple([v.node for v in node.inputs if v.node in parameters])
    known_by = (group, place_of(node), node.op, read)
    marks: list[Hashable] = [(known_by, feeds), known_by] if group or read else []
    return [*marks, *([("group", group)] if group else [])]
