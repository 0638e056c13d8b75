"""Reductions over axes: sum, prod, mean, max, min, norm, argmax; and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from symgraph.core import params
from symgraph.core.batch_layout import (
    PARTIAL,
    BatchRule,
    Layouts,
    Split,
    named_axis,
    not_along,
    reduced,
    refuse_mixing,
)
from symgraph.core.params import Attrs, Param, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import FOLLOWS, FULL, Call, DTypeRule, Env, Names, Shapes, register
from symgraph.core.shapes import axes_of, reduced_shape, unify
from symgraph.core.types import Array, Types, is_float, wide
from symgraph.ops.elementwise import DTypes, floats, numbers


def axes_in(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """Return the axes that a call reduces (non-negative, sorted)."""
    axis = attrs["axis"]
    if axis is None or axis == ():
        return tuple(range(rank))
    named = {a % rank for a in ((axis,) if isinstance(axis, int) else axis)}
    return tuple(a for a in range(rank) if (a in named) != attrs.get("exclude", False))


def reduce_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Dimensions that are kept are known on both sides if they are known on one."""
    data, out = ins[0], outs[0]
    axis, keep = site.attrs["axis"], site.attrs["keepdims"]
    if data is None and not keep:
        return ins, [unify(site, (1,) if axis in (None, ()) else None, out, "output shapes")]
    if data is None and out is None:
        return ins, outs
    if data is None:
        assert out is not None
        data = (0,) * len(out)
    axes_of(site, axis, len(data))
    axes = axes_in(site.attrs, len(data))
    out = unify(site, reduced_shape(data, axes, keep), out, "output shapes")
    assert out is not None
    kept = iter(out if not keep else [d for a, d in enumerate(out) if a not in axes])
    return [tuple(d if a in axes else next(kept) for a, d in enumerate(data))], [out]


def spread_back(g: Ref, c: Call) -> Ref:
    """Repeat a gradient of the reduced value along the reduced axes."""
    shape = c.x[0].shape
    axes = axes_in(c.attrs, len(shape))
    if not axes:
        return apply("Reshape", g, shape=shape)
    return apply("_broadcast_axes", g, axes=axes, keepdims=c.attrs["keepdims"], shape=shape)


def reduce_flops(attrs: Attrs, ins: Types, outs: Types) -> int:
    return ins[0].size


def sum_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    rank = len(in_types[0].shape)
    return [reduced(axes_in(site.attrs, rank), site.attrs["keepdims"], ins[0], rank)]


