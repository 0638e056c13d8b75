"""Import of ONNX models: a walk over the nodes that folds what is known and converts the rest."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from symgraph.core.errors import ConfigError, GraphError, SymgraphError, nearest
from symgraph.core.reading import reading
from symgraph.core.types import Array
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.sym import Group
from symgraph.frontend.symbol import Symbol
from symgraph.interchange.onnx.folding import SIZES, fold
from symgraph.interchange.onnx.inputs import Input, constant_of, read_inputs, without_elements
from symgraph.interchange.onnx.node import OnnxNode
from symgraph.interchange.onnx.package import function_of, onnx_package
from symgraph.interchange.onnx.plans import FilePlan, label, plan_of
from symgraph.interchange.onnx.reader import (
    STANDARD,
    WHAT,
    attributes,
    opsets,
    read_model,
    tensor_array,
)
from symgraph.interchange.onnx.registry import converter_of
from symgraph.interchange.onnx.support import require_support
from symgraph.interchange.values import Known, Network, Traced, Value

MOST_NODES, DEEPEST = 200_000, 50  # nodes with those of functions, and functions in one another


def import_model(
    file: Any,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    batch_axis: int | None = None,
) -> tuple[Symbol, dict[str, Array], dict[str, Array]]:
    """Read an ONNX model (`mx.onnx.import_model`): opsets 7 to 28.

    The symbol's inputs and outputs are the file's, in its order. An axis that the file leaves open
    is the batch: it is 0 in the variable's `__shape__`, and N in its `__layout__`. Nodes with a
    plan in the file are in the groups that `read_plan` maps to devices.

    Args:
        file: A path, the bytes of a file, or a ModelProto.
        shapes: Shapes of inputs by name, with 0 for the batch, in place of the file's. Needed for
            open dimensions besides the batch, such as a sequence's length.
        constants: Values of inputs by name that are made part of the network: those on which
            shapes depend.
        batch_axis: The axis of all inputs that is the batch though the file fixes its length.

    Returns:
        (symbol, parameters by name, auxiliary states by name), the latter numpy arrays.

    Raises:
        ConfigError: The file cannot be read, or the package onnx is missing.
        GraphError: It is damaged, or has operators that are not supported: all of them are named.
    """
    model, folder, source = read_model(file)
    with reading(source, WHAT, GraphError):
        importer = Importer(model, folder)
        try:
            symbol = importer.run(shapes or {}, constants or {}, batch_axis)
        except Exception as error:
            raise in_one_line(error) from error
        return symbol, importer.network.args, importer.network.aux


def in_one_line(error: Exception) -> SymgraphError:
    """Return an error of the library as it is, any other one as a GraphError of one line."""
    if isinstance(error, SymgraphError):
        return error
    return GraphError(f"{type(error).__name__}: {' '.join(str(error).split())}")


@dataclass
class Scope:
    """The values of a graph, a function's body or a branch by their names."""

    #: What stands before the names of its values.
    prefix: str
    #: What stands before the names of its weights, which all rounds of a loop have in common.
    weights: str
    #: The versions of operators by domain.
    opsets: Mapping[str, int]
    values: dict[str, Value | None] = field(default_factory=dict)
    outer: Scope | None = None
    #: The attributes of the function's call.
    attrs: Mapping[str, Any] | None = None
    depth: int = 0
    #: How many nodes read a value, those of graphs within nodes too.
    readers: Counter[str] = field(default_factory=Counter)
    #: Values that something outside reads, too, or another round of a loop.
    lent: frozenset[str] = frozenset()

    def find(self, name: str) -> Value | None:
        """Return a value; GraphError if no node before makes it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise GraphError(f"reads {name!r}, which no input, initializer or earlier node is")

    def shared(self, name: str) -> bool:
        """Return whether more than one node reads a value."""
        if name in self.values or self.outer is None:
            return self.readers[name] > 1 or name in self.lent
        return self.outer.shared(name)


class Importer:
    """The import of one model."""

    def __init__(self, model: Any, folder: Path | None) -> None:
        self.model, self.folder = model, folder
        self.network = Network()
        self.functions = {_key(f.domain, f.name): f for f in model.functions}
        self.fixed_batch = 0
        self.nodes = 0
        #: Values on which shapes depend, so that they are no weights.
        self.measures: set[str] = set()
        #: The stages and devices of nodes that the file states, as groups; see plans.py.
        self.plan = _plan_of(model)

    def run(
        self,
        shapes: Mapping[str, Sequence[int]],
        constants: Mapping[str, Any],
        batch_axis: int | None,
    ) -> Symbol:
        """Convert the graph."""
        graph = self.model.graph
        scope = Scope("", "", opsets(self.model), readers=readers(graph))
        require_support(self.model, scope.opsets)
        if graph.sparse_initializer:
            raise GraphError("it has sparse initializers, which are not supported")
        self.network.kept.update(o.name for o in graph.output)
        others = [node for node in graph.node if node.op_type not in ("MatMul", "Gemm")]
        self.network.kept.update(name for node in others for name in node.input)
        self.measures = measures(graph.node, scope)
        self._initialize(graph, scope)
        infos = [i for i in graph.input if i.name not in scope.values]
        for name, given in constants.items():
            known = {i.name: i for i in infos}
            if name not in known:
                raise GraphError(f"constants: no input {name!r}; {nearest(name, known)}")
            array = constant_of(known[name], given)
            scope.values[name] = Known((array, array), name)
        infos = [i for i in infos if i.name not in scope.values]
        for info in [i for i in infos if i.name not in shapes]:
            nothing = without_elements(info)
            if nothing is not None:
                scope.values[info.name] = Known((nothing, nothing), info.name)
        infos = [i for i in infos if i.name not in scope.values]
        inputs, self.fixed_batch = read_inputs(infos, shapes, batch_axis)
        for each in inputs:
            with AttrScope(**({} if self.plan is None else self.plan.variables.get(each.name, {}))):
                scope.values[each.name] = self._input(each)
        self.walk(graph.node, scope)
        results = [(o.name, scope.find(o.name)) for o in graph.output]
        symbol = Group([self._output(name, value) for name, value in results])
        read = set(symbol.list_inputs())
        for table in (self.network.args, self.network.aux):
            for name in table.keys() - read:
                del table[name]
        return symbol

    def _initialize(self, graph: Any, scope: Scope) -> None:
        """Add the initializers of a graph to its scope."""
        for tensor in graph.initializer:
            array = tensor_array(tensor, self.folder)
            numbers = array.ndim > 0 and array.dtype.kind not in "biu"
            learned = numbers and tensor.name not in self.measures
            name = scope.weights + tensor.name
            scope.values[tensor.name] = Known((array, array), name, learned)

    def _input(self, each: Input) -> Traced:
        """Make the variable of an input."""
        layout = {"__layout__": each.layout} if each.layout else {}
        self.network.names.taken.add(each.name)
        value = self.network.variable(each.name, each.types, **layout)
        self.network.stem = each.name
        if not value.rank:
            value = value.call("Reshape", shape=(1,), axisless=True)
        if each.axis is not None and self.network.anchor is None:
            moved = value if not each.axis else value.call("SwapAxis", dim1=0, dim2=each.axis)
            self.network.anchor = moved
        return value

    def _output(self, name: str, value: Value | None) -> Symbol:
        """Return an output; variables become outputs by way of a node."""
        if value is None:
            raise GraphError(f"the output {name!r} is left out by its node")
        traced = self.network.constant(value) if isinstance(value, Known) else value
        if traced.entry.node.op is None:
            self.network.stem = name
            traced = traced.call("identity")
            traced = self.network.named(traced, self.network.names.take(f"{name}_copy"))
        return Symbol([traced.entry])

    # -- nodes -----------------------------------------------------------------------------------

    def walk(self, protos: Sequence[Any], scope: Scope) -> None:
        """Convert nodes, which are sorted here if the file has them in another order."""
        for proto in in_order(protos, scope):
            self._count(scope)
            try:
                with AttrScope(**self._attributes_of(proto, scope)):
                    made = self._convert(proto, scope)
            except Exception as error:
                raise self._located(proto, scope, in_one_line(error)) from error
            for name, value in zip(proto.output, made, strict=False):
                if name:
                    scope.values[name] = value

    def _attributes_of(self, proto: Any, scope: Scope) -> Mapping[str, str]:
        """Return the attributes of a node by the file's plan; a function has those of its call."""
        if self.plan is None or scope.prefix:
            return {}
        return self.plan.nodes.get(label(proto), {})

    def _count(self, scope: Scope) -> None:
        """Count a node, or a round of a loop; GraphError if there are too many."""
        self.nodes += 1
        if self.nodes > MOST_NODES or scope.depth > DEEPEST:
            raise GraphError(f"more than {MOST_NODES} nodes, or functions more than {DEEPEST} deep")

    def _located(self, proto: Any, scope: Scope, error: SymgraphError) -> SymgraphError:
        """Return an error that names the node."""
        label = proto.name or (proto.output[0] if proto.output else "")
        version = scope.opsets.get(_domain(proto.domain), 0)
        full = f"{_domain(proto.domain)}.{proto.op_type}".lstrip(".")
        return type(error)(f"node {scope.prefix + label!r} ({full}, opset {version}): {error}")

    def _convert(self, proto: Any, scope: Scope) -> Sequence[Value | None]:
        proto = resolved(proto, scope.attrs)
        inputs = [scope.find(name) if name else None for name in proto.input]
        attrs = attributes(proto, self.folder)
        domain = _domain(proto.domain)
        function = self.functions.get(_key(domain, proto.op_type))
        if function is not None:
            return self._call(
                function, proto, inputs, attrs, scope, opsets(function, scope.opsets[""])
            )
        opset = scope.opsets[""]
        label = next((o for o in proto.output if o), proto.name or proto.op_type)
        self.network.stem = scope.prefix + label
        self.network.emitted.clear()
        node = OnnxNode(
            proto.op_type,
            proto.name,
            opset,
            attrs,
            inputs,
            [bool(o) and scope.readers[o] > 0 for o in proto.output],
            self.network,
            lambda graph, values, name: self.subgraph(graph, values, label, name, scope),
            self.fixed_batch,
        )
        lead = scope.weights if proto.op_type == "Constant" else scope.prefix
        names = [lead + o for o in proto.output]
        shared = any(scope.shared(name) for name in proto.input)
        folded = fold(node, names, shared) if not domain else None
        if folded is not None:
            self.network.count_made(*(a for value in folded for a in value.arrays))
            return folded
        converter = converter_of(proto.op_type, opset) if not domain else None
        if converter is None:
            types = [_type_proto(value) for value in inputs]
            body = function_of(proto, scope.opsets.get(domain, 0), types)
            if body is None:
                raise GraphError(
                    "no operator of symgraph stands for it unless its inputs are known"
                )
            return self._call(body, proto, inputs, attrs, scope, opsets(body, opset))
        made = converter.convert(node)
        results: list[Value | None] = [made] if isinstance(made, (Known, Traced)) else list(made)
        return self._named(results, names)

    def _named(self, results: list[Value | None], names: list[str]) -> list[Value | None]:
        """Give new nodes the names of the file's values."""
        nodes = Counter(id(v.entry.node) for v in results if isinstance(v, Traced))
        return [
            self.network.named(value, name)
            if isinstance(value, Traced) and name and nodes[id(value.entry.node)] == 1
            else value
            for value, name in zip(results, names, strict=False)
        ]

    # -- functions and graphs within nodes -------------------------------------------------------

    def _call(
        self,
        body: Any,
        proto: Any,
        inputs: Sequence[Value | None],
        attrs: Mapping[str, Any],
        scope: Scope,
        versions: Mapping[str, int],
    ) -> list[Value | None]:
        """Convert the body of a function in place of its call."""
        defaults = attributes(_Attributes(body.attribute_proto), self.folder)
        stem = next((o for o in proto.output if o), proto.op_type)
        inner = Scope(
            f"{scope.prefix}{stem}/",
            f"{scope.weights}{stem}/",
            versions,
            attrs={**defaults, **attrs},
            depth=scope.depth + 1,
            readers=readers(body),
            lent=frozenset(
                given
                for given, name in zip(body.input, proto.input, strict=False)
                if scope.shared(name)
            ),
        )
        inner.values.update(dict.fromkeys(body.input))
        inner.values.update(zip(body.input, inputs, strict=False))
        self.walk(body.node, inner)
        return [inner.values.get(name) for name in body.output]

    def subgraph(
        self, graph: Any, values: Sequence[Value], label: str, name: str, outer: Scope
    ) -> list[Value]:
        """Convert a graph of an attribute; return its outputs.

        Args:
            graph: The graph.
            values: Its inputs.
            label: The node that has it.
            name: The branch of If, or the number of a loop's round.
            outer: The scope of the node.
        """
        stem = f"{outer.weights}{label}/"
        inner = Scope(
            f"{outer.prefix}{label}/{name}/",
            stem if name.isdecimal() else f"{stem}{name}/",
            outer.opsets,
            outer=outer,
            attrs=outer.attrs,
            depth=outer.depth + 1,
            readers=readers(graph),
        )
        self._count(inner)
        self._initialize(graph, inner)
        inner.values.update(zip([i.name for i in graph.input], values, strict=False))
        inner.lent = frozenset(inner.values if name.isdecimal() else ())
        self.walk(graph.node, inner)
        found = [inner.find(o.name) for o in graph.output]
        return [value for value in found if value is not None]


