"""The BLAS libraries: every back end against numpy in float64; MKL's bits."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.backends.cpu import blas
from runtime.backends.cpu.blas import BACK_ENDS
from runtime.backends.device.processor import limit_blas

CLOSE = {"float32": 1e-5, "float64": 1e-13}  # of the sum of the terms' sizes
SIZES = [(1, 1, 1), (1, 7, 5), (6, 1, 5), (6, 7, 1), (20, 200, 48), (70, 33, 300), (0, 3, 2)]
needs_mkl = pytest.mark.skipif(
    not BACK_ENDS["mkl"].installed(), reason="needs the extra mkl: pip install 'symgraph[mkl]'"
)
LIBRARIES = ["openblas", pytest.param("mkl", marks=needs_mkl)]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def numbers(rng, shape, dtype="float32"):
    return rng.standard_normal(shape).astype(dtype)


def assert_product(got, x, y):
    """got is x y, to rounding."""
    error = np.abs(got - x.astype(np.float64) @ y.astype(np.float64))
    assert (error <= CLOSE[got.dtype.name] * (np.abs(x) @ np.abs(y))).all()


def bound(name, x, y, dtype):
    out = np.full((len(x), y.shape[1]), np.nan, dtype)
    function, args = BACK_ENDS[name].bind(x, y, out, None)
    function(*args)
    return out


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(("rows", "inner", "units"), SIZES)
def test_products_of_any_size(rows, inner, units, turned, dtype, name, rng):
    x = numbers(rng, (inner, rows) if turned[0] else (rows, inner), dtype)
    y = numbers(rng, (units, inner) if turned[1] else (inner, units), dtype)
    x, y = x.T if turned[0] else x, y.T if turned[1] else y
    assert_product(bound(name, x, y, dtype), x, y)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize(("rows", "units"), [(20, 48), (70, 33)])
def test_a_row_is_added_to_every_row(rows, units, name, rng):
    """Into a part of a larger matrix; 20 rows by a transposed weight go another way."""
    x, weight, row = numbers(rng, (rows, 9)), numbers(rng, (units, 9)), numbers(rng, (units,))
    room = np.zeros((rows, units + 3), "float32")
    function, args = BACK_ENDS[name].bind(x, weight.T, room[:, :units], row)
    function(*args)
    np.testing.assert_allclose(room[:, :units], x @ weight.T + row, rtol=1e-5, atol=1e-5)
    assert not room[:, units:].any()


def test_numpys_library_may_be_any(monkeypatch, rng):
    """Into a part of a larger matrix, where numpy is not that of its wheels: dot refused it."""
    monkeypatch.setattr(blas, "_numpy_functions", dict)
    x, y, row, room = (numbers(rng, shape) for shape in ((70, 9), (9, 33), (33,), (70, 36)))
    function, args = blas.numpy_product(x, y, room[:, :33], row)
    function(*args)
    np.testing.assert_allclose(room[:, :33], x @ y + row, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LIBRARIES)
def test_operands_that_lie_apart(name, rng):
    """Rows, or columns, of a larger matrix; and what no library reads where it lies."""
    x, y = numbers(rng, (20, 60)), numbers(rng, (60, 40))
    for left, right in (
        (x[3:9, 10:30], y[5:25, 2:9]),
        (x[:, 10:30], y[5:45:2]),
        (x[::2, ::3], y[::3, ::2]),
        (x[::-1], y[:, ::-1]),
        (np.broadcast_to(x[0], (20, 60)), np.broadcast_to(y[:, :1], (60, 40))),
    ):
        assert_product(bound(name, left, right, "float32"), left, right)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("stacks", [((), ()), ((3,), (3,)), ((2, 1), (3,)), ((), (4,))])
def test_stacks_of_matrices(stacks, dtype, name, rng):
    x, y = numbers(rng, (*stacks[0], 6, 7), dtype), numbers(rng, (*stacks[1], 5, 7), dtype)
    y = y.swapaxes(-1, -2)
    made = BACK_ENDS[name].matmul(x, y)
    assert_product(made, x, y)
    out = np.full_like(made, np.nan)
    assert BACK_ENDS[name].matmul(x, y, out=out) is out
    np.testing.assert_array_equal(out, made)


@needs_mkl
@pytest.mark.parametrize(("rows", "inner", "units"), [(7, 333, 501), (20, 200, 800), (300, 64, 40)])
def test_bits_of_mkl_depend_neither_on_addresses_nor_on_threads(rows, inner, units, rng):
    """Without its strict mode, 7 x 333 times 333 x 501 had other bits on two threads."""
    x, y = numbers(rng, (rows, inner)), numbers(rng, (inner, units))
    wanted = bound("mkl", x, y, "float32")
    for threads in (1, 2):
        for shift in (1, 4, 9, 16):
            room = np.empty(x.size + y.size + wanted.size + shift, "float32")[shift:]
            moved, other, out = np.split(room, [x.size, x.size + y.size])
            moved[:], other[:], out = x.reshape(-1), y.reshape(-1), out.reshape(rows, units)
            function, args = BACK_ENDS["mkl"].bind(
                moved.reshape(x.shape), other.reshape(y.shape), out, None
            )
            with limit_blas(threads):
                function(*args)
            np.testing.assert_array_equal(out, wanted)
