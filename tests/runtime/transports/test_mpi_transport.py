"""Tests of the MPI transport: each starts a few processes and reads what they print."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from runtime.transports.mpi.waiter import Waiter
from symgraph.core.errors import TransportTimeout
from tests.mpi.launch import LAUNCHER, left, needs_mpi

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 60.0  # seconds for a whole test
SOON = 20.0  # seconds in which survivors of a failure are gone, though the machine is busy

pytestmark = needs_mpi


def command(case: str, ranks: int) -> list[str]:
    program = [sys.executable, "-m", "tests.runtime.transports.mpi_ranks", case]
    return [*LAUNCHER, "-n", str(ranks), *program]


def run(case: str, ranks: int = 3) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(case, ranks), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def lines(text: str, pattern: str) -> list[str]:
    return sorted(line for line in text.splitlines() if re.search(pattern, line))


@pytest.mark.parametrize("ranks", [2, 3])
def test_mpi_keeps_the_contract(ranks):
    ended = run("contract", ranks)
    assert lines(ended.stdout, "contract") == ["contract kept"] * ranks, ended.stdout + ended.stderr
    assert ended.returncode == 0


def test_a_good_run_ends_well():
    ended = run("trained")
    assert lines(ended.stdout, "sum") == ["sum 3"] * 3
    assert (ended.returncode, ended.stderr) == (0, "")


def test_receives_name_their_source():
    """The condition under which one run of a schedule shows that none hangs."""
    ended = run("named")
    assert lines(ended.stdout, "named") == ["all sources named"] * 3, ended.stdout + ended.stderr
    assert (ended.returncode, ended.stderr) == (0, "")


def test_one_rank_without_a_launcher():
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "MPI", "OMPI"))}
    program = [sys.executable, "-m", "tests.runtime.transports.mpi_ranks", "trained"]
    ended = subprocess.run(
        program, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "sum 1\n", "")


def test_wrong_number_of_processes():
    ended = run("wrong-size", 2)
    assert ended.returncode == 2
    assert "the run has 5 ranks, but 2 processes were started; use mpiexec -n 5" in ended.stdout


@pytest.mark.parametrize("lost", [0, 1])
def test_survivors_of_a_killed_rank_name_it_and_what_they_waited_for(lost):
    ended = run(f"kill-rank-{lost}")
    assert lines(ended.stdout, "PeerFailed") == [
        f"PeerFailed: rank {rank} stopped while waiting for tag 7 from rank {(rank + 1) % 3} "
        f"(R{rank}.3): rank {lost} failed: its process was lost (it ended without a goodbye)"
        for rank in range(3)
        if rank != lost
    ]
    assert ended.returncode != 0


def test_ranks_hear_of_a_killed_launcher_side():
    """The process that mpiexec knows as rank 1 is the guard: killing it ends the run as well."""
    ended = run("kill-guard-1")
    assert len(lines(ended.stdout, "PeerFailed: .*rank 1 failed: its process was orphaned")) == 3
    assert ended.returncode != 0


def test_an_exception_reaches_all_ranks():
    ended = run("raise")
    assert lines(ended.stdout, "Error|PeerFailed") == [
        *(
            f"PeerFailed: rank {rank} stopped while waiting for tag 7 from rank {(rank + 1) % 3} "
            f"(R{rank}.3): rank 1 failed at R1.3: ZeroDivisionError: division by zero"
            for rank in (0, 2)
        ),
        "ZeroDivisionError: division by zero",
    ]
    assert ended.returncode == 1


def test_an_uncaught_exception_does_not_hang_in_finalize():
    ended = run("uncaught")
    assert len(lines(ended.stderr, "^ZeroDivisionError")) == 1, ended.stderr
    assert len(lines(ended.stderr, "PeerFailed: .*rank 1 failed: ZeroDivisionError")) == 2
    assert ended.returncode != 0


def test_a_forgotten_close_is_told():
    ended = run("unclosed")
    told = lines(ended.stdout, "rank 1 failed: its process ended without closing its cluster")
    assert len(told) == 2, ended.stdout + ended.stderr
    assert ended.returncode != 0


@pytest.mark.parametrize("case", ["wait", "work"])
def test_no_process_is_left_when_mpiexec_is_killed(case):
    with subprocess.Popen(
        command(case, 2), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as launcher:
        assert launcher.stdout is not None
        ranks = [int(launcher.stdout.readline().split()[1]) for _ in range(2)]
        launcher.send_signal(signal.SIGKILL)
    assert left(ranks, SOON) == []


def test_a_failed_wait_keeps_the_buffers_that_mpi_may_write():
    """Late parts of an allgather overwrote memory that had other owners by then."""
    waiter = Waiter(SimpleNamespace(Exception=MemoryError, ERR_TRUNCATE=0), 0, timeout=0.01)
    into = np.empty(8)
    kept = weakref.ref(into)
    with pytest.raises(TransportTimeout):
        waiter.until(lambda: None, "allgather with all ranks", buffers=(into,))
    del into
    gc.collect()
    assert kept() is not None


def test_ctrl_c_stops_all_ranks():
    with subprocess.Popen(
        command("wait", 2), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        ranks = [int(launcher.stdout.readline().split()[1]) for _ in range(2)]
        launcher.send_signal(signal.SIGINT)
        _, errors = launcher.communicate(timeout=LIMIT)
    assert launcher.returncode != 0
    assert re.search("KeyboardInterrupt", errors)
    assert left(ranks, SOON) == []
