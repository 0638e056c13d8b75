"""Arithmetic and comparison, element by element: of two values, of a value and a number, of many.

A row of a table is a function; see formulas.py. Each row of BINARY makes two operators, for equal
shapes and for shapes that broadcast; each row of SCALAR makes one.
"""

from __future__ import annotations

import math
import re
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
from symgraph.ops.formulas import FORMULAS, Formula

DTypes = tuple[list[str | None], list[str]]


def numbers(site: Site, ins: Sequence[str | None]) -> DTypes:
    """Give all one dtype, which is not bool."""
    dtypes = same_dtype(site, ins)
    if dtypes[1][0] == "bool":
        raise DTypeError(f"{site.op} {site.name!r}: works on numbers, not bool; add a Cast")
    return dtypes


def floats(site: Site, ins: Sequence[str | None]) -> DTypes:
    """Give all one float dtype: the result would not fit an integer."""
    dtypes = same_dtype(site, ins)
    dtype = dtypes[1][0]
    if not is_float(dtype):
        raise DTypeError(f"{site.op} {site.name!r}: works on floats, not {dtype}; add a Cast")
    return dtypes


def numbers_with(*names: str) -> DTypeRule:
    """Return the rule `numbers` with whole parameters `names` if the input holds integers."""

    def rule(site: Site, ins: Sequence[str | None]) -> DTypes:
        dtypes = numbers(site, ins)
        dtype = dtypes[1][0]
        for name in names:
            value = site.attrs[name]
            if not is_float(dtype) and not value.is_integer():
                raise DTypeError(
                    f"{site.op} {site.name!r}: {name}={value} is not a valid {dtype}; add a Cast"
                )
        return dtypes

    return rule


def formula_doc(formula: Formula, **names: str) -> str:
    """Return a formula's text for a docstring, with the inputs' names."""
    return re.sub(r"\b[xy]\b", lambda match: names[match[0]], formula.text)


# -- two values --------------------------------------------------------------------------------

Apply = Callable[[str, Ref, Ref], Ref]  # a row of BINARY for the shapes at hand
PairRule = Callable[[Call, Apply], tuple[Ref, Ref]]


class Binary(NamedTuple):
    """A function of two values."""

    text: str
    grad: PairRule | None = None  # both gradients, in the shape of the output
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


def hypot_grad(c: Call, f: Apply) -> tuple[Ref, Ref]:
    x, y = c.x
    length = not_zero(c.y[0])
    return f("mul", c.gy, f("div", x, length)), f("mul", c.gy, f("div", y, length))


def not_zero(value: Ref) -> Ref:
    """Replace 0 by 1. As a divisor it makes hypot's gradient at (0, 0) 0, as in PyTorch."""
    return value + apply("_equal_scalar", value, scalar=0.0)


def chosen_grad(lhs_wins: str, rhs_wins: str) -> PairRule:
    """Return a rule that passes the gradient to the input that was chosen."""

    def grad(c: Call, f: Apply) -> tuple[Ref, Ref]:
        return f("mul", c.gy, f(lhs_wins, *c.x)), f("mul", c.gy, f(rhs_wins, *c.x))

    return grad


COMPARISONS = {
    "equal": "==",
    "not_equal": "!=",
    "greater": ">",
    "greater_equal": ">=",
    "lesser": "<",
    "lesser_equal": "<=",
}
LOGIC = {  # 1 or 0, in the inputs' dtype
    "logical_and": "where(x == 0, 0, where(y == 0, 0, 1))",
    "logical_or": "where(x == 0, where(y == 0, 0, 1), 1)",
    "logical_xor": "where(x == 0, where(y == 0, 0, 1), where(y == 0, 1, 0))",
}
BINARY: Mapping[str, Binary] = {
    "add": Binary("x + y", lambda c, f: (c.gy, c.gy), linear, in_place=EITHER),
    "sub": Binary("x - y", lambda c, f: (c.gy, -c.gy), linear),
    "mul": Binary(
        "x * y",
        lambda c, f: (f("mul", c.gy, c.x[1]), f("mul", c.gy, c.x[0])),
        bilinear,
        in_place=EITHER,
    ),
    "div": Binary("x / y", div_grad, quotient, floats),
    "power": Binary("x ** y", power_grad, elementwise, floats, FULL),
    "maximum": Binary("maximum(x, y)", chosen_grad("greater_equal", "lesser")),
    "minimum": Binary("minimum(x, y)", chosen_grad("lesser_equal", "greater")),
    "mod": Binary(
        "x % y",
        lambda c, f: (c.gy, -f("mul", c.gy, apply("floor", f("div", *c.x)))),
    ),
    "hypot": Binary("hypot(x, y)", hypot_grad, dtype=floats),
    **{key: Binary(text, dtype=same_dtype) for key, text in LOGIC.items()},
    **{key: Binary(f"x {sign} y", dtype=same_dtype) for key, sign in COMPARISONS.items()},
}

