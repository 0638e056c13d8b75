"""The pass that fuses attention: what it finds, what it leaves, and that numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph.frontend.sym as sym
from examples.transformer_lm import build
from runtime.planning.network import PlanRequest, make_network
from runtime.planning.options import NetworkOptions
from symgraph.core.graph import Graph
from symgraph.core.reference import evaluate
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.frontend.symbol import Symbol
from symgraph.passes.attention import fuse_attention
from symgraph.passes.gradients import gradients

OP, STEPS = "scaled_dot_product_attention", 9
Q, K, V, M = (sym.Variable(n) for n in "qkvm")
PRODUCT = sym.batch_dot(Q, K, transpose_b=True, name="product")
SHAPES = {"q": (2, STEPS, 4), "k": (2, STEPS, 4), "v": (2, STEPS, 3), "m": (1, STEPS, STEPS)}
PLACES = sym.arange(0, STEPS, dtype="float64")
LATER = sym.broadcast_greater(
    sym.Reshape(PLACES, shape=(1, 1, -1)), sym.Reshape(PLACES, shape=(1, -1, 1))
)


def attended(scores: Symbol, **attrs: object) -> Symbol:
    return sym.batch_dot(sym.softmax(scores, **attrs), V, name="attended")


def graph_of(net: Symbol) -> Graph:
    shapes = {n: SHAPES[n] for n in net.list_arguments() if n in SHAPES}
    return lower(net, shapes, dict.fromkeys(shapes, "float64"))


def numbers_of(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(SHAPES[n]) for n in "qkvm"}
    both = gradients(graph, [n.name for n in graph.variables])
    heads = {n: rng.standard_normal(both.graph[n].types[0].shape) for n in both.heads.values()}
    fed = {n.name: values.get(n.name) for n in graph.variables} | heads
    return evaluate(both.graph, fed)


FOUND = {  # and what the call's parameters are
    "a product": (PRODUCT, {"scale": 1.0}),
    "scaled twice": (PRODUCT * 3.0 / 2.0, {"scale": 1.5}),
    "a temperature": (PRODUCT, {"scale": 0.5}, {"temperature": 2.0, "axis": 2}),
    "a mask": (sym.broadcast_add(PRODUCT * 2.0, M), {"scale": 2.0, "use_mask": True}),
    "a mask in front": (sym.broadcast_add(M, PRODUCT), {"use_mask": True, "causal": False}),
    "a causal mask": (
        sym.broadcast_add(PRODUCT, LATER * -1e9),
        {"causal": True, "use_mask": False},
    ),
    "a mask that weakens": (
        sym.broadcast_add(PRODUCT, LATER * -3.0),
        {"causal": False, "use_mask": True},
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found(name):
    scores, wanted, *attrs = FOUND[name]
    graph = graph_of(attended(scores, **(attrs[0] if attrs else {})))
    fused = fuse_attention(graph)
    call = fused["attended"]
    assert call.op == OP
    assert {k: call.attrs[k] for k in wanted} == wanted
    assert not {"batch_dot", "softmax"} & {n.op for n in fused}
    assert call.attrs["use_mask"] or len([n for n in fused if not n.is_variable]) == 1
    for ours, theirs in zip(numbers_of(fused), numbers_of(graph), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def in_groups() -> Symbol:
    with AttrScope(ctx_group="there"):
        weights = sym.softmax(sym.batch_dot(Q, K, transpose_b=True))
    with AttrScope(ctx_group="here"):
        return sym.batch_dot(weights, V)


WEIGHTS = sym.softmax(PRODUCT)
LEFT = {
    "weights that are an output": sym.Group([WEIGHTS, sym.batch_dot(WEIGHTS, V)]),
    "scores that are read twice": sym.Group([attended(PRODUCT), sym.sum(PRODUCT)]),
    "dropout of weights": sym.batch_dot(sym.Dropout(WEIGHTS, p=0.5), V),
    "softmax over queries": attended(PRODUCT, axis=1),
    "a scaled mask": attended(sym.broadcast_add(PRODUCT, M) * 2.0),
    "a mask at another temperature": attended(sym.broadcast_add(PRODUCT, M), temperature=2.0),
    "a mask of fewer axes": attended(sym.broadcast_add(PRODUCT, sym.Reshape(M, shape=(9, 9)))),
    "several groups": in_groups(),
    "few queries": attended(
        sym.batch_dot(sym.slice_axis(Q, axis=1, begin=0, end=7), K, transpose_b=True)
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name):
    graph = graph_of(LEFT[name])
    assert fuse_attention(graph) is graph


def test_a_transformer_keeps_no_weights():
    """They were most of its memory: a square of the sequence's length for every head."""
    model = build(4, 96, vocab=20, layers=2, hidden=8, heads=4)
    wrt = tuple(n for n in model.symbol.list_arguments() if n not in model.feeds)
    asked = PlanRequest(model.symbol, model.feeds, wrt, False, {}, {})
    graph = make_network(asked, NetworkOptions(micro_batches=2), {}).first
    ops = [n.op for n in graph]
    assert (ops.count(OP), ops.count("_attention_grad"), ops.count("softmax")) == (2, 2, 0)
    assert max(t.size for n in graph for t in n.types) < 2 * 4 * 96 * 96
