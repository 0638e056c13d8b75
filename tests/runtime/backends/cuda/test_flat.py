"""Formulas element by element on GPUs, against the operators' own computations, to the last bit.

Functions of libraries may differ by the last bits, since CUDA's are not numpy's; see APART.
"""

from __future__ import annotations

import numpy as np
import pytest

from runtime.backends.cuda import KERNELS
from runtime.backends.cuda.base import PACK, each, function
from runtime.backends.cuda.flat import merge_axes
from runtime.backends.cuda.formulas import BY_PACKS, COMPILED_TERMS, FORMULAS, MAX_TERMS, in_c
from runtime.backends.device.arrays import address
from runtime.backends.device.operands import ID_DTYPES
from runtime.backends.device.table import CallContext, KernelCall
from symgraph.core.registry import Env
from symgraph.core.types import HALVES
from symgraph.ops.elementwise import BROADCAST, PAIRS, SAME, SCALAR
from symgraph.ops.formulas import FORMULAS as OPERATORS
from symgraph.ops.formulas import Formula
from tests.fakes.fake_cupy import fake_cupy
from tests.runtime.backends.cuda.calls import REALS, Called, agree, has_no_kernel, numbers, on_gpu
from tests.runtime.backends.cuda.emulation import MISSING, compiler

pytestmark = [pytest.mark.every(6), pytest.mark.skipif(compiler() is None, reason=MISSING)]

UNARY = [op for op, f in OPERATORS.items() if (f.arrays, f.numbers) == (("x",), ())]
GRADIENTS = [op for op in OPERATORS if op.endswith("_grad") and op != "_gelu_grad"]
SIZES = [(1,), (3, 7), (2, 3, 300)]
# By how many representable numbers at most: 0 for what is not here.
APART = {
    "exp": 2,
    "expm1": 4,
    "log": 4,
    "log2": 4,
    "log10": 4,
    "log1p": 4,
    "erf": 2,
    "cbrt": 2,
    # cbrt's error and a rounding: 1 / cbrt lies just below a power of two if cbrt lies just above
    # one, and there an error is twice as many numbers. numpy's is 4 apart on CPUs with AVX-512.
    "rcbrt": 2 * 2 + 1,
    "sin": 2,
    "cos": 2,
    "tan": 4,
    "arcsin": 4,
    "arccos": 4,
    "arctan": 4,
    "sinh": 4,
    "cosh": 4,
    "tanh": 4,
    "arcsinh": 4,
    "arccosh": 4,
    "arctanh": 4,
    "sigmoid": 4,
    "softrelu": 4,
    "elu": 4,
    "selu": 4,
    "power": 4,
    "rpower": 4,
    "hypot": 1,
}
WITHIN = {"arccosh": lambda x: 1 + abs(x), "arctanh": np.tanh, "arcsin": np.tanh, "arccos": np.tanh}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 2.5, -1.0, 3.0, 88.0, -88.0]


@pytest.fixture(autouse=True)
def kernels():
    with fake_cupy(), np.errstate(all="ignore"):
        yield


def places(array):
    """Where its numbers stand among those of their dtype; NaN is beyond all."""
    bits = array.view(f"int{8 * array.itemsize}").astype("int64")
    least = np.iinfo(f"int{8 * array.itemsize}").min
    return np.where(np.isnan(array), np.int64(1) << 62, np.where(bits < 0, least - bits, bits))


def same_bits(one, other):
    return one.tobytes() == other.tobytes()


def exact(op, *ins, word="", over=None, **given):
    """The kernel's output, which is the operator's own but for the last bits of some."""
    called = Called(op, ins, over or {}, given)
    (found,), (wanted,) = called.results(), called.computed(Env())
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    apart = np.abs(places(found) - places(wanted))
    assert apart.max() <= APART.get(word or op, 0), (word or op, apart.max())
    return found


