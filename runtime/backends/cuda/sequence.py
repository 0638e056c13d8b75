"""Sequences of different lengths in one array: masked, reversed, and their last steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from runtime.backends.cuda.base import by_id, each_of_rows, function, in_turn, kernel, launch
from runtime.backends.cuda.movement import copied
from runtime.backends.cuda.rank_memory import error_place
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Array

LENGTH, LAST = "sequence length", "last step of a sequence"


def by_steps(
    name: str, call: KernelCall, data: Array, rows: int, wrong: Sequence[Array], *more: float
) -> BoundCall | None:
    """Bind a kernel on the steps of data; `wrong`: the place for an invalid length, if any.

    rows: of the output. more: its further numbers.
    """
    (x, lengths), (out,), axis = call.ins, call.outs, call.attrs["axis"]
    if not by_id(lengths, x, out):
        return None
    columns = math.prod(data.shape[2:])
    run = function("sequence", name, real=x.dtype.name, number=lengths.dtype.name)
    return launch(
        run,
        *each_of_rows(rows, columns),
        x,
        lengths,
        out,
        *wrong,
        rows,
        columns,
        data.shape[1],
        axis == 0,
        *more,
    )


def last_of(data: Array, axis: int) -> Array:
    last: Array = data[-1] if axis == 0 else data[:, -1]
    return last


@kernel("SequenceMask")
def mask(call: KernelCall) -> BoundCall | None:
    x, *lengths = call.ins
    if not lengths:
        return copied((call.outs[0], x))
    return by_steps("mask_steps", call, x, math.prod(x.shape[:2]), [], float(call.attrs["value"]))


@kernel("SequenceReverse")
def reverse(call: KernelCall) -> BoundCall | None:
    (x, *lengths), axis = call.ins, call.attrs["axis"]
    if not lengths:
        return copied((call.outs[0], x[::-1] if axis == 0 else x[:, ::-1]))
    steps = x.shape[axis]
    wrong = error_place(call.context, LENGTH, steps + 1)
    return by_steps("reverse_steps", call, x, math.prod(x.shape[:2]), [wrong], steps)


@kernel("SequenceLast")
def last(call: KernelCall) -> BoundCall | None:
    (x, *lengths), axis = call.ins, call.attrs["axis"]
    if not lengths:
        return copied((call.outs[0], last_of(x, axis)))
    steps = x.shape[axis]
    wrong = error_place(call.context, LAST, steps)
    return by_steps("last_steps", call, x, x.shape[1 - axis], [wrong], steps)


@kernel("_sequence_last_grad")
def last_grad(call: KernelCall) -> BoundCall | None:
    (grad, *lengths), (out,), axis = call.ins, call.outs, call.attrs["axis"]
    if not lengths:
        clear = BoundCall(out.fill, (0,))
        return in_turn(clear, copied((last_of(out, axis), grad)))
    steps = out.shape[axis]
    wrong = error_place(call.context, LAST, steps)
    return by_steps("last_steps_grad", call, out, math.prod(out.shape[:2]), [wrong], steps)
