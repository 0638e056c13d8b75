"""UpSampling, Pad and LRN, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.frontend.infer import infer_shapes
from symgraph.frontend.sym import LRN, Pad, UpSampling, Variable
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

RNG = np.random.default_rng(14)
X = RNG.standard_normal((2, 6, 4, 3))


def test_upsampling_repeats():
    got = run_op("UpSampling", X, scale=3, sample_type="nearest")
    np.testing.assert_array_equal(got, X.repeat(3, axis=2).repeat(3, axis=3))
    check_op("UpSampling", X, scale=2, sample_type="nearest")
    check_op("UpSampling", X, scale=1, sample_type="nearest")


def test_upsampling_has_mxnets_names_and_finds_shapes_backwards():
    symbol = UpSampling(Variable("x"), scale=2, sample_type="nearest", num_args=1, name="up")
    assert symbol.list_outputs() == ["up_output"]
    assert symbol.infer_shape(x=(2, 6, 4, 3))[1] == [(2, 6, 8, 6)]
    found = infer_shapes(symbol + Variable("y"), {"y": (2, 6, 8, 6)}).variables
    assert found["x"] == (2, 6, 4, 3)
    with pytest.raises(ShapeError, match=r"UpSampling 'up': output shapes differ: .* 8\) and .* 9"):
        infer_shapes(symbol + Variable("y"), {"y": (2, 6, 8, 9)})


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({}, r"input of shape \(2, 6, 3, 3\) does not grow to \(8, 6\) by a whole factor"),
        ({"sample_type": "bilinear"}, r"weight of shape .* does not fit \(6, 1, 4, 4\)"),
        ({"sample_type": "bilinear", "scale": 1}, "scale=1 is too small"),
        ({"scale": 0}, "scale=0 is too small: 1 or more for nearest, 2 or more for bilinear"),
    ],
)
def test_what_upsampling_does_not_do(attrs, message):
    attrs = {"scale": 2, "sample_type": "nearest", "num_args": 2, **attrs}
    with pytest.raises(ShapeError, match=message):
        op_graph("UpSampling", [X, np.zeros((2, 6, 3, 3))], **attrs)


@pytest.mark.parametrize(("mode", "channels"), [("concat", 2), ("sum", 6)])
def test_upsampling_of_several_inputs_grows_all_to_one_size(mode, channels):
    other = RNG.standard_normal((2, channels, 8, 6))
    attrs = {"scale": 4, "sample_type": "nearest", "multi_input_mode": mode, "num_args": 2}
    got = run_op("UpSampling", X, other, **attrs)
    grown = [x.repeat(s, axis=2).repeat(s, axis=3) for x, s in ((X, 4), (other, 2))]
    np.testing.assert_array_equal(got, sum(grown) if mode == "sum" else np.concatenate(grown, 1))
    check_op("UpSampling", X, other, **attrs)
    for layout in (Split(0), PARTIAL):
        found = check_layout("UpSampling", [X, other], [layout] * 2, 2, (1, 1), **attrs)
        assert found == [layout]
    with pytest.raises(MicroBatchError, match="joins values whose batch lies differently"):
        check_layout("UpSampling", [X, other], [Split(0), WHOLE], 2, (1, 1), **attrs)


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_bilinear_upsampling_is_a_deconvolution(scale):
    kernel, pad = 2 * scale - scale % 2, scale // 2
    weight = RNG.standard_normal((6, 1, kernel, kernel))
    attrs = {"scale": scale, "sample_type": "bilinear"}
    got = run_op("UpSampling", X, weight, **attrs)
    window = {"kernel": (kernel,) * 2, "stride": (scale,) * 2, "pad": (pad,) * 2}
    same = run_op("Deconvolution", X, weight, num_filter=6, num_group=6, **window)
    np.testing.assert_array_equal(got, same)
    check_op("UpSampling", X, weight, **attrs)
    found = check_layout("UpSampling", [X, weight], [Split(0), WHOLE], 2, (1, 1), **attrs)
    assert found == [Split(0)]
    net = UpSampling(Variable("x"), num_filter=6, name="up", **attrs)
    assert net.list_arguments() == ["x", "up_weight"]


WIDTHS = (0, 0, 1, 2, 3, 0, 2, 1)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_pad(mode):
    pairs = [(0, 0), (1, 2), (3, 0), (2, 1)]
    got = run_op("Pad", X, mode=mode, pad_width=WIDTHS, constant_value=0.5)
    more = {"constant_values": 0.5} if mode == "constant" else {}
    np.testing.assert_array_equal(got, np.pad(X, pairs, mode=mode, **more))
    check_op("Pad", X, mode=mode, pad_width=WIDTHS)


def test_pad_shapes():
    symbol = Pad(Variable("x"), mode="edge", pad_width="(0, 0, 0, 0, 1, 1, 2, 2)", name="pad")
    assert symbol.infer_shape(x=(2, 3, 4, 5))[1] == [(2, 3, 6, 9)]
    found = infer_shapes(symbol + Variable("y"), {"y": (2, 3, 6, 9)}).variables
    assert found["x"] == (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("mode", "widths", "message"),
    [
        (
            "constant",
            (0, 0, 1),
            r"Pad 'op': pad_width=\(0, 0, 1\) is not a pair of numbers from 0 up",
        ),
        ("constant", (0, 0, -1, 1), r"pad_width=\(0, 0, -1, 1\) is not a pair"),
        ("constant", (0, 0, 1, 1), r"has 2 pairs for a shape of 4 axes: \(2, 6, 4, 3\)"),
        ("reflect", (0,) * 6 + (3, 0), r"reflects more than data of shape \(2, 6, 4, 3\) has"),
    ],
)
def test_mistakes_of_pad(mode, widths, message):
    with pytest.raises(ShapeError, match=message):
        op_graph("Pad", [X], mode=mode, pad_width=widths)


def test_micro_batches():
    up, pad = {"scale": 2, "sample_type": "nearest"}, {"mode": "constant", "pad_width": WIDTHS}
    assert check_layout("UpSampling", [X], [Split(1)], 6, (4, 2), **up) == [Split(1)]
    assert check_layout("UpSampling", [X], [PARTIAL], 6, (4, 2), **up) == [PARTIAL]
    assert check_layout("Pad", [X], [Split(0)], 2, (1, 1), **pad) == [Split(0)]
    assert check_layout("Pad", [X], [PARTIAL], 2, (1, 1), **pad) == [PARTIAL]
    for op, layout, attrs, message in (
        ("UpSampling", Split(2), up, "works along axis 2, where the batch lies"),
        ("Pad", Split(1), pad, "pads axis 1, where the batch lies"),
        ("Pad", PARTIAL, {**pad, "constant_value": 1}, "adds a constant to a sum over the batch"),
        ("LRN", Split(1), {"nsize": 3}, "works along axis 1, where the batch lies"),
        ("LRN", PARTIAL, {"nsize": 3}, "a nonlinear function to a sum over the batch"),
    ):
        batch = X.shape[getattr(layout, "axis", 1)]
        with pytest.raises(MicroBatchError, match=message):
            check_layout(op, [X], [layout], batch, (batch - 2, 2), **attrs)
    assert check_layout("LRN", [X], [Split(0)], 2, (1, 1), nsize=3) == [Split(0)]


@pytest.mark.parametrize("nsize", [1, 3, 5, 13])
def test_lrn(nsize):
    half = nsize // 2
    sums = np.stack(
        [(X[:, max(0, c - half) : c + half + 1] ** 2).sum(axis=1) for c in range(6)], axis=1
    )
    want = X / (1.5 + 0.3 / nsize * sums) ** 0.6
    attrs = {"nsize": nsize, "alpha": 0.3, "beta": 0.6, "knorm": 1.5}
    np.testing.assert_allclose(run_op("LRN", X, **attrs), want, rtol=1e-12)
    check_op("LRN", X, **attrs)
    assert run_op("LRN", X.astype("float16"), **attrs).dtype == "float16"


def test_lrn_has_one_output_and_an_odd_size():
    assert LRN(Variable("x"), nsize=5, name="norm").list_outputs() == ["norm_output"]
    with pytest.raises(ShapeError, match="LRN 'op': nsize=4 must be odd"):
        op_graph("LRN", [X], nsize=4)
    with pytest.raises(ShapeError, match=r"data of shape \(3,\) has no channels"):
        op_graph("LRN", [np.zeros(3)], nsize=3)


# -- channels and blocks -----------------------------------------------------------------------


def test_depth_to_space_has_the_example_of_mxnets_documentation():
    x = np.arange(24.0).reshape(1, 4, 2, 3)
    want = [
        [0, 6, 1, 7, 2, 8],
        [12, 18, 13, 19, 14, 20],
        [3, 9, 4, 10, 5, 11],
        [15, 21, 16, 22, 17, 23],
    ]
    got = run_op("depth_to_space", x, block_size=2)
    np.testing.assert_array_equal(got, [[want]])
    np.testing.assert_array_equal(run_op("space_to_depth", got, block_size=2), x)


@pytest.mark.parametrize(
    ("op", "shape"), [("depth_to_space", (2, 18, 2, 1)), ("space_to_depth", (2, 2, 3, 6))]
)
def test_channels_and_blocks(op, shape):
    x = RNG.standard_normal(shape)
    check_op(op, x, block_size=3)
    for layout in (Split(0), PARTIAL):
        assert check_layout(op, [x], [layout], 2, (1, 1), block_size=3) == [layout]
    with pytest.raises(MicroBatchError, match="works along axis 1, where the batch lies"):
        check_layout(op, [x], [Split(1)], shape[1], (1, shape[1] - 1), block_size=3)
    with pytest.raises(ShapeError, match=r"does not fit .* \(block_size=4\)"):
        op_graph(op, [x], block_size=4)
    with pytest.raises(ShapeError, match="does not fit whole blocks"):  # not 0 channels
        op_graph(op, [np.ones((2, 3, 1, 1))], block_size=2)
