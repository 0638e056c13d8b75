"""Constants: zeros, ones, full, arange, and those shaped like another value."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import GraphError, ShapeError
from symgraph.core.graph import Graph
from symgraph.core.params import Site
from symgraph.core.reference import evaluate
from symgraph.core.registry import ALIASES, OPS, find
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

FIXED = {"_zeros": 0, "_ones": 1}
EVERY = {*FIXED, "_full", "_arange", "zeros_like", "ones_like"}


def test_every_operator_of_the_file_is_checked_here():
    here = {op.name for op in OPS.values() if op.compute.__module__.endswith(".constants")}
    assert here == EVERY
    assert all(OPS[name].grad is None and OPS[name].flops({}, [], []) == 0 for name in EVERY)
    for name in ("zeros", "ones", "full", "arange"):
        assert ALIASES[name] == f"_{name}"


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "bool"])
@pytest.mark.parametrize("name", FIXED)
def test_fixed_constants(name, dtype):
    got = run_op(name, shape=(2, 3), dtype=dtype)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, np.full((2, 3), FIXED[name]))
    assert run_op(name, shape=4).dtype == "float32"
    assert run_op(name, shape=()).shape == ()


def test_full():
    got = run_op("_full", shape=(2, 3), value=2.5)
    np.testing.assert_array_equal(got, np.full((2, 3), 2.5, "float32"))
    assert run_op("_full", shape=2, value=7, dtype="int64").tolist() == [7, 7]
    with pytest.raises(GraphError, match="parameter 'value'"):
        run_op("_full", shape=2)


@pytest.mark.parametrize("name", [*FIXED, "_full"])
def test_unknown_dimensions_follow_from_the_users(name):
    """MXNet's begin_state asks for zeros of shape (0, H)."""
    site = Site(name, "op", {"shape": (0, 3)})
    assert find(name).shape(site, [], [(4, 0)]) == ([], [(4, 3)])
    assert find(name).shape(site, [], [None]) == ([], [(0, 3)])
    with pytest.raises(ShapeError, match=rf"{name} 'op': output shapes differ: \(0, 3\) and"):
        find(name).shape(site, [], [(4, 5)])


@pytest.mark.parametrize(
    ("attrs", "want"),
    [
        ({"start": 4}, [0, 1, 2, 3]),
        ({"start": 1, "stop": 4}, [1, 2, 3]),
        ({"start": 0, "stop": 1, "step": 0.25}, [0, 0.25, 0.5, 0.75]),
        ({"start": 3, "stop": 0, "step": -2}, [3, 1]),
        ({"start": 0, "stop": 2, "repeat": 2}, [0, 0, 1, 1]),
        ({"start": "0", "stop": "None", "step": "-1"}, None),
    ],
)
def test_arange(attrs, want):
    if want is None:
        with pytest.raises(ShapeError, match=r"_arange 'op': .* makes no elements"):
            run_op("_arange", **attrs)
        return
    got = run_op("_arange", **attrs)
    assert got.dtype == "float32"
    np.testing.assert_array_equal(got, want)


def test_arange_of_integers_rounds_start_and_step_as_mxnet():
    """MXNet 1.9.1 gives what numpy does, 1, 2, 3, ...: it converts both before it counts."""
    attrs = {"start": 1.3, "stop": 10.0, "step": 1.3, "dtype": "int32"}
    got = run_op("_arange", **attrs)
    np.testing.assert_array_equal(got, np.arange(1.3, 10.0, 1.3, dtype="int32"))


def test_arange_keeps_large_integers():
    """2**24 + 1 is no float32."""
    start = 2**24 + 1
    got = run_op("_arange", start=start, stop=start + 2, dtype="int64")
    assert got.tolist() == [start, start + 1]
    for mistake in ({"step": 0.0}, {"stop": 0.0}, {"repeat": 0}):
        with pytest.raises(ShapeError, match="makes no elements"):
            run_op("_arange", **{"start": 0, "stop": 2, **mistake})


@pytest.mark.parametrize("name", ["zeros_like", "ones_like"])
def test_shaped_like_another_value(name):
    x = np.array([[np.nan, 2.0]], "float32")
    got = run_op(name, x)
    assert got.dtype == "float32"
    np.testing.assert_array_equal(got, np.full((1, 2), name == "ones_like"))
    assert find(name).shape(Site(name, "op", {}), [None], [(1, 2)]) == ([(1, 2)], [(1, 2)])
    both = gradients(op_graph(name, [x]), ["x0"])
    heads = {head: np.ones((1, 2), "float32") for head in both.heads.values()}
    np.testing.assert_array_equal(evaluate(both.graph, {"x0": x, **heads})[1], [[0, 0]])


def test_a_variable_that_nothing_depends_on_has_a_gradient_of_zeros():
    graph = op_graph("elemwise_add", [np.ones(2), np.ones(2)])
    alone = Graph.of([n for n in graph if n.is_variable], graph.outputs[:0])
    both = gradients(alone, ["x0"])
    assert evaluate(both.graph, {"x0": np.ones(2), "x1": np.ones(2)})[0].tolist() == [0, 0]


# -- layouts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_zeros", "_ones", "_full", "_arange"])
def test_constants_do_not_depend_on_the_samples(name):
    attrs = {"start": 3} if name == "_arange" else {"shape": (2, 3)}
    attrs |= {"value": 2} if name == "_full" else {}
    assert check_layout(name, [], [], 4, (3, 1), **attrs) == [WHOLE]


def test_shaped_like_samples():
    x = [np.ones((4, 3))]
    for name in ("zeros_like", "ones_like"):
        assert check_layout(name, x, [Split(0)], 4, (3, 1)) == [Split(0)]
        assert check_layout(name, x, [WHOLE], 4, (3, 1)) == [WHOLE]


def test_shaped_like_a_sum_over_the_batch():
    """Zeros are the sum of zeros, but ones are not the sum of ones."""
    x = [np.ones((4, 3))]
    assert check_layout("zeros_like", x, [PARTIAL], 4, (3, 1)) == [PARTIAL]
    assert check_layout("ones_like", x, [PARTIAL], 4, (3, 1)) == [WHOLE]
