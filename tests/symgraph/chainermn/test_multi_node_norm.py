"""Multi-node batch normalisation: one BatchNorm over the joined batch, wherever its parts are."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.frontends.chainermn import MultiNodeBatchNormalization, create_mnbn_model
from runtime.planning.options import Options
from symgraph.core.context import cpu
from symgraph.core.errors import DTypeError, GraphError, MicroBatchError
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.passes.testing import check_grads
from tests.helpers.pipelines import Case, Result, assert_close, judge, make_plan, on_threads

SHAPE = (7, 3, 4, 2)  # of the joined batch
STATES = ("moving_mean", "moving_var")
VECTORS = ("gamma", "beta", *STATES)


def groups(p: int) -> list[str]:
    return [f"rank{i}" for i in range(p)]


def shares(p: int) -> list[int]:
    """Ragged numbers of samples."""
    return [SHAPE[0] - p * (p - 1) // 2, *range(1, p)]


def arrays_of(dtype="float64", channels=SHAPE[1]):
    """Data far from zero, of which the square's mean would lose digits, and parameters."""
    rng = np.random.default_rng(0)
    arrays = {"data": 100 + rng.standard_normal(SHAPE)}
    arrays |= {f"norm_{v}": 1 + rng.random(channels) for v in VECTORS}
    return {
        n: a.astype(dtype if n == "data" else np.result_type(dtype, "float32"))
        for n, a in arrays.items()
    }


def graph_of(outputs, arrays):
    shapes = {n: a.shape for n, a in arrays.items()}
    return lower(sym.Group(outputs), shapes, {n: str(a.dtype) for n, a in arrays.items()})


def multi_node(p: int, **attrs):
    """The outputs, whose parts of the data are cut from one variable, and them joined."""
    with AttrScope(ctx_group="rank0"):
        data = sym.Variable("data")
    parts = sym.comm.scatter(data, groups(p), sizes=shares(p))
    ys = MultiNodeBatchNormalization(parts, name="norm", **attrs)
    assert [y.attr("ctx_group") for y in ys] == groups(p)
    return sym.comm.gather(ys, "rank0", axis=0)


SETTINGS = [{}, {"fix_gamma": False, "eps": 0.1, "momentum": 0.5}, {"axis": -1}]


@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize("attrs", SETTINGS)
@pytest.mark.parametrize("train", [True, False])
def test_values_and_slopes_are_those_of_one_batch_norm(p, attrs, train):
    arrays = arrays_of(channels=SHAPE[attrs.get("axis", 1)])
    graph, env = graph_of([multi_node(p, **attrs)], arrays), Env(train=train)
    one = sym.BatchNorm(sym.Variable("data"), name="norm", **attrs)
    (want,) = evaluate(graph_of([one], arrays), arrays, env)
    np.testing.assert_allclose(evaluate(graph, arrays, env)[0], want, rtol=1e-11, atol=1e-11)
    free = [] if attrs.get("fix_gamma", True) else ["norm_gamma"]
    check_grads(graph, arrays, ["data", "norm_beta", *free], env=env)


def loss(y):
    with AttrScope(ctx_group="rank0"):
        return sym.MakeLoss(sym.square(sym.tanh(y)), name="loss")


def case_of(symbol) -> Case:
    arrays = arrays_of()
    return Case(symbol, {"data": arrays.pop("data")}, arrays)


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("attrs", SETTINGS[:2])
def test_gradients_on_any_placement(p, attrs):
    one = loss(sym.BatchNorm(sym.Variable("data"), name="norm", **attrs))
    want = judge(case_of(one))
    case = case_of(loss(multi_node(p, **attrs)))
    for devices in (range(p), [0] * p, range(p)[::-1]):
        place = {g: cpu(d) for g, d in zip(groups(p), devices, strict=True)}
        assert_close(on_threads(case, Options(place, cpu(0))), want, 1e-9)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_moving_averages(p):
    """Moved once, at participant 0, as BatchNorm's over the joined batch."""
    symbol = loss(multi_node(p, momentum=0.75))
    assert symbol.list_auxiliary_states() == ["norm_moving_mean", "norm_moving_var"]
    arrays, axes = arrays_of(), (0, 2, 3)
    place = {g: cpu(i) for i, g in enumerate(groups(p))}
    dtypes = dict.fromkeys(symbol.list_inputs(), "float64")
    with symbol.simple_bind(cpu(0), group2ctx=place, type_dict=dtypes, data=SHAPE) as executor:
        both = {**executor.arg_dict, **executor.aux_dict}
        for name, array in arrays.items():
            both[name][:] = array
        executor.forward(is_train=False)
        for state in STATES:
            np.testing.assert_array_equal(both[f"norm_{state}"], arrays[f"norm_{state}"])
        executor.forward(is_train=True)
        executor.backward()
        data = arrays["data"]
        for state, batch in zip(STATES, (data.mean(axes), data.var(axes)), strict=True):
            want = 0.75 * arrays[f"norm_{state}"] + 0.25 * batch
            np.testing.assert_allclose(both[f"norm_{state}"], want, rtol=1e-12)


