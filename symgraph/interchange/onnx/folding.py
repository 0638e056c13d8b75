"""Folding: nodes whose inputs are known are computed with numpy when the file is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from symgraph.core.errors import GraphError
from symgraph.core.types import Array
from symgraph.interchange.onnx.node import OnnxNode
from symgraph.interchange.onnx.reader import dtype_of
from symgraph.interchange.values import Known, Traced

LARGEST = 1 << 24  # elements of a folded value
LARGEST_UNIFORM = 1 << 30  # of one that has the same number everywhere
Fold = Callable[..., Any]


def fold(node: OnnxNode, names: Sequence[str], shared: bool) -> list[Known] | None:
    """Compute a node whose inputs are known; None if it must be part of the symbol.

    Weights stay parameters: of nodes that read them only those that move their elements are folded,
    and only if nothing else reads the same weight.

    Args:
        node: The node.
        names: The names of its outputs.
        shared: Whether something else reads one of its inputs.
    """
    if node.op in SIZES and node.inputs and node.inputs[0] is not None:
        dims = node.inputs[0].dims
        found = [SIZES[node.op](node, d) for d in dims]
        return [Known((found[0], found[1]), names[0])]
    function = FOLDS.get(node.op)
    known = [v for v in node.inputs if isinstance(v, Known)]
    if function is None or any(isinstance(v, Traced) for v in node.inputs):
        return None
    learned = any(v.learned for v in known)
    if learned and (node.op not in MOVES or shared):
        return None
    if any(a.dtype == object or a.size > LARGEST for v in known for a in v.arrays):
        return None
    once = all(v.arrays[0] is v.arrays[1] for v in known)
    sides: list[Any] = []
    for side in range(1 if once else 2):
        arrays = [v.arrays[side] if isinstance(v, Known) else None for v in node.inputs]
        with np.errstate(all="ignore"):
            made = function(node, *arrays)
        sides.append(made if isinstance(made, (tuple, list)) else [made])
    return [
        Known((np.asarray(one), np.asarray(other)), name, learned)
        for one, other, name in zip(sides[0], sides[-1], names, strict=False)
    ]


def bounded(shape: Iterable[int], most: int = LARGEST) -> tuple[int, ...]:
    """Return a shape as integers; GraphError if it has more elements than are folded."""
    dims = tuple(int(d) for d in shape)
    if any(d < 0 for d in dims) or math.prod(dims) > most:
        raise GraphError(f"makes a constant of shape {dims}")
    return dims


# -- sizes of values, whose elements need not be known -------------------------------------------


def shape_of(node: OnnxNode, dims: Sequence[int]) -> Array:
    start, end = node.attr("start", 0), node.attr("end", len(dims))
    return np.array(dims[slice(start, end)], np.int64)


SIZES: Mapping[str, Callable[[OnnxNode, Sequence[int]], Array]] = {
    "Shape": shape_of,
    "Size": lambda node, dims: np.array(math.prod(dims), np.int64),
}


# -- values ----------------------------------------------------------------------------------------


def constant(node: OnnxNode) -> Array:
    for key, value in node.attrs.items():
        if key in ("value", "value_float", "value_floats", "value_int", "value_ints"):
            kind = np.float32 if "float" in key else np.int64
            return np.asarray(value) if key == "value" else np.array(value, kind)
    node.fail("is a constant of strings or sparse elements, which are not supported")


def constant_of_shape(node: OnnxNode, shape: Array) -> Array:
    value = np.asarray(node.attr("value", np.zeros(1, np.float32))).reshape(-1)[:1]
    return np.broadcast_to(value.reshape(()), bounded(shape, LARGEST_UNIFORM))


def cast(node: OnnxNode, x: Array, *rest: Any) -> Array:
    dtype = dtype_of(node.attr("to", 1), "the result")
    return x.astype(dtype)


def reshape(node: OnnxNode, x: Array, shape: Array | None = None) -> Array:
    return x.reshape(
        target_shape(x.shape, _list(node, shape, "shape"), bool(node.attr("allowzero", 0)))
    )


def target_shape(data: Sequence[int], codes: Sequence[int], allow_zero: bool) -> list[int]:
    """Return the shape that Reshape's codes describe; GraphError if the elements do not fit."""
    dims = [
        data[i] if not d and not allow_zero and i < len(data) else int(d)
        for i, d in enumerate(codes)
    ]
    total = math.prod(data)
    if dims.count(-1) == 1:
        rest = math.prod(d for d in dims if d != -1)
        dims[dims.index(-1)] = total // rest if rest else 0
    if any(d < 0 for d in dims) or math.prod(dims) != total:
        raise GraphError(f"cannot reshape {tuple(data)} to {list(codes)}")
    return dims


