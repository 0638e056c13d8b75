"""Crop: windows of images."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.frontend.sym import Crop, Variable
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

X = np.random.default_rng(40).standard_normal((2, 3, 6, 7))
LIKE = np.zeros((1, 5, 4, 3))


@pytest.mark.parametrize(
    ("attrs", "rows", "columns"),
    [
        ({}, slice(0, 4), slice(0, 3)),
        ({"offset": (2, 1)}, slice(2, 6), slice(1, 4)),
        ({"center_crop": True}, slice(1, 5), slice(2, 5)),
    ],
)
def test_values_and_gradients(attrs, rows, columns):
    got = run_op("Crop", X, LIKE, num_args=2, **attrs)
    np.testing.assert_array_equal(got, X[:, :, rows, columns])
    np.testing.assert_array_equal(run_op("Crop", X, num_args=1, h_w=(4, 3), **attrs), got)
    check_op("Crop", X, LIKE, num_args=2, **attrs)
    check_op("Crop", X, num_args=1, h_w=(4, 3), **attrs)


def test_names_and_shapes():
    net = Crop(Variable("x"), Variable("like"), name="crop")
    assert net.list_outputs() == ["crop_output"]
    assert net.infer_shape(x=(2, 3, 6, 7), like=(2, 1, 4, 4))[1] == [(2, 3, 4, 4)]
    partial = net.infer_shape_partial(x=(2, 3, 0, 0), like=(2, 1, 4, 4))
    assert partial[1] == [(2, 3, 4, 4)]


@pytest.mark.parametrize(
    ("arrays", "attrs", "message"),
    [
        (
            [X, LIKE],
            {"num_args": 2, "offset": (3, 0)},
            r"a window of \(4, 3\) at \(3, 0\) does not",
        ),
        ([X], {"num_args": 1}, "needs h_w, or a second input that has the height and width"),
        (
            [X[0]],
            {"num_args": 1, "h_w": (2, 2)},
            r"on \(batch, channel, height, width\), not \(3, 6",
        ),
    ],
)
def test_mistakes(arrays, attrs, message):
    with pytest.raises(ShapeError, match=f"Crop 'op': .*{message}"):
        op_graph("Crop", arrays, **attrs)


def test_micro_batches():
    attrs = {"num_args": 2}
    inputs = [X, np.zeros((2, 1, 4, 3))]
    assert check_layout("Crop", inputs, [Split(0)] * 2, 2, (1, 1), **attrs) == [Split(0)]
    assert check_layout("Crop", inputs, [PARTIAL, WHOLE], 2, (1, 1), **attrs) == [PARTIAL]
    with pytest.raises(MicroBatchError, match="works along axis 2, where the batch lies"):
        check_layout("Crop", inputs, [Split(2), WHOLE], 6, (3, 3), **attrs)
