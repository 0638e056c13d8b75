"""LeakyReLU and its family: leaky, prelu, elu, selu and gelu."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import WHOLE, Layouts, Split, bilinear, elementwise, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, Env, Names, Shapes, register
from symgraph.core.shapes import expect, same
from symgraph.core.types import Array, Types
from symgraph.ops.elementwise import floats
from symgraph.ops.formulas import FORMULAS, Formula

# Klambauer et al. 2017: with these, mean 0 and variance 1 are preserved.
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805

FORMULAS["_leaky_relu_grad"] = Formula("_leaky_relu_grad", "where(y > 0, x, x * slope)")
register(
    name="_leaky_relu_grad",
    inputs=("grad", "data"),
    shape=same,
    compute=FORMULAS["_leaky_relu_grad"].compute,
    grad=lambda c: (apply("_leaky_relu_grad", c.gy, c.x[1], slope=c.attrs["slope"]), None),
    dtype=floats,
    batch=bilinear,
    params={"slope": params.number()},
    doc="Gradient of leaky: grad where data > 0, else slope * grad.",
)


def elu_grad(c: Call, slope: float, scale: float) -> Ref:
    """Return g scale where x > 0, else g (y + scale slope), since y = scale slope (e^x - 1)."""
    positive = apply("_greater_scalar", c.x[0], scalar=0.0)
    left = (c.y[0] + scale * slope) * (1.0 - positive)
    return c.gy * (left + positive * scale)


CDF = f"0.5 * (1 + erf({{}} * {math.sqrt(0.5)!r}))"  # of the normal distribution
DENSITY = 1 / math.sqrt(2 * math.pi)


def gelu_second_grad(c: Call) -> Sequence[Ref]:
    """The derivative of cdf(x) + x density(x) is density(x) (2 - x^2)."""
    grad, x = c.x
    square = apply("square", x)
    slope = apply("exp", square * -0.5) * (2.0 - square) * DENSITY
    return apply("_gelu_grad", c.gy, x), c.gy * grad * slope


FORMULAS["_gelu_grad"] = Formula(
    "_gelu_grad", f"x * ({CDF.format('y')} + y * exp(-0.5 * y * y) * {DENSITY!r})"
)
register(
    name="_gelu_grad",
    inputs=("grad", "data"),
    shape=same,
    compute=FORMULAS["_gelu_grad"].compute,
    grad=gelu_second_grad,
    flops=lambda attrs, ins, outs: 10 * outs[0].size,
    dtype=floats,
    batch=bilinear,
    doc="Gradient of gelu: grad (cdf(data) + data density(data)), with those of the normal "
    "distribution.",
)


GRADIENTS: Mapping[str, Callable[[Call], Ref]] = {  # of the data, by act_type
    "leaky": lambda c: apply("_leaky_relu_grad", c.gy, c.x[0], slope=c.attrs["slope"]),
    "elu": lambda c: elu_grad(c, c.attrs["slope"], 1.0),
    "selu": lambda c: elu_grad(c, SELU_ALPHA, SELU_SCALE),
    "gelu": lambda c: apply("_gelu_grad", c.gy, c.x[0]),
}
ELU = "where(x > 0, x, {slope} * expm1(minimum(x, 0)))"
KINDS: Mapping[str, Formula] = {  # by act_type
    name: Formula(name, text)
    for name, text in {
        "leaky": "where(x > 0, x, slope * x)",
        "elu": ELU.format(slope="slope"),
        "selu": f"{SELU_SCALE} * {ELU.format(slope=SELU_ALPHA)}",
        "gelu": f"x * ({CDF.format('x')})",
        "prelu": "where(x > 0, x, x * y)",
    }.items()
}


def channels(gamma: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the shape in which slopes along axis 1 broadcast against data of this rank."""
    return (1, *gamma, *[1] * (rank - 2)) if rank > 1 else tuple(gamma)


def inputs(attrs: Attrs) -> Names:
    return ("data", "gamma") if attrs["act_type"] == "prelu" else ("data",)


def leaky_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    (data,), outs = same(site, ins[:1], outs)
    if data is None or len(ins) == 1:
        return [data, *ins[1:]], outs
    by_channel = data[1:2] or (1,)
    if ins[1] == (1,):
        return [data, (1,)], outs
    return [data, expect(site, "gamma", ins[1], by_channel, f"(data of shape {data})")], outs


def leaky(env: Env, a: Attrs, x: Array, *gamma: Array) -> Any:
    slopes = [g.reshape(channels(g.shape, x.ndim)) for g in gamma]
    return KINDS[a["act_type"]].compute(env, a, x, *slopes)


def prelu_grad(c: Call) -> Sequence[Ref]:
    x, gamma = c.x
    rank = len(x.shape)
    positive = apply("_greater_scalar", x, scalar=0.0)
    left = c.gy * (1.0 - positive)
    slopes = apply("Reshape", gamma, shape=channels(gamma.shape, rank))
    of_x = c.gy * positive + apply("broadcast_mul", left, slopes)
    others = [i for i in range(rank) if i != 1 or gamma.shape == (1,)]
    return of_x, apply("sum", left * x, axis=tuple(others))


def leaky_grad(c: Call) -> Sequence[Ref]:
    kind = c.attrs["act_type"]
    return prelu_grad(c) if kind == "prelu" else (GRADIENTS[kind](c),)


def leaky_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    data, *gamma = ins
    if any(layout is not WHOLE for layout in gamma):
        refuse_mixing(site, "has slopes that depend on the samples")
    if gamma and in_types[1].shape != (1,) and isinstance(data, Split) and data.axis == 1:
        refuse_mixing(site, "has a slope for each position of axis 1, where the batch lies")
    return elementwise(site, ins[:1], in_types[:1], outs)


register(
    name="LeakyReLU",
    inputs=inputs,
    shape=leaky_shape,
    compute=leaky,
    grad=leaky_grad,
    dtype=floats,
    batch=leaky_batch,
    params={
        "act_type": params.choice(*KINDS, default="leaky"),
        "slope": params.number(0.25),
        "lower_bound": params.number(0.125),
        "upper_bound": params.number(0.334),
    },
    first_values={"gamma": '["constant", {"value": 0.25}]'},
    caption=lambda attrs: str(attrs["act_type"]),
    doc="Data where it is positive; else slope * data (leaky), gamma * data with gamma of shape "
    "(1,) or one for each position of axis 1 (prelu), or slope * (e ** data - 1) (elu). selu: elu "
    "with constants that keep mean and variance. gelu: data times the normal distribution's cdf at "
    "data. The bounds are rrelu's, which is not offered. MXNet LeakyReLU.",
)
