"""The emulation of CUDA refuses what a card would compute wrongly without a word."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.backends.cuda.calls import on_gpu
from tests.runtime.backends.cuda.emulation import MISSING, RawModule, compiler

pytestmark = [pytest.mark.every(6), pytest.mark.skipif(compiler() is None, reason=MISSING)]

CODE = """
typedef int i32;
typedef long long i64;

extern "C" __global__ void turned(const real* x, real* y, i64 size, real scale) {
    __shared__ real seen[64];
    if (threadIdx.x < size) seen[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < size) y[threadIdx.x] = seen[size - 1 - threadIdx.x] * scale;
}

extern "C" __global__ void without_a_barrier(const real* x, real* y, i64 size) {
    __shared__ real seen[64];
    if (threadIdx.x < size) seen[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x < size) y[threadIdx.x] = seen[size - 1 - threadIdx.x];
}

extern "C" __global__ void half_wait(real* y) {
    if (threadIdx.x < 16) __syncthreads();
    y[threadIdx.x] = 1;
}

extern "C" __global__ void half_exchange(real* y) {
    if (threadIdx.x < 40) y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, y[threadIdx.x], 1);
}

extern "C" __global__ void too_early(const real* x, real* y) {
    __shared__ real seen;
    for (int turn = 0; turn < 3; turn++) {
        if (threadIdx.x == 0) seen = x[turn];
        __syncthreads();
        y[turn * 64 + threadIdx.x] = seen;
    }
}

__device__ void wait() { __syncthreads(); }

extern "C" __global__ void waits_elsewhere(real* y) {
    wait();
}

extern "C" __global__ void all_sums(const real* x, real* y) {
    real own = x[threadIdx.x];
    for (int step = 16; step > 0; step /= 2) own += __shfl_xor_sync(0xffffffffu, own, step);
    y[threadIdx.x] = own;
}
"""


def kernel(name):
    return RawModule(code=CODE, options=("-std=c++17", "-Dreal=float")).get_function(name)


def arrays(size=64):
    return on_gpu(np.arange(size, dtype="float32")), on_gpu(np.zeros(size, "float32"))


def test_barriers_are_kept():
    x, y = arrays()
    for size in (64, 40):  # threads are used again
        kernel("turned")((2,), (64,), (x, y, np.int64(size), np.float32(2)))
        np.testing.assert_array_equal(y.get()[:size], 2 * x.get()[:size][::-1])


def test_a_barrier_that_is_not_there_shows():
    x, y = arrays()
    kernel("without_a_barrier")((1,), (64,), (x, y, np.int64(64)))
    assert (y.get() != x.get()[::-1]).any()
    x, y = arrays(192)
    kernel("too_early")((1,), (64,), (x, y))
    assert (y.get() != np.repeat([0, 1, 2], 64)).any()


def test_barriers_that_not_all_reach_or_that_nobody_sees():
    _, y = arrays()
    with pytest.raises(AssertionError, match="half_wait has threads that do not come"):
        kernel("half_wait")((1,), (64,), (y,))
    with pytest.raises(AssertionError, match="half_exchange has threads that do not come"):
        kernel("half_exchange")((1,), (64,), (y,))
    with pytest.raises(AssertionError, match="waits_elsewhere has a barrier that its own text"):
        kernel("waits_elsewhere")((1,), (64,), (y,))
    test_barriers_are_kept()


KEPT = """
template <typename T> __device__ T kept(T own) {
    __shared__ T place;
    if (own > 0) place = own;
    return place;
}

extern "C" __global__ void keep(real* y) {
    y[0] = kept(y[0]);
}
"""


def test_sources_share_no_memory_of_blocks():
    """Threads run kernels of two sources at once: one's sums got into the other's."""
    found = []
    for code, own in ((KEPT, 3), (KEPT + "\n// of another source", 0)):
        y = on_gpu(np.array([own], "float32"))
        made = RawModule(code=code, options=("-std=c++17", "-Dreal=float"))
        made.get_function("keep")((1,), (1,), (y,))
        found.append(y.get()[0])
    assert found == [3, 0]


def test_warps_exchange():
    x, y = arrays()
    kernel("all_sums")((1,), (64,), (x, y))
    halves = x.get().reshape(2, 32).sum(axis=1)
    np.testing.assert_array_equal(y.get(), np.repeat(halves, 32))


@pytest.mark.parametrize(
    ("at", "given", "said"),
    [
        (0, np.zeros(64, "float32"), "not an array of the GPU"),
        (0, on_gpu(np.zeros(64)), "x of turned is float64, not float32"),
        (1, on_gpu(np.zeros((64, 2), "float32"))[:, 0], "y of turned is not contiguous"),
        (2, 64, "not a numpy number"),
        (2, np.int32(64), "size of turned is int32, not int64"),
        (3, np.float64(2), "scale of turned is float64, not float32"),
    ],
)
def test_arguments_are_what_the_kernel_declares(at, given, said):
    args = [*arrays(), np.int64(64), np.float32(2)]
    args[at] = given
    with pytest.raises(AssertionError, match=said):
        kernel("turned")((1,), (64,), tuple(args))
