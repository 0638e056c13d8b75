"""Convolution and Deconvolution, against loops over windows and scipy's correlation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from symgraph.core.errors import DTypeError, GraphError, MicroBatchError, ShapeError
from symgraph.core.params import Site
from symgraph.core.registry import find
from symgraph.core.types import TensorType
from symgraph.frontend import sym
from symgraph.frontend.infer import infer_shapes
from symgraph.frontend.sym import Convolution, Deconvolution, Variable
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

RNG = np.random.default_rng(11)


def normal(*shape, dtype="float64"):
    return RNG.standard_normal(shape).astype(dtype)


def filled(rank, kernel, stride=None, dilate=None, pad=None):
    return kernel, stride or (1,) * rank, dilate or (1,) * rank, pad or (0,) * rank


def by_windows(x, weight, groups, kernel, stride, dilate, pad):
    """The definition: for each filter and position, the window's elements times the weight."""
    rank = len(kernel)
    x = np.pad(x, [(0, 0), (0, 0), *[(p, p) for p in pad]])
    counts = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[2:], kernel, stride, dilate, strict=True)
    ]
    y = np.zeros((len(x), len(weight), *counts))
    channels, filters = weight.shape[1], len(weight) // groups
    for f, at in itertools.product(range(len(weight)), itertools.product(*map(range, counts))):
        first = f // filters * channels
        spatial = [
            slice(at[i] * stride[i], at[i] * stride[i] + dilate[i] * (kernel[i] - 1) + 1, dilate[i])
            for i in range(rank)
        ]
        window = x[(slice(None), slice(first, first + channels), *spatial)]
        y[(slice(None), f, *at)] = (window * weight[f]).reshape(len(x), -1).sum(axis=1)
    return y


CASES = [  # spatial lengths, kernel, stride, dilate, pad, groups
    ((7,), (3,), (2,), None, (1,), 1),
    ((9,), (2,), None, (3,), (2,), 4),
    ((7, 6), (3, 2), None, None, (1, 0), 1),
    ((9, 8), (3, 3), (2, 1), (2, 1), (2, 1), 2),
    ((6, 5), (1, 1), None, None, None, 2),
    ((12, 11), (1, 1), None, None, None, 1),
    ((6, 5), (1, 1), (2, 2), None, (1, 0), 1),
    ((4, 4), (4, 4), None, None, None, 1),
    ((4, 4), (3, 3), None, None, (4, 3), 1),
    ((8, 5), (2, 2), (3, 3), None, None, 1),
    ((5, 4, 6), (2, 2, 3), (1, 2, 1), (1, 1, 2), (1, 1, 0), 2),
]


def arguments(kernel, stride, dilate, pad, groups, filters):
    given = {"stride": stride, "dilate": dilate, "pad": pad}
    given = {key: value for key, value in given.items() if value is not None}
    return {"kernel": kernel, **given, "num_group": groups, "num_filter": filters}


@pytest.mark.parametrize(("lengths", "kernel", "stride", "dilate", "pad", "groups"), CASES)
def test_convolution_and_its_gradients(lengths, kernel, stride, dilate, pad, groups):
    x, weight, bias = normal(3, 4, *lengths), normal(8, 4 // groups, *kernel), normal(8)
    attrs = arguments(kernel, stride, dilate, pad, groups, 8)
    windows = filled(len(kernel), kernel, stride, dilate, pad)
    want = by_windows(x, weight, groups, *windows)
    np.testing.assert_allclose(
        run_op("Convolution", x, weight, no_bias=True, **attrs), want, rtol=1e-10, atol=1e-12
    )
    got = run_op("Convolution", x, weight, bias, **attrs)
    np.testing.assert_allclose(
        got, want + bias.reshape(-1, *[1] * len(kernel)), rtol=1e-10, atol=1e-12
    )
    check_op("Convolution", x, weight, bias, **attrs)


@pytest.mark.parametrize(("filters", "channels"), [(10, 1), (1, 10)])
def test_gradients_with_many_filters_or_channels(filters, channels):
    x, weight = normal(2, channels, 6, 5), normal(filters, channels, 3, 3)
    attrs = {"kernel": (3, 3), "pad": (1, 1), "num_filter": filters, "no_bias": True}
    check_op("Convolution", x, weight, **attrs)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtypes(dtype):
    x, weight, bias = normal(2, 3, 9, 9), normal(4, 3, 3, 3), normal(4)
    attrs = {"kernel": (3, 3), "num_filter": 4, "pad": (1, 1)}
    exact = run_op("Convolution", x, weight, bias, **attrs)
    got = run_op("Convolution", *(a.astype(dtype) for a in (x, weight, bias)), **attrs)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, exact, atol={"float16": 2e-2, "float32": 1e-5}.get(dtype, 0))
    with pytest.raises(DTypeError, match=r"Convolution 'op': works on floats, not int32; add a C"):
        run_op("Convolution", *(a.astype("int32") for a in (x, weight, bias)), **attrs)