def _plan_of(model: Any) -> FilePlan | None:
    """Return the file's plan; a warning says why, if it cannot be had."""
    try:
        return plan_of(model)
    except ConfigError as error:
        warnings.warn(f"the plan in the file is left out: {error}", stacklevel=4)
        return None


@dataclass
class _Attributes:
    """What `attributes` reads of a node."""

    attribute: Sequence[Any]


def readers(graph: Any, times: int = 1) -> Counter[str]:
    """Count how often the values of a graph or function are read; in a loop, more than once."""
    found = Counter({getattr(o, "name", o): times for o in graph.output})
    for proto in graph.node:
        found.update(list(proto.input) * times)
        again = 2 if proto.op_type in ("Loop", "Scan") else times
        for attribute in proto.attribute:
            if attribute.HasField("g"):
                found.update(readers(attribute.g, again))
    return found


def measures(protos: Sequence[Any], scope: Scope) -> set[str]:
    """Return the values that must be known to convert nodes, and those they are computed from."""
    found: set[str] = set()
    for proto in reversed(in_order(protos, scope)):
        converter = converter_of(proto.op_type, scope.opsets[""])
        places = converter.known if converter else ()
        found.update(proto.input[p] for p in places if p < len(proto.input))
        if proto.op_type not in SIZES and not found.isdisjoint(filter(None, proto.output)):
            found.update(proto.input)
    return found


