"""Pooling, against loops over windows as MXNet clips them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from symgraph.core.errors import GraphError, MicroBatchError, ShapeError
from symgraph.core.reference import evaluate
from symgraph.core.registry import find
from symgraph.frontend import sym
from symgraph.frontend.infer import infer_shapes
from symgraph.frontend.sym import Pooling, Variable
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

RNG = np.random.default_rng(12)


def normal(*shape, dtype="float64"):
    return RNG.standard_normal(shape).astype(dtype)


def count_of(length, kernel, stride, pad, convention):
    rest = length + 2 * pad - kernel
    if convention == "same":
        return math.ceil(length / stride)
    return (rest // stride if convention == "valid" else math.ceil(rest / stride)) + 1


def reduce_window(window, kind, size):
    if kind == "max":
        return window.max(axis=-1)
    if kind == "lp":
        return np.sqrt((window**2).sum(axis=-1))
    return window.sum(axis=-1) / (size if kind == "avg" else 1)


def by_windows(x, kernel, stride, pad, convention, kind, include):
    """Each window by itself; it ends with the padding at the latest."""
    lengths = x.shape[2:]
    given = list(zip(lengths, kernel, stride, pad, strict=True))
    counts = [count_of(*each, convention) for each in given]
    y = np.zeros((*x.shape[:2], *counts))
    for at in itertools.product(*map(range, counts)):
        places, with_pad = [], 1
        for i, (length, k, s, p) in zip(at, given, strict=True):
            begin, end = i * s - p, min(i * s - p + k, length + p)
            with_pad *= end - begin
            places.append(slice(max(begin, 0), min(end, length)))
        window = x[(slice(None), slice(None), *places)].reshape(*x.shape[:2], -1)
        size = with_pad if include else window.shape[-1]
        y[(slice(None), slice(None), *at)] = reduce_window(window, kind, size)
    return y


CASES = [  # lengths, kernel, stride, pad, convention
    ((7,), (3,), (2,), (1,), "valid"),
    ((8, 7), (2, 2), (2, 2), (0, 0), "valid"),
    ((8, 7), (2, 2), (2, 2), (0, 0), "full"),
    ((8, 7), (3, 3), (2, 2), (1, 1), "full"),
    ((8, 6), (3, 2), (2, 3), (0, 1), "full"),
    ((9, 5), (3, 3), (1, 1), (1, 1), "valid"),
    ((7, 7), (2, 2), (3, 3), (0, 0), "valid"),
    ((7,), (3,), (2,), (0,), "same"),
    ((6,), (2,), (4,), (0,), "same"),
    ((4, 5, 6), (2, 3, 2), (2, 1, 2), (1, 1, 0), "full"),
    ((5, 5), (1, 1), (1, 1), (0, 0), "valid"),
    ((6, 6), (1, 1), (2, 2), (0, 0), "valid"),
    ((5, 4), (5, 4), (1, 1), (0, 0), "valid"),
    ((5, 4), (5, 4), (1, 1), (1, 0), "valid"),
]


@pytest.mark.parametrize("kind", ["max", "avg", "sum", "lp"])
@pytest.mark.parametrize(("lengths", "kernel", "stride", "pad", "convention"), CASES)
def test_pooling_and_its_gradients(lengths, kernel, stride, pad, convention, kind):
    x = normal(2, 3, *lengths)
    before = x.copy()
    attrs = {
        "kernel": kernel,
        "stride": stride,
        "pad": pad,
        "pooling_convention": convention,
        "pool_type": kind,
        **({"p_value": 2} if kind == "lp" else {}),
    }
    for include in (None, False) if kind == "avg" else (None,):
        more = {} if include is None else {"count_include_pad": include}
        want = by_windows(x, kernel, stride, pad, convention, kind, include is None)
        got = run_op("Pooling", x, **attrs, **more)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
        check_op("Pooling", x, **attrs, **more)
    assert not np.shares_memory(got, x)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("kind", ["max", "avg", "sum"])
def test_global_pooling_ignores_the_window(kind):
    x = normal(2, 3, 4, 5)
    got = run_op(
        "Pooling", x, global_pool=True, pool_type=kind, kernel=(2, 2), stride=(2, 2), pad=(1, 1)
    )
    rows = x.reshape(2, 3, 20)
    want = {"max": rows.max(-1), "avg": rows.mean(-1), "sum": rows.sum(-1)}[kind]
    np.testing.assert_allclose(got, want.reshape(2, 3, 1, 1), rtol=1e-12)
    check_op("Pooling", x, global_pool=True, pool_type=kind)
    check_op("Pooling", normal(2, 3, 4), global_pool=True, pool_type=kind)


def gradient_of_sum(x, **attrs):
    both = gradients(op_graph("Pooling", [x], **attrs), ["x0"])
    out = both.graph[both.heads[0]].types[0].shape
    return evaluate(both.graph, {"x0": x, both.heads[0]: np.ones(out)})[1]


def test_the_gradient_of_a_maximum_goes_to_the_first_of_equal_elements():
    """First in reading order, so that relu's zeros do not multiply the gradient."""
    x = np.zeros((1, 1, 4, 4))
    x[0, 0, 1, 2:] = 1
    got = gradient_of_sum(x, kernel=(2, 2), stride=(2, 2))
    want = np.zeros((4, 4))
    want[0, 0] = want[1, 2] = want[2, 0] = want[2, 2] = 1
    np.testing.assert_array_equal(got[0, 0], want)
    overlapping = gradient_of_sum(np.zeros((1, 1, 3, 3)), kernel=(3, 3), pad=(1, 1))
    assert overlapping.sum() == 9
    assert overlapping[0, 0, 0, 0] == 4


