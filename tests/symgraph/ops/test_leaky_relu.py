"""LeakyReLU's family, against its formulas."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from symgraph.core.errors import GraphError, MicroBatchError, ShapeError
from symgraph.frontend.sym import LeakyReLU, Variable
from symgraph.passes.testing import check_op, op_graph, run_op
from tests.symgraph.ops.layouts import WHOLE, Split, check_layout

RNG = np.random.default_rng(13)
X = RNG.standard_normal((3, 4, 5, 2))


FORMULAS = {
    "leaky": lambda x: np.where(x > 0, x, 0.3 * x),
    "elu": lambda x: np.where(x > 0, x, 0.3 * (np.exp(x) - 1)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * (np.exp(x) - 1)),
    "gelu": lambda x: x * np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))(x),
}


@pytest.mark.parametrize("act_type", FORMULAS)
def test_values_and_gradients(act_type):
    got = run_op("LeakyReLU", X, act_type=act_type, slope=0.3)
    np.testing.assert_allclose(got, FORMULAS[act_type](X), rtol=1e-12)
    check_op("LeakyReLU", X, act_type=act_type, slope=0.3)
    half = run_op("LeakyReLU", X.astype("float16"), act_type=act_type)
    assert half.dtype == "float16"


def test_large_numbers_do_not_overflow():
    x = np.array([-1e4, -90.0, 0.0, 90.0, 1e4], "float32")
    for act_type in FORMULAS:
        got = run_op("LeakyReLU", x, act_type=act_type)
        assert np.isfinite(got).all()
        assert got[2] == 0


@pytest.mark.parametrize(
    ("shape", "slopes"),
    [
        ((3, 4, 5, 2), 4),
        ((3, 4), 4),
        ((3, 4, 5), 1),
        ((6,), 1),
    ],
)
def test_prelu(shape, slopes):
    x, gamma = RNG.standard_normal(shape), RNG.standard_normal(slopes)
    along = gamma.reshape(-1, *[1] * (len(shape) - 2)) if len(shape) > 1 else gamma
    want = np.where(x > 0, x, along * x)
    np.testing.assert_array_equal(run_op("LeakyReLU", x, gamma, act_type="prelu"), want)
    check_op("LeakyReLU", x, gamma, act_type="prelu")


def test_the_defaults_are_mxnets():
    np.testing.assert_array_equal(run_op("LeakyReLU", np.array([-4.0, 2.0])), [-1.0, 2.0])
    symbol = LeakyReLU(Variable("x"), act_type="prelu", name="act")
    assert symbol.list_arguments() == ["x", "act_gamma"]
    assert symbol.infer_shape(x=(2, 7, 3))[0] == [(2, 7, 3), (7,)]
    assert LeakyReLU(Variable("x"), name="act").list_arguments() == ["x"]


def test_mistakes():
    with pytest.raises(
        ShapeError, match=r"LeakyReLU 'op': gamma of shape \(5,\) does not fit \(4,"
    ):
        op_graph("LeakyReLU", [X, np.zeros(5)], act_type="prelu")
    with pytest.raises(GraphError, match=r"act_type='rrelu' is not a valid one of 'leaky', 'elu',"):
        op_graph("LeakyReLU", [X], act_type="rrelu")


def test_micro_batches():
    gamma = RNG.standard_normal(4)
    assert check_layout("LeakyReLU", [X], [Split(1)], 4, (3, 1), act_type="elu") == [Split(1)]
    given = {"act_type": "prelu"}
    assert check_layout("LeakyReLU", [X, gamma], [Split(0), WHOLE], 3, (2, 1), **given) == [
        Split(0)
    ]
    with pytest.raises(MicroBatchError, match="a slope for each position of axis 1"):
        check_layout("LeakyReLU", [X, gamma], [Split(1), WHOLE], 4, (2, 2), **given)
    with pytest.raises(MicroBatchError, match="slopes that depend on the samples"):
        check_layout("LeakyReLU", [X, gamma], [WHOLE, Split(0)], 4, (2, 2), **given)


def test_importing_the_operators_does_not_load_scipy():
    code = "import symgraph.frontend.sym, sys; assert 'scipy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
