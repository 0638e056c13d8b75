"""Products of bfloat16 against float64; operators in 16 bits against their computations."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numba import typeof

from runtime.backends.bodies import bind_call, packed_buffer
from runtime.backends.cpu import helpers, pair_calls, pairs
from runtime.backends.cpu.gemm import available, pack
from runtime.backends.cpu.low import through_float32
from runtime.backends.cpu.pairs import has_pair_products
from runtime.backends.cpu.rounding import as_words, narrow, widen
from runtime.backends.cpu.table import KERNELS, TAKES_LOW
from runtime.backends.cpu.tiles import has_tiles
from runtime.backends.device.processor import limit_blas
from runtime.backends.device.table import CallContext, KernelCall
from symgraph.core.params import Site, parse_params
from symgraph.core.registry import Env, computation, find, infer
from symgraph.core.types import TensorType

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HALF_STEP = 2.0**-8  # of a bfloat16, relative
SUMS = 1e-5  # of the sum of the terms' sizes: what float32 sums may lose
SIZES = [(1, 1, 1), (3, 7, 5), (13, 513, 33), (30, 1100, 70), (250, 40, 70)]

with_vectors = pytest.mark.skipif(
    not available(), reason="needs a CPU with AVX-512 or AVX2 and FMA"
)
by_kernels = pytest.mark.parametrize(
    "kernel",
    [
        pytest.param("packed", marks=with_vectors),
        pytest.param("amx", marks=pytest.mark.skipif(not has_tiles(), reason="no AMX here")),
    ],
)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def numbers(rng, shape, dtype=BFLOAT16):
    return rng.standard_normal(shape).astype(dtype)


def of_dtype(array, transposed):
    return np.ascontiguousarray(array.T if transposed else array)


def multiplied(kernel, x, y, turned, packed, out, bias=None, y_turned=False):
    function, args = pair_calls.product(kernel, x, turned, y, y_turned, out, bias, packed)
    function(*args)
    return out


def assert_product(got, x, y, add=0.0):
    """got is x y + add to the sums' rounding, and that to bfloat16."""
    x, y = x.astype("float64"), y.astype("float64")
    want = x @ y + add
    terms = np.abs(x) @ np.abs(y) + np.abs(add)
    assert (np.abs(got.astype("float64") - want) <= HALF_STEP * np.abs(want) + SUMS * terms).all()


@by_kernels
@pytest.mark.parametrize(("rows", "inner", "units"), SIZES)
def test_products_of_any_size(rows, inner, units, kernel, rng):
    x, y, bias = (numbers(rng, shape) for shape in ((rows, inner), (inner, units), units))
    wanted = multiplied(kernel, x, y, False, None, np.empty((rows, units), BFLOAT16), bias)
    assert_product(wanted, x, y, bias.astype("float64"))
    for turned in (False, True):
        for y_turned in (False, True):
            weight = of_dtype(y, y_turned)
            for held in (weight, weight.astype("float32")):  # the parameter, or its cast
                buffer = packed_buffer(held, y_turned, BFLOAT16)
                pack(held, buffer, y_turned)
                for packed in (None, buffer):
                    for dtype in (BFLOAT16, np.float32):  # float32 holds the rounded numbers
                        out = np.full((rows, units), np.nan, dtype)
                        left = of_dtype(x, turned)
                        multiplied(kernel, left, weight, turned, packed, out, bias, y_turned)
                        np.testing.assert_array_equal(out, wanted.astype(dtype))


@by_kernels
def test_one_kernel_is_compiled_for_all_forms_of_a_product(kernel, rng):
    """It takes seconds to compile: it was for each dtype of the output, and without a bias."""
    x, y = numbers(rng, (2, 3)), numbers(rng, (3, 5))
    kernels = set()
    for dtype in (BFLOAT16, np.float32):
        for bias in (None, numbers(rng, 5)):
            out = np.empty((2, 5), dtype)
            _, args = pair_calls.product(kernel, x, False, y, False, out, bias, None)
            function, *factors = args[-1]
            kernels.add((function, *map(typeof, factors)))
    assert len(kernels) == 1


@by_kernels
def test_a_rows_bits_do_not_depend_on_the_others(kernel, rng):
    x, y = numbers(rng, (300, 1100)), numbers(rng, (1100, 70))
    whole = multiplied(kernel, x, y, False, None, np.empty((300, 70), BFLOAT16))
    for first, last in ((0, 1), (1, 3), (5, 18), (100, 164), (3, 300)):
        part = multiplied(
            kernel, x[first:last], y, False, None, np.empty((last - first, 70), BFLOAT16)
        )
        np.testing.assert_array_equal(part, whole[first:last])


