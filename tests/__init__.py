"""The tests. What BLAS looks at when numpy is imported is set here, before that.

The benchmarks drop OPENBLAS_CORETYPE, which chooses BLAS's kernels. If it were dropped later, other
processes would have other bits than the one that runs the tests.

Each worker of xdist has its share of the cores. BLAS would take all of them in each worker, and
threads that are more than the cores wait for each other for many times the time of the work.
"""

import os

os.environ.pop("OPENBLAS_CORETYPE", None)
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(max(1, share)))
