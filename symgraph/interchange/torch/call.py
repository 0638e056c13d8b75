"""What converters of operators see: a call of PyTorch, its tensors as symbols, and what they make.

A tensor of no axes is a symbol of shape (1,). A tensor of bools is one of whole numbers, 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np

from symgraph.core.errors import ConfigError
from symgraph.core.types import Array
from symgraph.frontend import sym
from symgraph.frontend.symbol import Symbol
from symgraph.interchange.torch.program import Free, Meta, Node, Opaque, Ref

Shape = tuple[int, ...]
MOST_MADE = 1 << 25  # elements of a constant


class Unsupported(ConfigError):
    """A call has an option that is not supported."""


def stored(dtype: str) -> str:
    """Return the dtype of the symbol that stands for a tensor."""
    return "int32" if dtype == "bool" else dtype


@dataclass
class Value:
    """A tensor: a symbol, or a constant that becomes one where it is needed."""

    #: The type in PyTorch.
    meta: Meta
    #: The symbol; None for a constant.
    symbol: Symbol | None = None
    #: The constant.
    array: Array | None = None
    #: The name of the buffer that it is.
    name: str | None = None
    #: Whether it is a symbol of zeros, as a first state of the batch's length is.
    zero: bool = False

    def as_array(self) -> Array:
        """Return the constant as its symbol would hold it."""
        assert self.array is not None
        array = self.array.astype(stored(self.meta.dtype), copy=False)
        return array if array.shape else array.reshape(1)


class Source(Protocol):
    """What a call asks the importer."""

    def _value(self, name: str) -> Value: ...
    def _symbol(self, value: Value) -> Symbol: ...
    def _state(self, value: Value) -> Symbol: ...
    def batch_like(self) -> tuple[Symbol, int, int]: ...


class Call:
    """One call of an operator of PyTorch."""

    def __init__(self, source: Source, node: Node, metas: Sequence[Meta | None]) -> None:
        self._source = source
        self.node = node
        #: The types of the outputs.
        self.metas = metas

    @property
    def out(self) -> Meta:
        """The type of the first output."""
        for meta in self.metas:
            if meta is not None:
                return meta
        raise Unsupported("it has no output")

    @property
    def overload(self) -> str:
        return self.node.target.rpartition(".")[2]

    def fail(self, why: str) -> NoReturn:
        raise Unsupported(why)

    def bound(self, *lengths: int) -> None:
        """Refuse to make an array of these lengths if it would be very large."""
        if math.prod(lengths) > MOST_MADE:
            self.fail(f"a constant of shape {lengths} is too large")

    # -- arguments -----------------------------------------------------------------------------

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument; PyTorch does not write default ones."""
        value = self.node.args.get(name, default)
        if isinstance(value, Opaque):
            self.fail(f"{name} is of a kind that is not supported ({value})")
        return value

    def number(self, name: str, default: float = 0) -> float:
        value = self.get(name, default)
        if isinstance(value, Free):
            self.fail(f"{name} is the batch's length as a number")
        if not isinstance(value, (int, float)):
            self.fail(f"{name}={str(value)[:60]!r} is not a number")
        return value

    def integer(self, name: str, default: int = 0) -> int:
        value = self.number(name, default)
        if int(value) != value:
            self.fail(f"{name}={value} is not a whole number")
        return int(value)

    def integers(self, name: str, default: Sequence[int] = ()) -> Shape:
        value = self.get(name, default)
        if isinstance(value, int):
            value = [value]
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, int) for v in value):
            self.fail(f"{name}={str(value)[:60]!r} is no list of whole numbers")
        return tuple(value)

    def axis(self, name: str, default: int | None = None) -> int:
        """Return an axis of the tensor `self`, counted from 0."""
        shape = tuple(self.meta("self").shape)
        rank = max(1, len(shape))
        axis = self.integer(name, 0 if default is None else default)
        if not -rank <= axis < rank:
            self.fail(f"{name}={axis} is no axis of a tensor of shape {shape}")
        return axis % rank

    def has(self, name: str) -> bool:
        return isinstance(self.get(name), Ref)

    def value(self, name: str | Ref) -> Value:
        """Return a tensor argument, by the argument's name or as a Ref."""
        ref = name if isinstance(name, Ref) else self.get(name)
        if not isinstance(ref, Ref):
            self.fail(f"argument {name!r} is no tensor")
        return self._source._value(ref)

    def meta(self, name: str | Ref) -> Meta:
        return self.value(name).meta

    def values(self, name: str) -> list[Value]:
        refs = self.get(name)
        if not isinstance(refs, list) or not all(isinstance(r, Ref) for r in refs):
            self.fail(f"argument {name!r} is no list of tensors")
        return [self._source._value(ref) for ref in refs]

    def symbol(self, value: Value, dtype: str | None = None) -> Symbol:
        """Return a value as a symbol, converted to a type of PyTorch if one is given."""
        return cast(self._source._symbol(value), value.meta.dtype, dtype or value.meta.dtype)

    def x(self, name: str | Ref = "self", dtype: str | None = None) -> Symbol:
        """Return a tensor argument as a symbol, converted to a type if one is given."""
        return self.symbol(self.value(name), dtype)

    def state(self, name: str) -> Symbol:
        """Return a buffer as an auxiliary state."""
        return self._source._state(self.value(name))

    # -- shapes --------------------------------------------------------------------------------

    def reshape(self, x: Symbol, shape: Shape) -> Symbol:
        """Return x in another shape, which may have the batch's length in one dimension."""
        free = [axis for axis, d in enumerate(shape) if isinstance(d, Free)]
        if len(free) > 1:
            self.fail(f"several dimensions of {shape} depend on the batch")
        codes = tuple(-1 if isinstance(d, Free) else int(d) for d in shape)
        return sym.Reshape(x, shape=codes or (1,))

    def zeros(self, shape: Shape, dtype: str) -> Symbol:
        """Return zeros; a dimension of them may have the batch's length, or a multiple of it."""
        free = [axis for axis, d in enumerate(shape) if isinstance(d, Free)]
        if not free:
            return sym.zeros(shape=tuple(shape) or (1,), dtype=dtype)
        if len(free) > 1:
            self.fail(f"several dimensions of {shape} depend on the batch")
        like, at, batch = self._source.batch_like()
        times, rest = divmod(shape[free[0]], batch)
        if rest:
            self.fail(f"a dimension of {shape} is no multiple of the batch's length")
        others = tuple(int(d) for axis, d in enumerate(shape) if axis != free[0])
        like = sym.SwapAxis(like, dim1=0, dim2=at) if at else like
        like = sym.Cast(like, dtype=dtype)
        if times > 1:
            like = sym._begin_state(like, shape=(0, times))
            like = sym.Reshape(like, shape=(-1,))
        rows = sym._begin_state(like, shape=(0, *others))
        order = [*range(1, len(shape))]
        order.insert(free[0], 0)
        return rows if free[0] == 0 else sym.transpose(rows, axes=tuple(order))

    def spread(
        self, x: Symbol, old: Shape, new: Shape, dtype: str, like: Symbol | None = None
    ) -> Symbol:
        """Return x broadcast to a shape, which is that of `like` if there is one."""
        wide = (1,) * (len(new) - len(old)) + tuple(old)
        if len(wide) > max(1, len(old)):
            x = self.reshape(x, wide)
        if same_shape(wide, new) or not new:
            return x
        pairs = list(zip(wide, new, strict=True))
        if not any(isinstance(n, Free) and not isinstance(d, Free) for d, n in pairs):
            return sym.broadcast_to(x, shape=tuple(0 if isinstance(d, Free) else d for d in new))
        if like is not None:
            return sym.broadcast_like(x, like)
        return sym.broadcast_add(x, self.zeros(new, stored(dtype)))


