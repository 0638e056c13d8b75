"""Symbol files of MXNet: of its model zoo, as 1.9.1 wrote them, and of the layout of MXNet 0.8.

data/ is made by `python -m benchmarks.parity.write_symbols`, run with a Python that has MXNet.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from symgraph.core.errors import GraphError
from symgraph.frontend import sym

DATA = Path(__file__).parents[1] / "data"
FILES = sorted(path.name.removesuffix("-symbol.json") for path in DATA.glob("*-symbol.json"))


def by_name(names, shapes):
    return [(name, list(shape)) for name, shape in zip(names, shapes, strict=True)]


@pytest.mark.parametrize("name", FILES)
def test_files_of_the_model_zoo(name):
    """VGG, ResNet, Inception-BN, LSTM and GRU: names and shapes are those that MXNet finds."""
    net = sym.load(str(DATA / f"{name}-symbol.json"))
    want = json.loads((DATA / f"{name}-inferred.json").read_text())
    given = {n: s for n, s in want["arguments"].items() if n in ("data", "softmax_label")}
    arguments, outputs, states = net.infer_shape(**given)
    assert by_name(net.list_arguments(), arguments) == list(want["arguments"].items())
    assert by_name(net.list_outputs(), outputs) == list(want["outputs"].items())
    assert by_name(net.list_auxiliary_states(), states) == list(want["states"].items())
    assert {d.name for d in net.infer_type()[0]} == {"float32"}


def test_all_files_are_there():
    assert FILES == [
        "gru",
        "inception_bn",
        "resnet18_v1",
        "resnet18_v2",
        "stacked_lstm",
        "vgg11_bn",
    ]


@pytest.mark.parametrize("name", FILES)
def test_loaded_files_are_saved_and_loaded_again(name, tmp_path):
    net = sym.load(str(DATA / f"{name}-symbol.json"))
    net.save(str(tmp_path / "again.json"))
    again = sym.load(str(tmp_path / "again.json"))
    assert again.tojson() == net.tojson()
    assert again.attr_dict() == net.attr_dict()


# -- MXNet 0.8 ---------------------------------------------------------------------------------


def old(op, name, inputs=(), attr=None, **param):
    """A node as MXNet 0.8 wrote it."""
    row = {
        "op": op,
        "param": param,
        "name": name,
        "inputs": [[i, 0] for i in inputs],
        "backward_source_id": -1,
    }
    return {**row, "attr": attr} if attr else row


STAGE = {"ctx_group": "stage1"}
FC1 = {**STAGE, "wd_mult": "0.3", "weight_lr_mult": "1.2"}
OLD_FILE = {
    "nodes": [
        old("null", "data", attr={**STAGE, "lr_mult": "0.2"}),
        old("null", "fc1_weight", attr=FC1),
        old("null", "fc1_bias", attr=FC1),
        old("FullyConnected", "fc1", [0, 1, 2], FC1, no_bias="False", num_hidden="8"),
        old("null", "bn_gamma", attr=STAGE),
        old("null", "bn_beta", attr=STAGE),
        old(
            "BatchNorm",
            "bn",
            [3, 4, 5],
            STAGE,
            eps="0.001",
            fix_gamma="True",
            momentum="0.9",
            use_global_stats="False",
        ),
        old("Reshape", "rows", [6], STAGE, target_shape="(0,2)"),
        old("null", "softmax_label"),
        old(
            "SoftmaxOutput",
            "softmax",
            [7, 8],
            grad_scale="1",
            ignore_label="-1",
            multi_output="False",
            normalization="null",
            out_grad="False",
            preserve_shape="False",
            use_ignore="False",
        ),
    ],
    "arg_nodes": [0, 1, 2, 4, 5, 8],
    "heads": [[9, 0]],
}


def test_a_file_of_mxnet_0_8_gets_its_auxiliary_states():
    net = sym.load_json(json.dumps(OLD_FILE))
    assert net.list_arguments() == [
        "data",
        "fc1_weight",
        "fc1_bias",
        "bn_gamma",
        "bn_beta",
        "softmax_label",
    ]
    assert net.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    assert net.infer_shape(data=(5, 3))[1] == [(20, 2)]
    attrs = net.attr_dict()
    assert attrs["bn_moving_mean"]["__ctx_group__"] == "stage1"


def test_attributes_that_mxnet_0_8_gave_to_an_input_by_name():
    attrs = sym.load_json(json.dumps(OLD_FILE)).attr_dict()
    assert attrs["fc1_weight"]["__lr_mult__"] == "1.2"
    assert attrs["fc1_weight"]["__wd_mult__"] == "0.3"
    assert "__lr_mult__" not in attrs["fc1_bias"]
    assert "weight_lr_mult" not in attrs["fc1"]


@pytest.mark.parametrize(("version", "shape"), [(None, (1,)), (904, (1,)), (905, (2,))])
def test_an_axis_of_minus_one_of_argmax_was_all_axes_once(version, shape):
    """Before MXNet 0.9.5; it was read as the last axis."""
    rows = [old("null", "x"), old("argmax", "place", [0], axis="-1", keepdims="False")]
    layout = {"nodes": rows, "heads": [[1, 0]]}
    if version:
        layout["attrs"] = {"mxnet_version": ["int", version]}
    assert sym.load_json(json.dumps(layout)).infer_shape(x=(2, 3))[1] == [shape]


# -- what is not supported ---------------------------------------------------------------------


def loaded(op, **attrs):
    rows = [
        {"op": "null", "name": "x", "inputs": []},
        {"op": op, "name": "here", "attrs": attrs, "inputs": [[0, 0, 0]]},
    ]
    return sym.load_json(json.dumps({"nodes": rows, "heads": [[1, 0, 0]]}))


@pytest.mark.parametrize(
    ("op", "attrs", "message"),
    [
        (
            "ROIPoolingOld",
            {},
            "node 'here' is a 'ROIPoolingOld', which is not supported; did you mean 'ROIPool",
        ),
        (
            "Pooling",
            {"kernel": "(2, 2)", "layout": "NHWC"},
            "Pooling 'here': layout='NHWC' is not a valid one of 'NCW', 'NCHW', 'NCDHW' or None",
        ),
        (
            "softmax",
            {"use_length": "True"},
            "softmax 'here': use_length='True' is not a valid value: only False is supported",
        ),
        (
            "Pooling",
            {"kernal": "(2, 2)"},
            "Pooling 'here': no parameter 'kernal'; did you mean 'kern",
        ),
        ("_zeros", {"shape": "(2,)"}, "_zeros 'here' takes 0 inputs, but 1 are given"),
    ],
)
def test_errors_name_the_operator_and_the_node(op, attrs, message):
    with pytest.raises(GraphError, match=message.replace("(", r"\(")):
        loaded(op, **attrs)


def test_what_changes_nothing_is_accepted():
    net = loaded(
        "Convolution",
        kernel="(1, 1)",
        num_filter="4",
        no_bias="True",
        workspace="1024",
        cudnn_tune="fastest",
        cudnn_off="True",
        __profiler_scope__="a",
    )
    assert net.infer_shape(x=(1, 2, 3, 3))[1] == [(1, 4, 3, 3)]
    assert loaded("_plus_scalar", scalar="1", is_int="False").infer_shape(x=(2,))[1] == [(2,)]
    assert loaded("dot", forward_stype="default").list_arguments() == ["x", "here_rhs"]
    assert sym.zeros((2,), ctx="cpu(0)").infer_shape()[1] == [(2,)]
