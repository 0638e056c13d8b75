"""Batch normalisation on GPUs, against the operators' own computations."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.registry import Env
from tests.fakes.fake_cupy import fake_cupy
from tests.runtime.backends.cuda.calls import TOLERANCE, Called, numbers
from tests.runtime.backends.cuda.emulation import MISSING, compiler

pytestmark = [pytest.mark.every(6), pytest.mark.skipif(compiler() is None, reason=MISSING)]

SHAPES = [((2, 3, 4, 5), 1), ((7, 3), 1), ((5, 1), 1), ((2, 40, 3), 2), ((3, 6, 5), 0)]
TRAINING, OTHER = Env(train=True), Env()
each_shape = pytest.mark.parametrize(("shape", "axis"), SHAPES)
each_kind = pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
each_way = pytest.mark.parametrize(
    "how",
    [
        {},
        {"fix_gamma": False},
        {"use_global_stats": True, "fix_gamma": False},
    ],
    ids=str,
)


@pytest.fixture(autouse=True)
def kernels():
    with fake_cupy():
        yield


def vectors(count: int, size: int, dtype: str) -> list[np.ndarray]:
    wide = "float64" if dtype == "float64" else "float32"
    return [np.abs(numbers(size, wide, seed)) + 0.5 for seed in range(count)]


def judged(called: Called, dtype: str) -> None:
    """In training, and else, one after the other as runs may be."""
    for env in (TRAINING, OTHER, TRAINING):
        called.context.set(env)
        for found, wanted in zip(called.results(), called.computed(env), strict=True):
            assert found.dtype == wanted.dtype
            close = 2e-3 if wanted.dtype == "float16" else 10 * TOLERANCE.get(dtype, 1e-5)
            np.testing.assert_allclose(found, wanted, close, close)


@pytest.mark.every(3)
@each_kind
@each_shape
@each_way
def test_batch_norm(dtype, shape, axis, how):
    data = numbers(shape, dtype) + np.asarray(2, dtype)
    given = {"axis": axis, "momentum": 0.8, "eps": 1e-3, **how}
    judged(Called("BatchNorm", [data, *vectors(4, shape[axis], dtype)], {}, given), dtype)


@each_kind
@each_shape
@each_way
def test_its_gradient(dtype, shape, axis, how):
    data, grad = numbers(shape, dtype), numbers(shape, dtype, 9)
    ins = [data, *vectors(3, shape[axis], dtype), grad]
    judged(Called("_batch_norm_grad", ins, {}, {"axis": axis, **how}), dtype)


@each_kind
@each_shape
def test_moments(dtype, shape, axis):
    data = numbers(shape, dtype) + np.asarray(2, dtype)
    judged(Called("_moments", [data], {}, {"axis": axis}), dtype)
    ins = [data, *vectors(3, shape[axis], dtype)]
    judged(Called("_moments_grad", ins, {}, {"axis": axis}), dtype)


@each_kind
@each_shape
@pytest.mark.parametrize("fix_gamma", [True, False])
def test_normalisation_by_given_moments(dtype, shape, axis, fix_gamma):
    data, given = numbers(shape, dtype), {"axis": axis, "fix_gamma": fix_gamma, "eps": 1e-2}
    judged(Called("_normalize", [data, *vectors(4, shape[axis], dtype)], {}, given), dtype)
    ins = [data, *vectors(3, shape[axis], dtype), numbers(shape, dtype, 9)]
    judged(Called("_normalize_grad", ins, {}, given), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moving_averages(dtype):
    batch, moving = numbers(300, dtype), numbers(300, dtype, 1)
    judged(Called("_moving_average", [batch, moving], {}, {"momentum": 0.7}), dtype)


def test_outputs_may_lie_where_the_data_do():
    ins = [numbers((4, 3, 50)), *vectors(4, 3, "float32")]
    judged(Called("BatchNorm", ins, {}, {"fix_gamma": False}), "float32")
    over = Called("BatchNorm", ins, {0: 0}, {"fix_gamma": False})
    over.context.set(TRAINING)
    for found, wanted in zip(over.results(), over.computed(TRAINING), strict=True):
        np.testing.assert_allclose(found, wanted, 3e-5, 3e-5)
