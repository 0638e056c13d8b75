"""Arithmetic and comparison, element by element: of two values, of a value and a number, of many.

One row of a table is one function. Each row of BINARY makes two operators, for equal shapes and
for shapes that broadcast; each row of SCALAR makes one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from symgraph.core import params
from symgraph.core.batch_layout import (
    PARTIAL,
    BatchRule,
    Layouts,
    bilinear,
    elementwise,
    linear,
    quotient,
    refuse_mixing,
)
from symgraph.core.errors import DTypeError
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import (
    FOLLOWS,
    FULL,
    Call,
    DTypeRule,
    Env,
    Names,
    ShapeRule,
    register,
    same_dtype,
)
from symgraph.core.shapes import broadcast, same
from symgraph.core.types import Array, Types, is_float

DTypes = tuple[list[str | None], list[str]]


def numbers(site: Site, ins: Sequence[str | None]) -> DTypes:
    """One dtype for all; not bool."""
    found = same_dtype(site, ins)
    if found[1][0] == "bool":
        raise DTypeError(f"{site.op} {site.name!r}: works on numbers, not bool; add a Cast")
    return found


def floats(site: Site, ins: Sequence[str | None]) -> DTypes:
    """One float dtype for all: the result would not fit an integer."""
    found = same_dtype(site, ins)
    if not is_float(found[1][0]):
        raise DTypeError(f"{site.op} {site.name!r}: works on floats, not {found[1][0]}; add a Cast")
    return found


def numbers_with(*names: str) -> DTypeRule:
    """`numbers`; the parameters `names` must be whole if the input is of integers."""

    def rule(site: Site, ins: Sequence[str | None]) -> DTypes:
        found = numbers(site, ins)
        for name in names:
            value = site.attrs[name]
            if not is_float(found[1][0]) and not value.is_integer():
                raise DTypeError(
                    f"{site.op} {site.name!r}: {name}={value} is no {found[1][0]}; add a Cast"
                )
        return found

    return rule


Function = Callable[[Any, Any, Any], Any]  # (array module, left, right) -> result
Apply = Callable[[str, Ref, Ref], Ref]  # a row of BINARY for the shapes at hand
PairRule = Callable[[Call, Apply], tuple[Ref, Ref]]


class Binary(NamedTuple):
    """A function of two values; grad gives both gradients in the shape of the output."""

    formula: str
    compute: Function
    grad: PairRule | None = None
    batch: BatchRule = elementwise
    dtype: DTypeRule = numbers
    precision: str = FOLLOWS
    in_place: tuple[tuple[int, int], ...] = ()


EITHER = ((0, 0), (0, 1))  # the output may be written over either input


def div_grad(c: Call, f: Apply) -> tuple[Ref, Ref]:
    of_lhs = f("div", c.gy, c.x[1])
    return of_lhs, -f("mul", of_lhs, c.y[0])


def power_grad(c: Call, f: Apply) -> tuple[Ref, Ref]:
    x, y = c.x
    of_lhs = f("mul", f("mul", c.gy, y), f("power", x, y - 1.0))
    return of_lhs, f("mul", f("mul", c.gy, c.y[0]), apply("log", x))


def chosen_grad(lhs_wins: str, rhs_wins: str) -> PairRule:
    """The gradient goes to the input that was chosen."""

    def grad(c: Call, f: Apply) -> tuple[Ref, Ref]:
        return f("mul", c.gy, f(lhs_wins, *c.x)), f("mul", c.gy, f(rhs_wins, *c.x))

    return grad


COMPARISONS: Mapping[str, tuple[str, Function]] = {
    "equal": ("==", lambda xp, x, y: x == y),
    "not_equal": ("!=", lambda xp, x, y: x != y),
    "greater": (">", lambda xp, x, y: x > y),
    "greater_equal": (">=", lambda xp, x, y: x >= y),
    "lesser": ("<", lambda xp, x, y: x < y),
    "lesser_equal": ("<=", lambda xp, x, y: x <= y),
}

BINARY: Mapping[str, Binary] = {
    "add": Binary(
        "lhs + rhs", lambda xp, x, y: x + y, lambda c, f: (c.gy, c.gy), linear, in_place=EITHER
    ),
    "sub": Binary("lhs - rhs", lambda xp, x, y: x - y, lambda c, f: (c.gy, -c.gy), linear),
    "mul": Binary(
        "lhs * rhs",
        lambda xp, x, y: x * y,
        lambda c, f: (f("mul", c.gy, c.x[1]), f("mul", c.gy, c.x[0])),
        bilinear,
        in_place=EITHER,
    ),
    "div": Binary("lhs / rhs", lambda xp, x, y: x / y, div_grad, quotient, floats),
    "power": Binary("lhs ** rhs", lambda xp, x, y: x**y, power_grad, elementwise, floats, FULL),
    "maximum": Binary(
        "max(lhs, rhs)",
        lambda xp, x, y: xp.maximum(x, y),
        chosen_grad("greater_equal", "lesser"),
    ),
    "minimum": Binary(
        "min(lhs, rhs)",
        lambda xp, x, y: xp.minimum(x, y),
        chosen_grad("lesser_equal", "greater"),
    ),
    "mod": Binary(
        "the rest of lhs / rhs, with the sign of rhs,",
        lambda xp, x, y: xp.mod(x, y),
        lambda c, f: (c.gy, -f("mul", c.gy, apply("floor", f("div", *c.x)))),
        dtype=floats,
    ),
    "hypot": Binary(
        "sqrt(lhs ** 2 + rhs ** 2)",
        lambda xp, x, y: xp.hypot(x, y),
        lambda c, f: (
            f("mul", c.gy, f("div", c.x[0], c.y[0])),
            f("mul", c.gy, f("div", c.x[1], c.y[0])),
        ),
        dtype=floats,
    ),
    **{
        key: Binary(f"1 where lhs {sign} rhs, else 0, in the inputs' dtype,", f, dtype=same_dtype)
        for key, (sign, f) in COMPARISONS.items()
    },
}

PLAIN = ("add", "sub", "mul", "div")  # MXNet calls these elemwise_*, the others _*
SAME = {key: f"elemwise_{key}" if key in PLAIN else f"_{key}" for key in BINARY}
BROADCAST = {key: f"broadcast_{key}" for key in BINARY}
LONG = {"add": "plus", "sub": "minus"}


def capitals(word: str) -> str:
    """MXNet's older spelling: `not_equal` is `Not_Equal`."""
    return "_".join(part.capitalize() for part in word.split("_"))