def _domain(name: str) -> str:
    return "" if name in STANDARD else name


def _key(domain: str, name: str) -> tuple[str, str]:
    return _domain(domain), name


def resolved(proto: Any, outer: Mapping[str, Any] | None) -> Any:
    """Return a node of a function with the attributes of the call in place of their names."""
    if outer is None or not any(a.ref_attr_name for a in proto.attribute):
        return proto
    onnx = onnx_package()
    copy = onnx.NodeProto()
    copy.CopyFrom(proto)
    del copy.attribute[:]
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
        elif outer.get(attribute.ref_attr_name) is not None:
            value = outer[attribute.ref_attr_name]
            if isinstance(value, np.ndarray):
                value = onnx.numpy_helper.from_array(value)
            copy.attribute.append(
                onnx.helper.make_attribute(attribute.name, value, attr_type=attribute.type or None)
            )
    return copy


def _type_proto(value: Value | None) -> Any:
    """Return the TypeProto of a value, for ONNX's functions that depend on types."""
    onnx = onnx_package()
    if value is None:
        return onnx.TypeProto()
    number = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    return onnx.helper.make_tensor_type_proto(number, list(value.dims[0]))


def in_order(protos: Sequence[Any], scope: Scope) -> list[Any]:
    """Return nodes so that each comes after those it reads; GraphError for a circle.

    Nodes that are in order already stay as they are.
    """
    makers: dict[str, int] = {}
    for index, proto in enumerate(protos):
        for name in filter(None, proto.output):
            if name in makers:
                raise GraphError(f"two nodes make {name!r}")
            makers[name] = index
    if all(makers.get(name, -1) < i for i, p in enumerate(protos) for name in p.input):
        return list(protos)
    order: list[Any] = []
    state = [0] * len(protos)  # 1: its inputs are being looked at, 2: done
    for root in range(len(protos)):
        stack = [root]
        while stack:
            at = stack[-1]
            if state[at] == 2:
                stack.pop()
                continue
            waiting = [makers[n] for n in protos[at].input if n in makers]
            waiting = [i for i in waiting if state[i] != 2]
            if not waiting:
                state[at] = 2
                order.append(protos[stack.pop()])
                continue
            state[at] = 1
            if state[waiting[0]] == 1:
                label = protos[at].name or protos[at].output[0]
                raise GraphError(
                    f"node {label!r} ({protos[at].op_type}) reads what follows from its own result"
                )
            stack.append(waiting[0])
    return order