PLAIN = ("add", "sub", "mul", "div")  # MXNet calls these elemwise_*, the others _*
SAME = {key: f"elemwise_{key}" if key in PLAIN else f"_{key}" for key in BINARY}
BROADCAST = {key: f"broadcast_{key}" for key in BINARY}
LONG = {"add": "plus", "sub": "minus"}


def capitals(word: str) -> str:
    """Return MXNet's older spelling of a word: `not_equal` is `Not_Equal`."""
    return "_".join(part.capitalize() for part in word.split("_"))


def older_names(key: str) -> Names:
    """Return MXNet's aliases of SAME[key]: `_add`, `_plus` and `_Plus`, or `_Not_Equal`."""
    long = LONG.get(key, key)
    names = dict.fromkeys((f"_{key}", f"_{long}", f"_{capitals(long)}"))
    return tuple(name for name in names if name != SAME[key])


def register_binary(
    name: str, row: Binary, formula: Formula, shape: ShapeRule, aliases: Names
) -> None:
    """Register an operator on pairs; if shapes broadcast, gradients are summed to the inputs'."""
    names = BROADCAST if shape is broadcast else SAME

    def grad(c: Call) -> Sequence[Ref]:
        assert row.grad is not None
        pair = row.grad(c, lambda key, a, b: apply(names[key], a, b))
        if shape is not broadcast:
            return pair
        return [apply("_sum_to", g, shape=x.shape) for g, x in zip(pair, c.x, strict=True)]

    shapes = "shapes broadcast" if shape is broadcast else "both of one shape"
    FORMULAS[name] = formula
    register(
        name=name,
        inputs=("lhs", "rhs"),
        shape=shape,
        compute=formula.compute,
        grad=grad if row.grad else None,
        dtype=row.dtype,
        batch=row.batch,
        aliases=aliases,
        precision=row.precision,
        in_place=row.in_place if shape is same else (),
        doc=f"{formula_doc(formula, x='lhs', y='rhs')} element by element, in the inputs' dtype; "
        f"{shapes}. MXNet {name}.",
    )


PAIRS = {key: Formula(key, row.text) for key, row in BINARY.items()}
for key, row in BINARY.items():
    register_binary(SAME[key], row, PAIRS[key], same, older_names(key))
    long = (f"broadcast_{LONG[key]}",) if key in LONG else ()
    register_binary(BROADCAST[key], row, PAIRS[key], broadcast, long)


# -- a value and a number ----------------------------------------------------------------------


