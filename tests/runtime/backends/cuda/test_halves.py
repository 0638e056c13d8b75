"""The emulation's floats of 16 bits against numpy's and ml_dtypes'."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.types import HALVES, dtype_name
from tests.fakes.fake_cupy import fake_cupy
from tests.runtime.backends.cuda.calls import on_gpu
from tests.runtime.backends.cuda.emulation import MISSING, RawModule, compiler

pytestmark = [pytest.mark.every(6), pytest.mark.skipif(compiler() is None, reason=MISSING)]

HEADERS = {"float16": ("__half", "cuda_fp16.h"), "bfloat16": ("__nv_bfloat16", "cuda_bf16.h")}
CODE = """
#include header
typedef long long i64;
extern "C" __global__ void there(const float* x, real* y) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    y[at] = (real)x[at];
}
extern "C" __global__ void back(const real* x, float* y) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    y[at] = (float)x[at];
}
"""


def kernels(dtype):
    name, header = HEADERS[dtype]
    return RawModule(code=CODE, options=("-std=c++17", f"-Dheader=<{header}>", f"-Dreal={name}"))


def same_bits(one, other):
    np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
    kept = ~np.isnan(one)
    np.testing.assert_array_equal(one.view("uint16")[kept], other.view("uint16")[kept])


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_comes_back(dtype):
    with fake_cupy():
        every = np.arange(1 << 16, dtype="uint16").view(dtype_name(dtype))
        found = on_gpu(np.zeros(1 << 16, "float32"))
        kernels(dtype).get_function("back")((256,), (256,), (on_gpu(every), found))
        np.testing.assert_array_equal(found.get(), every.astype("float32"))


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_is_to_the_nearest_even(dtype):
    """What lies between neighbours, at their middle and a little off it, and beyond the largest."""
    with fake_cupy():
        every = np.arange(1 << 16, dtype="uint16").view(dtype_name(dtype)).astype("float32")
        finite = np.sort(every[np.isfinite(every)])
        middle = (finite[1:] / 2 + finite[:-1] / 2).astype("float32")
        above, below = (np.nextafter(middle, np.float32(far)) for far in (np.inf, -np.inf))
        more = np.float32([65519, 65520, 3e38, -3.4e38, np.inf, np.nan])
        at = np.concatenate([finite, middle, above, below, more])
        x = np.resize(at, -(-at.size // 256) * 256).astype("float32")
        found = on_gpu(np.zeros(x.size, dtype))
        kernels(dtype).get_function("there")((x.size // 256,), (256,), (on_gpu(x), found))
        with np.errstate(over="ignore"):
            same_bits(found.get(), x.astype(dtype))
