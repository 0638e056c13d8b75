"""Kernels of normalisation by rows, and of sums, against the operators' computations."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.backends.cpu.test_flat import DTYPES, agree, bind, numbers

NEAR = {"float32": 1e-5, "float64": 1e-12}
SHAPES = [(1, 1), (3, 7), (2, 5, 33), (40, 1003)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def arrays(shape, dtype="float32"):
    """Data, gamma, beta, mean, standard deviation and the output's gradient."""
    data, grad = 3 * numbers(shape, dtype) + 2, numbers(shape, dtype, 1)
    gamma, beta = (numbers(shape[-1], dtype, seed) for seed in (2, 3))
    mean, std = (figure(data, axis=-1, keepdims=True) for figure in (np.mean, np.std))
    return data, gamma, beta, mean, std + np.asarray(0.1, dtype), grad


def close(name, *ins, **given):
    near = NEAR[ins[0].dtype.name]
    return agree(name, *ins, tolerance=near, near=near, **given)


@each_dtype
@each_shape
def test_layer_norm(shape, dtype):
    data, gamma, beta, *_ = arrays(shape, dtype)
    close("LayerNorm", data, gamma, beta, eps=1e-3)


@each_dtype
@each_shape
def test_its_gradients(shape, dtype):
    data, gamma, _, mean, std, grad = arrays(shape, dtype)
    close("_layer_norm_grad", data, gamma, mean, std, grad)


def test_sums_over_many_rows_keep_their_digits():
    data, gamma, _, mean, std, grad = arrays((30_000, 2))
    grad += 1
    bound, (_, _, of_beta), _ = bind("_layer_norm_grad", [data, gamma, mean, std, grad])
    bound.function(*bound.args)
    np.testing.assert_allclose(of_beta, grad.sum(axis=0, dtype="float64"), rtol=3e-7)


def test_data_far_from_zero():
    data = 1000 + numbers((4, 500), "float64")
    ones, zeros = np.ones(500, "float32"), np.zeros(500, "float32")
    bound, (_, mean, std), _ = bind("LayerNorm", [data.astype("float32"), ones, zeros])
    bound.function(*bound.args)
    np.testing.assert_allclose(mean[:, 0], data.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(std[:, 0], data.std(axis=1), rtol=1e-4)


def test_a_row_does_not_depend_on_the_others():
    data, gamma, beta, mean, std, grad = arrays((6, 1003))
    every = close("LayerNorm", data, gamma, beta)
    alone = close("LayerNorm", data[4:5], gamma, beta)
    for one, other in zip(every, alone, strict=True):
        np.testing.assert_array_equal(one[4:5], other)
    (of_all, *_) = close("_layer_norm_grad", data, gamma, mean, std, grad)
    (of_one, *_) = close("_layer_norm_grad", data[4:5], gamma, mean[4:5], std[4:5], grad[4:5])
    np.testing.assert_array_equal(of_all[4:5], of_one)


def test_cases_without_kernel():
    data, gamma, beta, mean, std, grad = arrays((5, 5))
    assert bind("LayerNorm", [data, gamma, beta], axis=0)[0] is None
    turned = [data, gamma, mean.T, std.T, grad]
    assert bind("_layer_norm_grad", turned, axis=0)[0] is None
    halves = [x.astype("float16") for x in (data, gamma, beta)]
    assert bind("LayerNorm", halves)[0] is None


@each_dtype
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3, 5, 4, 6), (0, 2, 3)), ((2, 3, 5, 7), (0, 3)), ((4, 50), 1)],
)
@pytest.mark.parametrize("keepdims", [False, True])
def test_sums_of_channels(shape, axis, keepdims, dtype):
    close("sum", numbers(shape, dtype), axis=axis, keepdims=keepdims)