def older_names(key: str) -> Names:
    """MXNet's aliases of SAME[key]: `_add`, `_plus` and `_Plus`, or `_Not_Equal`."""
    long = LONG.get(key, key)
    names = dict.fromkeys((f"_{key}", f"_{long}", f"_{capitals(long)}"))
    return tuple(name for name in names if name != SAME[key])


def register_binary(name: str, row: Binary, shape: ShapeRule, aliases: Names) -> None:
    """One operator; with the shape rule `broadcast`, gradients are summed to the inputs' shapes."""
    names = BROADCAST if shape is broadcast else SAME

    def compute(env: Env, a: Attrs, x: Array, y: Array) -> Any:
        return row.compute(env.xp, x, y).astype(x.dtype, copy=False)

    def grad(c: Call) -> Sequence[Ref]:
        assert row.grad is not None
        pair = row.grad(c, lambda key, a, b: apply(names[key], a, b))
        if shape is not broadcast:
            return pair
        return [apply("_sum_to", g, shape=x.shape) for g, x in zip(pair, c.x, strict=True)]

    shapes = "shapes broadcast" if shape is broadcast else "both of one shape"
    register(
        name=name,
        inputs=("lhs", "rhs"),
        shape=shape,
        compute=compute,
        grad=grad if row.grad else None,
        dtype=row.dtype,
        batch=row.batch,
        aliases=aliases,
        precision=row.precision,
        in_place=row.in_place if shape is same else (),
        doc=f"{row.formula} element by element; {shapes}. MXNet {name}.",
    )


for key, row in BINARY.items():
    register_binary(SAME[key], row, same, older_names(key))
    long = (f"broadcast_{LONG[key]}",) if key in LONG else ()
    register_binary(BROADCAST[key], row, broadcast, long)


