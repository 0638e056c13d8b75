"""Row kernels: look-ups, scatters and strided copies.

Copies are numpy's, between views that are bound once: `copyto` is as fast as a compiled loop on
rows and faster on the rest, and serves every dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from runtime.backends.cpu.table import kernel
from runtime.backends.device.compile import jit
from runtime.backends.device.operands import class_count, is_id_array
from runtime.backends.device.table import BoundCall, KernelCall, noop
from symgraph.core.types import Array
from symgraph.ops.index import checked
from symgraph.ops.slices import along_axis, parts

FLOATS = ("float32", "float64")
NO_IGNORED_ID = math.nan  # equals no id


# -- copies ------------------------------------------------------------------------------------

Pair = tuple[Array, Array]  # target and source


def same_place(one: Array, other: Array) -> bool:
    """Tell whether two arrays of one shape and dtype are the same memory."""
    steps = ((a, b) for n, a, b in zip(one.shape, one.strides, other.strides, strict=True) if n > 1)
    return one.ctypes.data == other.ctypes.data and all(a == b for a, b in steps)


def copy_all(pairs: tuple[Pair, ...]) -> None:
    for target, source in pairs:
        np.copyto(target, source)


def copies(pairs: Iterable[Pair]) -> BoundCall:
    """Bind copies, except of arrays to themselves."""
    moved = tuple(pair for pair in pairs if not same_place(*pair))
    if not moved:
        return BoundCall(noop, ())
    if len(moved) == 1:
        return BoundCall(np.copyto, moved[0])
    return BoundCall(copy_all, (moved,))


@kernel("Concat", "_join_shares", "_shard_join")
def concat(call: KernelCall) -> BoundCall:
    (out,), axis = call.outs, call.attrs["dim"]
    ends = np.cumsum([x.shape[axis] for x in call.ins])[:-1]
    return copies(zip(np.split(out, ends, axis), call.ins, strict=True))


@kernel("stack")
def stack(call: KernelCall) -> BoundCall:
    return copies(zip(np.moveaxis(call.outs[0], call.attrs["axis"], 0), call.ins, strict=True))


@kernel("SliceChannel")
def split(call: KernelCall) -> BoundCall:
    axis = call.attrs["axis"]
    pieces = np.split(call.ins[0], call.attrs["num_outputs"], axis)
    if call.attrs["squeeze_axis"]:
        pieces = [piece.squeeze(axis) for piece in pieces]
    return copies(zip(call.outs, pieces, strict=True))


@kernel("slice_axis")
def slice_axis(call: KernelCall) -> BoundCall:
    (x,), a = call.ins, call.attrs
    part = slice(a["begin"], a["end"])
    return copies([(call.outs[0], x[along_axis(a, x.ndim, part)])])


@kernel("slice")
def slice_many(call: KernelCall) -> BoundCall:
    return copies([(call.outs[0], call.ins[0][parts(call.attrs)])])


@kernel("_pad_axis")
def pad_axis(call: KernelCall) -> BoundCall:
    (x,), (out,), a = call.ins, call.outs, call.attrs
    end = a["begin"] + x.shape[a["axis"]]
    before, to, after = np.split(out, [a["begin"], end], a["axis"])
    zero = np.zeros((), out.dtype)
    zeros = [(rest, np.broadcast_to(zero, rest.shape)) for rest in (before, after) if rest.size]
    return copies([*zeros, (to, x)])


@kernel("_slice_grad")
def slice_grad(call: KernelCall) -> BoundCall:
    (out,) = call.outs
    zeros = np.broadcast_to(np.zeros((), out.dtype), out.shape)
    return copies([(out, zeros), (out[parts(call.attrs)], call.ins[0])])


@kernel("transpose")
def transpose(call: KernelCall) -> BoundCall:
    return copies([(call.outs[0], call.ins[0].transpose(call.attrs["axes"] or None))])


@kernel("SwapAxis")
def swap_axes(call: KernelCall) -> BoundCall:
    turned = np.swapaxes(call.ins[0], call.attrs["dim1"], call.attrs["dim2"])
    return copies([(call.outs[0], turned)])


# -- ids ---------------------------------------------------------------------------------------


@jit
def whole_numbers(raw: Array, ignore: float, count: int, out: Array) -> bool:
    """Write ids as int64, -1 for `ignore`; return whether all others are within 0..count-1."""
    good = True
    for i in range(len(raw)):
        value = raw[i]
        if value == ignore:
            out[i] = -1
        elif 0 <= value < count:
            out[i] = np.int64(value)
        else:
            good = False
    return good


@jit
def clipped_numbers(raw: Array, count: int, out: Array) -> None:
    for i in range(len(raw)):
        out[i] = min(max(np.int64(raw[i]), 0), count - 1)


def spare_ids(raw: Array) -> Array:
    """Return an uninitialised array for the ids as int64."""
    return np.empty(raw.size, "int64")


def read_ids(raw: Array, count: int, out: Array, what: str = "id") -> None:
    """Write ids as int64; raise IndexError, with the word `what`, for one outside 0..count-1."""
    if not whole_numbers(raw, NO_IGNORED_ID, count, out):
        checked(raw, count, what)


# -- look-ups ----------------------------------------------------------------------------------


@jit
def gather(ids: Array, begin: int, weight: Array, out: Array) -> None:
    """Copy rows by id from a shard whose first id is `begin`; zeros for ids outside it."""
    for i in range(len(ids)):
        at = ids[i] - begin
        to = out[i]
        if 0 <= at < len(weight):
            row = weight[at]
            for j in range(len(to)):
                to[j] = row[j]
        else:
            for j in range(len(to)):
                to[j] = 0


@jit
def scatter(ids: Array, begin: int, rows: Array, out: Array) -> None:
    """Add up rows by id, one after the other; skip ids outside the shard."""
    out[:] = 0
    for i in range(len(ids)):
        at = ids[i] - begin
        if 0 <= at < len(out):
            to, row = out[at], rows[i]
            for j in range(len(to)):
                to[j] += row[j]


def look_up(raw: Array, count: int, ids: Array, begin: int, weight: Array, out: Array) -> None:
    read_ids(raw, count, ids)
    gather(ids, begin, weight, out)


def look_up_clipped(raw: Array, ids: Array, weight: Array, out: Array) -> None:
    clipped_numbers(raw, len(weight), ids)
    gather(ids, 0, weight, out)


def add_up(raw: Array, count: int, ids: Array, begin: int, rows: Array, out: Array) -> None:
    read_ids(raw, count, ids)
    scatter(ids, begin, rows, out)


def add_up_clipped(raw: Array, ids: Array, rows: Array, out: Array) -> None:
    clipped_numbers(raw, len(out), ids)
    scatter(ids, 0, rows, out)


def has_kernel(ids: Array, values: Array) -> bool:
    return is_id_array(ids) and values.dtype.name in FLOATS


def by_row(x: Array, rows: int) -> Array:
    return x.reshape(rows, -1)


@kernel("Embedding")
def embedding(call: KernelCall) -> BoundCall | None:
    (ids, weight), (out,), a = call.ins, call.outs, call.attrs
    if not has_kernel(ids, weight):
        return None
    count, begin = class_count(call), a["begin"]
    raw, rows = ids.reshape(-1), by_row(out, ids.size)
    return BoundCall(look_up, (raw, count, spare_ids(ids), begin, weight, rows))


@kernel("_embedding_grad")
def embedding_grad(call: KernelCall) -> BoundCall | None:
    (ids, grad), (out,), a = call.ins, call.outs, call.attrs
    if not has_kernel(ids, grad):
        return None
    count, begin = class_count(call), a["begin"]
    raw, rows = ids.reshape(-1), by_row(grad, ids.size)
    return BoundCall(add_up, (raw, count, spare_ids(ids), begin, rows, out))


@kernel("take")
def take(call: KernelCall) -> BoundCall | None:
    (x, ids), (out,), a = call.ins, call.outs, call.attrs
    if not has_kernel(ids, x) or a["axis"] % x.ndim or a["mode"] == "wrap":
        return None
    raw, weight, rows = ids.reshape(-1), by_row(x, len(x)), by_row(out, ids.size)
    if a["mode"] == "raise":
        return BoundCall(look_up, (raw, len(x), spare_ids(ids), 0, weight, rows))
    return BoundCall(look_up_clipped, (raw, spare_ids(ids), weight, rows))


@kernel("_take_grad")
def take_grad(call: KernelCall) -> BoundCall | None:
    (ids, grad), (out,), a = call.ins, call.outs, call.attrs
    if not has_kernel(ids, grad) or a["axis"] or a["mode"] == "wrap":
        return None
    raw, rows, sums = ids.reshape(-1), by_row(grad, ids.size), by_row(out, len(out))
    if a["mode"] == "raise":
        return BoundCall(add_up, (raw, len(out), spare_ids(ids), 0, rows, sums))
    return BoundCall(add_up_clipped, (raw, spare_ids(ids), rows, sums))


# -- one_hot -----------------------------------------------------------------------------------


@jit
def mark(raw: Array, on: Any, off: Any, out: Array) -> None:
    """Write `on` at each row's id, `off` elsewhere."""
    for i in range(len(raw)):
        row = out[i]
        for j in range(len(row)):
            row[j] = off
        at = np.int64(raw[i])
        if 0 <= at < len(row):
            row[at] = on


@kernel("one_hot")
def one_hot(call: KernelCall) -> BoundCall | None:
    (ids,), (out,), a = call.ins, call.outs, call.attrs
    if not has_kernel(ids, out):
        return None
    on, off = (out.dtype.type(a[key]) for key in ("on_value", "off_value"))
    return BoundCall(mark, (ids.reshape(-1), on, off, by_row(out, ids.size)))
