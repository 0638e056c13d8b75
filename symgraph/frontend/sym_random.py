"""The namespace `sg.sym.random`: random values, drawn anew in every step (`mx.sym.random`).

Parameters are numbers, or symbols: then `shape` is drawn for each of their elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from symgraph.core.types import Shape
from symgraph.frontend.operator_calls import call
from symgraph.frontend.symbol import Symbol


def uniform(
    low: Any = 0.0,
    high: Any = 1.0,
    shape: int | Shape | None = None,
    dtype: Any = None,
    ctx: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    **attrs: str,
) -> Symbol:
    """Draw from the uniform distribution over [low, high) (`mx.sym.random.uniform`).

    Args:
        low: lower bound, a number, or a symbol.
        high: upper bound, a number, or a symbol as low is.
        shape: shape of the result, with 0 for the batch axis, and None: (1,); of what is drawn for
            each element of symbols.
        dtype: dtype of the result; None: float32, or that of symbols.
        ctx: ignored.
        name: the node's name.
        attr: attributes of the node.
        **attrs: further attributes, spelt `__key__`.
    """
    numbers = {"low": low, "high": high}
    return _draw("uniform", numbers, shape, dtype, name=name, attr=attr, **attrs)


def normal(
    loc: Any = 0.0,
    scale: Any = 1.0,
    shape: int | Shape | None = None,
    dtype: Any = None,
    ctx: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    **attrs: str,
) -> Symbol:
    """Draw from a normal distribution (`mx.sym.random.normal`).

    Args:
        loc: mean, a number, or a symbol.
        scale: standard deviation, a number, or a symbol as loc is.
        shape: shape of the result, with 0 for the batch axis, and None: (1,); of what is drawn for
            each element of symbols.
        dtype: dtype of the result; None: float32, or that of symbols.
        ctx: ignored.
        name: the node's name.
        attr: attributes of the node.
        **attrs: further attributes, spelt `__key__`.
    """
    numbers = {"loc": loc, "scale": scale}
    return _draw("normal", numbers, shape, dtype, name=name, attr=attr, **attrs)


def randn(
    *shape: int, loc: float = 0.0, scale: float = 1.0, dtype: Any = "float32", **kwargs: Any
) -> Symbol:
    """Call `normal` with the shape as positional arguments (`mx.sym.random.randn`)."""
    return normal(loc, scale, shape or None, dtype, **kwargs)


def gamma(
    alpha: Any = 1.0,
    beta: Any = 1.0,
    shape: int | Shape | None = None,
    dtype: Any = None,
    ctx: Any = None,
    **kwargs: Any,
) -> Symbol:
    """Draw from the gamma distribution of shape alpha and scale beta (`mx.sym.random.gamma`)."""
    return _draw("gamma", {"alpha": alpha, "beta": beta}, shape, dtype, **kwargs)


def exponential(
    scale: Any = 1.0,
    shape: int | Shape | None = None,
    dtype: Any = None,
    ctx: Any = None,
    **kwargs: Any,
) -> Symbol:
    """Draw from the exponential distribution of mean `scale` (`mx.sym.random.exponential`)."""
    return _draw("exponential", {"lam": 1.0 / scale}, shape, dtype, **kwargs)


def poisson(
    lam: Any = 1.0,
    shape: int | Shape | None = None,
    dtype: Any = None,
    ctx: Any = None,
    **kwargs: Any,
) -> Symbol:
    """Draw counts from the Poisson distribution of mean lam (`mx.sym.random.poisson`)."""
    return _draw("poisson", {"lam": lam}, shape, dtype, **kwargs)


def negative_binomial(
    k: Any = 1,
    p: Any = 1,
    shape: int | Shape | None = None,
    dtype: Any = None,
    ctx: Any = None,
    **kwargs: Any,
) -> Symbol:
    """Draw numbers of failures before k successes (`mx.sym.random.negative_binomial`)."""
    return _draw("negative_binomial", {"k": k, "p": p}, shape, dtype, **kwargs)


def generalized_negative_binomial(
    mu: Any = 1,
    alpha: Any = 1,
    shape: int | Shape | None = None,
    dtype: Any = None,
    ctx: Any = None,
    **kwargs: Any,
) -> Symbol:
    """Draw counts of mean mu (`mx.sym.random.generalized_negative_binomial`).

    Their variance is mu + alpha * mu * mu.
    """
    numbers = {"mu": mu, "alpha": alpha}
    return _draw("generalized_negative_binomial", numbers, shape, dtype, **kwargs)


def randint(
    low: int,
    high: int,
    shape: int | Shape | None = None,
    dtype: Any = "int32",
    ctx: Any = None,
    **kwargs: Any,
) -> Symbol:
    """Draw whole numbers from low to high - 1 (`mx.sym.random.randint`)."""
    return _draw("randint", {"low": low, "high": high}, shape, dtype, **kwargs)


def multinomial(
    data: Symbol,
    shape: int | Shape | None = None,
    get_prob: bool = False,
    dtype: Any = "int32",
    **kwargs: Any,
) -> Symbol:
    """Draw classes by their probabilities, the last axis of data (`mx.sym.random.multinomial`).

    Args:
        data: probabilities, (K,) or (B, K).
        shape: shape of the classes drawn for each row; None: one class.
        get_prob: whether the logarithms of what was drawn are a second output.
        dtype: dtype of the classes.
        **kwargs: name and attributes of the node.
    """
    params = {"shape": () if shape is None else shape, "get_prob": get_prob, "dtype": dtype}
    return _call("_sample_multinomial", "_sample_multinomial", (data,), params, **kwargs)


def shuffle(data: Symbol, **kwargs: Any) -> Symbol:
    """Put the rows of data, along axis 0, in random order (`mx.sym.random.shuffle`)."""
    return _call("_shuffle", "shuffle", (data,), {}, **kwargs)


def uniform_like(data: Symbol, low: float = 0.0, high: float = 1.0, **kwargs: Any) -> Symbol:
    """Call `uniform` with the shape and dtype of data (`mx.sym.random.uniform_like`)."""
    return _like("uniform", data, {"low": low, "high": high}, **kwargs)


def normal_like(data: Symbol, loc: float = 0.0, scale: float = 1.0, **kwargs: Any) -> Symbol:
    """Call `normal` with the shape and dtype of data (`mx.sym.random.normal_like`)."""
    return _like("normal", data, {"loc": loc, "scale": scale}, **kwargs)


def gamma_like(data: Symbol, alpha: float = 1.0, beta: float = 1.0, **kwargs: Any) -> Symbol:
    """Call `gamma` with the shape and dtype of data (`mx.sym.random.gamma_like`)."""
    return _like("gamma", data, {"alpha": alpha, "beta": beta}, **kwargs)


def exponential_like(data: Symbol, lam: float = 1.0, **kwargs: Any) -> Symbol:
    """Draw as `exponential`, by the rate (`mx.sym.random.exponential_like`)."""
    return _like("exponential", data, {"lam": lam}, **kwargs)


def poisson_like(data: Symbol, lam: float = 1.0, **kwargs: Any) -> Symbol:
    """Call `poisson` with the shape and dtype of data (`mx.sym.random.poisson_like`)."""
    return _like("poisson", data, {"lam": lam}, **kwargs)


def negative_binomial_like(data: Symbol, k: float = 1, p: float = 1, **kwargs: Any) -> Symbol:
    """Call `negative_binomial` with the shape and dtype of data."""
    return _like("negative_binomial", data, {"k": k, "p": p}, **kwargs)


def generalized_negative_binomial_like(
    data: Symbol, mu: float = 1, alpha: float = 1, **kwargs: Any
) -> Symbol:
    """Call `generalized_negative_binomial` with the shape and dtype of data."""
    return _like("generalized_negative_binomial", data, {"mu": mu, "alpha": alpha}, **kwargs)


def _draw(
    kind: str,
    numbers: Mapping[str, Any],
    shape: int | Shape | None,
    dtype: Any,
    **kwargs: Any,
) -> Symbol:
    """Call the operator for parameters that are all numbers, or all symbols."""
    symbols = [value for value in numbers.values() if isinstance(value, Symbol)]
    if not symbols:
        params = {**numbers, "shape": (1,) if shape is None else shape, "dtype": dtype}
        return _call(f"_random_{kind}", f"_random_{kind}", (), params, **kwargs)
    if len(symbols) < len(numbers):
        raise TypeError(f"{kind}: {' and '.join(numbers)} are all symbols or all numbers")
    params = {"shape": () if shape is None else shape, "dtype": dtype}
    return _call(f"_sample_{kind}", f"_sample_{kind}", symbols, params, **kwargs)


def _like(kind: str, data: Symbol, numbers: Mapping[str, Any], **kwargs: Any) -> Symbol:
    return _call(f"_random_{kind}_like", f"{kind}_like", (data,), numbers, **kwargs)


def _call(
    op: str,
    hint: str,
    inputs: Sequence[Symbol],
    params: Mapping[str, Any],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    **attrs: str,
) -> Symbol:
    return Symbol(call(op, hint, inputs, params, name, {**(attr or {}), **attrs}))
