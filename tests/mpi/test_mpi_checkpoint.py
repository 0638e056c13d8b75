"""Checkpoints across transports: begun under mpiexec, ended by threads, the same bits."""

from __future__ import annotations

import json

from symgraph.run import main
from tests.mpi.launch import launch, needs_mpi
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
