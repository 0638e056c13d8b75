"""Operators of users: what their registration says serves them as it does those of symgraph.

Once such facts stood in tables of names, so a user's operator was never merged over time, never ran
in place, and was timed on ids that were none.
"""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from partitioner import group2ctx
from partitioner.costs.cost import is_free, touched_bytes
from partitioner.cutting.cut import cut
from partitioner.memory.memory_layout import lay_out
from runtime.profiling.calibration.cpu_kernels import measure
from runtime.profiling.calibration.excerpts import bound
from symgraph import cpu
from symgraph import operator as op
from symgraph.core.reference import evaluate
from symgraph.core.registry import OPS
from symgraph.core.types import Value
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.passes.merge import merge_products
from symgraph.passes.simplify import fold

NAME = "_operator_of_a_user"


@pytest.fixture
def register():
    """Registers an operator of that name, which is gone after the test."""

    def make(**fields):
        op.register(name=NAME, **{"inputs": ("data",), "shape": op.same, **fields})

    yield make
    OPS.pop(NAME, None)


def call(*inputs, name="own", **params):
    return getattr(sym, NAME)(*inputs, name=name, **params)


def test_ids_are_valid_where_they_are_timed(register):
    read = []

    def look_up(env, attrs, ids, table):
        read.extend(ids.ravel().tolist())
        return table[ids.astype(int)]

    register(
        inputs=("ids", "table"),
        shape=lambda site, ins, outs: (ins, [(*ins[0], *ins[1][1:])]),
        compute=look_up,
        ids={"ids": lambda attrs, ins: ins[1].shape[0]},
        reads_part=True,
    )
    graph = lower(call(sym.Variable("x"), sym.Variable("table")), {"x": (64,), "table": (500, 2)})
    assert measure([graph], seconds=0).failed == {}
    assert all(n == int(n) and 0 <= n < 500 for n in read)
    assert len({*read}) > 30
    assert touched_bytes(graph["own"], graph) == 4 * (2 * 64 * 2 + 64)


@pytest.mark.parametrize("in_place", [(), ((0, 0),)])
def test_the_output_is_written_over_the_input(register, in_place):
    register(compute=lambda env, attrs, x: 2 * x + 1, in_place=in_place)
    x = sym.tanh(sym.Variable("x"), name="before")
    graph = lower(sym.tanh(call(x), name="after"), {"x": (8, 4)})
    layout = lay_out(cut(graph, group2ctx(graph, None, cpu(0))), 0, ["x"])
    (stage,) = {stage for stage, _ in layout.places}
    before, after = (layout.places[stage, Value(name)] for name in ("before", "own"))
    assert (before.root == after.root) == bool(in_place)
    feeds = {"x": np.random.default_rng(0).standard_normal((8, 4)).astype("float32")}
    body = bound(graph, feeds)
    body.run()
    ((_, result),) = body.results
    np.testing.assert_allclose(result, evaluate(graph, feeds)[0], rtol=1e-5, atol=1e-6)


def test_a_view_takes_no_time(register):
    register(compute=lambda env, attrs, x: x, view=op.same_memory)
    graph = lower(call(sym.tanh(sym.Variable("x"))), {"x": (8, 4)})
    assert is_free(graph["own"], graph)


def test_calls_of_time_steps_are_merged(register):
    register(
        inputs=("data", "scale"),
        shape=lambda site, ins, outs: (ins, ins[:1]),
        compute=lambda env, attrs, x, scale: x * scale,
        rowwise=(0,),
    )
    scale, outputs = sym.Variable("scale"), []
    for step in range(3):
        with AttrScope(time_step=str(step)):
            outputs.append(call(sym.Variable(f"x{step}"), scale, name=f"own{step}"))
    shapes = {f"x{step}": (4, 2) for step in range(3)} | {"scale": (2,)}
    graph = lower(sym.Group(outputs), shapes)
    merged = merge_products(graph, lambda node: 0)
    assert [n.op for n in merged].count(NAME) == 1
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(s).astype("float32") for name, s in shapes.items()}
    for got, want in zip(evaluate(merged, feeds), evaluate(graph, feeds), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_call_that_changes_nothing_is_left_out(register):
    register(
        compute=lambda env, attrs, x: x ** attrs["power"],
        params={"power": op.number()},
        identity=lambda attrs: attrs["power"] == 1,
    )
    for power, calls in ((1, 0), (2, 1)):
        graph = lower(sym.tanh(call(sym.Variable("x"), power=power)), {"x": (2,)})
        assert [n.op for n in fold(graph)].count(NAME) == calls


def test_pictures_show_a_caption(register):
    register(
        compute=lambda env, attrs, x: x * attrs["factor"],
        params={"factor": op.number()},
        caption=lambda attrs: f"times {attrs['factor']}",
    )
    picture = sg.viz.plot_network(call(sym.Variable("x"), factor=2.5), shape={"x": (2,)})
    assert "times 2.5" in picture.source
