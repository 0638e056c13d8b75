"""Converters of element-wise operators: functions, arithmetic, comparison, logic, activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from symgraph.core.types import is_float
from symgraph.interchange.onnx.node import OnnxNode
from symgraph.interchange.onnx.reader import dtype_of
from symgraph.interchange.onnx.registry import converts
from symgraph.interchange.values import Known, Traced, Value, pair, spread

UNARY = {
    "Abs": "abs",
    "Acos": "arccos",
    "Acosh": "arccosh",
    "Asin": "arcsin",
    "Asinh": "arcsinh",
    "Atan": "arctan",
    "Atanh": "arctanh",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "Log": "log",
    "Neg": "negative",
    "Reciprocal": "reciprocal",
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Softsign": "softsign",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}


@converts(*UNARY)
def unary(node: OnnxNode) -> Traced:
    return node.x.call(UNARY[node.op])


@converts("Identity")
def identity(node: OnnxNode) -> Value:
    value = node.value(0)
    return node.x if value is None else value


@converts("Round")
def rounding(node: OnnxNode) -> Traced:
    return round_half_even(node.x) if is_float(node.x.dtype) else node.x


def round_half_even(x: Traced) -> Traced:
    """Round halves to the even number: twice the rounded half where the fraction is one half."""
    fraction = (x - x.call("trunc")).call("abs")
    even = (x * 0.5).call("round") * 2.0
    return choose(fraction.call("_equal_scalar", scalar=0.5), even, x.call("round"))


# -- activations -----------------------------------------------------------------------------------


def softplus(x: Traced) -> Traced:
    return x.call("Activation", act_type="softrelu")


def elu(x: Traced, alpha: float) -> Traced:
    return x.call("LeakyReLU", act_type="elu", slope=alpha)


def tanh_gelu(x: Traced) -> Traced:
    cube = x * x * x
    inner = (x + cube * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (inner.call("tanh") + 1.0)


def hard_swish(node: OnnxNode, x: Traced) -> Traced:
    return x * x.call("hard_sigmoid", alpha=1 / 6, beta=0.5)


def gelu(node: OnnxNode, x: Traced) -> Traced:
    if node.attr("approximate", "none") == "tanh":
        return tanh_gelu(x)
    return x.call("LeakyReLU", act_type="gelu")


def selu(node: OnnxNode, x: Traced) -> Traced:
    alpha: float = node.attr("alpha", 1.67326319217681884765625)
    gamma: float = node.attr("gamma", 1.05070102214813232421875)
    return elu(x, alpha) * gamma


def celu(node: OnnxNode, x: Traced) -> Traced:
    alpha: float = node.attr("alpha", 1.0)
    return elu(x * (1 / alpha), 1.0) * alpha


def shrink(node: OnnxNode, x: Traced) -> Traced:
    edge, bias = node.attr("lambd", 0.5), node.attr("bias", 0.0)
    above = x.call("_greater_scalar", scalar=edge)
    below = x.call("_lesser_scalar", scalar=-edge)
    zeros = x.call("zeros_like")
    if not is_float(x.dtype):
        node.require(float(bias).is_integer(), f"has bias={bias} for {x.dtype}")
    return choose(above, x - bias, choose(below, x + bias, zeros))


def hard_sigmoid(node: OnnxNode, x: Traced) -> Traced:
    return x.call("hard_sigmoid", alpha=node.attr("alpha", 0.2), beta=node.attr("beta", 0.5))


ACTIVATIONS: dict[str, Callable[[OnnxNode, Traced], Traced]] = {
    "Softplus": lambda node, x: softplus(x),
    "Elu": lambda node, x: elu(x, node.attr("alpha", 1.0)),
    "Selu": selu,
    "Celu": celu,
    "Gelu": gelu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "LeakyRelu": lambda node, x: x.call(
        "LeakyReLU", act_type="leaky", slope=node.attr("alpha", 0.01)
    ),
    "Mish": lambda node, x: x * softplus(x).call("tanh"),
    "Shrink": shrink,
    "Swish": lambda node, x: x * (x * node.attr("alpha", 1.0)).call("sigmoid"),
    "ThresholdedRelu": lambda node, x: (
        x * x.call("_greater_scalar", scalar=node.attr("alpha", 1.0))
    ),
}


@converts(*ACTIVATIONS)
def activation(node: OnnxNode) -> Traced:
    return ACTIVATIONS[node.op](node, node.x)


@converts("PRelu")
def prelu(node: OnnxNode) -> Traced:
    x, slope = node.x, node.tensor(1, learned=True)
    return x.call("relu") - slope * (-x).call("relu")


# -- arithmetic ------------------------------------------------------------------------------------

ARITHMETIC = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}


def with_number(node: OnnxNode, word: str) -> Traced | None:
    """Return an operation with a number; None if no input is one that keeps the shape."""
    for place, other in ((1, 0), (0, 1)):
        number, value = node.number(place), node.value(other)
        known = node.value(place)
        if number is None or not isinstance(value, Traced) or not isinstance(known, Known):
            continue
        whole = is_float(value.dtype) or (number.is_integer() and abs(number) < 2**53)
        if len(known.shape) <= value.rank and whole and np.isfinite(number):
            if place == 1 or word in ("add", "mul"):
                return pair(word, value, number)
            return value.call({"sub": "_rminus_scalar", "div": "_rdiv_scalar"}[word], scalar=number)
    return None


@converts(*ARITHMETIC)
def arithmetic(node: OnnxNode) -> Traced:
    word = ARITHMETIC[node.op]
    first = node.value(0)
    whole = first is not None and not is_float(first.dtype)
    if word == "div" and whole:
        return whole_numbers(node, lambda x, y: pair("div", x, y).call("trunc"))
    made = with_number(node, word)
    return made if made is not None else pair(word, node.tensor(0), node.tensor(1))


def whole_numbers(node: OnnxNode, function: Callable[[Traced, Traced], Traced]) -> Traced:
    """Compute with integers of at most 32 bits in float64, which holds them exactly."""
    x, y = node.tensor(0), node.tensor(1)
    node.require(x.dtype != "int64", "is here for integers of at most 32 bits, not int64")
    return function(x.cast("float64"), y.cast("float64")).cast(x.dtype)


@converts("Mod")
def modulo(node: OnnxNode) -> Traced:
    first = node.value(0)
    if node.attr("fmod", 0):
        return numbers_of(node, lambda x, y: x - pair("div", x, y).call("trunc") * y)
    if first is not None and is_float(first.dtype):
        return pair("mod", node.tensor(0), node.tensor(1))
    return whole_numbers(node, lambda x, y: pair("mod", x, y))


def numbers_of(node: OnnxNode, function: Callable[[Traced, Traced], Traced]) -> Traced:
    """Compute with floats as they are, with integers in float64."""
    first = node.value(0)
    if first is not None and is_float(first.dtype):
        return function(node.tensor(0), node.tensor(1))
    return whole_numbers(node, function)


@converts("Pow")
def power(node: OnnxNode) -> Traced:
    x, number = node.x, node.number(1)
    exponent = node.value(1)
    if number is not None and is_float(x.dtype) and len(exponent.shape if exponent else ()) == 0:
        return x.call("_power_scalar", scalar=number)
    y = node.tensor(1)
    if is_float(x.dtype):
        return pair("power", x, y.cast(x.dtype))
    raised = pair("power", x.cast("float64"), y.cast("float64"))
    return raised.call("trunc").cast(x.dtype)


@converts("Max", "Min")
def extreme(node: OnnxNode) -> Traced:
    word = {"Max": "maximum", "Min": "minimum"}[node.op]
    return reduce(lambda x, y: pair(word, x, y), all_inputs(node))


@converts("Sum", "Mean")
def total(node: OnnxNode) -> Traced:
    values = all_inputs(node)
    same = all(v.types[0].shape == values[0].types[0].shape for v in values)
    if len(values) > 2 and same:
        added = values[0].call("add_n", *values[1:])
    else:
        added = reduce(lambda x, y: x + y, values)
    return added * (1 / len(values)) if node.op == "Mean" else added


def all_inputs(node: OnnxNode) -> Sequence[Traced]:
    return [node.tensor(i) for i in range(len(node.inputs))]


@converts("Clip", first=11)
def clip(node: OnnxNode) -> Traced:
    x = node.x
    for place, word in ((1, "maximum"), (2, "minimum")):
        number, given = node.number(place), node.optional(place)
        if number is not None and np.isfinite(number):
            x = pair(word, x, number)
        elif given is not None and number is None:
            x = pair(word, x, given)
    return x


@converts("Clip", last=10)
def clip_by_attributes(node: OnnxNode) -> Traced:
    largest = float(np.finfo(np.float32).max)
    low, high = node.attr("min", -largest), node.attr("max", largest)
    return node.x.call("clip", a_min=low, a_max=high)


# -- comparison and logic --------------------------------------------------------------------------

COMPARISONS = {
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "lesser",
    "LessOrEqual": "lesser_equal",
}


@converts(*COMPARISONS)
def comparison(node: OnnxNode) -> Traced:
    x, number = node.value(0), node.number(1)
    known = node.value(1)
    word = COMPARISONS[node.op]
    rank = len(known.shape) if known is not None and number is not None else None
    if isinstance(x, Traced) and x.dtype != "bool" and rank is not None and rank <= x.rank:
        return x.call(f"_{word}_scalar", scalar=number).cast("bool")
    return pair(word, node.tensor(0), node.tensor(1)).cast("bool")


@converts("And", "Or", "Xor")
def logic(node: OnnxNode) -> Traced:
    x, y = node.tensor(0), node.tensor(1)
    if node.op == "Xor":
        return pair("not_equal", x, y)
    word = {"And": "mul", "Or": "maximum"}[node.op]
    return pair(word, x.cast("uint8"), y.cast("uint8")).cast("bool")


@converts("Not", first=1)
def negation(node: OnnxNode) -> Traced:
    return node.x.cast("uint8").call("logical_not").cast("bool")


@converts("IsNaN")
def is_nan(node: OnnxNode) -> Traced:
    return pair("not_equal", node.x, node.x).cast("bool")


@converts("IsInf")
def is_infinite(node: OnnxNode) -> Traced:
    x = node.x
    signs = [
        sign for key, sign in (("detect_positive", 1), ("detect_negative", -1)) if node.attr(key, 1)
    ]
    found = [x.call("_equal_scalar", scalar=sign * math.inf) for sign in signs]
    if not found:
        return x.call("zeros_like").cast("bool")
    return reduce(lambda a, b: pair("maximum", a, b), found).cast("bool")


def choose(condition: Traced, x: Traced, y: Traced) -> Traced:
    """Return x where the condition is not 0, else y; all are repeated to one shape."""
    values = [condition, x, y]
    dims = tuple(
        np.broadcast_shapes(*[v.types[i].shape for v in values if not v.scalar]) for i in range(2)
    )
    whole = [spread(v, (dims[0], dims[1])) for v in values]
    return whole[0].call("where", *whole[1:])


@converts("Where")
def where(node: OnnxNode) -> Traced:
    return choose(node.tensor(0), node.tensor(1), node.tensor(2))


# -- dtypes ----------------------------------------------------------------------------------------


@converts("Cast")
def cast(node: OnnxNode) -> Traced:
    return node.x.cast(dtype_of(node.attr("to", 1), "the result"))


@converts("CastLike")
def cast_like(node: OnnxNode) -> Value:
    x, like = node.value(0), node.value(1)
    dtype = "float32" if like is None else like.dtype
    if isinstance(x, Known) and not x.learned:
        arrays = [a.astype(dtype) for a in x.arrays]
        return Known((arrays[0], arrays[1]), f"{node.network.stem}_cast")
    return node.x.cast(dtype)


@converts("Dropout", known=(1, 2))
def dropout(node: OnnxNode) -> list[Any]:
    """In training elements are dropped, whatever the file says; else the data passes."""
    x = node.x
    ratio = node.attr("ratio", 0.5) if node.opset < 12 else node.known(1)
    share = 0.5 if ratio is None else float(np.asarray(ratio).reshape(-1)[0])
    mode = node.known(2)
    always = mode is not None and bool(np.asarray(mode).reshape(-1)[0]) and share > 0
    node.require(not always, "drops elements in evaluation too (training_mode)")
    y = x.call("Dropout", p=share) if share else x
    if len(node.outputs) < 2 or not node.outputs[1]:
        return [y]
    return [y, x.call("ones_like").cast("bool")]
