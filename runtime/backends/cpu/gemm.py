"""Matrix products: packed weights where rows are few, BLAS elsewhere.

BLAS packs a weight anew in every product. With the few rows of a time step that takes as long as
the product itself, so a parameter is packed once per step instead (`KernelCall.pack`). Which way a
call goes depends on its shapes and on which of its inputs are parameters, so bits do not change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from runtime.backends.cpu.flat import by_numpy
from runtime.backends.cpu.micro import (
    available,
    multiply,
    pack_as_is,
    pack_transposed,
    packed_shape,
)
from runtime.backends.cpu.table import kernel
from runtime.backends.device.compile import jit
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.graph import Graph, Node
from symgraph.core.types import Array

__all__ = ["available", "matmul_packed", "pack", "packed_shape"]

DTYPES = (np.float32, np.float64)
PACKED_ROWS = range(2, 257)  # one row reads each weight once either way; BLAS is as fast for many
SLOW_ROWS = range(2, 64)  # rows for which OpenBLAS does W x^T at twice the rate of x W^T


def pack(weight: Array, out: Array, transposed: bool) -> None:
    """Lay out a weight as right operand: W (inner, units), or transposed W (units, inner).

    The weight is C-contiguous; `out` has its dtype and packed_shape(inner, units).
    """
    inner, units = weight.shape[::-1] if transposed else weight.shape
    assert weight.flags.c_contiguous
    assert out.dtype == weight.dtype
    assert out.shape == packed_shape(inner, units)
    (pack_transposed if transposed else pack_as_is)(weight, out)


def matmul_packed(x: Array, packed: Array, out: Array, accumulate: bool = False) -> None:
    """Compute out (M, N) = x (M, K) times a packed operand (K, N), added to out if `accumulate`.

    Elements of a row lie side by side; rows may lie apart.
    """
    product = _product(x, packed, out, out if accumulate else None)
    product.function(*product.args)


def _product(x: Array, packed: Array, out: Array, add: Array | None) -> BoundCall:
    """Bind a packed product, plus a matrix or a row that is added to every row."""
    inner, units = x.shape[1], out.shape[1]
    assert x.dtype == packed.dtype == out.dtype
    assert packed.shape == packed_shape(inner, units)
    assert len(x) == len(out)
    assert inner == 1 or x.strides[1] == x.itemsize
    assert units == 1 or out.strides[1] == out.itemsize
    more = (0, 0) if add is None else (add.ctypes.data, add.strides[0] if add.ndim == 2 else 0)
    steps = x.strides[0], more[1], out.strides[0]
    sizes = len(x), inner, units
    return BoundCall(multiply, (packed, x.ctypes.data, more[0], out.ctypes.data, sizes, steps))


def _packed(
    call: KernelCall, weight: int, transposed: bool, x: Array, add: Array | None = None
) -> BoundCall | None:
    """Bind the product of x's rows with a packed weight; None where BLAS is used instead."""
    few = len(x) in PACKED_ROWS and available()
    if not few or not any(call.weights[weight : weight + 1]) or call.pack is None:
        return None
    units = call.ins[weight].shape[0 if transposed else 1]
    return _product(x, call.pack(weight, transposed), call.outs[0].reshape(len(x), units), add)


def packed_rows(node: Node, graph: Graph) -> tuple[str, bool] | None:
    """Return the parameter that a call wants packed, and whether it is transposed."""
    if node.op not in ("FullyConnected", "_fc_grad_data", "dot") or not available():
        return None
    if node.op == "dot" and node.attrs["transpose_a"]:
        return None
    turned = node.attrs["transpose_b"] if node.op == "dot" else node.op == "FullyConnected"
    name = node.inputs[1].node
    data, weight = graph.types_of(node.inputs[:2])
    inner = weight.shape[1 if turned else 0]
    few = (
        len(weight.shape) == 2
        and np.dtype(data.dtype) in DTYPES
        and data.size // inner in PACKED_ROWS
    )
    return (name, turned) if few and graph[name].is_variable else None


