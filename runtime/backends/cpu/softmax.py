"""Softmax and its gradients along rows: one row at a time, while it is in the cache.

If a row may be written in place, its loop is written twice, for two arrays and for one: the
compiler's vector code is not used if the two arrays of a loop overlap. Both give the same bits.
Blocks are summed in the data's dtype, and their sums are added up in float64.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic

from runtime.backends.cpu.flat import floating
from runtime.backends.cpu.table import kernel
from runtime.backends.cpu.vector import exp
from runtime.backends.device.compile import jit, jit_inner, jit_inner_reassoc
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Array
from symgraph.ops.softmax import mode_axis

BLOCK = 1024


def _greater(context: Any, x: Any, y: Any) -> Any:
    """Generate the maximum of two floats, NaN if one is; its loops are vectorised."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = args[0].type
        kinds = ir.FunctionType(kind, [kind, kind])
        function = builder.module.declare_intrinsic("llvm.maximum", [kind], kinds)
        return builder.call(function, args)

    return x(x, x), build


greater: Any = intrinsic(_greater)


# -- loops along a row -------------------------------------------------------------------------


@jit_inner_reassoc
def greatest(row: Array) -> Any:
    top = row[0]
    for j in range(len(row)):
        top = greater(top, row[j])
    return top


@jit_inner_reassoc
def exp_sum(row: Array, top: Any) -> float:
    """Sum exp(row - top)."""
    total = 0.0
    for start in range(0, len(row), BLOCK):
        block = row[start : start + BLOCK]
        part = row.dtype.type(0)
        for j in range(len(block)):
            part += exp(block[j] - top)
        total += part
    return total


@jit_inner_reassoc
def exp_to(row: Array, to: Array, top: Any) -> float:
    """Compute `exp_sum` and write its terms to `to`."""
    apart, total = row.ctypes.data != to.ctypes.data, 0.0
    for start in range(0, len(row), BLOCK):
        block, out = row[start : start + BLOCK], to[start : start + BLOCK]
        part = row.dtype.type(0)
        if apart:
            for j in range(len(out)):
                out[j] = exp(block[j] - top)
        else:
            for j in range(len(out)):
                out[j] = exp(out[j] - top)
        for j in range(len(out)):  # a loop over one array: the same order in place or not
            part += out[j]
        total += part
    return total


@jit_inner
def scaled(row: Array, to: Array, scale: Any) -> None:
    if row.ctypes.data != to.ctypes.data:
        for j in range(len(to)):
            to[j] = row[j] * scale
    elif scale != 1:
        for j in range(len(to)):
            to[j] *= scale


@jit_inner
def scaled_exp(row: Array, to: Array, top: Any, scale: Any) -> None:
    """Compute exp(row - top) * scale."""
    if row.ctypes.data != to.ctypes.data:
        for j in range(len(to)):
            to[j] = exp(row[j] - top) * scale
    else:
        for j in range(len(to)):
            to[j] = exp(to[j] - top) * scale


# -- softmax -----------------------------------------------------------------------------------


@jit
def softmax_rows(x: Array, y: Array) -> None:
    for i in range(len(x)):
        total = exp_to(x[i], y[i], greatest(x[i]))
        scaled(y[i], y[i], y.dtype.type(1 / total))


@jit
def log_softmax_rows(x: Array, y: Array) -> None:
    for i in range(len(x)):
        top = greatest(x[i])
        rest = y.dtype.type(math.log(exp_sum(x[i], top)))
        row, to = x[i], y[i]
        for j in range(len(to)):
            to[j] = row[j] - top - rest


def by_last_axis(function: Any, call: KernelCall, ins: int = 1) -> BoundCall | None:
    """Bind a function of the rows of the first inputs and of the output."""
    arrays = (*call.ins[:ins], call.outs[0])
    if not floating(*arrays):
        return None
    return BoundCall(function, tuple([x.reshape(-1, x.shape[-1]) for x in arrays]))


def along_rows(call: KernelCall, axis: int) -> bool:
    rank = call.ins[0].ndim
    return axis % rank == rank - 1


def plain(call: KernelCall) -> bool:
    return along_rows(call, call.attrs["axis"]) and call.attrs["temperature"] is None


@kernel("softmax")
def softmax(call: KernelCall) -> BoundCall | None:
    return by_last_axis(softmax_rows, call) if plain(call) else None


@kernel("log_softmax")
def log_softmax(call: KernelCall) -> BoundCall | None:
    return by_last_axis(log_softmax_rows, call) if plain(call) else None


@kernel("SoftmaxActivation")
def softmax_activation(call: KernelCall) -> BoundCall | None:
    by_row = along_rows(call, mode_axis(call.attrs))
    return by_last_axis(softmax_rows, call) if by_row else None


@kernel("SoftmaxOutput")
def softmax_output(call: KernelCall) -> BoundCall | None:
    return None if call.attrs["multi_output"] else by_last_axis(softmax_rows, call)


# -- gradients ---------------------------------------------------------------------------------


@jit_inner_reassoc
def product_sum(y: Array, g: Array) -> float:
    total = 0.0
    for start in range(0, len(y), BLOCK):
        one, other = y[start : start + BLOCK], g[start : start + BLOCK]
        part = y.dtype.type(0)
        for j in range(len(one)):
            part += one[j] * other[j]
        total += part
    return total


@jit_inner_reassoc
def row_sum(g: Array) -> float:
    total = 0.0
    for start in range(0, len(g), BLOCK):
        block = g[start : start + BLOCK]
        part = g.dtype.type(0)
        for j in range(len(block)):
            part += block[j]
        total += part
    return total


@jit
def softmax_grad_rows(y: Array, g: Array, out: Array) -> None:
    for i in range(len(y)):
        row, grad, to = y[i], g[i], out[i]
        total = out.dtype.type(product_sum(row, grad))
        for j in range(len(to)):
            to[j] = row[j] * (grad[j] - total)


@jit
def log_softmax_grad_rows(y: Array, g: Array, out: Array) -> None:
    for i in range(len(y)):
        row, grad, to = y[i], g[i], out[i]
        total = out.dtype.type(row_sum(grad))
        for j in range(len(to)):
            to[j] = grad[j] - exp(row[j]) * total


@kernel("_softmax_grad")
def softmax_grad(call: KernelCall) -> BoundCall | None:
    by_row = along_rows(call, call.attrs["axis"])
    return by_last_axis(softmax_grad_rows, call, 2) if by_row else None


@kernel("_log_softmax_grad")
def log_softmax_grad(call: KernelCall) -> BoundCall | None:
    by_row = along_rows(call, call.attrs["axis"])
    return by_last_axis(log_softmax_grad_rows, call, 2) if by_row else None
