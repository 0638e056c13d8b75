"""Mixed precision: activations in 16 bits, parameters in float32, a rewrite of the forward graph.

    weight ── Cast ──┐                                       ┌─ Cast ── softmax     float32
                     ├─ FullyConnected ── ... ── scores ─────┤
    words ── Cast ───┘      16 bits: what is kept, sent      └─ (gradients likewise, back)

Products take, make and keep values of the low type, so memory and messages are halved and a GPU's
tensor cores can be used; losses, exponentials and long sums are float32; the rest is as its inputs
are. Which operator does which is its own property (`OpDef.precision`):

    LOW      inputs and outputs in the low type: products, gates
    INSIDE   float32 goes in, its result is stored in the low type: look-ups, norms
    FULL     float32: losses, softmax, exponentials, powers, sums
    FOLLOWS  low if all its activations are; parameters that it reads are cast then

`OpDef.full_inputs` stay float32 whatever the others are, as auxiliary states do. However a value is
stored, operators compute in float32 (`registry.computation`, `calc` in
runtime/backends/cuda).

Parameters and what an optimizer keeps of them are float32 (master weights): a parameter that an
operator reads in the low type is cast by a node of its own, once, which stands with the parameter;
gradients are built on this graph, so those of parameters are float32 by themselves. Outputs have
the types that they had. Loss scaling is symgraph/passes/loss_scale.py's.

Source: Micikevicius et al. 2018, "Mixed precision training".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from symgraph.core.build import typed_node
from symgraph.core.errors import ConfigError, DTypeError, nearest
from symgraph.core.graph import Graph, Node
from symgraph.core.params import Site
from symgraph.core.registry import FOLLOWS, INSIDE, LOW, OpDef, find, infer
from symgraph.core.tags import hide, lookup
from symgraph.core.types import HALVES, TensorType, Value, dtype_name, is_float
from symgraph.passes.shards import GROUP, KEY

FLOAT32 = "float32"
PRECISIONS = (FLOAT32, *HALVES)
OF_PARAMETER = "__of_parameter__"  # the tag of a parameter's cast


def require_precision(graph: Graph, low: str, fed: Collection[str]) -> None:
    """Check that a forward graph can be trained in a precision.

    Args:
        graph: The forward graph.
        low: The name of the precision.
        fed: The variables that are not parameters.

    Raises:
        ConfigError: There is no precision of that name.
        DTypeError: The package that makes numpy know it is missing, or a parameter is of floats
            other than float32.
    """
    if low not in PRECISIONS:
        raise ConfigError(f"unknown precision {low!r}; {nearest(low, PRECISIONS)}")
    if low == FLOAT32:
        return
    dtype_name(low)
    for node in graph.variables:
        (type_,) = node.types
        if node.name not in fed and is_float(type_.dtype) and type_.dtype != FLOAT32:
            raise DTypeError(
                f"precision {low} needs parameters of float32, but {node.name!r} is {type_.dtype}: "
                "leave dtypes at float32, those of data too"
            )


def reduced(graph: Graph, low: str, fed: Collection[str]) -> Graph:
    """Return the graph with float32 values stored in the dtype `low` where that is enough.

    Nodes keep their names; outputs keep their order and types.

    Args:
        graph: A forward graph.
        low: The dtype; for float32 the graph itself is returned.
        fed: The variables that are not parameters.
    """
    if low == FLOAT32:
        return graph
    rewriter = _Rewriter(graph, low, fed)
    for node in graph:
        rewriter.rewrite(node)
    outputs = [rewriter.output(v) for v in graph.outputs]
    return Graph.of(rewriter.nodes.values(), outputs)


def is_parameter_cast(graph: Graph, name: str) -> bool:
    """Tell whether a node casts a parameter to the low type; it is placed with its reader."""
    node = graph[name]
    return node.origin is None and OF_PARAMETER in node.tags


class _Rewriter:
    """The rewritten nodes so far."""

    def __init__(self, graph: Graph, low: str, fed: Collection[str]) -> None:
        self.graph, self.low = graph, low
        self.held = {n.name for n in graph.variables} - set(fed)
        self.nodes: dict[str, Node] = {}
        #: A value of the original graph -> the value that stores it.
        self.stored: dict[Value, Value] = {}
        #: (value, dtype, group of the readers or "" for all) -> the value in that dtype.
        self.casts: dict[tuple[Value, str, str], Value] = {}

    def rewrite(self, node: Node) -> None:
        """Add a node, with casts before and after it."""
        if node.is_variable:
            self.nodes[node.name] = node
            return
        op = find(node.op)
        wanted = self._wanted(node, op)
        inputs = tuple(
            [
                self._now(v) if dtype is None else self._cast(v, dtype, node)
                for v, dtype in zip(node.inputs, wanted, strict=True)
            ]
        )
        types = infer(op, Site(node.op, node.name, node.attrs), [self._type(v) for v in inputs])
        self.nodes[node.name] = Node(node.name, node.op, inputs, node.attrs, types, None, node.tags)
        if op.precision == INSIDE:
            for index in range(len(types) if op.visible is None else op.visible):
                value = Value(node.name, index)
                if types[index].dtype == FLOAT32:
                    self.stored[value] = self._cast(value, self.low, node)

    def output(self, value: Value) -> Value:
        """Return an output of the graph in its original type."""
        return self._cast(value, self.graph.type_of(value).dtype, self.graph[value.node])

    def _wanted(self, node: Node, op: OpDef) -> list[str | None]:
        """Return the dtype in which a node reads each input; None: as it is."""
        names = op.input_names(node.attrs)
        first_state = len(node.inputs) - len(op.aux)
        full = {
            i
            for i in range(len(node.inputs))
            if i >= first_state or (i < len(names) and names[i] in op.full_inputs)
        }
        floats = {i for i, v in enumerate(node.inputs) if self.graph.type_of(v).dtype == FLOAT32}
        low = op.precision == LOW
        if op.precision == FOLLOWS:
            activations = {
                v
                for i, v in enumerate(node.inputs)
                if i in floats - full and v.node not in self.held
            }
            low = bool(activations) and all(
                self._type(self._now(v)).dtype == self.low for v in activations
            )
        return [
            None if i not in floats else self.low if low and i not in full else FLOAT32
            for i in range(len(node.inputs))
        ]

    def _now(self, value: Value) -> Value:
        return self.stored.get(value, value)

    def _type(self, value: Value) -> TensorType:
        return self.nodes[value.node].types[value.index]

    def _cast(self, old: Value, dtype: str, reader: Node) -> Value:
        """Return a value of the original graph in that dtype.

        It is cast down where it is produced and up where it is read, so that messages are small.
        """
        value = self._now(old)
        if self._type(value).dtype == dtype:
            return value
        down = dtype == self.low
        key = value, dtype, "" if down else lookup(reader.tags, GROUP) or ""
        if key not in self.casts:
            at = self._place(self.nodes[value.node] if down else reader)
            types = [self._type(value)]
            name = self._free(f"{value}[{dtype}]")
            cast = typed_node(name, "Cast", (value,), types, {"dtype": dtype}, at)
            self.nodes[cast.name] = cast
            self.casts[key] = Value(cast.name)
        return self.casts[key]

    def _free(self, name: str) -> str:
        while name in self.nodes or name in self.graph.nodes:
            name += "'"
        return name

    def _place(self, node: Node) -> Mapping[str, str]:
        """Return the tags of a cast beside a node: for a variable only those of its placement."""
        if not node.is_variable:
            return node.tags
        where = {key: lookup(node.tags, key) for key in (GROUP, KEY)}
        tags = {hide(key): text for key, text in where.items() if text is not None}
        if node.name in self.held:
            tags[OF_PARAMETER] = "1"
        return MappingProxyType(tags)
