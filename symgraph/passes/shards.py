"""Shards: parts of one operator or parameter on several devices, also as replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from symgraph.core.errors import GraphError, nearest
from symgraph.core.graph import Graph, Node
from symgraph.core.tags import hide, lookup
from symgraph.core.types import Array, Value

KEY, GROUP, DEVICES = "shard", "ctx_group", "devices"
NONE: Mapping[str, int] = MappingProxyType({})


class Shard(NamedTuple):
    """The rows [start, stop) of a parameter."""

    parameter: str
    start: int
    stop: int
    #: The number of rows of the parameter.
    rows: int
    #: Which of the copies of a parameter with replicas; it has all rows then.
    copy: int = 0

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.stop == self.rows

    def of(self, array: Array) -> Array:
        """View these rows in an array of the whole parameter's shape."""
        return array if self.is_whole else array[self.start : self.stop]


def stays_in_pieces(graph: Graph, output: Value, whole: bool) -> bool:
    """Tell whether the pieces of an output become outputs: those of a softmax, if nobody reads it.

    whole: whether somebody reads it.
    """
    return not whole and graph[output.node].op == "SoftmaxOutput"


def parameter_of(shards: Mapping[str, Shard], variable: str) -> str:
    """Return the parameter that a variable is a piece of; the variable itself if it is whole."""
    return shards[variable].parameter if variable in shards else variable


def piece_of(shards: Mapping[str, Shard], variable: str, whole: Array) -> Array:
    """View a variable's rows in an array of its parameter's shape."""
    return shards[variable].of(whole) if variable in shards else whole


def join(
    shards: Mapping[str, Shard],
    arrays: Mapping[str, Array],
    wholes: Mapping[str, Array] = MappingProxyType({}),
) -> dict[str, Array]:
    """Return arrays by name, with parameters in place of their shards where all of those are given.

    One copy of a parameter with replicas is enough, unless copies have flat pieces of the array.

    Args:
        shards: Variable -> the part of a parameter that it is.
        arrays: The arrays by variable.
        wholes: Parameter -> an array of its shape, where copies may have flat pieces.
    """
    joined = {name: array for name, array in arrays.items() if name not in shards}
    for parameter in dict.fromkeys(s.parameter for s in shards.values()):
        names = [name for name, s in shards.items() if s.parameter == parameter]
        parts = {name: arrays[name] for name in names if name in arrays}
        like = wholes.get(parameter)
        copied = bool(parts) and shards[names[0]].is_whole
        if copied and (like is None or next(iter(parts.values())).size == like.size):
            joined[parameter] = next(iter(parts.values()))
        elif copied and like is not None and len(parts) == len(names):
            joined[parameter] = np.concatenate([*parts.values()]).reshape(like.shape)
        elif len(parts) == len(names):
            joined[parameter] = np.concatenate([*parts.values()])
        else:
            joined |= parts
    return joined


def place_of(node: Node) -> tuple[int, int] | None:
    """Return (i, n) for a node that is shard i of n; None for one that is whole."""
    text = lookup(node.tags, KEY) or ""
    index, slash, count = text.partition("/")
    return (int(index), int(count)) if slash else None


def regroup(graph: Graph, groups: Mapping[str, str]) -> Graph:
    """Put these operators into these groups, with the variables that only they read."""
    readers: dict[str, set[str | None]] = {}
    for node in graph:
        for value in node.inputs:
            readers.setdefault(value.node, set()).add(groups.get(node.name))

    def group_of(node: Node) -> str | None:
        if node.is_variable and len(readers.get(node.name, ())) == 1:
            (group,) = readers[node.name]
            return group
        return groups.get(node.name)

    return _tagged(graph, GROUP, group_of) if groups else graph


def mark(graph: Graph, marks: Mapping[str, str], key: str = KEY) -> Graph:
    """Set the attribute `shard` (or another) of the operators of some groups.

    Args:
        graph: A forward graph.
        marks: ctx_group -> the value.
        key: The attribute.

    Raises:
        GraphError: No operator is in a group.
    """
    groups = {lookup(n.tags, GROUP) or "" for n in graph if not n.is_variable}
    for group in marks:
        if group not in groups:
            known = nearest(group, groups - {""})
            raise GraphError(f"no operator is in a group {group!r}; {known}")

    def text_of(node: Node) -> str | None:
        return None if node.is_variable else marks.get(lookup(node.tags, GROUP) or "")

    return _tagged(graph, key, text_of) if marks else graph


def _tagged(graph: Graph, key: str, text_of: Callable[[Node], str | None]) -> Graph:
    """Set this attribute of every node for which there is a text."""

    def tagged(node: Node) -> Node:
        text = text_of(node)
        if text is None:
            return node
        return replace(node, tags=MappingProxyType({**node.tags, hide(key): text}))

    return Graph.of(map(tagged, graph), graph.outputs)
