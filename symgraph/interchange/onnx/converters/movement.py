"""Converters of operators that move elements: shapes, axes, parts, joins, repetition, padding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from symgraph.core.types import Array, is_float
from symgraph.interchange.onnx.converters.elementwise import choose
from symgraph.interchange.onnx.folding import (
    bounded,
    numpy_slice,
    slice_fields,
    split_sizes,
    target_shape,
)
from symgraph.interchange.onnx.node import OnnxNode
from symgraph.interchange.onnx.reader import dtype_of
from symgraph.interchange.onnx.registry import converts
from symgraph.interchange.values import Known, Traced, Value, spread

Both = tuple[Sequence[int], Sequence[int]]


@converts("Reshape", known=(1,))
def reshape(node: OnnxNode) -> Traced:
    x, codes = node.x, node.both(1)
    free, fixed = bool(node.attr("allowzero", 0)), node.fixed_batch
    if fixed and codes[0] and codes[0][0] == fixed and x.dims[0] and not x.shape[0]:
        codes = ([x.dims[0][0], *codes[0][1:]], [x.dims[1][0], *codes[1][1:]])
    target = [target_shape(x.dims[i], codes[i], free) for i in range(2)]
    return x.reshaped((target[0], target[1]))


@converts("Flatten")
def flatten(node: OnnxNode) -> Traced:
    x = node.x
    axis = node.attr("axis", 1)
    node.require(-x.rank <= axis <= x.rank, f"axis {axis} is out of range for {x.rank} dimensions")
    at = axis + x.rank if axis < 0 else axis
    dims = [[math.prod(d[:at]), math.prod(d[at:])] for d in x.dims]
    return x.reshaped((dims[0], dims[1]))


def without(dims: Sequence[int], axes: Sequence[int]) -> list[int]:
    return [d for a, d in enumerate(dims) if a not in axes]


@converts("Squeeze", known=(1,))
def squeeze(node: OnnxNode) -> Traced:
    x, axes = node.x, node.ints(1, "axes")
    chosen = [a for a, d in enumerate(x.shape) if d == 1] if axes is None else axes
    chosen = [node.axis(a, x.rank) for a in chosen]
    node.require(all(x.shape[a] == 1 for a in chosen), f"removes axes {chosen} of {x.shape}")
    return x.reshaped((without(x.dims[0], chosen), without(x.dims[1], chosen)))


@converts("Unsqueeze", known=(1,))
def unsqueeze(node: OnnxNode) -> Traced:
    x, axes = node.x, node.ints(1, "axes") or []
    rank = x.rank + len(axes)
    return with_ones(x, [node.axis(a, rank) for a in axes])


def with_ones(x: Traced, axes: Sequence[int]) -> Traced:
    """Add axes of length 1 at these places of the result."""
    dims: list[list[int]] = []
    for side in x.dims:
        rest = iter(side)
        rank = len(side) + len(set(axes))
        dims.append([1 if a in axes else next(rest) for a in range(rank)])
    return x.reshaped((dims[0], dims[1]))


@converts("Transpose")
def transpose(node: OnnxNode) -> Traced:
    x = node.x
    axes = node.attr("perm", list(range(x.rank))[::-1])
    node.require(sorted(axes) == list(range(x.rank)), f"perm={axes} for {x.rank} dimensions")
    return x.transposed(axes)


@converts("Concat")
def concat(node: OnnxNode) -> Traced:
    full = [i for i, v in enumerate(node.inputs) if not (isinstance(v, Known) and empty(v))]
    values = [node.tensor(i) for i in full]
    node.require(bool(values), "joins values without elements")
    axis = node.axis(node.attr("axis", 1), values[0].rank)
    return joined(values, axis)


def empty(value: Known) -> bool:
    """Tell whether a known value has no elements."""
    return not value.arrays[0].size


def nothing(x: Traced, axis: int, name: str) -> Known:
    """Return a part of a value that has no elements: its axis has the length 0."""
    arrays = [np.zeros((*d[:axis], 0, *d[axis + 1 :]), x.dtype) for d in x.dims]
    return Known((arrays[0], arrays[1]), name)


def joined(values: Sequence[Traced], axis: int) -> Traced:
    """Join values along an axis."""
    if len(values) == 1:
        return values[0]
    return values[0].call("Concat", *values[1:], dim=axis, axisless=False)


@converts("Split", known=(1,))
def split(node: OnnxNode) -> list[Value]:
    x = node.x
    axis = node.axis(node.attr("axis", 0), x.rank)
    node.require(x.shape[axis] > 0, f"cuts axis {axis}, which goes along with the batch")
    parts = split_sizes(node, x.shape[axis], node.ints(1, "split") or [])
    if len(set(parts)) == 1:
        return [*node.network.call("SliceChannel", x, num_outputs=len(parts), axis=axis)]
    ends = np.cumsum(parts).tolist()
    return [
        x.sliced(axis, end - n, end) if n else nothing(x, axis, f"{node.network.stem}_nothing")
        for n, end in zip(parts, ends, strict=True)
    ]


@converts("Slice", known=(1, 2, 3, 4))
def part(node: OnnxNode) -> Value:
    x = node.x
    sides = [
        slice_fields(node, x.rank, [_side(node, place, i) for place in range(1, 5)])
        for i in range(2)
    ]
    for fields in zip(*[list(zip(*side, strict=True)) for side in sides], strict=True):
        (start, end, axis, step), (start2, end2, _, step2) = fields
        lengths = x.dims[0][axis], x.dims[1][axis]
        chosen = numpy_slice(lengths[0], start, end, step)
        if chosen == slice(0, lengths[0], 1):
            other = numpy_slice(lengths[1], start2, end2, step2)
            node.require(
                other == slice(0, lengths[1], 1), f"takes a part of the batch, axis {axis}"
            )
            continue
        node.require(x.shape[axis] > 0, f"takes a part of axis {axis}, where the batch lies")
        if not range(*chosen.indices(lengths[0])):
            return nothing(x, axis, f"{node.network.stem}_nothing")
        lead = (None,) * axis
        x = x.call(
            "slice",
            begin=(*lead, chosen.start),
            end=(*lead, chosen.stop),
            step=(*lead, chosen.step),
        )
    return x


def _side(node: OnnxNode, place: int, side: int) -> Array | None:
    value = node.value(place)
    if value is None:
        return None
    if not isinstance(value, Known):
        return node.known(place)
    return value.arrays[side]


@converts("Expand", known=(1,))
def expand(node: OnnxNode) -> Traced:
    x, shape = node.x, node.both(1)
    fixed = node.fixed_batch
    dims = []
    for side in range(2):
        target = list(shape[side])
        mine = x.dims[side]
        if fixed and len(target) == len(mine) and target[:1] == [fixed] and not x.shape[0]:
            target[0] = mine[0]
        dims.append(np.broadcast_shapes(mine, tuple(target)))
    return spread(x, (dims[0], dims[1]))


@converts("Tile", known=(1,))
def tile(node: OnnxNode) -> Traced:
    x, repeats = node.x, node.both(1)
    if all(r == 1 for r in repeats[0]):
        return x
    if repeats[0] != repeats[1]:
        wanted = [[n * r for n, r in zip(x.dims[i], repeats[i], strict=True)] for i in range(2)]
        ones = all(x.shape[a] == 1 for a in range(x.rank) if repeats[0][a] != repeats[1][a])
        node.require(ones, "repeats along the batch")
        return spread(x, (tuple(wanted[0]), tuple(wanted[1])))
    return x.call("tile", reps=repeats[0])


@converts("DepthToSpace")
def depth_to_space(node: OnnxNode) -> Traced:
    x, b = node.x, node.attr("blocksize")
    node.require(x.rank == 4, f"takes 4 dimensions, not {x.rank}")
    _, c, h, w = x.shape
    if node.attr("mode", "DCR") == "DCR":
        inner, axes = (b, b, c // (b * b)), (0, 3, 4, 1, 5, 2)
    else:
        inner, axes = (c // (b * b), b, b), (0, 1, 4, 2, 5, 3)
    dims: list[Sequence[int]] = [(d[0], *inner, h, w) for d in x.dims]
    moved = x.reshaped((dims[0], dims[1])).transposed(axes)
    dims = [(d[0], c // (b * b), h * b, w * b) for d in x.dims]
    return moved.reshaped((dims[0], dims[1]))


@converts("SpaceToDepth")
def space_to_depth(node: OnnxNode) -> Traced:
    x, b = node.x, node.attr("blocksize")
    node.require(x.rank == 4, f"takes 4 dimensions, not {x.rank}")
    _, c, h, w = x.shape
    dims: list[Sequence[int]] = [(d[0], c, h // b, b, w // b, b) for d in x.dims]
    axes = (0, 3, 5, 1, 2, 4) if node.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = x.reshaped((dims[0], dims[1])).transposed(axes)
    dims = [(d[0], c * b * b, h // b, w // b) for d in x.dims]
    return moved.reshaped((dims[0], dims[1]))


# -- padding ---------------------------------------------------------------------------------------


@converts("Pad", known=(1, 2, 3))
def pad(node: OnnxNode) -> Traced:
    x = node.x
    pads = node.ints(1, "pads") or []
    axes = node.known(3)
    chosen = (
        range(x.rank) if axes is None else [node.axis(int(a), x.rank) for a in axes.reshape(-1)]
    )
    half = len(pads) // 2
    node.require(half == len(list(chosen)), f"pads={pads} for {x.rank} dimensions")
    sides = [(0, 0)] * x.rank
    for axis, before, after in zip(chosen, pads[:half], pads[half:], strict=True):
        sides[axis] = (before, after)
    fill = node.known(2) if node.opset >= 11 else node.attr("value", 0.0)
    value = 0.0 if fill is None else float(np.asarray(fill).reshape(-1)[0])
    return padded(node, x, sides, node.attr("mode", "constant"), value)


def padded(
    node: OnnxNode,
    x: Traced,
    sides: Sequence[tuple[int, int]],
    mode: str = "constant",
    value: float = 0.0,
) -> Traced:
    """Return a value with more elements at the ends of its axes; negative sides cut some off."""
    for axis, (before, after) in enumerate(sides):
        if min(before, after) < 0:
            node.require(x.shape[axis] > 0, f"cuts axis {axis}, where the batch lies")
            x = x.sliced(axis, max(0, -before), x.shape[axis] - max(0, -after))
    widths = [(max(0, a), max(0, b)) for a, b in sides]
    grown = [a for a, side in enumerate(widths) if any(side)]
    if not grown:
        return x
    node.require(all(x.shape[a] for a in grown), "pads an axis that goes along with the batch")
    dtype = x.dtype
    if mode == "wrap" or (not is_float(dtype) and mode != "constant"):
        for axis in grown:
            length = x.shape[axis]
            bounded([length + sum(widths[axis])])
            index = np.pad(np.arange(length), widths[axis], _NUMPY[mode])  # type: ignore[call-overload]
            x = taken(node, x, index, axis)
        return x
    node.require(mode in ("constant", "edge", "reflect"), f"mode={mode!r} is not supported")
    flat = [n for side in widths for n in side]
    data = x if is_float(dtype) else x.cast("float64")
    data = data.call("Pad", mode=mode, pad_width=flat, constant_value=value)
    return data.cast(dtype)


_NUMPY = {"wrap": "wrap", "edge": "edge", "reflect": "reflect"}


def taken(node: OnnxNode, x: Traced, index: Array, axis: int) -> Traced:
    """Return the elements at fixed places of an axis."""
    return x.call("take", place(node, index), axis=axis, axisless=False)


def place(node: OnnxNode, index: Array, label: str = "places") -> Traced:
    """Return integers that the file does not name as a value of the symbol."""
    array = np.asarray(index, np.int32)
    name = node.network.names.take(f"{node.network.stem}_{label}")
    return node.network.constant(Known((array, array), name))


def numbers(node: OnnxNode, array: Array, dtype: str, label: str) -> Traced:
    """Return numbers that the file does not name as a value of the symbol."""
    made = np.asarray(array).astype(dtype)
    name = node.network.names.take(f"{node.network.stem}_{label}")
    return node.network.constant(Known((made, made), name))


@converts("Trilu", known=(1,))
def trilu(node: OnnxNode) -> Traced:
    x, k = node.x, node.known(1)
    offset = 0 if k is None else int(k.reshape(-1)[0])
    rows, columns = x.shape[-2:]
    node.require(rows > 0 and columns > 0, "cuts matrices whose size goes along with the batch")
    ones = np.ones(bounded((rows, columns)), bool)
    mask = np.triu(ones, offset) if node.attr("upper", 1) else np.tril(ones, offset)
    kept = numbers(node, mask, "uint8", "triangle")
    return choose(kept, x, x.call("zeros_like"))


@converts("EyeLike")
def eye_like(node: OnnxNode) -> Traced:
    from_file = node.attr("dtype")
    x = node.x
    node.require(all(x.shape), "has a size that goes along with the batch")
    dtype = x.dtype if from_file is None else dtype_of(from_file, "the result")
    node.require(x.rank == 2, f"takes 2 dimensions, not {x.rank}")
    bounded(x.shape)
    return numbers(node, np.eye(x.shape[0], x.shape[1], int(node.attr("k", 0))), dtype, "eye")


@converts("ReverseSequence")
def reverse_sequence(node: OnnxNode) -> Traced:
    x, lengths = node.x, node.tensor(1)
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    node.require({time, batch} == {0, 1}, f"has time_axis={time} and batch_axis={batch}")
    return x.call("SequenceReverse", lengths, use_sequence_length=True, axis=time)