def nonlinear_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Refuse reductions over the batch that are not sums of those of the micro-batches."""
    if ins[0] is PARTIAL:
        refuse_mixing(site, "applies a nonlinear function to a sum over the batch")
    layouts = sum_batch(site, ins, in_types, outs)
    if PARTIAL in layouts:
        refuse_mixing(site, "reduces over the batch axis")
    return layouts


AXES = {
    "axis": params.optional(params.integers()),
    "keepdims": params.boolean(False),
}
EXCLUDING = {**AXES, "exclude": params.boolean(False)}
AXES_DOC = (
    "axis None or () means all axes, and a full reduction gives shape (1,); exclude=True "
    "reduces the axes that are not named."
)
Reduction = Callable[[Any, Array, Attrs, tuple[int, ...]], Array]


def total(xp: Any, x: Array, a: Attrs, axes: tuple[int, ...]) -> Array:
    """Sum over axes, 16-bit floats in float32."""
    sums: Array = xp.sum(x, axis=axes, keepdims=a["keepdims"], dtype=wide(x.dtype))
    return sums


def register_reduction(
    name: str,
    reduction: Reduction,
    grad: Callable[[Call], Ref] | None,
    *,
    doc: str,
    dtype: DTypeRule = floats,
    batch: BatchRule = nonlinear_batch,
    spec: Mapping[str, Param] = EXCLUDING,
    aliases: Names = (),
    divisor: Callable[[Attrs, Types], int] | None = None,
    precision: str = FOLLOWS,
    copies_inputs: bool = True,
) -> None:
    def compute(env: Env, a: Attrs, x: Array) -> Array:
        axes = axes_in(a, x.ndim)
        shape = reduced_shape(x.shape, axes, a["keepdims"])
        return reduction(env.xp, x, a, axes).astype(x.dtype, copy=False).reshape(shape)

    register(
        name=name,
        inputs=("data",),
        shape=reduce_shape,
        compute=compute,
        grad=None if grad is None else lambda c: (grad(c),),
        flops=reduce_flops,
        dtype=dtype,
        batch=batch,
        params=spec,
        aliases=aliases,
        divisor=divisor,
        precision=precision,
        copies_inputs=copies_inputs,
        doc=doc,
    )


register_reduction(
    "sum",
    total,
    lambda c: spread_back(c.gy, c),
    dtype=numbers,
    batch=sum_batch,
    aliases=("sum_axis",),
    precision=FULL,
    doc=f"Sum over axes; {AXES_DOC} MXNet sum.",
)


def product(xp: Any, x: Array, a: Attrs, axes: tuple[int, ...]) -> Array:
    """Multiply over axes, 16-bit floats in float32."""
    products: Array = xp.prod(x, axis=axes, keepdims=a["keepdims"], dtype=wide(x.dtype))
    return products


def product_grad(c: Call, x: Ref) -> Ref:
    """Give each element of x the product of the others, which is right where some are 0, too."""
    zero = apply("_equal_scalar", x, scalar=0.0)
    nonzero = x + zero
    of_others = spread_back(apply("prod", nonzero, **c.attrs), c) / nonzero
    zeros = spread_back(apply("sum", zero, **c.attrs), c) - zero  # among the others
    return spread_back(c.gy, c) * of_others * apply("_equal_scalar", zeros, scalar=0.0)


register_reduction(
    "prod",
    product,
    lambda c: product_grad(c, c.x[0]),
    dtype=numbers,
    precision=FULL,
    doc=f"Product over axes; {AXES_DOC} MXNet prod.",
)


def numbers_only(c: Call) -> Ref:
    """Return 1 where the data is a number and 0 where it is NaN."""
    return apply("_equal", c.x[0], c.x[0])


def nansum_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    if ins[0] is PARTIAL:
        refuse_mixing(site, "applies a nonlinear function to a sum over the batch")
    return sum_batch(site, ins, in_types, outs)


register_reduction(
    "nansum",
    lambda xp, x, a, axes: total(xp, xp.where(x == x, x, 0), a, axes),
    lambda c: spread_back(c.gy, c) * numbers_only(c),
    batch=nansum_batch,
    precision=FULL,
    doc=f"Sum over axes of what is not NaN; {AXES_DOC} MXNet nansum.",
)


def nanprod_grad(c: Call) -> Ref:
    x = apply("where", numbers_only(c), c.x[0], apply("ones_like", c.x[0]))
    return apply("where", numbers_only(c), product_grad(c, x), apply("zeros_like", x))


register_reduction(
    "nanprod",
    lambda xp, x, a, axes: product(xp, xp.where(x == x, x, 1), a, axes),
    nanprod_grad,
    precision=FULL,
    doc=f"Product over axes of what is not NaN; {AXES_DOC} MXNet nanprod.",
)


def mean_count(attrs: Attrs, ins: Types) -> int:
    """Return the number of elements that each mean is over."""
    shape = ins[0].shape
    return math.prod(shape[a] for a in axes_in(attrs, len(shape)))


def mean(xp: Any, x: Array, a: Attrs, axes: tuple[int, ...]) -> Array:
    means: Array = total(xp, x, a, axes) / (a["count"] or math.prod(x.shape[i] for i in axes))
    return means


register_reduction(
    "mean",
    mean,
    lambda c: spread_back(c.gy / (c.attrs["count"] or mean_count(c.attrs, [c.x[0].type])), c),
    batch=sum_batch,
    spec={**EXCLUDING, "count": params.integer(0)},
    divisor=mean_count,
    precision=FULL,
    doc=f"Mean over axes; {AXES_DOC} count: what the sum is divided by, if not the number of its "
    "own elements. MXNet mean.",
)


def extreme_grad(c: Call) -> Ref:
    """The gradient goes to every element that equals the extreme, ties included."""
    chosen = apply("_equal", c.x[0], spread_back(c.y[0], c))
    return spread_back(c.gy, c) * chosen


register_reduction(
    "max",
    lambda xp, x, a, axes: xp.max(x, axis=axes, keepdims=a["keepdims"]),
    extreme_grad,
    dtype=numbers,
    aliases=("max_axis",),
    copies_inputs=False,
    doc=f"Largest element over axes; {AXES_DOC} MXNet max.",
)

register_reduction(
    "min",
    lambda xp, x, a, axes: xp.min(x, axis=axes, keepdims=a["keepdims"]),
    extreme_grad,
    dtype=numbers,
    aliases=("min_axis",),
    copies_inputs=False,
    doc=f"Smallest element over axes; {AXES_DOC} MXNet min.",
)


def norm_order(raw: Any) -> int:
    order = params.integer().parse(raw)
    if order not in (1, 2):
        raise ValueError
    return int(order)


def norm(xp: Any, x: Array, a: Attrs, axes: tuple[int, ...]) -> Array:
    if a["ord"] == 1:
        return total(xp, xp.abs(x), a, axes)
    wider = x.astype(wide(x.dtype), copy=False)
    root: Array = xp.sqrt(total(xp, wider * wider, a, axes))
    return root


def norm_grad(c: Call) -> Ref:
    """The gradient is zero where the norm is zero."""
    x = c.x[0]
    if c.attrs["ord"] == 1:
        return spread_back(c.gy, c) * apply("sign", x)
    tiny = float(np.finfo(x.dtype).tiny)
    length = apply("_maximum_scalar", c.y[0], scalar=tiny)
    return x / spread_back(length, c) * spread_back(c.gy, c)


register_reduction(
    "norm",
    norm,
    norm_grad,
    spec={
        "ord": Param(norm_order, 2, "order of a norm (1 or 2)", type="Literal[1, 2]"),
        "axis": AXES["axis"],
        "out_dtype": params.only(None),
        "keepdims": AXES["keepdims"],
    },
    precision=FULL,
    doc="Sum of magnitudes (ord=1) or square root of the sum of squares (ord=2) over axes; axis "
    "None or () means all axes, and a full reduction gives shape (1,). MXNet norm.",
)


def register_index(name: str, which: str) -> None:
    """Register argmax or argmin."""

    def compute(env: Env, a: Attrs, x: Array) -> Any:
        shape = reduced_shape(x.shape, axes_in(a, x.ndim), a["keepdims"])
        return getattr(env.xp, name)(x, axis=a["axis"]).astype(x.dtype).reshape(shape)

    register(
        name=name,
        inputs=("data",),
        shape=reduce_shape,
        compute=compute,
        flops=reduce_flops,
        dtype=numbers,
        batch=nonlinear_batch,
        params={"axis": params.optional(params.integer()), "keepdims": params.boolean(False)},
        copies_inputs=False,
        doc=f"Index of the first {which} element along an axis, or in the flattened data if "
        f"axis "
        f"is None, in the data's dtype. MXNet {name}.",
    )


register_index("argmax", "largest")
register_index("argmin", "smallest")


CHANNEL = {"axis": 1, "keepdims": False}

register(
    name="argmax_channel",
    inputs=("data",),
    shape=lambda site, ins, outs: reduce_shape(site._replace(attrs=CHANNEL), ins, outs),
    compute=lambda env, a, x: env.xp.argmax(x, axis=1).astype(x.dtype),
    flops=reduce_flops,
    dtype=numbers,
    batch=lambda site, ins, in_types, outs: nonlinear_batch(
        site._replace(attrs=CHANNEL), ins, in_types, outs
    ),
    copies_inputs=False,
    doc="Index of the first largest element along axis 1, in the data's dtype. MXNet "
    "argmax_channel.",
)


# -- running sums ------------------------------------------------------------------------------


def cumsum_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, axis = ins[0], site.attrs["axis"]
    if axis is None:
        size = None if data is None else (math.prod(data),)
        return ins, [unify(site, size, outs[0], "output shapes")]
    data = unify(site, data, outs[0], "shapes of data and output")
    if data is not None:
        axes_of(site, axis, len(data))
    return [data], [data]


def cumsum_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    known, (dtype,) = numbers(site, ins)
    return known, [site.attrs["dtype"] or dtype]


def cumsum_grad(c: Call) -> Sequence[Ref | None]:
    """Return the sum of the gradients from each element on."""
    x, axis = c.x[0], c.attrs["axis"] or 0
    if not (is_float(x.dtype) and is_float(c.gy.dtype)):
        return (None,)
    back = apply("reverse", c.gy, axis=axis)
    sums = apply("reverse", apply("cumsum", back, axis=axis, dtype=x.dtype), axis=axis)
    return (apply("Reshape", sums, shape=x.shape) if c.attrs["axis"] is None else sums,)


def cumsum_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    if site.attrs["axis"] is None and isinstance(ins[0], Split):
        refuse_mixing(site, "adds up the elements of all samples")
    return not_along(named_axis)(site, ins, in_types, outs)


register(
    name="cumsum",
    inputs=("a",),
    shape=cumsum_shape,
    compute=lambda env, a, x: env.xp.cumsum(x, axis=a["axis"], dtype=a["dtype"] or x.dtype),
    grad=cumsum_grad,
    flops=reduce_flops,
    dtype=cumsum_dtype,
    batch=cumsum_batch,
    params={
        "axis": params.optional(params.integer()),
        "dtype": params.optional(params.dtype()),
    },
    precision=FULL,
    doc="The sums of all elements up to each, along an axis or in the flattened data if axis is "
    "None, in the data's dtype or `dtype`. MXNet cumsum.",
)
