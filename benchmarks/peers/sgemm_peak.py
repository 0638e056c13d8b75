"""The sgemm peak: a large square product in each of two threads at once; a "step" is both.

OPENBLAS_NUM_THREADS=1 python -m benchmarks.peers.sgemm_peak
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.peers.protocol import serve

SIZE, THREADS = 2048, 2
FLOPS = THREADS * 2 * SIZE**3  # of a step


def main() -> None:
    rng = np.random.default_rng(0)
    work = [
        (*(rng.standard_normal((SIZE, SIZE), np.float32) for _ in range(2)),
         np.empty((SIZE, SIZE), np.float32))
        for _ in range(THREADS)
    ]  # fmt: skip

    def step(_: int) -> float:
        for _ in pool.map(lambda arrays: np.matmul(arrays[0], arrays[1], out=arrays[2]), work):
            pass
        return 0.0

    with ThreadPoolExecutor(THREADS) as pool:
        serve(step, f"numpy {np.__version__}")


if __name__ == "__main__":
    main()
