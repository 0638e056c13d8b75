"""Element-wise operators: ONNX's own where there is one, else the nodes of the formula's text."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping

from symgraph.core.types import is_float
from symgraph.interchange.onnx.writing.call import Call, Converter, Table
from symgraph.interchange.onnx.writing.nodes import NUMBERS
from symgraph.ops.formulas import FORMULAS, Formula
from symgraph.ops.unary import ACTIVATIONS, STEPS

# -- formulas --------------------------------------------------------------------------------------

Function = Callable[..., str]  # (call, ONNX values) -> ONNX value


def named(op: str) -> Function:
    """Return the function that is one ONNX operator."""
    return lambda call, *x: call.op(op, *x)


def scaled_log(base: float) -> Function:
    return lambda call, x: call.op("Mul", call.op("Log", x), call.const(1 / math.log(base)))


def modulo(call: Call, x: str, y: str) -> str:
    """Write the remainder with the divisor's sign; ONNX's for floats has the dividend's."""
    rest = call.op("Mod", x, y, fmod=1)
    other_sign = call.op("Less", call.op("Mul", rest, y), call.const(0))
    return call.op("Where", other_sign, call.op("Add", rest, y), rest)


def expm1(call: Call, x: str) -> str:
    """Write exp(x) - 1 as tanh(x / 2) * (exp(x) + 1), which is exact near 0 too."""
    half = call.op("Tanh", call.op("Mul", x, call.const(0.5)))
    return call.op("Mul", half, call.op("Add", call.op("Exp", x), call.const(1)))


def cbrt(call: Call, x: str) -> str:
    root = call.op("Pow", call.op("Abs", x), call.const(1 / 3))
    return call.op("Mul", call.op("Sign", x), root)


def square(call: Call, x: str) -> str:
    return call.op("Mul", x, x)


def hypot(call: Call, x: str, y: str) -> str:
    return call.op("Sqrt", call.op("Add", square(call, x), square(call, y)))


def truncated(call: Call, x: str) -> str:
    return call.op("Mul", call.op("Sign", x), call.op("Floor", call.op("Abs", x)))


ONNX_NAMES = """abs:Abs sign:Sign sqrt:Sqrt reciprocal:Reciprocal exp:Exp log:Log erf:Erf sin:Sin
    cos:Cos tan:Tan arcsin:Asin arccos:Acos arctan:Atan sinh:Sinh cosh:Cosh tanh:Tanh arcsinh:Asinh
    arccosh:Acosh arctanh:Atanh sigmoid:Sigmoid softrelu:Softplus floor:Floor ceil:Ceil
    maximum:Max minimum:Min clip:Clip where:Where"""
FUNCTIONS: Mapping[str, Function] = {
    **{key: named(op) for key, op in (pair.split(":") for pair in ONNX_NAMES.split())},
    "square": square,
    "hypot": hypot,
    "expm1": expm1,
    "cbrt": cbrt,
    "trunc": truncated,
    "log2": scaled_log(2),
    "log10": scaled_log(10),
    "log1p": lambda call, x: call.op("Log", call.op("Add", x, call.const(1))),
}
OPERATORS: Mapping[type[ast.AST], Function] = {
    ast.Add: named("Add"),
    ast.Sub: named("Sub"),
    ast.Mult: named("Mul"),
    ast.Div: named("Div"),
    ast.Pow: named("Pow"),
    ast.Mod: modulo,
    ast.USub: named("Neg"),
    ast.Eq: named("Equal"),
    ast.NotEq: lambda call, x, y: call.op("Not", call.op("Equal", x, y)),
    ast.Gt: named("Greater"),
    ast.GtE: named("GreaterOrEqual"),
    ast.Lt: named("Less"),
    ast.LtE: named("LessOrEqual"),
}


