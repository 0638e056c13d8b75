"""dot, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.passes.testing import check_op, run_op
from tests.symgraph.ops.layouts import WHOLE, Split, check_layout

RNG = np.random.default_rng(23)


def normal(*shape):
    return RNG.standard_normal(shape)


@pytest.mark.parametrize(
    ("left", "right", "turned"),
    [
        ((4,), (4,), ""),
        ((4,), (4,), "ab"),
        ((2, 4), (4, 3), ""),
        ((4, 2), (3, 4), "ab"),
        ((2, 3, 4), (4, 2, 5), ""),
        ((4, 2, 3), (4, 5), "a"),
        ((4, 2, 3), (2, 5, 4), "ab"),
        ((4,), (2, 5, 4), "b"),
        ((4, 2, 3), (4,), "a"),
    ],
)
def test_dot_of_any_rank(left, right, turned):
    x, y = normal(*left), normal(*right)
    attrs = {"transpose_a": "a" in turned, "transpose_b": "b" in turned}
    axes = 0 if "a" in turned else -1, -1 if "b" in turned else 0
    want = np.tensordot(x, y, axes)
    np.testing.assert_allclose(run_op("dot", x, y, **attrs), want.reshape(want.shape or (1,)))
    check_op("dot", x, y, **attrs)


def test_inner_sizes_must_be_equal():
    with pytest.raises(ShapeError, match="dot 'op': inner sizes differ: 2 and 4"):
        run_op("dot", normal(2, 3, 4), normal(4, 2), transpose_a=True)


def test_layouts_of_arrays_of_three_axes():
    x, y = normal(4, 2, 6), normal(3, 6, 4)
    both = {"transpose_a": True, "transpose_b": True}
    assert check_layout("dot", [x, y], [Split(2), WHOLE], 6, (2, 4), **both) == [Split(1)]
    assert check_layout("dot", [x, y], [WHOLE, Split(1, 2)], 3, (1, 2), **both) == [Split(3, 2)]
    with pytest.raises(MicroBatchError, match="sums samples with constant weights"):
        check_layout("dot", [x, y], [Split(0), WHOLE], 4, (2, 2), **both)
