"""Exchanges: the copies of one collective of the graph, whose messages go together.

A collective can be one call only if all its inputs are made before any of its outputs is used.
Where that is not so (a gather of values that need each other, say), its copies are messages like
all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from symgraph.core.graph import Graph
from symgraph.core.registry import COPY
from symgraph.core.tags import lookup


class Ends(NamedTuple):
    """The forward nodes at both ends of an exchange."""

    giving: set[str]  #: the nodes whose values are sent
    taking: set[str]  #: the copies that receive them


Exchanges = Mapping[str, Ends]  # by a name that no node has


def find_exchanges(graph: Graph, rank_of_node: Mapping[str, int]) -> Exchanges:
    """Find the exchanges of a forward graph between several ranks that can be one call each."""
    exchanges: dict[str, Ends] = {}
    for node in graph:
        if node.op != COPY or node.origin is not None:
            continue
        if name := lookup(node.tags, "exchange"):
            ends = exchanges.setdefault(f"exchange {name}", Ends(set(), set()))
            ends.giving.add(node.inputs[0].node)
            ends.taking.add(node.name)
    for name, ends in list(exchanges.items()):
        if len({rank_of_node[n] for n in ends.giving | ends.taking}) == 1:
            del exchanges[name]
    while exchanges:
        try:
            sort_with_exchanges(graph, exchanges)
        except CycleError as error:
            del exchanges[next(name for name in error.args[1] if name in exchanges)]
        else:
            break
    return exchanges


def sort_with_exchanges(graph: Graph, exchanges: Exchanges) -> Iterable[str]:
    """Order forward nodes and exchanges so that each comes after what it waits for."""
    if not exchanges:
        return [n.name for n in graph if n.origin is None]
    sorter = TopologicalSorter(
        {n.name: [v.node for v in n.inputs] for n in graph if n.origin is None}
    )
    for name, ends in exchanges.items():
        sorter.add(name, *ends.giving)
        for copy in ends.taking:
            sorter.add(copy, name)
    return list(sorter.static_order())
