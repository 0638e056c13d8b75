"""Functions of one value, element by element: exp, tanh, clip, Cast, Activation and the like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from symgraph.core import params
from symgraph.core.batch_layout import BatchRule, Layouts, bilinear, elementwise, linear
from symgraph.core.params import Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import (
    FOLLOWS,
    FULL,
    Call,
    DTypeRule,
    Names,
    ViewRule,
    if_unchanged,
    register,
    same_dtype,
    same_memory,
)
from symgraph.core.shapes import same
from symgraph.core.types import Array, Types, is_float
from symgraph.ops.elementwise import floats, numbers, numbers_with


def sigmoid(xp: Any, x: Array) -> Any:
    """1 / (1 + exp(-x)); where exp overflows, the 0 that follows is right."""
    y = xp.negative(x)
    with np.errstate(over="ignore"):
        xp.exp(y, out=y)
    y += 1
    return xp.reciprocal(y, out=y)


class Unary(NamedTuple):
    """A function of one value; grad gives the gradient of its input."""

    formula: str
    compute: Callable[[Any, Array], Any]  # (array module, data)
    grad: Callable[[Call], Ref] | None
    dtype: DTypeRule = floats
    batch: BatchRule = elementwise
    aliases: Names = ()
    precision: str = FOLLOWS
    view: ViewRule | None = None


UNARY: Mapping[str, Unary] = {
    "negative": Unary("-data", lambda xp, x: -x, lambda c: -c.gy, numbers, linear),
    "abs": Unary(
        "|data|", lambda xp, x: xp.abs(x), lambda c: c.gy * apply("sign", c.x[0]), numbers
    ),
    "sign": Unary("-1, 0 or 1", lambda xp, x: xp.sign(x), None, numbers),
    "exp": Unary("e ** data", lambda xp, x: xp.exp(x), lambda c: c.gy * c.y[0], precision=FULL),
    "log": Unary(
        "the natural logarithm", lambda xp, x: xp.log(x), lambda c: c.gy / c.x[0], precision=FULL
    ),
    "sqrt": Unary("the square root", lambda xp, x: xp.sqrt(x), lambda c: c.gy / c.y[0] * 0.5),
    "rsqrt": Unary(
        "1 / sqrt(data)",
        lambda xp, x: 1 / xp.sqrt(x),
        lambda c: c.gy * c.y[0] / c.x[0] * -0.5,
        precision=FULL,
    ),
    "square": Unary(
        "data * data",
        lambda xp, x: x * x,
        lambda c: c.gy * c.x[0] * 2.0,
        numbers,
        precision=FULL,
    ),
    "reciprocal": Unary(
        "1 / data",
        lambda xp, x: 1 / x,
        lambda c: -(c.gy * apply("square", c.y[0])),
        precision=FULL,
    ),
    "sin": Unary("the sine", lambda xp, x: xp.sin(x), lambda c: c.gy * apply("cos", c.x[0])),
    "cos": Unary("the cosine", lambda xp, x: xp.cos(x), lambda c: -(c.gy * apply("sin", c.x[0]))),
    "tanh": Unary(
        "the hyperbolic tangent",
        lambda xp, x: xp.tanh(x),
        lambda c: apply("_tanh_grad", c.gy, c.y[0]),
    ),
    "sigmoid": Unary(
        "1 / (1 + e ** -data)", sigmoid, lambda c: apply("_sigmoid_grad", c.gy, c.y[0])
    ),
    "relu": Unary(
        "max(data, 0)",
        lambda xp, x: xp.maximum(x, 0),
        lambda c: apply("_relu_grad", c.gy, c.y[0]),
        numbers,
    ),
    "softsign": Unary(
        "data / (1 + |data|)",
        lambda xp, x: x / (1 + xp.abs(x)),
        lambda c: c.gy * apply("square", 1.0 - apply("abs", c.y[0])),
    ),
    "identity": Unary(
        "the same value",
        lambda xp, x: x,
        lambda c: c.gy,
        same_dtype,
        linear,
        ("_copy",),
        view=same_memory,
    ),
    "BlockGrad": Unary(
        "the same value, through which no gradient flows",
        lambda xp, x: x,
        None,
        same_dtype,
        linear,
        ("stop_gradient",),
        view=same_memory,
    ),
}


def register_unary(name: str, row: Unary) -> None:
    rule = row.grad
    register(
        name=name,
        inputs=("data",),
        shape=same,
        compute=lambda env, a, x: row.compute(env.xp, x),
        grad=None if rule is None else lambda c: (rule(c),),
        dtype=row.dtype,
        batch=row.batch,
        aliases=row.aliases,
        precision=row.precision,
        view=row.view,
        doc=f"{row.formula}, element by element. MXNet {name}.",
    )


for key, unary_row in UNARY.items():
    register_unary(key, unary_row)


# One node instead of three for the gradients that unrolled networks hold thousands of.

register(
    name="_tanh_grad",
    inputs=("grad", "output"),
    shape=same,
    compute=lambda env, a, g, y: g * (1 - y * y),
    grad=lambda c: (
        apply("_tanh_grad", c.gy, c.x[1]),
        c.gy * c.x[0] * c.x[1] * -2.0,
    ),
    flops=lambda attrs, ins, outs: 3 * outs[0].size,
    dtype=floats,
    batch=bilinear,
    doc="Gradient of tanh from its output y: grad * (1 - y^2).",
)

register(
    name="_sigmoid_grad",
    inputs=("grad", "output"),
    shape=same,
    compute=lambda env, a, g, y: g * y * (1 - y),
    grad=lambda c: (
        apply("_sigmoid_grad", c.gy, c.x[1]),
        c.gy * c.x[0] * (1.0 - c.x[1] * 2.0),
    ),
    flops=lambda attrs, ins, outs: 3 * outs[0].size,
    dtype=floats,
    batch=bilinear,
    doc="Gradient of sigmoid from its output y: grad * y * (1 - y).",
)

register(
    name="_relu_grad",
    inputs=("grad", "output"),
    shape=same,
    compute=lambda env, a, g, y: env.xp.where(y > 0, g, 0),
    grad=lambda c: (apply("_relu_grad", c.gy, c.x[1]), None),
    dtype=floats,
    batch=bilinear,
    doc="Gradient of relu from its output y: grad where y > 0, else 0.",
)


ACTIVATIONS: Mapping[str, Unary] = {
    **{name: UNARY[name] for name in ("relu", "sigmoid", "tanh", "softsign")},
    "softrelu": Unary(
        "log(1 + e ** data)",
        lambda xp, x: xp.logaddexp(x, 0),
        lambda c: c.gy * apply("sigmoid", c.x[0]),
    ),
}


def activation_grad(c: Call) -> Sequence[Ref]:
    rule = ACTIVATIONS[c.attrs["act_type"]].grad
    assert rule is not None
    return (rule(c),)


register(
    name="Activation",
    inputs=("data",),
    shape=same,
    compute=lambda env, a, x: ACTIVATIONS[a["act_type"]].compute(env.xp, x),
    grad=activation_grad,
    dtype=floats,
    params={"act_type": params.choice(*ACTIVATIONS)},
    doc="One of relu, sigmoid, tanh, softrelu, softsign, element by element. MXNet Activation.",
)


def clip_grad(c: Call) -> Sequence[Ref]:
    x, low, high = c.x[0], c.attrs["a_min"], c.attrs["a_max"]
    inside = apply("_greater_equal_scalar", x, scalar=low) * apply(
        "_lesser_equal_scalar", x, scalar=high
    )
    return (c.gy * inside,)


register(
    name="clip",
    inputs=("data",),
    shape=same,
    compute=lambda env, a, x: env.xp.clip(x, x.dtype.type(a["a_min"]), x.dtype.type(a["a_max"])),
    grad=clip_grad,
    dtype=numbers_with("a_min", "a_max"),
    params={"a_min": params.number(), "a_max": params.number()},
    doc="Data limited to [a_min, a_max]; the gradient passes where it lies inside, borders "
    "included. MXNet clip.",
)


def cast_dtype(site: Site, ins: Sequence[str | None]) -> tuple[Sequence[str | None], Sequence[str]]:
    return ins, [site.attrs["dtype"]]


def cast_grad(c: Call) -> Sequence[Ref | None]:
    if not (is_float(c.x[0].dtype) and is_float(c.attrs["dtype"])):
        return (None,)
    return (apply("Cast", c.gy, dtype=c.x[0].dtype),)


def cast_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    between_floats = is_float(in_types[0].dtype) and is_float(outs[0].dtype)
    return (linear if between_floats else elementwise)(site, ins, in_types, outs)


register(
    name="Cast",
    inputs=("data",),
    shape=same,
    compute=lambda env, a, x: x.astype(a["dtype"], copy=False),
    grad=cast_grad,
    dtype=cast_dtype,
    batch=cast_batch,
    params={"dtype": params.dtype()},
    aliases=("cast",),
    view=if_unchanged,
    doc="The same values in another dtype; gradients flow between floats only. MXNet Cast.",
)
