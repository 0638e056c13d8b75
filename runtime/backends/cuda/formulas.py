"""Element-wise formulas of symgraph.ops in CUDA: their C, and kernels written from it.

A kernel computes in `calc` and takes the arrays and numbers that its formula names. flat_NAME is
for arrays of one shape, packs_NAME the same by packs (for formulas so short that memory limits
them), spread_NAME for arrays that broadcast. An output may be an input of its own size.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from symgraph.ops import formulas as of_operators
from symgraph.ops.elementwise import PAIRS
from symgraph.ops.formulas import Formula
from symgraph.ops.leaky_relu import KINDS
from symgraph.ops.unary import SOFTRELU

OTHERS = (Formula("full", "value"), Formula("copy", "x"), Formula("where", "where(x != 0, y, z)"))
FORMULAS: Mapping[str, Formula] = {
    formula.name: formula
    for formula in (*of_operators.FORMULAS.values(), *KINDS.values(), SOFTRELU, *OTHERS)
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
COMPILED_TERMS = 8  # sums of up to so many terms are compiled with the other kernels
MAX_TERMS = 256  # of one kernel, whose arguments may take 4 KiB


# -- C -----------------------------------------------------------------------------------------

IN_C = {  # functions that are not called as numpy's are; flat.cu has those that C does not
    "abs": "fabs",
    **{f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
}
SIGNS: Mapping[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Lt: "<",
    ast.LtE: "<=",
}
CALLS: Mapping[type[ast.AST], str] = {ast.Pow: "pow", ast.Mod: "modulo"}


def in_c(node: ast.expr) -> str:
    """Write a formula, or a part of one, in C."""
    match node:
        case ast.Name(name):
            return name
        case ast.Constant(value):
            return f"(calc){value!r}" if isinstance(value, float) else str(value)
        case ast.UnaryOp(ast.USub(), operand):
            return f"-{in_c(operand)}"
        case ast.BinOp(left, sign, right) | ast.Compare(left, [sign], [right]):
            if type(sign) in CALLS:
                return f"{CALLS[type(sign)]}({in_c(left)}, {in_c(right)})"
            return f"({in_c(left)} {SIGNS[type(sign)]} {in_c(right)})"
        case ast.Call(ast.Name("where"), [condition, yes, no]):
            return f"({in_c(condition)} ? {in_c(yes)} : {in_c(no)})"
        case ast.Call(ast.Name(name), args):
            return f"{IN_C.get(name, name)}({', '.join(map(in_c, args))})"
    raise AssertionError(ast.dump(node))


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


def flat(formula: Formula) -> str:
    values = [f"const calc {x} = (calc)of_{x}[at];" for x in formula.arrays]
    return FLAT.format(**_fields(formula), values=" ".join([*values, *_numbers(formula), ""]))


def packs(formula: Formula) -> str:
    loads = [f"const Pack<real> all_{x} = ((const Pack<real>*)of_{x})[at];" for x in formula.arrays]
    values = [f"const calc {x} = (calc)all_{x}.at[i];" for x in formula.arrays]
    return PACKS.format(
        **_fields(formula),
        loads=" ".join([*loads, *_numbers(formula), ""]),
        values=" ".join([*values, ""]),
    )


def spread(formula: Formula) -> str:
    arrays = formula.arrays
    values = [
        f"const calc {x} = (calc)of_{x}[row.start({x}0, {x}1, {x}2) + j * {x}3];" for x in arrays
    ]
    sizes = ["seconds", "thirds", *(f"{x}{axis}" for x in arrays for axis in range(4))]
    return ROWS.format(
        **_fields(formula),
        sizes=", ".join(f"i64 {size}" for size in sizes),
        values=" ".join([*values, ""]),
    )


def _fields(formula: Formula) -> dict[str, str]:
    """Return the fields that all templates of kernels have in common."""
    return {
        "name": formula.name,
        "formula": in_c(formula.tree),
        "arrays": "".join(f"const real* of_{x}, " for x in formula.arrays),
        "numbers": "".join(f", double wide_{n}" for n in formula.numbers),
    }


def _numbers(formula: Formula) -> list[str]:
    return [f"const calc {n} = (calc)wide_{n};" for n in formula.numbers]


def added(terms: int) -> str:
    """Write the kernel of a sum from left to right, which is the order of add_n."""
    names = [f"of_{i}" for i in range(terms)]
    total = " + ".join(f"(calc){name}[at]" for name in names)
    arrays = "".join(f"const real* {name}, " for name in names)
    return FLAT.format(name=f"add_{terms}", formula=total, arrays=arrays, numbers="", values="")


def kernels() -> Iterator[str]:
    """Write the kernels of all formulas."""
    yield from map(flat, FORMULAS.values())
    yield from (packs(FORMULAS[name]) for name in BY_PACKS)
    yield from (spread(FORMULAS[name]) for name in SPREAD)
    yield from map(added, range(3, COMPILED_TERMS + 1))