def _list(node: OnnxNode, array: Array | None, attribute: str) -> list[int]:
    """Return integers that are an input in newer versions, an attribute in older ones."""
    numbers = node.attr(attribute, []) if array is None else array.reshape(-1)
    return [int(n) for n in numbers]


def squeeze(node: OnnxNode, x: Array, axes: Array | None = None) -> Array:
    chosen = _list(node, axes, "axes")
    return np.squeeze(x, tuple(chosen)) if chosen else np.squeeze(x)


def slices(node: OnnxNode, x: Array, *inputs: Array | None) -> Array:
    starts, ends, axes, steps = slice_fields(node, x.ndim, inputs)
    index: list[slice] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = numpy_slice(x.shape[axis], start, end, step)
    return x[tuple(index)]


def slice_fields(
    node: OnnxNode, rank: int, inputs: Sequence[Array | None]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return starts, ends, axes (0 or more) and steps of Slice."""
    given = [*inputs, *[None] * (4 - len(inputs))]
    starts, ends = (_list(node, given[i], key) for i, key in enumerate(("starts", "ends")))
    axes = _list(node, given[2], "axes") or list(range(len(starts)))
    steps = _list(node, given[3], "steps") or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        node.fail(f"starts={starts}, ends={ends}, axes={axes}, steps={steps} do not fit")
    return starts, ends, [node.axis(a, rank) for a in axes], steps


def numpy_slice(length: int, start: int, end: int, step: int) -> slice:
    """Return the slice of ONNX's start and end, which are clamped to the axis."""
    low, high = (0, length) if step > 0 else (0, length - 1)
    begin = min(max(start + length if start < 0 else start, low), high)
    last = end + length if end < 0 else end
    if step > 0:
        return slice(begin, min(max(last, 0), length), step)
    last = min(max(last, -1), length - 1)
    return slice(begin, None if last < 0 else last, step)


def arange(node: OnnxNode, start: Array, limit: Array, delta: Array) -> Array:
    first, last, step = (float(np.asarray(a).reshape(())) for a in (start, limit, delta))
    count = max(math.ceil((last - first) / step), 0) if step and math.isfinite(last - first) else -1
    bounded([count])
    numbers = np.arange(count, dtype=np.float64 if start.dtype.kind not in "iu" else np.int64)
    return (numbers * delta.reshape(()).astype(numbers.dtype) + start.reshape(())).astype(
        start.dtype
    )


def expand(node: OnnxNode, x: Array, shape: Array) -> Array:
    target = np.broadcast_shapes(x.shape, bounded(shape))
    return np.broadcast_to(x, bounded(target))


def tile(node: OnnxNode, x: Array, repeats: Array) -> Array:
    counts = repeats.reshape(-1)
    bounded([n * int(r) for n, r in zip(x.shape, counts, strict=True)])
    return np.tile(x, counts)


def split(node: OnnxNode, x: Array, sizes: Array | None = None) -> list[Array]:
    axis = node.axis(node.attr("axis", 0), x.ndim)
    parts = split_sizes(node, x.shape[axis], _list(node, sizes, "split"))
    return np.split(x, np.cumsum(parts)[:-1].tolist(), axis)


def split_sizes(node: OnnxNode, length: int, sizes: Sequence[int]) -> list[int]:
    """Return the lengths of the parts of Split; the last one may be shorter."""
    if sizes:
        node.require(
            sum(sizes) == length and min(sizes) >= 0,
            f"parts of {list(sizes)} do not make up an axis of length {length}",
        )
        return list(sizes)
    count = int(node.attr("num_outputs", len(node.outputs)))
    fits = 1 <= count <= min(max(length, 1), len(node.outputs))
    node.require(fits, f"{count} parts of an axis of length {length}")
    size = -(-length // count)
    return [max(0, min(size, length - i * size)) for i in range(count)]


def integer_division(x: Array, y: Array) -> Array:
    """Divide; integers are cut off towards zero."""
    if x.dtype.kind not in "iu":
        return np.asarray(x / y)
    if not y.all():
        raise GraphError("divides integers by zero")
    return np.asarray(np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))).astype(x.dtype)


