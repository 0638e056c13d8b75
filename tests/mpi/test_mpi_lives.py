"""Ranks that are stopped, killed or interrupted at any moment: all end soon, each with a line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.mpi.launch import LIMIT, MPIEXEC, ROOT, Ended, environment, launch_each, left, needs_mpi
from tests.mpi.lives import HEARTBEAT, START
from tests.mpi.test_mpi_failures import TRAIN, write_config

pytestmark = needs_mpi

SOON = 30.0  # seconds from a fault to the end of all: the bounds, on a busy machine


@contextmanager
def lives(moment: str, rank: int, ranks: int = 3) -> Iterator[tuple[int, int, list[Ended]]]:
    """Launch `tests.mpi.lives`; give process and guard of the rank that stands at the moment.

    The list receives what the launch has said; no process of it may be left.
    """
    program = [sys.executable, "-m", "tests.mpi.lives", moment, str(rank)]
    found: list[Ended] = []
    with subprocess.Popen(
        [str(MPIEXEC), "-n", str(ranks), *program],
        cwd=ROOT,
        env=environment(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        try:
            assert launcher.stdout is not None
            heard: list[str] = []
            while not (heard and heard[-1].startswith("at ")):
                heard.append(launcher.stdout.readline())
                assert heard[-1], heard
            process, guard = map(int, re.findall(r"\d+", heard[-1]))
            yield process, guard, found
            begin = time.monotonic()
            out, errors = launcher.communicate(timeout=LIMIT)
            assert time.monotonic() - begin < SOON
        finally:
            launcher.kill()
    found.append(Ended(launcher.returncode, "".join(heard) + out, errors, time.time()))
    processes = [int(line.split()[1]) for line in found[0].lines(r"^process \d+$")]
    assert left(processes, SOON) == []


@pytest.mark.every(2)
@pytest.mark.parametrize("lost", [0, 1])
def test_a_config_that_one_host_lacks_ends_all_ranks(lost, tmp_path):
    """F1: `mpiexec -n 1 … good.yaml : -n 1 … missing.yaml` printed its error and hung in MPI_Init.

    The rank without a config now fails inside the running world, and the others say so.
    """
    config = write_config(tmp_path, train={**TRAIN, "optimizer": "sgd"})
    parts = [(1, "symgraph.run", config) for _ in range(3)]
    parts[lost] = (1, "symgraph.run", tmp_path / "missing.yaml")
    ended = launch_each(parts)
    assert ended.status == 2, str(ended)
    assert len(ended.lines("^symgraph: error: .*missing.yaml: no such config file$")) == 3
    stopped = ended.lines(rf"^symgraph: error: rank \d stopped .*: rank {lost} failed: ConfigError")
    assert len(stopped) == 2, str(ended)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_rank_that_dies_before_mpi_starts_ends_the_others(signum):
    """F1: the others, behind guards already, stayed in MPI_Init for ever; some had parent 1."""
    with lives("before", 1) as (process, _, found):
        time.sleep(1.0)  # the others come to MPI_Init
        os.kill(process, signum)
    assert found[0].status != 0


def test_a_rank_that_never_starts_mpi_ends_the_others():
    """F3: at start-up, nothing bounded the wait of the others in MPI_Init."""
    with lives("never", 1) as (_, _, found):
        pass
    (ended,) = found
    assert ended.status != 0
    text = rf"MPI did not start within {START:g} s: another rank has ended or never started$"
    told = ended.lines(rf"^symgraph: error: rank [02]: {text}")
    assert len(told) == 2, str(ended)


@pytest.mark.every(2)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_ends_the_run_within_the_heartbeat(rank):
    """F3: nobody noticed before the `timeout` was over."""
    with lives("running", rank) as (process, _, found):
        os.kill(process, signal.SIGSTOP)
    (ended,) = found
    assert ended.status != 0
    why = rf"its process was stopped for {HEARTBEAT:g} s \(by a signal such as SIGSTOP\)"
    assert len(ended.lines(rf"^symgraph: error: rank {rank}: {why}; it is killed$")) == 1, str(
        ended
    )
    others = ended.lines(rf"^symgraph: error: rank \d stopped .*: rank {rank} failed: {why}$")
    assert len(others) == 2, str(ended)


@pytest.mark.every(2)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_silent_rank_is_named(rank):
    """F3: no word came from a rank on a host behind a cut link; here its guard is stopped too."""
    with lives("running", rank) as (process, guard, found):
        os.kill(guard, signal.SIGSTOP)
        os.kill(process, signal.SIGSTOP)
    (ended,) = found
    assert ended.status != 0
    others = ended.lines(  # the silent one says it as well if it is woken early enough
        rf"rank [^{rank}] stopped .*: rank {rank} failed: nothing was heard of its process"
    )
    assert len(others) == 2, str(ended)


def test_a_rank_that_is_busy_is_not_silent():
    """A solver that holds Python's lock for three heartbeats keeps no beat back."""
    with lives("busy", 1) as (_, _, found):
        pass
    assert found[0].status == 0, str(found[0])
    assert len(found[0].lines("has done its work")) == 3


@pytest.mark.every(2)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("signum", [signal.SIGSTOP, signal.SIGKILL])
def test_a_rank_lost_after_its_goodbye_is_named(signum, rank):
    """F3: the others waited in MPI_Finalize, without a bound; nobody named the one they lacked."""
    with lives("closed", rank) as (process, _, found):
        time.sleep(1.0)  # the others come to MPI_Finalize
        os.kill(process, signum)
    (ended,) = found
    assert ended.status != 0
    assert ended.lines(rf"^symgraph: error: rank {rank}: its process was"), str(ended)
    others = ended.lines(rf"rank \d stopped while waiting for all ranks to end: rank {rank} failed")
    assert len(others) == 2, str(ended)


def test_no_shared_memory_is_left_behind():
    """F9: 85 of 120 abnormal ends left a file mpich_shm_* behind."""
    with lives("running", 1) as (process, _, _):
        for path in Path(f"/proc/{process}/maps").read_text().splitlines():
            assert "mpich_shm" not in path or path.endswith("(deleted)"), path
        os.kill(process, signal.SIGKILL)


def test_a_second_interrupt_does_not_stop_a_rank_from_leaving():
    """F2: an own SIGINT in `leave` let a rank wait in MPI_Finalize for ranks that were gone."""
    with lives("running", 1) as (process, _, found):
        for _ in range(20):
            with suppress(ProcessLookupError):  # it has left
                os.kill(process, signal.SIGINT)
            time.sleep(0.02)
    (ended,) = found
    assert ended.status == 130, str(ended)
    assert ended.lines("^symgraph: interrupted$"), str(ended)
    assert len(ended.lines(r"rank \d stopped .*: rank 1 failed: KeyboardInterrupt$")) == 2
