"""Launcher of the MPI tests: runs one of their programs on some ranks, and reads what it said."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The tests' own choice of another launcher, such as "mpiexec.openmpi --oversubscribe".
WORDS = shlex.split(os.environ.get("SYMGRAPH_TEST_MPIEXEC", ""))
MPIEXEC = Path(sys.executable).parent / "mpiexec"
LAUNCHER = WORDS or [str(MPIEXEC)]
LIMIT = 120.0  # seconds; a launch that comes near it hangs

needs_mpi = [
    pytest.mark.mpi,
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is missing"),
    pytest.mark.skipif(not shutil.which(LAUNCHER[0]), reason=f"{LAUNCHER[0]} is missing"),
]


class Ended(NamedTuple):
    """What is left of a launch; at: when it ended (time.time)."""

    status: int
    stdout: str
    stderr: str
    at: float

    def lines(self, pattern: str) -> list[str]:
        """The lines of both streams that match, in alphabetical order."""
        text = self.stdout.splitlines() + self.stderr.splitlines()
        return sorted(line for line in text if re.search(pattern, line))

    def __str__(self) -> str:
        return f"status {self.status}\n{self.stdout}\n{self.stderr}"


def launch(ranks: int, module: str, *arguments: str | Path) -> Ended:
    """Run `python -m module arguments` on every rank."""
    return launch_each([(ranks, module, *arguments)])


def launch_each(parts: Sequence[tuple[int, str, *tuple[str | Path, ...]]]) -> Ended:
    """Run several programs as the ranks of one launch: (ranks, module, arguments ...) of each."""
    command = [*LAUNCHER]
    for number, (ranks, module, *arguments) in enumerate(parts):
        if number:
            command.append(":")
        command += ["-n", str(ranks), sys.executable, "-m", module, *map(str, arguments)]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(os.environ),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr, time.time())


def environment(outer: Mapping[str, str]) -> dict[str, str]:
    """For the ranks: this source tree first, and one thread for each one's products.

    Unbuffered, a line and its end are written apart, and another rank's line may come between.
    """
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    kept = {k: v for k, v in outer.items() if k != "PYTHONUNBUFFERED"}
    return {**kept, **threads, "PYTHONPATH": str(ROOT)}


def alive(process: int) -> bool:
    """Whether a process still runs; one that nobody has buried is dead."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def left(processes: Iterable[int], seconds: float) -> list[int]:
    """Those of the processes that still run after so long; a launcher may end a moment earlier."""
    end = time.monotonic() + seconds
    found = [*processes]
    while (found := [*filter(alive, found)]) and time.monotonic() < end:
        time.sleep(0.1)
    return found
