"""import_model: the batch, shapes that are computed, constants and weights, functions, training."""

from __future__ import annotations

import glob
import os

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import symgraph as sg
from benchmarks.parity.onnx_nodes import halved, on_devices
from symgraph.core.errors import GraphError
from symgraph.core.reference import evaluate
from symgraph.frontend.lower import lower
from tests.helpers.onnx_graphs import FLOAT, INT, model, node, value

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype("float32")


def run(imported, **feeds):
    """The outputs of an imported network on the reference interpreter."""
    net, args, aux = imported
    graph = lower(net, {name: a.shape for name, a in feeds.items()})
    return evaluate(graph, {**args, **aux, **feeds})


def expected(proto, **feeds):
    return ReferenceEvaluator(proto).run(None, feeds)


def check(proto, *sizes, **shapes):
    """The network, bound to several batch sizes, computes what ONNX's reference does."""
    imported = sg.onnx.import_model(proto)
    for size in sizes:
        feeds = {n: floats(*[size if d is None else d for d in s]) for n, s in shapes.items()}
        for got, wanted in zip(run(imported, **feeds), expected(proto, **feeds), strict=True):
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)
    return imported


def mlp(batch="N"):
    return model(
        [
            node("Gemm", ["x", "w1", "b1"], ["h"], transB=1),
            node("Relu", ["h"], ["r"]),
            node("MatMul", ["r", "w2"], ["m"]),
            node("Add", ["m", "b2"], ["y"]),
        ],
        {"x": [batch, 6]},
        ["y"],
        w1=floats(8, 6),
        b1=floats(8),
        w2=floats(8, 3),
        b2=floats(3),
    )


# -- the batch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", ["N", "batch_size", None, -1])
def test_an_open_dimension_is_the_batch(batch):
    proto = mlp("N")
    dim = proto.graph.input[0].type.tensor_type.shape.dim[0]
    dim.Clear()
    if isinstance(batch, str):
        dim.dim_param = batch
    elif batch is not None:
        dim.dim_value = batch
    net, args, aux = check(proto, 1, 4, x=(None, 6))
    assert net.list_inputs()[0] == "x"
    assert sorted(args) == ["b1", "b2", "w1", "w2"]
    assert aux == {}
    attrs = net.attr_dict()["x"]
    assert attrs["__shape__"] == "(0, 6)"
    assert attrs["__layout__"] == "NC"


def test_the_batch_of_sequences_may_lie_behind_time():
    proto = model([node("Tanh", ["x"], ["y"])], {"x": [5, "batch", 3]}, ["y"])
    net, _, _ = sg.onnx.import_model(proto)
    assert net.attr_dict()["x"]["__layout__"] == "TNC"


def test_a_fixed_batch_stays_unless_the_axis_is_named():
    flat = [node("Reshape", ["x", "shape"], ["f"]), node("MatMul", ["f", "w"], ["y"])]
    proto = model(flat, {"x": [1, 2, 3]}, ["y"], shape=np.array([1, 6]), w=floats(6, 4))
    check(proto, 1, x=(1, 2, 3))
    imported = sg.onnx.import_model(proto, batch_axis=0)
    x = floats(7, 2, 3)
    weight = numpy_helper.to_array(proto.graph.initializer[1])
    np.testing.assert_allclose(run(imported, x=x)[0], x.reshape(7, 6) @ weight, rtol=1e-5)


def test_other_open_dimensions_are_given():
    proto = helper.make_model(
        helper.make_graph(
            [
                node("Gather", ["w", "ids"], ["e"]),
                node("ReduceMean", ["e"], ["y"], axes=[1], keepdims=0),
            ],
            "graph",
            [value("ids", ["batch", "seq"], INT)],
            [value("y", ["batch", 4])],
            [numpy_helper.from_array(floats(10, 4), "w")],
        ),
        opset_imports=[helper.make_opsetid("", 13)],
    )
    with pytest.raises(GraphError, match=r"leaves 'seq' open.*shapes=\{'ids'"):
        sg.onnx.import_model(proto)
    imported = sg.onnx.import_model(proto, shapes={"ids": (0, 5)})
    ids = RNG.integers(0, 10, (3, 5))
    np.testing.assert_allclose(run(imported, ids=ids)[0], expected(proto, ids=ids)[0], rtol=1e-5)


