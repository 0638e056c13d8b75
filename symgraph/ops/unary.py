"""Functions of one value, element by element: exp, tanh, clip, Cast, Activation and the like.

A row of a table is a function; see formulas.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from symgraph.core import params
from symgraph.core.batch_layout import BatchRule, Layouts, bilinear, elementwise, linear
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import (
    FOLLOWS,
    FULL,
    Call,
    DTypeRule,
    Env,
    if_unchanged,
    register,
    same_memory,
)
from symgraph.core.shapes import same
from symgraph.core.types import Array, Types, is_float
from symgraph.ops.elementwise import floats, formula_doc, numbers, numbers_with
from symgraph.ops.formulas import FORMULAS, Formula, special


class Unary(NamedTuple):
    """A function of one value."""

    text: str
    grad: Callable[[Call], Ref] | None  # the gradient of the input
    precision: str = FOLLOWS
    dtype: DTypeRule = floats
    batch: BatchRule = elementwise
    doc: str = ""  # if the text does not say it


def inverse_root(x: Ref, sign: float, constant: float) -> Ref:
    """Return 1 / sqrt(sign * x * x + constant)."""
    return apply("rsqrt", apply("square", x) * sign + constant)


def root_grad(c: Call, sign: float, constant: float) -> Ref:
    return c.gy * inverse_root(c.x[0], sign, constant)


UNARY: Mapping[str, Unary] = {
    "negative": Unary("-x", lambda c: -c.gy, dtype=numbers, batch=linear),
    "abs": Unary("abs(x)", lambda c: c.gy * apply("sign", c.x[0]), dtype=numbers),
    "sign": Unary("sign(x)", None, dtype=numbers, doc="-1, 0 or 1"),
    "square": Unary("square(x)", lambda c: c.gy * c.x[0] * 2.0, FULL, numbers),
    "reciprocal": Unary(
        "reciprocal(x)", lambda c: -(c.gy * apply("square", c.y[0])), FULL, doc="1 / data"
    ),
    "sqrt": Unary("sqrt(x)", lambda c: c.gy / c.y[0] * 0.5),
    "rsqrt": Unary("1 / sqrt(x)", lambda c: c.gy * c.y[0] / c.x[0] * -0.5, FULL),
    "cbrt": Unary("cbrt(x)", lambda c: c.gy / apply("square", c.y[0]) * (1 / 3), FULL),
    "rcbrt": Unary("1 / cbrt(x)", lambda c: c.gy * c.y[0] / c.x[0] * (-1 / 3), FULL),
    "exp": Unary("exp(x)", lambda c: c.gy * c.y[0], FULL),
    "expm1": Unary("expm1(x)", lambda c: c.gy * (c.y[0] + 1.0), FULL, doc="exp(data) - 1"),
    "log": Unary("log(x)", lambda c: c.gy / c.x[0], FULL, doc="the natural logarithm"),
    "log2": Unary("log2(x)", lambda c: c.gy / c.x[0] * (1 / math.log(2)), FULL),
    "log10": Unary("log10(x)", lambda c: c.gy / c.x[0] * (1 / math.log(10)), FULL),
    "log1p": Unary("log1p(x)", lambda c: c.gy / (c.x[0] + 1.0), FULL, doc="log(1 + data)"),
    "erf": Unary(
        "erf(x)",
        lambda c: c.gy * apply("exp", -apply("square", c.x[0])) * (2 / math.sqrt(math.pi)),
        doc="the error function",
    ),
    "sin": Unary("sin(x)", lambda c: c.gy * apply("cos", c.x[0])),
    "cos": Unary("cos(x)", lambda c: -(c.gy * apply("sin", c.x[0]))),
    "tan": Unary("tan(x)", lambda c: c.gy * (apply("square", c.y[0]) + 1.0), FULL),
    "arcsin": Unary("arcsin(x)", lambda c: root_grad(c, -1.0, 1.0), FULL),
    "arccos": Unary("arccos(x)", lambda c: -root_grad(c, -1.0, 1.0), FULL),
    "arctan": Unary("arctan(x)", lambda c: c.gy / (apply("square", c.x[0]) + 1.0), FULL),
    "sinh": Unary("sinh(x)", lambda c: c.gy * apply("cosh", c.x[0]), FULL),
    "cosh": Unary("cosh(x)", lambda c: c.gy * apply("sinh", c.x[0]), FULL),
    "tanh": Unary("tanh(x)", lambda c: apply("_tanh_grad", c.gy, c.y[0])),
    "arcsinh": Unary("arcsinh(x)", lambda c: root_grad(c, 1.0, 1.0), FULL),
    "arccosh": Unary("arccosh(x)", lambda c: root_grad(c, 1.0, -1.0), FULL),
    "arctanh": Unary("arctanh(x)", lambda c: c.gy / (1.0 - apply("square", c.x[0])), FULL),
    "degrees": Unary(
        f"x * {180 / math.pi!r}",
        lambda c: c.gy * (180 / math.pi),
        FULL,
        batch=linear,
        doc="data * 180 / pi",
    ),
    "radians": Unary(
        f"x * {math.pi / 180!r}",
        lambda c: c.gy * (math.pi / 180),
        FULL,
        batch=linear,
        doc="data * pi / 180",
    ),
    "logical_not": Unary("x == 0", None, FULL, numbers, doc="1 where data is 0, else 0"),
    "sigmoid": Unary(
        "sigmoid(x)", lambda c: apply("_sigmoid_grad", c.gy, c.y[0]), doc="1 / (1 + exp(-data))"
    ),
    "relu": Unary(
        "where(x <= 0, 0, x)",
        lambda c: apply("_relu_grad", c.gy, c.y[0]),
        dtype=numbers,
        doc="max(data, 0)",
    ),
    "softsign": Unary(
        "x / (1 + abs(x))", lambda c: c.gy * apply("square", 1.0 - apply("abs", c.y[0]))
    ),
}
STEPS: Mapping[str, tuple[str, str]] = {  # no gradient flows through them; integers stay
    "floor": ("floor(x)", "the largest whole number that is not above data"),
    "ceil": ("ceil(x)", "the smallest whole number that is not below data"),
    "trunc": ("trunc(x)", "the whole number next to data on zero's side"),
    "fix": ("trunc(x)", "the whole number next to data on zero's side"),
    "round": ("sign(x) * floor(abs(x) + 0.5)", "the nearest whole number, halves away from zero"),
    "rint": ("ceil(x - 0.5)", "the nearest whole number, halves down"),
}


def register_unary(name: str, row: Unary, *, step: bool = False) -> None:
    formula = FORMULAS[name] = Formula(name, row.text)

    def rounded(env: Env, a: Attrs, x: Array) -> Any:
        return formula.compute(env, a, x) if x.dtype.kind == "f" else x

    compute = rounded if step else formula.compute
    register_rule(name, row._replace(doc=row.doc or formula_doc(formula, x="data")), compute)


def register_rule(name: str, row: Unary, compute: Callable[..., Any]) -> None:
    rule = row.grad
    source = "" if name.startswith("_") else f" MXNet {name}."
    register(
        name=name,
        inputs=("data",),
        shape=same,
        compute=compute,
        grad=None if rule is None else lambda c: (rule(c),),
        dtype=row.dtype,
        batch=row.batch,
        precision=row.precision,
        doc=f"{row.doc}, element by element.{source}",
    )


for key, unary_row in UNARY.items():
    register_unary(key, unary_row)
for key, (text, doc) in STEPS.items():
    register_unary(key, Unary(text, None, FULL, numbers, doc=doc), step=True)

register(
    name="identity",
    inputs=("data",),
    shape=same,
    compute=lambda env, a, x: x,
    grad=lambda c: (c.gy,),
    batch=linear,
    aliases=("_copy",),
    view=same_memory,
    doc="The same value. MXNet identity.",
)

register(
    name="_identity_with_attr_like_rhs",
    inputs=("lhs", "rhs"),
    shape=same,
    compute=lambda env, a, x, like: x,
    grad=lambda c: (c.gy, None),
    view=same_memory,
    doc="lhs, whose shape must be that of rhs. MXNet _identity_with_attr_like_rhs.",
)

register(
    name="BlockGrad",
    inputs=("data",),
    shape=same,
    compute=lambda env, a, x: x,
    batch=linear,
    aliases=("stop_gradient",),
    view=same_memory,
    doc="The same value, through which no gradient flows. MXNet BlockGrad.",
)


# -- gradients of one node instead of three, of which unrolled networks hold thousands ---------


class Gradient(NamedTuple):
    """The gradient of an activation, from the gradient x and the value y of its output."""

    text: str
    of_output: Callable[[Call], Ref | None]  # the second derivative: the gradient of y
    flops: int = 3  # of an element


GRADIENTS: Mapping[str, Gradient] = {
    "_tanh_grad": Gradient("x * (1 - y * y)", lambda c: c.gy * c.x[0] * c.x[1] * -2.0),
    "_sigmoid_grad": Gradient("x * y * (1 - y)", lambda c: c.gy * c.x[0] * (1.0 - c.x[1] * 2.0)),
    "_relu_grad": Gradient("where(y > 0, x, 0)", lambda c: None, flops=1),
}


def register_gradient(name: str, row: Gradient) -> None:
    formula = FORMULAS[name] = Formula(name, row.text)
    register(
        name=name,
        inputs=("grad", "output"),
        shape=same,
        compute=formula.compute,
        grad=lambda c: (apply(name, c.gy, c.x[1]), row.of_output(c)),
        flops=lambda attrs, ins, outs: row.flops * outs[0].size,
        dtype=floats,
        batch=bilinear,
        doc=f"{formula_doc(formula, x='grad', y='output')}, element by element.",
    )


for key, gradient_row in GRADIENTS.items():
    register_gradient(key, gradient_row)


# -- with parameters ---------------------------------------------------------------------------

SOFTRELU = Formula("softrelu", "softrelu(x)")  # log(1 + exp(x))
ACTIVATIONS: Mapping[str, tuple[Formula, Callable[[Call], Ref] | None]] = {
    **{key: (FORMULAS[key], UNARY[key].grad) for key in ("relu", "sigmoid", "tanh", "softsign")},
    "softrelu": (SOFTRELU, lambda c: c.gy * apply("sigmoid", c.x[0])),
}


def activation_grad(c: Call) -> Sequence[Ref]:
    _, rule = ACTIVATIONS[c.attrs["act_type"]]
    assert rule is not None
    return (rule(c),)


register(
    name="Activation",
    inputs=("data",),
    shape=same,
    compute=lambda env, a, x: ACTIVATIONS[a["act_type"]][0].compute(env, a, x),
    grad=activation_grad,
    dtype=floats,
    params={"act_type": params.choice(*ACTIVATIONS)},
    caption=lambda attrs: str(attrs["act_type"]),
    doc="One of relu, sigmoid, tanh, softrelu, softsign, element by element. MXNet Activation.",
)


def clip_grad(c: Call) -> Sequence[Ref]:
    x, low, high = c.x[0], c.attrs["a_min"], c.attrs["a_max"]
    inside = apply("_greater_equal_scalar", x, scalar=low) * apply(
        "_lesser_equal_scalar", x, scalar=high
    )
    return (c.gy * inside,)


FORMULAS["clip"] = Formula("clip", "clip(x, a_min, a_max)")
register(
    name="clip",
    inputs=("data",),
    shape=same,
    compute=FORMULAS["clip"].compute,
    grad=clip_grad,
    dtype=numbers_with("a_min", "a_max"),
    params={"a_min": params.number(), "a_max": params.number()},
    doc="Data limited to [a_min, a_max]; the gradient passes where it lies inside, borders "
    "included. MXNet clip.",
)


def hard_sigmoid_grad(c: Call) -> tuple[Ref]:
    y = c.y[0]
    rising = apply("_greater_scalar", y, scalar=0.0) * apply("_lesser_scalar", y, scalar=1.0)
    return (c.gy * rising * c.attrs["alpha"],)


FORMULAS["hard_sigmoid"] = Formula("hard_sigmoid", "clip(x * alpha + beta, 0, 1)")
register(
    name="hard_sigmoid",
    inputs=("data",),
    shape=same,
    compute=FORMULAS["hard_sigmoid"].compute,
    grad=hard_sigmoid_grad,
    dtype=floats,
    params={"alpha": params.number(0.2), "beta": params.number(0.5)},
    doc="alpha * data + beta limited to [0, 1], element by element. MXNet hard_sigmoid.",
)

FORMULAS["smooth_l1"] = Formula(
    "smooth_l1",
    "where(abs(x) < edge, x * x / (2 * edge), abs(x) - edge / 2)",
    edge=lambda attrs: 1 / attrs["scalar"] ** 2,
)
register(
    name="smooth_l1",
    inputs=("data",),
    shape=same,
    compute=FORMULAS["smooth_l1"].compute,
    grad=lambda c: (c.gy * apply("clip", c.x[0] * c.attrs["scalar"] ** 2, a_min=-1.0, a_max=1.0),),
    dtype=floats,
    params={"scalar": params.number(1.0), "is_int": params.ignored()},
    precision=FULL,
    doc="(scalar * data) ** 2 / 2 where |data| < 1 / scalar ** 2, and |data| - 0.5 / scalar ** 2 "
    "beyond. MXNet smooth_l1.",
)


# -- special functions ---------------------------------------------------------------------------


def by_special(name: str) -> Callable[..., Any]:
    """Return the computation by a function of scipy.special or of CuPy's."""
    return lambda env, a, x: special(x, name)(x).astype(x.dtype, copy=False)


SPECIAL: Mapping[str, Unary] = {
    "gamma": Unary(
        "gamma", lambda c: c.gy * c.y[0] * apply("_digamma", c.x[0]), doc="the gamma function"
    ),
    "gammaln": Unary(
        "gammaln",
        lambda c: c.gy * apply("_digamma", c.x[0]),
        doc="the logarithm of the absolute value of the gamma function",
    ),
    "_digamma": Unary("digamma", None, doc="the derivative of gammaln"),
    "erfinv": Unary(
        "erfinv",
        lambda c: c.gy * apply("exp", apply("square", c.y[0])) * (math.sqrt(math.pi) / 2),
        doc="the inverse of erf",
    ),
}
for key, unary_row in SPECIAL.items():
    register_rule(key, unary_row, by_special(unary_row.text))


# -- Cast --------------------------------------------------------------------------------------


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