@pytest.mark.parametrize(
    ("data", "attrs", "weight", "out"),
    [
        (
            (1, 3, 224, 224),
            {"kernel": (7, 7), "stride": (2, 2), "pad": (3, 3)},
            (64, 3, 7, 7),
            (1, 64, 112, 112),
        ),
        (
            (1, 3, 224, 224),
            {"kernel": (11, 11), "stride": (4, 4)},
            (64, 3, 11, 11),
            (1, 64, 54, 54),
        ),
        ((5, 3, 32, 32), {"kernel": (3, 3), "pad": (1, 1)}, (64, 3, 3, 3), (5, 64, 32, 32)),
        ((5, 4, 10), {"kernel": (3,), "dilate": (2,), "num_group": 4}, (64, 1, 3), (5, 64, 6)),
        ((2, 3, 4, 5, 6), {"kernel": (2, 2, 2)}, (64, 3, 2, 2, 2), (2, 64, 3, 4, 5)),
    ],
)
def test_shapes_as_mxnet_has_them(data, attrs, weight, out):
    symbol = Convolution(Variable("x"), name="conv", num_filter=64, **attrs)
    assert symbol.list_arguments() == ["x", "conv_weight", "conv_bias"]
    assert symbol.list_outputs() == ["conv_output"]
    found = symbol.infer_shape(x=data)
    assert found == ([data, weight, (64,)], [out], [])


def test_shapes_are_found_backwards():
    """MXNet: the batch always, lengths where the stride is 1; here also channels by the weight."""
    symbol = Convolution(
        Variable("x"),
        name="conv",
        num_filter=4,
        kernel=(3, 3),
        stride=(1, 2),
        pad=(1, 0),
        num_group=2,
    )
    both = symbol + Variable("y")
    found = infer_shapes(both, {"x": (0, 6, 0, 9), "y": (5, 4, 7, 4)}).variables
    assert found["x"] == (5, 6, 7, 9)
    found = infer_shapes(symbol, {"conv_weight": (4, 3, 3, 3)}).variables
    assert found["x"] == (0, 6, 0, 0)


def test_arguments_that_change_nothing_and_json():
    """As MXNet's model zoo writes them."""
    symbol = Convolution(
        Variable("data"),
        name="c",
        num_filter="8",
        kernel="(3, 3)",
        stride="()",
        pad="(1, 1)",
        no_bias="True",
        workspace="1024",
        cudnn_tune="off",
        cudnn_off="False",
        layout="NCHW",
        dilate="(1, 1)",
        num_group="1",
    )
    again = sym.load_json(symbol.tojson())
    assert again.list_arguments() == ["data", "c_weight"]
    assert again.infer_shape(data=(2, 3, 5, 5))[1] == [(2, 8, 5, 5)]
    x, weight = normal(2, 3, 5, 5), normal(8, 3, 3, 3)
    attrs = {"kernel": (3, 3), "num_filter": 8, "no_bias": True}
    plain = run_op("Convolution", x, weight, **attrs)
    other = run_op("Convolution", x, weight, **attrs, workspace=1, cudnn_tune=None, layout=None)
    np.testing.assert_array_equal(plain, other)


GOOD = {"kernel": (3, 3), "num_filter": 4, "no_bias": True}