@pytest.mark.parametrize("batch", [0, None, -1])
def test_the_batch_in_a_given_shape(batch):
    proto = model([node("Tanh", ["x"], ["y"])], {"x": ["batch", "seq"]}, ["y"])
    net, _, _ = sg.onnx.import_model(proto, shapes={"x": (batch, 5)})
    assert net.attr_dict()["x"]["__shape__"] == "(0, 5)"
    with pytest.raises(GraphError, match="batch_axis=2: no input has that axis"):
        sg.onnx.import_model(proto, batch_axis=2)


def test_constants_that_are_given_have_the_inputs_dtype():
    proto = model([node("Add", ["x", "c"], ["y"])], {"x": ["N", 2], "c": [2]}, ["y"])
    x = floats(3, 2)
    got = run(sg.onnx.import_model(proto, constants={"c": [0.5, 1.5]}), x=x)[0]
    np.testing.assert_array_equal(got, x + np.array([0.5, 1.5], "float32"))
    proto.graph.input[1].type.tensor_type.elem_type = INT
    with pytest.raises(GraphError, match=r"'c' is of int64, but \[0.5, 1.5\] is given"):
        sg.onnx.import_model(proto, constants={"c": [0.5, 1.5]})


# -- shapes that are computed ----------------------------------------------------------------------


