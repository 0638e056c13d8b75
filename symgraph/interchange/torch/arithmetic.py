"""Converters of arithmetic: element by element, comparisons, choices, activations, reductions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from symgraph.frontend import sym
from symgraph.frontend.symbol import Symbol
from symgraph.interchange.torch.call import (
    CONVERTERS,
    Call,
    Value,
    cast,
    converts,
    promoted,
    same_shape,
    stored,
)
from symgraph.interchange.torch.program import Free, Meta, Ref

# -- one tensor ------------------------------------------------------------------------------------

EQUAL_NAMES = """relu sigmoid tanh exp log sqrt rsqrt abs sin cos tan sinh cosh erf floor ceil trunc
sign square reciprocal log1p expm1 log2 log10"""
INVERSE = ("sin", "cos", "tan", "sinh", "cosh", "tanh")
UNARY = {name: name for name in re.findall(r"\w+", EQUAL_NAMES)}
UNARY |= {f"a{name}": f"arc{name}" for name in INVERSE} | {"neg": "negative", "fix": "trunc"}


def unary(operator: str, c: Call) -> Symbol:
    made: Symbol = getattr(sym, operator)(c.x(dtype=c.out.dtype))
    return made


CONVERTERS.update({name: partial(unary, operator) for name, operator in UNARY.items()})


@converts("alias clone contiguous detach_copy lift_fresh_copy lift_fresh positive view_copy")
def same(c: Call) -> Value:
    return c.value("self")


@converts("detach")
def detach(c: Call) -> Symbol:
    return sym.BlockGrad(c.x())


@converts("to _to_copy type_as float double half long int")
def to(c: Call) -> Any:
    value = c.value("self")
    return value if value.meta.dtype == c.out.dtype else c.symbol(value, c.out.dtype)


@converts("logical_not bitwise_not")
def opposite(c: Call) -> Symbol:
    if c.node.target.startswith("aten.bitwise") and c.meta("self").dtype != "bool":
        c.fail("works on bools alone")
    made: Symbol = c.x(dtype="bool") == 0
    return made


# -- activations -----------------------------------------------------------------------------------


def floats(c: Call) -> Symbol:
    return c.x(dtype=c.out.dtype)


@converts("gelu")
def gelu(c: Call) -> Symbol:
    x = floats(c)
    if c.get("approximate", "none") == "none":
        return sym.LeakyReLU(x, act_type="gelu")
    inner = (x + x * sym.square(x) * 0.044715) * math.sqrt(2 / math.pi)
    return x * (sym.tanh(inner) + 1.0) * 0.5


@converts("silu")
def silu(c: Call) -> Symbol:
    x = floats(c)
    return x * sym.sigmoid(x)


@converts("mish")
def mish(c: Call) -> Symbol:
    x = floats(c)
    return x * sym.tanh(sym.Activation(x, act_type="softrelu"))


@converts("log_sigmoid")
def log_sigmoid(c: Call) -> Symbol:
    return -sym.Activation(-floats(c), act_type="softrelu")


@converts("softplus")
def softplus(c: Call) -> Symbol:
    """Above the threshold PyTorch returns x itself, which differs by less than rounding."""
    beta = c.number("beta", 1)
    return sym.Activation(floats(c) * beta, act_type="softrelu") * (1 / beta)


@converts("softsign")
def softsign(c: Call) -> Symbol:
    return sym.softsign(floats(c))


@converts("hardsigmoid")
def hardsigmoid(c: Call) -> Symbol:
    return sym.hard_sigmoid(floats(c), alpha=1 / 6, beta=0.5)


@converts("hardswish")
def hardswish(c: Call) -> Symbol:
    x = floats(c)
    return x * sym.hard_sigmoid(x, alpha=1 / 6, beta=0.5)


@converts("leaky_relu")
def leaky_relu(c: Call) -> Symbol:
    return sym.LeakyReLU(floats(c), act_type="leaky", slope=c.number("negative_slope", 0.01))


@converts("elu")
def elu(c: Call) -> Symbol:
    if c.number("input_scale", 1) != 1:
        c.fail("input_scale is not supported")
    made = sym.LeakyReLU(floats(c), act_type="elu", slope=c.number("alpha", 1))
    scale = c.number("scale", 1)
    return made if scale == 1 else made * scale


@converts("selu")
def selu(c: Call) -> Symbol:
    return sym.LeakyReLU(floats(c), act_type="selu")


@converts("prelu")
def prelu(c: Call) -> Symbol:
    return sym.LeakyReLU(c.x(), c.x("weight"), act_type="prelu")


@converts("glu")
def glu(c: Call) -> Symbol:
    axis = c.axis("dim", -1)
    x, gate = sym.SliceChannel(c.x(), num_outputs=2, axis=axis)
    return x * sym.sigmoid(gate)


@converts("hardtanh relu6")
def hardtanh(c: Call) -> Symbol:
    """Limit to a range; unlike clamp, the gradient passes inside it alone, without its ends."""
    low, high = (0.0, 6.0) if "relu6" in c.node.target else (-1.0, 1.0)
    low, high = c.number("min_val", low), c.number("max_val", high)
    x = floats(c)
    limited = sym.clip(sym.BlockGrad(x), a_min=low, a_max=high)
    return sym.where((x > low) * (x < high), x, limited)


@converts("clamp clip clamp_min clamp_max")
def clamp(c: Call) -> Symbol:
    x = floats(c)
    for name, operator in (("min", "maximum"), ("max", "minimum")):
        bound = c.get(name)
        if isinstance(bound, Ref):
            x = getattr(sym, f"broadcast_{operator}")(x, c.x(bound, c.out.dtype))
        elif bound is not None:
            x = getattr(sym, operator)(x, float(bound))
    return x


# -- two tensors, or a tensor and a number ---------------------------------------------------------

ARITHMETIC: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "add": ("broadcast_add", lambda x, y: x + y),
    "sub": ("broadcast_sub", lambda x, y: x - y),
    "mul": ("broadcast_mul", lambda x, y: x * y),
    "div": ("broadcast_div", lambda x, y: x / y),
    "true_divide": ("broadcast_div", lambda x, y: x / y),
    "maximum": ("broadcast_maximum", sym.maximum),
    "minimum": ("broadcast_minimum", sym.minimum),
    "remainder": ("broadcast_mod", sym.modulo),
    "pow": ("broadcast_power", sym.power),
    "max.other": ("broadcast_maximum", sym.maximum),
    "min.other": ("broadcast_minimum", sym.minimum),
}


def operands(c: Call, dtype: str, second: str = "other") -> tuple[Any, ...]:
    """Return both arguments, numbers or symbols of one type, equally shaped or to broadcast."""
    return tuple([c.x(n, dtype) if c.has(n) else c.number(n) for n in ("self", second)])


def combined(broadcast: str, plain: Callable[[Any, Any], Any], x: Any, y: Any, equal: bool) -> Any:
    """Combine two operands: one may be a number, and tensors may have different shapes."""
    if equal or not (isinstance(x, Symbol) and isinstance(y, Symbol)):
        return plain(x, y)
    return getattr(sym, broadcast)(x, y)


def equal_shapes(c: Call, second: str = "other") -> bool:
    if not (c.has("self") and c.has(second)):
        return False
    return same_shape(c.meta("self").shape, c.meta(second).shape)


def arithmetic(name: str, c: Call) -> Symbol:
    if c.get("rounding_mode") is not None:
        return whole_quotient(c, str(c.get("rounding_mode")))
    broadcast, plain = ARITHMETIC[name]
    second = "exponent" if name == "pow" else "other"
    x, y = operands(c, c.out.dtype, second=second)
    alpha = c.number("alpha", 1)
    if alpha != 1:
        y = y * alpha
    if name == "pow" and not isinstance(y, Symbol) and y in (0.5, 2):
        return sym.sqrt(x) if y == 0.5 else sym.square(x)
    made: Symbol = combined(broadcast, plain, x, y, equal_shapes(c, second))
    if plain in (sym.maximum, sym.minimum) and c.out.dtype.startswith("float"):
        other = combined(broadcast, plain, y, x, equal_shapes(c, second))
        made = made * 0.5 + other * 0.5  # the first of equal ones gets the gradient
    return made


CONVERTERS.update({name: partial(arithmetic, name) for name in ARITHMETIC})


def quotient(c: Call) -> tuple[Any, Any, Symbol, str]:
    """Return both operands, their quotient, and the type in which it is computed.

    That of whole numbers is float64: they are exact up to 2**53.
    """
    dtype = c.out.dtype if c.out.dtype.startswith("float") else "float64"
    x, y = operands(c, dtype)
    return x, y, combined("broadcast_div", lambda x, y: x / y, x, y, equal_shapes(c)), dtype


def whole_quotient(c: Call, rounding: str) -> Symbol:
    """Return a quotient that is rounded down ("floor"), or else towards 0."""
    _, _, made, dtype = quotient(c)
    made = sym.floor(made) if rounding == "floor" else sym.trunc(made)
    return cast(made, dtype, c.out.dtype)


@converts("floor_divide")
def floor_divide(c: Call) -> Symbol:
    return whole_quotient(c, "floor")


@converts("fmod")
def fmod(c: Call) -> Symbol:
    """Return the remainder of a quotient that is rounded towards 0."""
    x, y, made, dtype = quotient(c)
    whole = sym.trunc(made)
    rest = x - combined("broadcast_mul", lambda x, y: x * y, whole, y, equal_shapes(c))
    return cast(rest, dtype, c.out.dtype)


@converts("rsub")
def rsub(c: Call) -> Symbol:
    x, y = operands(c, c.out.dtype)
    made: Symbol = combined("broadcast_sub", lambda x, y: x - y, y, x * c.number("alpha", 1), False)
    return made


COMPARISONS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "eq": ("broadcast_equal", lambda x, y: x == y),
    "ne": ("broadcast_not_equal", lambda x, y: x != y),
    "gt": ("broadcast_greater", lambda x, y: x > y),
    "ge": ("broadcast_greater_equal", lambda x, y: x >= y),
    "lt": ("broadcast_lesser", lambda x, y: x < y),
    "le": ("broadcast_lesser_equal", lambda x, y: x <= y),
}


def comparison(name: str, c: Call) -> Symbol:
    dtype = promoted(c, "self", "other")
    x, y = operands(c, dtype)
    return sym.Cast(combined(*COMPARISONS[name], x, y, equal_shapes(c)), dtype=stored("bool"))


CONVERTERS.update({name: partial(comparison, name) for name in COMPARISONS})


LOGICAL = {"and": "mul", "or": "maximum", "xor": "not_equal"}


def logical(word: str, c: Call) -> Symbol:
    if c.node.target.startswith("aten.bitwise") and c.out.dtype != "bool":
        c.fail("works on bools alone")
    made: Symbol = getattr(sym, f"broadcast_{LOGICAL[word]}")(
        c.x("self", "bool"), c.x("other", "bool")
    )
    return made


CONVERTERS.update(
    {
        f"{kind}_{word}": partial(logical, word)
        for kind in ("logical", "bitwise")
        for word in LOGICAL
    }
)
CONVERTERS.update({f"__{word}__": partial(logical, word) for word in LOGICAL})


def chosen(c: Call, condition: str, parts: tuple[str, str]) -> Symbol:
    """Choose between two arguments, each a tensor or a number."""
    out = c.out
    given: dict[str, Any] = {}
    for name in parts:
        value = c.value(name) if c.has(name) else None
        constant = value.array if value is not None else np.array(c.number(name))
        equal = constant is not None and constant.size and (constant == constant.flat[0]).all()
        given[name] = float(constant.flat[0]) if constant is not None and equal else value
    whole = [n for n in (*parts, condition) if isinstance(given.get(n, c.get(n)), (Value, Ref))]
    whole = [n for n in whole if same_shape(c.meta(n).shape, out.shape)]
    like = (
        sym.zeros_like(c.x(whole[0], out.dtype)) if whole else c.zeros(out.shape, stored(out.dtype))
    )
    made = [
        like + value
        if isinstance(value, float)
        else c.spread(c.x(name, out.dtype), value.meta.shape, out.shape, out.dtype, like)
        for name, value in given.items()
    ]
    choose = c.x(condition, "bool")
    choose = c.spread(choose, c.meta(condition).shape, out.shape, "bool", like)
    return sym.where(choose, *made)


@converts("where")
def where(c: Call) -> Symbol:
    return chosen(c, "condition", ("self", "other"))


@converts("masked_fill")
def masked_fill(c: Call) -> Symbol:
    return chosen(c, "mask", ("value", "self"))


@converts("addcmul addcdiv")
def fused(c: Call) -> Symbol:
    word = "mul" if "addcmul" in c.node.target else "div"
    x, y = c.x("tensor1"), c.x("tensor2")
    product = getattr(sym, f"broadcast_{word}")(x, y) * c.number("value", 1)
    return sym.broadcast_add(c.x(), product)


# -- reductions ------------------------------------------------------------------------------------


def axes_of(c: Call) -> dict[str, Any]:
    """Return axis and keepdims of a reduction; all axes unless some are named."""
    axes = c.get("dim")
    axes = [axes] if isinstance(axes, int) else axes
    found: dict[str, Any] = {"keepdims": bool(c.get("keepdim", False))}
    if axes:
        rank = max(1, len(c.meta("self").shape))
        found["axis"] = tuple(int(a) % rank for a in axes)
    return found


def reduction(operator: str, c: Call) -> Symbol:
    made: Symbol = getattr(sym, operator)(c.x(dtype=c.out.dtype), **axes_of(c))
    return made


CONVERTERS.update({name: partial(reduction, name) for name in ("sum", "mean", "prod")})


@converts("amax amin")
def largest(c: Call) -> Symbol:
    """Return the largest or smallest element over axes; equal ones share its gradient."""
    x, options = c.x(), axes_of(c)
    operator = sym.max if "max" in c.node.target else sym.min
    top = operator(x, **options | {"keepdims": True})
    made = c.reshape(top, c.out.shape)
    if not c.out.dtype.startswith("float"):
        return made
    count = sym.sum(sym.broadcast_equal(x, top), **options)
    most = float(np.finfo(c.out.dtype).max)
    finite = sym.clip(made, a_min=-most, a_max=most)
    shared: Symbol = (finite - sym.BlockGrad(finite)) / sym.BlockGrad(count)
    return sym.BlockGrad(made) + shared


@converts("any all")
def any_all(c: Call) -> Symbol:
    operator = sym.max if ".any" in c.node.target else sym.min
    x = cast(c.x(dtype="bool"), "int32", "float32")
    return sym.Cast(operator(x, **axes_of(c)), dtype=stored("bool"))


@converts("argmax argmin")
def argmax(c: Call) -> Symbol:
    if c.get("dim") is None:
        c.fail("dim is missing, and only the index along one axis is supported")
    operator = getattr(sym, c.node.target.split(".")[1])
    found = operator(c.x(), axis=c.axis("dim"), keepdims=bool(c.get("keepdim", False)))
    return sym.Cast(found, dtype=c.out.dtype)


@converts("max min")
def extreme(c: Call) -> Any:
    """Along an axis, the gradient goes to the element that the index tells, and to no equal one."""
    word = c.node.target.split(".")[1]
    if c.overload == "default":
        return largest(c)
    options: dict[str, Any] = {"axis": c.axis("dim"), "keepdims": bool(c.get("keepdim", False))}
    at = getattr(sym, f"arg{word}")(c.x(), **options)
    return [sym.pick(c.x(), at, **options), sym.Cast(at, dtype="int64")]


@converts("var std")
def variance(c: Call) -> Symbol:
    x, options = c.x(), axes_of(c)
    axes = options.get("axis", tuple(range(len(c.meta("self").shape))))
    count = math.prod(c.meta("self").shape[a] for a in axes)
    given = c.get("correction", 1 if c.get("unbiased", True) else 0)
    spread = sym.broadcast_sub(x, sym.mean(x, axis=axes, keepdims=True))
    options["axis"] = axes
    made = sym.mean(sym.square(spread), **options)
    if given and any(isinstance(c.meta("self").shape[a], Free) for a in axes):
        freedom = sym.maximum(sym.sum(sym.ones_like(x), **options) - given, 0)
        made = sym.sum(sym.square(spread), **options) / freedom
    else:
        made = made * (count / max(count - given, 1e-30))
    return root(made) if ".std" in c.node.target else made


def root(x: Symbol) -> Symbol:
    """Return the square root, whose gradient at 0 is 0."""
    zero: Symbol = x == 0
    made: Symbol = sym.sqrt(x + zero) - zero
    return made


@converts("var_mean std_mean")
def var_mean(c: Call) -> Any:
    return [variance(c), sym.mean(c.x(), **axes_of(c))]


@converts("linalg_vector_norm norm")
def norm(c: Call) -> Symbol:
    order = c.number("ord", c.number("p", 2) if "linalg" not in c.node.target else 2)
    if order == 1:
        return sym.sum(sym.abs(c.x()), **axes_of(c))
    if order != 2:
        c.fail("only the norms of order 1 and 2 are supported")
    return root(sym.sum(sym.square(c.x()), **axes_of(c)))


@converts("logsumexp")
def logsumexp(c: Call) -> Symbol:
    x, options = c.x(), axes_of(c)
    top = sym.BlockGrad(sym.max(x, **{**options, "keepdims": True}))
    total = sym.log(sym.sum(sym.exp(sym.broadcast_sub(x, top)), **options))
    return total + c.reshape(top, c.out.shape)


@converts("softmax _softmax _safe_softmax log_softmax _log_softmax")
def softmax(c: Call) -> Symbol:
    operator = sym.log_softmax if "log" in c.node.target else sym.softmax
    made: Symbol = operator(c.x(dtype=c.out.dtype), axis=c.axis("dim"))
    return made


# -- constants -------------------------------------------------------------------------------------


def filled(c: Call, number: float) -> Any:
    """Return a constant of one number; as a symbol if its length is the batch's."""
    out: Meta = c.out
    if all(type(d) is int for d in out.shape):
        c.bound(*out.shape)
        return Value(out, array=np.full(out.shape, number, out.dtype))
    zeros = c.zeros(out.shape, stored(out.dtype))
    return Value(out, zeros + number) if number else Value(out, zeros, zero=True)


