"""The namespace `sg.sym.random`: random values, drawn anew in every step (`mx.sym.random`)."""

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
    """Draw from the uniform distribution over [low, high) (`mx.sym.random.uniform`).

    Args:
        low: lower bound, a number.
        high: upper bound, a number.
        shape: shape of the result, with 0 for the batch axis; None: (1,).
        dtype: dtype of the result.
        ctx: ignored.
        name: the node's name.
        attr: attributes of the node.
        **attrs: further attributes, spelt `__key__`.
    """
    attributes = {**(attr or {}), **attrs}
    return _draw("_random_uniform", {"low": low, "high": high}, shape, dtype, name, attributes)


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
    """Draw from a normal distribution (`mx.sym.random.normal`).

    Args:
        loc: mean, a number.
        scale: standard deviation, a number.
        shape: shape of the result, with 0 for the batch axis; None: (1,).
        dtype: dtype of the result.
        ctx: ignored.
        name: the node's name.
        attr: attributes of the node.
        **attrs: further attributes, spelt `__key__`.
    """
    attributes = {**(attr or {}), **attrs}
    return _draw("_random_normal", {"loc": loc, "scale": scale}, shape, dtype, name, attributes)


def randn(
    *shape: int, loc: float = 0.0, scale: float = 1.0, dtype: Any = "float32", **kwargs: Any
) -> Symbol:
    """Call `normal` with the shape as positional arguments (`mx.sym.random.randn`)."""
    return normal(loc, scale, shape or None, dtype, **kwargs)


def uniform_like(data: Symbol, low: float = 0.0, high: float = 1.0, **kwargs: Any) -> Symbol:
    """Call `uniform` with the shape and dtype of data (`mx.sym.random.uniform_like`)."""
    return _like("uniform", data, {"low": low, "high": high}, **kwargs)


def normal_like(data: Symbol, loc: float = 0.0, scale: float = 1.0, **kwargs: Any) -> Symbol:
    """Call `normal` with the shape and dtype of data (`mx.sym.random.normal_like`)."""
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
    params = {**numbers, "shape": (1,) if shape is None else shape, "dtype": dtype}
    return Symbol(call(op, op, (), params, name, attr))


def _like(
    kind: str,
    data: Symbol,
    numbers: Mapping[str, Any],
    name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:
    return Symbol(call(f"_random_{kind}_like", f"{kind}_like", (data,), numbers, name, attr))
