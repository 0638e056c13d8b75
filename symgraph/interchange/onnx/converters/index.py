"""Converters of operators that select or place elements by index, and of running totals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from symgraph.core.types import Array
from symgraph.interchange.onnx.converters.elementwise import choose
from symgraph.interchange.onnx.converters.movement import (
    joined,
    numbers,
    place,
    with_ones,
    without,
)
from symgraph.interchange.onnx.folding import bounded
from symgraph.interchange.onnx.node import OnnxNode
from symgraph.interchange.onnx.registry import converts
from symgraph.interchange.values import Known, Traced, pair, spread

MOST_STEPS = 128  # nodes that take one step each


def strides_of(shape: Sequence[int]) -> list[int]:
    """Return how many elements one step along each axis passes."""
    return [math.prod(shape[a + 1 :]) for a in range(len(shape))]


def non_negative(index: Traced, size: int) -> Traced:
    """Return indices counted from the front."""
    below = index.call("_lesser_scalar", scalar=0.0)
    return index + below * float(size)


def without_axis(x: Traced, axis: int) -> Traced:
    """Remove an axis of length 1."""
    return x.reshaped((without(x.dims[0], [axis]), without(x.dims[1], [axis])))


@converts("Gather")
def gather(node: OnnxNode) -> Traced:
    index = node.value(1)
    x = node.tensor(0, learned=isinstance(index, Traced))
    axis = node.axis(node.attr("axis", 0), x.rank)
    size = x.shape[axis]
    if isinstance(index, Known):
        node.require(size > 0 and index.fixed, f"takes fixed places of axis {axis}, the batch")
        places = np.where(index.arrays[0] < 0, index.arrays[0] + size, index.arrays[0])
        node.require(
            bool(((places >= 0) & (places < size)).all()), f"takes places outside 0..{size - 1}"
        )
        if places.size == 1:
            at = int(places.reshape(-1)[0])
            part = x.sliced(axis, at, at + 1)
            lead = places.ndim
            dims = [(*d[:axis], *[1] * lead, *d[axis + 1 :]) for d in part.dims]
            return part.reshaped((dims[0], dims[1]))
        return x.call("take", place(node, places), axis=axis, axisless=False)
    indices = node.tensor(1)
    if (
        axis == 0
        and x.rank == 2
        and x.entry.node.op is None
        and x.entry.node.name in (node.network.args)
    ):
        made = indices.call("Embedding", x, input_dim=size, output_dim=x.shape[1], axisless=False)
    else:
        node.require(size > 0, f"takes places of axis {axis}, where the batch lies")
        made = x.call("take", indices, axis=axis, mode="wrap", axisless=False)
    return without_axis(made, axis) if indices.scalar else made


@converts("GatherElements")
def gather_elements(node: OnnxNode) -> Traced:
    x, index = node.x, node.tensor(1)
    axis = node.axis(node.attr("axis", 0), x.rank)
    same = without(x.dims[0], [axis]) == without(index.dims[0], [axis])
    count = index.shape[axis]
    if x.rank == 1:
        return x.call("take", index, axis=0, mode="wrap", axisless=False)
    if same and 0 < count <= MOST_STEPS:
        parts = [
            x.call("pick", index.sliced(axis, i, i + 1), axis=axis, keepdims=True, mode="wrap")
            for i in range(count)
        ]
        return joined(parts, axis)
    flat = linear_index(node, x, index, axis)
    whole = x.reshaped(((math.prod(x.shape),), (math.prod(x.shape),)))
    return whole.call("take", flat, axis=0, axisless=False)


def linear_index(node: OnnxNode, x: Traced, index: Traced, axis: int) -> Traced:
    """Return the places in the flattened data of elements given by their index along an axis."""
    node.require(all(x.shape) and all(index.shape), "indexes values along the batch")
    strides = strides_of(x.shape)
    base = np.zeros(bounded(index.shape), np.int64)
    for a, step in enumerate(strides):
        if a != axis:
            shape = [-1 if b == a else 1 for b in range(len(strides))]
            base = base + np.arange(index.shape[a]).reshape(shape) * step
    along = non_negative(index, x.shape[axis]) * float(strides[axis])
    return along + numbers(node, base, index.dtype, "base")


@converts("GatherND")
def gather_nd(node: OnnxNode) -> Traced:
    x, index = node.x, node.tensor(1)
    batch = node.attr("batch_dims", 0)
    flat, rest = tuple_index(node, x, index, batch)
    merged = x.rank - len(rest)
    dims = [(math.prod(d[:merged]), *d[merged:]) for d in x.dims]
    whole = x.reshaped((dims[0], dims[1]))
    return whole.call("take", flat, axis=0, axisless=not flat.rank and not rest)


def tuple_index(
    node: OnnxNode, x: Traced, index: Traced, batch: int = 0
) -> tuple[Traced, tuple[int, ...]]:
    """Return places in data whose first axes are merged into one, and the remaining axes.

    Args:
        node: The node.
        x: The data.
        index: The indices, whose last axis holds one for each axis.
        batch: The number of first axes that data and indices have in common.
    """
    count = index.shape[-1]
    node.require(0 < count <= x.rank - batch, f"indexes {count} axes of {x.shape}")
    lead = x.shape[: batch + count]
    node.require(all(lead) and all(index.shape[:batch]), "indexes values along the batch")
    rest = x.shape[batch + count :]
    strides = strides_of(lead)
    shape = index.shape[:-1]
    base: Array = np.zeros([1] * len(shape), np.int64)
    for a in range(batch):
        form = [-1 if b == a else 1 for b in range(len(shape))]
        base = base + np.arange(shape[a]).reshape(form) * strides[a]
        bounded(base.shape)
    total: Traced | None = None
    for j in range(count):
        column = without_axis(index.sliced(index.rank - 1, j, j + 1), index.rank - 1)
        step = non_negative(column, lead[batch + j]) * float(strides[batch + j])
        total = step if total is None else total + step
    assert total is not None
    return (total + numbers(node, base, index.dtype, "base") if batch else total), rest


# -- placing ---------------------------------------------------------------------------------------

COMBINED: dict[str, str] = {"mul": "mul", "max": "maximum", "min": "minimum"}


def scattered(
    node: OnnxNode, x: Traced, flat: Traced, updates: Traced, rest: Sequence[int]
) -> Traced:
    """Place updates at places of data whose first axes are merged into one."""
    count = math.prod(x.shape) // math.prod(rest)
    data = x.reshaped(((count, *rest), (count, *rest)))
    number = math.prod(flat.shape)
    places = flat.reshaped(((number,), (number,)))
    rows = updates.reshaped(((number, *rest), (number, *rest)))
    how = node.attr("reduction", "none")
    if how in COMBINED:
        node.require(number <= MOST_STEPS, f"combines {number} updates one after another ({how})")
        made = data
        for i in range(number):
            here = places.sliced(0, i, i + 1).call("one_hot", depth=count, dtype="uint8")
            shape = (count, *[1] * len(rest))
            mask = here.reshaped((shape, shape))
            made = choose(mask, pair(COMBINED[how], made, rows.sliced(0, i, i + 1)), made)
        return made.reshaped(x.dims)
    node.require(how in ("none", "add"), f"has reduction={how!r}")
    total = places.call("_take_grad", rows, axis=0, size=count)
    if how == "add":
        return (data + total).reshaped(x.dims)
    ones = rows.call("ones_like")
    mask = places.call("_take_grad", ones, axis=0, size=count)
    return choose(mask, total, data).reshaped(x.dims)


@converts("ScatterElements", "Scatter")
def scatter_elements(node: OnnxNode) -> Traced:
    x, index, updates = node.x, node.tensor(1), node.tensor(2)
    axis = node.axis(node.attr("axis", 0), x.rank)
    return scattered(node, x, linear_index(node, x, index, axis), updates, ())


@converts("ScatterND")
def scatter_nd(node: OnnxNode) -> Traced:
    x, index, updates = node.x, node.tensor(1), node.tensor(2)
    node.require(all(x.shape) and all(index.shape), "places values along the batch")
    flat, rest = tuple_index(node, x, index)
    return scattered(node, x, flat, updates, rest)


@converts("TensorScatter")
def tensor_scatter(node: OnnxNode) -> Traced:
    cache, update = node.x, node.tensor(1)
    axis = node.axis(node.attr("axis", -2), cache.rank)
    begin = node.optional(2)
    size, count = cache.shape[axis], update.shape[axis]
    batch = cache.shape[0]
    bounded([batch, count])
    node.require(all(cache.shape) and all(update.shape), "places values along the batch")
    first = (
        begin.cast("int64")
        if begin is not None
        else numbers(node, np.zeros(batch), "int64", "begin")
    )
    steps = numbers(node, np.arange(count)[None], "int64", "steps")
    at = with_ones(first, [1]) + steps
    if node.attr("mode", "linear") == "circular":
        at = at.cast("float64").call("_mod_scalar", scalar=float(size)).cast("int64")
    form = [batch if a == 0 else count if a == axis else 1 for a in range(update.rank)]
    index = spread(at.reshaped((form, form)), update.dims)
    return scattered(node, cache, linear_index(node, cache, index, axis), update, ())


# -- one-hot and extremes --------------------------------------------------------------------------


@converts("OneHot", known=(1,))
def one_hot(node: OnnxNode) -> Traced:
    index, depth, values = node.x, node.known(1), node.value(2)
    node.require(depth is not None and values is not None, "has no depth or values")
    count = int(np.asarray(depth).reshape(-1)[0])
    ids = non_negative(index.cast("int64"), count)
    dtype = values.dtype if values is not None else "float32"
    axis = node.attr("axis", -1)
    rank = index.rank + 1
    at = node.axis(axis, rank)
    if isinstance(values, Known) and values.fixed:
        off, on = (float(v) for v in values.arrays[0].reshape(-1))
        hot = ids.call(
            "one_hot", depth=count, on_value=on, off_value=off, dtype=dtype, axisless=False
        )
    else:
        both = node.tensor(2)
        low, high = both.sliced(0, 0, 1), both.sliced(0, 1, 2)
        mask = ids.call("one_hot", depth=count, dtype="uint8", axisless=False)
        hot = choose(mask, high, low)
    if index.scalar:
        return hot.reshaped(((count,), (count,)))
    order = list(range(rank - 1))
    return hot.transposed([*order[:at], rank - 1, *order[at:]])


@converts("TopK", known=(1,))
def top_k(node: OnnxNode) -> list[Traced]:
    x, count = node.x, node.known(1) if node.opset >= 10 else np.array([node.attr("k")])
    axis = node.axis(node.attr("axis", -1), x.rank)
    size = x.shape[axis]
    k = int(np.asarray(count).reshape(-1)[0])
    node.require(0 < k <= size, f"finds {k} of {size} elements")
    ascends = not node.attr("largest", 1)
    how = {"axis": axis, "k": k, "is_ascend": ascends, "ret_typ": "both", "dtype": "int64"}
    return node.network.call("topk", x, **how)


@converts("Compress", known=(1,))
def compress(node: OnnxNode) -> Traced:
    x, condition = node.x, node.known(1)
    places: Array = np.flatnonzero(np.asarray(condition))
    axis = node.attr("axis")
    if axis is None:
        x = x.reshaped(((math.prod(x.shape),), (math.prod(x.shape),)))
    at = node.axis(axis or 0, x.rank)
    node.require(places.size > 0, "takes nothing")
    return x.call("take", place(node, places), axis=at, axisless=False)


# -- running totals --------------------------------------------------------------------------------


def running(node: OnnxNode, word: str, neutral: Callable[[Traced], Traced]) -> Traced:
    """Combine each element with those before it, in steps of doubling length."""
    x, given = node.x, node.known(1)
    axis = node.axis(int(np.asarray(given).reshape(-1)[0]), x.rank)
    size = x.shape[axis]
    node.require(size > 0, "runs along the batch")
    backwards, exclusive = bool(node.attr("reverse", 0)), bool(node.attr("exclusive", 0))
    if backwards:
        x = x.call("reverse", axis=(axis,))
    empty = neutral(x.call("zeros_like"))

    def later(value: Traced, by: int) -> Traced:
        """Return a value moved along the axis, neutral elements before it."""
        return empty.sliced(axis, 0, by).call("Concat", value.sliced(axis, 0, size - by), dim=axis)

    step = 1
    while step < size:
        x = pair(word, x, later(x, step))
        step *= 2
    if exclusive:
        x = later(x, 1) if size > 1 else empty
    return x.call("reverse", axis=(axis,)) if backwards else x


@converts("CumSum", known=(1,))
def running_sum(node: OnnxNode) -> Traced:
    return running(node, "add", lambda zeros: zeros)


@converts("CumProd", known=(1,))
def running_product(node: OnnxNode) -> Traced:
    return running(node, "mul", lambda zeros: zeros + 1.0)