@converts("zeros new_zeros zeros_like empty new_empty empty_like empty_permuted")
def zeros(c: Call) -> Any:
    return filled(c, 0)


@converts("ones new_ones ones_like")
def ones(c: Call) -> Any:
    return filled(c, 1)


@converts("full new_full full_like fill")
def full(c: Call) -> Any:
    return filled(c, c.number("value" if ".fill" in c.node.target else "fill_value"))


@converts("scalar_tensor")
def scalar_tensor(c: Call) -> Any:
    return filled(c, c.number("s"))


@converts("arange")
def arange(c: Call) -> Any:
    (length,) = c.out.shape
    if type(length) is not int:
        c.fail("its length depends on the batch: keep that dimension fixed in the export")
    c.bound(length)
    start, step = c.number("start", 0), c.number("step", 1)
    return Value(c.out, array=(start + step * np.arange(length)).astype(c.out.dtype))


@converts("linspace")
def linspace(c: Call) -> Any:
    c.bound(*c.out.shape)
    row = np.linspace(c.number("start"), c.number("end"), c.out.shape[0])
    return Value(c.out, array=row.astype(c.out.dtype))


@converts("eye")
def eye(c: Call) -> Any:
    c.bound(*c.out.shape)
    return Value(c.out, array=np.eye(c.out.shape[0], c.out.shape[-1], dtype=c.out.dtype))


