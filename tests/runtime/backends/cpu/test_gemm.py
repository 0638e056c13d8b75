"""Packed products and the kernels made of them against numpy in float64."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
import pytest

from runtime.backends.cpu.gemm import available, matmul_packed, pack, packed_shape
from runtime.backends.cpu.table import KERNELS
from runtime.backends.device.table import CallContext, KernelCall
from symgraph.core.params import parse_params
from symgraph.core.registry import Env, find

DTYPES = ["float32", "float64"]
CLOSE = {"float16": 1e-3, "float32": 1e-5, "float64": 1e-13}  # of the sum of the terms' sizes
ROWS = [1, 3, 20, 64, 130, 250]
SIZES = [(1, 1), (7, 5), (31, 33), (200, 48), (513, 17), (1100, 70)]  # inner, units

with_vectors = pytest.mark.skipif(
    not available(), reason="packed products need a CPU with AVX-512 or AVX2 and FMA"
)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def numbers(rng, shape, dtype):
    return rng.standard_normal(shape).astype(dtype)


def packed(weight, transposed):
    units, inner = weight.shape if transposed else weight.shape[::-1]
    buffer = np.full(packed_shape(inner, units), np.nan, weight.dtype)
    pack(weight, buffer, transposed)
    return buffer


def assert_product(got, x, y, add=0.0):
    """got is x y + add, to rounding."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    error = np.abs(got - (x @ y + add))
    assert (error <= CLOSE[got.dtype.name] * (np.abs(x) @ np.abs(y) + np.abs(add))).all()


# -- packed products -----------------------------------------------------------------------------


@with_vectors
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("inner", "units"), SIZES)
def test_products_of_any_size(inner, units, transposed, dtype, rng):
    y = numbers(rng, (inner, units), dtype)
    operand = packed(np.ascontiguousarray(y.T) if transposed else y, transposed)
    for rows in ROWS:
        x = numbers(rng, (rows, inner), dtype)
        out = np.full((rows, units), np.nan, dtype)
        matmul_packed(x, operand, out)
        assert_product(out, x, y)


@with_vectors
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inner", "units"), [(7, 5), (1100, 70)])
def test_accumulates_between_guards(inner, units, dtype, rng):
    y = numbers(rng, (inner, units), dtype)
    operand = packed(y, False)
    for rows in ROWS:
        around = np.full((rows, inner + 3), np.nan, dtype)
        x = around[:, 1 : inner + 1]
        x[:] = numbers(rng, x.shape, dtype)
        room = np.full((rows + 2, units + 9), 7, dtype)
        before = room.copy()
        inside = room[1:-1, 4 : units + 4]
        inside[:] = start = numbers(rng, (rows, units), dtype)
        matmul_packed(x, operand, inside, accumulate=True)
        assert_product(inside, x, y, start)
        inside[:] = 7
        np.testing.assert_array_equal(room, before)