def modulo(node: OnnxNode, x: Array, y: Array) -> Array:
    if x.dtype.kind in "iu" and not y.all():
        raise GraphError("divides integers by zero")
    return np.asarray(np.fmod(x, y) if node.attr("fmod", 0) else np.mod(x, y))


def reduction(function: Callable[..., Any]) -> Fold:
    def reduce(node: OnnxNode, x: Array, axes: Array | None = None) -> Array:
        chosen = _list(node, axes, "axes")
        if not chosen and node.attr("noop_with_empty_axes", 0):
            return x
        where = tuple(chosen) if chosen else None
        keep = bool(node.attr("keepdims", 1))
        return np.asarray(function(x, axis=where, keepdims=keep)).astype(x.dtype)

    return reduce


def one_hot(node: OnnxNode, indices: Array, depth: Array, values: Array) -> Array:
    count = int(depth.reshape(-1)[0])
    bounded([*indices.shape, count])
    ids = np.where(indices < 0, indices + count, indices)
    hot = ids[..., None] == np.arange(count)
    made = np.where(hot, values[1], values[0]).astype(values.dtype)
    return np.moveaxis(made, -1, node.attr("axis", -1))


def cumulative(node: OnnxNode, x: Array, axis: Array) -> Array:
    at = node.axis(int(axis.reshape(())), x.ndim)
    line = np.flip(x, at) if node.attr("reverse", 0) else x
    total = np.cumsum(line, at, dtype=x.dtype)
    if node.attr("exclusive", 0):
        total = total - line
    return np.flip(total, at) if node.attr("reverse", 0) else total


def trilu(node: OnnxNode, x: Array, k: Array | None = None) -> Array:
    offset = 0 if k is None else int(k.reshape(()))
    return np.triu(x, offset) if node.attr("upper", 1) else np.tril(x, offset)


def eye_like(node: OnnxNode, x: Array) -> Array:
    dtype = dtype_of(node.attr("dtype", 0), "the result") if node.attr("dtype") else x.dtype
    rows, columns = bounded(x.shape)
    return np.eye(rows, columns, int(node.attr("k", 0)), dtype)


def gather_nd(node: OnnxNode, x: Array, indices: Array) -> Array:
    node.require(not node.attr("batch_dims", 0), "has batch_dims, which are not folded")
    return np.asarray(x[tuple(np.moveaxis(indices, -1, 0))])


def scatter_nd(node: OnnxNode, x: Array, indices: Array, updates: Array) -> Array:
    node.require(node.attr("reduction", "none") == "none", "adds up, which is not folded")
    out = x.copy()
    out[tuple(np.moveaxis(indices, -1, 0))] = updates
    return out


def pad(node: OnnxNode, x: Array, pads: Array | None = None, *rest: Array | None) -> Array:
    widths = _list(node, pads, "pads")
    fill = rest[0] if rest and rest[0] is not None else np.array(node.attr("value", 0), x.dtype)
    node.require(node.attr("mode", "constant") == "constant", "repeats a constant's border")
    node.require(len(rest) < 2 or rest[1] is None, "pads some axes of a constant")
    half = len(widths) // 2
    sides = list(zip(widths[:half], widths[half:], strict=True))
    bounded([n + max(a, 0) + max(b, 0) for n, (a, b) in zip(x.shape, sides, strict=True)])
    node.require(min(widths, default=0) >= 0, "cuts a constant")
    return np.pad(x, sides, constant_values=fill.reshape(()))