def test_chains_of_shape_operators_are_folded():
    """Shape, Gather, Unsqueeze, Concat, Reshape: how exporters keep the batch."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Unsqueeze", ["n", "axes"], ["n1"]),
        node("Mul", ["n1", "two"], ["n2"]),
        node("Concat", ["n2", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["r"]),
        node("Softmax", ["r"], ["y"], axis=-1),
    ]
    zero, axes, two, rest = np.array(0), np.array([0]), np.array([2]), np.array([-1])
    proto = model(nodes, {"x": ["N", 4, 6]}, ["y"], zero=zero, axes=axes, two=two, rest=rest)
    net, args, _ = check(proto, 1, 3, x=(None, 4, 6))
    assert args == {}
    assert "Reshape" in net.debug_str()


def test_zeros_of_the_batchs_size_are_made_for_each_batch():
    """ConstantOfShape and Expand by the batch, as initial states of recurrent networks are."""
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1),
        node("Concat", ["one", "s", "units"], ["shape"], axis=0),
        node("ConstantOfShape", ["shape"], ["zeros"]),
        node("Expand", ["row", "shape"], ["rows"]),
        node("Add", ["zeros", "rows"], ["state"]),
        node("Add", ["state", "x"], ["y"]),
    ]
    weights = {"one": np.array([1]), "units": np.array([4]), "row": floats(1, 1, 4)}
    check(model(nodes, {"x": ["N", 4]}, ["y"], **weights), 1, 3, x=(None, 4))


def test_a_value_that_counts_samples_is_refused():
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1),
        node("Cast", ["s"], ["n"], to=1),
        node("Add", ["x", "n"], ["y"]),
    ]
    with pytest.raises(GraphError, match=r"node 'y' \(Add, opset 17\): 'n' depends on the size"):
        sg.onnx.import_model(model(nodes, {"x": ["N", 4]}, ["y"]))


# -- weights and constants -------------------------------------------------------------------------


def test_constants_are_not_trained_and_scalars_are_numbers():
    nodes = [
        node("Mul", ["x", "half"], ["h"]),
        node("Add", ["h", "row"], ["a"]),
        node("Mul", ["a", "scale"], ["y"]),
    ]
    proto = model(nodes, {"x": ["N", 4]}, ["y"], half=np.float32(0.5), scale=floats(4))
    row = node("Constant", [], ["row"], value=numpy_helper.from_array(floats(4)))
    proto.graph.node.insert(0, row)
    net, args, _ = check(proto, 2, x=(None, 4))
    assert sorted(args) == ["row", "scale"]
    attrs = net.attr_dict()
    assert attrs["row"]["__lr_mult__"] == "0.0"
    assert "__lr_mult__" not in attrs["scale"]


def test_weights_decay_but_for_those_that_mxnet_names_otherwise():
    nodes = [node("Mul", ["x", "a.weight"], ["h"]), node("Add", ["h", "b_bias"], ["y"])]
    weights = {"a.weight": floats(4), "b_bias": floats(4)}
    net, _, _ = sg.onnx.import_model(model(nodes, {"x": ["N", 4]}, ["y"], **weights))
    rule, attrs = sg.optimizer.SGD(wd=0.5), net.attr_dict()
    decays = [rule.rates(name, 1, attrs.get(name, {}))[1] for name in weights]
    assert decays == [0.5, 0.0]


def test_a_weight_that_is_moved_is_one_parameter_unless_others_read_it():
    nodes = [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])]
    _, args, _ = check(model(nodes, {"x": ["N", 4]}, ["y"], w=floats(3, 4)), 2, x=(None, 4))
    assert sorted(args) == ["t"]
    tied = [*nodes, node("MatMul", ["y", "w"], ["z"])]
    net, args, _ = check(model(tied, {"x": ["N", 4]}, ["z"], w=floats(3, 4)), 2, x=(None, 4))
    assert sorted(args) == ["w"]
    assert net.list_inputs().count("w") == 1


@pytest.mark.parametrize("columns", [6, 3])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("reader", ["output", "Add", "Transpose", "Gemm"])
def test_a_weight_of_matmul_that_others_read_is_not_turned_for_them(reader, first, columns):
    """It was stored as FullyConnected has it, and the others read it transposed."""
    others = {
        "Add": [node("Add", ["w", "w"], ["z"])],
        "Transpose": [node("Transpose", ["w"], ["z"])],
        "Gemm": [node("Gemm", ["v", "w"], ["z"], transB=1)],
    }
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    nodes[first:first] = others.get(reader, [])
    outputs = ["y", "z" if reader in others else "w"]
    weights = {"w": floats(6, columns), "v": floats(4, columns)}
    net, args, _ = check(model(nodes, {"x": ["N", 6]}, outputs, **weights), 2, x=(None, 6))
    assert net.list_inputs().count("w") == 1
    if reader == "output":
        np.testing.assert_array_equal(args["w"], weights["w"])


def test_columns_of_a_product_may_be_samples():
    """Gemm became a FullyConnected of as many units as the batch has samples, so none."""
    nodes = [node("Gemm", ["v", "x", "c"], ["y"], transB=1, alpha=0.5)]
    proto = model(nodes, {"x": ["N", 6]}, ["y"], v=floats(4, 6), c=floats(4, 1))
    check(proto, 2, 5, x=(None, 6))


def test_names_are_the_files():
    net, _, _ = sg.onnx.import_model(mlp())
    assert net.list_outputs() == ["y_output"]
    assert {"h_output", "r_output", "m_output"} <= set(net.get_internals().list_outputs())


def test_an_output_may_be_an_input_or_a_constant():
    proto = model([node("Identity", ["x"], ["y"])], {"x": ["N", 2]}, ["y", "w"], w=floats(3))
    imported = sg.onnx.import_model(proto)
    x = floats(2, 2)
    got = run(imported, x=x)
    np.testing.assert_array_equal(got[0], x)
    np.testing.assert_array_equal(got[1], numpy_helper.to_array(proto.graph.initializer[0]))


def test_nodes_may_be_in_any_order():
    proto = mlp()
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    imported = sg.onnx.import_model(proto)
    x = floats(2, 6)
    np.testing.assert_allclose(run(imported, x=x)[0], expected_in_order(proto, x), rtol=1e-4)


def expected_in_order(proto, x):
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return expected(proto, x=x)[0]


# -- operators beyond ONNX's own tests -----------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_top_k_of_elements_that_are_the_lowest_of_their_dtype(dtype):
    """Masked logits are -inf, and an image of uint8 has zeros."""
    lowest = -np.inf if dtype == "float32" else 0
    x = np.array([[5, lowest, lowest, 3], [lowest] * 4]).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    proto = model([node("TopK", ["x", "k"], ["v", "i"])], {}, ["v", "i"], k=np.array([3]))
    proto.graph.input.append(value("x", ["N", 4], kind))
    values, places = run(sg.onnx.import_model(proto), x=x)
    np.testing.assert_array_equal(values, [[5, 3, lowest], [lowest] * 3])
    np.testing.assert_array_equal(places, [[0, 3, 1], [0, 1, 2]])


def test_resize_to_sizes_that_hold_the_batch():
    """PyTorch's interpolate(size=...) with an open batch."""
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=2),
        node("Concat", ["s", "wanted"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear"),
    ]
    proto = model(nodes, {"x": ["N", 2, 3, 4]}, ["y"], wanted=np.array([5, 3]))
    check(proto, 1, 3, x=(None, 2, 3, 4))
    fixed = model(nodes[2:], {"x": ["N", 2, 3, 4]}, ["y"], sizes=np.array([2, 2, 5, 3]))
    with pytest.raises(GraphError, match=r"resizes the batch of \(0, 2, 3, 4\) to \(2, 2, 5, 3\)"):
        sg.onnx.import_model(fixed)


def test_sizes_are_computed_from_initializers_of_floats():
    """As TensorFlow's exporters and simplifiers write what PyTorch has as constants in nodes."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Cast", ["s"], ["f"], to=FLOAT),
        node("Mul", ["f", "factors"], ["p"]),
        node("Floor", ["p"], ["q"]),
        node("Cast", ["q"], ["sizes"], to=INT),
        node("Resize", ["x", "", "", "sizes"], ["y"]),
    ]
    factors = np.array([1, 1, 2, 1.5], "float32")
    proto = model(nodes, {"x": ["N", 2, 3, 4]}, ["y"], factors=factors)
    _, args, _ = check(proto, 1, 3, x=(None, 2, 3, 4))
    assert "factors" not in args


def test_gather_nd_beside_the_batch():
    """PyTorch's x[:, [0, 2]], and a table that each sample looks up."""
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("GatherND", ["t", "rows"], ["g"]),
        node("Transpose", ["g"], ["y"], perm=[1, 0, 2]),
        node("Cast", ["x"], ["places"], to=INT),
        node("GatherND", ["table", "places"], ["z"]),
    ]
    rows = np.array([[0], [-1], [2]])
    proto = model(nodes, {"x": ["N", 3, 2]}, ["y", "z"], rows=rows, table=floats(8, 8, 2))
    check(proto, 1, 4, x=(None, 3, 2))


