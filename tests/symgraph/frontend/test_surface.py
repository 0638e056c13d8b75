"""The package's public surface, and what importing it costs."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import symgraph as sg

ROOT = Path(__file__).parents[3]
HEAVY = ("numba", "pydantic", "rich", "scipy", "yaml", "partitioner", "runtime")


@pytest.mark.parametrize("command", ["import symgraph", "import symgraph.run"])
def test_importing_loads_numpy_and_little_else(command):
    code = f"{command}, sys; print(*sorted(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_all_names_are_there():
    for name in sg.__all__:
        assert getattr(sg, name) is not None


@pytest.mark.parametrize("name", sg.PUBLIC_MODULES)
def test_public_modules_are_imported_by_their_public_names(name):
    """`import symgraph.io`, in a new process, in which nothing else has loaded it."""
    module = importlib.import_module(f"symgraph.{name}")
    assert module is getattr(sg, name) is sg.PUBLIC_MODULES[name]
    assert name in sg.__all__


def test_public_names_are_imported_from_public_modules():
    code = """
import symgraph.io, symgraph.symbol, symgraph.operator, symgraph.rnn
from symgraph import sym
from symgraph.metric import Perplexity, EvalMetric
from symgraph.model import load_checkpoint
from symgraph.lr_scheduler import FactorScheduler
import symgraph as sg
assert symgraph.io.NDArrayIter is sg.io.NDArrayIter and symgraph.symbol is sym
assert sg.mod.Module is sg.module.Module
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["runtime", "partitioner"])
def test_a_file_that_hides_a_package_is_named(name, tmp_path):
    """The error was: No module named 'runtime.schedules'; 'runtime' is not a package."""
    file = tmp_path / f"{name}.py"
    file.write_text("")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "symgraph.run", "--keys"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"symgraph: error: {file} hides symgraph's package {name!r}: rename that file, or start "
        "from another folder"
    ]
    command = [sys.executable, "-c", "import symgraph as sg; sg.sym.Variable('x').simple_bind(x=1)"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert f"{file} hides symgraph's package" in done.stderr


def test_second_names():
    assert sg.symbol is sg.sym
    assert sg.initializer is sg.init
    assert isinstance(sg.symbol.Variable("x"), sg.Symbol)


def test_a_definition_for_mxnet_runs_after_its_import_line_is_changed():
    import symgraph as mx

    with mx.AttrScope(ctx_group="embed"), mx.name.Prefix("net_"):
        data = mx.symbol.Variable("data")
        embed = mx.sym.Embedding(data=data, input_dim=20, output_dim=4, name="embed")
    cell = mx.rnn.SequentialRNNCell()
    cell.add(mx.rnn.LSTMCell(num_hidden=6, prefix="lstm_l0_"))
    outputs, _ = cell.unroll(3, inputs=embed, merge_outputs=True)
    pred = mx.sym.Reshape(outputs, shape=(-1, 6))
    pred = mx.sym.FullyConnected(data=pred, num_hidden=20, name="pred")
    label = mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
    net = mx.sym.SoftmaxOutput(data=pred, label=label, name="softmax")
    assert net.list_arguments() == [
        "data",
        "net_embed_weight",
        "lstm_l0_i2h_weight",
        "lstm_l0_i2h_bias",
        "lstm_l0_h2h_weight",
        "lstm_l0_h2h_bias",
        "pred_weight",
        "pred_bias",
        "softmax_label",
    ]
    assert net.infer_shape(data=(5, 3), softmax_label=(5, 3))[1] == [(15, 20)]
    assert net.attr_dict()["net_embed_weight"]["__ctx_group__"] == "embed"
    initializer = mx.initializer.Xavier(factor_type="in", magnitude=2.34)
    assert initializer("pred_weight", (20, 6), "float32", seed=0).shape == (20, 6)
