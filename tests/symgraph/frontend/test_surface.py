"""The package's public surface, and what importing it costs."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

import symgraph as sg

ROOT = Path(__file__).parents[3]
HEAVY = ("numba", "pydantic", "rich", "scipy", "networkx", "yaml", "partitioner", "runtime")


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


def test_the_version_is_that_of_the_distribution():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["metadata"]["version"] in (sg.__version__, "attr: symgraph.__version__")
