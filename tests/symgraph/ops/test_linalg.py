"""MXNet's linalg: values by numpy, gradients, micro-batches."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph import sym
from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.frontend.lower import lower
from symgraph.passes.testing import check_grads, check_op, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

RNG = np.random.default_rng(32)
SQUARE = RNG.standard_normal((4, 3, 3))
TRIANGLES = np.tril(SQUARE) + 3 * np.eye(3)
DEFINITE = SQUARE @ SQUARE.swapaxes(1, 2) + np.eye(3)


def turned(x, transpose):
    return x.swapaxes(-1, -2) if transpose else x


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_products(ta, tb, lead):
    a, b = (
        turned(RNG.standard_normal((*lead, 2, 3)), ta),
        turned(RNG.standard_normal((*lead, 3, 4)), tb),
    )
    c = RNG.standard_normal((*lead, 2, 4))
    flags = {"transpose_a": ta, "transpose_b": tb, "alpha": 0.5}
    product = 0.5 * turned(a, ta) @ turned(b, tb)
    np.testing.assert_allclose(run_op("linalg_gemm2", a, b, **flags), product)
    np.testing.assert_allclose(run_op("linalg_gemm", a, b, c, beta=2, **flags), product + 2 * c)
    check_op("linalg_gemm2", a, b, **flags)
    check_op("linalg_gemm", a, b, c, beta=2, **flags)


@pytest.mark.parametrize("transpose", [False, True])
def test_a_matrix_times_itself(transpose):
    a = RNG.standard_normal((2, 3, 4))
    made = run_op("linalg_syrk", a, transpose=transpose, alpha=0.3)
    np.testing.assert_allclose(made, 0.3 * turned(a, transpose) @ turned(a, not transpose))
    check_op("linalg_syrk", a, transpose=transpose, alpha=0.3)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("rightside", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_triangular_matrices(transpose, rightside, lower):
    a, b = SQUARE + 3 * np.eye(3), turned(RNG.standard_normal((4, 3, 2)), rightside)
    given = {"transpose": transpose, "rightside": rightside, "lower": lower, "alpha": 0.7}
    matrix = turned(np.tril(a) if lower else np.triu(a), transpose)
    product = 0.7 * (b @ matrix if rightside else matrix @ b)
    np.testing.assert_allclose(run_op("linalg_trmm", a, b, **given), product)
    solved = run_op("linalg_trsm", a, b, **given)
    np.testing.assert_allclose(solved @ matrix if rightside else matrix @ solved, 0.7 * b)
    for op in ("linalg_trmm", "linalg_trsm"):
        check_op(op, a, b, second=False, **given)
        assert check_layout(op, [a, b], [Split(0)] * 2, 4, (3, 1), **given) == [Split(0)]
    if lower and not transpose:
        check_op("linalg_trsm", a, b, **given)


@pytest.mark.parametrize("lower_part", [True, False])
def test_cholesky_and_inverse(lower_part):
    given = {"lower": lower_part}
    kept, other = (np.tril, np.triu) if lower_part else (np.triu, np.tril)
    unread = other(np.ones((3, 3)), 1 if lower_part else -1)
    factor = run_op("linalg_potrf", kept(DEFINITE) + unread, **given)
    np.testing.assert_array_equal(factor, kept(factor))
    pair = (factor, factor.swapaxes(1, 2))[:: 1 if lower_part else -1]
    np.testing.assert_allclose(np.matmul(*pair), DEFINITE)
    inverse = run_op("linalg_potri", factor + unread, **given)
    np.testing.assert_allclose(inverse @ DEFINITE, np.broadcast_to(np.eye(3), (4, 3, 3)), atol=1e-9)
    check_op("linalg_potri", TRIANGLES if lower_part else TRIANGLES.swapaxes(1, 2), **given)
    x = sym.Variable("x")
    definite = sym.linalg.syrk(x) + sym.linalg.makediag(sym.ones((4, 3), dtype="float64"))
    graph = lower(sym.linalg.potrf(definite, **given), {"x": (4, 3, 3)}, {"x": "float64"})
    check_grads(graph, {"x": SQUARE}, rtol=1e-5)
    check_op("_mirror", SQUARE)
    with pytest.raises(np.linalg.LinAlgError):
        run_op("linalg_potrf", -DEFINITE, **given)


def test_diagonals():
    sums = run_op("linalg_sumlogdiag", TRIANGLES)
    np.testing.assert_allclose(sums, np.log(np.linalg.det(TRIANGLES)))
    assert run_op("linalg_sumlogdiag", TRIANGLES[0]).shape == (1,)
    check_op("linalg_sumlogdiag", TRIANGLES)
    check_op("linalg_sumlogdiag", TRIANGLES[0])
    for offset in (0, 1, -2):
        lines = run_op("linalg_extractdiag", SQUARE, offset=offset)
        np.testing.assert_array_equal(lines, np.diagonal(SQUARE, offset, 1, 2))
        made = run_op("linalg_makediag", lines, offset=offset)
        np.testing.assert_array_equal(made[1], np.diag(lines[1], offset))
        check_op("linalg_extractdiag", SQUARE, offset=offset)
        check_op("linalg_makediag", lines, offset=offset)


@pytest.mark.parametrize(
    ("op", "x"),
    [
        ("linalg_syrk", SQUARE),
        ("linalg_potrf", DEFINITE),
        ("linalg_potri", TRIANGLES),
        ("linalg_sumlogdiag", TRIANGLES),
        ("linalg_extractdiag", SQUARE),
        ("linalg_makediag", SQUARE[:, 0]),
    ],
)
def test_micro_batches_have_whole_matrices(op, x):
    assert check_layout(op, [x], [Split(0)], 4, (3, 1)) == [Split(0)]
    with pytest.raises(MicroBatchError):
        check_layout(op, [x], [Split(x.ndim - 1)], 3, (2, 1))


def test_micro_batches_of_products():
    a, b = RNG.standard_normal((6, 3)), RNG.standard_normal((3, 4))
    assert check_layout("linalg_gemm2", [a, b], [Split(0), WHOLE], 6, (4, 2)) == [Split(0)]
    found = check_layout("linalg_gemm2", [a, a], [Split(0)] * 2, 6, (4, 2), transpose_a=True)
    assert found == [PARTIAL]
    c = RNG.standard_normal((6, 4))
    layouts = [Split(0), WHOLE, Split(0)]
    assert check_layout("linalg_gemm", [a, b, c], layouts, 6, (4, 2)) == [Split(0)]
    square, flags = RNG.standard_normal((3, 3)), {"transpose_a": True}
    with pytest.raises(MicroBatchError, match="adds a constant to a sum over the batch"):
        check_layout("linalg_gemm", [a, a, square], [Split(0)] * 2 + [WHOLE], 6, (4, 2), **flags)


def test_shapes():
    a, b = sym.Variable("A"), sym.Variable("B")
    assert sym.linalg.gemm2(a, b).infer_shape(A=(2, 3), B=(0, 4))[0] == [(2, 3), (3, 4)]
    assert sym.linalg.trsm(a, b).infer_shape(B=(5, 3, 2))[0] == [(5, 3, 3), (5, 3, 2)]
    assert sym.linalg.trsm(a, b, rightside=True).infer_shape(B=(3, 2))[0] == [(2, 2), (3, 2)]
    with pytest.raises(ShapeError, match=r"square matrices, not an array of shape \(3, 2\)"):
        sym.linalg.potrf(a).infer_shape(A=(3, 2))
    with pytest.raises(ShapeError, match=r"A of shape \(2, 2\) does not fit \(3, 3\)"):
        sym.linalg.trmm(a, b).infer_shape(A=(2, 2), B=(3, 5))
    with pytest.raises(ShapeError, match="have no diagonal -3"):
        sym.linalg.extractdiag(a, offset=-3).infer_shape(A=(3, 3))
