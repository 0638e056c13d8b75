"""batch_dot, against numpy's matmul."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.core.registry import find
from symgraph.core.types import TensorType
from symgraph.frontend import sym
from symgraph.frontend.infer import infer_shapes
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

RNG = np.random.default_rng(8)
BOTH = [(a, b) for a in (False, True) for b in (False, True)]


def turned(x, flag):
    return x.swapaxes(-1, -2).copy() if flag else x


def flags(ta, tb):
    return {"transpose_a": ta, "transpose_b": tb}


@pytest.mark.parametrize(("ta", "tb"), BOTH)
@pytest.mark.parametrize("lead", [(3,), (2, 3)])
def test_values_and_gradients(ta, tb, lead):
    x, y = RNG.standard_normal((*lead, 2, 5)), RNG.standard_normal((*lead, 5, 4))
    got = run_op("batch_dot", turned(x, ta), turned(y, tb), **flags(ta, tb))
    np.testing.assert_allclose(got, x @ y, rtol=1e-12)
    check_op("batch_dot", turned(x, ta), turned(y, tb), **flags(ta, tb))


@pytest.mark.parametrize(("ta", "tb"), BOTH)
def test_shapes_follow_in_all_directions(ta, tb):
    product = sym.batch_dot(sym.Variable("x"), sym.Variable("y"), name="b", **flags(ta, tb))
    assert product.list_outputs() == ["b_output"]
    x, y = ((3, 5, 2) if ta else (3, 2, 5)), ((3, 4, 5) if tb else (3, 5, 4))
    assert product.infer_shape(x=x, y=y)[1] == [(3, 2, 4)]
    found = infer_shapes(product + sym.Variable("out"), {"x": x, "out": (0, 0, 4)}).variables
    assert (found["y"], found["out"]) == (y, (3, 2, 4))


def test_mistakes():
    x = np.ones((3, 2, 5))
    for other, message in (
        ((3, 4, 5), r"batch_dot 'op': inner sizes differ: \(5,\) and \(4,\)"),
        ((2, 5, 4), r"the axes before the matrices differ: \(3,\) and \(2,\)"),
        ((5, 4), r"3 axes or more, as many in both, not \(3, 2, 5\) and \(5, 4\)"),
    ):
        with pytest.raises(ShapeError, match=message):
            op_graph("batch_dot", [x, np.ones(other)])


def test_flops_count_multiplications_and_additions():
    ins, outs = [TensorType((3, 5, 2)), TensorType((3, 5, 4))], [TensorType((3, 2, 4))]
    assert find("batch_dot").flops(flags(True, False), ins, outs) == 2 * 3 * 2 * 5 * 4


CASES = [
    # lhs, rhs, what comes out
    (Split(0), Split(0), Split(0)),
    (Split(1), WHOLE, Split(1)),
    (WHOLE, Split(2), Split(2)),
    (Split(2), Split(1), PARTIAL),
    (PARTIAL, WHOLE, PARTIAL),
    (WHOLE, WHOLE, WHOLE),
]


@pytest.mark.parametrize(("ta", "tb"), BOTH)
@pytest.mark.parametrize(("left", "right", "out"), CASES)
def test_micro_batches(left, right, out, ta, tb):
    def there(layout, flag):
        if flag and isinstance(layout, Split) and layout.axis:
            return Split(3 - layout.axis)
        return layout

    x, y = RNG.standard_normal((2, 4, 4, 4))
    arrays, given = [turned(x, ta), turned(y, tb)], [there(left, ta), there(right, tb)]
    assert check_layout("batch_dot", arrays, given, 4, (3, 1), **flags(ta, tb)) == [out]


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (Split(1), Split(2), "multiplies samples with one another"),
        (Split(0), Split(0, inner=2), "multiplies samples with one another"),
        (Split(2), WHOLE, "do not depend on them, one by one"),
        (Split(0), PARTIAL, "multiplies a sum over the batch with samples"),
        (PARTIAL, PARTIAL, "multiplies sums over the batch"),
    ],
)
def test_what_micro_batches_would_change(left, right, message):
    x, y = RNG.standard_normal((2, 4, 4, 4))
    with pytest.raises(MicroBatchError, match=message):
        check_layout("batch_dot", [x, y], [left, right], 4, (2, 2))
