"""scaled_dot_product_attention, against its formula; gradients; masks; micro-batches."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import DTypeError, MicroBatchError, ShapeError
from symgraph.core.params import Site, parse_params
from symgraph.core.registry import find, infer
from symgraph.core.types import TensorType
from symgraph.frontend import sym
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

OP = "scaled_dot_product_attention"
RNG = np.random.default_rng(12)
Q, K, V = (RNG.standard_normal((2, 3, *s)) for s in ((20, 5), (7, 5), (7, 4)))
MASKS = [(2, 3, 20, 7), (1, 1, 20, 7), (2, 1, 1, 7), (1, 3, 20, 1)]


def by_formula(q, k, v, mask=0.0, scale=None):
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale) + mask
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("scale", [None, 0.3])
def test_it_is_the_formula_of_the_paper(scale):
    np.testing.assert_allclose(run_op(OP, Q, K, V, scale=scale), by_formula(Q, K, V, scale=scale))
    check_op(OP, Q, K, V, scale=scale, second=False)


def test_a_query_sees_the_keys_up_to_its_own():
    hidden = np.where(np.tri(20, 7), 0, -np.inf)
    np.testing.assert_allclose(run_op(OP, Q, K, V, causal=True), by_formula(Q, K, V, hidden))
    check_op(OP, Q, K, V, causal=True, second=False)


@pytest.mark.parametrize("shape", MASKS)
def test_a_mask_is_added_to_the_scores(shape):
    mask = RNG.standard_normal(shape)
    got = run_op(OP, Q, K, V, mask, use_mask=True)
    np.testing.assert_allclose(got, by_formula(Q, K, V, mask))
    check_op(OP, Q, K, V, mask, use_mask=True, causal=shape[0] == 1, second=False)


def test_shapes_follow_in_all_directions():
    q, k, v = (sym.Variable(n) for n in "qkv")
    made = getattr(sym, OP)(q, k, v, name="a")
    assert made.list_outputs() == ["a_output"]
    assert made.infer_shape(q=(2, 6, 5), k=(0, 7, 0), v=(0, 0, 4)) == (
        [(2, 6, 5), (2, 7, 5), (2, 7, 4)],
        [(2, 6, 4)],
        [],
    )


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 6, 5), (2, 7, 4), (2, 7, 4)], r"lengths of queries and keys differ: \(5,\) and \(4,"),
        ([(2, 6, 5), (2, 7, 5), (2, 8, 4)], "numbers of keys and values differ"),
        ([(2, 6, 5), (3, 7, 5), (3, 7, 4)], "the axes before the matrices differ"),
        ([(6, 5), (7, 5), (7, 4)], "3 axes or more, as many in each"),
        ([(2, 6, 5), (2, 7, 5), (2, 7, 4), (2, 5, 7)], r"mask of shape \(2, 5, 7\) does not broad"),
        ([(2, 6, 5), (2, 7, 5), (2, 7, 4), (6, 7)], r"mask of shape \(6, 7\) does not broadcast"),
    ],
)
def test_shapes_that_do_not_fit(shapes, message):
    with pytest.raises(ShapeError, match=message):
        op_graph(OP, [np.ones(s) for s in shapes], use_mask=len(shapes) == 4)


def test_sums_and_masks_have_32_bits_at_least():
    op, ins = find(OP), [TensorType((1, 2, 3), "float16")] * 3 + [TensorType((1, 2, 2))]
    attrs = parse_params(OP, "a", op.params, {"use_mask": True})
    assert [t.dtype for t in infer(op, Site(OP, "a", attrs), ins)] == ["float16", "float32"]
    with pytest.raises(DTypeError, match="works on floats, not int32"):
        op_graph(OP, [np.ones((1, 2, 3), "int32")] * 3)


def test_flops_count_half_of_the_pairs_if_causal():
    types = [TensorType(x.shape) for x in (Q, K, V)]
    outs = [TensorType((2, 3, 20, 4)), TensorType((2, 3, 20))]
    whole, half = (find(OP).flops({"causal": c}, types, outs) for c in (False, True))
    assert whole == 2 * half == 6 * 20 * 7 * (2 * (5 + 4) + 6)


SAMPLES = Split(0, inner=2)
IN_ROWS = [RNG.standard_normal(s) for s in ((8, 4, 5), (8, 3, 5), (8, 3, 4))]


@pytest.mark.parametrize(
    ("mask", "layout", "mask_grad"),
    [(None, None, None), ((1, 4, 3), WHOLE, PARTIAL), ((8, 1, 3), SAMPLES, SAMPLES)],
)
def test_micro_batches(mask, layout, mask_grad):
    masks = [] if mask is None else [RNG.standard_normal(mask)]
    arrays, layouts = [*IN_ROWS, *masks], [SAMPLES] * 3 + [layout] * len(masks)
    attrs = {"use_mask": bool(masks)}
    assert check_layout(OP, arrays, layouts, 4, (3, 1), **attrs) == [SAMPLES]
    y, g = RNG.standard_normal((2, 8, 4, 4))
    given = [g, y, RNG.standard_normal((8, 4)), *arrays], [SAMPLES] * 3 + layouts
    assert check_layout("_attention_grad", *given, 4, (3, 1), **attrs) == [SAMPLES] * 3
    if masks:
        assert check_layout("_attention_grad_mask", *given, 4, (3, 1), **attrs) == [mask_grad]


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ([Split(1)] * 3, "lets samples attend to one another"),
        ([Split(0), WHOLE, WHOLE], "whose batch lies differently"),
        ([PARTIAL, WHOLE, WHOLE], "applies softmax to a sum over the batch"),
    ],
)
def test_what_micro_batches_would_change(layouts, message):
    with pytest.raises(MicroBatchError, match=message):
        check_layout(OP, RNG.standard_normal((3, 4, 4, 4)), layouts, 4, (2, 2))
