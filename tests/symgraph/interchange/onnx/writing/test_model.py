"""export_model: its arguments, which are MXNet's, and the files that it writes."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import symgraph as sg
from symgraph import sym
from symgraph.core.errors import ConfigError, GraphError
from symgraph.interchange.onnx.writing import model as writing
from tests.helpers.onnx_runtime import (
    assert_equal,
    check_export,
    checked_model,
    drawn,
    onnx,
    reference,
    run_model,
)


def network() -> sg.Symbol:
    x = sym.Convolution(sym.Variable("data"), kernel=(3, 3), num_filter=4, name="conv")
    x = sym.BatchNorm(x, name="norm")
    x = sym.Pooling(sym.Activation(x, act_type="relu"), global_pool=True, pool_type="avg")
    x = sym.FullyConnected(x, num_hidden=3, name="fc")
    return sym.SoftmaxOutput(x, name="softmax")


DATA = {"data": np.random.default_rng(1).standard_normal((2, 3, 6, 6)).astype("float32")}
BATCH = {**DATA, "softmax_label": np.zeros(2, "float32")}


def dims(value) -> list[int | str]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def names(values) -> list[str]:
    return [value.name for value in values]


def test_a_model_has_the_networks_names_and_states_its_opset(tmp_path):
    model = check_export(network(), BATCH, tmp_path)
    assert names(model.graph.input) == ["data"]  # a label of a loss is none
    assert names(model.graph.output) == ["softmax"]
    assert {"conv", "norm", "fc", "softmax"} <= set(names(model.graph.node))
    weights = ["conv_weight", "conv_bias", "norm_beta", "norm_moving_mean", "norm_moving_var"]
    assert names(model.graph.initializer) == [*weights, "fc_weight", "fc_bias"]
    assert (model.producer_name, model.ir_version) == ("symgraph", writing.IR_VERSION)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", writing.OPSET)]
    assert dims(model.graph.input[0]) == [2, 3, 6, 6]


def test_mxnets_order_of_arguments_and_forms_of_parameters(tmp_path):
    net, params = network(), drawn(network(), BATCH)
    states = {n: params.pop(n) for n in net.list_auxiliary_states()}
    prefix = str(tmp_path / "net")
    sg.model.save_checkpoint(prefix, 3, net, params, states)
    files = (f"{prefix}-symbol.json", f"{prefix}-0003.params")
    prefixed = {f"arg:{n}": a for n, a in params.items()} | {
        f"aux:{n}": a for n, a in states.items()
    }
    written = []
    for i, (symbol, tables) in enumerate(
        [(net, [params, states]), (net, {**params, **states}), (net, prefixed), files]
    ):
        file = tmp_path / f"{i}.onnx"
        sg.onnx.export_model(symbol, tables, [(2, 3, 6, 6)], np.float32, str(file))
        written.append(file.read_bytes())
    assert len(set(written)) == 1
    file = str(tmp_path / "older.onnx")
    shapes = [(2, 3, 6, 6), (2,)]  # with the label
    sg.onnx.export_model(
        net, [params, states], onnx_file_path=file, input_type=[np.float32] * 2, input_shape=shapes
    )
    assert (tmp_path / "older.onnx").read_bytes() == written[0]


def test_the_batch_is_a_named_length(tmp_path):
    model = check_export(network(), BATCH, tmp_path, dynamic=True)
    assert dims(model.graph.input[0]) == ["batch", 3, 6, 6]
    assert dims(model.graph.output[0]) == ["batch", 3]


def test_a_length_is_left_open_by_0_none_a_name_or_a_layout(tmp_path):
    net = sym.FullyConnected(sym.Variable("x"), num_hidden=2, flatten=False, name="fc")
    params = {"fc_weight": np.ones((2, 4)), "fc_bias": np.ones(2)}
    file = str(tmp_path / "x.onnx")

    def shape(in_shapes, **options) -> list[int | str]:
        sg.onnx.export_model(net, params, in_shapes, "float64", file, **options)
        return dims(checked_model(file).graph.input[0])

    assert shape([(0, 3, 4)]) == shape([(None, 3, 4)]) == ["batch", 3, 4]
    assert shape([("n", "steps", 4)]) == ["n", "steps", 4]
    assert shape([(2, 3, 4)], dynamic=True, dynamic_input_shapes=[(2, None, 4)]) == [2, "x_1", 4]
    turned = sym.Variable("x", shape=(3, 0, 4), __layout__="TNC")
    net = sym.FullyConnected(turned, num_hidden=2, flatten=False, name="fc")
    assert shape(None) == shape([(3, 5, 4)], dynamic=True) == [3, "batch", 4]


def test_a_shape_with_two_open_lengths(tmp_path):
    """Of a reshaped value only one length may be -1; the others are read from the inputs."""
    x = sym.Variable("x")
    net = sym.Group([sym.Reshape(x, shape=(-3, 2, -1)), sym.zeros_like(sym.SwapAxis(x, dim2=1))])
    file = str(tmp_path / "x.onnx")
    sg.onnx.export_model(net, {}, [("b", "t", 6)], onnx_file_path=file)
    for shape in ((2, 3, 6), (5, 4, 6)):
        value = {"x": np.random.default_rng(0).standard_normal(shape).astype("float32")}
        assert_equal(run_model(file, value), reference(net, value))


def test_a_batch_that_stands_in_the_network_cannot_be_left_open(tmp_path):
    net = sym.Reshape(sym.Variable("x"), shape=(2, 12), name="rows")
    with pytest.raises(GraphError, match=r"the length 'batch' cannot be left open.*'rows'"):
        sg.onnx.export_model(net, {}, [(2, 3, 4)], onnx_file_path="x", dynamic=True)


def test_an_output_may_be_an_input_a_parameter_or_there_twice(tmp_path):
    x, w = sym.Variable("x"), sym.Variable("w")
    net = sym.Group([x, sym.identity(x, name="same"), w, sym.identity(w), x])
    check_export(net, {"x": np.ones((2, 3), "float32")}, tmp_path, {"w": np.ones(4, "float32")})
    twice = sym.tanh(x, name="tanh")
    model = check_export(sym.Group([twice, twice]), {"x": np.ones(3, "float32")}, tmp_path)
    assert names(model.graph.output)[0] == "tanh"


def test_operators_of_one_name(tmp_path):
    x = sym.tanh(sym.tanh(sym.Variable("x"), name="t"), name="t")
    model = check_export(x, {"x": np.ones(3, "float32")}, tmp_path)
    assert names(model.graph.node) == ["t", "t_1"]


def test_all_operators_that_cannot_be_exported_are_listed(tmp_path):
    x = sym.Variable("x")
    a = sym._sum_neighbours(x, nsize=3, name="first")
    b = sym._sum_neighbours(sym.tanh(a), nsize=3, name="second")
    unread = sym._sum_neighbours(x, nsize=3, name="unread")
    net = sym.Group([b, sym.zeros_like(sym.Concat(a, b))])
    with pytest.raises(GraphError) as raised:
        sg.onnx.export_model(net, {}, [(2, 3)], onnx_file_path=str(tmp_path / "x.onnx"))
    lines = str(raised.value).splitlines()
    assert lines[0] == "2 nodes cannot be exported to ONNX:"
    assert ["'first'" in lines[1], "'second'" in lines[2]] == [True, True]
    assert not (tmp_path / "x.onnx").exists()
    losses = sym.SoftmaxOutput(x, sym.argmax(unread, axis=1))  # a label is not read
    sg.onnx.export_model(losses, {}, [(2, 3)], onnx_file_path=str(tmp_path / "x.onnx"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_shapes": [(1,), (2,), (3,)]}, "in_shapes has 3 entries.*'data', 'softmax_label'"),
        ({"in_shapes": {"date": (1,)}}, "no input 'date'; did you mean 'data'"),
        ({"in_shapes": {"data": (2, "x", 1.5, 6)}}, "'data' has a length 1.5"),
        ({"in_shapes": [(2, 3, 6, 6)], "in_types": "float31"}, "in_types: no dtype 'float31'"),
        ({"in_shapes": [(2, 3, 6, 6), (4,)], "dynamic": True}, "'batch' is 4 in 'softmax_label'"),
        ({"in_shapes": [(2, 3)]}, "conv"),
        ({"in_shapes": None}, "cannot infer the shapes of data"),
        (
            {"in_shapes": [(2, 3, 6, 6)], "dynamic": True, "dynamic_input_shapes": [(None,)]},
            "'data' has 1 axes, but 4",
        ),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(options, message, tmp_path):
    with pytest.raises(GraphError, match=message):
        sg.onnx.export_model(
            network(), drawn(network(), BATCH), onnx_file_path=str(tmp_path / "x.onnx"), **options
        )


def test_large_weights_are_beside_the_file(tmp_path, monkeypatch):
    net, params = network(), drawn(network(), BATCH)
    params["fc_weight"] = np.tile(params["fc_weight"], 1)
    monkeypatch.setattr(writing, "IN_FILE", 16)
    model = check_export(net, BATCH, tmp_path, params, large_model=True)
    beside = tmp_path / "model.onnx.data"
    assert beside.stat().st_size > writing.ALIGNED
    raw = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    places = {t.name: {e.key: e.value for e in t.external_data} for t in raw.graph.initializer}
    assert places["conv_weight"]["location"] == "model.onnx.data"
    assert places["fc_bias"] == {}
    assert all(int(p["offset"]) % writing.ALIGNED == 0 for p in places.values() if p)
    assert len(model.graph.initializer) == 7
    monkeypatch.setattr(writing, "LARGEST", 100)
    beside.unlink()
    check_export(net, BATCH, tmp_path, params)
    assert beside.exists()


def test_types_inside_and_a_log_if_asked(tmp_path, caplog):
    model = check_export(network(), BATCH, tmp_path, run_shape_inference=True)
    known = {value.name: dims(value) for value in model.graph.value_info}
    assert known["conv"] == [2, 4, 4, 4]
    with caplog.at_level(logging.INFO):
        check_export(network(), BATCH, tmp_path, verbose=True)
    assert "Conv data, conv_weight, conv_bias -> conv" in caplog.text


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write .*nowhere"):
        sg.onnx.export_model(
            sym.tanh(sym.Variable("x")), {}, [(2,)], onnx_file_path=str(tmp_path / "nowhere/x.onnx")
        )


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_float_types(dtype, tmp_path):
    x = sym.FullyConnected(sym.Variable("x"), num_hidden=3, name="fc")
    net = sym.Activation(x, act_type="tanh")
    inputs = {"x": np.ones((2, 4), dtype)}
    file = str(tmp_path / "x.onnx")
    params = drawn(net, inputs)
    assert {str(a.dtype) for a in params.values()} == {dtype}
    sg.onnx.export_model(net, params, [(2, 4)], dtype, file)
    (got,), (wanted,) = run_model(file, inputs), reference(net, {**inputs, **params})
    np.testing.assert_allclose(got, wanted, atol=2e-3 if dtype == "float16" else 1e-12)
    assert got.dtype == dtype
