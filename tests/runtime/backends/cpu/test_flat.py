"""Flat kernels against the operators' own computations."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from scipy.special import erf

from runtime.backends.cpu import vector
from runtime.backends.cpu.flat import CALLS, LOOPS
from runtime.backends.cpu.low import through_float32
from runtime.backends.cpu.table import KERNELS
from runtime.backends.device.table import BoundCall, CallContext, KernelCall, noop
from symgraph.core.params import Site, parse_params
from symgraph.core.registry import Env, find, infer, run
from symgraph.core.types import TensorType
from symgraph.ops.elementwise import BROADCAST, LOGIC, SAME, SCALAR
from symgraph.ops.formulas import FORMULAS
from symgraph.ops.unary import STEPS, UNARY

TOLERANCE = {"float32": 2e-6, "float64": 1e-12}
DTYPES = sorted(TOLERANCE)


def placed(array):
    """A copy that begins one number behind an aligned address."""
    room = np.empty(array.size + 1, array.dtype)
    room[1:] = array.reshape(-1)
    return room[1:].reshape(array.shape)


EVALUATION = Env()


def bind(name, ins, env=EVALUATION, over=None, widens=False, **given):
    """The kernel's call, its outputs, and what the operator computes itself.

    over: (output, input), to have the output lie in the input's memory.
    widens: whether floats of 16 bits may come to the kernel as float32.
    """
    op = find(name)
    attrs = parse_params(name, "test", op.params, given)
    ins = [placed(np.asarray(x)) for x in ins]
    wanted = run(op, env, attrs, [x.copy() for x in ins])
    types = infer(op, Site(name, "test", attrs), [TensorType(x.shape, x.dtype.name) for x in ins])
    outs = [placed(np.full(t.shape, 77, t.dtype)) for t in types]
    if over is not None:
        outs[over[0]] = ins[over[1]].reshape(types[over[0]].shape)
    context = CallContext()
    context.env = env
    maker, call = KERNELS[op.name], KernelCall(attrs, tuple(ins), tuple(outs), context)
    bound = maker(call)
    if bound is None and widens:
        bound = through_float32(maker, call)
    return bound, outs, wanted


def agree(name, *ins, tolerance=None, near=1e-30, **how):
    """Run the kernel twice and compare with the operator's own computation; the outputs.

    Differences may be `tolerance` of the value and `near` besides.
    """
    bound, outs, wanted = bind(name, ins, widens=True, **how)
    assert isinstance(bound, BoundCall)
    bound.function(*bound.args)
    if how.get("over") is None:
        bound.function(*bound.args)
    for out, want in zip(outs, wanted, strict=True):
        assert out.dtype == want.dtype
        limit = TOLERANCE.get(out.dtype.name, 0) if tolerance is None else tolerance
        np.testing.assert_allclose(out, want, rtol=limit, atol=near)
    return outs


def numbers(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# -- numpy's own -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("word", [word for word in SAME if word not in LOGIC])
def test_pairs(word, dtype):
    x, y = np.round(numbers((3, 37), dtype)) + 0.5, np.round(numbers((3, 37), dtype, 1)) + 0.5
    with np.errstate(invalid="ignore"):  # powers of negative numbers
        agree(SAME[word], x, y, tolerance=0)
        agree(BROADCAST[word], x, y[:, :1], tolerance=0)


@pytest.mark.parametrize("name", ["elemwise_add", "elemwise_mul", "elemwise_sub"])
@pytest.mark.parametrize("over", [(0, 0), (0, 1)])
def test_pairs_in_place(name, over):
    agree(name, numbers(1001), numbers(1001, seed=1), over=over, tolerance=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("key", [key for key in SCALAR if key not in LOGIC])
def test_scalars(key, dtype):
    x = np.abs(numbers((7, 11), dtype)) + np.dtype(dtype).type(0.5)
    x[0, 0] = 1.7
    for scalar in (2.0, 1.7):
        agree(f"_{key}_scalar", x, scalar=scalar)
    agree(f"_{key}_scalar", x, scalar=2.0, over=(0, 0))


@pytest.mark.parametrize("name", sorted(CALLS.keys() & {*UNARY, *STEPS}))
def test_one_pass(name):
    with np.errstate(invalid="ignore"):  # arcsin of numbers above 1
        agree(name, np.abs(numbers((5, 9))) + 1, tolerance=0)
        agree(name, np.abs(numbers((5, 9), "float64")) + 1, over=(0, 0), tolerance=0)


@pytest.mark.parametrize("name", ["rsqrt", "softsign", "round", "clip", "_logical_and"])
def test_rare_formulas_of_several_steps_have_no_kernel(name):
    assert name in FORMULAS
    assert name not in KERNELS


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("over", [None, (0, 0), (0, 1)])
def test_add_n(count, over):
    terms = [numbers((200, 201), seed=i) for i in range(count)]
    if over is None or over[1] < count:
        agree("add_n", *terms, num_args=count, over=over, tolerance=0)


def test_add_n_over_a_later_term_has_no_kernel():
    terms = [numbers(5, seed=i) for i in range(3)]
    assert bind("add_n", terms, num_args=3, over=(0, 2))[0] is None


@pytest.mark.parametrize("name", ["elemwise_add", "_equal"])
def test_other_dtypes_have_no_kernel(name):
    x = np.arange(5, dtype="int32")
    assert bind(name, (x, x))[0] is None


# -- copies and constants ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_copies(dtype):
    x = (10 * numbers((4, 6, 1), dtype="float64")).astype(dtype)
    agree("identity", x)
    agree("BlockGrad", x)
    agree("Reshape", x, shape=(3, -1))
    agree("Flatten", x)
    agree("expand_dims", x, axis=1)
    agree("squeeze", x)
    agree("Cast", x, dtype=dtype)
    agree("Cast", x, dtype="int64")
    agree("Cast", x, dtype="float32", tolerance=0)


@pytest.mark.parametrize(
    ("name", "given"),
    [("identity", {}), ("Reshape", {"shape": (-1,)}), ("Cast", {"dtype": "float32"})],
)
def test_a_view_is_no_call(name, given):
    bound, *_ = bind(name, [numbers((4, 5))], over=(0, 0), **given)
    assert bound == BoundCall(noop, ())


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_constants(dtype):
    agree("_zeros", shape=(3, 5), dtype=dtype)
    agree("_ones", shape=(3, 5), dtype=dtype)
    agree("_full", shape=(3, 5), value=2.75, dtype=dtype)
    agree("zeros_like", np.ones(7, dtype))
    agree("ones_like", np.zeros(7, dtype))


# -- compiled functions ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 15, 1000, 1003])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh", "erf", "relu"])
def test_functions(name, dtype, size):
    x = 4 * numbers(size, dtype)
    apart = agree(name, x)
    over = agree(name, x, over=(0, 0))
    np.testing.assert_array_equal(apart, over)


@pytest.mark.parametrize("dtype", DTYPES)
def test_erf(dtype):
    x = np.concatenate([np.linspace(-7, 7, 20001), [-1, 1, 1e-20, 0]]).astype(dtype)
    tolerance = {"float32": 3e-7, "float64": 3e-15}[dtype]
    agree("erf", x, tolerance=tolerance)
    agree("erf", x, tolerance=tolerance, over=(0, 0))
    odd = np.array([np.nan, np.inf, -np.inf, -0.0], dtype)
    (y,) = agree("erf", odd)
    assert np.signbit(y[3])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act_type", ["relu", "sigmoid", "tanh"])
def test_activation(act_type, dtype):
    agree("Activation", numbers((3, 21), dtype), act_type=act_type)


@pytest.mark.parametrize("act_type", ["softrelu", "softsign"])
def test_rare_activations_have_no_kernel(act_type):
    assert bind("Activation", [numbers(3)], act_type=act_type)[0] is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["_sigmoid_grad", "_tanh_grad", "_relu_grad", "_gelu_grad"])
@pytest.mark.parametrize("over", [None, (0, 0), (0, 1)])
def test_gradients(name, dtype, over):
    y = np.tanh(numbers(1003, dtype, 1))
    near = TOLERANCE[dtype] / 10  # 1 - y * y is rounded once or twice
    found = agree(name, numbers(1003, dtype), y, over=over, near=near)
    np.testing.assert_array_equal(found, agree(name, numbers(1003, dtype), y, near=near))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh", "erf", "relu"])
def test_not_a_number_and_the_infinite(name, dtype):
    x = np.zeros(40, dtype)
    x[[3, 39]], x[[4, 38]], x[5] = np.nan, np.inf, -np.inf
    agree(name, x)
    agree(name, x, over=(0, 0))


@pytest.mark.parametrize("name", ["_sigmoid_grad", "_tanh_grad", "_relu_grad", "elemwise_mul"])
def test_not_a_number_in_a_gradient(name):
    g, y = numbers(40), np.full(40, 0.5, "float32")
    g[[3, 39]] = np.nan
    agree(name, g, y)


# -- LeakyReLU, and functions to the last bits --------------------------------------------------

EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30]
NEAR = {"float32": 2e-7, "float64": 5e-16}
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def values(dtype):
    return np.append(4 * numbers(1500, dtype), np.array(EDGES, dtype)).reshape(11, -1)


@each_dtype
@pytest.mark.parametrize("act_type", ["leaky", "elu", "selu", "gelu"])
def test_kinds(act_type, dtype):
    """gelu far below 0 is what is left of 1 + erf, of which few bits are known."""
    near = 10 * NEAR[dtype] if act_type == "gelu" else 1e-30
    with np.errstate(invalid="ignore"):
        agree("LeakyReLU", values(dtype), act_type=act_type, slope=0.3, near=near)


@each_dtype
def test_gradient_of_leaky(dtype):
    agree("_leaky_relu_grad", numbers((11, 137), dtype, 1), values(dtype), slope=0.3)


def test_cases_without_kernel():
    x = numbers((2, 3))
    assert bind("LeakyReLU", [x, x[0]], act_type="prelu")[0] is None
    assert bind("LeakyReLU", [x.astype("float16")])[0] is None
    assert bind("_leaky_relu_grad", [x.astype("float16")] * 2, slope=0.3)[0] is None


@numba.njit(error_model="numpy")
def expm1_flat(x, y):
    for j in range(len(y)):
        y[j] = vector.expm1(x[j])


@each_dtype
@pytest.mark.parametrize(
    ("loop", "function", "least", "greatest", "factor"),
    [
        (LOOPS["erf"], erf, -7, 7, {"float32": 1.5, "float64": 6}),
        (expm1_flat, np.expm1, -100, 80, {}),
    ],
)
def test_functions_to_the_last_bits(loop, function, least, greatest, factor, dtype):
    small = np.geomspace(1e-30, 2, 20_001)
    x = np.concatenate([np.linspace(least, greatest, 200_001), small, -small]).astype(dtype)
    y, limit = np.empty_like(x), NEAR[dtype] * factor.get(dtype, 1)
    loop(x, y)
    np.testing.assert_allclose(y, function(x.astype("float64")), rtol=limit, atol=0)
    edges = np.array(EDGES[:5], dtype)
    found = np.empty_like(edges)
    loop(edges, found)
    np.testing.assert_array_equal(found, function(edges))


# -- Dropout -----------------------------------------------------------------------------------

TRAINING = Env(train=True, seed=3, step=12, sample=5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "place",
    [{}, {"axis": 0}, {"axis": 1}, {"axis": 2}, {"axis": 1, "outer": 2}, {"axis": 0, "inner": 3}],
)
def test_dropout_draws_the_same_mask(dtype, place):
    x = numbers((3, 4, 35), dtype)
    for p in (0.0, 0.1, 0.5, 1.0):
        agree("Dropout", x, env=TRAINING, p=p, stream="drop", tolerance=0, **place)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.7])
def test_dropout_keeps_from_the_same_number_on(p):
    bound, *_ = bind("Dropout", [numbers(3)], p=p)
    drawn = np.array([bound.args[2] - 1, bound.args[2]]).astype("float32") * 2.0**-24
    assert (drawn >= p).tolist() == [False, True]


def test_dropout_in_place():
    found = agree("Dropout", numbers((9, 33)), env=TRAINING, over=(0, 0), tolerance=0)
    assert 0 < (found[1] == 0).mean() < 1


def test_dropout_outside_training():
    agree("Dropout", numbers((9, 33)), env=Env(seed=1), tolerance=0)
    agree("Dropout", numbers((9, 33)), env=Env(seed=1), mode="always", p=0.3, tolerance=0)


def test_dropout_follows_the_clock():
    bound, outs, _ = bind("Dropout", [numbers((9, 33))], env=TRAINING, p=0.5, axis=0)
    bound.function(*bound.args)
    first = outs[1].copy()
    bound.args[0].env = TRAINING._replace(step=13)
    bound.function(*bound.args)
    assert (first != outs[1]).any()


def test_dropout_with_axes_has_no_kernel():
    assert bind("Dropout", [numbers((9, 33))], env=TRAINING, axes=(0,))[0] is None
