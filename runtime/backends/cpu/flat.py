"""Flat kernels: element by element over whole arrays.

Where numpy makes one pass over large arrays it is as fast as a compiled loop, so most of its
functions are called as they are. Compiled are exp, sigmoid, tanh and erf, which are faster than
numpy's and scipy's, hot formulas of several steps, and the arithmetic between the calls of a time
step, which a native call does in a tenth of the time (see native.py). An output may be an input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from runtime.backends.cpu import low
from runtime.backends.cpu.chains import blocked
from runtime.backends.cpu.formulas import Function, loop, numpy_call
from runtime.backends.cpu.rounding import as_stored
from runtime.backends.cpu.rows import FLOATS, copies
from runtime.backends.cpu.table import TAKES_LOW, kernel
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import BFLOAT16, Array, TensorType
from symgraph.ops.formulas import FORMULAS, Formula
from symgraph.ops.leaky_relu import KINDS
from symgraph.ops.unary import ACTIVATIONS

FLOAT_TYPES = {np.dtype(name) for name in FLOATS}


def floating(*values: Array) -> bool:
    """Tell whether all are of one float dtype that has kernels."""
    kinds = {value.dtype for value in values}  # dtypes, since numpy makes their names anew
    return len(kinds) == 1 and kinds <= FLOAT_TYPES


def by_numpy(function: Callable[..., Array], *args: Any, out: Array) -> BoundCall | None:
    """Bind a numpy function; None for floats of 16 bits, which are to come as float32."""
    if low.is_low(out):
        return None

    def run() -> None:
        out[...] = function(*args)

    return BoundCall(run, ())


# -- formulas ----------------------------------------------------------------------------------

# The formulas for which a compiled loop is faster than numpy or scipy, by their names.
LOOPS: dict[str, Function] = {
    formula.name: loop(formula)
    for formula in (
        *[FORMULAS[op] for op in ("exp", "sigmoid", "tanh", "erf", "relu")],
        *[FORMULAS[op] for op in ("_sigmoid_grad", "_tanh_grad", "_relu_grad")],
        *[FORMULAS[op] for op in ("_leaky_relu_grad", "_gelu_grad")],
        *[FORMULAS[op] for op in ("elemwise_add", "elemwise_sub", "elemwise_mul")],
        *[KINDS[kind] for kind in ("leaky", "elu", "selu", "gelu")],
    )
}
CALLS = {
    op: call
    for op, formula in FORMULAS.items()
    if op not in LOOPS and (call := numpy_call(formula)) is not None
}
# Functions that may be called on parts of their arrays, the last being the output; see chains.py.
BY_ELEMENT = frozenset(
    [
        *[LOOPS[f] for f in LOOPS if f not in ("leaky", "elu", "_leaky_relu_grad")],
        *[function for function, _ in CALLS.values()],
    ]
)


def formula_of(op: str, attrs: Mapping[str, Any]) -> Formula | None:
    """Return the formula of an operator; None: it has none."""
    if op == "Activation":
        return ACTIVATIONS[attrs["act_type"]][0]
    return KINDS.get(attrs["act_type"]) if op == "LeakyReLU" else FORMULAS.get(op)


def has_low_loop(op: str, attrs: Mapping[str, Any], types: Sequence[TensorType]) -> bool:
    """Tell whether a loop takes these arrays, all of bfloat16."""
    formula = formula_of(op, attrs)
    alike = {(t.dtype, math.prod(t.shape)) for t in types}
    known = formula is not None and formula.name in LOOPS
    return known and len(alike) == 1 and types[0].dtype == BFLOAT16


TAKES_LOW |= {op: partial(has_low_loop, op) for op in (*FORMULAS, "Activation", "LeakyReLU")}


def by_loop(formula: Formula, call: KernelCall) -> BoundCall | None:
    arrays = (*call.ins, *call.outs)
    if formula.name not in LOOPS or len({x.size for x in arrays}) > 1:
        return None
    is_low = {x.dtype.name for x in arrays} == {BFLOAT16}
    if not is_low and not floating(*arrays):
        return None
    kind = np.float32 if is_low else arrays[0].dtype.type
    flat = [as_stored(x.reshape(-1)) for x in arrays]
    return BoundCall(LOOPS[formula.name], (*flat, *map(kind, formula.values(call.attrs))))


def by_ufunc(op: str, call: KernelCall) -> BoundCall | None:
    """Pass numbers as arrays without axes: numpy takes them twice as fast as Python numbers."""
    (out,), formula, (function, names) = call.outs, FORMULAS[op], CALLS[op]
    if not floating(*call.ins, out):
        return None
    if op == "_power_scalar" and call.attrs["scalar"] == 2:
        return BoundCall(np.square, (*call.ins, out))
    numbers = [np.array(value, out.dtype) for value in formula.values(call.attrs)]
    args = dict(zip((*formula.arrays, *formula.numbers), (*call.ins, *numbers), strict=True))
    return BoundCall(function, (*[args[name] for name in names], out))


def register(op: str, formula: Formula) -> None:
    if op in CALLS:
        kernel(op)(lambda call: by_loop(formula, call) or by_ufunc(op, call))
    elif op in LOOPS:
        kernel(op)(lambda call: by_loop(formula, call))


for op, formula in FORMULAS.items():
    register(op, formula)


@kernel("Activation")
def activation(call: KernelCall) -> BoundCall | None:
    return by_loop(ACTIVATIONS[call.attrs["act_type"]][0], call)


@kernel("LeakyReLU")
def leaky_relu(call: KernelCall) -> BoundCall | None:
    return by_loop(KINDS[call.attrs["act_type"]], call)


@kernel("add_n")
def add_n(call: KernelCall) -> BoundCall | None:
    """Add block by block, so that a partial sum is still in the cache when the next term comes."""
    (out,), first = call.outs, call.ins[0]
    if not floating(*call.ins, out):
        return None
    if len(call.ins) == 1:
        return copies([(out, first)])
    if any(x.ctypes.data == out.ctypes.data for x in call.ins[2:]):
        return None
    sums = [BoundCall(np.add, (first, call.ins[1], out))]
    sums += [BoundCall(np.add, (out, x, out)) for x in call.ins[2:]]
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
def copy(call: KernelCall) -> BoundCall:
    return copies([(call.outs[0], call.ins[0].reshape(call.outs[0].shape))])


def casts_all(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> bool:
    """Tell that the kernel below takes every dtype as it is."""
    return True


TAKES_LOW["Cast"] = casts_all


@kernel("Cast")
def cast(call: KernelCall) -> BoundCall:
    (x,), (out,) = call.ins, call.outs
    return copies([(out, x)]) if x.dtype == out.dtype else low.cast(x, out)


@kernel("_zeros", "zeros_like")
def zeros(call: KernelCall) -> BoundCall:
    return BoundCall(call.outs[0].fill, (0,))


@kernel("_ones", "ones_like")
def ones(call: KernelCall) -> BoundCall:
    return BoundCall(call.outs[0].fill, (1,))


@kernel("_full")
def full(call: KernelCall) -> BoundCall:
    return BoundCall(call.outs[0].fill, (call.attrs["value"],))
