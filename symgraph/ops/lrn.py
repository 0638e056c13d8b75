"""Local response normalisation over neighbouring channels."""

from __future__ import annotations

from collections.abc import Sequence

from symgraph.core import params
from symgraph.core.batch_layout import (
    elementwise,
    linear,
    not_along,
)
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import INSIDE, Call, Env, Shapes, register
from symgraph.core.shapes import same
from symgraph.core.types import Array, wide
from symgraph.ops.elementwise import floats


def lrn_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    size = site.attrs["nsize"]
    if size < 1 or size % 2 == 0:
        site.fail(f"nsize={size} is to be odd: a channel and as many on either side")
    ins, outs = same(site, ins, outs)
    if ins[0] is not None and len(ins[0]) < 2:
        site.fail(f"data of shape {ins[0]} has no channels: it needs 2 axes or more")
    return ins, outs


def channel_axis(a: Attrs, rank: int) -> tuple[int, ...]:
    return (1,)


def neighbours(x: Array, size: int) -> Array:
    """The sum over `size` channels around each."""
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
    doc="The sum over nsize channels (axis 1) around each.",
)


def lrn(env: Env, a: Attrs, x: Array) -> tuple[Array, ...]:
    squares = env.xp.square(x.astype(wide(x.dtype), copy=False))
    norm = neighbours(squares, a["nsize"]) * (a["alpha"] / a["nsize"]) + a["knorm"]
    y = x * norm ** -a["beta"]
    return y.astype(x.dtype, copy=False), norm.astype(x.dtype, copy=False)


def lrn_grad(c: Call) -> Sequence[Ref]:
    """Of y = x n ** -beta and of the hidden n = knorm + alpha / nsize * sum of x ** 2."""
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
    doc="data / (knorm + alpha / nsize * sum of squares of nsize channels around each) ** beta; "
    "channels are axis 1. MXNet LRN.",
)
