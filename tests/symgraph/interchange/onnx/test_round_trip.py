"""Networks that are exported and read back: the same outputs, gradients, names and batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symgraph as sg
from symgraph import sym
from symgraph.frontend.symnode import walk
from tests.helpers.onnx_runtime import Arrays, drawn, dtypes

onnx = pytest.importorskip("onnx")
RNG = np.random.default_rng(0)
IMAGES = {"data": RNG.standard_normal((4, 3, 12, 12)).astype("float32")}
WORDS = {"data": RNG.integers(0, 20, (4, 6)).astype("int32")}
ROWS = {"data": RNG.standard_normal((4, 6, 8)).astype("float32")}


def convolutions() -> sg.Symbol:
    x = sym.Convolution(sym.Variable("data"), kernel=(3, 3), pad=(1, 1), num_filter=6, name="c1")
    x = sym.BatchNorm(x, fix_gamma=False, eps=1e-4, name="n1")
    x = sym.LeakyReLU(x, act_type="leaky", slope=0.1, name="r1")
    y = sym.Convolution(x, kernel=(1, 1), num_group=2, num_filter=6, no_bias=True, name="c2")
    x = sym.Pooling(x + y, kernel=(2, 2), stride=(2, 2), pool_type="max", name="p1")
    x = sym.Deconvolution(x, kernel=(2, 2), stride=(2, 2), num_filter=4, name="d1")
    x = sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1), name="p2")
    return sym.FullyConnected(sym.Flatten(x), num_hidden=5, name="fc")


def attention() -> sg.Symbol:
    x = sym.Embedding(sym.Variable("data"), input_dim=20, output_dim=8, name="words")
    x = sym.LayerNorm(sym.Dropout(x, p=0.0), name="norm")
    q, k, v = (sym.FullyConnected(x, num_hidden=8, flatten=False, name=n) for n in "qkv")
    weights = sym.softmax(sym.batch_dot(q, k, transpose_b=True) * 8**-0.5, axis=-1)
    x = x + sym.batch_dot(weights, v, name="found")
    x = sym.LeakyReLU(sym.FullyConnected(x, num_hidden=12, flatten=False), act_type="gelu")
    return sym.mean(sym.Reshape(x, shape=(0, -1)), axis=1, keepdims=True, name="out")


def cells(cell: Any) -> sg.Symbol:
    outputs, states = cell.unroll(6, sym.Variable("data"), layout="NTC", merge_outputs=True)
    return sym.Group([outputs, *states])


def shapes() -> sg.Symbol:
    x = sym.transpose(sym.Variable("data"), axes=(0, 2, 1))
    first, second = sym.SliceChannel(x, num_outputs=2, axis=1, name="halves")
    x = sym.Concat(sym.tanh(first), sym.clip(second, a_min=-0.5, a_max=0.5), dim=2)
    x = sym.broadcast_mul(x, sym.Variable("scale", shape=(1, 4, 1)))
    x = sym.slice_axis(
        sym.Pad(sym.expand_dims(x, axis=1), mode="edge", pad_width=(0,) * 7 + (2,)),
        axis=3,
        begin=1,
        end=9,
    )
    x = sym.maximum(sym.square(x), 0.1) / (sym.exp(x) + 1)
    return sym.sum(sym.where(x > 0.2, x, -x), axis=(1, 2), name="out")


CASES = {
    "convolutions": (convolutions, IMAGES),
    "attention": (attention, WORDS),
    "LSTM cells": (lambda: cells(sg.rnn.LSTMCell(5, prefix="lstm_")), ROWS),
    "GRU cells": (lambda: cells(sg.rnn.GRUCell(5, prefix="gru_")), ROWS),
    "shapes": (shapes, ROWS),
}


def results(net: sg.Symbol, inputs: Arrays, params: Arrays) -> tuple[list[Any], dict[str, Any]]:
    """Outputs of evaluation and of training, and the gradients of the parameters."""
    arrays = {n: {**inputs, **params}[n].copy() for n in net.list_arguments()}
    states = {n: params[n].copy() for n in net.list_auxiliary_states()}
    grads = {n: np.zeros_like(a) for n, a in arrays.items() if n in params}
    with net.bind(sg.cpu(0), arrays, grads, aux_states=states) as executor:
        outputs = [o.copy() for o in executor.forward(is_train=False)]
        outputs += [o.copy() for o in executor.forward(is_train=True)]
        rng = np.random.default_rng(2)
        executor.backward([rng.standard_normal(o.shape).astype(o.dtype) for o in executor.outputs])
        return outputs, {n: g.copy() for n, g in grads.items()}


def imported(net: sg.Symbol, inputs: Arrays, params: Arrays, file: str) -> tuple[Any, ...]:
    shapes = {name: array.shape for name, array in inputs.items()}
    sg.onnx.export_model(net, params, shapes, dtypes(inputs), file, dynamic=True)
    return sg.onnx.import_model(file)


@pytest.mark.parametrize(
    "case", [c if c == "attention" else pytest.param(c, marks=pytest.mark.slow) for c in CASES]
)
def test_what_is_read_back_computes_the_same_and_learns_the_same(case, tmp_path):
    make, inputs = CASES[case]
    net = make()
    params = drawn(net, inputs)
    again, args, aux = imported(net, inputs, params, str(tmp_path / "x.onnx"))
    for name, array in params.items():
        np.testing.assert_array_equal({**args, **aux}[name], array)
    assert aux.keys() == set(net.list_auxiliary_states())
    wanted, slopes = results(net, inputs, params)
    got, found = results(again, inputs, {**args, **aux})
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    for name in slopes.keys() - aux.keys():
        np.testing.assert_allclose(found[name], slopes[name], rtol=2e-5, atol=1e-5)


def test_layers_are_read_back_as_they_were(tmp_path):
    net = convolutions()
    again, _, _ = imported(net, IMAGES, drawn(net, IMAGES), str(tmp_path / "x.onnx"))
    assert [n.op.name for n in walk(again.entries) if n.op] == [
        n.op.name if n.op.name != "Flatten" else "Reshape" for n in walk(net.entries) if n.op
    ]
    named = {
        n.name for n in walk(net.entries) if n.op and n.name[0] in "cndpf" and n.name[1:] < "9"
    }
    assert named <= {n.name for n in walk(again.entries)}
    assert again.attr_dict()["data"]["__shape__"] == "(0, 3, 12, 12)"


def test_an_imported_network_is_exported_again(tmp_path):
    first, second = str(tmp_path / "1.onnx"), str(tmp_path / "2.onnx")
    net = convolutions()
    again, args, aux = imported(net, IMAGES, drawn(net, IMAGES), first)
    sg.onnx.export_model(again, [args, aux], onnx_file_path=second)  # shapes are the variables'
    ops = [[node.op_type for node in onnx.load(f).graph.node] for f in (first, second)]
    assert [o for o in ops[1] if o != "Constant"] == [
        "Reshape" if o == "Flatten" else o for o in ops[0] if o != "Constant"
    ]
    dims = onnx.load(second).graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == ["batch", 3, 12, 12]