@pytest.mark.skipif(not has_pair_products(), reason="this CPU has no vdpbf16ps")
def test_pairs_and_float32_give_the_same_bits(rng):
    """Which of them is faster is measured in each process: the sums must not show it.

    The terms cancel, so that all that is left is the error of the sums, which depends on the order.
    """
    x, y = numbers(rng, (30, 1100)), numbers(rng, (1100, 70))
    x, y = np.concatenate([x, -x], 1), np.concatenate([y, y])
    x[0, :8], y[:8, 0] = [np.inf, 3, -2, np.nan, 0, -0.0, 1e38, 1], 1e38
    buffer = packed_buffer(y, False, BFLOAT16)
    pack(y, buffer, False)
    room = np.empty(pairs.room_size(30, 2200, 70), np.uint8)
    outs = []
    for wide in (True, False):
        out = np.empty((30, 70), np.uint16)
        args = as_words(x), False, as_words(x[:0, 0]), out, (wide, pairs.SHORT)
        pairs.multiply(buffer, *args, (0, 30, 36, room.ctypes.data))
        outs.append(out)
    np.testing.assert_array_equal(*outs)
    assert len(np.unique(outs[0])) > 100


@pytest.mark.skipif(not has_tiles(), reason="this CPU has no AMX")
@pytest.mark.parametrize("inner", [5, 32, 333])
def test_the_order_of_sums_in_tiles(inner, rng):
    """Products of two numbers are exact in float32, so that only the order of sums can differ."""
    x, y = numbers(rng, (20, inner)), numbers(rng, (inner, 40))
    got = multiplied("amx", x, y, False, None, np.empty((20, 40), np.float32))
    x, y = x.astype("float32"), y.astype("float32")
    want = np.zeros((20, 40), np.float32)
    for start in range(0, inner, 32):
        halves = np.zeros((2, 20, 40), np.float32)
        for k in range(start, min(inner, start + 32)):
            halves[k % 2] += x[:, k : k + 1] * y[k]
        want += halves[0] + halves[1]
    np.testing.assert_array_equal(got, want.astype(BFLOAT16).astype("float32"))


@by_kernels
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("rows", "inner", "units"), [*SIZES, (700, 1100, 70)])
def test_threads_share_a_product_and_no_bit_changes(
    rows, inner, units, turned, packed, kernel, rng, monkeypatch
):
    monkeypatch.setattr(helpers, "WORTH", 1.0)
    x, y, bias = (numbers(rng, shape) for shape in ((rows, inner), (inner, units), (units,)))
    buffer = packed_buffer(y, False, BFLOAT16) if packed else None
    if buffer is not None:
        pack(y, buffer, False)
    outs = []
    for threads in (1, 3):
        with limit_blas(threads):
            parts = pair_calls.row_parts(kernel, rows, inner, units)
            room_size = pair_calls.KERNELS[kernel].room_size
            whole = room_size(rows, inner, units)
            assert all(at + room_size(n, inner, units) <= whole for *_, n, at in parts)
            assert threads == 3 or len(parts) == 1
            sides = of_dtype(x, turned), of_dtype(y, not packed)
            outs.append(np.empty((rows, units), BFLOAT16))
            function, args = pair_calls.product(
                kernel, sides[0], turned, sides[1], not packed, outs[-1], bias, buffer
            )
            function(*args)
    assert rows <= 30 or len(parts) == 3
    np.testing.assert_array_equal(*[as_words(out) for out in outs])


def test_casts_give_the_bits_of_ml_dtypes(rng):
    bits = rng.integers(0, 1 << 32, 100_003, np.uint32)
    bits[:6] = 0, 0x80000000, 0x7F800000, 0x7F800001, 0xFFFFFFFF, 0x7F7FFFFF
    bits[6:70_000] = bits[6:70_000] & 0xFFFF0000 | 0x8000  # ties
    with np.errstate(all="ignore"):
        wanted = bits.view(np.float32).astype(BFLOAT16)
    low, wide = np.empty(bits.size, np.uint16), np.empty(bits.size, np.uint32)
    narrow(bits, low)
    np.testing.assert_array_equal(low, wanted.view(np.uint16))
    widen(low, wide)
    np.testing.assert_array_equal(wide, wanted.astype(np.float32).view(np.uint32))


