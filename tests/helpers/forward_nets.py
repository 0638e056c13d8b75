"""Networks without a loss, and one with, for configs of tests: `tests.helpers.forward_nets:mlp`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import symgraph as sg
from symgraph import Feed, Model, TensorType


def scores(x: sg.Symbol) -> sg.Symbol:
    """Two layers in two groups: (B, 6) to (B, 3)."""
    with sg.AttrScope(ctx_group="a"):
        x = sg.sym.FullyConnected(x, num_hidden=8, name="fc1")
        x = sg.sym.Activation(x, act_type="tanh", name="act")
    with sg.AttrScope(ctx_group="b"):
        return sg.sym.FullyConnected(x, num_hidden=3, name="fc2")


def mlp(batch_size: int) -> Model:
    """Scores of three classes."""
    out = scores(sg.sym.Variable("data"))
    return Model(out, {"data": Feed(TensorType((batch_size, 6), "float32"))})


def trained(batch_size: int) -> Model:
    """The same parameters with a loss."""
    out = sg.sym.SoftmaxOutput(scores(sg.sym.Variable("data")), sg.sym.Variable("label"), name="p")
    feeds = {
        "data": Feed(TensorType((batch_size, 6), "float32")),
        "label": Feed(TensorType((batch_size,), "float32")),
    }
    return Model(out, feeds)


def images(batch_size: int) -> Model:
    """A small convolution network that ends in a softmax."""
    with sg.AttrScope(ctx_group="a"):
        x = sg.sym.Convolution(sg.sym.Variable("data"), kernel=(3, 3), num_filter=4, name="conv")
        x = sg.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    with sg.AttrScope(ctx_group="b"):
        x = sg.sym.softmax(sg.sym.FullyConnected(x, num_hidden=5, name="fc"), name="p")
    return Model(x, {"data": Feed(TensorType((batch_size, 1, 8, 8), "float32"))})


def sequences(batch_size: int, steps: int = 4) -> Model:
    """LSTMs over (T, B, 3), with all time steps, also with time and batch on one axis."""
    x = sg.sym.Variable("data")
    for layer, group in enumerate("ab"):
        with sg.AttrScope(ctx_group=group):
            cell = sg.rnn.LSTMCell(5, prefix=f"l{layer}_")
            x, _ = cell.unroll(steps, inputs=x, layout="TNC", merge_outputs=True)
    with sg.AttrScope(ctx_group="b"):
        flat = sg.sym.Reshape(x, shape=(-1, 5), name="flat")
        every = sg.sym.identity(x, name="every")
        total = sg.sym.sum(x, name="total")
    feeds = {"data": Feed(TensorType((steps, batch_size, 3), "float32"), 1)}
    return Model(sg.sym.Group([every, flat, total]), feeds)


def running(batch_size: int) -> Model:
    """The sum of each row of the batches so far, which is a state."""
    with sg.AttrScope(ctx_group="a"):
        rows = sg.sym.sum(sg.sym.Variable("data"), axis=1, keepdims=True)
    with sg.AttrScope(ctx_group="b"):
        state = sg.sym.identity(sg.sym.Variable("state") + rows, name="next")
        shown = sg.sym.identity(state, name="shown")
    feeds = {
        "data": Feed(TensorType((batch_size, 6), "float32")),
        "state": Feed(TensorType((batch_size, 1), "float32")),
    }
    return Model(sg.sym.Group([state, shown]), feeds, {"state": "next_output"})


def summed(batch_size: int) -> Model:
    """A network whose only output is a sum over the batch."""
    out = sg.sym.sum(scores(sg.sym.Variable("data")), name="total")
    return Model(out, {"data": Feed(TensorType((batch_size, 6), "float32"))})


def short_batches(batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    """Batches of 8, 3 and 8 rows."""
    rng = np.random.default_rng(1)
    for count in (batch_size, 3, batch_size):
        yield {"data": rng.standard_normal((count, 6)).astype("float32")}
