"""The tests. Before numpy is imported: benchmarks drop this variable, which chooses BLAS's kernels.

If it were dropped later, other processes would have other bits than the one that runs the tests.
"""

import os

os.environ.pop("OPENBLAS_CORETYPE", None)