def concat(node: OnnxNode, *arrays: Array) -> Array:
    return np.concatenate(arrays, node.attr("axis", 1))


def gather(node: OnnxNode, x: Array, indices: Array) -> Array:
    axis = node.axis(node.attr("axis", 0), x.ndim)
    bounded(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])
    return np.take(x, indices, axis)


def unsqueeze(node: OnnxNode, x: Array, axes: Array | None = None) -> Array:
    return np.asarray(np.expand_dims(x, tuple(_list(node, axes, "axes"))))


def flatten(node: OnnxNode, x: Array) -> Array:
    axis = node.attr("axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), -1)


def of_one(function: Callable[[Array], Any]) -> Fold:
    return lambda node, x: np.asarray(function(x)).astype(x.dtype)


def of_two(function: Callable[[Array, Array], Any]) -> Fold:
    return lambda node, x, y: _fitting(function, x, y)


def _fitting(function: Callable[[Array, Array], Any], x: Array, y: Array) -> Array:
    bounded(np.broadcast_shapes(x.shape, y.shape))
    return np.asarray(function(x, y))


def of_many(function: Callable[[Array, Array], Any]) -> Fold:
    def folded(node: OnnxNode, first: Array, *rest: Array) -> Array:
        for other in rest:
            first = _fitting(function, first, other)
        return first

    return folded


#: Operators that only move the elements of their first input, or change its dtype.
MOVES = frozenset(
    ["Identity", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Flatten", "Cast", "Split"]
)
FOLDS: Mapping[str, Fold] = {
    **dict.fromkeys(SIZES, lambda node: node.fail("has no input")),
    "Identity": lambda node, x: x,
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "Cast": cast,
    "Reshape": reshape,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": lambda node, x: np.transpose(x, node.attr("perm")),
    "Flatten": flatten,
    "Slice": slices,
    "Gather": gather,
    "GatherND": gather_nd,
    "ScatterND": scatter_nd,
    "Concat": concat,
    "Split": split,
    "Range": arange,
    "Expand": expand,
    "Tile": tile,
    "Pad": pad,
    "OneHot": one_hot,
    "CumSum": cumulative,
    "Trilu": trilu,
    "EyeLike": eye_like,
    "NonZero": lambda node, x: np.array(np.nonzero(x), np.int64),
    "Where": lambda node, c, x, y: _fitting(lambda a, b: np.where(c, a, b), x, y),
    "Div": lambda node, x, y: integer_division(x, y),
    "Mod": modulo,
    "Pow": lambda node, x, y: np.power(x, y).astype(x.dtype),
    "Not": lambda node, x: ~x,
    **{
        op: of_one(function)
        for op, function in {
            "Abs": np.abs,
            "Neg": np.negative,
            "Floor": np.floor,
            "Ceil": np.ceil,
            "Round": np.rint,
            "Sqrt": np.sqrt,
            "Exp": np.exp,
            "Log": np.log,
            "Sin": np.sin,
            "Cos": np.cos,
            "Sign": np.sign,
            "Reciprocal": np.reciprocal,
        }.items()
    },
    **{
        op: of_two(function)
        for op, function in {
            "Add": np.add,
            "Sub": np.subtract,
            "Mul": np.multiply,
            "Equal": np.equal,
            "Greater": np.greater,
            "GreaterOrEqual": np.greater_equal,
            "Less": np.less,
            "LessOrEqual": np.less_equal,
            "And": np.logical_and,
            "Or": np.logical_or,
            "Xor": np.logical_xor,
        }.items()
    },
    **{
        op: of_many(function)
        for op, function in {"Max": np.maximum, "Min": np.minimum, "Sum": np.add}.items()
    },
    "ReduceSum": reduction(np.add.reduce),
    "ReduceProd": reduction(np.multiply.reduce),
    "ReduceMax": reduction(np.maximum.reduce),
    "ReduceMin": reduction(np.minimum.reduce),
    "ReduceMean": reduction(np.mean),
}
