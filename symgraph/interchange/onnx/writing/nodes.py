"""ONNX graphs as plain data, from which model.py makes protobuf messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from symgraph.core.types import Array, Value

#: ONNX's number of each dtype (TensorProto.DataType).
NUMBERS: Mapping[str, int] = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "bfloat16": 16,
}


@dataclass
class OnnxNode:
    """One call of an ONNX operator."""

    op: str
    name: str
    #: The names of its inputs; "" for one that is left out.
    inputs: list[str]
    outputs: list[str]
    #: Numbers, strings, lists of them, or arrays (tensors).
    attrs: Mapping[str, Any] = field(default_factory=dict)
    #: The node of the network that it is a part of; "" for a constant.
    origin: str = ""


class OnnxValue(NamedTuple):
    """A named input or output of a graph, with its type."""

    name: str
    dtype: str
    #: Lengths, names of lengths that are not fixed, and None for others that are not.
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class OnnxGraph:
    """A graph with the names and types of what goes in and comes out."""

    nodes: list[OnnxNode]
    inputs: list[OnnxValue]
    outputs: list[OnnxValue]
    #: The values of the network inside the graph.
    values: list[OnnxValue]
    #: The parameters, by name.
    initializers: Mapping[str, Array]
    #: The name of each value of the network.
    names: Mapping[Value, str]