class Walk:
    """One walk over the text of a formula, in which each part becomes ONNX nodes."""

    def __init__(self, call: Call, formula: Formula, arrays: Mapping[str, str]) -> None:
        self.call, self.arrays = call, arrays
        self.numbers = dict(zip(formula.numbers, formula.values(call.attrs), strict=True))

    def value(self, part: ast.AST) -> str:
        """Return the ONNX value of a part of the text."""
        number = self.number(part)
        if number is not None:
            return self.call.const(number, "bool" if isinstance(part, ast.Compare) else None)
        if isinstance(part, ast.Name):
            return self.arrays[part.id]
        if isinstance(part, ast.Call):
            assert isinstance(part.func, ast.Name)
            return FUNCTIONS[part.func.id](self.call, *map(self.value, part.args))
        if isinstance(part, ast.BinOp):
            return OPERATORS[type(part.op)](self.call, *map(self.value, (part.left, part.right)))
        if isinstance(part, ast.Compare):
            return self.comparison(part)
        assert isinstance(part, ast.UnaryOp)
        return OPERATORS[type(part.op)](self.call, self.value(part.operand))

    def number(self, part: ast.AST) -> float | None:
        """Return the value of a part that no array is in."""
        names = [n.id for n in ast.walk(part) if isinstance(n, ast.Name)]
        if any(name not in self.numbers for name in names):
            return None
        assert isinstance(part, ast.expr)
        code = compile(ast.Expression(part), "<part of a formula>", "eval")
        return float(eval(code, {"__builtins__": {}}, dict(self.numbers)))

    def comparison(self, part: ast.Compare) -> str:
        """Compare two values; integers are compared with a fraction as float64 numbers."""
        sides = [part.left, part.comparators[0]]
        numbers = [self.number(side) for side in sides]
        call, values = self.call, [self.value(side) for side in sides]
        if not is_float(call.dtype) and any(n is not None and n % 1 for n in numbers):
            values = [
                call.const(n, "float64") if n is not None else call.cast(v, call.dtype, "float64")
                for n, v in zip(numbers, values, strict=True)
            ]
        return OPERATORS[type(part.ops[0])](call, *values)


def written(formula: Formula) -> Converter:
    """Return the converter that writes a formula's text."""

    def convert(call: Call) -> str:
        arrays = dict(zip(formula.arrays, call.x, strict=True))
        value = Walk(call, formula, arrays).value(formula.tree)
        if isinstance(formula.tree, ast.Compare):
            return call.cast(value, "bool", call.out.dtype)
        return value

    return convert


def of_floats(formula: Formula) -> Converter:
    """Return the converter of a function that leaves integers as they are."""
    convert = written(formula)
    return lambda call: convert(call) if is_float(call.dtype) else call.op("Identity", call.x[0])


# -- ONNX's own operators --------------------------------------------------------------------------


def relu(call: Call) -> str:
    return call.op("Relu", call.x[0])


OWN: Mapping[str, Converter] = {  # in place of formulas of several nodes
    "relu": relu,
    "softsign": lambda call: call.op("Softsign", call.x[0]),
    "hard_sigmoid": lambda call: call.op(
        "HardSigmoid", call.x[0], alpha=call.attrs["alpha"], beta=call.attrs["beta"]
    ),
    **{name: of_floats(FORMULAS[name]) for name in STEPS},
}


def activation(call: Call) -> str:
    kind = call.attrs["act_type"]
    value = (OWN.get(kind) or written(ACTIVATIONS[kind][0]))(call)
    assert isinstance(value, str)
    return value


def prelu(call: Call) -> str:
    gamma = call.dims(1)
    slope = call.x[1]
    if call.rank > 2 and gamma != (1,):
        slope = call.reshape(slope, (*gamma, *[1] * (call.rank - 2)))
    return call.op("PRelu", call.x[0], slope)


LEAKY: Mapping[str, Callable[[Call], str]] = {
    "leaky": lambda call: call.op("LeakyRelu", call.x[0], alpha=call.attrs["slope"]),
    "elu": lambda call: call.op("Elu", call.x[0], alpha=call.attrs["slope"]),
    "selu": lambda call: call.op("Selu", call.x[0]),
    "gelu": lambda call: call.op("Gelu", call.x[0]),
    "prelu": prelu,
}


def added(call: Call) -> str:
    """Add from left to right; ONNX's Sum takes floats only."""
    if len(call.x) == 1:
        return call.op("Identity", call.x[0])
    if is_float(call.dtype):
        return call.op("Sum", *call.x)
    total = call.x[0]
    for term in call.x[1:]:
        total = call.op("Add", total, term)
    return total


CONVERTERS: Table = {
    **{name: written(formula) for name, formula in FORMULAS.items()},
    **OWN,
    "Activation": activation,
    "LeakyReLU": lambda call: LEAKY[call.attrs["act_type"]](call),
    "add_n": added,
    "Cast": lambda call: call.op("Cast", call.x[0], to=NUMBERS[call.attrs["dtype"]]),
}
