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


LOOPS = """
import numpy as np
from runtime.backends.cpu.flat import LOOPS
for name in ("relu", "_relu_grad"):
    LOOPS[name](*[np.ones(2)] * (2 if name == "relu" else 3))
    stats = LOOPS[name].stats
    print(len(stats.cache_hits), len(stats.cache_misses))
"""


@pytest.mark.slow
def test_loops_of_formulas_are_found_again_each_in_a_file_of_its_own(tmp_path):
    """Their code is made while Python runs, so numba must be able to tell formulas apart."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    def counts():
        command = [sys.executable, "-c", LOOPS]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert counts() == ["0", "1", "0", "1"]
    assert counts() == ["1", "0", "1", "0"]
    files = {file.name.split("-")[0] for file in tmp_path.rglob("*.nbi")}
    assert {"formulas.of_one.relu", "formulas.of_two._relu_grad"} <= files
