"""Normalisation of rows, columns and neighbouring channels on GPUs, against the operators' own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from tests.fakes.fake_cupy import fake_cupy
from tests.runtime.backends.cuda.calls import REALS, agree, has_no_kernel, near_of, numbers
from tests.runtime.backends.cuda.emulation import MISSING, compiler

pytestmark = [pytest.mark.every(6), pytest.mark.skipif(compiler() is None, reason=MISSING)]

SHAPES = [
    ((1, 1), -1),
    ((3, 1000), -1),
    ((2, 2099), -1),  # a block a line, not a warp
    ((2, 5, 33), -1),
    ((700, 3), -1),  # lines of one piece
    ((5, 7), 0),
    ((2, 70, 3), 1),
    ((3, 6, 11, 10), 1),
    ((700, 2, 40), 0),  # side by side
]
each_shape = pytest.mark.parametrize(("shape", "axis"), SHAPES)
each_real = pytest.mark.parametrize("dtype", REALS)


@pytest.fixture(autouse=True)
def kernels():
    with fake_cupy():
        yield


class LayerNorm(NamedTuple):
    """Arrays of a call and of its gradient's."""

    data: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    grad: np.ndarray

    @classmethod
    def of(cls, shape, axis, dtype):
        data, grad = (numbers(shape, dtype, seed) for seed in (0, 1))
        gamma, beta = (numbers(shape[axis], dtype, seed) for seed in (2, 3))
        exact = (3 * data.astype("float64") + 2).astype(dtype)
        mean, std = (
            figure(exact.astype("float64"), axis=axis, keepdims=True).astype(dtype)
            for figure in (np.mean, np.std)
        )
        return cls(exact, gamma, beta, mean, std + np.asarray(0.1, dtype), grad)


@pytest.mark.every(3)
@each_real
@each_shape
def test_layer_norm(dtype, shape, axis):
    of = LayerNorm.of(shape, axis, dtype)
    near = near_of(dtype, 1e-5, 1e-12)
    agree("LayerNorm", of.data, of.gamma, of.beta, axis=axis, eps=1e-3, near=near)


@pytest.mark.every(3)
@each_real
@each_shape
def test_its_gradients(dtype, shape, axis):
    """700 lines are several runs."""
    of = LayerNorm.of(shape, axis, dtype)
    near = near_of(dtype, 3e-5, 1e-12)  # the operator sums in another order
    agree("_layer_norm_grad", of.data, of.gamma, of.mean, of.std, of.grad, axis=axis, near=near)


def test_statistics_of_data_far_from_zero():
    """The variance is that of the distances to the mean, and no difference of large sums."""
    data = 1000 + numbers((4, 500), "float64")
    gamma, beta = np.ones(500, "float32"), np.zeros(500, "float32")
    _, mean, std = agree("LayerNorm", data.astype("float32"), gamma, beta, near=1e-3)
    np.testing.assert_allclose(mean[:, 0], data.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(std[:, 0], data.std(axis=1), rtol=1e-4)


@pytest.mark.parametrize("axis", [0, -1])
def test_an_output_may_lie_where_the_data_do(axis):
    of = LayerNorm.of((40, 50), axis, "float32")
    ins = of.data, of.gamma, of.beta
    apart = agree("LayerNorm", *ins, axis=axis, near=1e-5)
    over = agree("LayerNorm", *ins, axis=axis, near=1e-5, over={0: 0})
    for one, other in zip(apart, over, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_line_has_the_bits_that_it_has_alone():
    """So micro-batches of any size give them."""
    of = LayerNorm.of((5, 1003), -1, "float32")
    vectors = of.gamma, of.beta
    every = agree("LayerNorm", of.data, *vectors, near=1e-5)
    alone = agree("LayerNorm", of.data[3:4], *vectors, near=1e-5)
    for one, other in zip(every, alone, strict=True):
        np.testing.assert_array_equal(one[3:4], other)


@each_real
@pytest.mark.parametrize("mode", ["instance", "channel", "spatial"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (1, 40, 33), (3, 1, 1)], ids=str)
def test_l2_normalization(dtype, mode, shape):
    agree("L2Normalization", numbers(shape, dtype), mode=mode, eps=1e-4)


@each_real
@pytest.mark.parametrize("nsize", [1, 3, 5, 9])
@pytest.mark.parametrize("shape", [(2, 7, 5, 3), (3, 4), (1, 1, 300)], ids=str)
def test_lrn(dtype, nsize, shape):
    data = 3 * numbers(shape, dtype)
    agree("LRN", data, nsize=nsize, alpha=0.3, beta=0.6, knorm=1.5)
    agree("_sum_neighbours", data, nsize=nsize, near=near_of(dtype, 1e-5, 1e-12))


@each_real
@each_shape
def test_softmax_along_any_axis(dtype, shape, axis):
    x, g = (3 * numbers(shape, dtype, seed) for seed in (0, 1))
    near = near_of(dtype, 1e-5, 1e-12)
    (y,) = agree("softmax", x, axis=axis, near=near)
    agree("softmax", x, axis=axis, near=near, over={0: 0})
    agree("_softmax_grad", y, g.astype(y.dtype), axis=axis, near=near)


def test_softmax_of_rows_with_infinities():
    x = numbers((4, 6, 3))
    x[0, :, 0], x[1, 2, 1], x[2, 3, 2] = -np.inf, -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        agree("softmax", x, axis=1, near=1e-6)


@each_real
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((3, 4, 5), (0,)),
        ((3, 4, 5), (1,)),
        ((3, 4, 5), (2,)),
        ((3, 4, 5), (1, 2)),
        ((3, 4, 5), (0, 1)),
        ((3, 4, 5), None),
        ((3, 1, 5), (0, 2)),
        ((1, 7), (0,)),
        ((900, 3), (0,)),
        ((2, 700, 33), (1,)),
    ],
)
def test_sums_and_means_over_axes(dtype, shape, axis):
    x, near = numbers(shape, dtype), near_of(dtype, 2e-5, 1e-12)
    for keepdims in (True, False):
        agree("sum", x, axis=axis, keepdims=keepdims, near=near)
        agree("mean", x, axis=axis, keepdims=keepdims, near=near)
    agree("mean", x, axis=axis, count=7, near=near)


@each_real
@pytest.mark.parametrize(
    ("shape", "to"),
    [
        ((3, 4, 5), (4, 5)),
        ((3, 4, 5), (1, 5)),
        ((3, 4, 5), (3, 4, 1)),
        ((3, 4, 5), (3, 1, 5)),
        ((3, 4, 5), (1, 1)),
        ((3, 4), (3, 4)),
        ((1, 4), (1, 1)),
    ],
)
def test_sums_to_what_has_been_broadcast(dtype, shape, to):
    agree("_sum_to", numbers(shape, dtype), shape=to, near=near_of(dtype, 1e-5, 1e-12))


def test_sums_over_axes_apart_are_the_operators():
    assert has_no_kernel("sum", numbers((3, 4, 5)), axis=(0, 2))
    assert has_no_kernel("_sum_to", numbers((3, 4, 5)), shape=(1, 4, 1))
