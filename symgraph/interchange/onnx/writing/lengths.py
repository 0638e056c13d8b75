"""Lengths that are not fixed: which axes of which values follow the batch, and by which factor.

A network is lowered several times: once as it is, and once for each named length with that length
doubled. A dimension that doubles too is a multiple of the named length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from symgraph.core.errors import GraphError, ShapeError
from symgraph.core.graph import Graph
from symgraph.core.types import Shape, Value
from symgraph.frontend.lower import lower
from symgraph.frontend.symbol import Symbol


class Multiple(NamedTuple):
    """A dimension that is a multiple of a named length."""

    name: str
    factor: int


class Other(NamedTuple):
    """A dimension that depends on named lengths in another way."""


Dim = int | Multiple | Other
Dims = tuple[Dim, ...]
NamedShape = tuple[int | str, ...]  # lengths, and names of those that are not fixed


@dataclass(frozen=True)
class Lengths:
    """The named lengths of a network, and the graphs that show what follows from them."""

    #: Name -> the length for which `graph` is typed.
    sizes: Mapping[str, int]
    #: The network with these lengths.
    graph: Graph
    #: Name -> the same network with this length doubled.
    doubled: Mapping[str, Graph]

    def dims(self, value: Value) -> Dims:
        """Return the dimensions of a value."""
        shape = self.graph.type_of(value).shape
        others = {name: graph.type_of(value).shape for name, graph in self.doubled.items()}
        return tuple(self._dim(length, i, others) for i, length in enumerate(shape))

    def _dim(self, length: int, axis: int, others: Mapping[str, Shape]) -> Dim:
        changed = [name for name, shape in others.items() if shape[axis] != length]
        if not changed:
            return length
        (name, *more) = changed
        factor, rest = divmod(length, self.sizes[name])
        if more or rest or others[name][axis] != 2 * length:
            return Other()
        return Multiple(name, factor)


def lengths_of(
    symbol: Symbol,
    shapes: Mapping[str, NamedShape],
    sizes: Mapping[str, int],
    dtypes: Mapping[str, str],
) -> Lengths:
    """Lower a network whose inputs have named lengths.

    Args:
        symbol: The network.
        shapes: Variable -> its shape.
        sizes: Name -> a length to lower the network for.
        dtypes: Variable -> its dtype.

    Raises:
        GraphError: The network has another structure, or is none, with other lengths.
    """

    def lowered(of: Mapping[str, int]) -> Graph:
        typed = {
            name: tuple(of[d] if isinstance(d, str) else d for d in shape)
            for name, shape in shapes.items()
        }
        return lower(symbol, typed, dtypes)

    graph = lowered(sizes)
    doubled = {}
    for name, size in sizes.items():
        try:
            other = lowered({**sizes, name: 2 * size})
        except ShapeError as error:
            raise GraphError(
                f"the length {name!r} cannot be left open, as the network has numbers for "
                f"{size} in it: {error}"
            ) from None
        doubled[name] = other
    return Lengths(sizes, graph, doubled)
