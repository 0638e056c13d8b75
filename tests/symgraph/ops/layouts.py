"""Checks that batch layouts are true: graphs are really run on micro-batches and put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from symgraph.core.batch_layout import PARTIAL, WHOLE, Layout, Split
from symgraph.core.graph import Graph, Node
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env, find
from symgraph.core.types import Array, Value
from symgraph.passes.testing import op_graph


def take_part(array: Array, layout: Split, batch: int, start: int, stop: int) -> Array:
    """The samples [start, stop) of a value whose batch lies as the layout says."""
    axis, shape = layout.axis, array.shape
    before, after = shape[:axis], shape[axis + 1 :]
    nested = array.reshape(*before, layout.outer, batch, layout.inner, *after)
    part = np.take(nested, range(start, stop), axis=axis + 1)
    return part.reshape(*before, layout.outer * (stop - start) * layout.inner, *after)


def put_together(parts: Sequence[Array], layout: Layout) -> Array:
    """The whole batch's value."""
    if layout is PARTIAL:
        return np.sum(parts, axis=0)
    if not isinstance(layout, Split):
        return parts[0]
    axis, shape = layout.axis, parts[0].shape
    before, after = shape[:axis], shape[axis + 1 :]
    nested = [p.reshape(*before, layout.outer, -1, layout.inner, *after) for p in parts]
    return np.concatenate(nested, axis + 1).reshape(*before, -1, *after)


def shares(array: Array, layout: Layout, sizes: Sequence[int], seed: int = 0) -> list[Array]:
    """What each micro-batch holds of a value; random terms that add up to a PARTIAL one."""
    array = np.asarray(array)
    if layout is WHOLE:
        return [array] * len(sizes)
    if isinstance(layout, Split):
        ends = np.cumsum([0, *sizes]).tolist()
        return [take_part(array, layout, sum(sizes), *ends[i : i + 2]) for i in range(len(sizes))]
    rng = np.random.default_rng(seed)
    terms = [rng.standard_normal(array.shape).astype(array.dtype) for _ in sizes[1:]]
    return [*terms, array - sum(terms, np.zeros_like(array))]


def layouts_of(graph: Graph, given: Mapping[str, Layout]) -> dict[Value, Layout]:
    """The layout of every value, by the operators' batch rules; variables are WHOLE by default."""
    found: dict[Value, Layout] = {}
    for node in graph:
        if node.is_variable:
            found[Value(node.name)] = given.get(node.name, WHOLE)
            continue
        ins = [found[v] for v in node.inputs]
        outs = find(node.op).batch(node.site, ins, graph.types_of(node.inputs), node.types)
        assert len(outs) == len(node.types), f"{node.op} gives {len(outs)} layouts"
        found.update({Value(node.name, i): layout for i, layout in enumerate(outs)})
    return found


def with_counts_of(part: Graph, whole: Graph) -> Graph:
    """Means divide by the whole batch's count."""

    def counted(node: Node) -> Node:
        op = find(node.op) if not node.is_variable else None
        if op is None or op.divisor is None:
            return node
        twin = whole[node.name]
        count = op.divisor(twin.attrs, whole.types_of(twin.inputs))
        attrs = {**node.attrs, "count": count}
        return Node(node.name, node.op, node.inputs, attrs, node.types, node.origin, node.tags)

    return Graph.of([counted(n) for n in part], part.outputs)


def check_graph_layout(
    make: Callable[[Mapping[str, Array], int], Graph],
    feeds: Mapping[str, Array],
    layouts: Mapping[str, Layout],
    batch: int,
    parts: Sequence[int],
    *,
    env: Env | None = None,
    rtol: float = 1e-10,
) -> list[Layout]:
    """Run a graph whole and in micro-batches of `parts` samples; the layouts of its outputs.

    make(feeds, samples): the graph typed for these feeds. feeds: the whole batch's values.
    AssertionError if the layouts found at the sizes differ, or the values put together do.
    """
    env = env or Env()
    assert sum(parts) == batch
    whole = make(feeds, batch)
    found = layouts_of(whole, layouts)
    pieces = {name: shares(a, layouts.get(name, WHOLE), parts) for name, a in feeds.items()}
    results = []
    for i, size in enumerate(parts):
        fed = {name: piece[i] for name, piece in pieces.items()}
        part = with_counts_of(make(fed, size), whole)
        there = layouts_of(part, layouts)
        assert there == found, f"layouts for {size} samples: {there}, for {batch}: {found}"
        results.append(evaluate(part, fed, env._replace(sample=sum(parts[:i]))))
    for i, (value, want) in enumerate(zip(whole.outputs, evaluate(whole, feeds, env), strict=True)):
        outs = [outputs[i] for outputs in results]
        if found[value] is WHOLE:
            for out in outs:
                np.testing.assert_allclose(out, want, rtol=rtol, atol=rtol)
        got = put_together(outs, found[value])
        assert got.shape == want.shape, f"{value}: {got.shape} is put together, not {want.shape}"
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol, err_msg=str(value))
    return [found[v] for v in whole.outputs]


def check_layout(
    op: str,
    arrays: Sequence[Any],
    layouts: Sequence[Layout],
    batch: int,
    parts: Sequence[int],
    *,
    env: Env | None = None,
    **attrs: Any,
) -> list[Layout]:
    """`check_graph_layout` of one call of an operator; the layouts of its visible outputs.

    An attribute that is a function is called with the number of samples.
    """
    names = [f"x{i}" for i in range(len(arrays))]

    def make(feeds: Mapping[str, Array], samples: int) -> Graph:
        now = {key: a(samples) if callable(a) else a for key, a in attrs.items()}
        return op_graph(op, [feeds[n] for n in names], **now)

    fed = {n: np.asarray(a) for n, a in zip(names, arrays, strict=True)}
    given = dict(zip(names, layouts, strict=True))
    return check_graph_layout(make, fed, given, batch, parts, env=env)


__all__ = ["PARTIAL", "WHOLE", "Split", "check_graph_layout", "check_layout"]
