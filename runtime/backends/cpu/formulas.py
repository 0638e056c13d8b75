"""Element-wise formulas of symgraph.ops on the CPU: calls of numpy, and compiled loops."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba.extending import overload

from runtime.backends.cpu.rounding import number_of, stored_in
from runtime.backends.cpu.vector import OPTIONS, erf, exp, expm1, minimum, sigmoid, tanh, where
from runtime.backends.device.compile import jit
from symgraph.core.types import Array
from symgraph.ops.formulas import Formula

Function = Callable[..., Any]
VECTOR = {f.__name__: f for f in (erf, exp, expm1, minimum, sigmoid, tanh, where)}


# -- numpy's own -------------------------------------------------------------------------------


def maximum_to(x: Array, y: Array, out: Array) -> None:
    np.maximum(x, y, out=out)  # numpy wants this output by name


def minimum_to(x: Array, y: Array, out: Array) -> None:
    np.minimum(x, y, out=out)


UFUNCS: Mapping[str | type[ast.AST], Function] = {
    "maximum": maximum_to,
    "minimum": minimum_to,
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
    ast.Mod: np.mod,
    ast.USub: np.negative,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
}


def numpy_call(formula: Formula) -> tuple[Function, tuple[str, ...]] | None:
    """Return the function of numpy that computes a formula in one pass, if there is one.

    Returns:
        The function, whose last argument is the output, and the names of its other arguments; None
        for a formula of several steps.
    """
    match formula.tree:
        case ast.UnaryOp(sign, operand):
            function, args = UFUNCS.get(type(sign)), [operand]
        case ast.BinOp(left, sign, right) | ast.Compare(left, [sign], [right]):
            function, args = UFUNCS.get(type(sign)), [left, right]
        case ast.Call(ast.Name(name), args):
            function = UFUNCS.get(name, getattr(np, name, None))
        case _:
            return None
    names = tuple([arg.id for arg in args if isinstance(arg, ast.Name)])
    known = isinstance(function, np.ufunc) or function in UFUNCS.values()
    return (function, names) if known and function and len(names) == len(args) else None


# -- compiled loops ----------------------------------------------------------------------------


class _Constants(ast.NodeTransformer):
    """Replaces a formula's constants by names, so that they can have the arrays' type."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def visit_Constant(self, node: ast.Constant) -> ast.Name:
        assert isinstance(node.value, int | float)
        name = f"constant_{len(self.values)}"
        self.values[name] = node.value
        return ast.Name(name, ast.Load())


def scalar_function(formula: Formula, number: Callable[[float], Any]) -> Function:
    """Return a formula as a function of numbers, whose constants `number` makes."""
    lines = f"lambda {', '.join((*formula.arrays, *formula.numbers))}: {formula.text}"
    constants = _Constants()
    code = ast.fix_missing_locations(constants.visit(ast.parse(lines, mode="eval")))
    functions = {name: VECTOR[name] for name in formula.functions}
    scope = {**functions, **{name: number(v) for name, v in constants.values.items()}}
    function: Function = eval(compile(code, f"<formula {formula.name}>", "eval"), scope)
    return function


def loop(formula: Formula) -> Function:
    """Return the compiled loop of a formula over flat arrays: its arrays, the output, its numbers.

    Arrays of bfloat16 come as uint16; the formula is computed in float32, and rounded once.
    The output may be one of the arrays: there is a loop for each, since of a loop over an array and
    itself the compiler's vector form is not used.
    """
    of = scalar_function(formula, float)

    def typed(kind: Any, *others: Any) -> Function:
        return scalar_function(formula, np.dtype(str(kind)).type)

    overload(of, jit_options=OPTIONS, strict=False)(typed)

    def of_one(x: Array, out: Array, *numbers: Any) -> None:
        if x.ctypes.data != out.ctypes.data:
            for j in range(len(out)):
                out[j] = stored_in(out, of(number_of(x[j]), *numbers))
        else:
            for j in range(len(out)):
                out[j] = stored_in(out, of(number_of(out[j]), *numbers))

    def of_two(x: Array, y: Array, out: Array, *numbers: Any) -> None:
        if x.ctypes.data == out.ctypes.data:
            for j in range(len(out)):
                out[j] = stored_in(out, of(number_of(out[j]), number_of(y[j]), *numbers))
        elif y.ctypes.data == out.ctypes.data:
            for j in range(len(out)):
                out[j] = stored_in(out, of(number_of(x[j]), number_of(out[j]), *numbers))
        else:
            for j in range(len(out)):
                out[j] = stored_in(out, of(number_of(x[j]), number_of(y[j]), *numbers))

    function = of_one if len(formula.arrays) == 1 else of_two
    # Loops with one name would share a file of numba's cache, which ranks may write at a time.
    function.__qualname__ = f"{function.__name__}.{formula.name}"
    return jit(function)