def deep_network():
    x = sym.Convolution(sym.Variable("data"), kernel=(1, 1), num_filter=3, name="conv")
    x = sym.BatchNorm(x, gamma=sym.Variable("own"), fix_gamma=False, name="norm")
    halves = sym.SliceChannel(sym.tanh(x, name="tanh"), num_outputs=2, axis=3, name="halves")
    x = sym.BatchNorm(halves[0] * halves[1], name="last")
    return sym.Group([sym.MakeLoss(sym.square(x), name="loss"), sym.BlockGrad(x, name="shown")])


@pytest.mark.parametrize("p", [1, 2, 3])
def test_a_model_whose_batch_is_shared_out(p):
    """Gradients, added up over the participants, are those of the whole batch on one."""
    one = deep_network()
    shapes, _, states = one.infer_shape(data=SHAPE)
    rng = np.random.default_rng(3)
    arrays = {n: rng.random(s) for n, s in zip(one.list_arguments(), shapes, strict=True)}
    arrays |= {n: rng.random(s) for n, s in zip(one.list_auxiliary_states(), states, strict=True)}
    feeds = {"data": arrays.pop("data")}
    with AttrScope(ctx_group="rank0"):
        data = sym.Variable("data")
    parts = sym.comm.scatter(data, groups(p), sizes=shares(p))
    copies = create_mnbn_model(one, groups(p), {"data": parts})
    symbol = sym.Group(copies)
    assert sorted(symbol.list_inputs()) == sorted(one.list_inputs())
    case, place = Case(symbol, feeds, arrays), {g: cpu(i) for i, g in enumerate(groups(p))}
    want, got = judge(Case(one, feeds, arrays)), on_threads(case, Options(place, cpu(0)))
    joined = [np.concatenate(got.outputs[i::2]) for i in range(2)]
    assert_close(Result(joined, got.grads), want, 1e-9)


def test_data_that_the_model_does_not_have():
    with pytest.raises(GraphError, match=r"the network has no input 'date'; .*'data'"):
        create_mnbn_model(deep_network(), ["a"], {"date": [sym.Variable("x")]})


def test_float16_data_has_float32_statistics():
    arrays = arrays_of("float16")
    graph = graph_of([multi_node(2)], arrays)
    assert graph.type_of(graph.outputs[0]).dtype == "float16"
    (got,) = evaluate(graph, arrays, Env(train=True))
    exact = {n: a.astype("float64") for n, a in arrays.items()}
    (want,) = evaluate(graph_of([multi_node(2)], exact), exact, Env(train=True))
    np.testing.assert_allclose(got, want, atol=2e-2)


def test_wrong_calls_say_what_is_wrong():
    x = sym.Variable("x")
    with pytest.raises(GraphError, match=r"'norm': participant 0 \(symbol 'x'\) has no ctx_group"):
        MultiNodeBatchNormalization([x, x], name="norm")
    ys = MultiNodeBatchNormalization([x], groups=["a"], name="norm")
    with pytest.raises(DTypeError, match=r"_moments 'norm_0_moments': works on floats, not int32"):
        graph_of(ys, {"x": np.zeros((2, 3), "int32")})


def test_micro_batches_are_refused():
    ys = MultiNodeBatchNormalization([sym.Variable("data")], groups=["rank0"], name="norm")
    case = case_of(loss(ys[0]))
    with pytest.raises(
        MicroBatchError, match=r"'norm_0_moments' normalises by statistics of the b"
    ):
        make_plan(case, Options({}, cpu(0), (), "1f1b", 2))
