"""Traffic: the values that leave a class of nodes, and where gradient nodes run.

    a forward value      centre = its maker         ──▶ every class that reads it
    a sum of gradients   centre = where it is made  ◀── every class that makes a term of it
    another gradient     centre = its maker         ──▶ every class that reads it

Each is a star: every device other than the centre's gets one message, however many classes it
holds, as in the cut. Two counts are estimates: the cut adds up terms that are made on one device
only where they follow each other; and a gradient that is both a term of a sum and read elsewhere
counts as two values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partitioner.base.node_bodies import SUM
from symgraph.core.graph import Graph, Node
from symgraph.core.types import Value


@dataclass(frozen=True)
class Broadcast:
    """Messages between a centre and other classes, merged with all between the same classes."""

    centre: int  #: a class
    others: tuple[int, ...]  #: the classes at the other ends
    backward: bool  #: whether they are gradients
    messages: int  #: per micro-batch, for one of the others
    nbytes: int  #: per micro-batch, for one of the others


def traffic(graph: Graph, of: Mapping[str, int]) -> tuple[dict[str, int], tuple[Broadcast, ...]]:
    """Find the class in which every node of the graph runs, and all stars between classes.

    Args:
        graph: the graph, with or without gradients.
        of: forward node -> class.
    """
    users = graph.users()
    sums = _sums(graph, users)
    merged: dict[tuple[int, tuple[int, ...], bool], list[int]] = {}

    def star(centre: int, others: set[int], backward: bool, nbytes: int) -> None:
        others.discard(centre)
        if others:
            entry = merged.setdefault((centre, tuple(sorted(others)), backward), [0, 0])
            entry[0] += 1
            entry[1] += nbytes

    home: dict[str, int] = {}
    terms: dict[str, set[int]] = {}  # inner sum -> the classes that make its terms
    for node in graph:
        home_class = of[node.origin or node.name]
        if node.name in sums:
            made_in: set[int] = set()
            for value in node.inputs:
                more = terms.pop(value.node, None) or {home[value.node]}
                made_in, more = (made_in, more) if len(made_in) >= len(more) else (more, made_in)
                made_in |= more  # into the larger one, so that a long sum takes linear time
            if sums[node.name]:
                terms[node.name] = made_in
            elif len(made_in) > 1:
                star(home_class, set(made_in), True, node.types[0].nbytes)
            home_class = next(iter(made_in)) if len(made_in) == 1 else home_class
        home[node.name] = home_class
    for node in graph:
        if not sums.get(node.name, False):
            for index, type_ in enumerate(node.types):
                readers = users.get(Value(node.name, index), ())
                others = {home[r] for r in readers if r not in sums}
                star(home[node.name], others, node.origin is not None, type_.nbytes)
    return home, tuple(Broadcast(*key, *entry) for key, entry in merged.items())


def _sums(graph: Graph, users: Mapping[Value, list[str]]) -> dict[str, bool]:
    """Find sums of gradients; tell whether each is only a term of another sum of that value."""
    is_term: dict[str, bool] = {}
    for node in graph:
        if _adds_gradients(node, graph):
            is_term[node.name] = False
            for value in node.inputs:
                if value.node in is_term and graph[value.node].origin == node.origin:
                    is_term[value.node] = users[value] == [node.name]
    for value in graph.outputs:
        if value.node in is_term:
            is_term[value.node] = False
    return is_term


def _adds_gradients(node: Node, graph: Graph) -> bool:
    return (
        node.origin is not None
        and node.op == SUM
        and all(graph[v.node].origin is not None for v in node.inputs)
    )
