"""BatchNorm, LayerNorm, InstanceNorm and GroupNorm, against formulas written out in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import DTypeError, GraphError, MicroBatchError, ShapeError
from symgraph.core.graph import Graph
from symgraph.core.params import Site
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env, find, run
from symgraph.frontend.infer import infer_dtypes, infer_shapes
from symgraph.frontend.sym import BatchNorm, InstanceNorm, LayerNorm, Variable
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import check_grads, check_op, op_graph, run_op, strip_origins
from tests.symgraph.ops.layouts import WHOLE, Split, check_layout

RNG = np.random.default_rng(7)
TRAIN = Env(train=True)


def normal(*shape, dtype="float64"):
    return RNG.standard_normal(shape).astype(dtype)


def full(op, arrays, env=None, **attrs):
    """All outputs, hidden ones too."""
    graph = op_graph(op, arrays, **attrs)
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    outputs = [graph.outputs[0]._replace(index=i) for i in range(len(graph["op"].types))]
    return evaluate(Graph.of(graph, outputs), feeds, env or Env())


def batch_norm_arrays(shape, axis=1, dtype="float64"):
    c = shape[axis]
    vector = "float32" if dtype == "float16" else dtype
    parameters = [normal(c, dtype=vector) for _ in range(3)]
    return [normal(*shape, dtype=dtype), *parameters, np.abs(normal(c, dtype=vector)) + 0.5]


@pytest.mark.parametrize(("shape", "axis"), [((6, 3), 1), ((4, 3, 2, 5), 1), ((4, 2, 3), -1)])
def test_batch_norm_in_training(shape, axis):
    x, gamma, beta, mean, var = arrays = batch_norm_arrays(shape, axis)
    out, *_, next_mean, next_var = full(
        "BatchNorm", arrays, TRAIN, axis=axis, fix_gamma=False, eps=0.1, momentum=0.75
    )
    rows = np.moveaxis(x, axis, -1).reshape(-1, 3)
    want = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 0.1) * gamma + beta
    np.testing.assert_allclose(np.moveaxis(out, axis, -1).reshape(-1, 3), want, rtol=1e-10)
    np.testing.assert_allclose(next_mean, 0.75 * mean + 0.25 * rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(next_var, 0.75 * var + 0.25 * rows.var(0), rtol=1e-12)


@pytest.mark.parametrize(("env", "use_global_stats"), [(Env(), False), (TRAIN, True)])
def test_batch_norm_by_moving_statistics(env, use_global_stats):
    x, gamma, beta, mean, var = arrays = batch_norm_arrays((6, 3))
    out, *_, next_mean, next_var = full(
        "BatchNorm", arrays, env, use_global_stats=use_global_stats, fix_gamma=False
    )
    np.testing.assert_allclose(out, (x - mean) / np.sqrt(var + 1e-3) * gamma + beta, rtol=1e-12)
    np.testing.assert_array_equal(next_mean, mean)
    np.testing.assert_array_equal(next_var, var)


@pytest.mark.parametrize("env", [Env(), TRAIN])
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("use_global_stats", [False, True])
def test_batch_norm_gradients(env, axis, use_global_stats):
    arrays = batch_norm_arrays((4, 3, 2), axis)
    attrs = {"axis": axis, "fix_gamma": False, "use_global_stats": use_global_stats, "eps": 0.01}
    graph = op_graph("BatchNorm", arrays, **attrs)
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    check_grads(graph, feeds, ["x0", "x1", "x2"], env=env)


def test_fixed_gamma_is_one_and_gets_no_gradient():
    arrays = batch_norm_arrays((4, 3))
    np.testing.assert_array_equal(
        run_op("BatchNorm", *arrays, env=TRAIN),
        run_op("BatchNorm", arrays[0], np.ones(3), *arrays[2:], env=TRAIN, fix_gamma=False),
    )
    graph, feeds = op_graph("BatchNorm", arrays), {f"x{i}": a for i, a in enumerate(arrays)}
    check_grads(graph, feeds, ["x0", "x2"], env=TRAIN)
    both = gradients(graph, ["x1"])
    head = np.ones((4, 3))
    _, of_gamma = evaluate(both.graph, {**feeds, both.heads[0]: head}, TRAIN)
    np.testing.assert_array_equal(of_gamma, 0)


def test_batch_norm_of_halves_keeps_its_parameters_in_float32():
    arrays = batch_norm_arrays((64, 3), dtype="float16")
    outs = full("BatchNorm", arrays, TRAIN, fix_gamma=False)
    assert [str(o.dtype) for o in outs] == ["float16", *["float32"] * 4]
    exact = full("BatchNorm", [a.astype("float64") for a in arrays], TRAIN, fix_gamma=False)
    np.testing.assert_allclose(outs[0], exact[0], atol=5e-3)
    types = infer_dtypes(BatchNorm(Variable("x"), name="bn"), {"x": "float16"}).variables
    assert types["bn_gamma"] == types["bn_moving_var"] == "float32"
    with pytest.raises(DTypeError, match=r"BatchNorm 'op': data of float64 .* not float32"):
        run_op("BatchNorm", arrays[0].astype("float64"), *arrays[1:])


def test_batch_norm_states_and_shapes():
    """The moving statistics are auxiliary states; all shapes follow from the data or from one."""
    symbol = BatchNorm(Variable("x"), name="bn")
    assert symbol.list_outputs() == ["bn_output"]
    assert symbol.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    shapes = infer_shapes(symbol, {"x": (5, 3, 2)}).variables
    assert shapes == {"x": (5, 3, 2), **{f"bn_{n}": (3,) for n in find("BatchNorm").inputs[1:]}}
    assert infer_shapes(symbol, {"x": (5, 0), "bn_gamma": (3,)}).variables["x"] == (5, 3)
    site = Site("BatchNorm", "bn", {"axis": 1, "output_mean_var": False})
    op = find("BatchNorm")
    with pytest.raises(ShapeError, match=r"beta of shape \(4,\) does not fit \(3,\) \(axis 1 of"):
        op.shape(site, [(5, 3), None, (4,), None, None], [None] * 5)
    with pytest.raises(ShapeError, match="BatchNorm 'op': output_mean_var=True is not offered"):
        run_op("BatchNorm", *batch_norm_arrays((4, 3)), output_mean_var=True)


def test_batch_norm_mixes_the_batch_unless_its_statistics_are_given():
    arrays = batch_norm_arrays((6, 3))
    layouts = [Split(0), WHOLE, WHOLE, WHOLE, WHOLE]
    with pytest.raises(MicroBatchError, match="normalises by statistics of the batch"):
        check_layout("BatchNorm", arrays, layouts, 6, (3, 3))
    found = check_layout("BatchNorm", arrays, layouts, 6, (4, 2), use_global_stats=True)
    assert found == [Split(0)]
    with pytest.raises(MicroBatchError, match="works along axis 1"):
        check_layout(
            "BatchNorm", arrays, [Split(1), *layouts[1:]], 3, (2, 1), use_global_stats=True
        )
    with pytest.raises(MicroBatchError, match="parameters that depend on the samples"):
        check_layout("BatchNorm", arrays, [WHOLE, Split(0), *layouts[2:]], 3, (2, 1))


def test_one_sample_through_batch_norm_is_beta():
    """G5: a batch of one has variance 0; its gradient is 0, not NaN."""
    arrays = batch_norm_arrays((1, 10))
    np.testing.assert_array_equal(run_op("BatchNorm", *arrays, env=TRAIN)[0], arrays[2])
    graph, feeds = op_graph("BatchNorm", arrays), {f"x{i}": a for i, a in enumerate(arrays)}
    both = gradients(graph, ["x0"])
    _, grad = evaluate(both.graph, {**feeds, both.heads[0]: normal(1, 10)}, TRAIN)
    np.testing.assert_array_equal(grad, 0)


@pytest.mark.parametrize(("shape", "axis"), [((6, 3), -1), ((2, 3, 4), 1), ((3, 4, 2), 0)])
def test_layer_norm(shape, axis):
    x, gamma, beta = normal(*shape), normal(shape[axis]), normal(shape[axis])
    rows = np.moveaxis(x, axis, -1)
    centred = rows - rows.mean(-1, keepdims=True)
    want = centred / np.sqrt(rows.var(-1, keepdims=True) + 1e-5) * gamma + beta
    got = run_op("LayerNorm", x, gamma, beta, axis=axis)
    np.testing.assert_allclose(np.moveaxis(got, axis, -1), want, rtol=1e-10)
    check_op("LayerNorm", x, gamma, beta, axis=axis, second=False)


def test_layer_norm_of_halves_keeps_its_dtype():
    x, gamma, beta = normal(4, 300), normal(300), normal(300)
    got = run_op("LayerNorm", *(a.astype("float16") for a in (x, gamma, beta)))
    assert got.dtype == "float16"
    np.testing.assert_allclose(got, run_op("LayerNorm", x, gamma, beta), atol=2e-2)


def test_layer_norm_shapes_and_layouts():
    shapes = infer_shapes(LayerNorm(Variable("x"), name="ln", axis=1), {"x": (5, 3, 2)}).variables
    assert shapes == {"x": (5, 3, 2), "ln_gamma": (3,), "ln_beta": (3,)}
    x, gamma, beta = normal(2, 6, 4), normal(4), normal(4)
    with pytest.raises(ShapeError, match=r"LayerNorm 'op': gamma of shape \(5,\) does not fit"):
        run_op("LayerNorm", x, normal(5), beta)
    layouts = [Split(1, 1, 2), WHOLE, WHOLE]
    assert check_layout("LayerNorm", [x, gamma, beta], layouts, 3, (2, 1)) == [Split(1, 1, 2)]
    with pytest.raises(MicroBatchError, match="works along axis 2, where the batch lies"):
        check_layout("LayerNorm", [x, gamma, beta], [Split(2), WHOLE, WHOLE], 4, (2, 2))
    with pytest.raises(MicroBatchError, match="parameters that depend on the samples"):
        check_layout("LayerNorm", [x, gamma, beta], [WHOLE, WHOLE, Split(0)], 4, (2, 2))


def test_second_derivatives_of_norms_are_refused_not_zero():
    arrays = [normal(3, 4), normal(4), normal(4)]
    both = gradients(op_graph("LayerNorm", arrays), ["x0"])
    again = Graph.of(strip_origins(both.graph), [both.grads["x0"]])
    with pytest.raises(GraphError, match="cannot be differentiated again"):
        gradients(again, ["x0"])


def test_outputs_of_eval_batch_norm_may_alias_the_states():
    """The runtime copies them into the states, which changes nothing outside training."""
    arrays = batch_norm_arrays((4, 3))
    op = find("BatchNorm")
    attrs = op_graph("BatchNorm", arrays)["op"].attrs
    before = [a.copy() for a in arrays]
    outs = run(op, Env(), attrs, arrays)
    for state, new in zip(arrays[3:], (outs[i] for i in op.aux_outputs), strict=True):
        state[:] = new
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)


# -- InstanceNorm and GroupNorm ----------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 6, 5), (3, 6, 2, 4)])
@pytest.mark.parametrize(("op", "attrs", "groups"), [("InstanceNorm", {}, 6), ("GroupNorm", {}, 1)])
@pytest.mark.parametrize("more", [{}, {"num_groups": 3}])
def test_norms_of_each_sample(op, attrs, groups, more, shape):
    """gamma and beta have one number for each group, as in MXNet 1.9.1."""
    if more and op == "GroupNorm":
        attrs, groups = more, 3
    x, gamma, beta = normal(*shape), normal(groups), normal(groups)
    rows = x.reshape(shape[0], groups, -1)
    centred = rows - rows.mean(2, keepdims=True)
    scaled = centred / np.sqrt(rows.var(2, keepdims=True) + 0.1)
    want = scaled * gamma[:, None] + beta[:, None]
    got = run_op(op, x, gamma, beta, eps=0.1, **attrs)
    np.testing.assert_allclose(got, want.reshape(shape), rtol=1e-10)
    check_op(op, x, gamma, beta, second=False, eps=0.1, **attrs)
    batch = shape[0]
    layouts = [Split(0), WHOLE, WHOLE]
    found = check_layout(op, [x, gamma, beta], layouts, batch, (1, batch - 1), **attrs)
    assert found == [Split(0)]


def test_group_norms_say_what_does_not_fit():
    with pytest.raises(ShapeError, match="num_groups=4 does not divide the 6 channels"):
        op_graph("GroupNorm", [normal(2, 6, 3), normal(4), normal(4)], num_groups=4)
    with pytest.raises(ShapeError, match=r"works on \(batch, channel, ...\) data of 3 axes"):
        op_graph("InstanceNorm", [normal(2, 6), normal(6), normal(6)])
    with pytest.raises(ShapeError, match=r"gamma of shape \(5,\) does not fit \(6,\)"):
        op_graph("InstanceNorm", [normal(2, 6, 3), normal(5), normal(6)])
    arrays = [normal(2, 6, 3), normal(6), normal(6)]
    with pytest.raises(MicroBatchError, match="works along axis 2, where the batch lies"):
        check_layout("InstanceNorm", arrays, [Split(2), WHOLE, WHOLE], 3, (1, 2))
    net = InstanceNorm(Variable("x"), name="n")
    assert infer_shapes(net, {"n_gamma": (6,), "x": (2, 0, 3)}).variables["x"] == (2, 6, 3)
    assert net.list_outputs() == ["n_output"]


@pytest.mark.parametrize("op", ["InstanceNorm", "GroupNorm"])
def test_norms_of_each_sample_of_16_bit_floats(op):
    vectors = [normal(6 if op == "InstanceNorm" else 1) for _ in "gb"]
    arrays = [normal(2, 6, 3) * 100, *vectors]
    got = run_op(op, *[a.astype("float16") for a in arrays])
    assert got.dtype == "float16"
    np.testing.assert_allclose(got, run_op(op, *arrays), atol=0.01)
