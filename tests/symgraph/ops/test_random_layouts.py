"""Random graphs of many operators: micro-batches put together are the whole batch."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.build import Builder
from symgraph.core.errors import GraphError, MicroBatchError
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import VARIABLE, find
from symgraph.core.types import TensorType, Value
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_graph_layout, layouts_of

T, B, H = 3, 5, 4
FEEDS = {
    "time_major": ((T, B, H), Split(1)),
    "batch_major": ((B, T, H), Split(0)),
    "merged": ((T * B, H), Split(0, outer=T)),
    "rows": ((B, H), Split(0)),
    "weight": ((H, H), WHOLE),
    "vector": ((H,), WHOLE),
}
ONE = [
    ("tanh", {}),
    ("sigmoid", {}),
    ("negative", {}),
    ("identity", {}),
    ("square", {}),
    ("Activation", {"act_type": "relu"}),
    ("clip", {"a_min": -0.5, "a_max": 0.5}),
    ("_mul_scalar", {"scalar": 0.5}),
    ("_plus_scalar", {"scalar": 1.5}),
    ("_rminus_scalar", {"scalar": 1.0}),
    ("_greater_scalar", {"scalar": 0.0}),
    ("sum", {"axis": 0}),
    ("sum", {"axis": -1, "keepdims": True}),
    ("sum", {}),
    ("mean", {"axis": 1}),
    ("mean", {"axis": (0, -1)}),
    ("mean", {"axis": 1, "exclude": True}),
    ("max", {"axis": -1}),
    ("min", {"axis": 0, "keepdims": True}),
    ("norm", {"axis": 1}),
    ("argmax", {"axis": -1}),
    ("Reshape", {"shape": (-3, -2)}),
    ("Reshape", {"shape": (0, -1)}),
    ("Reshape", {"shape": (0, -4, 2, -1, -2)}),
    ("Reshape", {"shape": (-1, 0), "reverse": True}),
    ("Reshape", {"shape": (T, -1, H)}),
    ("Reshape", {"shape": (-1,)}),
    ("Flatten", {}),
    ("transpose", {}),
    ("transpose", {"axes": (1, 0, 2)}),
    ("SwapAxis", {"dim1": 0, "dim2": -1}),
    ("expand_dims", {"axis": 0}),
    ("expand_dims", {"axis": -1}),
    ("squeeze", {"axis": 0}),
    ("squeeze", {"axis": -1}),
    ("slice_axis", {"axis": 0, "begin": 1, "end": None}),
    ("slice_axis", {"axis": -1, "begin": 0, "end": 2}),
    ("slice", {"begin": (None, 1), "end": (None, 3)}),
    ("SliceChannel", {"num_outputs": T, "axis": 0}),
    ("SliceChannel", {"num_outputs": T, "axis": 0, "squeeze_axis": True}),
    ("SliceChannel", {"num_outputs": 2, "axis": -1}),
    ("zeros_like", {}),
    ("ones_like", {}),
    ("broadcast_axis", {"axis": 0, "size": 3}),
]
TWO = [
    ("elemwise_add", {}),
    ("elemwise_mul", {}),
    ("_maximum", {}),
    ("broadcast_add", {}),
    ("broadcast_mul", {}),
    ("broadcast_sub", {}),
    ("broadcast_lesser", {}),
    ("add_n", {"num_args": 2}),
    ("Concat", {"num_args": 2, "dim": 0}),
    ("Concat", {"num_args": 2, "dim": -1}),
    ("stack", {"num_args": 2, "axis": 1}),
    ("dot", {}),
]


def variables(shapes):
    return [Node(n, VARIABLE, types=(TensorType(s, "float64"),)) for n, s in shapes.items()]


def graph_of(shapes, calls):
    """The calls (op, inputs, attrs) on variables of these shapes; every value is an output."""
    builder = Builder(variables(shapes))
    for i, (op, inputs, attrs) in enumerate(calls):
        node = builder.call(op, inputs, attrs, f"call{i}", "rows")
        builder.nodes[node.name] = Node(node.name, op, inputs, node.attrs, node.types)
    values = [Value(n.name, i) for n in builder.nodes.values() for i in range(len(n.types))]
    return Graph.of(builder.nodes.values(), values)


def random_calls(seed, wanted):
    """A list of calls that fit and that do not mix samples, and the layouts of all values."""
    rng = np.random.default_rng(seed)
    shapes = {name: shape for name, (shape, _) in FEEDS.items()}
    given = {name: layout for name, (_, layout) in FEEDS.items()}
    calls = []
    values = [Value(name) for name in FEEDS]
    while len(calls) < wanted:
        table, count = [(ONE, 1), (TWO, 2)][rng.integers(2)]
        op, attrs = table[rng.integers(len(table))]
        count = len(find(op).input_names(attrs))
        weights = np.arange(1.0, len(values) + 1)  # later values more often
        picked = rng.choice(len(values), count, p=weights / weights.sum())
        call = (op, tuple(values[i] for i in picked), attrs)
        try:
            graph = graph_of(shapes, [*calls, call])
            layouts = layouts_of(graph, given)
        except GraphError:  # shapes do not fit, or samples are mixed
            continue
        if max(t.size for t in graph.types_of(graph.outputs)) > 2000:
            continue
        calls.append(call)
        values = list(layouts)
    return calls, layouts


@pytest.mark.every(3)
@pytest.mark.parametrize("parts", [(3, 2), (2, 1, 2), (1, 1, 1, 1, 1)])
@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed, parts):
    calls, _ = random_calls(seed, wanted=12)
    rng = np.random.default_rng(seed)
    feeds = {name: rng.uniform(-1, 1, shape) for name, (shape, _) in FEEDS.items()}
    layouts = {name: layout for name, (_, layout) in FEEDS.items()}

    def make(arrays, samples):
        return graph_of({name: a.shape for name, a in arrays.items()}, calls)

    check_graph_layout(make, feeds, layouts, B, parts, rtol=1e-9)


def test_random_graphs_reach_every_layout_and_most_operators():
    found, used = set(), set()
    for seed in range(40):
        calls, layouts = random_calls(seed, wanted=12)
        used.update(op for op, _, _ in calls)
        found.update(layouts.values())
    assert {WHOLE, PARTIAL, Split(0), Split(1), Split(2), Split(0, outer=T)} <= found
    assert any(isinstance(layout, Split) and layout.inner > 1 for layout in found)
    assert len(used) > 0.9 * len({op for op, _ in (*ONE, *TWO)})


def test_mixed_samples_are_refused_at_every_size():
    calls = [("max", (Value("rows"),), {"axis": 0})]
    for size in (1, 2, B):
        graph = graph_of({"rows": (size, H)}, calls)
        with pytest.raises(MicroBatchError, match="max 'call0' reduces over the batch axis"):
            layouts_of(graph, {"rows": Split(0)})