def test_a_maximum_of_negative_numbers_is_not_the_padding():
    x = -1 - np.abs(normal(1, 2, 5, 5))
    assert (run_op("Pooling", x, kernel=(3, 3), pad=(1, 1), stride=(2, 2)) < 0).all()


def test_lp_of_zeros_has_gradient_zero():
    got = gradient_of_sum(np.zeros((1, 1, 4)), kernel=(2,), pool_type="lp", p_value=2)
    np.testing.assert_array_equal(got, 0)


@pytest.mark.parametrize("p_value", [1, 3])
def test_other_powers(p_value):
    x = np.abs(normal(2, 2, 6)) + 0.1
    want = (x[..., :-1] ** p_value + x[..., 1:] ** p_value) ** (1 / p_value)
    attrs = {"kernel": (2,), "pool_type": "lp", "p_value": p_value}
    np.testing.assert_allclose(run_op("Pooling", x, **attrs), want, rtol=1e-12)
    check_op("Pooling", x, **attrs)


@pytest.mark.parametrize("kind", ["max", "avg", "sum", "lp"])
def test_halves(kind):
    """Sums of many halves are made in float32."""
    x = np.abs(normal(2, 2, 40, 40)) + 1
    attrs = {"kernel": (40, 40), "pool_type": kind, **({"p_value": 2} if kind == "lp" else {})}
    got = run_op("Pooling", x.astype("float16"), **attrs)
    assert got.dtype == "float16"
    np.testing.assert_allclose(got, run_op("Pooling", x, **attrs), rtol=2e-3)


@pytest.mark.parametrize(
    ("length", "attrs", "out"),
    [
        (112, {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}, 56),  # ResNet
        (
            112,
            {"kernel": (3, 3), "stride": (2, 2), "pooling_convention": "full"},
            56,
        ),  # Inception-BN
        (55, {"kernel": (3, 3), "stride": (2, 2)}, 27),  # AlexNet
        (28, {"kernel": (3, 3), "stride": (2, 2), "pooling_convention": "full"}, 14),
        (28, {"kernel": (3, 3), "stride": (2, 2)}, 13),
        (28, {"kernel": (3, 3), "pad": (1, 1)}, 28),
        (32, {"kernel": (2, 2), "stride": (2, 2)}, 16),  # VGG
        (7, {"kernel": (7, 7), "global_pool": True}, 1),
    ],
)
def test_shapes_of_well_known_networks(length, attrs, out):
    symbol = Pooling(Variable("x"), name="pool", pool_type="max", **attrs)
    assert symbol.list_outputs() == ["pool_output"]
    assert symbol.infer_shape(x=(2, 8, length, length))[1] == [(2, 8, out, out)]


