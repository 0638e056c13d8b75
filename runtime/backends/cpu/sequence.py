"""Sequences of different lengths in one array: masked and reversed, row by row."""

from __future__ import annotations

from runtime.backends.cpu.rows import copies, has_kernel, read_ids, spare_ids
from runtime.backends.cpu.table import kernel
from runtime.backends.device.compile import jit
from runtime.backends.device.table import BoundCall, KernelCall
from symgraph.core.types import Array

LENGTH = "sequence length"


def by_steps(x: Array) -> Array:
    """Return data as a matrix of rows."""
    return x.reshape(*x.shape[:2], -1)


@jit
def mask_steps(x: Array, lengths: Array, axis: int, value: float, out: Array) -> None:
    """Copy rows, and fill those after the end of each sample's sequence."""
    fill = x.dtype.type(value)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            time, sample = (i, j) if axis == 0 else (j, i)
            row, to, inside = x[i, j], out[i, j], time < lengths[sample]
            for k in range(len(to)):
                to[k] = row[k] if inside else fill


@kernel("SequenceMask")
def mask(call: KernelCall) -> BoundCall | None:
    (x, *lengths), (out,), a = call.ins, call.outs, call.attrs
    if not lengths:
        return copies([(out, x)])
    if not has_kernel(lengths[0], x):
        return None
    return BoundCall(mask_steps, (by_steps(x), *lengths, a["axis"], a["value"], by_steps(out)))


@jit
def reverse_steps(x: Array, lengths: Array, axis: int, out: Array) -> None:
    """Copy rows, those before the end of each sample's sequence in reverse order."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            time, sample = (i, j) if axis == 0 else (j, i)
            end = lengths[sample]
            source = end - 1 - time if time < end else time
            row, to = x[source, j] if axis == 0 else x[i, source], out[i, j]
            for k in range(len(to)):
                to[k] = row[k]


def reverse_within(raw: Array, size: int, ends: Array, x: Array, axis: int, out: Array) -> None:
    read_ids(raw, size + 1, ends, LENGTH)
    reverse_steps(x, ends, axis, out)


@kernel("SequenceReverse")
def reverse(call: KernelCall) -> BoundCall | None:
    (x, *lengths), (out,), axis = call.ins, call.outs, call.attrs["axis"]
    if not lengths:
        return copies([(out, x[::-1] if axis == 0 else x[:, ::-1])])
    if not has_kernel(lengths[0], x):
        return None
    ends = spare_ids(lengths[0])
    return BoundCall(
        reverse_within, (lengths[0], x.shape[axis], ends, by_steps(x), axis, by_steps(out))
    )
