"""Linear operators: products by cuBLAS, and sums over rows."""

from __future__ import annotations

from runtime.cuda.base import WARP, each_of_rows, floating, function, in_turn, kernel, launch
from runtime.cuda.blas import product
from runtime.native.base import Bound, Task

LANES = 16  # rows that `sum_rows` adds up beside one another


@kernel("FullyConnected")
def fully_connected(task: Task) -> Bound | None:
    """x W^T + b."""
    data, weight, *bias = task.ins
    units, inner = weight.shape
    out = task.outs[0].reshape(-1, units)
    made = product(data.reshape(-1, inner), weight.T, out)
    if made is None or not bias:
        return made
    add = function("linear", "add_row", real=out.dtype.name)
    return in_turn(made, launch(add, *each_of_rows(*out.shape), out, bias[0], *out.shape))


@kernel("_fc_grad_data")
def grad_data(task: Task) -> Bound | None:
    """g W."""
    (grad, weight), (out,) = task.ins, task.outs
    units, inner = weight.shape
    return product(grad.reshape(-1, units), weight, out.reshape(-1, inner))


@kernel("_fc_grad_weight")
def grad_weight(task: Task) -> Bound | None:
    """g^T x."""
    (grad, data), (out,) = task.ins, task.outs
    units, inner = out.shape
    return product(grad.reshape(-1, units).T, data.reshape(-1, inner), out)


@kernel("dot")
def dot(task: Task) -> Bound | None:
    """Products of two matrices, either transposed."""
    (x, y), (out,), a = task.ins, task.outs, task.attrs
    if x.ndim != 2 or y.ndim != 2:
        return None
    return product(x.T if a["transpose_a"] else x, y.T if a["transpose_b"] else y, out)


@kernel("batch_dot")
def batch_dot(task: Task) -> Bound | None:
    """Products of all pairs of matrices, either transposed."""
    (x, y), a = task.ins, task.attrs
    x, y, out = (array.reshape(-1, *array.shape[-2:]) for array in (x, y, *task.outs))
    x = x.swapaxes(1, 2) if a["transpose_a"] else x
    return product(x, y.swapaxes(1, 2) if a["transpose_b"] else y, out)


@kernel("_sum_rows")
def sum_rows(task: Task) -> Bound | None:
    """The sum of all axes but the last."""
    (x,), (out,) = task.ins, task.outs
    if not floating(x, out):
        return None
    run, shape = function("linear", "sum_rows", real=out.dtype.name), (x.size // out.size, out.size)
    return launch(run, (-(-out.size // WARP),), (WARP, LANES), x, out, *shape)
