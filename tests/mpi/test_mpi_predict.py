"""Predictions over MPI: the bits of one device, written by rank 0."""

from __future__ import annotations

import numpy as np
import yaml

from tests.helpers import forward_nets
from tests.mpi.launch import launch, needs_mpi
from tests.system.test_cli import figures

pytestmark = needs_mpi


def test_ranks_write_what_one_device_writes(tmp_path):
    """Outputs are on the last rank, in two steps of streams and a part of a batch."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "in.npz", data=rng.standard_normal((69, 6)).astype("float32"))
    sections = {
        "model": f"{forward_nets.__name__}:mlp",
        "data": {"kind": "arrays", "path": str(tmp_path / "in.npz"), "batch_size": 8},
        "group2ctx": {"a": "cpu(0)", "b": "cpu(1)"},
        "pipeline": {"micro_batches": 3},
    }
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(sections), encoding="utf-8")
    ended = launch(2, "symgraph.run", config, "--predict", tmp_path / "mpi.npz")
    assert ended.status == 0, ended
    assert ended.stdout.count("fc2_output  float32[69, 3]") == 1
    figures(str(config), "--predict", str(tmp_path / "one.npz"), "devices=[cpu(0)]")
    with np.load(tmp_path / "mpi.npz") as many, np.load(tmp_path / "one.npz") as one:
        np.testing.assert_array_equal(many["fc2_output"], one["fc2_output"])
