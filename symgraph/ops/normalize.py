"""Normalisation of each sample by its length: L2Normalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import elementwise, not_along
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import INSIDE, Call, Env, Partial, Shapes, register
from symgraph.core.shapes import same, unify
from symgraph.core.types import Array, Shape, wide
from symgraph.ops.elementwise import floats


def normal_axes(a: Attrs, rank: int) -> tuple[int, ...]:
    """The axes over which L2Normalization sums."""
    return {
        "instance": tuple(range(1, rank)),
        "channel": (1,),
        "spatial": tuple(range(2, rank)),
    }[a["mode"]]


def summed(a: Attrs, data: Shape) -> Shape:
    axes = normal_axes(a, len(data))
    return tuple(1 if i in axes else d for i, d in enumerate(data))


def l2_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, out = same(site, ins, outs[:1])
    least = {"instance": 2, "channel": 2, "spatial": 3}[site.attrs["mode"]]
    norm: Partial = None
    if data[0] is not None:
        if len(data[0]) < least:
            site.fail(
                f"data of shape {data[0]} has fewer than the {least} axes that mode="
                f"{site.attrs['mode']!r} needs"
            )
        norm = unify(site, summed(site.attrs, data[0]), outs[1])
    return data, [*out, norm]


def l2(env: Env, a: Attrs, x: Array) -> tuple[Any, Any]:
    axes = normal_axes(a, x.ndim)
    squares = env.xp.square(x.astype(wide(x.dtype), copy=False))
    norm = env.xp.sqrt(squares.sum(axis=axes, keepdims=True) + a["eps"])
    return (x / norm).astype(x.dtype, copy=False), norm.astype(x.dtype, copy=False)


def l2_grad(c: Call) -> Sequence[Ref]:
    """Of y = x / n and of the hidden n = sqrt(sum(x ** 2) + eps)."""
    (x,), (y, norm), (gy, of_norm) = c.x, c.y, c.g
    axes = normal_axes(c.attrs, len(x.shape))
    terms = [] if of_norm is None else [apply("broadcast_mul", y, of_norm)]
    if gy is not None:
        along = apply("sum", gy * y, axis=axes, keepdims=True)
        terms.append(apply("broadcast_div", gy - apply("broadcast_mul", y, along), norm))
    return (terms[0] + terms[1] if len(terms) > 1 else terms[0],)


register(
    name="L2Normalization",
    inputs=("data",),
    outputs=("output", "norm"),
    visible=1,
    shape=l2_shape,
    compute=l2,
    grad=l2_grad,
    flops=lambda attrs, ins, outs: 3 * outs[0].size,
    dtype=floats,
    batch=not_along(normal_axes, elementwise),
    params={
        "eps": params.number(1e-10),
        "mode": params.choice("channel", "instance", "spatial", default="instance"),
    },
    precision=INSIDE,
    doc="data / sqrt(sum(data ** 2) + eps) with the sum over all axes but the first (mode "
    "instance), axis 1 (channel), or all but the first two (spatial). MXNet L2Normalization.",
)
