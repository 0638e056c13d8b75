"""Outlines: graphs reduced to what the search for a placement needs.

Items are nodes that are always in one body; flows are the values between them. From these the
stages, bodies and edges of any placement follow by the rules of partitioner.base.stages and
partitioner.cutting.cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from partitioner.base.node_bodies import SUM, weight_nodes
from partitioner.base.types import FORWARD, INPUT, WEIGHT
from symgraph.core.graph import Graph
from symgraph.core.types import Value
from symgraph.passes.merge import home_of


class Item(NamedTuple):
    """Nodes that are always in one body."""

    atom: int
    phase: str
    terms: tuple[int, int] | None = None
    """The items of its terms, of a sum of gradients that is made where both terms are."""


class Flow(NamedTuple):
    """Values from one item to the same others."""

    source: int
    readers: tuple[int, ...]
    messages: int
    nbytes: int


@dataclass(frozen=True)
class Outline:
    """The items of a graph and the values between them.

    Atoms are what has a stage: classes, and behind them variables that several classes read.
    """

    classes: tuple[int, ...]
    """Atom -> the class that it is placed with."""
    before: tuple[tuple[int, ...], ...]
    """Atom -> the atoms whose forward values it reads, which have a place in `order` before it."""
    order: tuple[int, ...]
    items: tuple[Item, ...]
    item_of: Mapping[str, int]
    """Node -> its item."""
    flows: tuple[Flow, ...]


def outline(graph: Graph, of: Mapping[str, int], classes: int) -> Outline:
    """Find the items of a graph; of: forward node -> class, in topological order."""
    users = graph.users()
    homes = [*range(classes)]
    atom_of = dict(of)
    for node in graph.variables:
        readers = {of[r] for r in users.get(Value(node.name), ()) if graph[r].origin is None}
        if node.origin is None and len(readers) > 1:
            atom_of[node.name] = len(homes)
            homes.append(of[node.name])
    items, item_of = _items(graph, atom_of)
    before: list[dict[int, None]] = [{} for _ in homes]
    merged: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for node in graph:
        source = item_of[node.name]
        for index, type_ in enumerate(node.types):
            readers_of = users.get(Value(node.name, index), ())
            for name in readers_of:
                if graph[name].origin is None and atom_of[name] != atom_of[node.name]:
                    before[atom_of[name]][atom_of[node.name]] = None
            others = {item_of[name] for name in readers_of} - {source}
            if any(not _together(items, source, other) for other in others):
                entry = merged.setdefault((source, tuple(sorted(others))), [0, 0])
                entry[0] += 1
                entry[1] += type_.nbytes
    flows = tuple([Flow(*key, *entry) for key, entry in merged.items()])
    order = (*range(classes, len(homes)), *range(classes))
    return Outline(tuple(homes), tuple(map(tuple, before)), order, tuple(items), item_of, flows)


def _items(graph: Graph, atom_of: Mapping[str, int]) -> tuple[list[Item], dict[str, int]]:
    weights = weight_nodes(graph)
    number: dict[Item, int] = {}
    items: list[Item] = []
    item_of: dict[str, int] = {}
    for node in graph:
        phase = FORWARD if node.origin is None else WEIGHT if node.name in weights else INPUT
        item = Item(atom_of[home_of(node)], phase)
        if node.origin is not None and node.op == SUM:
            left, right = (item_of[v.node] for v in node.inputs)
            if FORWARD not in (items[left].phase, items[right].phase):
                item = Item(item.atom, phase, (left, right))
                a, b = items[left], items[right]
                if a.atom == b.atom and a.terms is None and b.terms is None:
                    item = Item(a.atom, phase)
        if item not in number:
            number[item] = len(items)
            items.append(item)
        item_of[node.name] = number[item]
    return items, item_of


def _together(items: Sequence[Item], a: int, b: int) -> bool:
    """Tell whether two items are of one stage wherever they are placed."""
    x, y = items[a], items[b]
    return x.atom == y.atom and x.terms is None and y.terms is None
