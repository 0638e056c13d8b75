"""Sharing: which operators' outputs lie in the memory of their inputs, or may.

View      the output is the input's memory, or a piece of it: nothing is computed
Join      the output is its inputs side by side; where they can be laid so, nothing is computed
In place  the output may be written over an input that nobody reads any more
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from symgraph.core.graph import Graph, Node
from symgraph.core.types import TensorType, Value

# Operators whose output is their first input's memory: always; if its type is the same; or also if
# the slice is one piece of memory. All others are taken to make new arrays.
SAME = {
    "identity",
    "BlockGrad",
    "Reshape",
    "Flatten",
    "expand_dims",
    "squeeze",
    "MakeLoss",
    "LinearRegressionOutput",
    "MAERegressionOutput",
    "_CrossDeviceCopy",
}
SAME_IF_UNCHANGED = {"Cast", "broadcast_to", "broadcast_axis", "_broadcast_axes", "_sum_to"}
SLICES = {"SliceChannel", "slice_axis"}
JOINS = {
    "Concat": "dim",
    "_join_shares": "dim",
    "stack": "axis",
}  # operator -> the attribute that names its axis

# Operator -> pairs of an output and an input of the same size that it may be written over.
IN_PLACE: Mapping[str, Sequence[tuple[int, int]]] = {
    "SoftmaxOutput": ((0, 0),),
    "_softmax_output_grad": ((0, 0),),
    "_shard_softmax_output": ((0, 0),),
    "_shard_softmax_output_grad": ((0, 0),),
    "_lstm_gates": ((2, 0), (2, 1)),
    "_lstm_gates_grad": ((0, -3),),
    "elemwise_add": ((0, 0), (0, 1)),
    "elemwise_mul": ((0, 0), (0, 1)),
}


def made_by(node: Node) -> list[Value]:
    """All outputs of a node."""
    return [Value(node.name, i) for i in range(len(node.types))]


def is_view(node: Node, graph: Graph) -> bool:
    """Whether the node's outputs share the memory of its first input."""
    if node.op in SAME:
        return True
    if node.op not in SAME_IF_UNCHANGED | SLICES:
        return False
    before = graph.type_of(node.inputs[0])
    if node.op in SLICES and _leading(before, node.attrs["axis"]) == 1:
        return True
    return before == node.types[0]


def view_offset(node: Node, index: int, graph: Graph) -> int:
    """Where in its input's memory output `index` of a view begins, in bytes."""
    before = graph.type_of(node.inputs[0])
    if node.op == "SliceChannel":
        return index * node.types[0].nbytes
    if node.op == "slice_axis":
        axis = node.attrs["axis"] % len(before.shape)
        begin: int = node.attrs["begin"] % before.shape[axis]
        return begin * before.nbytes // math.prod(before.shape[: axis + 1])
    return 0


def is_join(node: Node) -> bool:
    """Whether the node's output is its inputs one after the other."""
    axis = JOINS.get(node.op)
    return axis is not None and _leading(node.types[0], node.attrs[axis]) == 1


def _leading(type_: TensorType, axis: int) -> int:
    return math.prod(type_.shape[: axis % len(type_.shape)])
