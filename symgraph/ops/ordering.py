"""Order along an axis: sort, argsort and topk.

Equal elements keep their order, in descending order, too, so results are the same on all devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from symgraph.core import params
from symgraph.core.batch_layout import WHOLE, Layouts, axiswise, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, Env, Names, Shapes, no_flops, register
from symgraph.core.shapes import axes_of, expect, same, unify
from symgraph.core.types import Array, Shape, Types, is_float
from symgraph.ops.elementwise import DTypes, numbers

AXIS = {"axis": params.optional(params.integer(), -1)}


def order(xp: Any, x: Array, axis: int, ascend: bool) -> Array:
    """Return, along an axis, the indices of the elements in their order."""
    if ascend:
        found: Array = xp.argsort(x, axis=axis, kind="stable")
        return found
    back = xp.flip(xp.argsort(xp.flip(x, axis), axis=axis, kind="stable"), axis)
    last: Array = x.shape[axis] - 1 - back
    return last


def lined_up(a: Attrs, x: Array) -> tuple[Array, int]:
    """Return the data, flat if `axis` is None, and its axis."""
    return (x.reshape(-1), 0) if a["axis"] is None else (x, a["axis"] % x.ndim)


def lengths(site: Site, data: Shape) -> tuple[Shape, int]:
    """Return the shape of `lined_up` data, and its axis."""
    if site.attrs["axis"] is None:
        return (math.prod(data),), 0
    return data, axes_of(site, site.attrs["axis"], len(data))[0]


def require_exact(site: Site, length: int) -> None:
    """Raise ShapeError if the indices' dtype cannot hold every index (MXNet)."""
    dtype = site.attrs["dtype"]
    if is_float(dtype):
        most = 2 ** {"float16": 11, "bfloat16": 8, "float32": 24}.get(dtype, 53)
    else:
        most = int(np.iinfo(dtype).max)
    if length - 1 > most:
        site.fail(f"dtype={dtype} cannot hold all indices of an axis of length {length}")


def sort_flops(attrs: Attrs, ins: Types, outs: Types) -> int:
    shape = ins[0].shape
    length = ins[0].size if attrs["axis"] is None else shape[attrs["axis"]]
    return ins[0].size * max(1, math.ceil(math.log2(max(1, length))))


def order_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    if site.attrs["axis"] is None and ins[0] is not WHOLE:
        refuse_mixing(site, "orders the elements of all samples")
    return axiswise(site, ins, in_types, outs)


# -- elements by the indices that were found ---------------------------------------------------


def grid(xp: Any, indices: Array, axis: int) -> tuple[Array, ...]:
    """Return what indexes a value (before, length, after) at indices along an axis."""
    shape = indices.shape
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    at = indices.reshape(before, shape[axis], after)
    return xp.arange(before)[:, None, None], at, xp.arange(after)


def put_along(xp: Any, indices: Array, values: Any, axis: int, length: int, dtype: Any) -> Array:
    """Return zeros, as long as `length` along the axis, with the values at the indices."""
    shape = indices.shape
    before, after = shape[:axis], shape[axis + 1 :]
    out: Array = xp.zeros((math.prod(before), length, math.prod(after)), dtype)
    out[grid(xp, indices, axis)] = values
    return out.reshape(*before, length, *after)


def along_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    indices, values = ins
    return [indices or "int64", values or "float32"], [values or "float32"]


def put_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    indices, values = same(site, ins, [])[0]
    if values is None:
        return ins, outs
    axis = site.attrs["axis"]
    return [indices, values], [(*values[:axis], site.attrs["length"], *values[axis + 1 :])]


register(
    name="_put_along",
    inputs=("indices", "values"),
    shape=put_shape,
    compute=lambda env, a, indices, x: put_along(
        env.xp, indices, x.reshape(grid(env.xp, indices, a["axis"])[1].shape), **a, dtype=x.dtype
    ),
    grad=lambda c: (None, apply("_take_along", c.x[0], c.gy, axis=c.attrs["axis"])),
    flops=no_flops,
    dtype=along_dtype,
    params={"axis": params.integer(), "length": params.integer()},
    ids={"indices": lambda attrs, ins: attrs["length"]},
    doc="Zeros with values at different indices along an axis. Gradient of sort.",
)


def take_along_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    return ins, [expect(site, "output", outs[0], ins[0])]


register(
    name="_take_along",
    inputs=("indices", "data"),
    shape=take_along_shape,
    compute=lambda env, a, indices, x: env.xp.take_along_axis(x, indices, a["axis"]),
    grad=lambda c: (
        None,
        apply(
            "_put_along",
            c.x[0],
            c.gy,
            axis=c.attrs["axis"],
            length=c.x[1].shape[c.attrs["axis"]],
        ),
    ),
    flops=no_flops,
    dtype=along_dtype,
    params={"axis": params.integer()},
    ids={"indices": lambda attrs, ins: ins[1].shape[attrs["axis"]]},
    reads_part=True,
    doc="The data's elements at different indices along an axis. Gradient of `_put_along`.",
)


