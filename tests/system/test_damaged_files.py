"""Damaged files: no reader fails with anything but an error of ours, in bounded time and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "count"), [(0, 600), pytest.param(1000, 8_000, marks=pytest.mark.slow)]
)
def test_every_reader_refuses_damaged_files_in_one_clear_error(seed, count):
    """Of 1,500 damaged symbols 60 ended in an AttributeError, TypeError or RecursionError.

    Others filled the memory (YAML's aliases), never ended (`num_args=100000000`, or 10**30 outputs)
    or were a TypeError later (a damaged `__shape__`). The readers run in a process of their own
    with an address space of 4 GiB.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.damage", str(seed), str(count)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr
