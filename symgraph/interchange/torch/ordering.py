"""Converters of what orders elements, and reads or writes them by computed indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from symgraph.frontend import sym
from symgraph.frontend.symbol import Symbol
from symgraph.interchange.torch.call import Call, Value, cast, converts
from symgraph.interchange.torch.program import Meta

MOST_PLACES = 64  # of an index along its axis, each of which is an operator


@converts("topk sort argsort")
def ordered(c: Call) -> Any:
    """Return the first elements in an order, and where they were."""
    word = c.node.target.split(".")[1]
    axis = c.axis("dim", -1)
    rising = not c.get("largest", True) if word == "topk" else not c.get("descending", False)
    k = c.integer("k") if word == "topk" else 0  # which is all, however long the batch is
    if word == "topk" and not k:
        c.fail("k=0 makes an empty tensor")
    options: dict[str, Any] = {"axis": axis, "k": k, "is_ascend": rising}
    if word == "argsort":
        return sym.topk(c.x(), ret_typ="indices", dtype="int64", **options)
    return sym.topk(c.x(), ret_typ="both", dtype="int64", **options)


def places(c: Call) -> tuple[int, list[Symbol]]:
    """Return the axis of an index, and its parts of length 1 along that axis."""
    axis, lengths = c.axis("dim"), c.meta("index").shape
    others = [(d, e) for a, (d, e) in enumerate(zip(c.meta("self").shape, lengths, strict=True))]
    if any(d != e for a, (d, e) in enumerate(others) if a != axis):
        c.fail("an index that is shorter along another axis is not supported")
    count = int(lengths[axis])
    if count > MOST_PLACES:
        c.fail(f"an index of length {count} along its axis is longer than {MOST_PLACES}")
    return axis, parts(c.x("index"), axis, count)


def parts(x: Symbol, axis: int, count: int) -> list[Symbol]:
    return [*sym.SliceChannel(x, num_outputs=count, axis=axis)] if count > 1 else [x]


@converts("gather")
def gather(c: Call) -> Symbol:
    """Take one element per row for each place of the index along the axis."""
    axis, indices = places(c)
    made = [sym.pick(c.x(), at, axis=axis, keepdims=True) for at in indices]
    return sym.Concat(*made, dim=axis) if len(made) > 1 else made[0]


@converts("scatter.src scatter.value scatter_add")
def scatter(c: Call) -> Symbol:
    """Write or add one element per row for each place of the index along the axis."""
    axis, indices = places(c)
    made, shape = c.x(), c.meta("self").shape
    across = tuple(-1 if a == axis else 1 for a in range(len(shape)))
    row = np.arange(shape[axis]).reshape([d if d == -1 else 1 for d in across])
    steps = c.symbol(Value(Meta(row.shape, "int64"), array=row))
    if c.has("src"):
        if c.meta("src").shape != c.meta("index").shape:
            c.fail("values of another shape than the index are not supported")
        values: list[Any] = parts(c.x("src"), axis, len(indices))
    else:
        number = c.number("value")
        values = [sym.zeros_like(cast(at, "int64", c.out.dtype)) + number for at in indices]
    for at, value in zip(indices, values, strict=True):
        here = sym.broadcast_equal(at, steps)
        value = sym.broadcast_like(value, made)
        if "add" in c.node.target:
            made = made + value * sym.Cast(here, dtype=c.out.dtype)
        else:
            made = sym.where(here, value, made)
    return made