def shifted(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """A number is added: a sum over the batch would get it once a micro-batch."""
    if PARTIAL in ins:
        refuse_mixing(site, "adds a constant to a sum over the batch")
    return elementwise(site, ins, in_types, outs)


class Scalar(NamedTuple):
    """A function of a value and the number in parameter `scalar`; grad(call, number)."""

    formula: str
    compute: Function
    grad: Callable[[Call, float], Ref | None] | None
    batch: BatchRule = elementwise
    dtype: DTypeRule = numbers_with("scalar")
    convert: bool = True  # compute with the number in the data's dtype
    precision: str = FOLLOWS
    neutral: float | None = None  # the number with which the data stays as it is


def power_scalar_grad(c: Call, s: float) -> Ref | None:
    if s in (0.0, 1.0):
        return c.gy if s else None
    below = c.x[0] if s == 2.0 else apply("_power_scalar", c.x[0], scalar=s - 1.0)
    return c.gy * below * s


def rpower_scalar_grad(c: Call, s: float) -> Ref | None:
    if s == 0.0:
        return None
    return c.gy * c.y[0] * (math.log(s) if s > 0.0 else math.nan)


SCALAR: Mapping[str, Scalar] = {
    "plus": Scalar(
        "data + scalar", lambda xp, x, s: x + s, lambda c, s: c.gy, shifted, neutral=0.0
    ),
    "minus": Scalar(
        "data - scalar", lambda xp, x, s: x - s, lambda c, s: c.gy, shifted, neutral=0.0
    ),
    "rminus": Scalar("scalar - data", lambda xp, x, s: s - x, lambda c, s: -c.gy, shifted),
    "mul": Scalar(
        "data * scalar", lambda xp, x, s: x * s, lambda c, s: c.gy * s, linear, neutral=1.0
    ),
    "div": Scalar(
        "data / scalar", lambda xp, x, s: x / s, lambda c, s: c.gy / s, linear, floats, neutral=1.0
    ),
    "rdiv": Scalar(
        "scalar / data",
        lambda xp, x, s: s / x,
        lambda c, s: -(c.gy * c.y[0] / c.x[0]),
        dtype=floats,
        precision=FULL,
    ),
    "power": Scalar(
        "data ** scalar",
        lambda xp, x, s: x**s,
        power_scalar_grad,
        dtype=floats,
        precision=FULL,
        neutral=1.0,
    ),
    "rpower": Scalar(
        "scalar ** data", lambda xp, x, s: s**x, rpower_scalar_grad, dtype=floats, precision=FULL
    ),
    "mod": Scalar("data % scalar", lambda xp, x, s: xp.mod(x, s), lambda c, s: c.gy, dtype=floats),
    "rmod": Scalar(
        "scalar % data",
        lambda xp, x, s: xp.mod(s, x),
        lambda c, s: -(c.gy * apply("floor", apply("_rdiv_scalar", c.x[0], scalar=s))),
        dtype=floats,
    ),
    "hypot": Scalar(
        "sqrt(data ** 2 + scalar ** 2)",
        lambda xp, x, s: xp.hypot(x, s),
        lambda c, s: c.gy * c.x[0] / c.y[0],
        dtype=floats,
    ),
    "maximum": Scalar(
        "max(data, scalar)",
        lambda xp, x, s: xp.maximum(x, s),
        lambda c, s: c.gy * apply("_greater_equal_scalar", c.x[0], scalar=s),
    ),
    "minimum": Scalar(
        "min(data, scalar)",
        lambda xp, x, s: xp.minimum(x, s),
        lambda c, s: c.gy * apply("_lesser_equal_scalar", c.x[0], scalar=s),
    ),
    **{
        key: Scalar(
            f"1 where data {sign} scalar, else 0, in the data's dtype,",
            f,
            None,
            dtype=same_dtype,
            convert=False,
        )
        for key, (sign, f) in COMPARISONS.items()
    },
}


def register_scalar(key: str, row: Scalar) -> None:
    rule = row.grad

    def compute(env: Env, a: Attrs, x: Array) -> Any:
        number = x.dtype.type(a["scalar"]) if row.convert else a["scalar"]
        return row.compute(env.xp, x, number).astype(x.dtype, copy=False)

    reverse = key in ("rminus", "rdiv", "rpower", "rmod")
    word = capitals(key[1:] if reverse else key)
    register(
        name=f"_{key}_scalar",
        inputs=("data",),
        shape=same,
        compute=compute,
        grad=None if rule is None else lambda c: (rule(c, c.attrs["scalar"]),),
        dtype=row.dtype,
        batch=row.batch,
        params={"scalar": params.number(), "is_int": params.ignored()},
        aliases=(f"_{'R' * reverse}{word.replace('_', '')}Scalar",),
        precision=row.precision,
        identity=lambda a: a["scalar"] == row.neutral,
        doc=f"{row.formula} element by element. MXNet _{key}_scalar.",
    )


for name, scalar_row in SCALAR.items():
    register_scalar(name, scalar_row)


def arg_names(attrs: Attrs) -> Names:
    """The inputs of an operator whose parameter `num_args` counts them."""
    return tuple(f"arg{i}" for i in range(attrs["num_args"]))


def add_n(env: Env, a: Attrs, first: Array, *rest: Array) -> Any:
    if not rest:
        return first
    total = first + rest[0]
    for x in rest[1:]:
        total += x
    return total


register(
    name="add_n",
    inputs=arg_names,
    shape=same,
    compute=add_n,
    grad=lambda c: [c.gy] * len(c.x),
    flops=lambda attrs, ins, outs: outs[0].size * (len(ins) - 1),
    dtype=numbers,
    batch=linear,
    params={"num_args": params.integer()},
    variadic="num_args",
    aliases=("ElementWiseSum",),
    doc="arg0 + arg1 + ..., added from left to right; all of one shape. MXNet add_n.",
)
