"""Vector functions against long doubles, and gate kernels against the operators' own formulas."""

from __future__ import annotations

import re

import numba
import numpy as np
import pytest

from runtime.backends.cpu import KERNELS, gates, vector
from runtime.backends.device.compile import FAST, jit
from runtime.backends.device.table import CallContext, KernelCall
from symgraph.core.registry import Env, find, run

EXACT = {
    "exp": np.exp,
    "sigmoid": lambda x: np.where(x > 0, 1, np.exp(-np.abs(x))) / (1 + np.exp(-np.abs(x))),
    "tanh": np.tanh,
}


@jit
def exp_loop(x, y):
    for j in range(x.shape[0]):
        y[j] = vector.exp(x[j])


@jit
def sigmoid_loop(x, y):
    for j in range(x.shape[0]):
        y[j] = vector.sigmoid(x[j])


@jit
def tanh_loop(x, y):
    for j in range(x.shape[0]):
        y[j] = vector.tanh(x[j])


LOOPS = {"exp": exp_loop, "sigmoid": sigmoid_loop, "tanh": tanh_loop}


def values(name, x):
    y = np.empty_like(x)
    LOOPS[name](x, y)
    return y


# -- vector functions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "reach", "limits"),
    [
        ("float32", 105, {"exp": 1.2e-7, "sigmoid": 2e-7, "tanh": 2e-7}),
        ("float64", 750, {"exp": 4e-16, "sigmoid": 5e-16, "tanh": 5e-16}),
    ],
)
@pytest.mark.parametrize("name", LOOPS)
def test_accuracy(name, dtype, reach, limits):
    rng = np.random.default_rng(0)
    wide, near, tiny = np.linspace(-reach, reach, 200_001), rng.normal(size=100_000), 1e-30
    x = np.concatenate([wide, near, 10 * near, near * np.geomspace(tiny, 1, 100_000)])
    x = x.astype(dtype)
    found, info = values(name, x), np.finfo(dtype)
    with np.errstate(over="ignore", under="ignore"):
        exact = EXACT[name](x.astype(np.longdouble))
        rounded = exact.astype(dtype)
    normal = np.isfinite(rounded) & (np.abs(exact) >= info.tiny)
    error = np.abs(found[normal] - exact[normal])
    assert (error / np.abs(exact[normal])).max() <= limits[name]
    assert name != "tanh" or error.max() <= info.eps
    loss = info.tiny if name == "sigmoid" else info.smallest_subnormal
    rest = ~normal & np.isfinite(rounded)
    np.testing.assert_allclose(found[rest], rounded[rest], rtol=0, atol=loss)
    np.testing.assert_array_equal(found[np.isinf(rounded)], np.inf)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "limits"), [("exp", (0, 1, np.inf)), ("sigmoid", (0, 0.5, 1)), ("tanh", (-1, 0, 1))]
)
def test_ends(name, limits, dtype):
    low, middle, high = limits
    ends = np.array([-np.inf, np.finfo(dtype).min, -1e4, -0.0, 0, 1e4, np.finfo(dtype).max, np.inf])
    want = [low, low, low, middle, middle, high, high, high]
    np.testing.assert_array_equal(values(name, ends.astype(dtype)), np.array(want, dtype))
    for count in (1, 40):  # alone and in a vector
        assert np.isnan(values(name, np.full(count, np.nan, dtype))).all()


def test_tanh_is_odd_and_keeps_small_numbers():
    x = np.geomspace(1e-44, 1, 10_000).astype("float32")
    np.testing.assert_array_equal(values("tanh", -x), -values("tanh", x))
    small = x[x < 1e-4]
    np.testing.assert_array_max_ulp(values("tanh", small), small, maxulp=1)


def test_a_callers_flags_do_not_reach_inside():
    """With sums in any order, rounding by adding a large number and taking it away is nothing."""

    @numba.njit(fastmath=FAST | {"reassoc"})
    def total(x):
        s = x.dtype.type(0)
        for j in range(x.shape[0]):
            s += vector.exp(x[j])
        return s

    x = np.random.default_rng(0).uniform(-3, 3, 1003).astype("float32")
    np.testing.assert_allclose(total(x), np.exp(x.astype("float64")).sum(), rtol=1e-6)


def test_interpreted_they_are_numpys():
    x = np.array([-1.0, 0.5])
    for name, exact in EXACT.items():
        np.testing.assert_allclose(getattr(vector, name)(x), exact(x), rtol=1e-15)


@pytest.mark.parametrize(
    ("loop", "arrays"),
    [
        (exp_loop, 2),
        (gates.add_sigmoid, 2),
        (gates.add_tanh, 2),
        (gates.next_state, 5),
        (gates.lstm_output, 3),
        (gates.from_output, 4),
        (gates.to_new, 3),
        (gates.to_old, 3),
        (gates.reset_new, 3),
        (gates.mix, 4),
        (gates.unmix, 4),
        (gates.unreset, 4),
    ],
)
def test_loops_become_vector_code(loop, arrays):
    """Else they are ten times slower, and nothing but a measurement shows it."""
    fresh = numba.njit(fastmath=FAST, error_model="numpy")(loop.py_func)
    fresh.compile((numba.types.Array(numba.float32, 1, "C"),) * arrays)
    code = fresh.inspect_llvm(fresh.signatures[0])
    assert re.search(r"fmul [a-z ]*<\d+ x float>", code)
    assert "fpext" not in code  # float32 stays float32
    calls = re.findall(r"call [a-z ]*float @(\S+)\(", code)
    assert [name for name in calls if not name.startswith("llvm.")] == []


