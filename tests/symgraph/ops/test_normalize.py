"""L2Normalization, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.frontend.sym import L2Normalization, Variable
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, Split, check_layout

X = np.random.default_rng(23).standard_normal((4, 3, 2, 5))
AXES = {"instance": (1, 2, 3), "channel": (1,), "spatial": (2, 3)}


@pytest.mark.parametrize("mode", AXES)
def test_values_and_gradients(mode):
    want = X / np.sqrt((X**2).sum(AXES[mode], keepdims=True) + 0.3)
    np.testing.assert_allclose(run_op("L2Normalization", X, mode=mode, eps=0.3), want, rtol=1e-12)
    check_op("L2Normalization", X, mode=mode, eps=0.3)
    half = run_op("L2Normalization", X.astype("float16"), mode=mode, eps=0.3)
    assert half.dtype == "float16"
    np.testing.assert_allclose(half, want, atol=2e-3)


def test_names_and_shapes():
    net = L2Normalization(Variable("x"), name="l2")
    assert net.list_outputs() == ["l2_output"]
    assert net.infer_shape(x=(4, 3))[1] == [(4, 3)]
    with pytest.raises(
        ShapeError,
        match=r"L2Normalization 'op': data of shape \(4, 3\) has fewer "
        "than the 3 axes that mode='spatial' needs",
    ):
        op_graph("L2Normalization", [X[:, :, 0, 0]], mode="spatial")


def test_micro_batches():
    for mode in AXES:
        assert check_layout("L2Normalization", [X], [Split(0)], 4, (3, 1), mode=mode) == [Split(0)]
    attrs = {"mode": "spatial"}
    assert check_layout("L2Normalization", [X], [Split(1)], 3, (2, 1), **attrs) == [Split(1)]
    with pytest.raises(MicroBatchError, match="works along axis 1, where the batch lies"):
        check_layout("L2Normalization", [X], [Split(1)], 3, (2, 1))
    with pytest.raises(MicroBatchError, match="nonlinear function to a sum over the batch"):
        check_layout("L2Normalization", [X], [PARTIAL], 4, (3, 1))
