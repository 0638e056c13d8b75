"""Commands in an unfriendly environment: closed streams, full disks, limits, an early Ctrl-C."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from symgraph.run import main
from tests.helpers.small_lm import write_config

ROOT = Path(__file__).parents[2]
PLAN = ("symgraph.run", "--plan")
SIMULATE = ("runtime", "simulate", "--stages", "2", "--micro-batches", "2")


def shell(line: str, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m command` as "$@" of a line of bash."""
    return subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def config(tmp_path):
    return str(write_config(tmp_path, "optimizer: sgd, learning_rate: 0.5, steps: 3"))


@pytest.mark.every(9)
@pytest.mark.parametrize(
    ("line", "status", "errors"),
    [
        ('"$@" >&-', 0, ""),
        ('"$@" 2>&-', 0, ""),
        ('"$@" >&- 2>&-', 0, ""),
        ('"$@" >/dev/full', 1, "symgraph: error: No space left on device\n"),
    ],
)
def test_closed_and_full_streams(line, status, errors):
    """F12: a closed stdout was an AttributeError, a closed stderr a status of its own."""
    done = shell(line, *SIMULATE)
    assert (done.returncode, done.stderr) == (status, errors)


@pytest.mark.every(9)
@pytest.mark.parametrize(
    "command",
    [
        ("symgraph", "--help"),
        ("symgraph", "plan", "--help"),
        ("symgraph", "--version"),
        ("symgraph.run", "--help"),
        ("symgraph", "simulate", "--help"),
        ("partitioner", "solve", "--help"),
    ],
)
def test_help_that_cannot_be_written(command):
    """Python said so, with a status of its own, 120; or nobody did."""
    done = shell('"$@" >/dev/full', *command)
    assert (done.returncode, done.stderr) == (1, "symgraph: error: No space left on device\n")
    assert shell('set -o pipefail; "$@" | head -c 0', *command).returncode == 0


@pytest.mark.every(9)
@pytest.mark.parametrize("line", ['"$@" 2>&-', '"$@" 2>/dev/full', '"$@" >&- 2>&-'])
def test_an_error_that_nobody_can_read_keeps_its_status(line):
    """F12: it was a second error, and the status 1."""
    assert shell(line, "symgraph.run", "missing.yaml").returncode == 2


@pytest.mark.slow
def test_a_stream_that_takes_ascii_only_gets_escapes(config):
    """With PYTHONIOENCODING=ascii, the first µs was a traceback."""
    done = shell('"$@"', *PLAN, config, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "\\xb5s" in done.stdout


def test_a_folder_that_is_gone(tmp_path, config):
    """F12: "No such file or directory", and not of which."""
    done = shell(f'mkdir {tmp_path}/a && cd {tmp_path}/a && rmdir ../a && "$@"', *PLAN, config)
    assert (
        done.stderr == "symgraph: error: the current folder no longer exists: change to another\n"
    )


def test_a_run_needs_no_temporary_folder(config, monkeypatch):
    """In a read-only container it ended: "the current folder no longer exists"."""

    def none():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert main([config]) == 0


def test_too_few_addresses_are_refused_before_a_library_hangs():
    """F12: with `ulimit -v 400000` a run waited for ever, with 600000 LLVM aborted it."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    done = shell('ulimit -v 400000; "$@"', *SIMULATE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("symgraph: error: `ulimit -v` allows 400000 KiB")
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.every(3)
@pytest.mark.parametrize("module", ["symgraph.run", "runtime", "partitioner"])
def test_an_interrupt_during_imports_is_one_line(tmp_path, module):
    """A Ctrl-C in the first second ended in a traceback through numpy or numba.

    `sitecustomize` interrupts exactly when a module is looked for.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'numpy':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    done = shell('"$@"', module, "--help", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (done.stderr, done.returncode) == ("symgraph: interrupted\n", 130)


def test_an_import_of_ours_leaves_the_hooks_of_other_programs_alone():
    code = "import sys; import runtime; print(sys.excepthook is sys.__excepthook__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
