"""benchmarks.kills: its cases cover everything, and it sees what is left of a run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from uuid import uuid4

import numpy as np
from safetensors.numpy import save_file

from benchmarks.kills import MOMENTS, SIGNALS, STEPS, TARGETS, Case, Outcome, draw, table
from benchmarks.runs import MARK, digest, processes
from tests.mpi.launch import left

RANKS = range(2, 5)


def test_a_case_depends_on_seed_and_number_alone():
    assert draw(1, 7, RANKS) == draw(1, 7, RANKS)
    assert draw(1, 7, RANKS) != draw(2, 7, RANKS)


def test_a_thousand_cases_cover_every_signal_target_and_moment():
    cases = [draw(1, number, RANKS) for number in range(1000)]
    assert {case.signal for case in cases} == {*SIGNALS}
    assert {case.target.split()[0] for case in cases} == {*TARGETS, "process"}
    assert {case.moment for case in cases} == {*MOMENTS}
    assert {case.devices for case in cases} == {*RANKS}
    assert all(0 <= case.step <= STEPS for case in cases)
    hits = {(c.signal, c.target.split()[0], c.moment) for c in cases if c.mpi}
    assert len(hits) > 0.9 * (4 * 4 + 2) * len(MOMENTS)


def test_orphans_are_found():
    """A process whose parent has ended is still one of the run."""
    mark = uuid4().hex
    sleeper = "import subprocess, sys; subprocess.Popen(['sleep', '600'])"
    subprocess.run([sys.executable, "-c", sleeper], env={**os.environ, MARK: mark}, check=True)
    end = time.monotonic() + 10.0
    while not (found := processes(mark)) and time.monotonic() < end:
        time.sleep(0.05)  # just begun, a process has no environment yet
    (orphan,) = found
    assert orphan.command.startswith("sleep 600")
    os.kill(orphan.pid, 9)
    assert left([orphan.pid], 10.0) == []
    assert processes(mark) == []


def test_the_table_counts_problems_by_target():
    case = Case(0, True, 2, "KILL", "rank 1", "step", 3, 0.0, (2, False))
    results = [Outcome(case, True, 1.5, 2.5), Outcome(case, problems=[("hang", "rank 0")])]
    heads, rank, together = table(results).splitlines()
    assert rank.split() == ["rank", "2", "1", "1", *"00000", "1.5", "s", "2.5", "s"]
    assert rank.split()[1:] == together.split()[1:]
    assert heads.split()[:3] == ["target", "cases", "struck"]


def test_a_digest_is_that_of_the_tensors_whatever_files_they_are_in(tmp_path):
    a, b = np.arange(3.0), np.ones((2, 2), np.float32)
    layouts = {"one": [{"a": a, "b": b}], "two": [{"b": b}, {"a": a}], "other": [{"a": b, "b": a}]}
    for name, files in layouts.items():
        (tmp_path / name).mkdir()
        for number, tensors in enumerate(files):
            save_file(tensors, tmp_path / name / f"rank-{number}.safetensors")
    assert digest(tmp_path / "one") == digest(tmp_path / "two") != digest(tmp_path / "other")
