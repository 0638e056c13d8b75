"""Movement: operators that only copy numbers, straight to the outputs.

An operator's array computation would allocate its outputs, which would then be copied once more.
Where what stays together is long enough, as when axes of an attention's heads change places, a
kernel moves 16 bytes at a time; other copies are CuPy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from runtime.backends.cuda.base import (
    PACK,
    PLANNED,
    each,
    function,
    in_turn,
    kernel,
    launch,
    module,
)
from runtime.backends.device.arrays import address
from runtime.backends.device.table import BoundCall, KernelCall, noop
from symgraph.core.registry import Env, find
from symgraph.core.types import Array
from symgraph.ops.slices import along_axis, parts

OUTER = 4  # axes, but for the innermost, that a kernel knows
PACK_BYTES = 4 * PACK

VIEWS = (
    "transpose",
    "SwapAxis",
    "reverse",
    "slice",
    "slice_axis",
    "Crop",
    "SliceChannel",
    "_cut",
)


def copied(*pairs: tuple[Array, Array]) -> BoundCall:
    """Bind copies: (target, source) of one shape each."""
    copyto = module().copyto
    calls = [moved(*pair) or BoundCall(copyto, pair) for pair in pairs]
    return calls[0] if len(calls) == 1 else in_turn(*calls)


def moved(target: Array, source: Array) -> BoundCall | None:
    """Bind a copy by packs; None if that is not possible, or if both are contiguous anyway."""
    axes = common_axes(target, source)
    if PLANNED.get() is not None or target.dtype != source.dtype or not 1 < len(axes) <= OUTER + 1:
        return None
    *outer, (length, *steps) = axes
    run = length * target.itemsize
    moves = [step for _, *pair in outer for step in pair]
    places = address(target), address(source)
    if steps != [target.itemsize] * 2 or any(b % PACK_BYTES for b in (run, *moves, *places)):
        return None
    outer = [(1, 0, 0)] * (OUTER - len(outer)) + outer
    sizes, to, of = zip(*outer, strict=True)
    packs = run // PACK_BYTES
    count = math.prod(sizes) * packs
    by_pack = [step // PACK_BYTES for step in (*of, *to)]
    kernel = function("movement", "move_packs", real="float32")
    return launch(kernel, *each(count), source, target, count, packs, *sizes[1:], *by_pack)


def common_axes(a: Array, b: Array) -> list[tuple[int, int, int]]:
    """Return the axes of two arrays of a shape, as (length, step in a, step in b) in bytes.

    Neighbours are merged where both arrays have them one after the other in memory.
    """
    axes: list[tuple[int, int, int]] = []
    for length, *steps in zip(a.shape, a.strides, b.strides, strict=True):
        if length == 1:
            continue
        if axes and [length * step for step in steps] == [*axes[-1][1:]]:
            length *= axes.pop()[0]
        axes.append((length, *steps))
    return axes


def register(op: str) -> None:
    """Register an operator whose outputs are views of its input."""
    compute: Callable[..., Any] = find(op).compute

    @kernel(op)
    def seen(call: KernelCall) -> BoundCall:
        if PLANNED.get() is not None:
            return BoundCall(noop, ())
        result = compute(Env(module()), call.attrs, *call.ins)
        views = result if isinstance(result, tuple) else (result,)
        return copied(*zip(call.outs, views, strict=True))


for name in VIEWS:
    register(name)


@kernel("Concat", "_join_shares")
def concat(call: KernelCall) -> BoundCall:
    return side_by_side(call, call.attrs["dim"] % call.outs[0].ndim)


@kernel("stack")
def stack(call: KernelCall) -> BoundCall:
    axis = call.attrs["axis"] % call.outs[0].ndim
    shape = call.outs[0].shape
    ins = [x.reshape((*shape[:axis], 1, *shape[axis + 1 :])) for x in call.ins]
    return side_by_side(call._replace(ins=tuple(ins)), axis)


def side_by_side(call: KernelCall, axis: int) -> BoundCall:
    """Bind the concatenation of the inputs along an axis of the output."""
    (out,), start = call.outs, 0
    pairs = []
    for x in call.ins:
        stop = start + x.shape[axis]
        pairs.append((out[(*[slice(None)] * axis, slice(start, stop))], x))
        start = stop
    return copied(*pairs)


@kernel("_pad_axis")
def pad_axis(call: KernelCall) -> BoundCall:
    (x,), a = call.ins, call.attrs
    begin = a["begin"]
    return among_zeros(call, along_axis(a, x.ndim, slice(begin, begin + x.shape[a["axis"]])))


@kernel("_slice_grad")
def slice_grad(call: KernelCall) -> BoundCall:
    return among_zeros(call, parts(call.attrs))


def among_zeros(call: KernelCall, place: Any) -> BoundCall:
    (x,), (out,) = call.ins, call.outs
    return in_turn(BoundCall(out.fill, (0,)), copied((out[place], x)))


@kernel("_begin_state")
def begin_state(call: KernelCall) -> BoundCall:
    return BoundCall(call.outs[0].fill, (0,))
