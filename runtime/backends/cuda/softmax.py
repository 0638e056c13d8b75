"""Softmax kernels: a block a row, for vocabularies of any size."""

from __future__ import annotations

from typing import Any

from runtime.backends.cuda import lines
from runtime.backends.cuda.base import (
    block_a_row,
    each,
    each_of_rows,
    floating,
    function,
    kernel,
    launch,
    packed_rows,
)
from runtime.backends.device.operands import lowest
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Array
from symgraph.ops.softmax import mode_axis

LINES = ("softmax", "softmax_grad")  # that have kernels for any axis


def run(name: str, x: Array) -> Any:
    return function("softmax", name, real=x.dtype.name)


# -- whole rows --------------------------------------------------------------------------------


def on_rows(name: str, ins: tuple[Array, ...], out: Array) -> BoundCall | None:
    if not floating(*ins, out):
        return None
    columns = out.shape[-1]
    shape = block_a_row(out.size // columns, columns)
    return launch(run(name, out), *shape, *ins, out, columns, packed_rows(*ins, out))


def on_lines(name: str, ins: tuple[Array, ...], out: Array, axis: int) -> BoundCall | None:
    """Bind a kernel of lines.cu along another axis than the last."""
    if not floating(*ins, out):
        return None
    layout, call = lines.along(out, axis), lines.run(f"{name}_lines", out)
    return launch(call, *layout.along, *ins, out, *layout.sizes)


def register(op: str, name: str) -> None:
    @kernel(op)
    def along_axis(call: KernelCall) -> BoundCall | None:
        axis, (out,) = call.attrs["axis"], call.outs
        if call.attrs.get("temperature") is not None:
            return None
        if axis % out.ndim == out.ndim - 1:
            return on_rows(f"{name}_rows", call.ins, out)
        return on_lines(name, call.ins, out, axis) if name in LINES else None


register("softmax", "softmax")
register("log_softmax", "log_softmax")
register("_softmax_grad", "softmax_grad")
register("_log_softmax_grad", "log_softmax_grad")


@kernel("SoftmaxActivation")
def softmax_activation(call: KernelCall) -> BoundCall | None:
    (out,), axis = call.outs, mode_axis(call.attrs)
    if axis % out.ndim == out.ndim - 1:
        return on_rows("softmax_rows", call.ins, out)
    return on_lines("softmax", call.ins, out, axis)


@kernel("SoftmaxOutput")
def softmax_output(call: KernelCall) -> BoundCall | None:
    if call.attrs["multi_output"]:
        return None
    return on_rows("softmax_rows", call.ins[:1], call.outs[0])


# -- figures of rows ---------------------------------------------------------------------------


def figures_of(x: Array, figures: Array) -> BoundCall:
    """Bind the figures (2, ...) of rows (..., columns), see `_shard_row_figures`."""
    columns = x.shape[-1]
    rows = x.size // columns
    shape = block_a_row(rows, columns)
    sizes = rows, columns, packed_rows(x)
    return launch(run("row_figures", x), *shape, x, figures, *sizes, lowest(x))


@kernel("_shard_row_figures")
def row_figures(call: KernelCall) -> BoundCall | None:
    (x,), (out,) = call.ins, call.outs
    return figures_of(x, out) if floating(x, calc=[out]) else None


@kernel("_shard_join_figures")
def join_figures(call: KernelCall) -> BoundCall | None:
    """Bind the join of two shards' figures; those of more shards have no kernel."""
    if len(call.ins) != 2 or not floating(*call.ins):
        return None
    rows = call.outs[0].size // 2
    return launch(run("join_figures", call.outs[0]), *each(rows), *call.ins, *call.outs, rows)


@kernel("_shard_softmax_output")
def shard_softmax_output(call: KernelCall) -> BoundCall | None:
    (x, _, figures, *_), (out,) = call.ins, call.outs
    if not floating(x, out, calc=[figures]):
        return None
    columns = x.shape[-1]
    shape = x.size // columns, columns
    return launch(run("probability_rows", x), *each_of_rows(*shape), x, figures, out, *shape)
