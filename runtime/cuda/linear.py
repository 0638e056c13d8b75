"""Matrix products by cuBLAS, which CuPy calls with the outputs that are given.

float32 products are computed in float32: TF32 is for those who ask for it, see symgraph/arrays.py.
"""

from __future__ import annotations

from runtime.cuda.base import (
    WARP,
    each_of_rows,
    floating,
    function,
    in_turn,
    kernel,
    launch,
)
from runtime.native.base import Bound, Task
from symgraph import arrays
from symgraph.types import Array

LANES = 16  # rows that `sum_rows` adds up beside one another


def product(x: Array, y: Array, out: Array) -> Bound:
    """out (M, N) = x (M, K) y (K, N), either of which may be a transposed view."""
    return Bound(arrays.loaded().dot, (x, y, out))


@kernel("FullyConnected")
def fully_connected(task: Task) -> Bound | None:
    """x W^T + b."""
    data, weight, *bias = task.ins
    if not floating(*task.ins, *task.outs):
        return None
    units, inner = weight.shape
    out = task.outs[0].reshape(-1, units)
    made = product(data.reshape(-1, inner), weight.T, out)
    if not bias:
        return made
    add = function("linear", "add_row", real=out.dtype.name)
    return in_turn(made, launch(add, *each_of_rows(*out.shape), out, bias[0], *out.shape))


@kernel("_fc_grad_data")
def grad_data(task: Task) -> Bound | None:
    """g W."""
    (grad, weight), (out,) = task.ins, task.outs
    if not floating(grad, weight, out):
        return None
    units, inner = weight.shape
    return product(grad.reshape(-1, units), weight, out.reshape(-1, inner))


@kernel("_fc_grad_weight")
def grad_weight(task: Task) -> Bound | None:
    """g^T x."""
    (grad, data), (out,) = task.ins, task.outs
    if not floating(grad, data, out):
        return None
    units, inner = out.shape
    return product(grad.reshape(-1, units).T, data.reshape(-1, inner), out)


@kernel("dot")
def dot(task: Task) -> Bound | None:
    """Products of two matrices, either transposed."""
    (x, y), (out,), a = task.ins, task.outs, task.attrs
    if not floating(x, y, out) or x.ndim != 2 or y.ndim != 2:
        return None
    return product(x.T if a["transpose_a"] else x, y.T if a["transpose_b"] else y, out)


@kernel("_sum_rows")
def sum_rows(task: Task) -> Bound | None:
    """The sum of all axes but the last."""
    (x,), (out,) = task.ins, task.outs
    if not floating(x, out):
        return None
    run, shape = function("linear", "sum_rows", real=out.dtype.name), (x.size // out.size, out.size)
    return launch(run, (-(-out.size // WARP),), (WARP, LANES), x, out, *shape)
