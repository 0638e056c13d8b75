"""Checkpoints across transports: begun under mpiexec, ended by threads, the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from symgraph.run import main
from tests.mpi.launch import LIMIT, MPIEXEC, ROOT, environment, launch, needs_mpi
from tests.runtime.training.test_checkpoint import checkpointed

pytestmark = needs_mpi


def test_a_run_begun_with_mpi_goes_on_with_threads(tmp_path, capsys):
    path = checkpointed(tmp_path)
    ended = launch(2, "symgraph.run", path, "train.steps=7")
    assert ended.status == 0, str(ended)
    assert [p.name for p in sorted((tmp_path / "saved" / "step-00000007").iterdir())] == [
        "checkpoint.json",
        "rank-0.safetensors",
        "rank-1.safetensors",
    ]
    losses = []
    for folder in ("saved", "other"):
        assert main([str(path), f"checkpoint.directory={tmp_path / folder}", "--json"]) == 0
        losses.append(json.loads(capsys.readouterr().out.splitlines()[-1])["loss"])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_mpiexec_ends_all_ranks_after_a_checkpoint(tmp_path, signum):
    """All ranks end after the same step, with one line: what was left was an empty folder."""
    path, log = checkpointed(tmp_path), tmp_path / "log"
    words = [path, "train.steps=1000000", "checkpoint.every=3", "--log", log]
    started = subprocess.Popen(
        [MPIEXEC, "-n", "2", sys.executable, "-m", "symgraph.run", *words],
        cwd=ROOT,
        env=environment(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + LIMIT
    while time.monotonic() < end and not (log.exists() and log.read_text().count("\n") > 3):
        time.sleep(0.05)
    started.send_signal(signum)
    _, said = started.communicate(timeout=LIMIT)
    assert started.returncode == 143, said
    (line,) = [line for line in said.splitlines() if line.startswith("symgraph: ")]
    newest = max((tmp_path / "saved").glob("step-*"))
    assert line.startswith(f"symgraph: stopped by {signum.name} after step ")
    assert line.endswith(f"; checkpoint {newest}")
