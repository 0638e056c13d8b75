"""The table of converters: ONNX operator -> the function that makes symgraph's operators of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from symgraph.core.errors import GraphError
from symgraph.interchange.onnx.reader import NEWEST, OLDEST
from symgraph.interchange.values import Value

if TYPE_CHECKING:
    from symgraph.interchange.onnx.node import OnnxNode

Results = Sequence[Value | None]
Convert = Callable[["OnnxNode"], Value | Results]


class Converter(NamedTuple):
    """What makes symgraph's operators of a node of ONNX's."""

    convert: Convert
    #: The versions of ONNX's operators that it knows.
    first: int
    last: int
    #: The inputs that must be known when the file is read.
    known: tuple[int, ...]


CONVERTERS: dict[str, list[Converter]] = {}


def converts(
    *names: str, first: int = OLDEST, last: int = NEWEST, known: tuple[int, ...] = ()
) -> Callable[[Convert], Convert]:
    """Add a function to the table.

    Args:
        names: The operators, of ONNX's own.
        first: The oldest version of ONNX's operators that it knows.
        last: The newest one.
        known: The inputs that must be known when the file is read.
    """

    def add(convert: Convert) -> Convert:
        for name in names:
            rows = CONVERTERS.setdefault(name, [])
            if any(row.first <= last and first <= row.last for row in rows):
                raise GraphError(f"two converters for {name}")
            rows.append(Converter(convert, first, last, known))
        return convert

    return add


def converter_of(op: str, opset: int) -> Converter | None:
    """Return the converter for an operator in a version of ONNX's operators."""
    rows = CONVERTERS.get(op, ())
    return next((row for row in rows if row.first <= opset <= row.last), None)