def _handled(call: KernelCall) -> bool:
    """Tell whether all arrays have one dtype that has packed products."""
    dtypes = {array.dtype for array in (*call.ins, *call.outs)}
    return len(dtypes) == 1 and dtypes <= set(map(np.dtype, DTYPES))


@jit
def add_row(rows: Array, row: Array) -> None:
    """Add row (N,) to every row of rows (M, N)."""
    for i in range(rows.shape[0]):
        to = rows[i]
        for j in range(row.size):
            to[j] += row[j]


def _dot_plus(x: Array, y: Array, out: Array, row: Array) -> None:
    np.dot(x, y, out)
    add_row(out, row)


def _turned(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Compute x W^T + b as (W x^T)^T + b."""
    y: Array = (weight @ x.T).T
    if bias is not None:
        y += bias
    return y


@kernel("FullyConnected")
def fully_connected(call: KernelCall) -> BoundCall | None:
    """Bind x W^T + b."""
    data, weight, *bias = call.ins
    units, inner = weight.shape
    x, out = data.reshape(-1, inner), call.outs[0].reshape(-1, units)
    if not _handled(call):
        return by_numpy(_turned, x, weight, *bias, out=out) if len(x) < SLOW_ROWS.stop else None
    bound = _packed(call, 1, True, x, bias[0] if bias else None)
    if bound is not None:
        return bound
    if len(x) in SLOW_ROWS:
        return by_numpy(_turned, x, weight, *bias, out=out)
    if bias:
        return BoundCall(_dot_plus, (x, weight.T, out, bias[0]))
    return BoundCall(np.dot, (x, weight.T, out))


@kernel("_fc_grad_data")
def grad_data(call: KernelCall) -> BoundCall | None:
    """Bind g W."""
    if not _handled(call):
        return None
    units, inner = call.ins[1].shape
    g, out = call.ins[0].reshape(-1, units), call.outs[0].reshape(-1, inner)
    return _packed(call, 1, False, g) or BoundCall(np.dot, (g, call.ins[1], out))


@kernel("_fc_grad_weight")
def grad_weight(call: KernelCall) -> BoundCall | None:
    """Bind g^T x."""
    if not _handled(call):
        return None
    units, inner = call.outs[0].shape
    g, x = call.ins[0].reshape(-1, units), call.ins[1].reshape(-1, inner)
    return BoundCall(np.dot, (g.T, x, call.outs[0]))


@kernel("dot")
def dot(call: KernelCall) -> BoundCall | None:
    """Bind the product of two matrices, either of which may be transposed."""
    x, y = call.ins
    if not _handled(call) or x.ndim != 2 or y.ndim != 2:
        return None
    turned = call.attrs["transpose_b"]
    if call.attrs["transpose_a"]:
        bound, x = None, x.T
    else:
        bound = _packed(call, 1, turned, x)
    return bound or BoundCall(np.dot, (x, y.T if turned else y, call.outs[0]))


@jit
def add_rows(rows: Array, out: Array) -> None:
    """Sum rows (M, N) in their order to out (N,), four at a time to save passes over memory."""
    out[:] = 0
    fours = rows.shape[0] // 4 * 4
    for i in range(0, fours, 4):
        a, b, c, d = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        for j in range(out.size):
            out[j] = out[j] + a[j] + b[j] + c[j] + d[j]
    for i in range(fours, rows.shape[0]):
        add_row(out.reshape(1, -1), rows[i])


@kernel("_sum_rows")
def sum_rows(call: KernelCall) -> BoundCall | None:
    """Bind the sum over all axes but the last."""
    if not _handled(call):
        return None
    out: Any = call.outs[0]
    return BoundCall(add_rows, (call.ins[0].reshape(-1, out.size), out))
