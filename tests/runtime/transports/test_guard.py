"""A rank's guard and the guard's deputy, without MPI: whatever is stopped or killed, all end."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.mpi.launch import ROOT

LIMIT = 60.0  # seconds; what comes near it hangs

RANK = """
import os, signal, time
from pathlib import Path
from runtime.transports.mpi.guard import RUNNING, stand_guard

guard = stand_guard(bound=60.0, heartbeat=5.0)
rank, family = os.getpid(), Path(f"/proc/{guard.process}/task/{guard.process}/children")
while len(family.read_text().split()) < 2:
    time.sleep(0.01)
(deputy,) = (int(pid) for pid in family.read_text().split() if int(pid) != rank)
"""
RUNS = "guard.tell(RUNNING, None)"  # MPI has started


def end_of(program: str) -> int:
    """The exit status of a guard whose rank runs a program."""
    words = [sys.executable, "-c", RANK + program]
    return subprocess.run(words, cwd=ROOT, timeout=LIMIT, check=False).returncode


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGSTOP", "SIGKILL"])
def test_a_guard_ends_though_its_deputy_was_stopped_or_killed(how):
    """A guard waited for ever for a stopped deputy, and failed to write to one that had gone."""
    assert end_of(f"{RUNS}; os.kill(deputy, signal.{how}); os._exit(3)") == 3


def test_a_stopped_guard_ends_once_its_rank_has():
    """After SIGSTOP of a guard at the end of a run, mpiexec waited for it for ever."""
    assert end_of(f"{RUNS}; os.kill(guard.process, signal.SIGSTOP); os._exit(3)") == 3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_a_rank_that_a_signal_ends_before_mpi_starts_ends_its_guard_by_it(how):
    """Seeing a mere status, hydra let the other ranks wait for it in MPI_Init, for a minute."""
    program = f"signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(rank, signal.{how})"
    assert end_of(program) == -signal.Signals[how]
