"""ROIPooling; the records of MXNet (tests/system/test_parity.py) hold its values too."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph import sym
from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.passes.testing import check_grads, op_graph, run_op
from tests.symgraph.ops.layouts import WHOLE, Split, check_layout

RNG = np.random.default_rng(34)
DATA = RNG.standard_normal((2, 3, 6, 7))
ROIS = np.array([[0, 1, 1, 4, 5], [1, 0, 2, 6, 3], [1, 5, 4, 2, 2], [0, -3, -2, 9, 20]], float)


def test_the_example_of_mxnets_documentation():
    data = np.arange(48.0).reshape(1, 1, 8, 6)
    rois = np.array([[0.0, 0, 0, 4, 4]])
    for scale, wanted in ((1.0, [[14, 16], [26, 28]]), (0.7, [[7, 9], [19, 21]])):
        found = run_op("ROIPooling", data, rois, pooled_size=(2, 2), spatial_scale=scale)
        np.testing.assert_array_equal(found[0, 0], wanted)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_gradients_go_to_the_largest_pixels(scale):
    graph = op_graph("ROIPooling", [DATA, ROIS], pooled_size=(3, 2), spatial_scale=scale)
    check_grads(graph, {"x0": DATA, "x1": ROIS}, ["x0"])
    far = np.array([[0, 50, 50, 60, 60.0]])
    outside = run_op("ROIPooling", DATA, far, pooled_size=(2, 2), spatial_scale=scale)
    np.testing.assert_array_equal(outside, 0)


def test_regions_and_micro_batches():
    """A region names its image by its number in the whole batch."""
    given = {"pooled_size": (2, 2), "spatial_scale": 1.0}
    assert check_layout("ROIPooling", [DATA, ROIS], [WHOLE] * 2, 2, (1, 1), **given) == [WHOLE]
    with pytest.raises(MicroBatchError, match="by their number in the whole batch"):
        check_layout("ROIPooling", [DATA, ROIS], [Split(0), Split(0)], 2, (1, 1), **given)


def test_shapes_and_errors():
    net = sym.ROIPooling(sym.Variable("x"), sym.Variable("r"), (2, 3), 0.5)
    assert net.infer_shape(x=(2, 3, 6, 7), r=(4, 0)) == ([(2, 3, 6, 7), (4, 5)], [(4, 3, 2, 3)], [])
    with pytest.raises(ShapeError, match="must be a height and a width"):
        sym.ROIPooling(sym.Variable("x"), pooled_size=2, spatial_scale=1).infer_shape(
            x=(2, 3, 4, 4)
        )
    with pytest.raises(IndexError, match=r"image of a region 2\.0 is outside 0\.\.1"):
        run_op("ROIPooling", DATA, ROIS + np.eye(1, 5), pooled_size=(2, 2), spatial_scale=1)