# -- gate kernels --------------------------------------------------------------------------------

NO_DH, NO_DC = {"has_dh": False}, {"has_dc": False}
# operator, attributes, blocks of units in its inputs, in-place uses: output -> input
CALLS = [
    ("_lstm_gates", {}, (4, 4, 1), [{2: 0}, {2: 1}]),
    ("_lstm_gates_grad", {}, (1, 1, 4, 1, 1), [{0: 2}, {1: 1}, {0: 2, 1: 1}]),
    ("_lstm_gates_grad", NO_DH, (1, 4, 1, 1), [{0: 1}, {1: 0}, {0: 1, 1: 0}]),
    ("_lstm_gates_grad", NO_DC, (1, 4, 1, 1), [{0: 1}]),
    ("_gru_gates", {}, (3, 3, 1), [{1: 0}, {1: 1}]),
    ("_gru_gates_grad", {}, (1, 3, 1, 1), [{0: 1}, {2: 0}, {0: 1, 2: 0}]),
]
EACH = pytest.mark.parametrize(("op", "given", "blocks", "places"), CALLS)


def unaligned(array):
    """A contiguous copy that begins at no vector's boundary."""
    room = np.empty(array.size + 1, array.dtype)
    copy = room[1:].reshape(array.shape)
    copy[...] = array
    return copy


def inputs(blocks, rows, units, dtype, scale=1.0):
    rng = np.random.default_rng(rows * units)
    arrays = [scale * rng.standard_normal((rows, n * units)) for n in blocks]
    return [a.astype(dtype) for a in arrays]


def attributes(op, given):
    return {name: True for name in find(op).params} | given


def wanted(op, given, arrays):
    return run(find(op), Env(), attributes(op, given), arrays)


def by_kernel(op, given, arrays, place=None):
    """Outputs of the kernel; place: the outputs that lie where an input is."""
    place = place or {}
    ins = [unaligned(a) for a in arrays]
    outs = [np.full_like(o, 7) for o in wanted(op, given, arrays)]
    for at, source in place.items():
        outs[at] = ins[source]
    bound = KERNELS[op](KernelCall(attributes(op, given), tuple(ins), tuple(outs), CallContext()))
    bound.function(*bound.args)
    for i, (array, kept) in enumerate(zip(ins, arrays, strict=True)):
        if i not in place.values():
            np.testing.assert_array_equal(array, kept)
    return outs


@EACH
@pytest.mark.parametrize(("rows", "units"), [(1, 1), (3, 5), (2, 67), (5, 200)])
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 3e-6), ("float64", 1e-13)])
def test_kernels_compute_what_the_operators_do(
    op, given, blocks, places, rows, units, dtype, limit
):
    arrays = inputs(blocks, rows, units, dtype)
    apart = by_kernel(op, given, arrays)
    for found, want in zip(apart, wanted(op, given, arrays), strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, want, rtol=limit, atol=limit)
    for place in places:
        for found, want in zip(by_kernel(op, given, arrays, place), apart, strict=True):
            np.testing.assert_array_equal(found, want)


@EACH
def test_a_row_does_not_depend_on_the_others(op, given, blocks, places):
    arrays = inputs(blocks, 4, 75, "float32")
    whole = by_kernel(op, given, arrays)
    for row in range(4):
        alone = by_kernel(op, given, [a[row : row + 1] for a in arrays])
        for found, want in zip(alone, whole, strict=True):
            np.testing.assert_array_equal(found[0], want[row])


@pytest.mark.parametrize("op", ["_lstm_gates", "_gru_gates"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_saturated_gates_and_nan(op, dtype):
    blocks = {call[0]: call[2] for call in CALLS}[op]
    arrays = inputs(blocks, 3, 40, dtype, scale=1e4)
    for found, want in zip(by_kernel(op, {}, arrays), wanted(op, {}, arrays), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)
    arrays[0][1, 33] = np.nan
    for found, want in zip(by_kernel(op, {}, arrays), wanted(op, {}, arrays), strict=True):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    assert np.isnan(by_kernel(op, {}, arrays)[0][1]).any()


@EACH
def test_no_kernel_for_halves(op, given, blocks, places):
    arrays = inputs(blocks, 2, 3, "float16")
    outs = wanted(op, given, arrays)
    call = KernelCall(attributes(op, given), tuple(arrays), outs, CallContext())
    assert KERNELS[op](call) is None


LSTM = [call for call in CALLS if "lstm" in call[0]]


@pytest.mark.parametrize(("op", "given", "blocks", "places"), LSTM)
def test_gates_of_bfloat16_have_the_bits_of_casts(op, given, blocks, places):
    attrs = attributes(op, given)
    dtypes = gates.low_dtypes(attrs)
    arrays = inputs(blocks, 3, 67, "float32")
    arrays = [a.astype(dtype) for a, dtype in zip(arrays, dtypes, strict=False)]
    wide = by_kernel(op, given, [a.astype("float32") for a in arrays])
    wants = [a.astype(dtype) for a, dtype in zip(wide, dtypes[len(arrays) :], strict=True)]
    for place in [{}, *places]:
        ins = [unaligned(a) for a in arrays]
        outs = [np.full_like(want, 7) for want in wants]
        for at, source in place.items():
            outs[at] = ins[source]
        bound = KERNELS[op](KernelCall(attrs, tuple(ins), tuple(outs), CallContext()))
        bound.function(*bound.args)
        for found, want in zip(outs, wants, strict=True):
            np.testing.assert_array_equal(found, want)
