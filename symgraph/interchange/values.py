"""Values of a network while it is read: known ones, and those that the symbol computes.

Everything about a value is held for two sizes of the batch. What is equal in both does not depend
on the batch; a dimension that differs goes along with it. So shapes are those of the operators' own
rules, and constants are folded by plain numpy, also where they hold the size of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from symgraph.core.errors import GraphError
from symgraph.core.params import Site
from symgraph.core.registry import find, infer
from symgraph.core.types import Array, Shape, TensorType
from symgraph.frontend.name import Names
from symgraph.frontend.operator_calls import call
from symgraph.frontend.sym import Variable
from symgraph.frontend.symbol import Symbol
from symgraph.frontend.symnode import Entry, SymNode
from symgraph.ops.elementwise import BROADCAST, SAME

BATCHES = (12, 24)  # with many factors, so that a part of the batch is whole in both
MOST_MADE = 1 << 30  # bytes of constants that are computed, and that the file does not hold
FROZEN = {"__lr_mult__": "0.0", "__wd_mult__": "0.0"}
DECAYS = {"__wd_mult__": "1.0"}
MXNETS = ("_weight", "_gamma", "_bias", "_beta")  # names by which optimizers know what decays


class Known(NamedTuple):
    """A value that is known when the file is read."""

    #: Its value at both sizes of the batch; one array twice if it does not depend on the batch.
    arrays: tuple[Array, Array]
    #: Its name, for the variable that it may become.
    name: str
    #: Whether training may change it.
    learned: bool = False

    @property
    def fixed(self) -> bool:
        """Whether it does not depend on the batch."""
        first, second = self.arrays
        if first is second:
            return True
        return first.shape == second.shape and bool(np.array_equal(first, second))

    @property
    def dims(self) -> tuple[Shape, Shape]:
        """Its shape at both sizes of the batch."""
        return self.arrays[0].shape, self.arrays[1].shape

    @property
    def shape(self) -> Shape:
        """Its shape, with 0 for a dimension that goes along with the batch."""
        return common(*self.dims)

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        return str(self.arrays[0].dtype)


@dataclass(frozen=True, eq=False)
class Traced:
    """A value that the symbol computes."""

    network: Network
    entry: Entry
    #: Its type in the symbol at both sizes of the batch.
    types: tuple[TensorType, TensorType]
    #: Whether it has no axes in the file; the symbol holds it with the shape (1,).
    scalar: bool = False

    @property
    def dims(self) -> tuple[Shape, Shape]:
        """Its shape in the file at both sizes of the batch."""
        return ((), ()) if self.scalar else (self.types[0].shape, self.types[1].shape)

    @property
    def shape(self) -> Shape:
        """Its shape in the file, with 0 for a dimension that goes along with the batch."""
        return common(*self.dims)

    @property
    def rank(self) -> int:
        """The number of its axes in the file."""
        return len(self.dims[0])

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        return self.types[0].dtype

    def call(self, op: str, *others: Traced, axisless: bool | None = None, **attrs: Any) -> Traced:
        """Apply an operator to this value, and others behind it; return its first output.

        Args:
            op: The operator.
            others: Its further inputs.
            axisless: Whether the output has no axes in the file; by default if no input has any.
            attrs: Its parameters.
        """
        keeps = self.scalar and all(o.scalar for o in others)
        made = self.network.call(op, self, *others, **attrs)[0]
        return made.as_scalar(keeps if axisless is None else axisless)

    def as_scalar(self, scalar: bool = True) -> Traced:
        """Return the same value, which has no axes in the file if `scalar`."""
        return Traced(self.network, self.entry, self.types, scalar)

    def reshaped(self, dims: tuple[Sequence[int], Sequence[int]]) -> Traced:
        """Return its elements in another shape, given at both sizes of the batch."""
        if not dims[0]:
            return self if self.scalar else self.call("Reshape", shape=(1,), axisless=True)
        if tuple(map(tuple, dims)) == self.dims:
            return self
        target = common(*dims)
        if target.count(0) > 1:
            raise GraphError(f"a shape with the batch in several dimensions, {target}")
        codes = [d or -1 for d in target]
        return self.call("Reshape", shape=codes, axisless=False)

    def cast(self, dtype: str) -> Traced:
        return self if dtype == self.dtype else self.call("Cast", dtype=dtype)

    def transposed(self, axes: Sequence[int]) -> Traced:
        if list(axes) == list(range(self.rank)):
            return self
        return self.call("transpose", axes=tuple(axes))

    def sliced(self, axis: int, begin: int, end: int | None = None) -> Traced:
        return self.call("slice_axis", axis=axis, begin=begin, end=end)

    def __add__(self, other: Traced | float) -> Traced:
        return pair("add", self, other)

    def __sub__(self, other: Traced | float) -> Traced:
        return pair("sub", self, other)

    def __mul__(self, other: Traced | float) -> Traced:
        return pair("mul", self, other)

    def __truediv__(self, other: Traced | float) -> Traced:
        return pair("div", self, other)

    def __neg__(self) -> Traced:
        return self.call("negative")


Value = Known | Traced
SCALARS = {"add": "_plus_scalar", "sub": "_minus_scalar"}  # others: _<word>_scalar


def common(one: Sequence[int], other: Sequence[int]) -> Shape:
    """Return a shape known at both sizes of the batch, with 0 where they differ."""
    return tuple(a if a == b else 0 for a, b in zip(one, other, strict=True))


def pair(word: str, one: Traced, other: Traced | float) -> Traced:
    """Apply an operator of two values (a row of ops.elementwise.BINARY); shapes broadcast."""
    if not isinstance(other, Traced):
        return one.call(SCALARS.get(word, f"_{word}_scalar"), scalar=float(other))
    same = one.types[0].shape == other.types[0].shape and one.types[1].shape == other.types[1].shape
    return one.call((SAME if same else BROADCAST)[word], other)


def spread(value: Traced, dims: tuple[Shape, Shape]) -> Traced:
    """Repeat a value to a shape that it broadcasts to, given at both sizes of the batch."""
    stored = tuple(d or (1,) for d in dims)
    if (value.types[0].shape, value.types[1].shape) == stored:
        return value.as_scalar(not dims[0])
    rank = len(stored[0])
    lead = (1,) * (rank - len(value.types[0].shape))
    mine = [lead + t.shape for t in value.types]
    grown = [a for a in range(rank) if (mine[0][a], mine[1][a]) != (stored[0][a], stored[1][a])]
    along = [a for a in grown if stored[0][a] != stored[1][a]]
    if along and value.dtype == "bool":  # which adds up nothing
        return spread(value.cast("uint8"), dims).cast("bool")
    if along:
        (axis,) = along
        zeros = value.network.zeros(rank, axis, value.dtype)
        value = pair("add", value, zeros)
    target = [0 if one != other else one for one, other in zip(*stored, strict=True)]
    if [a for a in grown if a not in along]:
        value = value.call("broadcast_to", shape=target, axisless=False)
    return value.as_scalar(not dims[0])


@dataclass
class Network:
    """The symbol that grows while a file is read, and its parameters."""

    args: dict[str, Array] = field(default_factory=dict)
    aux: dict[str, Array] = field(default_factory=dict)
    #: The name that new nodes begin with.
    stem: str = "node"
    #: A value whose first axis is the batch.
    anchor: Traced | None = None
    #: Nodes since `begin`, by id: what reads them.
    emitted: dict[int, int] = field(default_factory=dict)
    #: Those of the nodes, and of values of the file.
    names: Names = field(default_factory=Names)
    #: Matrices that stay as they are in the file, since others read them.
    kept: set[str] = field(default_factory=set)
    _constants: dict[str, Traced] = field(default_factory=dict)
    _arrays: dict[str, Array] = field(default_factory=dict)
    #: Those of the constants that are stored transposed.
    _turned: set[str] = field(default_factory=set)
    _made: int = 0

    # -- nodes -----------------------------------------------------------------------------------

    def variable(self, name: str, types: tuple[TensorType, TensorType], **attrs: str) -> Traced:
        """Add a variable: an input, or a parameter."""
        shape = common(types[0].shape, types[1].shape)
        symbol = Variable(name, {"__dtype__": types[0].dtype, **attrs}, shape=shape)
        return Traced(self, symbol.entries[0], types)

    def call(self, op: str, *inputs: Traced, **attrs: Any) -> list[Traced]:
        """Add a call of an operator; return its outputs.

        Raises GraphError, ShapeError or DTypeError for what the operator's rules refuse.
        """
        hint = op.lower().strip("_")
        name = self.names.take(f"{self.stem}_{hint}")
        symbols = [Symbol([v.entry]) for v in inputs]
        entries = call(op, hint, symbols, attrs, name)
        node = entries[0].node
        definition = find(op)
        types = [
            infer(definition, Site(op, name, node.params), [v.types[i] for v in inputs])
            for i in range(2)
        ]
        self.emitted[id(node)] = 0
        for value in inputs:
            if id(value.entry.node) in self.emitted:
                self.emitted[id(value.entry.node)] += 1
        return [Traced(self, entry, (types[0][i], types[1][i])) for i, entry in enumerate(entries)]

    def named(self, value: Traced, name: str) -> Traced:
        """Give the node of a new value the name of a value of the file, if nothing reads it yet."""
        node = value.entry.node
        if node.op is None or self.emitted.get(id(node), 1):
            return value
        copy = SymNode(name, node.op, node.attrs, node.params, node.inputs)
        return Traced(self, Entry(copy, value.entry.port), value.types, value.scalar)

    # -- constants ---------------------------------------------------------------------------------

    def zeros(self, rank: int, axis: int, dtype: str) -> Traced:
        """Return zeros whose only axis longer than 1 is the batch."""
        if self.anchor is None:
            raise GraphError("a value depends on the size of the batch, but no input has a batch")
        anchor = self.anchor.cast(dtype)
        shape = [0] + [1] * (rank - 1)
        flat = anchor.call("_begin_state", shape=shape)
        return flat if axis == 0 else flat.call("SwapAxis", dim1=0, dim2=axis)

    def constant(self, known: Known, learned: bool = False) -> Traced:
        """Return the variable, or for what depends on the batch the nodes, of a known value.

        Args:
            known: The value.
            learned: Whether training may change it, besides what the file says of it.

        Raises:
            GraphError: Its dtype is not one of symgraph's, it is empty, or too large.
        """
        known = self._own_name(known)
        done = self._constants.get(known.name)
        if done is None:
            done = self._parameter(known, learned) if known.fixed else self._along_batch(known)
            self._constants[known.name] = done
        return done.transposed([1, 0]) if known.name in self._turned else done

    def turned_matrix(self, known: Known) -> Traced:
        """Return a known matrix transposed, as a parameter that is stored so if none is yet."""
        known = self._own_name(known)
        name, array = known.name, known.arrays[0]
        if name not in self._constants and name not in self.kept:
            dense = min(array.strides, default=1) > 0
            rows = np.ascontiguousarray(array.T) if dense else array.T
            turned = Known((rows, rows), name, known.learned)
            self._constants[name] = self._parameter(turned, learned=True)
            self._turned.add(name)
        if name in self._turned:
            return self._constants[name]
        return self.constant(known, learned=True).transposed([1, 0])

    def _own_name(self, known: Known) -> Known:
        """Return a known value with another name, if its own is that of another value."""
        array = known.arrays[0]
        other = self._arrays.setdefault(known.name, array)
        if other is array or (other.dtype == array.dtype and np.array_equal(other, array)):
            return known
        return self._own_name(known._replace(name=f"{known.name}_"))

    def count_made(self, *arrays: Array) -> None:
        """Count arrays that were computed from the file; GraphError if they become too large."""
        self._made += sum(a.nbytes for a in arrays if a.base is None)
        if self._made > MOST_MADE:
            raise GraphError(f"constants that are computed take more than {MOST_MADE >> 20} MiB")

    def _parameter(self, known: Known, learned: bool) -> Traced:
        array = known.arrays[0]
        if not array.size:
            raise GraphError(f"{known.name!r} has the shape {array.shape}: no elements")
        if not array.flags.c_contiguous:
            self._made += array.nbytes
            self.count_made()
        array = np.ascontiguousarray(array)
        type_ = TensorType(array.shape or (1,), known.dtype)
        trains = (learned or known.learned) and array.dtype.kind not in "biu"
        self.names.taken.add(known.name)
        attrs = {} if known.name.endswith(MXNETS) else DECAYS
        made = self.variable(known.name, (type_, type_), **(attrs if trains else FROZEN))
        self.args[known.name] = array.reshape(type_.shape)
        return made.as_scalar(not array.ndim)

    def _along_batch(self, known: Known) -> Traced:
        """Return a value that is the same for all samples, repeated along the batch."""
        first, second = known.arrays
        along = [a for a, d in enumerate(known.shape) if not d] if first.ndim == second.ndim else []
        if len(along) == 1:
            (axis,) = along
            row = first.take([0], axis)
            if (first == row).all() and (second == row).all():
                base = Known((row, row), f"{known.name}_row", known.learned)
                return spread(self.constant(base), known.dims)
        raise GraphError(
            f"{known.name!r} depends on the size of the batch: give the inputs one of fixed size "
            "by shapes={...}"
        )
