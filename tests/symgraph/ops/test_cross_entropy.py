"""Cross entropy as a number, and the perplexity made of it."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.core.reference import evaluate
from symgraph.core.types import wide
from symgraph.frontend import sym
from symgraph.frontend.infer import infer_shapes
from symgraph.frontend.lower import lower
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import check_op, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

RNG = np.random.default_rng(11)


def normal(*shape):
    return RNG.standard_normal(shape)


def labels(classes, *shape, dtype="float64", low=0):
    return RNG.integers(low, classes, shape).astype(dtype)


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def test_softmax_cross_entropy():
    x, label = normal(6, 5), labels(5, 6, dtype="int32")
    want = -np.log(softmax(x)[range(6), label]).sum()
    np.testing.assert_allclose(run_op("softmax_cross_entropy", x, label), [want], rtol=1e-12)
    check_op("softmax_cross_entropy", x, label)
    large = np.array([[3e4, 0.0]], "float32")
    assert run_op("softmax_cross_entropy", large, np.array([1])).tolist() == [3e4]


def test_softmax_cross_entropy_shapes_and_layout():
    x, label = normal(6, 5), labels(5, 6)
    symbol = sym.softmax_cross_entropy(sym.Variable("x"), sym.Variable("y"))
    assert infer_shapes(symbol, {"x": (6, 5)}).variables["y"] == (6,)
    with pytest.raises(ShapeError, match="samples, classes"):
        run_op("softmax_cross_entropy", normal(2, 3, 4), labels(4, 2, 3))
    with pytest.raises(ShapeError, match=r"label of shape \(5,\) does not fit \(6,\)"):
        run_op("softmax_cross_entropy", x, label[:5])
    with pytest.raises(IndexError, match=r"label 5\.0 is outside"):
        run_op("softmax_cross_entropy", x, np.full(6, 5.0))
    found = check_layout("softmax_cross_entropy", [x, label], [Split(0)] * 2, 6, (4, 1, 1))
    assert found == [PARTIAL]
    with pytest.raises(MicroBatchError, match="whose batch lies alike"):
        check_layout("softmax_cross_entropy", [x, label], [Split(1), WHOLE], 5, (4, 1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("use_ignore", [False, True])
def test_nll_stats(dtype, use_ignore):
    prob, label = softmax(normal(3, 2, 5)).astype(dtype), labels(5, 3, 2, dtype="int64")
    label[1, 1] = 0
    total, count = run_op("nll_stats", prob, label, use_ignore=use_ignore, ignore_label=0)
    assert total.dtype == count.dtype == "float64"
    keep = (label != 0) | (not use_ignore)
    chosen = np.take_along_axis(prob, label[..., None], -1)[..., 0].astype("float64")
    np.testing.assert_allclose(total, [-np.log(chosen)[keep].sum()], rtol=1e-12)
    assert count.tolist() == [keep.sum()]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_probability_of_zero_has_a_finite_logarithm(dtype):
    total, _ = run_op("nll_stats", np.array([[1, 0]], dtype), np.array([1]))
    assert total[0] == pytest.approx(-np.log(float(np.finfo(wide(dtype)).tiny)))


@pytest.mark.parametrize("classes", [2, 7, 10000])
def test_a_uniform_model_has_perplexity_v(classes):
    """B7: perplexity is exp(sum of -log p / number of real tokens); padding does not count."""
    label = labels(classes, 60)
    label[RNG.random(60) < 0.3] = -1
    data = sym.Variable("x")
    s = sym.SoftmaxOutput(data, sym.Variable("y"), name="s", use_ignore=True)
    symbol = sym.nll_stats(s, sym.Variable("z"), use_ignore=True)
    graph = lower(symbol, {"x": (60, classes)}, {"x": "float64"})
    feeds = {"x": np.zeros((60, classes)), "y": label, "z": label}
    total, count = evaluate(graph, feeds)
    assert count[0] == (label >= 0).sum() < 60
    assert np.exp(total / count)[0] == pytest.approx(classes, rel=1e-12)


def test_nll_stats_beside_a_loss_asks_for_no_head_gradient():
    x, y = sym.Variable("x"), sym.Variable("y")
    s = sym.SoftmaxOutput(x, y, name="s")
    group = sym.Group([s, sym.nll_stats(s, y)])
    both = gradients(lower(group, {"x": (3, 4)}), ["x"])
    assert both.heads == {}
    feeds = {"x": normal(3, 4).astype("float32"), "y": labels(4, 3, dtype="float32")}

    want = softmax(feeds["x"]) - np.eye(4)[feeds["y"].astype(int)]
    np.testing.assert_allclose(evaluate(both.graph, feeds)[-1], want, atol=1e-6)


def test_nll_stats_shapes_and_layouts():
    prob, label = softmax(normal(3, 6, 5)), labels(5, 3, 6, low=-1)
    found = check_layout(
        "nll_stats", [prob, label], [Split(1, 1, 2)] * 2, 3, (2, 1), use_ignore=True
    )
    assert found == [PARTIAL, PARTIAL]
    with pytest.raises(MicroBatchError, match="whose batch lies alike"):
        check_layout("nll_stats", [prob, label], [Split(2), WHOLE], 1, (1,))
    with pytest.raises(ShapeError, match=r"label of shape \(6, 3\) does not fit \(3, 6\)"):
        run_op("nll_stats", prob, label.T)
    with pytest.raises(IndexError, match=r"label -1\.0 is outside"):
        run_op("nll_stats", prob, np.full((3, 6), -1.0))