CALLS = [
    ("elemwise_mul", [(16, 40), (16, 40)], {}),
    ("elemwise_add", [(16, 40), (16, 40)], {}),
    ("_plus_scalar", [(16, 40)], {"scalar": 1}),
    ("_sum_rows", [(30, 1100)], {}),
    ("Activation", [(5, 33)], {"act_type": "tanh"}),
    ("_lstm_gates", [(6, 20), (6, 20), (6, 5)], {}),
    ("FullyConnected", [(20, 70), (33, 70), (33,)], {"num_hidden": 33}),
    ("dot", [(70, 20), (33, 70)], {"transpose_a": True, "transpose_b": True}),
]


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize(("name", "shapes", "given"), CALLS, ids=[c[0] for c in CALLS])
def test_operators_in_16_bits_round_once(name, shapes, given, low, rng):
    """They are the operators' own computations in float32, whatever kernel runs."""
    op = find(name)
    attrs = parse_params(op.name, name, op.params, given)
    ins = tuple([numbers(rng, shape, low) for shape in shapes])
    wanted = computation(op, ins)(CallContext().env, attrs, *ins)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    outs = tuple([np.empty(w.shape, low) for w in wanted])
    bound = bind_call(name, KernelCall(attrs, ins, outs, CallContext()))
    assert getattr(bound.function, "__name__", "") != "_compute"
    bound.function(*bound.args)
    step = np.finfo(np.float16).eps if low == "float16" else 2.0**-7
    for out, want in zip(outs, wanted, strict=True):
        np.testing.assert_allclose(out.astype("f8"), want.astype("f8"), step, 0.02)


IMAGE, VECTOR = (4, 6, 10, 14), (6,)
AS_IT_IS = [  # operators whose kernels take images of bfloat16, beside vectors of float32
    ("elemwise_mul", [IMAGE, IMAGE], {}),
    ("Activation", [IMAGE], {"act_type": "tanh"}),
    ("LeakyReLU", [IMAGE], {"act_type": "elu"}),
    ("_relu_grad", [IMAGE, IMAGE], {}),
    ("Pooling", [IMAGE], {"kernel": (2, 2), "stride": (2, 2)}),
    ("_max_pool_grad", [(4, 6, 5, 7), IMAGE], {"kernel": (2, 2), "stride": (2, 2)}),
    ("sum", [IMAGE], {"axis": (0, 2, 3)}),
    ("BatchNorm", [IMAGE, *[VECTOR] * 4], {"fix_gamma": False}),
    ("_batch_norm_grad", [IMAGE, *[VECTOR] * 3, IMAGE], {"fix_gamma": False}),
]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(("name", "shapes", "given"), AS_IT_IS, ids=[c[0] for c in AS_IT_IS])
def test_kernels_that_take_bfloat16_give_the_bits_of_casts(name, shapes, given, train, rng):
    op = find(name)
    attrs = parse_params(op.name, name, op.params, given)
    low = [
        np.abs(numbers(rng, shape, "float32")) if shape == VECTOR else numbers(rng, shape)
        for shape in shapes
    ]
    made = []
    for ins in (low, [x.astype("float32") for x in low]):
        types = [TensorType(x.shape, x.dtype.name) for x in ins]
        types += infer(op, Site(name, name, attrs), types)
        outs = [np.full(t.shape, 77, t.dtype) for t in types[len(ins) :]]
        context = CallContext()
        context.env = Env(train=train)
        function, args = KERNELS[op.name](KernelCall(attrs, tuple(ins), tuple(outs), context))
        function(*args)
        made.append(outs)
        assert TAKES_LOW[op.name](attrs, types) == (ins is low)
    for out, wide in zip(*made, strict=True):
        np.testing.assert_array_equal(out, wide.astype(out.dtype))


def test_the_gradient_of_softmax_writes_what_its_cast_would(rng):
    label = np.array([3, -1, 4999, 0, 7, 2048], "float32")
    prob = numbers(rng, (6, 5000), "float32")
    op = find("_softmax_output_grad")
    given = {"use_ignore": True, "ignore_label": -1.0, "grad_scale": 0.3}
    attrs = parse_params(op.name, "grad", op.params, given)
    outs = [np.empty((6, 5000), dtype) for dtype in (np.float32, BFLOAT16)]
    for out in outs:
        function, args = KERNELS[op.name](KernelCall(attrs, (prob, label), (out,), CallContext()))
        function(*args)
    np.testing.assert_array_equal(outs[0].astype(BFLOAT16), outs[1])


def test_wide_memory_that_moves(rng):
    """A larger call makes the thread's memory anew, after smaller ones were bound."""
    calls = []
    for size in (3, 5000):
        ins = tuple([numbers(rng, size) for _ in range(2)])
        call = KernelCall({}, ins, (np.empty(size, BFLOAT16),), CallContext())
        calls.append((through_float32(KERNELS["elemwise_mul"], call), call))
    for bound, call in calls:
        bound.function()
        wanted = (call.ins[0].astype("f4") * call.ins[1].astype("f4")).astype(BFLOAT16)
        np.testing.assert_array_equal(call.outs[0], wanted)
