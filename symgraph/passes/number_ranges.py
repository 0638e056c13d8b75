"""The numbers that variables must have where operators read them as ids, classes or lengths."""

from __future__ import annotations

from collections.abc import Sequence

from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find
from symgraph.core.types import Types

Range = tuple[int, int]  # the smallest number, and the one above the largest
# Operators whose second input has numbers from 1 to the length of the time axis.
LENGTHS = frozenset(("SequenceLast", "SequenceMask", "SequenceReverse", "_sequence_last_grad"))
# Operators whose outputs have the numbers of their inputs.
MOVERS = frozenset(
    (
        "BlockGrad",
        "Cast",
        "Concat",
        "Crop",
        "Flatten",
        "Reshape",
        "SliceChannel",
        "SwapAxis",
        "broadcast_axis",
        "broadcast_to",
        "expand_dims",
        "identity",
        "repeat",
        "reverse",
        "slice",
        "slice_axis",
        "squeeze",
        "stack",
        "tile",
        "transpose",
    )
)


def number_ranges(graph: Graph, names: Sequence[str]) -> dict[str, Range]:
    """Return the ranges of those variables that are read as ids, classes or lengths."""
    readers: dict[str, list[tuple[Node, int]]] = {}
    for node in graph:
        for position, value in enumerate(node.inputs):
            readers.setdefault(value.node, []).append((node, position))
    found = {}
    for name in names:
        ranges, seen, ahead = [], {name}, [name]
        while ahead:
            for node, position in readers.get(ahead.pop(), ()):
                types = graph.types_of(node.inputs)
                if (limits := number_range(node, position, types)) is not None:
                    ranges.append(limits)
                elif node.op in MOVERS and node.name not in seen:
                    seen.add(node.name)
                    ahead.append(node.name)
        if ranges:
            found[name] = max(low for low, _ in ranges), min(high for _, high in ranges)
    return found


def number_range(node: Node, position: int, types: Types) -> Range | None:
    """Return the range of the numbers that an input must have; None: it may have any.

    Args:
        node: a call of an operator.
        position: which of its inputs.
        types: the types of all of them.
    """
    op, attrs = find(node.op), node.attrs
    names = op.input_names(attrs)  # a hidden input has no name among those of the users
    if position < len(names) and (count := op.ids.get(names[position])):
        return 0, count(attrs, types)
    if node.op == "LogisticRegressionOutput" and position == 1:
        return 0, 2
    if node.op in LENGTHS and position == 1:
        return 1, attrs.get("size", types[0].shape[attrs.get("axis", 0)]) + 1
    return None