def same_shape(one: Shape, other: Shape) -> bool:
    """Tell whether shapes are equal, in what depends on the batch too."""
    return tuple(one) == tuple(other) and [*map(type, one)] == [*map(type, other)]


def cast(x: Symbol, old: str, new: str) -> Symbol:
    """Return a symbol converted from one type of PyTorch to another."""
    if new == "bool" != old:
        return sym.Cast(x != 0, dtype=stored(new))
    return x if stored(old) == stored(new) else sym.Cast(x, dtype=stored(new))


def promoted(c: Call, *names: str) -> str:
    """Return the type in which PyTorch computes with these arguments."""
    kinds = "b", "iu", "f"
    best: dict[bool, tuple[int, str]] = {}
    for name in names:
        arg = c.get(name)
        if isinstance(arg, Ref):
            dtype, scalar = c.meta(arg).dtype, not c.meta(arg).shape
        else:
            dtype = "bool" if isinstance(arg, bool) else "int64"
            dtype, scalar = ("float32" if isinstance(arg, float) else dtype), True
        kind = next(i for i, letters in enumerate(kinds) if np.dtype(dtype).kind in letters)
        known = best.get(scalar)
        if known is not None and known[0] == kind:
            dtype = str(np.result_type(known[1], dtype))
        if known is None or kind >= known[0]:
            best[scalar] = kind, dtype
    tensor, scalar_ = best.get(False), best.get(True)
    if tensor is None or (scalar_ is not None and scalar_[0] > tensor[0]):
        assert scalar_ is not None
        return scalar_[1]
    return tensor[1]


Converter = Callable[[Call], Any]
CONVERTERS: dict[str, Converter] = {}


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Register a converter for operators: `add` for all overloads, or `max.dim` for one."""

    def register(convert: Converter) -> Converter:
        for name in names:
            for alias in name.split():
                assert alias not in CONVERTERS, alias
                CONVERTERS[alias] = convert
        return convert

    return register
