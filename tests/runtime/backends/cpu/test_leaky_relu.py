"""LeakyReLU's kernels against the operators' computations, and erf and expm1 against doubles."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from scipy.special import erf

from runtime.backends.cpu import vector
from runtime.backends.cpu.flat import erf_flat
from tests.runtime.backends.cpu.test_flat import DTYPES, agree, bind, numbers

EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30]
NEAR = {"float32": 2e-7, "float64": 5e-16}
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def values(dtype):
    return np.append(4 * numbers(1500, dtype), np.array(EDGES, dtype)).reshape(11, -1)


@each_dtype
@pytest.mark.parametrize("act_type", ["leaky", "elu", "selu", "gelu"])
def test_kinds(act_type, dtype):
    """gelu far below 0 is what is left of 1 + erf, of which few bits are known."""
    near = 10 * NEAR[dtype] if act_type == "gelu" else 1e-30
    with np.errstate(invalid="ignore"):
        agree("LeakyReLU", values(dtype), act_type=act_type, slope=0.3, near=near)


@each_dtype
def test_gradient_of_leaky(dtype):
    agree("_leaky_relu_grad", numbers((11, 137), dtype, 1), values(dtype), slope=0.3)


def test_cases_without_kernel():
    x = numbers((2, 3))
    assert bind("LeakyReLU", [x, x[0]], act_type="prelu")[0] is None
    assert bind("LeakyReLU", [x.astype("float16")])[0] is None
    assert bind("_leaky_relu_grad", [x.astype("float16")] * 2, slope=0.3)[0] is None


# -- functions ---------------------------------------------------------------------------------


@numba.njit(error_model="numpy")
def expm1_flat(x, y):
    for j in range(len(y)):
        y[j] = vector.expm1(x[j])


@each_dtype
@pytest.mark.parametrize(
    ("loop", "function", "least", "greatest", "factor"),
    [
        (erf_flat, erf, -7, 7, {"float32": 1.5, "float64": 6}),
        (expm1_flat, np.expm1, -100, 80, {}),
    ],
)
def test_functions_to_the_last_bits(loop, function, least, greatest, factor, dtype):
    small = np.geomspace(1e-30, 2, 20_001)
    x = np.concatenate([np.linspace(least, greatest, 200_001), small, -small]).astype(dtype)
    y, limit = np.empty_like(x), NEAR[dtype] * factor.get(dtype, 1)
    loop(x, y)
    np.testing.assert_allclose(y, function(x.astype("float64")), rtol=limit, atol=0)
    edges = np.array(EDGES[:5], dtype)
    found = np.empty_like(edges)
    loop(edges, found)
    np.testing.assert_array_equal(found, function(edges))
