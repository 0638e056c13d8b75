"""The sgemm peak: a large square product in each of two threads at once; a "step" is both.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.peers.sgemm_peak [gpu]

On a GPU: some larger products, one after the other, in float32.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import symgraph as sg
from benchmarks.peers.protocol import serve
from runtime.backends.cuda.blas import product
from runtime.backends.device.arrays import device, loaded

SIZE, THREADS = 2048, 2
FLOPS = THREADS * 2 * SIZE**3  # of a step
GPU_SIZE, GPU_COUNT = 8192, 2
GPU_FLOPS = GPU_COUNT * 2 * GPU_SIZE**3


def on_gpu() -> None:
    here = device(sg.gpu(0))
    with here.use():
        rng = np.random.default_rng(0)  # a product of ones would draw less power
        x, y, out = (
            here.put(rng.standard_normal((GPU_SIZE, GPU_SIZE), np.float32)) for _ in range(3)
        )
        call = product(x, y, out)
        assert call is not None

        def step(_: int) -> float:
            for _ in range(GPU_COUNT):
                call.function(*call.args)
            here.finish()
            return 0.0

        serve(step, f"cupy {loaded().__version__}")


def on_cpus() -> None:
    rng = np.random.default_rng(0)
    work = [
        (
            *(rng.standard_normal((SIZE, SIZE), np.float32) for _ in range(2)),
            np.empty((SIZE, SIZE), np.float32),
        )
        for _ in range(THREADS)
    ]

    def step(_: int) -> float:
        for _ in pool.map(lambda arrays: np.matmul(arrays[0], arrays[1], out=arrays[2]), work):
            pass
        return 0.0

    with ThreadPoolExecutor(THREADS) as pool:
        serve(step, f"numpy {np.__version__}")


if __name__ == "__main__":
    on_gpu() if sys.argv[1:] == ["gpu"] else on_cpus()