def at_the_end(array):
    """A copy whose end is the end of the memory that may be touched."""
    page = mmap.PAGESIZE
    pages = -(-array.nbytes // page)
    room = mmap.mmap(-1, (pages + 2) * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    assert protect(start + (pages + 1) * page, page, 0) == 0
    offset = (pages + 1) * page - array.nbytes
    copy = np.frombuffer(room, array.dtype, array.size, offset).reshape(array.shape)
    copy[...] = array
    return copy


@with_vectors
@pytest.mark.skipif(sys.platform != "linux", reason="protects pages by Linux's mprotect")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inner", "units"), [(7, 5), (513, 33)])
def test_touches_nothing_past_its_arrays(inner, units, dtype, rng):
    """A load or store too far ends the interpreter."""
    x, y = numbers(rng, (13, inner), dtype), numbers(rng, (inner, units), dtype)
    for weight, transposed in ((y, False), (np.ascontiguousarray(y.T), True)):
        size = packed_shape(inner, units)
        operand, out = at_the_end(np.zeros(size, dtype)), at_the_end(np.zeros((13, units), dtype))
        pack(at_the_end(weight), operand, transposed)
        matmul_packed(at_the_end(x), operand, out)
        assert_product(out, x, y)
        matmul_packed(at_the_end(x), operand, out, accumulate=True)
        assert_product(out / 2, x, y)


@with_vectors
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rows_bits_do_not_depend_on_the_others(dtype, rng):
    x, y = numbers(rng, (250, 1100), dtype), numbers(rng, (1100, 70), dtype)
    operand = packed(y, False)
    whole = np.empty((250, 70), dtype)
    matmul_packed(x, operand, whole)
    for first, last in ((0, 1), (1, 3), (5, 18), (7, 27), (100, 164), (3, 250)):
        part = np.empty((last - first, 70), dtype)
        matmul_packed(x[first:last], operand, part)
        np.testing.assert_array_equal(part, whole[first:last])


@with_vectors
def test_bits_do_not_depend_on_addresses(rng):
    x, y = numbers(rng, (20, 40), "float32"), numbers(rng, (40, 70), "float32")
    wanted = np.empty((20, 70), "float32")
    matmul_packed(x, packed(y, False), wanted)
    for shift in range(1, 17):
        arrays = [np.empty(size + 16, "float32") for size in (800, 1400, *packed_shape(40, 70))]
        moved, out, buffer = (a[shift : a.size - 16 + shift] for a in arrays)
        moved[:] = x.reshape(-1)
        pack(y, buffer, False)
        matmul_packed(moved.reshape(20, 40), buffer, out.reshape(20, 70))
        np.testing.assert_array_equal(out.reshape(20, 70), wanted)


@with_vectors
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_stay_where_they_belong(dtype, rng):
    x, y = abs(numbers(rng, (20, 600), dtype)), abs(numbers(rng, (600, 33), dtype))
    x[3, 7], x[5, 520], y[9, 32], y[599, 4] = np.nan, np.inf, np.nan, -np.inf
    out = np.zeros((20, 33), dtype)
    matmul_packed(x, packed(y, False), out)
    wanted = np.zeros((20, 33))
    wanted[5] = np.inf
    wanted[:, 4] = -np.inf
    wanted[5, 4] = wanted[3] = wanted[:, 32] = np.nan
    np.testing.assert_array_equal(np.where(np.isfinite(out), 0, out), wanted)


@with_vectors
def test_packing_fits_its_buffer():
    weight = np.ones((4, 6), "float32")
    with pytest.raises(AssertionError):
        pack(weight, np.empty(packed_shape(5, 4), "float32"), True)
    with pytest.raises(AssertionError):
        pack(weight, np.empty(packed_shape(6, 4), "float64"), True)


# -- kernels -------------------------------------------------------------------------------------


def call(op, ins, packs=None, **attrs):
    """A kernel's output, checked against the operator's own in float64; None: there is none.

    packs: a list that takes (input, transposed) of each packed operand asked for; None: no input
    is a parameter.
    """
    found = find(op)
    attrs = parse_params(op, "test", found.params, attrs)
    wanted = found.compute(Env(), attrs, *[x.astype(np.float64) for x in ins])
    sizes = found.compute(Env(), attrs, *[np.abs(x.astype(np.float64)) for x in ins])
    out = np.full(wanted.shape, 99, ins[0].dtype)

    def packer(index, transposed):
        packs.append((index, transposed))
        return packed(ins[index], transposed)

    weights = tuple(packs is not None and i > 0 for i in range(len(ins)))
    task = KernelCall(
        attrs, tuple(ins), (out,), CallContext(), weights, None if packs is None else packer
    )
    bound = KERNELS[op](task)
    if bound is None:
        return None
    bound.function(*bound.args)
    assert (np.abs(out - wanted) <= CLOSE[out.dtype.name] * sizes).all()
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
def test_fully_connected(bias, dtype, rng):
    weight = numbers(rng, (33, 70), dtype)
    rest = [numbers(rng, 33, dtype)] if bias else []
    given = {"num_hidden": 33, "no_bias": not bias}
    for rows in (1, 2, 64, 256, 300):
        ins = [numbers(rng, (rows, 7, 10), dtype), weight, *rest]
        packs = []
        few = 2 <= rows <= 256 and available()
        assert call("FullyConnected", ins, packs, **given) is not None
        assert packs == [(1, True)] * few
        assert call("FullyConnected", ins, **given) is not None
    ins = [numbers(rng, (4, 5, 70), dtype), weight, *rest]
    packs = []
    call("FullyConnected", ins, packs, flatten=False, **given)
    assert packs == [(1, True)] * available()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_fully_connected(dtype, rng):
    weight = numbers(rng, (33, 70), dtype)
    for rows in (1, 2, 64, 256, 300):
        grad, data = numbers(rng, (rows, 33), dtype), numbers(rng, (rows, 7, 10), dtype)
        packs = []
        assert call("_fc_grad_data", [grad, weight], packs, shape=data.shape) is not None
        assert packs == [(1, False)] * (2 <= rows <= 256 and available())
        assert call("_fc_grad_data", [grad, weight], shape=data.shape) is not None
        assert call("_fc_grad_weight", [grad, data]) is not None
        assert call("_sum_rows", [grad]) is not None
    grad, data = numbers(rng, (4, 5, 33), dtype), numbers(rng, (4, 5, 70), dtype)
    assert call("_fc_grad_data", [grad, weight], [], shape=data.shape) is not None
    assert call("_fc_grad_weight", [grad, data], []) is not None
    assert call("_sum_rows", [grad]) is not None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_dot(ta, tb, dtype, rng):
    for rows, inner, units in ((1, 1, 1), (1, 70, 33), (20, 70, 33), (300, 40, 5), (5, 1, 9)):
        x = numbers(rng, (inner, rows) if ta else (rows, inner), dtype)
        y = numbers(rng, (units, inner) if tb else (inner, units), dtype)
        packs = []
        assert call("dot", [x, y], packs, transpose_a=ta, transpose_b=tb) is not None
        assert packs == [(1, tb)] * (not ta and 2 <= rows <= 256 and available())
        assert call("dot", [x, y], transpose_a=ta, transpose_b=tb) is not None


def test_a_sum_of_rows_keeps_nan_to_its_column():
    x = np.ones((9, 40), "float32")
    x[6, 3], x[8, 5], x[1, 39] = np.nan, np.inf, -np.inf
    out = np.zeros(40, "float32")
    bound = KERNELS["_sum_rows"](KernelCall({}, (x,), (out,), CallContext()))
    bound.function(*bound.args)
    np.testing.assert_array_equal(out, x.sum(axis=0))


def test_other_cases_are_left_to_the_operators(rng):
    x, y = np.ones((20, 3), "int32"), np.ones((3, 4), "int32")
    assert call("dot", [x, y]) is None
    assert call("_sum_rows", [x]) is None
    assert call("dot", [np.ones(3, "float32"), np.ones((3, 4), "float32")]) is None
    assert call("dot", [np.ones((2, 2, 3), "float32"), np.ones((3, 4), "float32")]) is None


def test_parameters_that_nobody_packs(rng):
    grad, weight = numbers(rng, (20, 33), "float32"), numbers(rng, (33, 70), "float32")
    out = np.empty((20, 70), "float32")
    task = KernelCall({"shape": (20, 70)}, (grad, weight), (out,), CallContext(), (False, True))
    bound = KERNELS["_fc_grad_data"](task)
    bound.function(*bound.args)
    assert_product(out, grad, weight)
