"""Damaged and hostile ONNX files: one clear line, no traceback, no hang, no large memory."""

from __future__ import annotations

import os
import sys
import tracemalloc

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import symgraph as sg
from benchmarks.onnx_damage import MODELS, damaged, message_of
from symgraph.core.errors import ConfigError, GraphError
from symgraph.interchange.onnx.converters import control
from tests.helpers.onnx_graphs import model, node, value


def message(proto):
    with pytest.raises((GraphError, ConfigError)) as error:
        sg.onnx.import_model(proto)
    text = str(error.value)
    assert "\n" not in text
    return text


def one(op, x=(2, 3), opset=17, outputs=("y",), attrs=None, **weights):
    nodes = [node(op, ["x", *weights], list(outputs), **(attrs or {}))]
    return model(nodes, {"x": x}, outputs[:1], opset, **weights)


# -- files -----------------------------------------------------------------------------------------


def test_files_that_are_no_models(tmp_path):
    path = tmp_path / "net.onnx"
    with pytest.raises(ConfigError, match="no such model file of ONNX"):
        sg.onnx.import_model(path)
    with pytest.raises(ConfigError, match="cannot read"):
        sg.onnx.import_model(tmp_path)
    for content in (b"", b"hello", os.urandom(4000), b"\x08\x07" * 500):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"net\.onnx: not a model file of ONNX"):
            sg.onnx.import_model(path)


def test_a_file_above_what_protobuf_holds(tmp_path):
    path = tmp_path / "net.onnx"
    with open(path, "wb") as file:
        file.truncate(5 << 30)  # a hole: it takes no room
    with pytest.raises(ConfigError, match="more than 2 GiB"):
        sg.onnx.import_model(path)


def external(path, location, length=None, shape=(2,)):
    tensor = TensorProto(name="w", dims=shape, data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location} | ({} if length is None else {"length": str(length)})
    for key, text in entries.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": ["N", 2]}, ["y"])
    proto.graph.initializer.append(tensor)
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_is_read_from_the_models_folder_only(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    numbers = np.array([3, 4], "float32")
    for place in (tmp_path / "secret", folder / "inside", folder / "short"):
        place.write_bytes(numbers.tobytes()[: 4 if place.name == "short" else 8])
    (folder / "link").symlink_to(tmp_path / "secret")
    path = folder / "net.onnx"
    _, args, _ = sg.onnx.import_model(external(path, "inside"))
    np.testing.assert_array_equal(args["w"], numbers)
    for location in ("../secret", str(tmp_path / "secret"), "link", "a/../../secret", ""):
        with pytest.raises(GraphError, match="outside the model's folder: not read"):
            sg.onnx.import_model(external(path, location))
    with pytest.raises(ConfigError, match="takes 8 bytes, but the file has 4"):
        sg.onnx.import_model(external(path, "short"))
    with pytest.raises(ConfigError, match="takes 4000000000000 bytes"):
        sg.onnx.import_model(external(path, "inside", shape=(10**6, 10**6)))
    with pytest.raises(ConfigError, match="no such file of tensors"):
        sg.onnx.import_model(external(path, "nowhere"))
    with pytest.raises(GraphError, match="read the model from its path"):
        sg.onnx.import_model(external(path, "inside").read_bytes())


# -- graphs ----------------------------------------------------------------------------------------


def test_graphs_that_are_no_graphs():
    circle = [node("Add", ["x", "b"], ["a"], name="first"), node("Relu", ["a"], ["b"])]
    assert "reads what follows from its own result" in message(model(circle, {"x": [2]}, ["b"]))
    itself = [node("Add", ["x", "a"], ["a"], name="first")]
    assert "node 'first' (Add) reads" in message(model(itself, {"x": [2]}, ["a"]))
    missing = [node("Relu", ["nothing"], ["y"])]
    assert "reads 'nothing', which no input" in message(model(missing, {"x": [2]}, ["y"]))
    twice = [node("Relu", ["x"], ["y"]), node("Tanh", ["x"], ["y"])]
    assert "two nodes make 'y'" in message(model(twice, {"x": [2]}, ["y"]))
    assert "reads 'z'" in message(model([node("Relu", ["x"], ["y"])], {"x": [2]}, ["z"]))


def test_functions_that_call_themselves():
    body = helper.make_function(
        "my", "F", ["a"], ["b"], [helper.make_node("F", ["a"], ["b"], domain="my")], []
    )
    proto = model([helper.make_node("F", ["x"], ["y"], domain="my")], {"x": [2]}, ["y"])
    proto.functions.append(body)
    assert "functions more than 50 deep" in message(proto)


def test_types_that_do_not_fit():
    proto = one("Relu")
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    assert "input 'x' holds string; symgraph has float16" in message(proto)
    proto.graph.input[0].type.tensor_type.elem_type = 77
    assert "type number 77" in message(proto)
    proto.graph.input[0].CopyFrom(
        helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2])
    )
    assert "is a sequence_type, not a tensor" in message(proto)
    assert "inputs have dtypes" in message(one("Add", w=np.zeros(3, "float64")))