def put_back(c: Call, indices: Ref, grad: Ref) -> Ref:
    """Return the gradient of the data from that of the elements that were taken of it."""
    shape, axis = c.x[0].shape, c.attrs["axis"]
    if axis is None:
        flat = apply("_put_along", indices, grad, axis=0, length=math.prod(shape))
        return apply("Reshape", flat, shape=shape)
    axis %= len(shape)
    return apply("_put_along", indices, grad, axis=axis, length=shape[axis])


# -- sort and argsort --------------------------------------------------------------------------


def sort_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = ins[0] if ins[0] is not None or site.attrs["axis"] is None else outs[0]
    if data is None:
        return ins, outs
    out, axis = lengths(site, data)
    if "dtype" in site.attrs:
        require_exact(site, out[axis])
    return [data], [unify(site, out, outs[0], "output shapes")]


def sort(env: Env, a: Attrs, x: Array) -> Any:
    x, axis = lined_up(a, x)
    y = env.xp.sort(x, axis=axis)
    return y if a["is_ascend"] else env.xp.flip(y, axis)


def sort_grad(c: Call) -> Sequence[Ref]:
    return (put_back(c, apply("argsort", c.x[0], **c.attrs, dtype="int64"), c.gy),)


register(
    name="sort",
    inputs=("data",),
    outputs=("output0",),  # MXNet's name, where hidden indices follow
    shape=sort_shape,
    compute=sort,
    grad=sort_grad,
    flops=sort_flops,
    dtype=numbers,
    batch=order_batch,
    params={**AXIS, "is_ascend": params.boolean(True)},
    doc="The data's elements in ascending or descending order along an axis; of the flattened data "
    "if axis is None. MXNet sort.",
)


def argsort(env: Env, a: Attrs, x: Array) -> Any:
    return order(env.xp, *lined_up(a, x), a["is_ascend"]).astype(a["dtype"])


register(
    name="argsort",
    inputs=("data",),
    shape=sort_shape,
    compute=argsort,
    flops=sort_flops,
    dtype=lambda site, ins: (numbers(site, ins)[0], [site.attrs["dtype"]]),
    batch=order_batch,
    params={**AXIS, "is_ascend": params.boolean(True), "dtype": params.dtype("float32")},
    doc="The indices of the data's elements in ascending or descending order along an axis, or in "
    "the flattened data if axis is None; equal elements keep their order. MXNet argsort.",
)


# -- topk --------------------------------------------------------------------------------------


def topk_outputs(attrs: Attrs) -> Names:
    """Name the outputs as MXNet does, where the values come with hidden indices."""
    return {"both": ("output0", "output1"), "value": ("output0",)}.get(
        attrs["ret_typ"], ("output",)
    )


def topk_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, k = ins[0], site.attrs["k"]
    if data is None:
        return ins, outs
    shape, axis = lengths(site, data)
    if 0 < shape[axis] < k:
        site.fail(f"k={k} is more than the {shape[axis]} elements along axis {axis} of {data}")
    if site.attrs["ret_typ"] in ("indices", "both"):
        require_exact(site, shape[axis])
    chosen = (*shape[:axis], k if k > 0 else shape[axis], *shape[axis + 1 :])
    shape = data if site.attrs["ret_typ"] == "mask" else chosen
    return ins, [unify(site, shape, out, "output shapes") for out in outs]


def topk_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    data, (dtype,) = numbers(site, ins)
    indices = site.attrs["dtype"]
    return data, {"indices": [indices], "both": [dtype, indices]}.get(
        site.attrs["ret_typ"], [dtype]
    )


def topk(env: Env, a: Attrs, x: Array) -> Any:
    xp, (data, axis), kind = env.xp, lined_up(a, x), a["ret_typ"]
    first = (*[slice(None)] * axis, slice(a["k"] if a["k"] > 0 else None))
    indices = order(xp, data, axis, a["is_ascend"])[first]
    if kind == "indices":
        return indices.astype(a["dtype"])
    if kind == "mask":
        return put_along(xp, indices, 1, axis, data.shape[axis], x.dtype).reshape(x.shape)
    values = xp.take_along_axis(data, indices, axis)
    return values if kind == "value" else (values, indices.astype(a["dtype"]))


def topk_grad(c: Call) -> Sequence[Ref | None]:
    if c.attrs["ret_typ"] in ("indices", "mask") or c.g[0] is None:
        return (None,)
    indices = apply("topk", c.x[0], **{**c.attrs, "ret_typ": "indices", "dtype": "int64"})
    return (put_back(c, indices, c.gy),)


register(
    name="topk",
    inputs=("data",),
    outputs=topk_outputs,
    shape=topk_shape,
    compute=topk,
    grad=topk_grad,
    flops=sort_flops,
    dtype=topk_dtype,
    batch=order_batch,
    temporaries=4,  # places are numbers of 64 bits
    params={
        **AXIS,
        "k": params.integer(1),
        "ret_typ": params.choice("indices", "value", "mask", "both", default="indices"),
        "is_ascend": params.boolean(False),
        "dtype": params.dtype("float32"),
    },
    doc="The k largest elements along an axis, in descending order, or the k smallest in ascending "
    "order (is_ascend); all for k=0; of the flattened data if axis is None. ret_typ: their "
    "indices in `dtype`, their values, both, or a mask: 1 at their places in the data. Of equal "
    "elements the first count. MXNet topk.",
)
