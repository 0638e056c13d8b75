"""Softmax kernels: a block a row, for vocabularies of any size."""

from __future__ import annotations

from typing import Any

import numpy as np

from runtime.cuda.base import (
    block_a_row,
    each,
    each_of_rows,
    floating,
    function,
    kernel,
    launch,
)
from runtime.native.base import Bound, Task
from symgraph.ops.params import Attrs
from symgraph.ops.softmax import mode_axis
from symgraph.types import Array, wide


def run(name: str, x: Array) -> Any:
    return function("softmax", name, real=x.dtype.name)


def lowest(x: Array) -> Any:
    """The least finite number, which stands for the maximum of a row of -inf."""
    calc = np.dtype(wide(x.dtype))
    return calc.type(np.finfo(calc).min)


# -- whole rows --------------------------------------------------------------------------------


def on_rows(name: str, ins: tuple[Array, ...], out: Array) -> Bound | None:
    if not floating(*ins, out):
        return None
    columns = out.shape[-1]
    shape = block_a_row(out.size // columns, columns)
    return launch(run(name, out), *shape, *ins, out, columns)


def plain(a: Attrs, rank: int) -> bool:
    """Whether it is along the last axis, and of the data as they are."""
    return bool(a["axis"] % rank == rank - 1 and a.get("temperature") is None)


def register(op: str, name: str) -> None:
    @kernel(op)
    def along_rows(task: Task) -> Bound | None:
        fits = plain(task.attrs, task.ins[0].ndim)
        return on_rows(name, task.ins, task.outs[0]) if fits else None


register("softmax", "softmax_rows")
register("log_softmax", "log_softmax_rows")
register("_softmax_grad", "softmax_grad_rows")
register("_log_softmax_grad", "log_softmax_grad_rows")


@kernel("SoftmaxActivation")
def softmax_activation(task: Task) -> Bound | None:
    if mode_axis(task.attrs) % task.ins[0].ndim != task.ins[0].ndim - 1:
        return None
    return on_rows("softmax_rows", task.ins, task.outs[0])


@kernel("SoftmaxOutput")
def softmax_output(task: Task) -> Bound | None:
    if task.attrs["multi_output"]:
        return None
    return on_rows("softmax_rows", task.ins[:1], task.outs[0])


# -- figures of rows ---------------------------------------------------------------------------


def figures_of(x: Array, figures: Array) -> Bound:
    """The figures (2, ...) of rows (..., columns), see `_shard_row_figures`."""
    columns = x.shape[-1]
    rows = x.size // columns
    shape = block_a_row(rows, columns)
    return launch(run("row_figures", x), *shape, x, figures, rows, columns, lowest(x))


@kernel("_shard_row_figures")
def row_figures(task: Task) -> Bound | None:
    (x,), (out,) = task.ins, task.outs
    return figures_of(x, out) if floating(x, calc=[out]) else None


@kernel("_shard_join_figures")
def join_figures(task: Task) -> Bound | None:
    """For two shards; those of more are few numbers still."""
    if len(task.ins) != 2 or not floating(*task.ins):
        return None
    rows = task.outs[0].size // 2
    return launch(run("join_figures", task.outs[0]), *each(rows), *task.ins, *task.outs, rows)


@kernel("_shard_softmax_output")
def shard_softmax_output(task: Task) -> Bound | None:
    (x, _, figures, *_), (out,) = task.ins, task.outs
    if not floating(x, out, calc=[figures]):
        return None
    columns = x.shape[-1]
    shape = x.size // columns, columns
    return launch(run("probability_rows", x), *each_of_rows(*shape), x, figures, out, *shape)
