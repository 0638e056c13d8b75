"""Checkpoints across transports: begun under mpiexec, ended by threads, the same bits."""

from __future__ import annotations

import json

from symgraph.run import main
from tests.mpi.launch import launch, needs_mpi
from tests.runtime.test_checkpoint import CONFIG

pytestmark = needs_mpi


def test_a_run_begun_with_mpi_goes_on_with_threads(tmp_path, capsys):
    words = " ".join(f"w{(i * i) % 17}" for i in range(40))
    (tmp_path / "text.txt").write_text("\n".join([words] * 20), encoding="utf-8")
    path = tmp_path / "config.yaml"
    text = CONFIG.format(text=tmp_path / "text.txt", folder=tmp_path / "saved")
    path.write_text(text + "blas_threads: 1\n", encoding="utf-8")
    ended = launch(2, "symgraph.run", path, "train.steps=7")
    assert ended.status == 0, str(ended)
    assert [p.name for p in sorted((tmp_path / "saved" / "step-00000007").iterdir())] == [
        "checkpoint.json", "rank-0.safetensors", "rank-1.safetensors",
    ]  # fmt: skip
    losses = []
    for folder in ("saved", "other"):
        assert main([str(path), f"checkpoint.directory={tmp_path / folder}", "--json"]) == 0
        losses.append(json.loads(capsys.readouterr().out.splitlines()[-1])["loss"])
    assert losses[0] == losses[1]
