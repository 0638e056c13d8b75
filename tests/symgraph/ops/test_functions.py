"""Roundings, logarithms, trigonometry, hard_sigmoid and smooth_l1, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import MicroBatchError
from symgraph.core.registry import OPS
from symgraph.passes.testing import check_op, run_op
from tests.symgraph.ops.layouts import PARTIAL, Split, check_layout

HALVES = np.array([-2.5, -1.7, -1.5, -0.5, -0.2, 0.0, 0.5, 0.7, 1.5, 2.5])
STEPS = {
    "floor": np.floor(HALVES),
    "ceil": np.ceil(HALVES),
    "trunc": np.trunc(HALVES),
    "fix": np.fix(HALVES),
    "round": [-3, -2, -2, -1, 0, 0, 1, 1, 2, 3],
    "rint": [-3, -2, -2, -1, 0, 0, 0, 1, 1, 2],
    "logical_not": HALVES == 0,
}
BELOW_ONE = {"arcsin", "arccos", "arctanh"}
SMOOTH = {
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "cbrt": np.cbrt,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "tan": np.tan,
    "arcsin": np.arcsin,
    "arccos": np.arccos,
    "arctan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "arcsinh": np.arcsinh,
    "arccosh": np.arccosh,
    "arctanh": np.arctanh,
    "degrees": np.degrees,
    "radians": np.radians,
}
LINEAR = {"degrees", "radians"}
RNG = np.random.default_rng(31)


def data_for(name, *shape):
    low, high = (0.1, 0.8) if name in BELOW_ONE else (1.1, 1.5) if name == "arccosh" else (0.2, 1.4)
    return RNG.uniform(low, high, shape)


def test_every_operator_of_the_file_is_checked_here():
    defined = {n for n in (*STEPS, *SMOOTH, "hard_sigmoid", "smooth_l1") if n in OPS}
    assert defined == {*STEPS, *SMOOTH, "hard_sigmoid", "smooth_l1"}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", STEPS)
def test_steps(name, dtype):
    got = run_op(name, HALVES.astype(dtype))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, STEPS[name])
    assert OPS[name].grad is None
    whole = np.array([-3, 0, 2], "int32")
    want = whole == 0 if name == "logical_not" else whole
    np.testing.assert_array_equal(run_op(name, whole), want)


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_functions(name):
    x = data_for(name, 3, 4)
    np.testing.assert_allclose(run_op(name, x), SMOOTH[name](x), rtol=1e-12)
    assert run_op(name, x.astype("float32")).dtype == "float32"
    check_op(name, x)


def test_hard_sigmoid():
    x = np.array([-4.0, -2.0, 0.3, 1.7, 2.9])
    np.testing.assert_allclose(run_op("hard_sigmoid", x), [0, 0.1, 0.56, 0.84, 1])
    np.testing.assert_allclose(run_op("hard_sigmoid", x, alpha=0.5, beta=0), [0, 0, 0.15, 0.85, 1])
    check_op("hard_sigmoid", x)
    assert run_op("hard_sigmoid", x.astype("float16")).dtype == "float16"


@pytest.mark.parametrize("scalar", [1.0, 2.0])
def test_smooth_l1(scalar):
    x = np.array([-3.0, -0.6, -0.1, 0.2, 0.9, 4.0])
    inside = abs(x) < 1 / scalar**2
    want = np.where(inside, (scalar * x) ** 2 / 2, abs(x) - 0.5 / scalar**2)
    np.testing.assert_allclose(run_op("smooth_l1", x, scalar=scalar), want)
    check_op("smooth_l1", x, scalar=scalar)


@pytest.mark.parametrize("name", [*STEPS, *SMOOTH, "hard_sigmoid", "smooth_l1"])
def test_micro_batches(name):
    x = [data_for(name, 4, 3)]
    assert check_layout(name, x, [Split(0)], 4, (3, 1)) == [Split(0)]
    if name in LINEAR:
        assert check_layout(name, x, [PARTIAL], 4, (3, 1)) == [PARTIAL]
        return
    with pytest.raises(MicroBatchError, match=f"{name} 'op' applies a nonlinear function"):
        check_layout(name, x, [PARTIAL], 4, (3, 1))