def test_transposed_convolution_with_a_bias_and_elements_behind():
    attrs = {"strides": [2, 2], "pads": [1, 0, 0, 1], "output_padding": [1, 0]}
    nodes = [node("ConvTranspose", ["x", "w", "b"], ["y"], **attrs)]
    weights = {"w": floats(3, 2, 3, 3), "b": floats(2)}
    check(model(nodes, {"x": ["N", 3, 4, 5]}, ["y"], **weights), 1, 3, x=(None, 3, 4, 5))


def test_outputs_that_nothing_reads_are_not_asked_for():
    """Places of maxima, which old exporters name whether or not they are read."""
    pool = node("MaxPool", ["x"], ["y", "places"], kernel_shape=[2])
    check(model([pool], {"x": ["N", 1, 4]}, ["y"]), 1, 3, x=(None, 1, 4))
    with pytest.raises(GraphError, match="Indices"):
        sg.onnx.import_model(model([pool], {"x": ["N", 1, 4]}, ["y", "places"]))


def test_a_size_that_the_network_computes_with_says_what_to_give():
    nodes = [
        node("Size", ["x"], ["s"]),
        node("Cast", ["s"], ["f"], to=FLOAT),
        node("Div", ["x", "f"], ["y"]),
    ]
    proto = model(nodes, {"x": ["N", 3]}, ["y"])
    with pytest.raises(GraphError, match=r"'f' depends on .* one of fixed size by shapes=\{"):
        sg.onnx.import_model(proto)
    x = floats(2, 3)
    fixed = sg.onnx.import_model(proto, shapes={"x": (2, 3)})
    np.testing.assert_allclose(run(fixed, x=x)[0], x / 6, rtol=1e-6)


# -- functions, branches, versions -----------------------------------------------------------------


def test_functions_of_the_model_are_taken_apart():
    body = helper.make_function(
        "my",
        "Scaled",
        ["a"],
        ["b"],
        [
            node("Neg", ["a"], ["c"]),
            node("LeakyRelu", ["c"], ["b"]),
        ],
        [helper.make_opsetid("", 17)],
        ["alpha"],
    )
    reference = body.node[1].attribute.add()
    reference.name, reference.ref_attr_name = "alpha", "alpha"
    reference.type = onnx.AttributeProto.FLOAT
    proto = model(
        [helper.make_node("Scaled", ["x"], ["y"], domain="my", alpha=0.3)], {"x": ["N", 3]}, ["y"]
    )
    proto.functions.append(body)
    proto.opset_import.append(helper.make_opsetid("my", 1))
    x = floats(2, 3)
    got = run(sg.onnx.import_model(proto), x=x)[0]
    np.testing.assert_allclose(got, np.where(x < 0, -x, -0.3 * x), rtol=1e-6)


