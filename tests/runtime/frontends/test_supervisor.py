"""The supervisor: real runs of threads that are killed from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runs import processes, write_config
from tests.mpi.launch import ROOT, environment

STEPS = 400
SOON = 60.0  # seconds


class Supervised:
    """A run of threads under a supervisor, found by a mark in its environment."""

    def __init__(self, folder: Path, config: Path, *words: str) -> None:
        self.folder, self.mark = folder, f"supervised-{os.getpid()}-{folder.name}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "symgraph.run", str(config), "--restarts", "5", *words],
            cwd=ROOT,
            env=environment(os.environ) | {"SYMGRAPH_BENCHMARK_RUN": self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def child(self) -> int:
        """The process that trains."""
        found = until(lambda: [p for p in processes(self.mark) if p.role == "process"])
        return found[-1].pid

    def left(self) -> list[str]:
        """What still runs, once it had the time to end."""
        until(lambda: not processes(self.mark))
        return [str(process) for process in processes(self.mark)]


def until(look: Callable[[], Any]) -> Any:
    """What `look` returns once that is true, or after `SOON`."""
    end = time.monotonic() + SOON
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


@pytest.fixture
def run(tmp_path):
    """A run of 400 steps that is well under way."""
    config = write_config(tmp_path, 2, STEPS, 5, heartbeat=1.0)
    log = tmp_path / "log.jsonl"
    started = Supervised(tmp_path, config, "--json", "--log", str(log))
    try:
        assert until(lambda: log.exists() and log.read_bytes().count(b"\n") > 12)
        yield started
    finally:
        for process in processes(started.mark):
            os.kill(process.pid, signal.SIGKILL)
        started.process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why"), [("KILL", "ended by SIGKILL"), ("STOP", "rank 0 was silent for 2.00 s")]
)
def test_a_run_that_is_killed_or_stopped_resumes(run, how, why):
    os.kill(run.child(), signal.Signals[f"SIG{how}"])
    out, err = run.process.communicate(timeout=SOON)
    assert run.process.returncode == 0, err
    summary = json.loads(out.splitlines()[-1])
    (restart,) = summary["restarts"]
    assert restart["reason"] == why
    assert restart["resumed"] >= 5  # of a run that is only stopped: saved when it is ended
    assert f"restart 1 of 5: {why}" in err
    lines = (run.folder / "log.jsonl").read_text().splitlines()
    steps = [fields["step"] for fields in map(json.loads, lines) if "loss" in fields]
    assert steps == [*range(1, STEPS + 1)]


@pytest.mark.slow
def test_a_run_ends_with_its_supervisor(run):
    run.process.kill()
    assert run.left() == []


@pytest.mark.slow
def test_signals_to_the_supervisor_reach_the_run(run):
    """SIGQUIT asks for flight records and ends nothing; SIGTERM ends the run with a checkpoint."""
    run.process.send_signal(signal.SIGQUIT)
    record = run.folder / "saved" / "flight" / "rank-1.json"
    assert until(record.exists)
    assert json.loads(record.read_text())["failure"] is None
    run.process.terminate()
    _, err = run.process.communicate(timeout=SOON)
    assert run.process.returncode == 143, err
    assert "stopped by SIGTERM after step" in err
    assert run.left() == []


@pytest.mark.slow
def test_a_signal_that_is_ignored_stays_so(tmp_path):
    """Below nohup, the supervisor handed SIGHUP on to a run that no longer ignored it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        log = tmp_path / "log.jsonl"
        config = write_config(tmp_path, 2, STEPS, 5, heartbeat=1.0)
        run = Supervised(tmp_path, config, "--log", str(log))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert until(lambda: log.exists() and log.read_bytes())
    run.process.send_signal(signal.SIGHUP)
    _, err = run.process.communicate(timeout=SOON)
    assert run.process.returncode == 0, err
