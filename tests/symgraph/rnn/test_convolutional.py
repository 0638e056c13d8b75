"""Convolutional cells as MXNet's, cells of one's own, and sequences with lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symgraph as mx
from symgraph.core.errors import GraphError
from symgraph.frontend.name import NameManager
from tests.symgraph.running import run

DATA = Path(__file__).parents[1] / "data" / "mxnet_cells.npz"


@pytest.fixture(autouse=True)
def fresh_names():
    with NameManager():
        yield


@pytest.fixture(scope="module")
def mxnet() -> Any:
    """What MXNet 1.9.1 made of convolutional cells; see data/write_mxnet.py."""
    with np.load(DATA) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("kind", ["ConvRNNCell", "ConvLSTMCell", "ConvGRUCell"])
def test_convolutional_cells_are_mxnets(kind, mxnet):
    """Names, outputs, states and gradients."""
    settings = json.loads(str(mxnet["settings"]))[kind]
    cell = getattr(mx.rnn, kind)((2, 2, 4, 5), 3, prefix="c_", **settings)
    images = [mx.sym.Variable(f"in_t{t}_data") for t in range(2)]
    outputs, states = cell.unroll(2, images, merge_outputs=False)
    net = mx.sym.Group([*outputs, *states[1:]])
    arguments, names = json.loads(str(mxnet["names"]))[kind]
    assert (net.list_arguments(), net.list_outputs()) == (arguments, names)
    with net.simple_bind(mx.cpu(), **{f"in_t{t}_data": (2, 2, 4, 5) for t in range(2)}) as executor:
        for name, array in executor.arg_dict.items():
            array[:] = mxnet[f"{kind}/{name}"]
        made = executor.forward(is_train=True)
        executor.backward([np.ones(array.shape, "float32") for array in made])
        for number, array in enumerate(made):
            np.testing.assert_allclose(array, mxnet[f"{kind}/made/{number}"], 1e-5, 1e-6)
        for name, array in executor.grad_dict.items():
            np.testing.assert_allclose(array, mxnet[f"{kind}/grad/{name}"], 1e-4, 1e-5)


def test_gates_of_convolutions_are_packed():
    cell = mx.rnn.ConvLSTMCell((0, 2, 4, 4), 3)
    weights = {f"ConvLSTM_{k}_weight": np.arange(12 * 9.0).reshape(12, 9) for k in ("i2h", "h2h")}
    weights |= {f"ConvLSTM_{k}_bias": np.arange(12.0) for k in ("i2h", "h2h")}
    apart = cell.unpack_weights(weights)
    assert apart["ConvLSTM_h2h_o_bias"].tolist() == [9, 10, 11]
    again = cell.pack_weights(apart)
    assert {n: a.tolist() for n, a in again.items()} == {n: a.tolist() for n, a in weights.items()}
    with pytest.raises(GraphError, match=r"h2h_kernel is \(2, 3\), but both sizes must be odd"):
        mx.rnn.ConvRNNCell((0, 2, 4, 4), 3, h2h_kernel=(2, 3))


class Leaky(mx.rnn.BaseRNNCell):
    """As MXNet's users write cells."""

    def __init__(self, num_hidden, prefix="leaky_", params=None):
        super().__init__(prefix=prefix, params=params)
        self._num_hidden = num_hidden
        self._iW = self.params.get("i2h_weight")
        self._iB = self.params.get("i2h_bias")

    @property
    def state_info(self):
        return [{"shape": (0, self._num_hidden), "__layout__": "NC"}]

    @property
    def _gate_names(self):
        return ("",)

    def __call__(self, inputs, states):
        self._counter += 1
        name = f"{self._prefix}t{self._counter}_"
        i2h = mx.sym.FullyConnected(
            data=inputs,
            weight=self._iW,
            bias=self._iB,
            num_hidden=self._num_hidden,
            name=f"{name}i2h",
        )
        output = self._get_activation(i2h + 0.5 * states[0], "tanh", name=f"{name}out")
        return output, [output]


def test_a_cell_of_ones_own():
    """Stacked, unrolled from zeros; every node of it knows its time step."""
    stack = mx.rnn.SequentialRNNCell()
    stack.add(Leaky(3))
    stack.add(mx.rnn.ResidualCell(Leaky(3, "upper_")))
    outputs, _ = stack.unroll(2, mx.sym.Variable("data"), merge_outputs=True)
    assert "leaky_t1_out_output" in outputs.get_internals().list_outputs()
    steps = {name: tags.get("__time_step__") for name, tags in outputs.attr_dict().items()}
    assert (steps["leaky_t0_i2h"], steps["upper_t1_i2h"]) == ("0", "1")
    rng = np.random.default_rng(0)
    feeds = {"data": rng.standard_normal((4, 2, 3))}
    for prefix in ("leaky_", "upper_"):
        feeds[f"{prefix}i2h_weight"] = rng.standard_normal((3, 3))
        feeds[f"{prefix}i2h_bias"] = rng.standard_normal(3)
    (found,) = run(outputs, **feeds)
    x = feeds["data"]
    for prefix in ("leaky_", "upper_"):
        h, made = 0.0, []
        for t in range(2):
            total = x[:, t] @ feeds[f"{prefix}i2h_weight"].T + feeds[f"{prefix}i2h_bias"]
            h = np.tanh(total + 0.5 * h)
            made.append(h)
        x = np.stack(made, 1) + (x if prefix == "upper_" else 0)
    np.testing.assert_allclose(found, x)


def test_a_cell_without_a_step_says_so():
    class Empty(mx.rnn.BaseRNNCell):
        state_info = ()

    with pytest.raises(NotImplementedError, match="Empty has neither __call__ nor _step"):
        Empty().unroll(1)


def stacked() -> mx.rnn.SequentialRNNCell:
    stack = mx.rnn.SequentialRNNCell()
    stack.add(mx.rnn.BidirectionalCell(mx.rnn.LSTMCell(2, "l_"), mx.rnn.GRUCell(2, "r_")))
    stack.add(mx.rnn.ResidualCell(mx.rnn.RNNCell(4, prefix="top_")))
    return stack


@pytest.mark.parametrize(("layout", "merge"), [("NTC", True), ("TNC", False)])
def test_each_sample_is_as_long_as_its_length(layout, merge):
    """As if it were unrolled alone; outputs behind it are 0."""
    data, lengths = mx.sym.Variable("data"), mx.sym.Variable("lengths")
    outputs, states = stacked().unroll(
        4, data, layout=layout, merge_outputs=merge, valid_length=lengths
    )
    whole = mx.sym.Group([*([outputs] if merge else outputs), *states])
    rng = np.random.default_rng(1)
    values = rng.standard_normal((3, 4, 5))
    shape = {"data": values.shape if layout == "NTC" else (4, 3, 5), "lengths": (3,)}
    names = whole.list_arguments()
    shapes = dict(zip(names, whole.infer_shape(**shape)[0], strict=True))
    weights = {n: rng.standard_normal(shapes[n]) for n in names if n not in shape}
    feed = values if layout == "NTC" else values.swapaxes(0, 1)
    counts = [2, 4, 1]
    made = run(whole, data=feed, lengths=np.array(counts, float), **weights)
    ahead = made[: -len(states)]
    found = ahead[0] if merge else np.stack(ahead, axis=1)
    for sample, count in enumerate(counts):
        alone, ends = stacked().unroll(count, mx.sym.Variable("data"), merge_outputs=True)
        own = {"data": values[sample : sample + 1, :count], **weights}
        want, *last = run(mx.sym.Group([alone, *ends]), **own)
        np.testing.assert_allclose(found[sample, :count], want[0])
        assert not found[sample, count:].any()
        for state, end in zip(made[-len(states) :], last, strict=True):
            np.testing.assert_allclose(state[sample], end[0])
