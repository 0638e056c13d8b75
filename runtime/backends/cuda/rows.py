"""Row kernels: look-ups by id, and their gradient, which adds up rows always in one order."""

from __future__ import annotations

from typing import Any

from runtime.backends.cuda.base import (
    by_id,
    each_of_rows,
    function,
    in_turn,
    kernel,
    launch,
)
from runtime.backends.cuda.rank_memory import error_place, scratch
from runtime.backends.device.operands import class_count
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Array, TensorType

LANES = 16  # threads that compare a few ids with all others; as many such groups are in a block
FEW = 4


def run(name: str, ids: Array, values: Array) -> Any:
    return function("rows", name, real=values.dtype.name, number=ids.dtype.name)


def look_up(
    call: KernelCall, ids: Array, weight: Array, begin: int, classes: int, clip: bool
) -> BoundCall | None:
    (out,), count = call.outs, len(weight)
    if not by_id(ids, weight, out):
        return None
    columns = weight.size // count
    wrong = error_place(call.context, "id", classes)
    return launch(
        run("gather", ids, weight),
        *each_of_rows(ids.size, columns),
        ids,
        weight,
        out,
        wrong,
        ids.size,
        columns,
        begin,
        classes,
        count,
        clip,
    )


def add_up(
    call: KernelCall, ids: Array, rows: Array, begin: int, classes: int, clip: bool
) -> BoundCall | None:
    (out,), count = call.outs, len(call.outs[0])
    if not by_id(ids, rows, out):
        return None
    columns = out.size // count
    numbers = [TensorType((ids.size,), "int32")] * 3
    order, repeats, target = scratch(call.context, numbers)
    wrong = error_place(call.context, "id", classes)
    sort = launch(
        run("sort_ids", ids, rows),
        (-(-ids.size // (FEW * LANES)),),
        (LANES, LANES),
        ids,
        order,
        repeats,
        target,
        wrong,
        ids.size,
        begin,
        classes,
        count,
        clip,
    )
    add = launch(
        run("sum_by_id", ids, rows),
        *each_of_rows(ids.size, columns),
        rows,
        order,
        repeats,
        target,
        out,
        ids.size,
        columns,
    )
    return in_turn(BoundCall(out.fill, (0,)), sort, add)


@kernel("Embedding")
def embedding(call: KernelCall) -> BoundCall | None:
    (ids, weight), a = call.ins, call.attrs
    return look_up(call, ids, weight, a["begin"], class_count(call), clip=False)


@kernel("_embedding_grad")
def embedding_grad(call: KernelCall) -> BoundCall | None:
    (ids, grad), a = call.ins, call.attrs
    return add_up(call, ids, grad, a["begin"], class_count(call), clip=False)


@kernel("take")
def take(call: KernelCall) -> BoundCall | None:
    (x, ids), a = call.ins, call.attrs
    if a["axis"] % x.ndim or a["mode"] == "wrap":
        return None
    return look_up(call, ids, x, 0, len(x), clip=a["mode"] == "clip")


@kernel("_take_grad")
def take_grad(call: KernelCall) -> BoundCall | None:
    (ids, grad), a = call.ins, call.attrs
    if a["axis"] or a["mode"] == "wrap":
        return None
    return add_up(call, ids, grad, 0, len(call.outs[0]), clip=a["mode"] == "clip")