@pytest.mark.parametrize("op", ["Transpose", "Identity", "Constant"])
@pytest.mark.parametrize("own", [True, False])
def test_rounds_of_a_loop_have_their_weights_in_common(op, own):
    """Also where the body moves their elements, or holds them itself."""
    weight = floats(4, 4)
    tensor = numpy_helper.from_array(weight, "w")
    first = node(op, [], ["m"], value=tensor) if op == "Constant" else node(op, ["w"], ["m"])
    nodes = [first, node("MatMul", ["h", "m"], ["p"]), node("Add", ["p", "part"], ["g"])]
    given, made = [value("h", None), value("part", None)], [value("g", None)]
    body = helper.make_graph(nodes, "body", given, made, [tensor] if own else [])
    scan = node("Scan", ["h0", "x"], ["y"], body=body, num_scan_inputs=1)
    outside = {} if own else {"w": weight}
    proto = model([scan], {"h0": ["N", 4], "x": [3, "N", 4]}, ["y"], **outside)
    _, args, _ = check(proto, 2, h0=(None, 4), x=(3, None, 4))
    assert len(args) == 1


def test_calls_of_functions_have_a_weight_in_common():
    nodes = [node("Transpose", ["k"], ["m"]), node("MatMul", ["a", "m"], ["b"])]
    body = helper.make_function(
        "my", "Dense", ["a", "k"], ["b"], nodes, [helper.make_opsetid("", 17)]
    )
    calls = [helper.make_node("Dense", [i, "w"], [o], domain="my") for i, o in ("xh", "hy")]
    proto = model(calls, {"x": ["N", 4]}, ["y"], w=floats(4, 4))
    proto.functions.append(body)
    proto.opset_import.append(helper.make_opsetid("my", 1))
    _, args, _ = check(proto, 2, x=(None, 4))
    assert list(args) == ["w"]


def test_a_functions_constant_may_be_called_as_a_weight_is():
    tensor = numpy_helper.from_array(floats(4, 4))
    nodes = [node("Constant", [], ["w"], value=tensor), node("MatMul", ["x", "w"], ["y"])]
    body = helper.make_function("my", "Dense", ["x"], ["y"], nodes, [helper.make_opsetid("", 17)])
    calls = [
        helper.make_node("Dense", ["x"], ["h"], domain="my"),
        node("MatMul", ["h", "h/w"], "y"),
    ]
    proto = model(calls, {"x": ["N", 4]}, ["y"], **{"h/w": floats(4, 4)})
    proto.functions.append(body)
    proto.opset_import.append(helper.make_opsetid("my", 1))
    _, args, _ = check(proto, 2, x=(None, 4))
    assert sorted(args) == ["h/w", "h/w_"]


def test_a_known_branch_is_taken():
    def graph(name, op):
        return helper.make_graph([node(op, ["x"], [name])], name, [], [value(name, None)])

    nodes = [
        node("Shape", ["x"], ["s"], start=1),
        node("Equal", ["s", "four"], ["is4"]),
        node("If", ["is4"], ["y"], then_branch=graph("a", "Tanh"), else_branch=graph("b", "Relu")),
    ]
    net, _, _ = check(model(nodes, {"x": ["N", 4]}, ["y"], four=np.array([4])), 2, x=(None, 4))
    assert "tanh" in net.debug_str()


def test_all_missing_operators_are_listed_with_their_nodes():
    nodes = [
        node("NonMaxSuppression", ["x", "x"], ["a"], name="nms"),
        node("Unique", ["x"], ["b"]),
        node("Unique", ["x"], ["c"], name="second"),
        helper.make_node("Fused", ["x"], ["d"], domain="com.example", name="fused"),
    ]
    proto = model(nodes, {"x": ["N", 4]}, ["a"], opset=13)
    proto.opset_import.append(helper.make_opsetid("com.example", 3))
    with pytest.raises(GraphError) as error:
        sg.onnx.import_model(proto)
    assert str(error.value) == (
        "ONNX model: operators that are not supported (3): NonMaxSuppression of opset 13 (node "
        "'nms'); Unique of opset 13 (nodes 'b', 'second'); com.example.Fused of opset 3 (node "
        "'fused')"
    )


def test_versions_of_operators_that_are_not_known():
    proto = mlp()
    proto.opset_import[0].version = 99
    with pytest.raises(GraphError, match=r"opset 99 .*known: 7 to 28"):
        sg.onnx.import_model(proto)


# -- whole networks --------------------------------------------------------------------------------


