"""More functions of one value: roundings, logarithms, trigonometry, hard_sigmoid and smooth_l1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import linear
from symgraph.core.params import Attrs
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import FULL, Call, Env, register
from symgraph.core.shapes import same
from symgraph.core.types import Array
from symgraph.ops.elementwise import floats, numbers
from symgraph.ops.unary import Unary, register_unary


def away_from_zero(xp: Any, x: Array) -> Any:
    """Halves go away from zero, unlike numpy's, which go to even numbers."""
    return xp.sign(x) * xp.floor(xp.abs(x) + x.dtype.type(0.5))


def halves_down(xp: Any, x: Array) -> Any:
    return xp.ceil(x - x.dtype.type(0.5))


def whole(formula: str, compute: Any) -> Unary:
    """A step function, through which no gradient flows; integers stay."""
    return Unary(
        formula,
        lambda xp, x: compute(xp, x).astype(x.dtype) if x.dtype.kind == "f" else x,
        None,
        numbers,
    )


def inverse_root(x: Ref, sign: float, constant: float) -> Ref:
    """1 / sqrt(sign * x * x + constant)."""
    return apply("rsqrt", apply("square", x) * sign + constant)


FUNCTIONS: Mapping[str, Unary] = {
    "floor": whole("The largest whole number that is not above data", lambda xp, x: xp.floor(x)),
    "ceil": whole("The smallest whole number that is not below data", lambda xp, x: xp.ceil(x)),
    "trunc": whole("The whole number next to data on zero's side", lambda xp, x: xp.trunc(x)),
    "fix": whole("The whole number next to data on zero's side", lambda xp, x: xp.trunc(x)),
    "round": whole("The nearest whole number, halves away from zero", away_from_zero),
    "rint": whole("The nearest whole number, halves down", halves_down),
    "logical_not": Unary(
        "1 where data is 0, else 0, in the data's dtype",
        lambda xp, x: (x == 0).astype(x.dtype),
        None,
        numbers,
    ),
    "log2": Unary("log2", lambda xp, x: xp.log2(x), lambda c: c.gy / c.x[0] * (1 / math.log(2))),
    "log10": Unary(
        "log10", lambda xp, x: xp.log10(x), lambda c: c.gy / c.x[0] * (1 / math.log(10))
    ),
    "log1p": Unary("log(1 + data)", lambda xp, x: xp.log1p(x), lambda c: c.gy / (c.x[0] + 1.0)),
    "expm1": Unary("exp(data) - 1", lambda xp, x: xp.expm1(x), lambda c: c.gy * (c.y[0] + 1.0)),
    "cbrt": Unary(
        "The cube root",
        lambda xp, x: xp.cbrt(x),
        lambda c: c.gy / apply("square", c.y[0]) * (1 / 3),
    ),
    "rcbrt": Unary(
        "1 / cbrt(data)", lambda xp, x: 1 / xp.cbrt(x), lambda c: c.gy * c.y[0] / c.x[0] * (-1 / 3)
    ),
    "tan": Unary("tan", lambda xp, x: xp.tan(x), lambda c: c.gy * (apply("square", c.y[0]) + 1.0)),
    "arcsin": Unary(
        "arcsin", lambda xp, x: xp.arcsin(x), lambda c: c.gy * inverse_root(c.x[0], -1.0, 1.0)
    ),
    "arccos": Unary(
        "arccos", lambda xp, x: xp.arccos(x), lambda c: -(c.gy * inverse_root(c.x[0], -1.0, 1.0))
    ),
    "arctan": Unary(
        "arctan", lambda xp, x: xp.arctan(x), lambda c: c.gy / (apply("square", c.x[0]) + 1.0)
    ),
    "sinh": Unary("sinh", lambda xp, x: xp.sinh(x), lambda c: c.gy * apply("cosh", c.x[0])),
    "cosh": Unary("cosh", lambda xp, x: xp.cosh(x), lambda c: c.gy * apply("sinh", c.x[0])),
    "arcsinh": Unary(
        "arcsinh", lambda xp, x: xp.arcsinh(x), lambda c: c.gy * inverse_root(c.x[0], 1.0, 1.0)
    ),
    "arccosh": Unary(
        "arccosh", lambda xp, x: xp.arccosh(x), lambda c: c.gy * inverse_root(c.x[0], 1.0, -1.0)
    ),
    "arctanh": Unary(
        "arctanh", lambda xp, x: xp.arctanh(x), lambda c: c.gy / (1.0 - apply("square", c.x[0]))
    ),
    "degrees": Unary(
        "data * 180 / pi",
        lambda xp, x: xp.degrees(x),
        lambda c: c.gy * (180 / math.pi),
        floats,
        linear,
    ),
    "radians": Unary(
        "data * pi / 180",
        lambda xp, x: xp.radians(x),
        lambda c: c.gy * (math.pi / 180),
        floats,
        linear,
    ),
}

for name, row in FUNCTIONS.items():
    register_unary(name, row._replace(precision=FULL))


def hard_sigmoid(env: Env, a: Attrs, x: Array) -> Any:
    kind = x.dtype.type
    return env.xp.clip(x * kind(a["alpha"]) + kind(a["beta"]), 0, 1).astype(x.dtype, copy=False)


def hard_sigmoid_grad(c: Call) -> tuple[Ref]:
    y = c.y[0]
    rising = apply("_greater_scalar", y, scalar=0.0) * apply("_lesser_scalar", y, scalar=1.0)
    return (c.gy * rising * c.attrs["alpha"],)


register(
    name="hard_sigmoid",
    inputs=("data",),
    shape=same,
    compute=hard_sigmoid,
    grad=hard_sigmoid_grad,
    dtype=floats,
    params={"alpha": params.number(0.2), "beta": params.number(0.5)},
    doc="alpha * data + beta limited to [0, 1], element by element. MXNet hard_sigmoid.",
)


def smooth_l1(env: Env, a: Attrs, x: Array) -> Any:
    edge = 1 / a["scalar"] ** 2
    size = env.xp.abs(x)
    return env.xp.where(size < edge, x * x / (2 * edge), size - edge / 2).astype(x.dtype)


register(
    name="smooth_l1",
    inputs=("data",),
    shape=same,
    compute=smooth_l1,
    grad=lambda c: (c.gy * apply("clip", c.x[0] * c.attrs["scalar"] ** 2, a_min=-1.0, a_max=1.0),),
    dtype=floats,
    params={"scalar": params.number(1.0), "is_int": params.ignored()},
    precision=FULL,
    doc="(scalar * data) ** 2 / 2 where |data| < 1 / scalar ** 2, and |data| - 0.5 / scalar ** 2 "
    "beyond. MXNet smooth_l1.",
)
