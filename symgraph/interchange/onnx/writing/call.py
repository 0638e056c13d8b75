"""Calls: what a converter reads of a node of the network, and the ONNX nodes that it writes.

A converter is a function of a `Call` that returns the ONNX values that are the node's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from symgraph.core.graph import Node
from symgraph.core.params import Attrs
from symgraph.core.types import Array, Shape, TensorType, Types, Value
from symgraph.frontend.name import Names
from symgraph.interchange.onnx.writing.lengths import Dim, Dims, Lengths, Multiple
from symgraph.interchange.onnx.writing.nodes import NUMBERS, OnnxNode

LAST = 2**63 - 1  # the end of an axis
BEFORE = -(2**63)  # the position before an axis's first, for steps backwards
Results = str | Sequence[str]
Converter = Callable[["Call"], Results]


class NotExportable(Exception):
    """ONNX cannot say what a node computes; the text says why."""


class Writer:
    """The ONNX nodes so far, the network's lengths, and what nodes share."""

    def __init__(self, lengths: Lengths, names: Names) -> None:
        self.lengths, self.names = lengths, names
        self.nodes: list[OnnxNode] = []
        #: Nodes that come before all others: constants, and lengths of inputs.
        self.shared: list[OnnxNode] = []
        #: Named length -> an input of the graph, and its axis of that length.
        self.sources: dict[str, tuple[str, int]] = {}
        self._known: dict[tuple[Any, ...], str] = {}

    def constant(self, array: Array) -> str:
        """Return a constant; equal ones are one node."""
        key = str(array.dtype), array.shape, array.tobytes()
        if key not in self._known:
            self._known[key] = self._share("constant", "Constant", value=array)
        return self._known[key]

    def length(self, multiple: Multiple) -> str:
        """Return a vector of one number: a multiple of a named length, read from an input."""
        if multiple not in self._known:
            name, factor = multiple
            source, axis = self.sources[name]
            read = self._share(f"{name}_length", "Shape", source, start=axis, end=axis + 1)
            if factor != 1:
                times = self.constant(np.array([factor]))
                read = self._share(f"{name}_times_{factor}", "Mul", read, times)
            self._known[multiple] = read
        return self._known[multiple]

    def _share(self, name: str, op: str, *inputs: str, **attrs: Any) -> str:
        name = self.names.take(name)
        self.shared.append(OnnxNode(op, name, [*inputs], [name], attrs))
        return name


class Call:
    """A node of the network, and the ONNX nodes that are written for it."""

    def __init__(self, node: Node, x: Sequence[str], writer: Writer) -> None:
        self.node, self.writer = node, writer
        #: The ONNX values that are its inputs.
        self.x = list(x)
        self.ins: Types = writer.lengths.graph.types_of(node.inputs)
        self.attrs: Attrs = node.attrs

    # -- what the node is --------------------------------------------------------------------------

    @property
    def out(self) -> TensorType:
        """The type of its first output."""
        return self.node.types[0]

    @property
    def dtype(self) -> str:
        """The dtype of its first input; of its output if it has no inputs."""
        return (self.ins or self.node.types)[0].dtype

    @property
    def rank(self) -> int:
        """The number of axes of its first input."""
        return len(self.ins[0].shape)

    def axis(self, key: str = "axis") -> int:
        """Return the axis of its first input that a parameter names, 0 or more."""
        return int(self.attrs[key] % self.rank)

    def dims(self, index: int = 0) -> Dims:
        """Return the dimensions of an input."""
        return self.writer.lengths.dims(self.node.inputs[index])

    def out_dims(self) -> Dims:
        """Return the dimensions of its first output."""
        return self.writer.lengths.dims(Value(self.node.name))

    def fixed(self, dim: Dim) -> int:
        """Return a dimension that must be a number."""
        if not isinstance(dim, int):
            self.refuse("it works along an axis whose length is left open")
        return dim

    def refuse(self, why: str) -> NoReturn:
        """Say that ONNX cannot express this node."""
        raise NotExportable(why)

    # -- what is written for it --------------------------------------------------------------------

    def op(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Add an ONNX node and return its output."""
        return self.ops(op, 1, *inputs, **attrs)[0]

    def ops(self, op: str, count: int, *inputs: str, **attrs: Any) -> list[str]:
        """Add an ONNX node and return its outputs."""
        name = self.writer.names.take(f"{self.node.name}/{op}")
        outputs = [self.writer.names.take(f"{name}:{i}") for i in range(count)]
        self.writer.nodes.append(OnnxNode(op, name, [*inputs], outputs, attrs, self.node.name))
        return outputs

    def const(self, value: Any, dtype: str | None = None) -> str:
        """Return a constant of the node's dtype, or another one."""
        return self.writer.constant(np.asarray(value).astype(dtype or self.dtype))

    def ints(self, *numbers: int) -> str:
        """Return a vector of int64 numbers, as ONNX has them for axes and shapes."""
        return self.writer.constant(np.array(numbers, "int64"))

    def shape(self, dims: Dims) -> str:
        """Return a shape as a vector of numbers."""
        if all(isinstance(d, int) for d in dims):
            return self.ints(*[self.fixed(d) for d in dims])
        parts: list[str] = []
        numbers: list[int] = []
        for dim in dims:
            if isinstance(dim, int):
                numbers.append(dim)
                continue
            if not isinstance(dim, Multiple) or dim.name not in self.writer.sources:
                self.refuse("its shape does not follow from the lengths that are left open")
            parts += [self.ints(*numbers)] if numbers else []
            numbers = []
            parts.append(self.writer.length(dim))
        parts += [self.ints(*numbers)] if numbers else []
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    def reshape(self, x: str, dims: Dims) -> str:
        """Give a value this shape."""
        open_axes = [i for i, d in enumerate(dims) if not isinstance(d, int)]
        if len(open_axes) == 1 and 0 not in dims:
            shape = self.ints(*[d if isinstance(d, int) else -1 for d in dims])
        else:
            shape = self.shape(dims)
        return self.op("Reshape", x, shape)

    def cast(self, x: str, old: str, new: str) -> str:
        """Convert a value from one dtype to another, if they differ."""
        return x if old == new else self.op("Cast", x, to=NUMBERS[new])

    def transpose(self, x: str, order: Sequence[int]) -> str:
        """Put a value's axes in this order, if it is another one."""
        return x if [*order] == [*range(len(order))] else self.op("Transpose", x, perm=[*order])

    def moved(self, x: str, rank: int, source: int, target: int) -> str:
        """Move one axis of a value."""
        order = [i for i in range(rank) if i != source]
        order.insert(target, source)
        return self.transpose(x, order)

    def full(self, value: float, dims: Dims, dtype: str) -> str:
        """Return an array of one number."""
        return self.full_of(value, self.shape(dims), dtype)

    def full_of(self, value: float, shape: str, dtype: str) -> str:
        """Return an array of one number, whose shape is an ONNX value."""
        return self.op("ConstantOfShape", shape, value=np.full(1, value).astype(dtype))


def all_fixed(dims: Dims) -> Shape | None:
    """Return dimensions as numbers; None if one of them is left open."""
    known = [d for d in dims if isinstance(d, int)]
    return tuple(known) if len(known) == len(dims) else None


Table = Mapping[str, Converter]