@pytest.mark.parametrize(
    ("change", "shapes", "message"),
    [
        (
            {},
            [(2, 3, 5)],
            r"Convolution 'op': data of shape \(2, 3, 5\) needs 4 axes \(batch, channel",
        ),
        (
            {},
            [(2, 3, 2, 9)],
            r"a window of \(3, 3\) .* does not fit into data of shape \(2, 3, 2, 9\)",
        ),
        (
            {"dilate": (3, 3)},
            [(2, 3, 6, 9)],
            r"a window of \(7, 7\) \(kernel=\(3, 3\), dilate=\(3, 3",
        ),
        (
            {"num_group": 2},
            [(2, 3, 5, 5)],
            r"num_filter=4 and 3 channels cannot be cut into num_gr",
        ),
        (
            {"num_group": 3},
            [(2, 3, 5, 5)],
            r"num_filter=4 and 3 channels cannot be cut into num_gr",
        ),
        (
            {"stride": (2,)},
            [(2, 3, 5, 5)],
            r"stride=\(2,\) does not have one value for each axis of",
        ),
        ({"stride": (0, 1)}, [(2, 3, 5, 5)], r"stride=\(0, 1\) must be 1 or more"),
        ({"pad": (-1, 1)}, [(2, 3, 5, 5)], r"pad=\(-1, 1\) must be 0 or more"),
        ({"kernel": (1,) * 4}, [(2, 3, 5, 5)], r"kernel=\(1, 1, 1, 1\) has 4 axes, not 1 to 3"),
        ({"layout": "NCW"}, [(2, 3, 5, 5)], r"layout='NCW' does not go with kernel=\(3, 3\)"),
        (
            {},
            [(2, 3, 5, 5), (4, 2, 3, 3)],
            r"weight of shape \(4, 2, 3, 3\) does not fit \(4, 3, 3, 3",
        ),
    ],
)
def test_mistakes_name_the_node_and_the_shapes(change, shapes, message):
    weight = shapes[1] if len(shapes) > 1 else (4, 3, 3, 3)
    with pytest.raises(ShapeError, match=message):
        op_graph("Convolution", [np.zeros(shapes[0]), np.zeros(weight)], **{**GOOD, **change})


def test_layouts_that_only_gpus_have_are_refused():
    with pytest.raises(GraphError, match=r"layout='NHWC' is not a valid one of 'NCW', 'NCHW', 'N"):
        Convolution(Variable("x"), layout="NHWC", **GOOD)


def test_micro_batches():
    x, weight, bias = normal(6, 4, 5, 5), normal(4, 4, 3, 3), normal(4)
    attrs = {"kernel": (3, 3), "num_filter": 4}
    layouts = [Split(0, 2, 1), WHOLE, WHOLE]
    found = check_layout("Convolution", [x, weight, bias], layouts, 3, (2, 1), **attrs)
    assert found == layouts[:1]
    found = check_layout(
        "Convolution", [x, weight], [PARTIAL, WHOLE], 3, (2, 1), no_bias=True, **attrs
    )
    assert found == [PARTIAL]
    for layouts, message in (
        ([Split(1), WHOLE, WHOLE], "Convolution 'op' sums over axis 1, where the batch lies"),
        ([Split(2), WHOLE, WHOLE], "sums over axis 2, where the batch lies"),
        ([WHOLE, Split(0), WHOLE], "has weights that depend on the samples"),
        ([PARTIAL, WHOLE, WHOLE], "adds a constant to a sum over the batch"),
    ):
        with pytest.raises(MicroBatchError, match=message):
            check_layout("Convolution", [x, weight, bias], layouts, 4, (2, 2), **attrs)


def test_flops_count_multiplications_and_additions():
    """VGG's second layer on 32 x 32 images: 2 * 64 * 32 * 32 * 64 * 9 a sample."""
    x, weight = np.zeros((2, 64, 32, 32), "float32"), np.zeros((64, 64, 3, 3), "float32")
    attrs = {"kernel": (3, 3), "num_filter": 64, "no_bias": True, "pad": (1, 1)}
    node = op_graph("Convolution", [x, weight], **attrs)["op"]
    types = [op_graph("Convolution", [x, weight], **attrs)[f"x{i}"].types[0] for i in range(2)]
    op = find("Convolution")
    assert op.flops(node.attrs, types, node.types) == 2 * 2 * 64 * 32 * 32 * 64 * 9
    grad = find("_conv_grad_data")
    types_of_grad = [node.types[0], types[1]]
    assert grad.flops(node.attrs, types_of_grad, types[:1]) == 2 * 2 * 64 * 32 * 32 * 64 * 9


