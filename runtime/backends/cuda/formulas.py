"""Formulas in C: what operators compute of an element, and the kernels that are written of them.

A formula is of the elements x, y and z of as many arrays and of the numbers a and b, all of them
`calc`; a kernel takes those that its formula names. flat_NAME is for arrays that are laid out
alike, packs_NAME the same by packs (of what is so short that memory is all it waits for),
spread_NAME for arrays that broadcast. An output may be an input of its own size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from runtime.backends.cpu.flat import of_pair
from symgraph.ops.elementwise import SCALAR
from symgraph.ops.leaky_relu import SELU_ALPHA, SELU_SCALE

UNARY: Mapping[str, str] = {
    "negative": "-x",
    "abs": "fabs(x)",
    "sign": "sign(x)",
    "square": "x * x",
    "reciprocal": "1 / x",
    "sqrt": "sqrt(x)",
    "rsqrt": "1 / sqrt(x)",
    "cbrt": "cbrt(x)",
    "rcbrt": "1 / cbrt(x)",
    "exp": "exp(x)",
    "expm1": "expm1(x)",
    "log": "log(x)",
    "log2": "log2(x)",
    "log10": "log10(x)",
    "log1p": "log1p(x)",
    "erf": "erf(x)",
    "sin": "sin(x)",
    "cos": "cos(x)",
    "tan": "tan(x)",
    "arcsin": "asin(x)",
    "arccos": "acos(x)",
    "arctan": "atan(x)",
    "sinh": "sinh(x)",
    "cosh": "cosh(x)",
    "tanh": "tanh(x)",
    "arcsinh": "asinh(x)",
    "arccosh": "acosh(x)",
    "arctanh": "atanh(x)",
    "degrees": f"x * (calc){180 / math.pi!r}",
    "radians": f"x * (calc){math.pi / 180!r}",
    "floor": "floor(x)",
    "ceil": "ceil(x)",
    "trunc": "trunc(x)",
    "fix": "trunc(x)",
    "round": "sign(x) * floor(fabs(x) + (calc)0.5)",
    "rint": "ceil(x - (calc)0.5)",
    "logical_not": "x == 0",
    "sigmoid": "sigmoid(x)",
    "relu": "x <= 0 ? 0 : x",
    "softsign": "x / (1 + fabs(x))",
    "softrelu": "maximum(x, 0) + log1p(exp(-fabs(x)))",
}
PAIRS: Mapping[str, str] = {  # by row of symgraph.ops.elementwise.BINARY
    "add": "x + y",
    "sub": "x - y",
    "mul": "x * y",
    "div": "x / y",
    "power": "pow(x, y)",
    "maximum": "maximum(x, y)",
    "minimum": "minimum(x, y)",
    "mod": "modulo(x, y)",
    "hypot": "hypot(x, y)",
    "equal": "x == y",
    "not_equal": "x != y",
    "greater": "x > y",
    "greater_equal": "x >= y",
    "lesser": "x < y",
    "lesser_equal": "x <= y",
}
GRADIENTS: Mapping[str, str] = {
    "_relu_grad": "y > 0 ? x : 0",
    "_sigmoid_grad": "x * y * (1 - y)",
    "_tanh_grad": "x * (1 - y * y)",
    "_leaky_relu_grad": "y > 0 ? x : x * a",
}
KINDS: Mapping[str, str] = {  # of LeakyReLU
    "leaky": "x > 0 ? x : a * x",
    "elu": "elu(x, a)",
    "selu": f"(calc){SELU_SCALE!r} * elu(x, (calc){SELU_ALPHA!r})",
    "gelu": f"x * ((calc)0.5 * (1 + erf(x * (calc){math.sqrt(0.5)!r})))",
    "prelu": "x > 0 ? x : x * y",
}
OTHERS: Mapping[str, str] = {
    "clip": "minimum(maximum(x, a), b)",
    "hard_sigmoid": "minimum(maximum(x * a + b, 0), 1)",
    "smooth_l1": "fabs(x) < a ? x * x / (2 * a) : fabs(x) - a / 2",  # a: 1 / scalar ** 2
    "full": "a",
    "copy": "x",
    "where": "x != 0 ? y : z",
}
SPREAD = (*PAIRS, "prelu", "copy", "where")
BY_PACKS = (
    "add",
    "sub",
    "mul",
    "maximum",
    "minimum",
    "relu",
    "square",
    "negative",
    "copy",
    "full",
    "leaky",
    "clip",
    "_relu_grad",
    "_sigmoid_grad",
    "_tanh_grad",
    "_leaky_relu_grad",
    "_plus_scalar",
    "_minus_scalar",
    "_rminus_scalar",
    "_mul_scalar",
)
MOST = 8  # terms that kernels add which are compiled with the others
LIMIT = 256  # terms that one kernel adds: its arguments have 4 KiB


def with_number(key: str) -> str:
    """The formula of a row of SCALAR."""
    word, number_first = of_pair(key)
    names = {"x": "a", "y": "x"} if number_first else {"y": "a"}
    return re.sub(r"\b[xy]\b", lambda found: names.get(found[0], found[0]), PAIRS[word])


FORMULAS: Mapping[str, str] = {
    **UNARY,
    **PAIRS,
    **GRADIENTS,
    **KINDS,
    **OTHERS,
    **{f"_{key}_scalar": with_number(key) for key in SCALAR},
}


# -- kernels -----------------------------------------------------------------------------------

FLAT = """
extern "C" __global__ void flat_{name}({arrays}real* out, i64 size{numbers}) {{
    const i64 at = thread_index();
    if (at >= size) return;
    {values}out[at] = (real)(calc)({formula});
}}
"""
PACKS = """
extern "C" __global__ void packs_{name}({arrays}real* out, i64 packs{numbers}) {{
    const i64 at = thread_index();
    if (at >= packs) return;
    {loads}Pack<real> made;
    for (int i = 0; i < PACK; i++) {{
        {values}made.at[i] = (real)(calc)({formula});
    }}
    ((Pack<real>*)out)[at] = made;
}}
"""
ROWS = """
extern "C" __global__ void spread_{name}({arrays}real* out, i64 rows, i64 columns, {sizes}) {{
    const i64 j = thread_index();
    if (j >= columns) return;
    for (unsigned i = blockIdx.y; i < rows; i += gridDim.y) {{
        const Row row(i, seconds, thirds);
        {values}out[i * columns + j] = (real)(calc)({formula});
    }}
}}
"""


def named(formula: str, names: str) -> list[str]:
    return [name for name in names if re.search(rf"\b{name}\b", formula)]


def flat(name: str, formula: str) -> str:
    arrays, numbers = named(formula, "xyz"), named(formula, "ab")
    values = [f"const calc {x} = (calc)of_{x}[at];" for x in arrays]
    values += [f"const calc {a} = (calc)wide_{a};" for a in numbers]
    return FLAT.format(
        name=name,
        formula=formula,
        arrays="".join(f"const real* of_{x}, " for x in arrays),
        numbers="".join(f", double wide_{a}" for a in numbers),
        values=" ".join([*values, ""]),
    )


def packs(name: str, formula: str) -> str:
    arrays, numbers = named(formula, "xyz"), named(formula, "ab")
    loads = [f"const Pack<real> all_{x} = ((const Pack<real>*)of_{x})[at];" for x in arrays]
    loads += [f"const calc {a} = (calc)wide_{a};" for a in numbers]
    values = [f"const calc {x} = (calc)all_{x}.at[i];" for x in arrays]
    return PACKS.format(
        name=name,
        formula=formula,
        arrays="".join(f"const real* of_{x}, " for x in arrays),
        numbers="".join(f", double wide_{a}" for a in numbers),
        loads=" ".join([*loads, ""]),
        values=" ".join([*values, ""]),
    )


def spread(name: str, formula: str) -> str:
    arrays = named(formula, "xyz")
    values = [
        f"const calc {x} = (calc)of_{x}[row.start({x}0, {x}1, {x}2) + j * {x}3];" for x in arrays
    ]
    sizes = ["seconds", "thirds", *(f"{x}{axis}" for x in arrays for axis in range(4))]
    return ROWS.format(
        name=name,
        formula=formula,
        arrays="".join(f"const real* of_{x}, " for x in arrays),
        sizes=", ".join(f"i64 {size}" for size in sizes),
        values=" ".join([*values, ""]),
    )


def added(terms: int) -> str:
    """From left to right, as add_n says."""
    names = [f"of_{i}" for i in range(terms)]
    total = " + ".join(f"(calc){name}[at]" for name in names)
    arrays = "".join(f"const real* {name}, " for name in names)
    return FLAT.format(name=f"add_{terms}", formula=total, arrays=arrays, numbers="", values="")


def kernels() -> Iterator[str]:
    """The kernels of all formulas."""
    for name, formula in FORMULAS.items():
        yield flat(name, formula)
    for name in BY_PACKS:
        yield packs(name, FORMULAS[name])
    for name in SPREAD:
        yield spread(name, FORMULAS[name])
    for terms in range(3, MOST + 1):
        yield added(terms)