def test_attributes_and_shapes_that_do_not_fit():
    assert "axis 9 is out of range" in message(one("Softmax", attrs={"axis": 9}))
    assert "perm=[0, 0]" in message(one("Transpose", attrs={"perm": [0, 0]}))
    assert "cannot reshape (2, 3) to [4, -1]" in message(one("Reshape", w=np.array([4, -1])))
    text = message(one("Conv", x=(1, 3, 8, 8), w=np.zeros((4, 5, 3, 3), "float32")))
    assert "node 'y' (Conv, opset 17)" in text
    assert "node 'y' (Transpose" in message(one("Transpose", attrs={"perm": "abc"}))


HUGE = 1 << 40
GREEDY = {
    "constant": [node("ConstantOfShape", ["big"], ["c"]), node("Add", ["c", "c"], ["y"])],
    "range": [node("Range", ["zero", "limit", "one"], ["y"])],
    "expand": [node("Expand", ["one", "big"], ["y"])],
    "tile": [node("Tile", ["row", "big"], ["y"])],
    "one_hot": [node("OneHot", ["row", "limit", "row2"], ["y"])],
    "pad": [node("Pad", ["row", "pads"], ["y"])],
    "eye": [node("EyeLike", ["wide"], ["y"])],
    "triangle": [node("Trilu", ["wide"], ["y"])],
    "reshape": [node("Reshape", ["x", "big"], ["y"])],
    "resize": [node("Resize", ["image", "", "", "sizes"], ["y"], mode="linear")],
    "parts": [node("Split", ["wide"], ["y"], axis=0)],
    "top": [node("TopK", ["wide", "limit"], ["y", "z"])],
}


@pytest.mark.parametrize("name", GREEDY)
def test_sizes_that_no_memory_holds(name):
    weights = {
        "big": np.array([HUGE, HUGE]),
        "zero": np.array(0),
        "one": np.array(1),
        "limit": np.array(HUGE),
        "row": np.arange(2)[None],
        "row2": np.array([0.0, 1.0], "float32"),
        "pads": np.array([0, 0, 0, HUGE]),
        "sizes": np.array([1, 1, HUGE, HUGE]),
    }
    inputs = {"x": [2], "wide": [HUGE, HUGE], "image": [1, 1, 4, 4]}
    proto = model(GREEDY[name], inputs, ["y"], 18, **weights)
    tracemalloc.start()
    try:
        text = message_of(proto.SerializeToString())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 << 20
    assert "\n" not in (text or "")


def test_many_small_constants_are_counted_together(monkeypatch):
    monkeypatch.setattr("symgraph.interchange.values.MOST_MADE", 1 << 20)
    nodes = [node("ConstantOfShape", ["big"], ["c0"])]
    nodes += [node("Exp", [f"c{i}"], [f"c{i + 1}"]) for i in range(100)]
    proto = model(
        [*nodes, node("Add", ["x", "c99"], ["y"])], {"x": [1]}, ["y"], big=np.array([1 << 14])
    )
    assert "take more than 1 MiB" in message(proto)


def test_loops_without_end(monkeypatch):
    monkeypatch.setattr(control, "MOST_ROUNDS", 100)
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Identity", ["v"], ["w"])],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("v", [2])],
        [value("on", [], TensorProto.BOOL), value("w", [2])],
    )
    loop = node("Loop", ["", "yes", "x"], ["y"], body=body)
    assert "takes more than 100 rounds" in message(
        model([loop], {"x": [2]}, ["y"], yes=np.array(True))
    )


def test_a_tensor_whose_size_is_not_its_elements():
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": [2]}, ["y"])
    tensor = numpy_helper.from_array(np.zeros(4, "float32"), "w")
    tensor.dims[0] = 1 << 50
    proto.graph.initializer.append(tensor)
    assert "'w' of shape (1125899906842624,)" in message(proto)
    proto.graph.initializer[0].dims[0] = -1
    assert "'w' has the shape (-1,)" in message(proto)


# -- random damage ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_random_damage(name):
    """Each of many damaged copies is read, or refused in one line."""
    content = MODELS[name]().SerializeToString()
    for seed in range(40):
        text = message_of(damaged(content, np.random.default_rng(seed)))
        assert text is None or ("\n" not in text and "Traceback" not in text), text


def test_the_package_onnx_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match="pip install 'symgraph\\[onnx\\]'"):
        sg.onnx.import_model(b"")