def values(shape, dtype, seed=0):
    """Numbers with what is special among them, in other places for each seed."""
    x = 3 * numbers(shape, "float64", seed)
    special = np.random.default_rng(seed).permutation(SPECIAL)
    x.ravel()[:: 1 + x.size // 12] = np.resize(special, x.ravel()[:: 1 + x.size // 12].size)
    return x.astype(dtype_of(dtype))


def dtype_of(name):
    return numbers((), name).dtype


def test_formulas_in_c():
    def c(text):
        return in_c(Formula("test", text).tree)

    assert c("where(x <= 0, 0, x)") == "((x <= 0) ? 0 : x)"
    assert c("x ** y % arcsinh(abs(z))") == "modulo(pow(x, y), asinh(fabs(z)))"
    assert c("a - 2 * (x + 0.1)") == "(a - (2 * (x + (calc)0.1)))"
    assert Formula("test", "slope * x + edge", edge=lambda a: a["b"] * 2).values(
        {"slope": 3.0, "b": 4.0}
    ) == [3.0, 8.0]


# -- functions of an array, and of one and a number ------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", UNARY)
def test_functions(op, dtype):
    for shape in SIZES:
        x = WITHIN.get(op, lambda x: x)(values(shape, dtype)).astype(dtype_of(dtype))
        found = exact(op, x)
        assert same_bits(exact(op, x, over={0: 0}), found)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("act_type", ["relu", "sigmoid", "tanh", "softrelu", "softsign"])
def test_activations(act_type, dtype):
    exact("Activation", values((4, 90), dtype), word=act_type, act_type=act_type)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("kind", ["leaky", "elu", "selu"])
def test_leaky_activations(kind, dtype):
    exact("LeakyReLU", values((4, 90), dtype), word=kind, act_type=kind, slope=0.3)


@pytest.mark.parametrize("dtype", REALS)
def test_gelu(dtype):
    """Far below 0 it is x times what is left of 1 + erf: few bits."""
    x = 3 * numbers((4, 90), dtype)
    agree("LeakyReLU", x, act_type="gelu")
    agree("_gelu_grad", numbers((4, 90), dtype, 1), x)


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("number", [2.0, -1.7, 0.1, 0.0])
@pytest.mark.parametrize("word", SCALAR)
def test_with_a_number(word, number, dtype):
    exact(f"_{word}_scalar", values((5, 70), dtype), word=word, scalar=number)


@pytest.mark.parametrize("dtype", REALS)
def test_with_several_numbers(dtype):
    x = values((5, 70), dtype)
    exact("clip", x, a_min=-0.7, a_max=1.1)
    exact("clip", x, a_min=1.1, a_max=-0.7)
    exact("hard_sigmoid", x, alpha=0.3, beta=0.4)
    exact("smooth_l1", x, scalar=1.3)


# -- functions of several arrays -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("word", PAIRS)
def test_pairs(word, dtype):
    for shape in SIZES:
        x, y = values(shape, dtype), values(shape, dtype, 1)
        found = exact(SAME[word], x, y, word=word)
        for over in ({0: 0}, {0: 1}):
            assert same_bits(exact(SAME[word], x, y, word=word, over=over), found)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", GRADIENTS)
def test_gradients(op, dtype):
    g, y = values((5, 70), dtype), values((5, 70), dtype, 1)
    exact(op, g, y, **({"slope": 0.3} if op == "_leaky_relu_grad" else {}))


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", REALS)
def test_many_terms(dtype):
    """In 16 bits they are added up in float32: terms that a sum in 16 bits would lose are there."""
    terms = [
        1000 * numbers((5, 70), dtype),
        *(numbers((5, 70), dtype, i) for i in range(1, COMPILED_TERMS)),
    ]
    for count in range(1, COMPILED_TERMS + 1):
        exact("add_n", *terms[:count], num_args=count)
    exact("add_n", *terms, num_args=COMPILED_TERMS, over={0: 2})
    for count in (COMPILED_TERMS + 1, 60):
        more = [*terms, *(numbers((5, 70), dtype, i) for i in range(COMPILED_TERMS, count))]
        exact("add_n", *more, num_args=count)
        exact("add_n", *more, num_args=count, over={0: 2})
    few = [numbers(2, dtype)] * (MAX_TERMS + 1)
    exact("add_n", *few[1:], num_args=MAX_TERMS)
    assert has_no_kernel("add_n", *few, num_args=MAX_TERMS + 1)


# -- broadcasts ------------------------------------------------------------------------------------

BROADCASTS = [
    ((5, 70), (1, 1)),
    ((1, 1), (1, 1, 1)),
    ((64, 3), (3,)),
    ((5, 70), (5, 1)),
    ((5, 1), (1, 70)),
    ((2, 3, 4, 5), (1, 3, 1, 1)),
    ((2, 3, 4, 5), (2, 1, 4, 1)),
    ((2, 1, 4, 1), (1, 3, 1, 5)),
    ((1,), (2, 300)),
    ((2, 3, 4, 5, 6), (2, 3, 1, 1, 6)),
    ((70000, 2), (70000, 1)),
]


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize(("one", "other"), BROADCASTS, ids=str)
def test_broadcasts(one, other, dtype):
    """The last has more rows than a grid has blocks along an axis."""
    x, y = numbers(one, dtype), numbers(other, dtype, 1)
    exact("broadcast_sub", x, y)
    exact("broadcast_sub", y, x)
    if np.broadcast_shapes(one, other) == one:
        assert same_bits(exact("broadcast_mul", x, y, over={0: 0}), exact("broadcast_mul", x, y))


@pytest.mark.parametrize("word", PAIRS)
def test_pairs_that_broadcast(word):
    exact(BROADCAST[word], values((5, 70), "float32"), values((70,), "float32", 1), word=word)


def test_neighbours_that_broadcast_alike_are_one_axis():
    assert merge_axes((2, 3, 4, 5), [(2, 3, 4, 5), (4, 5)]) == (
        [1, 1, 6, 20],
        [[0, 0, 20, 1], [0, 0, 0, 1]],
    )
    assert merge_axes((2, 3, 1, 5), [(2, 3, 1, 1), (1, 5)]) == (
        [1, 1, 6, 5],
        [[0, 0, 1, 0], [0, 0, 0, 1]],
    )
    assert merge_axes((3, 4), [(1,), (1, 1)]) == ([1, 1, 1, 12], [[0, 0, 0, 0], [0, 0, 0, 0]])


def test_what_has_too_many_axes_or_rows_is_left_to_the_operator(monkeypatch):
    x = numbers((2, 3, 2, 3, 2))
    assert has_no_kernel("broadcast_add", x, numbers((2, 1, 2, 1, 2)))
    monkeypatch.setattr("runtime.backends.cuda.flat.MAX_ROWS", 3)
    assert has_no_kernel("broadcast_add", numbers((4, 5)), numbers((4, 1)))
    exact("broadcast_add", numbers((3, 5)), numbers((3, 1)))


@pytest.mark.parametrize("dtype", REALS)
def test_values_are_repeated(dtype):
    x = numbers((3, 1, 5), dtype)
    exact("broadcast_to", x, shape=(4, 3, 2, 0))
    exact("broadcast_axis", x, axis=(1,), size=(7,))
    exact("broadcast_like", x, numbers((3, 4, 5)))
    exact("_broadcast_rows", numbers(6, dtype), shape=(2, 3, 6))
    exact("_broadcast_axes", numbers((3, 5), dtype), axes=(1,), shape=(3, 6, 5))


@pytest.mark.parametrize("dtype", REALS)
def test_slopes_by_channel(dtype):
    x = values((2, 3, 4, 5), dtype)
    exact("LeakyReLU", x, numbers(3, dtype), act_type="prelu")
    exact("LeakyReLU", x, numbers(1, dtype), act_type="prelu")


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", REALS)
def test_where(dtype):
    x, y = values((5, 70), dtype), values((5, 70), dtype, 1)
    for shape in ((5, 70), (5,)):
        exact("where", np.resize(values(70, dtype, 2), shape), x, y)
    x = values((5, 70), dtype)
    for kind in ID_DTYPES:
        for shape in ((5, 70), (5,)):
            condition = np.resize(np.arange(70) % 3 - 1, shape).astype(kind)
            exact("where", condition, x, y)
            exact("where", condition, x, y, over={0: 1})
    exact("where", np.float32([np.nan, 0, -0.0, 1, 1e-30]), x, y)
    assert has_no_kernel("where", np.ones(5, bool), x, y)


# -- packs -----------------------------------------------------------------------------------------


def launched(op, *arrays, **attrs):
    """The kernel that a call launches."""
    *ins, out = arrays
    bound = KERNELS[op](KernelCall(attrs, tuple(ins), (out,), CallContext()))
    bound.function(*bound.args)
    return bound.function.func.__self__.name


@pytest.mark.parametrize("dtype", REALS)
def test_packs_are_for_arrays_that_all_begin_at_one(dtype):
    rooms = [on_gpu(np.arange(100).astype(dtype_of(dtype))) for _ in range(2)]
    first = [-address(room) // room.itemsize % PACK for room in rooms]
    x, y = (room[at : at + 80] for room, at in zip(rooms, first, strict=True))
    assert launched("square", x, y) == "packs_square"
    assert same_bits(y.get(), x.get() * x.get())
    assert launched("square", x[:78], y[:78]) == "flat_square"
    for shifted in ((x[1:77], y[:76]), (x[:76], y[1:77])):
        assert launched("square", *shifted) == "flat_square"
    assert launched("erf", x, y) == "flat_erf"  # of what takes long to compute there are none


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("name", BY_PACKS)
def test_packs_do_what_single_elements_do(name, dtype):
    arrays = [on_gpu(values(12 * PACK + 3, dtype, seed)) for seed in range(3)]
    by_packs, by_one = (on_gpu(np.zeros(12 * PACK, dtype_of(dtype))) for _ in range(2))
    ins = [array[: 12 * PACK] for array in arrays[: len(FORMULAS[name].arrays)]]
    numbers = [np.float64(0.3), np.float64(0.7)][: len(FORMULAS[name].numbers)]
    for kind, count, out in (("packs", 12, by_packs), ("flat", 12 * PACK, by_one)):
        run = function("flat", f"{kind}_{name}", real=dtype_of(dtype).name)
        run(*each(count), (*ins, out, np.int64(count), *numbers))
    assert same_bits(by_packs.get(), by_one.get())
    assert by_one.get().any()


# -- the rest --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", REALS)
def test_constants(dtype):
    for op in ("_zeros", "_ones"):
        exact(op, shape=(3, 7), dtype=dtype)
    exact("_full", shape=(3, 7), dtype=dtype, value=0.1)
    exact("zeros_like", numbers((3, 7), dtype))


@pytest.mark.parametrize("dtype", REALS)
def test_logistic_regression_is_a_sigmoid(dtype):
    x = values((5, 7), dtype)
    found = exact("LogisticRegressionOutput", x, np.ones((5, 7), "int32"), word="sigmoid")
    assert same_bits(found, exact("sigmoid", x))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_casts(half, shape):
    x = 100 * numbers(shape)
    (down,) = agree("Cast", x, dtype=half, near=1e-9)
    (up,) = agree("Cast", down, dtype="float32", near=1e-9)
    np.testing.assert_array_equal(up, down.astype("float32"))


def test_what_is_too_large_becomes_infinite():
    with np.errstate(over="ignore"):
        (down,) = agree("Cast", np.float32([70000, -70000, np.nan, 65504]), dtype="float16")
    np.testing.assert_array_equal(down, np.float16([np.inf, -np.inf, np.nan, 65504]))


def test_other_dtypes_are_left_to_the_operator():
    assert has_no_kernel("elemwise_add", np.arange(3), np.arange(3))
    assert has_no_kernel("_zeros", shape=(3,), dtype="int32")
