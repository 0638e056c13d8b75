"""Definitions of MXNet's examples give here what MXNet 1.9.1 made of them (benchmarks/parity).

tests/data/mxnet.npz holds MXNet's records; `python -m benchmarks.parity --store` makes them anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import symgraph as sg
from benchmarks.parity.examples import Example, describe
from benchmarks.parity.networks import NETWORKS
from benchmarks.parity.record import Record, differences, pack, unpack
from benchmarks.parity.with_symgraph import record

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests" / "data" / "mxnet.npz"


def stored() -> dict[str, Record]:
    with np.load(STORED) as packed:
        return unpack(packed)


THEIRS = stored()


def test_every_network_has_a_record():
    assert list(THEIRS) == list(NETWORKS)
    assert STORED.stat().st_size < 200_000


@pytest.mark.every(4)
@pytest.mark.parametrize("name", NETWORKS)
def test_names_shapes_outputs_and_gradients_are_mxnets(name):
    network = NETWORKS[name]
    ours = record(network)
    assert differences(ours, THEIRS[name]) == []
    assert any(key.startswith("grad ") for key in THEIRS[name].arrays)
    assert set(ours.arrays) == set(THEIRS[name].arrays)


@pytest.mark.parametrize("name", ["stacked_lstm", "gru", "inception_bn"])
def test_symbol_files_that_mxnet_wrote_compute_the_same(name):
    """Their begin states are zeros of shape (0, n), and their gates nodes of their own."""
    path = ROOT / "tests" / "symgraph" / "data" / f"{name}-symbol.json"
    network = NETWORKS[name]._replace(build=lambda mx: mx.sym.load(str(path)))
    assert differences(record(network), THEIRS[name]) == []


def test_differences_are_seen():
    theirs = THEIRS["mlp"]
    assert differences(unpack(pack({"mlp": theirs}))["mlp"], theirs) == []
    weight = theirs.arrays["grad fc1_weight"]
    other = weight.copy()
    other[0, 0] += 2e-5 * abs(weight).max()
    changed = theirs._replace(
        outputs={"softmax_out": [3, 10]}, arrays={**theirs.arrays, "grad fc1_weight": other}
    )
    del changed.arrays["grad fc3_bias"]
    outputs, fc1, fc3 = differences(changed, theirs)
    assert outputs.startswith("outputs differ: ('softmax_out', [3, 10]) here, ('softmax_output',")
    assert fc1.startswith("grad fc1_weight: differs by 2e-05 of its largest")
    assert fc3 == "grad fc3_bias: None, not (10,)"


DEFINITION = """
import mxnet as mx

def get_symbol(num_classes):
    data = mx.sym.Variable("data")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=num_classes), name="out")
"""


def test_example_files_are_run_as_they_are(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(DEFINITION)
    monkeypatch.setitem(sys.modules, "mxnet", sg)
    example = Example("net.py", "get_symbol", {"num_classes": 3}, {"data": (2, 4)})
    assert describe(sg, tmp_path, example) == {
        "arguments": [
            ("data", [2, 4]),
            ("fullyconnected0_weight", [3, 4]),
            ("fullyconnected0_bias", [3]),
            ("out_label", [2]),
        ],
        "outputs": [("out_output", [2, 3])],
        "states": [],
    }
    wrong = describe(sg, tmp_path, example._replace(shapes={"dat": (2, 4)}))
    assert wrong["error"].startswith("GraphError: keyword argument name 'dat' not found")


@pytest.mark.slow
def test_the_command_compares(tmp_path):
    """With a Python that plays MXNet by handing out the stored records."""
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\ncp {STORED} "$3"\n')
    fake.chmod(0o755)
    command = [sys.executable, "-m", "benchmarks.parity", "--mxnet", str(fake)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(NETWORKS)
    assert all(line.endswith(": equal") for line in done.stdout.splitlines())
    done = subprocess.run([*command, "mlpp"], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no network 'mlpp'; known: mlp, lenet," in done.stderr
