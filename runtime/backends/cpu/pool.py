"""Pooling: maxima of windows of 2x2 with stride 2 in one pass, all others by lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.backends.cpu import pool_lines
from runtime.backends.cpu.flat import by_numpy
from runtime.backends.cpu.rounding import as_stored, number_of, stored_in
from runtime.backends.cpu.rows import FLOATS
from runtime.backends.cpu.softmax import greater
from runtime.backends.cpu.table import TAKES_LOW, kernel
from runtime.backends.device.compile import jit, jit_inner
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import BFLOAT16, Array, TensorType
from symgraph.ops.pool import windows_over


@jit_inner
def window(upper: Array, lower: Array, j: int) -> Any:
    """Return the numbers of a window, in float32 those of bfloat16, as uint16."""
    a, b, c, d = upper[2 * j], upper[2 * j + 1], lower[2 * j], lower[2 * j + 1]
    return number_of(a), number_of(b), number_of(c), number_of(d)


@jit
def maxima(x: Array, y: Array) -> None:
    """Compute y (images, rows, columns) from x (images, at least 2 * rows, 2 * columns)."""
    for i in range(y.shape[0]):
        for row in range(y.shape[1]):
            upper, lower, to = x[i, 2 * row], x[i, 2 * row + 1], y[i, row]
            for j in range(len(to)):
                a, b, c, d = window(upper, lower, j)
                to[j] = stored_in(to, greater(greater(a, b), greater(c, d)))


@jit_inner
def to_upper(upper: Array, lower: Array, grad: Array, out: Array) -> None:
    """Write the upper row's gradients: those of windows whose first maximum is in it."""
    zero = out.dtype.type(0)
    for j in range(len(grad)):
        a, b, c, d = window(upper, lower, j)
        top = greater(greater(a, b), greater(c, d))
        out[2 * j] = grad[j] if a == top else zero
        out[2 * j + 1] = grad[j] if (b == top) & (a != top) else zero


@jit_inner
def to_lower(upper: Array, lower: Array, grad: Array, out: Array) -> None:
    """Write the lower row's gradients: those of windows whose first maximum is in it."""
    zero = out.dtype.type(0)
    for j in range(len(grad)):
        a, b, c, d = window(upper, lower, j)
        top = greater(greater(a, b), greater(c, d))
        free = (a != top) & (b != top)
        out[2 * j] = grad[j] if (c == top) & free else zero
        out[2 * j + 1] = grad[j] if (d == top) & free & (c != top) else zero


@jit
def maxima_gradient(g: Array, x: Array, out: Array) -> None:
    """Write each window's gradient at its first maximum; nowhere if the window has a NaN."""
    rows, columns = g.shape[1:]
    for i in range(len(g)):
        for row in range(rows):
            upper, lower = x[i, 2 * row], x[i, 2 * row + 1]
            to_upper(upper, lower, g[i, row], out[i, 2 * row])
            to_lower(upper, lower, g[i, row], out[i, 2 * row + 1])
        out[i, : 2 * rows, 2 * columns :] = 0
        out[i, 2 * rows :] = 0


def halves(attrs: Mapping[str, Any], data: Array | TensorType) -> bool:
    """Tell whether this is a maximum over windows of 2x2 with stride 2, all inside the data."""
    if attrs["pool_type"] != "max" or len(data.shape) != 4 or attrs["global_pool"]:
        return False
    windows, counts = windows_over(attrs, data.shape)
    inside = all(2 * n <= length for n, length in zip(counts, data.shape[2:], strict=True))
    plain = not any(windows.pad) and windows.kernel == windows.stride == (2, 2)
    return plain and inside and str(data.dtype) in (*FLOATS, BFLOAT16)


def low_halves(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> bool:
    """Tell the same of a call on bfloat16."""
    data = max(types, key=lambda type_: math.prod(type_.shape))
    return {t.dtype for t in types} == {BFLOAT16} and halves(attrs, data)


TAKES_LOW |= dict.fromkeys(("Pooling", "_max_pool_grad"), low_halves)


def images(x: Array) -> Array:
    return as_stored(x.reshape(-1, *x.shape[2:]))


@kernel("Pooling")
def pooling(call: KernelCall) -> BoundCall | None:
    (x,), (y,) = call.ins, call.outs
    if halves(call.attrs, x):
        return BoundCall(maxima, (images(x), images(y)))
    return by_numpy(pool_lines.pooled, call.attrs, x, out=y)


@kernel("_max_pool_grad")
def max_pool_grad(call: KernelCall) -> BoundCall | None:
    (g, x), (out,) = call.ins, call.outs
    if halves(call.attrs, x):
        return BoundCall(maxima_gradient, (images(g), images(x), images(out)))
    lines = pool_lines.lines_of(call.attrs, x.shape)
    return by_numpy(pool_lines.maxima_gradient, g, x, lines, out=out)


@kernel("_at_maxima")
def at_maxima(call: KernelCall) -> BoundCall | None:
    (h, x), (out,) = call.ins, call.outs
    lines = pool_lines.lines_of(call.attrs, x.shape)
    return by_numpy(pool_lines.at_maxima, h, x, lines, out=out)


@kernel("_pool_grad")
def pool_grad(call: KernelCall) -> BoundCall | None:
    (g,), (out,) = call.ins, call.outs
    return by_numpy(pool_lines.pool_gradient, call.attrs, g, out=out)
