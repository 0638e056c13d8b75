"""Casts, sums and products element by element on GPUs, against the operators' own computations."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.types import HALVES
from tests.cuda.calls import REALS, agree, has_no_kernel, numbers
from tests.cuda.emulation import MISSING, compiler
from tests.fake_cupy import fake_cupy

pytestmark = pytest.mark.skipif(compiler() is None, reason=MISSING)

SIZES = [(1,), (3, 7), (2, 3, 300)]


@pytest.fixture(autouse=True)
def kernels():
    with fake_cupy():
        yield


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_casts(half, shape):
    x = 100 * numbers(shape)
    (down,) = agree("Cast", x, dtype=half, near=1e-9)
    (up,) = agree("Cast", down, dtype="float32", near=1e-9)
    np.testing.assert_array_equal(up, down.astype("float32"))


def test_what_is_too_large_becomes_infinite():
    with np.errstate(over="ignore"):
        (down,) = agree("Cast", np.float32([70000, -70000, np.nan, 65504]), dtype="float16")
    np.testing.assert_array_equal(down, np.float16([np.inf, -np.inf, np.nan, 65504]))


def test_other_casts_are_left_to_the_operator():
    assert has_no_kernel("Cast", numbers(3), dtype="int32")
    assert has_no_kernel("Cast", numbers(3, "float64"), dtype="float16")


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("op", ["elemwise_add", "elemwise_mul"])
def test_sums_and_products(op, shape, dtype):
    x, y = numbers(shape, dtype), numbers(shape, dtype, 1)
    found = [agree(op, x, y, over=place)[0] for place in ({}, {0: 0}, {0: 1})]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("dtype", REALS)
def test_products_with_one_number(dtype):
    agree("broadcast_mul", numbers((5, 70), dtype), numbers((1, 1), dtype, 1))
    assert has_no_kernel("broadcast_mul", numbers((5, 70), dtype), numbers((5, 1), dtype))
    assert has_no_kernel("broadcast_mul", numbers((1, 1), dtype), numbers((1, 1, 1), dtype))
    assert has_no_kernel("elemwise_add", np.arange(3), np.arange(3))
