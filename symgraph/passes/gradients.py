"""Gradients: the backward graph, added node by node behind the forward graph.

Reverse-mode differentiation over the nodes in reverse run order. Every gradient node names the
forward node it serves (`origin`), so that placement and cutting treat it as that node's shadow and
backward messages appear by themselves. The sum of a value's gradients belongs to the value's
producer; it grows by one addition as each term appears, so that a weight used at T time steps
holds one running sum and not T terms.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from symgraph.core.build import Builder
from symgraph.core.errors import GraphError, nearest
from symgraph.core.graph import Graph, Node, prune
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, find
from symgraph.core.types import TensorType, Value, is_float

SCALE = "_loss_scale"  # the suffix of a variable that is fed the loss scale


class Differentiated(NamedTuple):
    """A forward and backward graph."""

    #: Its outputs are the forward graph's, then one gradient for each name in `grads`.
    graph: Graph
    #: Variable name -> the value of its gradient.
    grads: dict[str, Value]
    #: Index of a forward output that is not a loss -> the variable that feeds its head gradient.
    heads: dict[int, str]
    #: One variable per loss, by which its gradient is multiplied.
    scales: tuple[str, ...] = ()


def gradients(
    graph: Graph, wrt: Iterable[str], *, heads: bool = True, scaled: bool = False
) -> Differentiated:
    """Add the gradients of all outputs with respect to the variables `wrt`.

    Outputs of loss operators start the backward pass themselves (except SoftmaxOutput with
    out_grad=True). A variable that no output depends on has a zero gradient.

    Args:
        graph: A forward graph.
        wrt: Names of variables.
        heads: Whether every other float output gets a variable `<output>_head_grad` of its own type
            (MXNet's `out_grads`), unless no gradient depends on it; otherwise it has no gradient.
        scaled: Whether each loss's own gradient is multiplied by a variable `<loss>_loss_scale`,
            which is fed where the loss is.

    Raises:
        GraphError: A name in `wrt` is not a variable of floats.
    """
    wrt = list(wrt)
    for name in wrt:
        if name not in graph.nodes or not graph[name].is_variable:
            known = nearest(name, (n.name for n in graph.variables))
            raise GraphError(f"cannot differentiate by {name!r}, which is not a variable; {known}")
        if not is_float(graph[name].types[0].dtype):
            raise GraphError(f"cannot differentiate by {name!r} of {graph[name].types[0]}")
    builder = Builder(graph)
    active = _active(graph, wrt)
    sums: dict[Value, Ref] = {}
    fed = _seed(graph, builder, sums, active) if heads else {}
    for node in reversed(list(graph)):
        if node.name in active and not node.is_variable:
            _backward(node, builder, sums, active, scaled)
    grads = {name: _gradient_of(graph[name], builder, sums) for name in wrt}
    outputs = [*graph.outputs, *grads.values()]
    pruned = prune(builder.graph(outputs), outputs)
    needed = {index: name for index, name in fed.items() if name in pruned.nodes}
    scales = tuple([n.name for n in pruned.variables if n.name.endswith(SCALE) and n.origin])
    return Differentiated(pruned, grads, needed, scales)


def _active(graph: Graph, wrt: list[str]) -> set[str]:
    """Return the names of the nodes that depend on a variable of `wrt`."""
    active = set(wrt)
    for node in graph:
        if any(v.node in active for v in node.inputs):
            active.add(node.name)
    return active


def _seed(
    graph: Graph, builder: Builder, sums: dict[Value, Ref], active: set[str]
) -> dict[int, str]:
    fed: dict[int, str] = {}
    for index, value in enumerate(graph.outputs):
        node, type_ = graph[value.node], graph.type_of(value)
        loss = not node.is_variable and find(node.op).is_loss(node.attrs)
        waits = not loss or node.attrs.get("out_grad", False)
        if waits and value.node in active and is_float(type_.dtype):
            name = f"{value.node}_head_grad{index}"
            _add(value, builder.variable(name, type_, origin=node.name), sums)
            fed[index] = name
    return fed


def _add(value: Value, term: Ref, sums: dict[Value, Ref]) -> None:
    """Add a term to a value's gradient; the addition serves the value's producer."""
    total = sums.get(value)
    at_producer = Ref(term.builder, term.value, value.node)
    sums[value] = at_producer if total is None else total + at_producer


def _backward(
    node: Node, builder: Builder, sums: dict[Value, Ref], active: set[str], scaled: bool
) -> None:
    op = find(node.op)
    outs = [Value(node.name, i) for i in range(len(node.types))]
    g = tuple([sums.get(v) for v in outs])
    loss = op.is_loss(node.attrs)
    if op.grad is None or (not loss and all(x is None for x in g)):
        return
    origin = node.name
    refs = [builder.ref(v, origin) for v in (*node.inputs, *outs)]
    grads = tuple([None if x is None else builder.ref(x.value, origin) for x in g])
    call = Call(node.attrs, tuple(refs[: len(node.inputs)]), tuple(refs[len(node.inputs) :]), grads)
    starts = scaled and loss and not node.attrs.get("out_grad")
    for value, term in zip(node.inputs, op.grad(call), strict=True):
        if term is not None and value.node in active:
            _add(value, _scaled(term, node, builder) if starts else term, sums)


def _scaled(term: Ref, loss: Node, builder: Builder) -> Ref:
    """Multiply a loss's gradient by its scale, which is fed."""
    type_ = TensorType((1,) * len(term.shape), term.dtype)
    return apply("broadcast_mul", term, builder.variable(loss.name + SCALE, type_, loss.name))


def _gradient_of(variable: Node, builder: Builder, sums: dict[Value, Ref]) -> Value:
    """Return the gradient as a value of a node that serves the variable, to be placed with it."""
    total = sums.get(Value(variable.name))
    if total is not None:
        return apply("identity", total).value
    type_ = variable.types[0]
    attrs = {"shape": type_.shape, "dtype": type_.dtype}
    return builder.call_for(variable.name, "_zeros", (), attrs)[0]