@pytest.mark.parametrize(
    ("lengths", "kernel", "attrs", "out"),
    [
        ((4,), (3,), {"stride": (2,), "pad": (1,), "adj": (1,)}, (8,)),
        ((4, 3), (4, 4), {"stride": (2, 2), "pad": (1, 1)}, (8, 6)),
        ((4, 3), (3, 2), {"dilate": (2, 1)}, (8, 4)),
        ((3, 3), (3, 3), {"stride": (3, 2), "adj": (2, 1)}, (11, 8)),
        ((3, 3), (4, 4), {"stride": (2, 2), "target_shape": (7, 6)}, (7, 6)),
        ((3, 3, 2), (2, 2, 2), {"stride": (2, 1, 2)}, (6, 4, 4)),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_deconvolution_is_the_transpose(lengths, kernel, attrs, out, groups):
    """<conv(y), x> = <y, deconv(x)>, with the windows that give data of x's lengths."""
    x, weight, bias = normal(2, 4, *lengths), normal(4, 6 // groups, *kernel), normal(6)
    own = {"kernel": kernel, "num_filter": 6, "num_group": groups, **attrs}
    got = run_op("Deconvolution", x, weight, **own)
    assert got.shape == (2, 6, *out)
    if "target_shape" in attrs:  # MXNet: what is too much is cut off, the odd one at the end
        attrs = {"stride": attrs["stride"], "pad": (1, 1)}
    window = {key: attrs[key] for key in ("stride", "dilate", "pad") if key in attrs}
    y = normal(*got.shape)
    down = by_windows(y, weight, groups, *filled(len(kernel), kernel, **window))
    assert down.shape == x.shape
    np.testing.assert_allclose((down * x).sum(), (y * got).sum(), rtol=1e-10)
    with_bias = run_op("Deconvolution", x, weight, bias, no_bias=False, **own)
    np.testing.assert_allclose(with_bias, got + bias.reshape(-1, *[1] * len(kernel)), rtol=1e-12)
    check_op("Deconvolution", x, weight, bias, no_bias=False, **own)


def test_deconvolution_has_mxnets_names_and_no_bias():
    symbol = Deconvolution(
        Variable("x"),
        name="up",
        num_filter=6,
        kernel=(4, 4),
        stride=(2, 2),
        pad=(1, 1),
        num_group=2,
    )
    assert symbol.list_arguments() == ["x", "up_weight"]
    assert symbol.infer_shape(x=(5, 4, 7, 7))[:2] == (
        [(5, 4, 7, 7), (4, 3, 4, 4)],
        [(5, 6, 14, 14)],
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"adj": (2, 0)},
            r"Deconvolution 'op': adj=\(2, 0\) must be 0 or more and less than stride=",
        ),
        ({"adj": (1,)}, r"adj=\(1,\) does not have one value for each axis of kernel=\(3, 3\)"),
        (
            {"target_shape": (40, 40)},
            r"target_shape=\(40, 40\) does not fit data of shape \(2, 4, 5, ",
        ),
        ({"pad": (6, 6)}, r"pad=\(6, 6\) does not fit data of shape \(2, 4, 5, 5\) with kernel="),
        (
            {"num_group": 3},
            r"num_filter=6 and 4 channels cannot be cut into num_group=3 equal parts",
        ),
    ],
)
def test_mistakes_of_deconvolution(change, message):
    attrs = {"kernel": (3, 3), "stride": (2, 2), "num_filter": 6, **change}
    with pytest.raises(ShapeError, match=message):
        op_graph("Deconvolution", [np.zeros((2, 4, 5, 5)), np.zeros((4, 6, 3, 3))], **attrs)


def test_deconvolution_in_micro_batches():
    x, weight = normal(4, 2, 3, 3), normal(2, 3, 2, 2)
    attrs = {"kernel": (2, 2), "num_filter": 3, "stride": (2, 2)}
    layouts = [Split(0), WHOLE]
    assert check_layout("Deconvolution", [x, weight], layouts, 4, (3, 1), **attrs) == [Split(0)]
    site = Site("Deconvolution", "up", {})
    types = [TensorType(x.shape), TensorType(weight.shape)]
    with pytest.raises(MicroBatchError, match="Deconvolution 'up' sums over axis 3"):
        find("Deconvolution").batch(site, [Split(3), WHOLE], types, ())
