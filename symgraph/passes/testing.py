"""Gradient checks for operators and symbols, for our tests and for people who add operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from symgraph.core.build import typed_node
from symgraph.core.graph import Graph, Node
from symgraph.core.reference import evaluate
from symgraph.core.registry import VARIABLE, Env, find
from symgraph.core.types import Array, TensorType, Value, is_float
from symgraph.passes.gradients import gradients


def op_graph(op: str, arrays: Sequence[Any], **attrs: Any) -> Graph:
    """Return one call of an operator on variables `x0`, `x1`, ... of the arrays' types."""
    types = [TensorType(np.shape(a), str(np.asarray(a).dtype)) for a in arrays]
    variables = [Node(f"x{i}", VARIABLE, types=(t,)) for i, t in enumerate(types)]
    call = typed_node("op", op, tuple(Value(v.name) for v in variables), types, attrs)
    outputs = [Value("op", i) for i in range(len(call.types))]
    return Graph.of([*variables, call], outputs[: find(op).visible])


def run_op(op: str, *arrays: Any, env: Env | None = None, **attrs: Any) -> Any:
    """Return the visible output of an operator, or the list of them if there are several."""
    feeds = {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)}
    outs = evaluate(op_graph(op, arrays, **attrs), feeds, env or Env())
    return outs[0] if len(outs) == 1 else outs


def check_grads(
    graph: Graph,
    feeds: Mapping[str, Array],
    wrt: Sequence[str] | None = None,
    *,
    env: Env | None = None,
    eps: float = 1e-6,
    rtol: float = 1e-6,
    seed: int = 0,
) -> None:
    """Compare the gradients with central differences along one random direction of each input.

    Works on float64. Outputs get random head gradients, so every output that depends on `wrt`
    takes part. Raises AssertionError naming the variable and both slopes.
    """
    env = env or Env()
    rng = np.random.default_rng(seed)
    wrt = [n.name for n in graph.variables if is_float(n.types[0].dtype)] if wrt is None else wrt
    both = gradients(graph, wrt)
    calls = [graph[v.node] for v in graph.outputs if not graph[v.node].is_variable]
    assert not any(find(c.op).is_loss(c.attrs) for c in calls), (
        "a loss starts the backward pass itself"
    )
    heads = {i: rng.standard_normal(graph.type_of(graph.outputs[i]).shape) for i in both.heads}
    fed = {both.heads[i]: h for i, h in heads.items()}
    grads = evaluate(both.graph, {**feeds, **fed}, env)[len(graph.outputs) :]

    def value(at: Mapping[str, Array]) -> float:
        outs = evaluate(graph, at, env)
        return float(sum((outs[i] * head).sum() for i, head in heads.items()))

    for name, grad in zip(both.grads, grads, strict=True):
        direction = rng.standard_normal(feeds[name].shape)
        up = value({**feeds, name: feeds[name] + eps * direction})
        down = value({**feeds, name: feeds[name] - eps * direction})
        slope, ours = (up - down) / (2 * eps), float((grad * direction).sum())
        scale = max(1.0, abs(slope))
        assert abs(slope - ours) <= rtol * scale, f"gradient of {name!r}: {ours} is not {slope}"


def check_op(op: str, *arrays: Any, second: bool = True, **attrs: Any) -> None:
    """Check an operator's gradients, and the gradients of those gradients if `second`."""
    feeds = {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)}
    graph = op_graph(op, arrays, **attrs)
    check_grads(graph, feeds)
    if second:
        wrt = [n.name for n in graph.variables if is_float(n.types[0].dtype)]
        both = gradients(graph, wrt)
        rng = np.random.default_rng(1)
        heads = {
            name: rng.standard_normal(both.graph[name].types[0].shape)
            for name in both.heads.values()
        }
        first_order = Graph.of(strip_origins(both.graph), list(both.grads.values()))
        check_grads(first_order, {**feeds, **heads}, rtol=1e-5)


def strip_origins(graph: Graph) -> list[Node]:
    """Return the nodes as forward nodes, so that a gradient graph can be differentiated again."""
    return [Node(n.name, n.op, n.inputs, n.attrs, n.types, None, n.tags) for n in graph]


__all__ = ["check_grads", "check_op", "op_graph", "run_op", "strip_origins"]
