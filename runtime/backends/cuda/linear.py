"""Linear operators: products by cuBLAS, and sums over rows."""

from __future__ import annotations

from runtime.backends.cuda.base import (
    PACK,
    WARP,
    each_of_rows,
    floating,
    function,
    in_turn,
    kernel,
    launch,
    packed_rows,
)
from runtime.backends.cuda.blas import product
from runtime.backends.cuda.rank_memory import scratch
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import TensorType, wide

LANES = 16  # rows that a block adds up in parallel
MIN_RUN = 512  # rows that a block adds up
BLOCKS = 256  # about as many as run at a time
ROWS = 1024  # blocks one below the other, each of which reads the bias once


@kernel("FullyConnected")
def fully_connected(call: KernelCall) -> BoundCall | None:
    """Bind x W^T + b.

    The product is added to rows that are the bias already, which writes them once less; but with
    16 bits the product is rounded before the bias is added, as on a CPU.
    """
    data, weight, *bias = call.ins
    units, inner = weight.shape
    out = call.outs[0].reshape(-1, units)
    fills = bool(bias) and out.dtype.name == wide(out.dtype.name)
    bound = product(data.reshape(-1, inner), weight.T, out, adds=fills)
    if bound is None or not bias:
        return bound
    rows, columns = out.shape
    shape = each_of_rows(min(rows, ROWS), -(-columns // PACK))
    run = function("linear", "fill_rows" if fills else "add_row", real=out.dtype.name)
    spread = launch(run, *shape, out, bias[0], rows, columns, packed_rows(out, bias[0]))
    return in_turn(spread, bound) if fills else in_turn(bound, spread)


@kernel("_fc_grad_data")
def grad_data(call: KernelCall) -> BoundCall | None:
    """Bind g W."""
    (grad, weight), (out,) = call.ins, call.outs
    units, inner = weight.shape
    return product(grad.reshape(-1, units), weight, out.reshape(-1, inner))


@kernel("_fc_grad_weight")
def grad_weight(call: KernelCall) -> BoundCall | None:
    """Bind g^T x."""
    (grad, data), (out,) = call.ins, call.outs
    units, inner = out.shape
    return product(grad.reshape(-1, units).T, data.reshape(-1, inner), out)


@kernel("dot")
def dot(call: KernelCall) -> BoundCall | None:
    """Bind the product of two matrices, either of which may be transposed."""
    (x, y), (out,), a = call.ins, call.outs, call.attrs
    if x.ndim != 2 or y.ndim != 2:
        return None
    return product(x.T if a["transpose_a"] else x, y.T if a["transpose_b"] else y, out)


@kernel("batch_dot")
def batch_dot(call: KernelCall) -> BoundCall | None:
    """Bind the products of pairs of matrices, either of which may be transposed."""
    (x, y), a = call.ins, call.attrs
    x, y, out = (array.reshape(-1, *array.shape[-2:]) for array in (x, y, *call.outs))
    x = x.swapaxes(1, 2) if a["transpose_a"] else x
    return product(x, y.swapaxes(1, 2) if a["transpose_b"] else y, out)


@kernel("_sum_rows")
def sum_rows(call: KernelCall) -> BoundCall | None:
    """Bind the sum over all axes but the last."""
    (x,), (out,) = call.ins, call.outs
    if not floating(x, out):
        return None
    rows, columns, blocks = x.size // out.size, out.size, -(-out.size // WARP)
    whole, of_runs, of_parts = (
        function("linear", name, real=out.dtype.name)
        for name in ("sum_rows", "sum_runs", "sum_parts")
    )
    run = max(MIN_RUN, -(-rows // max(1, BLOCKS // blocks)))
    runs = -(-rows // run)
    if runs == 1:
        return launch(whole, (blocks,), (WARP, LANES), x, out, rows, columns)
    (parts,) = scratch(call.context, [TensorType((runs, columns), wide(out.dtype.name))])
    return in_turn(
        launch(of_runs, (blocks, runs), (WARP, LANES), x, parts, rows, columns, run),
        launch(of_parts, (blocks,), (WARP, LANES), parts, out, runs, columns),
    )
