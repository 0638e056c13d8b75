"""Converters of what rearranges, joins, cuts and looks up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from symgraph.frontend import sym
from symgraph.frontend.symbol import Symbol
from symgraph.interchange.torch.call import Call, Value, converts, same_shape, stored
from symgraph.interchange.torch.program import Free, Meta, Ref

LAST = (1 << 63) - 1  # PyTorch's end of a slice without one


def unchanged(c: Call) -> bool:
    return same_shape(c.meta("self").shape, c.out.shape)


@converts(
    "view reshape _unsafe_view flatten unflatten squeeze unsqueeze view_as reshape_as _reshape_copy"
)
def reshape(c: Call) -> Any:
    return c.value("self") if unchanged(c) else c.reshape(c.x(), c.out.shape)


def turned(x: Symbol, order: list[int]) -> Symbol:
    return x if order == sorted(order) else sym.transpose(x, axes=tuple(order))


@converts("permute")
def permute(c: Call) -> Symbol:
    rank = len(c.out.shape)
    return turned(c.x(), [d % max(rank, 1) for d in c.integers("dims")])


@converts("transpose swapaxes t numpy_T matrix_H mT adjoint")
def transpose(c: Call) -> Symbol:
    order = list(range(len(c.meta("self").shape)))
    if c.node.target.split(".")[1] in ("transpose", "swapaxes"):
        first, second = ("dim0", "dim1") if "transpose" in c.node.target else ("axis0", "axis1")
        i, j = c.axis(first), c.axis(second)
        order[i], order[j] = order[j], order[i]
    else:
        order = order[:-2] + order[-2:][::-1]
    return turned(c.x(), order)


@converts("movedim")
def movedim(c: Call) -> Symbol:
    rank = len(c.out.shape)
    source, target = ([d % rank for d in c.integers(k)] for k in ("source", "destination"))
    order = [a for a in range(rank) if a not in source]
    for at, axis in sorted(zip(target, source, strict=True)):
        order.insert(at, axis)
    return turned(c.x(), order)


@converts("expand expand_as broadcast_to")
def expand(c: Call) -> Any:
    if unchanged(c):
        return c.value("self")
    return c.spread(c.x(), c.meta("self").shape, c.out.shape, c.out.dtype)


@converts("broadcast_tensors")
def broadcast_tensors(c: Call) -> list[Symbol]:
    return [
        c.spread(c.symbol(v), v.meta.shape, c.out.shape, v.meta.dtype) for v in c.values("tensors")
    ]


@converts("repeat tile")
def repeat(c: Call) -> Any:
    reps = c.integers("repeats" if "repeat" in c.node.target else "dims")
    if any(isinstance(r, Free) for r in reps):
        if all(
            d == 1 or r == 1 for d, r in zip(c.meta("self").shape[::-1], reps[::-1], strict=False)
        ):
            return c.spread(c.x(), c.meta("self").shape, c.out.shape, c.out.dtype)
        c.fail("repeats as often as the batch is long")
    return sym.tile(c.x(), reps=reps)


@converts("cat concat concatenate")
def cat(c: Call) -> Symbol:
    values = [v for v in c.values("tensors") if v.meta.shape != (0,)]
    axis = c.integer("dim", 0) % len(c.out.shape)
    if len(values) == 1:
        return c.symbol(values[0], c.out.dtype)
    return sym.Concat(*(c.symbol(v, c.out.dtype) for v in values), dim=axis)


@converts("stack")
def stack(c: Call) -> Symbol:
    axis = c.integer("dim", 0) % len(c.out.shape)
    values = c.values("tensors")
    if not values[0].meta.shape:
        return sym.Concat(*(c.symbol(v, c.out.dtype) for v in values), dim=0)
    return sym.stack(*(c.symbol(v, c.out.dtype) for v in values), axis=axis)


@converts("split split_with_sizes chunk tensor_split unsafe_split unsafe_chunk")
def split(c: Call) -> Any:
    axis = c.axis("dim", 0)
    sizes = [meta.shape[axis] for meta in c.metas if meta is not None]
    if any(isinstance(size, Free) for size in sizes):
        c.fail("cuts the batch's axis")
    if len(sizes) == 1:
        return [c.x()]
    if len(set(sizes)) == 1:
        return sym.SliceChannel(c.x(), num_outputs=len(sizes), axis=axis)
    return sym._cut(c.x(), sizes=sizes, axis=axis)


@converts("unbind")
def unbind(c: Call) -> Symbol:
    axis, count = c.axis("dim", 0), len(c.metas)
    parts = sym.SliceChannel(c.x(), num_outputs=count, axis=axis)
    return sym.Group([c.reshape(part, c.out.shape) for part in parts])


@converts("select")
def select(c: Call) -> Symbol:
    axis, index = c.axis("dim"), c.integer("index")
    length = c.meta("self").shape[axis]
    if isinstance(length, Free) and index < 0:
        c.fail("takes a position counted from the batch's end")
    at = index % length if length else 0
    return c.reshape(sym.slice_axis(c.x(), axis=axis, begin=at, end=at + 1), c.out.shape)


@converts("slice narrow")
def slice_(c: Call) -> Any:
    if unchanged(c):
        return c.value("self")
    axis = c.axis("dim", 0)
    length = int(c.meta("self").shape[axis])
    start = c.integer("start", 0) if c.get("start") is not None else 0
    if "narrow" in c.node.target:
        end = start + c.integer("length")
    else:
        end = c.integer("end", LAST) if c.get("end") is not None else LAST
    step = c.integer("step", 1)
    first, last, _ = slice(start, end, 1).indices(length)
    if last <= first:
        c.fail(f"[{start}:{end}] of an axis of length {length} is empty")
    if step == 1:
        return sym.slice_axis(c.x(), axis=axis, begin=first, end=last)
    none = [None] * axis
    return sym.slice(c.x(), begin=[*none, first], end=[*none, last], step=[*none, step])


@converts("flip")
def flip(c: Call) -> Symbol:
    rank = len(c.out.shape)
    return sym.reverse(c.x(), axis=tuple(d % rank for d in c.integers("dims")))


@converts("roll")
def roll(c: Call) -> Symbol:
    x = c.x()
    for shift, dim in zip(c.integers("shifts"), c.integers("dims"), strict=True):
        axis = dim % len(c.out.shape)
        length = c.out.shape[axis]
        if isinstance(length, Free):
            c.fail("rolls the batch's axis")
        cut = -shift % length
        if cut:
            x = sym.Concat(*list(sym._cut(x, sizes=(cut, length - cut), axis=axis))[::-1], dim=axis)
    return x


@converts("constant_pad_nd pad")
def pad(c: Call) -> Symbol:
    """Pad by joining constants, or by the operator Pad, whose first two axes must stay."""
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    mode, given = c.get("mode", "constant"), c.integers("pad")
    if mode not in modes:
        c.fail(f"mode {mode!r} is not supported")
    rank = len(c.out.shape)
    pairs = [(0, 0)] * (rank - len(given) // 2) + [
        (given[i], given[i + 1]) for i in range(len(given) - 2, -1, -2)
    ]
    x, number = c.x(), c.number("value", 0) if c.get("value") is not None else 0
    for axis, (before, after) in enumerate(pairs):
        cuts = max(0, -before), max(0, -after)
        if any(cuts):
            end = int(c.meta("self").shape[axis]) - cuts[1]
            x = sym.slice_axis(x, axis=axis, begin=cuts[0], end=end)
    widths = [max(0, w) for pair in pairs for w in pair]
    if not any(widths):
        return x
    if rank in (4, 5) and not any(widths[:4]) and np.dtype(c.out.dtype).kind == "f":
        return sym.Pad(x, mode=modes[mode], pad_width=widths, constant_value=number)
    if mode != "constant":
        c.fail(f"mode {mode!r} is supported for 4 or 5 axes, of which the first two stay")
    shape: list[int] = list(c.meta("self").shape)
    for axis in range(rank):
        parts = [x]
        for at, width in enumerate(widths[2 * axis : 2 * axis + 2]):
            if width:
                block = (*shape[:axis], width, *shape[axis + 1 :])
                filled = c.zeros(block, stored(c.out.dtype)) + number
                parts.insert(0 if at == 0 else len(parts), filled)
        x = sym.Concat(*parts, dim=axis) if len(parts) > 1 else x
        shape[axis] = c.out.shape[axis]
    return x


# -- lookups ---------------------------------------------------------------------------------------


@converts("embedding")
def embedding(c: Call) -> Symbol:
    rows, width = c.meta("weight").shape
    ids, weight = c.x("indices"), c.x("weight")
    if not c.meta("indices").shape:
        c.fail("an index of no axes is not supported")
    if c.get("scale_grad_by_freq"):
        c.fail("scale_grad_by_freq is not supported")
    made = sym.Embedding(ids, weight, input_dim=rows, output_dim=width, dtype=c.out.dtype)
    padding = c.integer("padding_idx", -1)
    if padding < 0:
        return made
    of_padding = c.reshape(ids == float(padding), (*c.meta("indices").shape, 1))
    shape = (*c.meta("indices").shape, 1)
    return sym.where(c.spread(of_padding, shape, c.out.shape, "int64"), sym.BlockGrad(made), made)


def looked_up(c: Call, index: Value, axis: int) -> Symbol:
    """Take along an axis; indices may count from the end."""
    length = c.meta("self").shape[axis]
    if isinstance(length, Free):
        c.fail("looks samples of the batch up by number")
    if index.array is not None:
        array = np.asarray(index.array)
        if ((array < -length) | (array >= length)).any():
            c.fail(f"an index is outside an axis of length {length}")
        index = Value(index.meta, array=np.where(array < 0, array + length, array))
    at = c.symbol(index)
    if index.array is None:
        at = from_start(at, length)
    return sym.take(c.x(), at, axis=axis)


def from_start(index: Symbol, length: int) -> Symbol:
    """Return an index that counts from the start, of one that may count from the end."""
    made: Symbol = index + (index < 0) * int(length)
    return made


def looked_up_together(c: Call, values: list[Value], axes: list[int]) -> Symbol:
    """Take along neighbouring axes as along one axis of all their elements."""
    shape = c.meta("self").shape
    if any(isinstance(shape[axis], Free) for axis in axes):
        c.fail("looks samples of the batch up by number")
    made = c.out.shape[axes[0] : len(c.out.shape) - len(shape) + axes[-1] + 1]
    at: Any = 0
    for value, axis in zip(values, axes, strict=True):
        own = c.spread(c.symbol(value, "int64"), value.meta.shape, made, "int64")
        at = at * int(shape[axis]) + from_start(own, shape[axis])
    whole = (*shape[: axes[0]], math.prod(shape[a] for a in axes), *shape[axes[-1] + 1 :])
    return c.reshape(sym.take(c.reshape(c.x(), whole), at, axis=axes[0]), c.out.shape)


@converts("index_select")
def index_select(c: Call) -> Symbol:
    return looked_up(c, c.value("index"), c.axis("dim"))


@converts("index")
def index(c: Call) -> Symbol:
    found = [(axis, ref) for axis, ref in enumerate(c.get("indices")) if isinstance(ref, Ref)]
    axes, values = [axis for axis, _ in found], [c.value(ref) for _, ref in found]
    if axes != [*range(axes[0], axes[-1] + 1)] or any(v.meta.dtype == "bool" for v in values):
        c.fail("only indices of whole numbers are supported, of one axis or of neighbours")
    return looked_up_together(c, values, axes) if axes[1:] else looked_up(c, values[0], axes[0])


@converts("one_hot")
def one_hot(c: Call) -> Symbol:
    return sym.one_hot(c.x(), depth=c.integer("num_classes"), dtype=c.out.dtype)


@converts("tril_indices triu_indices")
def triangle_indices(c: Call) -> Any:
    """Return the rows and columns of the elements of a triangle."""
    rows, columns = c.integer("row"), c.integer("col")
    c.bound(rows, columns)
    keep = np.tril_indices if ".tril" in c.node.target else np.triu_indices
    return Value(c.out, array=np.stack(keep(rows, c.integer("offset", 0), columns)))


@converts("repeat_interleave.self_int")
def repeat_interleave(c: Call) -> Symbol:
    if c.get("dim") is None:
        x = sym.Reshape(c.x(), shape=(-1,))
        return sym.repeat(x, repeats=c.integer("repeats"), axis=0)
    return sym.repeat(c.x(), repeats=c.integer("repeats"), axis=c.axis("dim"))


@converts("embedding_bag _embedding_bag _embedding_bag_forward_only")
def embedding_bag(c: Call) -> Any:
    """Add up, average or take the largest of the rows of equally long bags."""
    rows, width = c.meta("weight").shape
    offsets, (count, *_) = c.value("offsets").array, c.meta("indices").shape
    bags = len(c.out.shape) and c.out.shape[0]
    length = int(count) // max(int(bags), 1)
    even = offsets is not None and np.array_equal(offsets, np.arange(int(bags)) * length)
    padded = c.get("padding_idx") not in (None, -1)
    if not even or c.has("per_sample_weights") or padded or c.get("scale_grad_by_freq"):
        c.fail("only bags of one length are supported, without weights, padding_idx or scaling")
    ids = c.reshape(c.x("indices"), (bags, length))
    made = sym.Embedding(ids, c.x("weight"), input_dim=rows, output_dim=width, dtype=c.out.dtype)
    operator = (sym.sum, sym.mean, sym.max)[c.integer("mode", 0)]
    return [operator(made, axis=1), None, None, None]


def constant(c: Call, array: Any) -> Symbol:
    """Return an array as a fixed symbol."""
    return c.symbol(Value(Meta(array.shape, str(array.dtype)), array=array))
