"""Fusing attention: products, softmax and mask become one operator that never has all weights.

    query ──┐                                                 query ──┐
            batch_dot ── * scale ── + mask ── softmax ──┐      key ────┤
    key ────┘                                       batch_dot    ->    scaled_dot_product_attention
    value ──────────────────────────────────────────────┘     value ──┘

A mask that hides from each query the keys behind it, and that no variable takes part in, becomes
`causal`, which saves half of the work. The graph is that of all placements alike, and not yet
differentiated, so that numbers do not depend on the placement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from symgraph.core.build import typed_node
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import Env, find, run
from symgraph.core.tags import lookup
from symgraph.core.types import Array, Shape, Value
from symgraph.passes.simplify import drop_unread

LEAST_QUERIES = 8  # the weights of fewer are no larger than what they are made of
HIDDEN = -1e6  # added to a score, it leaves a weight of 0
MOST_NUMBERS = 1 << 24  # of a mask that is looked at
TOGETHER = ("ctx_group", "time_step", "shard", "replicate")  # tags that keep nodes apart
SUMS = ("broadcast_add", "elemwise_add")

Find = Callable[[Value], Node | None]


class _Scores(NamedTuple):
    """The scores of an attention."""

    #: The product of queries and keys.
    product: Node
    scale: float = 1.0
    mask: Value | None = None


def fuse_attention(graph: Graph) -> Graph:
    """Return a forward graph with each attention as one call; values keep their names.

    What is read otherwise, or is an output, stays, and so does what is in several groups.
    """
    readers = graph.users()
    asked = {v.node for v in graph.outputs}

    def fused(node: Node) -> Node:
        def only_here(value: Value) -> Node | None:
            """Return the node of a value that only the attention reads, if it is one."""
            maker = graph[value.node]
            mine = len(readers.get(value, ())) == 1 and value.node not in asked
            same = all(lookup(maker.tags, k) == lookup(node.tags, k) for k in TOGETHER)
            return maker if mine and same and not maker.is_variable else None

        return _attention(node, graph, only_here) or node

    found = [fused(node) for node in graph]
    if all(a is b for a, b in zip(found, graph, strict=True)):
        return graph
    return Graph.of(drop_unread(found, graph), graph.outputs)


def _attention(node: Node, graph: Graph, only_here: Find) -> Node | None:
    """Return the attention whose last product a node is, under its name."""
    if node.op != "batch_dot" or node.attrs["transpose_a"] or node.attrs["transpose_b"]:
        return None
    softmax = only_here(node.inputs[0])
    if softmax is None or softmax.op != "softmax":
        return None
    shape, temperature = softmax.types[0].shape, softmax.attrs["temperature"] or 1.0
    scores = _scores(softmax.inputs[0], only_here)
    if scores is None or softmax.attrs["axis"] % len(shape) != len(shape) - 1:
        return None
    if shape[-2] < LEAST_QUERIES or (scores.mask is not None and temperature != 1):
        return None
    inputs = [*scores.product.inputs, node.inputs[1]]
    attrs: dict[str, Any] = {"scale": scores.scale / temperature}
    if scores.mask is not None:
        mask = graph.type_of(scores.mask)
        if len(mask.shape) != len(shape) or math.prod(shape) != scores.product.types[0].size:
            return None
        attrs["causal"] = _is_causal(_formula(scores.mask, graph), mask.shape, shape[-2:])
        attrs["use_mask"] = not attrs["causal"]
        inputs += [scores.mask] if attrs["use_mask"] else []
    op, types = "scaled_dot_product_attention", graph.types_of(inputs)
    return typed_node(node.name, op, tuple(inputs), types, attrs, node.tags)


def _scores(value: Value, only_here: Find) -> _Scores | None:
    """Return what a value is, if it is scores: a product, perhaps scaled, then perhaps masked."""
    node = only_here(value)
    if node is None:
        return None
    if node.op == "batch_dot":
        return None if node.attrs["transpose_a"] or not node.attrs["transpose_b"] else _Scores(node)
    if node.op in ("_mul_scalar", "_div_scalar"):
        scores = _scores(node.inputs[0], only_here)
        factor = node.attrs["scalar"] ** (1 if node.op == "_mul_scalar" else -1)
        unmasked = scores is not None and scores.mask is None
        return scores._replace(scale=scores.scale * factor) if scores and unmasked else None
    if node.op in SUMS:
        for one, other in (node.inputs, node.inputs[::-1]):
            scores = _scores(one, only_here)
            if scores is not None and scores.mask is None:
                return scores._replace(mask=other)
    return None


# -- masks ---------------------------------------------------------------------------------------


class _Formula(NamedTuple):
    """A constant value: the call that makes it."""

    op: str
    attrs: tuple[tuple[str, Any], ...]
    inputs: Sequence[Any]  # formulas
    output: int

    def compute(self) -> Array:
        attrs: Mapping[str, Any] = dict(self.attrs)
        arrays = [formula.compute() for formula in self.inputs]
        return run(find(self.op), Env(), attrs, arrays)[self.output]


def _formula(value: Value, graph: Graph) -> Hashable:
    """Return the formula of a value; None if a variable or a random number takes part in it."""
    node = graph[value.node]
    if node.is_variable or find(node.op).random or find(node.op).aux:
        return None
    if node.types[value.index].size > MOST_NUMBERS:
        return None
    inputs = tuple([_formula(v, graph) for v in node.inputs])
    if None in inputs:
        return None
    return _Formula(node.op, tuple(sorted(node.attrs.items())), inputs, value.index)


@lru_cache(maxsize=1 << 8)
def _is_causal(mask: Hashable, shape: Shape, scores: Shape) -> bool:
    """Tell whether a mask of that shape is constant, and hides just what `causal` does."""
    if not isinstance(mask, _Formula) or shape[-2:] != scores:
        return False
    array, seen = mask.compute(), np.tri(*scores, dtype=np.bool_)
    return bool((array[..., seen] == 0).all() and (array[..., ~seen] <= HIDDEN).all())