@converts("tril triu")
def triangle(c: Call) -> Symbol:
    rows, columns = c.out.shape[-2:]
    keep = getattr(np, c.node.target.split(".")[1].removesuffix("_"))
    c.bound(rows, columns)
    mask = keep(np.ones((rows, columns), "int32"), c.integer("diagonal", 0))
    x = c.x()
    kept = c.symbol(Value(Meta(mask.shape, "int32"), array=mask))
    kept = c.spread(kept, mask.shape, c.out.shape, "int32", x)
    return sym.where(kept, x, sym.zeros_like(x))


@converts("cumsum")
def cumsum(c: Call) -> Symbol:
    """Sum by a product with a triangle of ones."""
    axis, rank = c.axis("dim"), len(c.out.shape)
    length = c.meta("self").shape[axis]
    c.bound(length, length)
    dtype = "float32" if c.out.dtype in ("float16", "float32") else "float64"
    ones_ = np.triu(np.ones((length, length), dtype))
    order = [a for a in range(rank) if a != axis]
    x = c.x(dtype=dtype)
    x = sym.transpose(x, axes=(*order, axis)) if rank > 1 else x
    rows = sym.Reshape(x, shape=(-1, length))
    total = sym.dot(rows, c.symbol(Value(Meta(ones_.shape, dtype), array=ones_)))
    turned = c.reshape(total, (*(c.out.shape[a] for a in order), length))
    order.append(axis)
    back = sym.transpose(turned, axes=tuple(np.argsort(order).tolist())) if rank > 1 else turned
    return cast(back, dtype, c.out.dtype)
