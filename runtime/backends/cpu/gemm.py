"""Matrix products, by the back ends of `choice`: packed weights where rows are few, else BLAS.

BLAS packs a weight anew in every product. With the few rows of a time step that takes as long as
the product itself, so a parameter is packed once per step instead (`KernelCall.pack`). Which way a
call goes depends on its shapes and on which of its inputs are parameters, so bits do not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime.backends.cpu import pair_calls
from runtime.backends.cpu.blas import BACK_ENDS, add_row
from runtime.backends.cpu.choice import FEW_ROWS, OWN, chosen, packed_product, product
from runtime.backends.cpu.micro import available, pack_as_is, pack_transposed, packed_shape
from runtime.backends.cpu.pair_calls import PACKED, pack_pairs, product_scratch
from runtime.backends.cpu.rounding import as_words, narrow, widen
from runtime.backends.cpu.scratch import SCRATCH, whole_lines
from runtime.backends.cpu.table import CASTING, TAKES_LOW, kernel
from runtime.backends.device.compile import jit
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.graph import Graph, Node
from symgraph.core.types import BFLOAT16, Array, Shape, TensorType
from symgraph.passes.precision import is_parameter_cast

__all__ = ["available", "matmul_packed", "pack", "packed_shape"]

BLOCK = 1024  # numbers of a row that are summed together
DTYPES = (np.float32, np.float64)
WIDE = np.dtype(np.float32)


def pack(weight: Array, out: Array, transposed: bool) -> None:
    """Lay out a weight as right operand: W (inner, units), or transposed W (units, inner).

    The weight is C-contiguous; `out` has its dtype and packed_shape(inner, units), or, for products
    of bfloat16, uint32 and pairs_shape(inner, units).
    """
    inner, units = weight.shape[::-1] if transposed else weight.shape
    assert weight.flags.c_contiguous
    if out.dtype == np.uint32:
        pack_pairs(weight, {transposed: out})
        return
    assert out.dtype == weight.dtype
    assert out.shape == packed_shape(inner, units)
    (pack_transposed if transposed else pack_as_is)(weight, out)


def pack_all(weight: Array, forms: Mapping[bool, Array]) -> None:
    """Lay out a weight as it is and transposed, or one of both: see `pack`."""
    if all(out.dtype == np.uint32 for out in forms.values()):
        pack_pairs(weight, forms)  # which reads it once
        return
    for transposed, out in forms.items():
        pack(weight, out, transposed)


def matmul_packed(x: Array, packed: Array, out: Array, accumulate: bool = False) -> None:
    """Compute out (M, N) = x (M, K) times a packed operand (K, N), added to out if `accumulate`.

    Elements of a row lie side by side; rows may lie apart.
    """
    product = packed_product(x, packed, out, out if accumulate else None)
    product.function(*product.args)


def _packed(
    call: KernelCall, weight: int, transposed: bool, x: Array, add: Array | None = None
) -> BoundCall | None:
    """Bind the product of x's rows with a packed weight; None where BLAS is used instead."""
    few = len(x) in FEW_ROWS and available() and chosen().few == PACKED
    if not few or (packed := _resident(call, weight, transposed)) is None:
        return None
    units = call.ins[weight].shape[0 if transposed else 1]
    return packed_product(x, packed, call.outs[0].reshape(len(x), units), add)


def _resident(call: KernelCall, weight: int, transposed: bool) -> Array | None:
    """Return the packed form of an input if it is a parameter that somebody packs."""
    packs = call.pack is not None and any(call.weights[weight : weight + 1])
    return call.pack(weight, transposed) if packs and call.pack else None


