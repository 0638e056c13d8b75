"""LSTM and GRU gates, against formulas written out in numpy and against finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import DTypeError, MicroBatchError, ShapeError
from symgraph.core.graph import Graph
from symgraph.core.params import Site
from symgraph.core.reference import evaluate
from symgraph.core.registry import find
from symgraph.core.types import Value
from symgraph.frontend import sym
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import check_grads, check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

# operator -> how many blocks of units its inputs are wide
CALLS = {
    "_lstm_gates": (4, 4, 1),
    "_gru_gates": (3, 3, 1),
    "_lstm_gates_grad": (1, 1, 4, 1, 1),
    "_gru_gates_grad": (1, 3, 1, 1),
}


def arrays_of(op, rows=3, units=5, dtype="float64"):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((rows, n * units)).astype(dtype) for n in CALLS[op]]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def outputs(op, arrays, indices):
    """A graph of one call with these of its outputs, hidden ones too."""
    return Graph.of(op_graph(op, arrays), [Value("op", i) for i in indices])


def fed(arrays):
    return {f"x{i}": a for i, a in enumerate(arrays)}


def full(op, arrays):
    """All outputs of one call."""
    count = len(find(op).output_names({}))
    return evaluate(outputs(op, arrays, range(count)), fed(arrays))


# -- values --------------------------------------------------------------------------------------


def test_lstm():
    i2h, h2h, c = arrays = arrays_of("_lstm_gates")
    i, f, new, o = np.split(i2h + h2h, 4, axis=1)
    want_c = sigmoid(f) * c + sigmoid(i) * np.tanh(new)
    want_h = sigmoid(o) * np.tanh(want_c)
    gates = np.concatenate([sigmoid(i), sigmoid(f), np.tanh(new), sigmoid(o)], axis=1)
    assert len(run_op("_lstm_gates", *arrays)) == 2  # the gates are hidden
    for ours, want in zip(full("_lstm_gates", arrays), [want_h, want_c, gates], strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-13)


def test_gru():
    i2h, h2h, h = arrays = arrays_of("_gru_gates")
    (i_r, i_z, i_o), (h_r, h_z, h_o) = (np.split(x, 3, axis=1) for x in (i2h, h2h))
    r, z = sigmoid(i_r + h_r), sigmoid(i_z + h_z)
    new = np.tanh(i_o + r * h_o)
    wanted = [(1 - z) * new + z * h, np.concatenate([r, z, new], axis=1), h_o]
    assert run_op("_gru_gates", *arrays).shape == (3, 5)  # the others are hidden
    for ours, want in zip(full("_gru_gates", arrays), wanted, strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-13)


@pytest.mark.parametrize("op", CALLS)
def test_inputs_are_left_as_they_are_and_dtypes_kept(op):
    for dtype, atol in {"float16": 2e-2, "float32": 1e-5, "float64": 0}.items():
        arrays = arrays_of(op, dtype=dtype)
        before = [a.copy() for a in arrays]
        found = full(op, arrays)
        for array, kept in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, kept)
        exact = full(op, [a.astype("float64") for a in arrays])
        for ours, theirs in zip(found, exact, strict=True):
            assert ours.dtype == dtype
            np.testing.assert_allclose(ours, theirs, atol=atol)


# -- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_lstm_gradients_whichever_outputs_are_used(used):
    arrays = arrays_of("_lstm_gates")
    graph = outputs("_lstm_gates", arrays, used)
    check_grads(graph, fed(arrays))
    both = gradients(graph, ["x0", "x1", "x2"])
    (node,) = [n for n in both.graph if n.op == "_lstm_gates_grad"]
    assert (node.attrs["has_dh"], node.attrs["has_dc"]) == (0 in used, 1 in used)
    assert len(node.inputs) == 3 + len(used)


def test_gru_gradients():
    arrays = arrays_of("_gru_gates")
    check_grads(op_graph("_gru_gates", arrays), fed(arrays))


def test_one_value_is_the_gradient_of_both_pre_activations():
    arrays = arrays_of("_lstm_gates")
    both = gradients(op_graph("_lstm_gates", arrays), ["x0", "x1"])
    of_i2h, of_h2h = (both.graph[both.grads[name].node].inputs for name in ("x0", "x1"))
    assert of_i2h == of_h2h


@pytest.mark.parametrize("op", ["_lstm_gates", "_gru_gates"])
def test_saturated_gates_have_finite_gradients(op):
    arrays = [1e4 * a for a in arrays_of(op)]
    both = gradients(op_graph(op, arrays), ["x0", "x1", "x2"])
    heads = {name: np.ones((3, 5)) for name in both.heads.values()}
    for value in evaluate(both.graph, fed(arrays) | heads):
        assert np.isfinite(value).all()


@pytest.mark.parametrize("op", CALLS)
def test_second_and_third_derivatives(op):
    check_op(op, *arrays_of(op))


@pytest.mark.parametrize("absent", ["has_dh", "has_dc"])
def test_second_derivatives_where_one_gradient_is_absent(absent):
    check_op("_lstm_gates_grad", *arrays_of("_lstm_gates_grad")[1:], **{absent: False})


@pytest.mark.parametrize("op", ["_lstm_gates", "_gru_gates"])
def test_gradients_of_each_output_alone(op):
    """Hidden ones too: they have gradients in second derivatives."""
    arrays = arrays_of(op)
    for index in range(3):
        check_grads(outputs(op, arrays, [index]), fed(arrays))


# -- shapes and dtypes ---------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["_lstm_gates", "_gru_gates"])
def test_shapes_are_inferred_both_ways(op):
    n, opdef, site = CALLS[op][0], find(op), Site(op, "g", {})
    whole = [(3, n * 5), (3, n * 5), (3, 5)]
    nothing = [None] * len(opdef.output_names({}))
    for known in range(3):
        ins = [s if i == known else None for i, s in enumerate(whole)]
        found, outs = opdef.shape(site, ins, nothing)
        assert found == whole
        assert outs[0] == (3, 5)
    assert opdef.shape(site, [(0, n * 5), None, (3, 0)], nothing)[0] == whole
    assert opdef.shape(site, [None] * 3, [(3, 5), *nothing[1:]])[0] == whole
    assert opdef.shape(site, [None] * 3, nothing)[0] == [(0, 0)] * 3


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([(2, 20), (2, 24), (2, 5)], r"h2h of shape \(2, 24\) does not fit \(2, 20\) \(beside i2h"),
        ([(2, 20), (3, 20), (2, 5)], r"h2h of shape \(3, 20\) does not fit \(2, 20\)"),
        ([(2, 20), (2, 20), (2, 6)], r"c of shape \(2, 6\) does not fit \(2, 5\)"),
        ([(2, 18), (2, 18), (2, 5)], r"i2h of shape \(2, 18\) is not \(batch, 4 \* units\)"),
        ([(2, 20), (2, 20), (2, 1, 5)], r"c of shape \(2, 1, 5\) is not \(batch, units\)"),
    ],
)
def test_wrong_shapes(shapes, words):
    symbol = sym._lstm_gates(*map(sym.Variable, "abc"), name="gates")
    with pytest.raises(ShapeError, match=f"_lstm_gates 'gates': {words}"):
        symbol.infer_shape(**dict(zip("abc", shapes, strict=True)))


def test_wrong_dtypes():
    i2h, h2h, c = arrays_of("_lstm_gates")
    with pytest.raises(DTypeError, match="i2h float64, h2h float64, c float32; add a Cast"):
        run_op("_lstm_gates", i2h, h2h, c.astype("float32"))
    with pytest.raises(DTypeError, match="works on floats, not int32"):
        run_op("_gru_gates", *[a.astype("int32") for a in arrays_of("_gru_gates")])


def test_flops_count_what_is_computed():
    """So many operations a unit; fewer where a gradient is not there."""

    def flops(op, arrays, **attrs):
        graph = op_graph(op, arrays, **attrs)
        node = graph["op"]
        return find(op).flops(node.attrs, graph.types_of(node.inputs), node.types) / 15

    counts = {op: flops(op, arrays_of(op)) for op in CALLS}
    assert list(counts.values()) == [13, 11, 23, 16]
    assert flops("_lstm_gates_grad", arrays_of("_lstm_gates_grad")[1:], has_dh=False) == 13


# -- micro-batches -------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [(6,), (4, 2), (1, 2, 3)])
@pytest.mark.parametrize("op", CALLS)
def test_samples_are_rows(op, parts):
    arrays = arrays_of(op, rows=6)
    layouts = check_layout(op, arrays, [Split(0)] * len(arrays), 6, parts)
    assert layouts == [Split(0)] * len(layouts)
    twice = arrays_of(op, rows=12)
    layouts = check_layout(op, twice, [Split(0, outer=2)] * len(twice), 6, parts)
    assert layouts == [Split(0, outer=2)] * len(layouts)


@pytest.mark.parametrize("op", CALLS)
def test_what_depends_on_no_sample(op):
    arrays = arrays_of(op)
    assert set(check_layout(op, arrays, [WHOLE] * len(arrays), 4, (2, 2))) == {WHOLE}


def test_gradients_that_are_sums_over_samples():
    """Gates that depend on no sample, in a network whose loss does."""
    layouts = [PARTIAL, WHOLE, WHOLE, WHOLE]
    arrays = arrays_of("_gru_gates_grad")
    assert check_layout("_gru_gates_grad", arrays, layouts, 4, (3, 1)) == [PARTIAL] * 3
    both = arrays_of("_lstm_gates_grad")
    found = check_layout("_lstm_gates_grad", both, [PARTIAL, *layouts], 4, (3, 1))
    assert found == [PARTIAL] * 2
    for absent in ({"has_dh": False}, {"has_dc": False}):
        found = check_layout("_lstm_gates_grad", both[1:], layouts, 4, (2, 2), **absent)
        assert found == [PARTIAL] * 2


@pytest.mark.parametrize(
    ("op", "layouts", "words"),
    [
        ("_lstm_gates", [Split(1), WHOLE, WHOLE], "the batch lies along axis 1"),
        ("_lstm_gates", [PARTIAL, WHOLE, WHOLE], "nonlinear function to a sum over the batch"),
        ("_gru_gates", [Split(0), Split(0), PARTIAL], "nonlinear function to a sum"),
        ("_gru_gates", [Split(0), Split(0, 2), WHOLE], "whose batch lies differently"),
        ("_gru_gates_grad", [PARTIAL, Split(0), WHOLE, WHOLE], "to a sum over the batch"),
        ("_lstm_gates_grad", [PARTIAL, *[WHOLE] * 4], "to a sum over the batch"),
    ],
)
def test_layouts_that_micro_batches_would_break(op, layouts, words):
    graph = op_graph(op, arrays_of(op, rows=4))
    node = graph["op"]
    with pytest.raises(MicroBatchError, match=words):
        find(op).batch(node.site, layouts, graph.types_of(node.inputs), node.types)
