"""Kernels that have been compiled before are found again, and where."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOOK = """
import numpy as np
from runtime.backends.cpu import cached
from runtime.backends.cpu import rows
print(*cached())
rows.gather(np.zeros(2, np.int64), 0, np.ones((3, 4)), np.empty((2, 4)))
print(*cached())
"""


@pytest.mark.slow
def test_a_fresh_folder_fills_at_the_first_call(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True
    )
    before, after = (line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (before[0], after[0]) == ("False", "True")
    assert before[1] == after[1]
    assert before[1].startswith(str(tmp_path))
