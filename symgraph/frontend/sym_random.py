"""The namespace `sym.random`: values drawn at random in every step (MXNet's `mx.sym.random`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symgraph.core.types import Shape
from symgraph.frontend.operator_calls import call
from symgraph.frontend.symbol import Symbol


def uniform(
    low: float = 0.0,
    high: float = 1.0,
    shape: int | Shape | None = None,
    dtype: Any = "float32",
    ctx: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    **attrs: str,
) -> Symbol:
    """Numbers evenly spread over [low, high); shape None is (1,), and a 0 in it is the batch.

    ctx is accepted and changes nothing. MXNet sym.random.uniform, for numbers `low` and `high`.
    """
    own = {**(attr or {}), **attrs}
    return _draw("_random_uniform", {"low": low, "high": high}, shape, dtype, name, own)


def normal(
    loc: float = 0.0,
    scale: float = 1.0,
    shape: int | Shape | None = None,
    dtype: Any = "float32",
    ctx: Any = None,
    *,
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
    **attrs: str,
) -> Symbol:
    """Normal numbers of mean loc and deviation scale; shape None is (1,), a 0 in it the batch.

    ctx is accepted and changes nothing. MXNet sym.random.normal, for numbers `loc` and `scale`.
    """
    own = {**(attr or {}), **attrs}
    return _draw("_random_normal", {"loc": loc, "scale": scale}, shape, dtype, name, own)


def randn(
    *shape: int, loc: float = 0.0, scale: float = 1.0, dtype: Any = "float32", **kwargs: Any
) -> Symbol:
    """`normal` of the shape given by position. MXNet sym.random.randn."""
    return normal(loc, scale, shape or None, dtype, **kwargs)


def uniform_like(data: Symbol, low: float = 0.0, high: float = 1.0, **kwargs: Any) -> Symbol:
    """`uniform` in the shape and dtype of data. MXNet sym.random.uniform_like."""
    return _like("uniform", data, {"low": low, "high": high}, **kwargs)


def normal_like(data: Symbol, loc: float = 0.0, scale: float = 1.0, **kwargs: Any) -> Symbol:
    """`normal` in the shape and dtype of data. MXNet sym.random.normal_like."""
    return _like("normal", data, {"loc": loc, "scale": scale}, **kwargs)


def _draw(
    op: str,
    numbers: Mapping[str, Any],
    shape: int | Shape | None,
    dtype: Any,
    name: str | None,
    attr: Mapping[str, str] | None,
) -> Symbol:
    for key, value in numbers.items():
        if isinstance(value, Symbol):
            raise TypeError(
                f"{op}: {key} is a symbol, but only numbers are supported; scale and "
                "shift numbers of a standard distribution instead"
            )
    given = {**numbers, "shape": (1,) if shape is None else shape, "dtype": dtype}
    return Symbol(call(op, op, (), given, name, attr))


def _like(
    kind: str,
    data: Symbol,
    numbers: Mapping[str, Any],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    return Symbol(call(f"_random_{kind}_like", f"{kind}_like", (data,), numbers, name, attr))
