"""Elements at places that several indices name together: gather_nd and scatter_nd."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import PARTIAL, WHOLE, Layouts, Split, refuse_mixing
from symgraph.core.params import Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, Env, Shapes, no_flops, register
from symgraph.core.shapes import expect, unify
from symgraph.core.types import Array, Shape, Types
from symgraph.ops.index import indexed_dtype, scatter_rows


def check_indices(site: Site, indices: Shape, rank: int) -> None:
    if len(indices) < 2 or indices[0] > rank:
        site.fail(
            f"indices of shape {indices} need 2 axes or more, the first of them with one index "
            f"for each of the first of {rank} axes"
        )


def row_numbers(indices: Array, front: Shape) -> Array:
    """Return the number, in C order, of the place in axes of lengths `front` that indices name.

    Negative indices count from the end (MXNet); one out of range raises IndexError.
    """
    numbers: Any = 0
    for axis, (at, length) in enumerate(zip(indices, front, strict=True)):
        low, high = at.min(), at.max()
        if not (low >= -length and high < length):
            wrong = high if low >= -length else low
            raise IndexError(f"index {wrong} is outside {-length}..{length - 1} of axis {axis}")
        numbers = numbers * length + at.astype("int64") % length
    return numbers  # type: ignore[no-any-return]


def gather_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, indices = ins
    if data is None or indices is None:
        return ins, outs
    check_indices(site, indices, len(data))
    if not indices[0]:
        return ins, outs
    return ins, [unify(site, indices[1:] + data[indices[0] :], outs[0], "output shapes")]


def gather(env: Env, a: Any, x: Array, indices: Array) -> Any:
    front, rest = x.shape[: len(indices)], x.shape[len(indices) :]
    return x.reshape(math.prod(front), *rest)[row_numbers(indices, front)]


def gather_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Derive the layout: linear in the data; the batch lies in the indices or behind them."""
    data, indices = ins
    named, *places = in_types[1].shape
    if indices is PARTIAL:
        refuse_mixing(site, "looks up a sum over the batch")
    if isinstance(indices, Split):
        if data is not WHOLE:
            refuse_mixing(site, "takes from values that depend on the samples")
        if indices.axis == 0:
            refuse_mixing(site, "names a place by indices of several samples")
        return [Split(indices.axis - 1, indices.outer, indices.inner)]
    if not isinstance(data, Split):
        return [data]
    if data.axis < named:
        refuse_mixing(site, f"takes along axis {data.axis}, where the batch lies")
    return [Split(data.axis - named + len(places), data.outer, data.inner)]


def least_front(shape: Shape, indices: Shape) -> int:
    """Return the number of ids that are valid on every axis that indices name."""
    return min(shape[: indices[0]])


register(
    name="gather_nd",
    inputs=("data", "indices"),
    shape=gather_shape,
    compute=gather,
    grad=lambda c: (apply("scatter_nd", c.gy, c.x[1], shape=c.x[0].shape), None),
    flops=no_flops,
    dtype=indexed_dtype,
    batch=gather_batch,
    full_inputs=("indices",),
    reads_on_host=True,
    ids={"indices": lambda attrs, ins: least_front(ins[0].shape, ins[1].shape)},
    reads_part=True,
    doc="Elements or parts of data: indices (M, ...) name places by its first M axes, and the "
    "output has the shape of one row of indices, then data's other axes. Negative indices count "
    "from the end; one out of range raises IndexError. MXNet gather_nd.",
)


def scatter_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    (data, indices), shape = ins, site.attrs["shape"]
    if indices is not None:
        check_indices(site, indices, len(shape))
        if indices[0]:
            wanted = indices[1:] + shape[indices[0] :]
            data = expect(site, "data", data, wanted, f"(indices of shape {indices})")
    return [data, indices], [unify(site, shape, outs[0], "output shapes")]


def scatter(env: Env, a: Any, x: Array, indices: Array) -> Any:
    front, rest = a["shape"][: len(indices)], a["shape"][len(indices) :]
    numbers = row_numbers(indices, front).reshape(-1)
    rows = x.reshape(len(numbers), *rest)
    return scatter_rows(env.xp, numbers, rows, math.prod(front)).reshape(a["shape"])


def scatter_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Derive the layout: linear in the data, and a sum over the places that indices name."""
    data, indices = ins
    if indices is WHOLE and not isinstance(data, Split):
        return [data]
    if not isinstance(data, Split) or not isinstance(indices, Split):
        refuse_mixing(site, "has data and indices of which one alone depends on the samples")
    if indices != Split(data.axis + 1, data.outer, data.inner):
        refuse_mixing(
            site, f"has data and indices whose batch lies differently ({data} and {indices})"
        )
    return [PARTIAL]


def scatter_grad(c: Call) -> Sequence[Ref | None]:
    return apply("gather_nd", c.gy, c.x[1]), None


register(
    name="scatter_nd",
    inputs=("data", "indices"),
    shape=scatter_shape,
    compute=scatter,
    grad=scatter_grad,
    flops=lambda attrs, ins, outs: ins[0].size,
    dtype=indexed_dtype,
    batch=scatter_batch,
    params={"shape": params.integers()},
    full_inputs=("indices",),
    reads_on_host=True,
    ids={"indices": lambda attrs, ins: least_front(attrs["shape"], ins[1].shape)},
    doc="Zeros of `shape`, with data at the places that indices (M, ...) name by the first M axes; "
    "what goes to one place is added up in a fixed order (in MXNet any of it may stay). Gradient "
    "of gather_nd. MXNet scatter_nd.",
)
