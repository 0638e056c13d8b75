"""Choice by class or condition: one_hot and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import WHOLE, Layouts, elementwise, linear
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, Env, Shapes, no_flops, register, same_dtype
from symgraph.core.shapes import expect, same, unify
from symgraph.core.types import Array, Types
from symgraph.ops.elementwise import DTypes
from symgraph.ops.index import integers


def one_hot_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    ids = ins[0]
    if outs[0] is not None:
        ids = expect(site, "indices", ids, outs[0][:-1], f"(output of shape {outs[0]})")
    if ids is None:
        return ins, outs
    return [ids], [unify(site, (*ids, site.attrs["depth"]), outs[0], "output shapes")]


def one_hot_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    return elementwise(site, ins, in_types, in_types)  # the new axis comes last


def one_hot(env: Env, a: Attrs, ids: Array) -> Any:
    hot = integers(ids)[..., None] == env.xp.arange(a["depth"])
    on, off = (env.xp.full((), a[k], a["dtype"]) for k in ("on_value", "off_value"))
    return env.xp.where(hot, on, off)


register(
    name="one_hot",
    inputs=("indices",),
    shape=one_hot_shape,
    compute=one_hot,
    flops=no_flops,
    dtype=lambda site, ins: ([ins[0] or "float32"], [site.attrs["dtype"]]),
    batch=one_hot_batch,
    params={
        "depth": params.integer(),
        "on_value": params.number(1.0),
        "off_value": params.number(0.0),
        "dtype": params.dtype("float32"),
    },
    ids={"indices": lambda attrs, ins: attrs["depth"]},
    doc="A new last axis of length depth with on_value at the index and off_value elsewhere; an "
    "index out of range is off everywhere. MXNet one_hot.",
)


def where_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    condition = ins[0]
    branches, outs = same(site, ins[1:], outs)
    shape = outs[0]
    if condition is not None and condition != (1,) and shape is not None:
        by_row = len(condition) == 1 and len(shape) > 1
        wanted = shape[:1] if by_row else shape
        condition = expect(site, "condition", condition, wanted, f"(x of shape {shape})")
    return [condition, *branches], outs


def where_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    """Give x, y and the output one dtype; the condition keeps its own."""
    branches, outs = same_dtype(site, ins[1:])
    return [ins[0] or outs[0], *branches], outs


def where(env: Env, a: Attrs, condition: Array, x: Array, y: Array) -> Any:
    rows = condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim))
    return env.xp.where(rows != 0, x, y)


def where_grad(c: Call) -> Sequence[Ref | None]:
    zeros = apply("zeros_like", c.gy)
    return None, apply("where", c.x[0], c.gy, zeros), apply("where", c.x[0], zeros, c.gy)


def where_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Derive the layout: linear in x and y if the condition does not depend on the samples."""
    if ins[0] is WHOLE:
        return linear(site, ins[1:], in_types[1:], outs)
    return elementwise(site, ins, [in_types[1]] * 3, outs)  # a condition by row is on axis 0 too


register(
    name="where",
    inputs=("condition", "x", "y"),
    shape=where_shape,
    compute=where,
    grad=where_grad,
    flops=no_flops,
    dtype=where_dtype,
    batch=where_batch,
    full_inputs=("condition",),
    doc="x where condition is not 0, else y; condition has their shape, or is a vector with one "
    "entry per row of axis 0, or one entry for all. MXNet where.",
)