def shifted(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    """Derive the layout of a sum with a number, which every micro-batch would add to a PARTIAL."""
    if PARTIAL in ins and site.attrs["scalar"]:
        refuse_mixing(site, "adds a constant to a sum over the batch")
    return linear(site, ins, in_types, outs)


class Scalar(NamedTuple):
    """A row of BINARY, one of whose values is the number in parameter `scalar`."""

    grad: Callable[[Call, float], Ref | None] | None  # (call, scalar) -> gradient of the data
    batch: BatchRule = elementwise
    dtype: DTypeRule = floats
    precision: str = FOLLOWS
    neutral: float | None = None  # the scalar that leaves the data unchanged


def power_scalar_grad(c: Call, s: float) -> Ref | None:
    if s in (0.0, 1.0):
        return c.gy if s else None
    below = c.x[0] if s == 2.0 else apply("_power_scalar", c.x[0], scalar=s - 1.0)
    return c.gy * below * s


def rpower_scalar_grad(c: Call, s: float) -> Ref | None:
    if s == 0.0:
        return None
    return c.gy * c.y[0] * (math.log(s) if s > 0.0 else math.nan)


WHOLE_SCALAR = numbers_with("scalar")
SCALAR: Mapping[str, Scalar] = {  # "r": the number comes first
    "plus": Scalar(lambda c, s: c.gy, shifted, WHOLE_SCALAR, neutral=0.0),
    "minus": Scalar(lambda c, s: c.gy, shifted, WHOLE_SCALAR, neutral=0.0),
    "rminus": Scalar(lambda c, s: -c.gy, shifted, WHOLE_SCALAR),
    "mul": Scalar(lambda c, s: c.gy * s, linear, WHOLE_SCALAR, neutral=1.0),
    "div": Scalar(lambda c, s: c.gy / s, linear, neutral=1.0),
    "rdiv": Scalar(lambda c, s: -(c.gy * c.y[0] / c.x[0]), precision=FULL),
    "power": Scalar(power_scalar_grad, precision=FULL, neutral=1.0),
    "rpower": Scalar(rpower_scalar_grad, precision=FULL),
    "mod": Scalar(lambda c, s: c.gy, dtype=WHOLE_SCALAR),
    "rmod": Scalar(
        lambda c, s: -(c.gy * apply("floor", apply("_rdiv_scalar", c.x[0], scalar=s))),
        dtype=WHOLE_SCALAR,
    ),
    "hypot": Scalar(lambda c, s: c.gy * c.x[0] / not_zero(c.y[0])),
    "maximum": Scalar(
        lambda c, s: c.gy * apply("_greater_equal_scalar", c.x[0], scalar=s), dtype=WHOLE_SCALAR
    ),
    "minimum": Scalar(
        lambda c, s: c.gy * apply("_lesser_equal_scalar", c.x[0], scalar=s), dtype=WHOLE_SCALAR
    ),
    **{key: Scalar(None, dtype=same_dtype) for key in (*COMPARISONS, *LOGIC)},
}
SHORT = {long: key for key, long in LONG.items()}


def register_scalar(key: str, row: Scalar) -> None:
    name, rule = f"_{key}_scalar", row.grad
    reverse = key in ("rminus", "rdiv", "rpower", "rmod")
    word = key[1:] if reverse else key
    pair = PAIRS[SHORT.get(word, word)]
    formula = FORMULAS[name] = pair.with_number(name, "x" if reverse else "y", "scalar")

    def compare(env: Env, a: Attrs, x: Array) -> Any:
        """Compare with the scalar in its own type: integers may be compared with 0.5."""
        return formula(env.xp, (x,), a).astype(x.dtype, copy=False)

    register(
        name=name,
        inputs=("data",),
        shape=same,
        compute=compare if rule is None else formula.compute,
        grad=None if rule is None else lambda c: (rule(c, c.attrs["scalar"]),),
        dtype=row.dtype,
        batch=row.batch,
        params={"scalar": params.number(), "is_int": params.ignored()},
        aliases=(f"_{'R' * reverse}{capitals(word).replace('_', '')}Scalar",),
        precision=row.precision,
        identity=lambda a: a["scalar"] == row.neutral,
        doc=f"{formula_doc(formula, x='data')} element by element, in the data's dtype. "
        f"MXNet {name}.",
    )


for key, scalar_row in SCALAR.items():
    register_scalar(key, scalar_row)


# -- many values -------------------------------------------------------------------------------


def arg_names(attrs: Attrs) -> Names:
    """Name the inputs of an operator whose parameter `num_args` counts them."""
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
    params={"num_args": params.count(most=params.MAX_PARTS)},
    variadic="num_args",
    aliases=("ElementWiseSum",),
    doc="arg0 + arg1 + ..., added from left to right; all of one shape. MXNet add_n.",
)
