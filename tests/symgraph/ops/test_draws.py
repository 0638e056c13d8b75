"""Random symbols: their distribution, names, and that no cut of the batch changes them."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from symgraph.core.errors import DTypeError, MicroBatchError, ShapeError
from symgraph.core.registry import Env
from symgraph.core.types import Value
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.passes.batching import micro_batch
from symgraph.passes.testing import run_op
from tests.symgraph.ops.layouts import PARTIAL, Split, check_graph_layout, check_layout
from tests.symgraph.running import run

ENV = Env(train=True, seed=3, step=7)


def test_moments():
    even = run(sym.random.uniform(-1, 3, shape=(200, 100), name="u"), ENV)[0]
    assert even.dtype == "float32"
    assert -1 <= even.min() < even.max() < 3
    assert abs(even.mean() - 1) < 0.02
    assert abs(even.std() - 4 / 12**0.5) < 0.02
    bell = run(sym.random.normal(2, 0.5, shape=(200, 100), name="n"), ENV)[0]
    assert abs(bell.mean() - 2) < 0.01
    assert abs(bell.std() - 0.5) < 0.01
    assert abs((abs(bell - 2) < 0.5).mean() - 0.6827) < 0.01


def test_numbers_depend_on_seed_step_and_name_alone():
    def numbers(env=ENV, name="u", dtype="float64"):
        return run(sym.random.uniform(shape=(3, 2), name=name, dtype=dtype), env)[0]

    np.testing.assert_array_equal(numbers(), numbers())
    np.testing.assert_array_equal(numbers(ENV._replace(train=False)), numbers())
    np.testing.assert_allclose(numbers(dtype="float32"), numbers(), rtol=1e-6)
    for other in (numbers(ENV._replace(seed=4)), numbers(ENV._replace(step=8)), numbers(name="v")):
        assert not np.isin(other, numbers()).any()


def test_names_are_mxnets():
    made = [
        sym.random.uniform(),
        sym.random_uniform(shape=(2,)),
        sym.uniform(shape=(2,)),
        sym.random.normal(),
        sym.random_normal(0, 1, (2,)),
        sym.normal(shape=(2,)),
        sym.random.uniform_like(sym.Variable("x")),
        sym.random.randn(2, 3),
    ]
    assert [s.name.rstrip("0123456789") for s in made] == [
        "_random_uniform",
        "random_uniform",
        "uniform",
        "_random_normal",
        "random_normal",
        "normal",
        "uniform_like",
        "_random_normal",
    ]
    assert [s.infer_shape(**({"x": (4,)} if s.list_arguments() else {}))[1] for s in made] == [
        [(1,)],
        [(2,)],
        [(2,)],
        [(1,)],
        [(2,)],
        [(2,)],
        [(4,)],
        [(2, 3)],
    ]


def test_parameters_are_numbers():
    with pytest.raises(TypeError, match="_random_uniform: low is a symbol"):
        sym.random.uniform(sym.Variable("low"), 1)
    with pytest.raises(DTypeError, match="works on floats, not int32"):
        run_op("_random_uniform_like", np.ones(3, "int32"))


@pytest.mark.parametrize("make", [sym.random.uniform, sym.random.normal])
def test_a_zero_in_the_shape_is_the_batch(make):
    noisy = sym.Variable("x") + make(shape=(0, 3), name="noise", dtype="float64")
    whole = run(noisy, ENV, x=np.zeros((5, 3)))[0]
    assert len(np.unique(whole)) == 15
    found = check_graph_layout(
        lambda feeds, n: (
            micro_batch(
                lower(noisy, {"x": feeds["x"].shape}, {"x": "float64"}), {"x": 0}, n, 5
            ).graph
        ),
        {"x": np.zeros((5, 3))},
        {"x": Split(0)},
        5,
        (2, 2, 1),
        env=ENV,
    )
    assert found == [Split(0)]


def test_numbers_shaped_like_samples():
    x = np.zeros((4, 3))
    attrs = {"stream": "s", "axis": 0}
    assert check_layout("_random_normal_like", [x], [Split(0)], 4, (3, 1), env=ENV, **attrs) == [
        Split(0)
    ]


@pytest.mark.parametrize("make", [sym.zeros, sym.ones, sym.random.normal])
def test_a_zero_that_is_not_the_batch(make):
    net = sym.dot(sym.Variable("x"), make(shape=(0, 2), name="weight") + sym.Variable("w"))
    graph = lower(net, {"x": (4, 3), "w": (3, 2)})
    assert graph["weight"].types[0].shape == (3, 2)
    with pytest.raises(
        MicroBatchError,
        match="'weight' has a 0 in its shape for an axis of length 3, which is not the batch's",
    ):
        micro_batch(graph, {"x": 0}, 4, 8)
    micro_batch(graph, {"x": 0}, 4, 4)


def test_ones_for_the_batch_are_summed_as_the_whole_batchs():
    """Their length is the micro-batch's, so the sum over them is a part of the batch's."""
    net = sym.sum(sym.ones(shape=(0, 1), name="o") * sym.Variable("x"), axis=0)
    graph = lower(net, {"x": (2, 1)})
    found = micro_batch(graph, {"x": 0}, 2, 6)
    assert found.layouts[Value("o")] == Split(0)
    assert found.layouts[graph.outputs[0]] is PARTIAL


def test_two_zeros_are_an_error():
    with pytest.raises(ShapeError, match="several unknown dimensions"):
        lower(sym.random.uniform(shape=(0, 0), name="u") + sym.Variable("x"), {"x": (2, 3)})


def test_an_executor_draws_new_numbers_in_every_forward_wherever_the_node_is():
    with sg.AttrScope(ctx_group="a"):
        noise = sym.random.normal(shape=(0, 3), name="noise")
    with sg.AttrScope(ctx_group="b"):
        net = noise * 2 + sym.Variable("x")
    drawn = []
    for groups in ({"a": sg.cpu(0), "b": sg.cpu(0)}, {"a": sg.cpu(0), "b": sg.cpu(1)}):
        with net.simple_bind(sg.cpu(), group2ctx=groups, x=(4, 3)) as executor:
            forwards = [executor.forward(train)[0] for train in (False, False, True, True)]
            assert len({f.tobytes() for f in forwards[:2]}) == 2
            assert len({f.tobytes() for f in forwards[2:]}) == 2
            drawn.append(np.stack(forwards))
    np.testing.assert_array_equal(*drawn)
