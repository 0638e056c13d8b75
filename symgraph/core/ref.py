"""Refs: values of a graph under construction, with arithmetic. Gradient rules are written in them.

c.gy * apply("sign", c.x[0])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from symgraph.core.types import Shape, TensorType, Value


class Recorder(Protocol):
    """The methods of a graph under construction that refs use; see symgraph.core.build.Builder."""

    def type_of(self, value: Value) -> TensorType: ...

    def call_for(
        self, origin: str, op: str, inputs: tuple[Value, ...], attrs: Mapping[str, Any]
    ) -> Sequence[Value]: ...


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of a graph under construction; nodes applied to it serve `origin`."""

    builder: Recorder
    value: Value
    origin: str | None = None

    @property
    def type(self) -> TensorType:
        return self.builder.type_of(self.value)

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    def __add__(self, other: Ref | float) -> Ref:
        return _arith("elemwise_add", "_plus_scalar", self, other)

    def __sub__(self, other: Ref | float) -> Ref:
        return _arith("elemwise_sub", "_minus_scalar", self, other)

    def __mul__(self, other: Ref | float) -> Ref:
        return _arith("elemwise_mul", "_mul_scalar", self, other)

    def __truediv__(self, other: Ref | float) -> Ref:
        return _arith("elemwise_div", "_div_scalar", self, other)

    def __rsub__(self, other: float) -> Ref:
        return apply("_rminus_scalar", self, scalar=other)

    def __neg__(self) -> Ref:
        return self * -1.0


def _arith(op: str, scalar_op: str, left: Ref, right: Ref | float) -> Ref:
    if isinstance(right, Ref):
        return apply(op, left, right)
    return apply(scalar_op, left, scalar=float(right))


def apply_all(op: str, *refs: Ref, **attrs: Any) -> tuple[Ref, ...]:
    """Add a node that serves the refs' origin, and return refs to all its outputs."""
    builder = refs[0].builder
    origin = next(r.origin for r in refs if r.origin is not None)
    values = builder.call_for(origin, op, tuple(r.value for r in refs), attrs)
    return tuple(Ref(builder, value, origin) for value in values)


def apply(op: str, *refs: Ref, **attrs: Any) -> Ref:
    """Add a node as `apply_all` does, and return a ref to its first output."""
    return apply_all(op, *refs, **attrs)[0]