def test_an_imported_network_is_trained():
    net, args, aux = sg.onnx.import_model(mlp())
    net = sg.sym.SoftmaxOutput(net, name="softmax")
    x = floats(64, 6)
    labels = (x[:, 0] > 0).astype("float32")
    batches = sg.io.NDArrayIter(x, labels, batch_size=16)
    groups = {"second": sg.cpu(1)}
    with sg.mod.Module(
        halved(net), data_names=["x"], context=sg.cpu(0), group2ctxs=groups, micro_batches=2
    ) as module:
        module.bind([("x", (16, 6))], [("softmax_label", (16,))])
        module.init_params(arg_params=args, aux_params=aux)
        module.fit(batches, num_epoch=8, optimizer_params={"learning_rate": 0.3})
        assert module.score(batches, "acc")[0][1] > 0.9
        trained, _ = module.get_params()
    assert not np.array_equal(np.asarray(trained["w1"]), args["w1"])


def test_constants_that_hold_no_floats_need_no_gradient():
    """A file's mask of bool, and places of int32, beside a weight: a Module trains that."""
    nodes = [
        node("Where", ["mask", "x", "low"], ["m"]),
        node("Gather", ["m", "places"], ["g"], axis=1),
        node("MatMul", ["g", "w"], ["y"]),
    ]
    mask, places = np.array([[True, False, True]]), np.array([2, 0])
    low = np.array(-1, "float32")
    proto = model(nodes, {"x": ["N", 3]}, ["y"], mask=mask, places=places, low=low, w=floats(2, 2))
    net, args, _ = check(proto, 2, x=(None, 3))
    loss = sg.sym.MakeLoss(sg.sym.sum(net))
    assert {str(a.dtype) for a in args.values()} == {"bool", "int32", "float32"}
    with sg.mod.Module(loss, data_names=["x"], label_names=[], context=sg.cpu(0)) as module:
        module.bind([("x", (4, 3))])
        module.init_params(arg_params=args)
        module.init_optimizer(optimizer_params={"learning_rate": 1.0})
        module.forward(sg.io.DataBatch([floats(4, 3)], []))
        module.backward()
        module.update()
        trained, _ = module.get_params()
    assert not np.array_equal(np.asarray(trained["w"]), args["w"])
    np.testing.assert_array_equal(np.asarray(trained["mask"]), mask)


LIGHT = sorted(
    glob.glob(os.path.join(os.path.dirname(onnx.__file__), "backend/test/data/light/*.onnx"))
)


def light(path):
    """Outputs of a light model on one and on two devices, and the expected ones."""
    proto = onnx.load(path)
    net, args, aux = sg.onnx.import_model(path)
    weights = {tensor.name for tensor in proto.graph.initializer}
    (info,) = [i for i in proto.graph.input if i.name not in weights]
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    size = int(np.prod(shape))
    data = (np.arange(size).reshape(shape) / size).astype("float32")
    values = {info.name: data, **args, **aux}
    (one,), (two,) = (on_devices(net, values, n) for n in (1, 2))
    wanted = numpy_helper.to_array(onnx.load_tensor(path[:-5] + "_output_0.pb"))
    if "squeezenet" in path:
        # Its 1,000 scores are to be equal, and are 1e10: the last bit of a sum, which is not that
        # of every CPU's products, decides between classes. So the scores are compared.
        assert np.ptp(wanted) == 0
        pooled = net.get_internals()["r65_output"]
        fed = {name: values[name] for name in pooled.list_inputs()}
        (one,), (two,) = (on_devices(pooled, fed, n) for n in (1, 2))
        wanted = np.full_like(one, one.mean())
    return one, two, wanted


def check_light(path):
    one, two, wanted = light(path)
    assert one.tobytes() == two.tobytes()
    np.testing.assert_allclose(one, wanted, rtol=1e-3, atol=1e-7)


def test_the_wheel_has_networks():
    assert len(LIGHT) == 9


@pytest.mark.slow
@pytest.mark.parametrize("path", LIGHT, ids=[os.path.basename(path)[6:-5] for path in LIGHT])
def test_networks_of_the_wheel(path):
    check_light(path)


@pytest.mark.parametrize("name", ["resnet50", "shufflenet", "squeezenet"])
def test_networks_of_a_fixed_batch_take_any_batch(name):
    """The files fix a batch of 1, also in the shapes of Reshape."""
    path = next(path for path in LIGHT if name in path)
    net, args, aux = sg.onnx.import_model(path, batch_axis=0)
    (data,) = [n for n in net.list_inputs() if n not in args and n not in aux]
    _, ((batch, classes, *_),), _ = net.infer_shape(**{data: (4, 3, 224, 224)})
    assert (batch, classes) == (4, 1000)
