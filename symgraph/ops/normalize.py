"""Normalisation by sums of squares: L2Normalization and LRN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import (
    elementwise,
    linear,
    not_along,
)
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import INSIDE, Call, Env, Partial, Shapes, register
from symgraph.core.shapes import same, unify
from symgraph.core.types import Array, Shape, wide
from symgraph.ops.elementwise import floats

# -- L2Normalization ------------------------------------------------------------------------------


def normal_axes(a: Attrs, rank: int) -> tuple[int, ...]:
    """Return the axes over which L2Normalization sums."""
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
    """Differentiate y = x / n and the hidden n = sqrt(sum(x ** 2) + eps)."""
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
    doc="data / sqrt(sum(data ** 2) + eps). The sum is over all axes but the first (mode "
    "instance), over axis 1 (channel), or over all but the first two (spatial). MXNet "
    "L2Normalization.",
)


# -- LRN ------------------------------------------------------------------------------------------


def lrn_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    size = site.attrs["nsize"]
    if size < 1 or size % 2 == 0:
        site.fail(f"nsize={size} must be odd: a channel and as many on either side")
    ins, outs = same(site, ins, outs)
    if ins[0] is not None and len(ins[0]) < 2:
        site.fail(f"data of shape {ins[0]} has no channels: it needs 2 axes or more")
    return ins, outs


def channel_axis(a: Attrs, rank: int) -> tuple[int, ...]:
    return (1,)


def neighbours(x: Array, size: int) -> Array:
    """Sum over `size` channels around each."""
    total = x.copy()
    for far in range(1, min(size // 2 + 1, x.shape[1])):
        total[:, far:] += x[:, :-far]
        total[:, :-far] += x[:, far:]
    return total


register(
    name="_sum_neighbours",
    inputs=("data",),
    shape=lrn_shape,
    compute=lambda env, a, x: neighbours(x, a["nsize"]),
    grad=lambda c: (apply("_sum_neighbours", c.gy, nsize=c.attrs["nsize"]),),
    flops=lambda attrs, ins, outs: outs[0].size * attrs["nsize"],
    dtype=floats,
    batch=not_along(channel_axis, linear),
    params={"nsize": params.integer()},
    doc="For each channel (axis 1) the sum over the nsize channels around it.",
)


def lrn(env: Env, a: Attrs, x: Array) -> tuple[Array, ...]:
    squares = env.xp.square(x.astype(wide(x.dtype), copy=False))
    norm = neighbours(squares, a["nsize"]) * (a["alpha"] / a["nsize"]) + a["knorm"]
    y = x * norm ** -a["beta"]
    return y.astype(x.dtype, copy=False), norm.astype(x.dtype, copy=False)


def lrn_grad(c: Call) -> Sequence[Ref]:
    """Differentiate y = x n ** -beta and the hidden n = knorm + alpha / nsize * sum of x ** 2."""
    (x,), (y, norm), (gy, of_norm) = c.x, c.y, c.g
    terms = [] if of_norm is None else [of_norm]
    if gy is not None:
        terms.append(gy * y / norm * -c.attrs["beta"])
    total = terms[0] + terms[1] if len(terms) > 1 else terms[0]
    summed = apply("_sum_neighbours", total, nsize=c.attrs["nsize"])
    of_x = summed * x * (2 * c.attrs["alpha"] / c.attrs["nsize"])
    if gy is None:
        return (of_x,)
    return (of_x + gy * apply("_power_scalar", norm, scalar=-c.attrs["beta"]),)


register(
    name="LRN",
    inputs=("data",),
    outputs=("output", "tmp_norm"),
    visible=1,
    shape=lrn_shape,
    compute=lrn,
    grad=lrn_grad,
    flops=lambda attrs, ins, outs: outs[0].size * (attrs["nsize"] + 5),
    dtype=floats,
    batch=not_along(channel_axis, elementwise),
    params={
        "alpha": params.number(1e-4),
        "beta": params.number(0.75),
        "knorm": params.number(2.0),
        "nsize": params.integer(),
    },
    precision=INSIDE,
    doc="data / (knorm + alpha / nsize * s) ** beta, where s is the sum of squares of the nsize "
    "channels (axis 1) around each. MXNet LRN.",
)