def packed_rows(node: Node, graph: Graph) -> tuple[str, bool] | None:
    """Return the parameter that a call wants packed, and whether it is transposed.

    Products of bfloat16 want it always, and packed from the parameter that the weight is cast from.
    """
    if node.op not in ("FullyConnected", "_fc_grad_data", "dot") or not available():
        return None
    if node.op == "dot" and node.attrs["transpose_a"]:
        return None
    turned = node.attrs["transpose_b"] if node.op == "dot" else node.op == "FullyConnected"
    name = node.inputs[1].node
    data, weight = graph.types_of(node.inputs[:2])
    if len(weight.shape) != 2 or (node.op == "dot" and len(data.shape) != 2):
        return None
    if data.dtype == weight.dtype == BFLOAT16:
        if chosen().bfloat16 not in OWN:
            return None
        name = graph[name].inputs[0].node if is_parameter_cast(graph, name) else name
    else:
        rows = data.size // weight.shape[1 if turned else 0]
        if chosen().few != PACKED or rows not in FEW_ROWS or np.dtype(data.dtype) not in DTYPES:
            return None
    return (name, turned) if graph[name].is_variable else None


def scratch_bytes(node: Node, graph: Graph) -> int:
    """Return the bytes of scratch memory that a product of bfloat16 uses; others use none."""
    (first, second, *_), (out,) = graph.types_of(node.inputs), node.types
    if not available() or not first.dtype == second.dtype == BFLOAT16:
        return 0
    units = out.shape[-1]
    name = chosen().bfloat16
    if name not in OWN:
        return sum(whole_lines(WIDE, _low_shapes(out.size // units, units))) + 64
    if node.op == "_fc_grad_weight":
        rows = out.shape[0]
        return product_scratch(name, rows, first.size // rows, units, packed=False)
    rows = out.size // units
    packed = packed_rows(node, graph) is not None
    return product_scratch(name, rows, first.size // rows, units, packed)


def _handled(call: KernelCall) -> bool:
    """Tell whether all arrays have one dtype that has packed products."""
    dtypes = {array.dtype for array in (*call.ins, *call.outs)}
    return len(dtypes) == 1 and dtypes <= set(map(np.dtype, DTYPES))


def _is_bfloat16(call: KernelCall) -> bool:
    """Tell whether this is a product of bfloat16, rounded to that and stored so or in float32."""
    dtypes = {a.dtype.name for a in call.ins}
    return available() and dtypes == {BFLOAT16} and call.outs[0].dtype.name in (BFLOAT16, "float32")


CASTING |= {"FullyConnected", "_fc_grad_data", "_fc_grad_weight", "dot"}


@jit
def round_rows(rows: Array, row: Array, room: Array, out: Array) -> None:
    """Round rows (M, N) of float32, plus a row of bfloat16 unless it is empty, to bfloat16.

    Args:
        rows: They are changed.
        row: As uint16.
        room: (2, N) for the row in float32 and rounded numbers.
        out: (M, N), as uint16, or as uint32 for the rounded numbers in float32.
    """
    size = rows.shape[1]
    if row.size:
        widen(row, room[0].view(np.uint32))
    low = room[1].view(np.uint16)[:size]
    for i in range(len(rows)):
        if row.size:
            for j in range(size):
                rows[i, j] += room[0, j]
        narrow(rows[i].view(np.uint32), low)
        if out.itemsize == 2:
            out[i] = low
        else:
            widen(low, out[i])


def _low_shapes(rows: int, units: int) -> list[Shape]:
    """Return the shapes in float32 that a library's product of bfloat16 uses."""
    return [(rows, units), (2, units)]


def _round_product(name: str, x: Array, y: Array, row: Array, out: Array) -> None:
    wide, room = SCRATCH.arrays(WIDE, *_low_shapes(*out.shape))
    function, args = BACK_ENDS[name].bind(x, y, wide, None)
    function(*args)
    round_rows(wide, row, room, out)


def _low(call: KernelCall, x: Array, left: bool, y: Array, turned: bool, out: Array) -> BoundCall:
    """Bind out = x y + b in bfloat16, by the chosen back end.

    Args:
        call: The call; y is its second input, and b its third, if it has one.
        x: The left operand, transposed if `left`; then y is no weight.
        left: See x.
        y: The right operand, transposed if `turned`.
        turned: See y.
        out: The product.
    """
    name, row = chosen().bfloat16, call.ins[2] if len(call.ins) > 2 else None
    if name in OWN:
        packed = None if left else _resident(call, 1, turned)
        return pair_calls.product(name, x, left, y, turned, out, row, packed)
    right, bits = as_words(y), np.empty(0, np.uint16) if row is None else as_words(row)
    x, y = as_words(x).T if left else as_words(x), right.T if turned else right
    return BoundCall(_round_product, (name, x, y, bits, as_words(out)))


def _plain(x: Array, y: Array, out: Array, row: Array | None = None) -> BoundCall:
    """Bind out = x y + b by the BLAS for that many rows."""
    return product("few" if len(x) in FEW_ROWS else "many", x, y, out, row)


@kernel("FullyConnected")
def fully_connected(call: KernelCall) -> BoundCall | None:
    """Bind x W^T + b."""
    data, weight, *bias = call.ins
    units, inner = weight.shape
    x, out = data.reshape(-1, inner), call.outs[0].reshape(-1, units)
    if _is_bfloat16(call):
        return _low(call, x, False, weight, True, out)
    if not _handled(call):
        return None
    row = bias[0] if bias else None
    return _packed(call, 1, True, x, row) or _plain(x, weight.T, out, row)


@kernel("_fc_grad_data")
def grad_data(call: KernelCall) -> BoundCall | None:
    """Bind g W."""
    units, inner = call.ins[1].shape
    g, out = call.ins[0].reshape(-1, units), call.outs[0].reshape(-1, inner)
    if _is_bfloat16(call):
        return _low(call, g, False, call.ins[1], False, out)
    if not _handled(call):
        return None
    return _packed(call, 1, False, g) or _plain(g, call.ins[1], out)


@kernel("_fc_grad_weight")
def grad_weight(call: KernelCall) -> BoundCall | None:
    """Bind g^T x."""
    units, inner = call.outs[0].shape
    g, x = call.ins[0].reshape(-1, units), call.ins[1].reshape(-1, inner)
    if _is_bfloat16(call):
        return _low(call, g, True, x, False, call.outs[0])
    if not _handled(call):
        return None
    return product("turned", g.T, x, call.outs[0])


@kernel("dot")
def dot(call: KernelCall) -> BoundCall | None:
    """Bind the product of two matrices, either of which may be transposed."""
    x, y = call.ins
    if x.ndim != 2 or y.ndim != 2:
        return None
    left, turned = call.attrs["transpose_a"], call.attrs["transpose_b"]
    if _is_bfloat16(call):
        return _low(call, x, left, y, turned, call.outs[0])
    if not _handled(call):
        return None
    right = y.T if turned else y
    if left:
        return product("turned", x.T, right, call.outs[0])
    return _packed(call, 1, turned, x) or _plain(x, right, call.outs[0])


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


@jit
def add_low_rows(rows: Array, room: Array, out: Array) -> None:
    """Sum rows of bfloat16 to a row of it, in float32 and in the same order as `add_rows`."""
    total, part = room[:BLOCK], room[BLOCK : 2 * BLOCK]
    for start in range(0, out.size, BLOCK):
        end = min(out.size, start + BLOCK)
        size = end - start
        total[:] = 0
        for i in range(rows.shape[0]):
            widen(rows[i, start:end], part[:size].view(np.uint32))
            for j in range(size):
                total[j] += part[j]
        narrow(total[:size].view(np.uint32), out[start:end])


def sums_low_rows(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> bool:
    """Tell whether the kernel below takes these arrays, all of bfloat16."""
    return {t.dtype for t in types} == {BFLOAT16}


TAKES_LOW["_sum_rows"] = sums_low_rows


@kernel("_sum_rows")
def sum_rows(call: KernelCall) -> BoundCall | None:
    """Bind the sum over all axes but the last."""
    out: Any = call.outs[0]
    rows = call.ins[0].reshape(-1, out.size)
    if {rows.dtype.name, out.dtype.name} == {BFLOAT16}:
        room = np.empty(2 * BLOCK, np.float32)
        return BoundCall(add_low_rows, (as_words(rows), room, as_words(out.reshape(-1))))
    if not _handled(call):
        return None
    return BoundCall(add_rows, (rows, out))
