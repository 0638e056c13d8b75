"""Random symbols: their distribution, names, and that no cut of the batch changes them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import symgraph as sg
from symgraph.core.errors import DTypeError, GraphError, MicroBatchError, ShapeError
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


# Distribution of scipy with its arguments, and the parameters here.
DISTRIBUTIONS = [
    ("gamma", stats.gamma(0.3, scale=2), {"alpha": 0.3, "beta": 2}),
    ("gamma", stats.gamma(5, scale=0.5), {"alpha": 5, "beta": 0.5}),
    ("exponential", stats.expon(scale=1 / 3), {"lam": 3}),
    ("poisson", stats.poisson(0.5), {"lam": 0.5}),
    ("poisson", stats.poisson(9.5), {"lam": 9.5}),
    ("poisson", stats.poisson(200), {"lam": 200}),
    ("negative_binomial", stats.nbinom(3, 0.4), {"k": 3, "p": 0.4}),
    (
        "generalized_negative_binomial",
        stats.nbinom(1 / 0.7, 1 / (1 + 0.7 * 4)),
        {"mu": 4, "alpha": 0.7},
    ),
    ("generalized_negative_binomial", stats.poisson(4), {"mu": 4, "alpha": 0}),
]


@pytest.mark.parametrize(("name", "wanted", "given"), DISTRIBUTIONS)
def test_distributions(name, wanted, given):
    """By a test that is passed in 999 of 1000 cases, in all three forms of the operator."""
    place = {"env": ENV, "stream": "s", "dtype": "float64"}
    drawn = run_op(f"_random_{name}", shape=(20, 500), **place, **given)
    if hasattr(wanted.dist, "pdf"):
        assert stats.kstest(drawn.ravel(), wanted.cdf).pvalue > 1e-3
    else:
        often = wanted.pmf(np.arange(400)) * drawn.size
        found = np.bincount(drawn.ravel().astype(int), minlength=400)[:400]
        kept = often > 10
        found, often = (np.append(a[kept], drawn.size - a[kept].sum()) for a in (found, often))
        assert stats.chisquare(found, often).pvalue > 1e-3
    like = run_op(f"_random_{name}_like", np.zeros((20, 500)), env=ENV, stream="s", **given)
    np.testing.assert_array_equal(like, drawn)
    arrays = [np.full(20, float(value)) for value in given.values()]
    np.testing.assert_array_equal(run_op(f"_sample_{name}", *arrays, shape=500, **place), drawn)


@pytest.mark.parametrize(("name", "wanted", "given"), DISTRIBUTIONS[::2])
def test_micro_batches_draw_for_their_samples(name, wanted, given):
    """Also where what is rejected is drawn again."""
    like = {"stream": "s", "axis": 0, **given}
    found = check_layout(
        f"_random_{name}_like", [np.zeros((6, 40))], [Split(0)], 6, (1, 3, 2), env=ENV, **like
    )
    assert found == [Split(0)]
    arrays = [value * np.linspace(0.5, 1, 6) for value in given.values()]
    place = {"stream": "s", "axis": 0, "shape": 9}
    layouts = [Split(0)] * len(arrays)
    assert check_layout(f"_sample_{name}", arrays, layouts, 6, (2, 4), env=ENV, **place) == [
        Split(0)
    ]


def test_parameters_of_each_row():
    mean = np.array([0.0, 0.1, 5.0, 12.0, 5000.0])
    net = sym.random.poisson(sym.Variable("mean"), shape=3000, name="p")
    assert net.infer_shape(mean=(5,))[1] == [(5, 3000)]
    drawn = run(net, ENV, mean=mean)[0]
    assert drawn.dtype == "float64"
    np.testing.assert_allclose(drawn.mean(1), mean, atol=5 * np.sqrt(mean[-1] / 3000), rtol=0.3)
    assert (drawn[0] == 0).all()
    drawn = run_op("_sample_gamma", np.array([0.0, 2.0]), np.ones(2), shape=500, env=ENV)
    assert (drawn[0] == 0).all()  # MXNet's own tests draw so
    assert drawn[1].min() > 0


def test_whole_numbers():
    drawn = run(sym.random.randint(-2, 3, shape=(1000,), name="i"), ENV)[0]
    assert drawn.dtype == "int32"
    assert stats.chisquare(np.bincount(drawn + 2, minlength=5)).pvalue > 1e-3


def test_classes_by_their_probabilities():
    data = np.array([[0.1, 0.0, 0.9], [3.0, 1.0, 0.0]])
    drawn, logs = run_op(
        "_sample_multinomial", data, shape=(40, 50), get_prob=True, env=ENV, stream="m"
    )
    assert (drawn.shape, drawn.dtype, logs.dtype) == ((2, 40, 50), "int32", "float64")
    counts = [np.bincount(rows.ravel(), minlength=3) for rows in drawn]
    assert (counts[0][1], counts[1][2]) == (0, 0)
    assert stats.chisquare(counts[0][::2], [200, 1800]).pvalue > 1e-3
    assert stats.chisquare(counts[1][:2], [1500, 500]).pvalue > 1e-3
    np.testing.assert_allclose(logs[0], np.log(data[0][drawn[0]]))
    place = {"env": ENV, "stream": "m", "axis": 0}
    rows = np.abs(np.random.default_rng(0).standard_normal((6, 4)))
    found = check_layout("_sample_multinomial", [rows], [Split(0)], 6, (4, 2), shape=5, **place)
    assert found == [Split(0)]
    assert run_op("_sample_multinomial", data[0], env=ENV).shape == (1,)
    with pytest.raises(MicroBatchError, match="works along axis 1"):
        check_layout("_sample_multinomial", [rows], [Split(1)], 4, (3, 1), **place)


def test_shuffles():
    x = np.arange(60.0).reshape(20, 3)
    net = sym.random.shuffle(sym.Variable("x"), name="s")
    first, again = run(net, ENV, x=x)[0], run(net, ENV._replace(step=8), x=x)[0]
    assert sorted(first[:, 0]) == x[:, 0].tolist()
    np.testing.assert_array_equal(first[:, 1], first[:, 0] + 1)
    assert first.tolist() != x.tolist() != again.tolist() != first.tolist()
    assert check_layout("_shuffle", [x], [Split(1)], 3, (2, 1), env=ENV) == [Split(1)]
    with pytest.raises(MicroBatchError, match="works along axis 0"):
        check_layout("_shuffle", [x], [Split(0)], 20, (10, 10), env=ENV)


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
        sym.random.gamma(2, 2, shape=(2,)),
        sym.random.exponential(sym.Variable("x"), shape=2),
        sym.random.poisson_like(sym.Variable("x")),
        sym.random.multinomial(sym.Variable("x")),
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
        "_random_gamma",
        "_sample_exponential",
        "poisson_like",
        "_sample_multinomial",
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
        [(2,)],
        [(4, 2)],
        [(4,)],
        [(1,)],
    ]


def test_parameters_that_are_refused():
    with pytest.raises(TypeError, match="uniform: low and high are all symbols or all numbers"):
        sym.random.uniform(sym.Variable("low"), 1)
    with pytest.raises(DTypeError, match="works on floats, not int32"):
        run_op("_random_uniform_like", np.ones(3, "int32"))
    with pytest.raises(GraphError, match=r"alpha=-1.0 is not a valid float of 0 or more"):
        sym.random.gamma(-1.0)
    with pytest.raises(ValueError, match=r"p has 1.5, not a valid float above 0 up to 1"):
        run_op("_sample_negative_binomial", np.ones(2), np.array([0.5, 1.5]))
    with pytest.raises(ShapeError, match=r"no whole number is in \[3, 3\)"):
        lower(sym.random.randint(3, 3), {})


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
            forwards = [executor.forward(train)[0].copy() for train in (False, False, True, True)]
            assert len({f.tobytes() for f in forwards[:2]}) == 2
            assert len({f.tobytes() for f in forwards[2:]}) == 2
            drawn.append(np.stack(forwards))
    np.testing.assert_array_equal(*drawn)
