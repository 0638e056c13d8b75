"""The softmax family, against formulas written out in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import DTypeError, MicroBatchError, ShapeError
from symgraph.passes.testing import check_op, run_op
from tests.symgraph.ops.layouts import Split, check_layout

RNG = np.random.default_rng(6)


def normal(*shape):
    return RNG.standard_normal(shape)


def plain_softmax(x, axis):
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("temperature", [None, 0.5, 3.0])
def test_softmax_and_its_logarithm(axis, temperature):
    x = normal(2, 3, 4)
    want = plain_softmax(x / (temperature or 1), axis)
    given = {"axis": axis, "temperature": temperature}
    np.testing.assert_allclose(run_op("softmax", x, **given), want, rtol=1e-12)
    np.testing.assert_allclose(run_op("log_softmax", x, **given), np.log(want), rtol=1e-12)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, -1])
def test_softmax_gradients(op, axis):
    check_op(op, normal(3, 4), axis=axis)
    check_op(op, normal(2, 3, 2), axis=axis, temperature=1.7)


@pytest.mark.parametrize(("mode", "axis"), [("instance", -1), ("channel", 1)])
def test_softmax_activation(mode, axis):
    x = normal(2, 3, 4)
    np.testing.assert_allclose(run_op("SoftmaxActivation", x, mode=mode), plain_softmax(x, axis))
    check_op("SoftmaxActivation", x, mode=mode)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_softmax_of_large_logits_is_finite_and_keeps_its_dtype(dtype):
    x = np.array([[3e4, 0.0, -3e4], [-3e4, -3e4, -3e4]], dtype)
    y, log = run_op("softmax", x), run_op("log_softmax", x)
    assert y.dtype == log.dtype == dtype
    np.testing.assert_allclose(y, [[1, 0, 0], [1 / 3, 1 / 3, 1 / 3]], rtol=1e-3)
    np.testing.assert_allclose(log[0, :2], [0, -3e4], rtol=1e-3)


def test_float16_softmax_of_many_classes_adds_up():
    """Adding 8192 halves one by one stops at 2048 of them, where 1 is lost beside the sum."""
    y = run_op("softmax", np.zeros((8192, 2), "float16"), axis=0)
    np.testing.assert_array_equal(y, np.float16(1 / 8192))


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax_layouts(op):
    x = normal(3, 8, 4)
    assert check_layout(op, [x], [Split(1)], 8, (3, 3, 2)) == [Split(1)]
    assert check_layout(op, [x], [Split(1, 2, 2)], 2, (1, 1), axis=0) == [Split(1, 2, 2)]
    with pytest.raises(MicroBatchError, match="'op' works along axis 1, where the batch lies"):
        check_layout(op, [x], [Split(1)], 8, (4, 4), axis=1)


def test_softmax_activation_layout():
    x = normal(4, 3, 2)
    assert check_layout("SoftmaxActivation", [x], [Split(0)], 4, (2, 2)) == [Split(0)]
    with pytest.raises(MicroBatchError, match="works along axis 1"):
        check_layout("SoftmaxActivation", [x], [Split(1)], 3, (2, 1), mode="channel")


def test_softmax_names_a_wrong_axis_and_dtype():
    with pytest.raises(ShapeError, match="softmax 'op': axis 2 is out of range for 2 dimensions"):
        run_op("softmax", normal(2, 3), axis=2)
    with pytest.raises(DTypeError, match="softmax 'op': works on floats, not int32"):
        run_op("softmax", np.zeros((2, 3), "int32"))


@pytest.mark.parametrize("temperature", [None, 0.7])
@pytest.mark.parametrize("axis", [0, -1])
def test_softmin_is_the_softmax_of_the_negative(axis, temperature):
    x = np.random.default_rng(3).standard_normal((3, 4))
    attrs = {"axis": axis, "temperature": temperature}
    want = run_op("softmax", -x, **attrs)
    np.testing.assert_allclose(run_op("softmin", x, **attrs), want, rtol=1e-12)
    check_op("softmin", x, **attrs)
    assert check_layout("softmin", [x], [Split(0)], 3, (1, 2)) == [Split(0)]
