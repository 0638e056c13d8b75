"""The regression outputs against their documented gradients."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.core.reference import evaluate
from symgraph.frontend import sym
from symgraph.frontend.infer import infer_shapes
from symgraph.frontend.lower import lower
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import op_graph
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

RNG = np.random.default_rng(13)


def normal(*shape):
    return RNG.standard_normal(shape)


def labels(classes, *shape, dtype="float64", low=0):
    return RNG.integers(low, classes, shape).astype(dtype)


def head(op, *arrays, **attrs):
    """The output of a loss head and the gradient of its data."""
    graph = op_graph(op, arrays, **attrs)
    both = gradients(graph, ["x0"])
    assert not both.heads, "a loss starts the backward pass itself"
    return evaluate(both.graph, {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)})


REGRESSIONS = {
    "LinearRegressionOutput": (lambda x: x, lambda d: d),
    "MAERegressionOutput": (lambda x: x, np.sign),
    "LogisticRegressionOutput": (lambda x: 1 / (1 + np.exp(-x)), lambda d: d),
}


@pytest.mark.parametrize("op", REGRESSIONS)
@pytest.mark.parametrize("shape", [(6,), (6, 1), (4, 3), (2, 3, 4)])
def test_regression_outputs(op, shape):
    forward, slope = REGRESSIONS[op]
    x, label = normal(*shape), labels(2, *shape, dtype="int32")
    out, grad = head(op, x, label, grad_scale=6)
    np.testing.assert_allclose(out, forward(x), rtol=1e-12)
    scale = 6 / np.prod(shape[1:])
    np.testing.assert_allclose(grad, slope(forward(x) - label) * scale, rtol=1e-12)


@pytest.mark.parametrize("op", REGRESSIONS)
def test_regression_labels_may_have_other_shapes_of_the_same_size(op):
    x, label = normal(4, 1, 3), normal(4, 1, 3)
    want = head(op, x, label)[1]
    np.testing.assert_array_equal(head(op, x, label.reshape(4, 3))[1], want)
    data = sym.Variable("x")
    symbol = getattr(sym, op)(data, name="r")
    assert infer_shapes(symbol, {"x": (4, 1)}).variables["r_label"] == (4,)
    assert infer_shapes(symbol, {"x": (4, 2)}).variables["r_label"] == (4, 2)
    assert infer_shapes(symbol, {"x": (0, 2), "r_label": (4, 2)}).variables["x"] == (4, 2)
    with pytest.raises(ShapeError, match=rf"{op} 'op': label of shape \(3, 4\) does not fit data"):
        head(op, x, normal(3, 4))


@pytest.mark.parametrize("op", REGRESSIONS)
def test_regression_layouts(op):
    x, label = normal(6, 3), normal(6, 3)
    assert check_layout(op, [x, label], [Split(0, 2)] * 2, 3, (2, 1)) == [Split(0, 2)]
    for layouts, message in (
        ([Split(1)] * 2, "elements behind axis 0, where the batch lies too"),
        ([Split(0), WHOLE], "whose batch lies alike"),
        ([PARTIAL, WHOLE], "whose batch lies alike"),
    ):
        with pytest.raises(MicroBatchError, match=message):
            check_layout(op, [x, label], layouts, 1, (1,))


def test_logistic_regression_does_not_overflow():
    out, grad = head("LogisticRegressionOutput", np.array([[-1e4, 1e4]]), np.array([[0.0, 1.0]]))
    np.testing.assert_array_equal(out, [[0, 1]])
    np.testing.assert_array_equal(grad, [[0, 0]])


def test_two_layer_example_by_mazur():
    """G18, with the published numbers: loss is half the sum of squares, so two outputs cancel."""
    data = sym.Variable("x")
    hidden = sym.sigmoid(sym.FullyConnected(data, num_hidden=2, name="fc_0"))
    out = sym.sigmoid(sym.FullyConnected(hidden, num_hidden=2, name="fc_1"))
    symbol = sym.LinearRegressionOutput(out, name="loss", grad_scale=2)
    feeds = {
        "x": np.array([[0.05, 0.10]]),
        "fc_0_weight": np.array([[0.15, 0.20], [0.25, 0.30]]),
        "fc_0_bias": np.full(2, 0.35),
        "fc_1_weight": np.array([[0.40, 0.45], [0.50, 0.55]]),
        "fc_1_bias": np.full(2, 0.60),
        "loss_label": np.array([[0.01, 0.99]]),
    }
    wrt = [n for n in feeds if n != "loss_label"]
    y, *grads = evaluate(
        gradients(
            lower(symbol, {n: a.shape for n, a in feeds.items()}, {"x": "float64"}), wrt
        ).graph,
        feeds,
    )
    np.testing.assert_allclose(y, [[0.75136507, 0.77292847]], atol=1e-8)
    assert ((y - feeds["loss_label"]) ** 2).sum() / 2 == pytest.approx(0.298371109, abs=1e-9)
    want = (
        [[0.00380427, 0.00474055]],
        [[0.00043857, 0.00087714], [0.00049771, 0.00099543]],
        [0.00877135, 0.00995425],
        [[0.08216704, 0.08266763], [-0.02260254, -0.02274024]],
        [0.13849856, -0.03809824],
    )
    for grad, numbers in zip(grads, want, strict=True):
        np.testing.assert_allclose(grad, numbers, atol=1e-8)