def test_shapes_are_found_backwards_as_far_as_they_are_known():
    symbol = Pooling(Variable("x"), name="p", kernel=(2, 2)) + Variable("y")
    assert infer_shapes(symbol, {"y": (5, 3, 0, 4)}).variables["x"] == (5, 3, 0, 0)
    symbol = Pooling(Variable("x"), name="p", global_pool=True) + Variable("y")
    assert infer_shapes(symbol, {"x": (0, 3, 6, 7), "y": (5, 0, 0, 0)}).variables["y"] == (
        5,
        3,
        1,
        1,
    )


def test_json_of_the_model_zoo():
    symbol = Pooling(
        Variable("x"),
        name="p",
        kernel="(3, 3)",
        global_pool="False",
        stride="(2,2)",
        pool_type="avg",
        pooling_convention="full",
        count_include_pad="True",
        cudnn_off="False",
        p_value="None",
        layout="None",
    )
    again = sym.load_json(symbol.tojson())
    assert again.infer_shape(x=(1, 2, 6, 6))[1] == [(1, 2, 3, 3)]


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"kernel": (2,)}, r"Pooling 'op': data of shape \(2, 3, 8, 7\) needs 3 axes"),
        ({}, r"kernel=\(\) has 0 axes, not 1 to 3"),
        (
            {"kernel": (9, 2)},
            r"a window of \(9, 2\) .* does not fit into data of shape \(2, 3, 8, 7\)",
        ),
        ({"kernel": (2, 2), "pad": (2, 0)}, r"pad=\(2, 0\) must be less than kernel=\(2, 2\)"),
        (
            {"kernel": (2, 2), "pad": (1, 0), "pooling_convention": "same"},
            r"pad=\(1, 0\) does not go with pooling_convention='same'",
        ),
        (
            {"kernel": (3, 2), "stride": (2, 3), "pad": (0, 1), "pooling_convention": "full"},
            r"the last window along axis 3 of data of shape \(2, 3, 8, 7\) lies in the padding "
            r"alone",
        ),
        (
            {"kernel": (2, 2), "pool_type": "lp"},
            r"pool_type='lp' needs p_value 1, 2 or 3, not None",
        ),
    ],
)
def test_mistakes_name_the_node_and_the_shapes(attrs, message):
    with pytest.raises(ShapeError, match=message):
        op_graph("Pooling", [np.zeros((2, 3, 8, 7))], **attrs)


def test_global_pooling_needs_something_to_pool():
    with pytest.raises(ShapeError, match=r"one to three spatial axes, not shape \(2, 3\)"):
        op_graph("Pooling", [np.zeros((2, 3))], global_pool=True)


def test_unknown_kinds():
    with pytest.raises(GraphError, match=r"pool_type='mean' is not a valid one of 'max', 'avg'"):
        Pooling(Variable("x"), kernel=(2, 2), pool_type="mean")


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_micro_batches(kind):
    x, attrs = normal(6, 4, 6, 6), {"kernel": (2, 2), "pool_type": kind}
    for layout, batch, parts in ((Split(0, 2, 1), 3, (2, 1)), (Split(1), 4, (3, 1))):
        assert check_layout("Pooling", [x], [layout], batch, parts, **attrs) == [layout]
    with pytest.raises(MicroBatchError, match="Pooling 'op' pools along axis 2, where the batch"):
        check_layout("Pooling", [x], [Split(2)], 6, (4, 2), **attrs)
    rule = find("Pooling").batch
    site = op_graph("Pooling", [x], **attrs)["op"].site
    assert rule(site, [WHOLE], (), ()) == [WHOLE]
    if kind == "max":
        with pytest.raises(MicroBatchError, match="a nonlinear function to a sum over the batch"):
            rule(site, [PARTIAL], (), ())
    else:
        assert check_layout("Pooling", [x], [PARTIAL], 6, (4, 2), **attrs) == [PARTIAL]
