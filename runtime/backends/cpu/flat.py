"""Flat kernels: element by element over whole arrays.

Where numpy makes one pass it is as fast as a compiled loop, so its functions are called as they
are, with the output as last argument. Compiled are exp, sigmoid, tanh and erf, which are faster
than numpy's and scipy's, and formulas of several steps. An output may be an input: where it is
worth it the loop stands twice, since of a loop over an array and itself the compiler's vector form
is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from runtime.backends.cpu.chains import blocked
from runtime.backends.cpu.rows import FLOATS, copies
from runtime.backends.cpu.table import kernel
from runtime.backends.cpu.vector import erf, exp, sigmoid, tanh
from runtime.backends.device.compile import jit
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Array, wide
from symgraph.ops.elementwise import BROADCAST, SAME, SCALAR

Function = Callable[..., Any]

FLOAT_TYPES = {np.dtype(name) for name in FLOATS}


def floating(*values: Array) -> bool:
    """Whether all are of one float dtype that has kernels."""
    kinds = {value.dtype for value in values}  # not their names, which numpy makes each time
    return len(kinds) == 1 and kinds <= FLOAT_TYPES


def by_numpy(function: Callable[..., Array], *args: Any, out: Array) -> BoundCall:
    """A call of a function of numpy's, which has floats of 16 bits in float32."""

    def run() -> None:
        out[...] = function(
            *[_widened(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        )

    return BoundCall(run, ())


def _widened(array: Array) -> Array:
    wider: Array = array.astype(wide(array.dtype), copy=False)
    return wider


# -- numpy's own -------------------------------------------------------------------------------


def maximum(x: Array, y: Array, out: Array) -> None:
    np.maximum(x, y, out=out)  # numpy wants this output by name


def minimum(x: Array, y: Array, out: Array) -> None:
    np.minimum(x, y, out=out)


PAIRS: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "power": np.power,
    "maximum": maximum,
    "minimum": minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "lesser": np.less,
    "lesser_equal": np.less_equal,
    "mod": np.mod,
    "hypot": np.hypot,
}
OF_SCALAR = {"plus": "add", "minus": "sub"}  # where SCALAR's word is not BINARY's
UNARY: dict[str, Function] = {
    "negative": np.negative,
    "abs": np.absolute,
    "sign": np.sign,
    "log": np.log,
    "sqrt": np.sqrt,
    "square": np.square,
    "reciprocal": np.reciprocal,
    "sin": np.sin,
    "cos": np.cos,
}


def register(names: Sequence[str], function: Function) -> None:
    @kernel(*names)
    def on_arrays(task: KernelCall) -> BoundCall | None:
        arrays = (*task.ins, *task.outs)
        return BoundCall(function, arrays) if floating(*arrays) else None


def of_pair(key: str) -> tuple[str, bool]:
    """The row of BINARY that a row of SCALAR is with a number, and whether the number is first."""
    turned = key in ("rminus", "rdiv", "rpower", "rmod")
    word = key[1:] if turned else key
    return OF_SCALAR.get(word, word), turned


def register_scalar(key: str) -> None:
    """A number is an array without axes: numpy takes it twice as fast as a Python number."""
    word, turned = of_pair(key)
    function = PAIRS[word]

    @kernel(f"_{key}_scalar")
    def with_number(task: KernelCall) -> BoundCall | None:
        (x,), (out,) = task.ins, task.outs
        if not floating(x, out):
            return None
        number = np.array(task.attrs["scalar"], x.dtype)
        if key == "power" and number == 2:
            return BoundCall(np.square, (x, out))
        return BoundCall(function, (number, x, out) if turned else (x, number, out))


for word, function in PAIRS.items():
    register((SAME[word], BROADCAST[word]), function)
for word in SCALAR:
    register_scalar(word)
for word, function in UNARY.items():
    register((word,), function)


@kernel("add_n")
def add_n(task: KernelCall) -> BoundCall | None:
    """Block by block, so that a partial sum is still in the cache when the next term comes."""
    (out,), first = task.outs, task.ins[0]
    if not floating(*task.ins, out):
        return None
    if len(task.ins) == 1:
        return copies([(out, first)])
    if any(x.ctypes.data == out.ctypes.data for x in task.ins[2:]):
        return None
    sums = [BoundCall(np.add, (first, task.ins[1], out))]
    sums += [BoundCall(np.add, (out, x, out)) for x in task.ins[2:]]
    return blocked(sums)


# -- copies and constants ----------------------------------------------------------------------


@kernel(
    "identity",
    "BlockGrad",
    "Reshape",
    "Flatten",
    "expand_dims",
    "squeeze",
    "MakeLoss",
    "LinearRegressionOutput",
    "MAERegressionOutput",
    "_CrossDeviceCopy",
)
def copy(task: KernelCall) -> BoundCall:
    return copies([(task.outs[0], task.ins[0].reshape(task.outs[0].shape))])


@kernel("Cast")
def cast(task: KernelCall) -> BoundCall:
    (x,), (out,) = task.ins, task.outs
    return copies([(out, x)]) if x.dtype == out.dtype else BoundCall(np.copyto, (out, x, "unsafe"))


@kernel("_zeros", "zeros_like")
def zeros(task: KernelCall) -> BoundCall:
    return BoundCall(task.outs[0].fill, (0,))


@kernel("_ones", "ones_like")
def ones(task: KernelCall) -> BoundCall:
    return BoundCall(task.outs[0].fill, (1,))


@kernel("_full")
def full(task: KernelCall) -> BoundCall:
    return BoundCall(task.outs[0].fill, (task.attrs["value"],))


# -- compiled functions ------------------------------------------------------------------------


@jit
def exp_flat(x: Array, y: Array) -> None:
    if x.ctypes.data != y.ctypes.data:
        for j in range(len(y)):
            y[j] = exp(x[j])
    else:
        for j in range(len(y)):
            y[j] = exp(y[j])


@jit
def sigmoid_flat(x: Array, y: Array) -> None:
    if x.ctypes.data != y.ctypes.data:
        for j in range(len(y)):
            y[j] = sigmoid(x[j])
    else:
        for j in range(len(y)):
            y[j] = sigmoid(y[j])


@jit
def tanh_flat(x: Array, y: Array) -> None:
    if x.ctypes.data != y.ctypes.data:
        for j in range(len(y)):
            y[j] = tanh(x[j])
    else:
        for j in range(len(y)):
            y[j] = tanh(y[j])


@jit
def erf_flat(x: Array, y: Array) -> None:
    if x.ctypes.data != y.ctypes.data:
        for j in range(len(y)):
            y[j] = erf(x[j])
    else:
        for j in range(len(y)):
            y[j] = erf(y[j])


@jit
def relu_flat(x: Array, y: Array) -> None:
    zero = y.dtype.type(0)
    if x.ctypes.data != y.ctypes.data:
        for j in range(len(y)):
            y[j] = zero if x[j] <= zero else x[j]
    else:
        for j in range(len(y)):
            y[j] = zero if y[j] <= zero else y[j]


@jit
def sigmoid_grad_flat(g: Array, y: Array, out: Array) -> None:
    one = out.dtype.type(1)
    if g.ctypes.data != out.ctypes.data:
        for j in range(len(out)):
            out[j] = g[j] * y[j] * (one - y[j])
    else:
        for j in range(len(out)):
            out[j] = out[j] * y[j] * (one - y[j])


@jit
def tanh_grad_flat(g: Array, y: Array, out: Array) -> None:
    one = out.dtype.type(1)
    if g.ctypes.data != out.ctypes.data:
        for j in range(len(out)):
            out[j] = g[j] * (one - y[j] * y[j])
    else:
        for j in range(len(out)):
            out[j] = out[j] * (one - y[j] * y[j])


@jit
def relu_grad_flat(g: Array, y: Array, out: Array) -> None:
    zero = out.dtype.type(0)
    if g.ctypes.data != out.ctypes.data:
        for j in range(len(out)):
            out[j] = g[j] if y[j] > zero else zero
    else:
        for j in range(len(out)):
            out[j] = out[j] if y[j] > zero else zero


COMPILED: dict[str, Function] = {
    "exp": exp_flat,
    "sigmoid": sigmoid_flat,
    "tanh": tanh_flat,
    "erf": erf_flat,
    "relu": relu_flat,
    "_sigmoid_grad": sigmoid_grad_flat,
    "_tanh_grad": tanh_grad_flat,
    "_relu_grad": relu_grad_flat,
}


# What takes any part of its arrays by itself; see chains.py.
BY_ELEMENT = frozenset({*PAIRS.values(), *UNARY.values(), *COMPILED.values()})


def on_flat(function: Function, task: KernelCall) -> BoundCall | None:
    arrays = (*task.ins, *task.outs)
    return (
        BoundCall(function, tuple([x.reshape(-1) for x in arrays])) if floating(*arrays) else None
    )


def register_compiled(name: str, function: Function) -> None:
    kernel(name)(lambda task: on_flat(function, task))


for word, loop in COMPILED.items():
    register_compiled(word, loop)


@kernel("Activation")
def activation(task: KernelCall) -> BoundCall | None:
    function = COMPILED.get(task.attrs["act_type"])
    return on_flat(function, task) if function else None
