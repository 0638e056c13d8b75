"""The session with a card: every step is bounded, and what was found is in a file."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec

import pytest

from benchmarks.gpu import STEPS, Step, main, run_all

SLEEPER = """
import subprocess, sys
print("begun")
subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])
"""


@pytest.mark.slow
def test_a_step_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    steps = [Step("slow", ("-c", SLEEPER), 2), Step("next", ("-c", "print('fine')"), 30)]
    begun = time.monotonic()
    slow, after = run_all(steps, tmp_path, 40)
    assert time.monotonic() - begun < 30
    assert (slow["status"], slow["last"]) == (None, "begun")
    assert (after["status"], after["last"]) == (0, "fine")
    assert json.loads((tmp_path / "report.json").read_text()) == [slow, after]


def test_a_failure_is_told_and_time_is_kept(tmp_path):
    (bad,) = run_all([Step("bad", ("-c", "import sys; sys.exit('why')"), 30)], tmp_path, 30)
    assert (bad["status"], bad["last"]) == (1, "why")
    (late,) = run_all([Step("late", ("-c", "print('here')"), 30)], tmp_path, 0.5)
    assert (late["status"], late["last"]) == (None, "no time left")
    variables = [Step("told", ("-c", "import os; print(os.environ['A'])"), 30, {"A": "b"})]
    assert run_all(variables, tmp_path, 30)[0]["last"] == "b"


def test_what_is_chosen_runs_and_its_end_is_the_exit_status(tmp_path):
    """Without CuPy the step fails and says so; with a card its facts are there."""
    status = main([str(tmp_path), "--only", "facts", "--seconds", "50"])
    (row,) = json.loads((tmp_path / "report.json").read_text())
    assert row["step"] == "facts"
    if find_spec("cupy") is None:
        assert (status, row["status"]) == (1, 1)
        assert row["last"] == "ModuleNotFoundError: No module named 'cupy'"
    else:
        assert (status, row["status"]) == (0, 0)
    assert len({step.name for step in STEPS}) == len(STEPS)
