"""The ONNX graph of a network: each node's converter is called, and what nothing reads is left out.

Losses are written as what they compute in the forward direction, so labels that only they read do
not become inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from symgraph.core.errors import GraphError
from symgraph.core.graph import Node
from symgraph.core.types import Array, Value
from symgraph.frontend.name import Names
from symgraph.frontend.symbol import Symbol
from symgraph.interchange.onnx.writing import elementwise, layers, movement, reductions, selection
from symgraph.interchange.onnx.writing.call import Call, NotExportable, Table, Writer
from symgraph.interchange.onnx.writing.lengths import Dim, Lengths, Multiple
from symgraph.interchange.onnx.writing.nodes import OnnxGraph, OnnxNode, OnnxValue

#: Operator -> its converter.
CONVERTERS: Table = {
    **elementwise.CONVERTERS,
    **movement.CONVERTERS,
    **layers.CONVERTERS,
    **reductions.CONVERTERS,
    **selection.CONVERTERS,
}
MISSING = "?"  # stands for a node that cannot be exported, until it is known whether it is read


def onnx_graph(symbol: Symbol, lengths: Lengths, params: Mapping[str, Array]) -> OnnxGraph:
    """Write a network that has been lowered.

    Args:
        symbol: The network.
        lengths: Its graph, with the lengths that are left open.
        params: The variables that are not inputs.

    Raises:
        GraphError: Operators that ONNX cannot express; the message lists all of them.
    """
    building = _Building(symbol, lengths, params)
    for node in lengths.graph:
        building.add(node)
    outputs = building.outputs(symbol.list_outputs())
    writer = building.writer
    nodes = _read([*writer.shared, *writer.nodes], [value.name for value in outputs])
    building.require_all(nodes)
    read = {name for node in nodes for name in node.inputs}
    values = [v for v in building.values if v.name in read]
    inputs = [v for v in building.inputs if v.name in read]
    held = {name: array for name, array in params.items() if name in read}
    return OnnxGraph(nodes, inputs, outputs, values, held, building.names)


class _Building:
    """The graph so far."""

    def __init__(self, symbol: Symbol, lengths: Lengths, params: Mapping[str, Array]) -> None:
        self.lengths, self.params = lengths, params
        self.labels = dict(zip(lengths.graph.outputs, symbol.list_outputs(), strict=True))
        self.writer = Writer(lengths, Names([*lengths.graph.nodes]))
        for node in lengths.graph.variables:
            for axis, dim in enumerate(lengths.dims(Value(node.name))):
                if node.name not in params and isinstance(dim, Multiple) and dim.factor == 1:
                    self.writer.sources.setdefault(dim.name, (node.name, axis))
        #: Value of the network -> its name in the file.
        self.names: dict[Value, str] = {}
        self.inputs: list[OnnxValue] = []
        self.values: list[OnnxValue] = []
        #: Node that cannot be exported -> why.
        self.refused: dict[str, str] = {}

    def add(self, node: Node) -> None:
        """Add a node with what its converter writes, or an input."""
        if node.is_variable:
            self._variable(node)
            return
        call = Call(node, [self.names[v] for v in node.inputs], self.writer)
        first = len(self.writer.nodes)
        try:
            converter = CONVERTERS.get(node.op)
            if converter is None:
                call.refuse("ONNX has no such operator, and no composition of others is known")
            results = converter(call)
        except NotExportable as error:
            self.refused[node.name] = f"{node.op} {node.name!r}: {error}"
            del self.writer.nodes[first:]
            results = call.ops(MISSING, len(node.types), *call.x)
        results = [results] if isinstance(results, str) else [*results]
        for index, result in enumerate(results):
            self._name(node, index, result, self.writer.nodes[first:])

    def outputs(self, names: Sequence[str]) -> list[OnnxValue]:
        """Return the outputs, each with a name of its own."""
        outputs: list[OnnxValue] = []
        given = {v.name for v in self.inputs} | set(self.params)
        for value, name in zip(self.lengths.graph.outputs, names, strict=True):
            source = self.names[value]
            if source in given:
                node = self.lengths.graph[value.node]
                call = Call(node, [], self.writer)
                source = call.op("Identity", source)
                own = self.writer.names.take(name)
                self.writer.nodes[-1].outputs[:] = [own]
                source = own
            given.add(source)
            outputs.append(self._value(value, source))
        return outputs

    def require_all(self, nodes: Iterable[OnnxNode]) -> None:
        """Raise GraphError that lists the nodes that cannot be exported but are read."""
        wrong = [self.refused[n.origin] for n in nodes if n.op == MISSING]
        if wrong:
            listed = "".join(f"\n  {line}" for line in wrong)
            what = "1 node" if len(wrong) == 1 else f"{len(wrong)} nodes"
            raise GraphError(f"{what} cannot be exported to ONNX:{listed}")

    def _variable(self, node: Node) -> None:
        value = Value(node.name)
        self.names[value] = node.name
        if node.name in self.params:
            return
        self.inputs.append(self._value(value, node.name))

    def _name(self, node: Node, index: int, result: str, made: Sequence[OnnxNode]) -> None:
        """Give an output the network's name, and the ONNX node that makes it that of the node."""
        value = Value(node.name, index)
        name = node.name if index == 0 else self._label(node, index)
        maker = next(n for n in made if result in n.outputs)
        for other in made:
            other.inputs[:] = [name if i == result else i for i in other.inputs]
        maker.outputs[:] = [name if o == result else o for o in maker.outputs]
        if index == 0 and maker.op != "Constant":
            maker.name = node.name
        self.names[value] = name
        self.values.append(self._value(value, name))

    def _label(self, node: Node, index: int) -> str:
        label = self.labels.get(Value(node.name, index), f"{node.name}_output{index}")
        return self.writer.names.take(label)

    def _value(self, value: Value, name: str) -> OnnxValue:
        dims = self.lengths.dims(value)
        return OnnxValue(name, self.lengths.graph.type_of(value).dtype, tuple(map(_named, dims)))


def _named(dim: Dim) -> int | str | None:
    if isinstance(dim, Multiple):
        return dim.name if dim.factor == 1 else None
    return dim if isinstance(dim, int) else None


def _read(nodes: Sequence[OnnxNode], outputs: Iterable[str]) -> list[OnnxNode]:
    """Return the nodes that the outputs depend on."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if wanted & set(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]
