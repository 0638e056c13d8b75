"""One node of an ONNX graph, as converters see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from symgraph.core.errors import GraphError
from symgraph.core.types import Array, Shape, is_float
from symgraph.interchange.values import Known, Network, Traced, Value


@dataclass(frozen=True)
class OnnxNode:
    """A node with its inputs; converters return what its outputs become."""

    op: str
    name: str
    #: The version of ONNX's operators.
    opset: int
    attrs: dict[str, Any]
    inputs: Sequence[Value | None]
    #: How many outputs it has, and which of them are used.
    outputs: Sequence[bool]
    network: Network
    #: Converts a graph in an attribute: (graph, its inputs, a name) -> its outputs.
    subgraph: Callable[[Any, Sequence[Value], str], list[Value]]
    #: The batch size of the file that the batch took the place of; 0 if there is none.
    fixed_batch: int = 0

    def fail(self, message: str) -> NoReturn:
        raise GraphError(message)

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default."""
        return self.attrs.get(name, default)

    def value(self, index: int) -> Value | None:
        """Return an input; None if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def optional(self, index: int, *, learned: bool = False) -> Traced | None:
        """Return an input as a value of the symbol; None if it is left out.

        Args:
            index: The input's place.
            learned: Whether it is a weight, which training changes even if it is a constant.
        """
        value = self.value(index)
        return self.network.constant(value, learned) if isinstance(value, Known) else value

    def tensor(self, index: int, *, learned: bool = False) -> Traced:
        """Return an input as a value of the symbol; see `optional`."""
        value = self.optional(index, learned=learned)
        if value is None:
            self.fail(f"its input {index} is missing")
        return value

    @property
    def x(self) -> Traced:
        """The first input."""
        return self.tensor(0)

    def known(self, index: int) -> Array | None:
        """Return an input that must be known and not depend on the batch; None if left out."""
        value = self.value(index)
        if value is None:
            return None
        if isinstance(value, Traced):
            self.fail(
                f"its input {index} must be known when the file is read: it may be the result of "
                "shapes and constants, or be given by constants={...}"
            )
        if not value.fixed:
            self.fail(f"its input {index} depends on the size of the batch")
        return value.arrays[0]

    def both(self, index: int) -> tuple[list[int], list[int]]:
        """Return the numbers of an input that must be known, at both sizes of the batch."""
        value = self.value(index)
        if not isinstance(value, Known) or not value.fixed:
            self.known(index) if not isinstance(value, Known) else None
        assert isinstance(value, Known)
        first, second = ([int(n) for n in a.reshape(-1)] for a in value.arrays)
        return first, second

    def number(self, index: int) -> float | None:
        """Return a known input of one element as a number; None if it is not one."""
        value = self.value(index)
        if isinstance(value, Known) and value.fixed and value.arrays[0].size == 1:
            if value.learned:
                return None
            return float(value.arrays[0].reshape(-1)[0])
        return None

    def ints(self, index: int, attribute: str) -> list[int] | None:
        """Return integers that older versions have as an attribute, newer ones as an input."""
        if attribute in self.attrs:
            return [int(n) for n in np.asarray(self.attrs[attribute]).reshape(-1)]
        array = self.known(index)
        return None if array is None else [int(n) for n in array.reshape(-1)]

    def axis(self, value: int, rank: int) -> int:
        """Return an axis, 0 or more; one out of range is an error."""
        if not -rank <= value < max(rank, 1):
            self.fail(f"axis {value} is out of range for {rank} dimensions")
        return value % rank if rank else 0

    def require(self, condition: bool, message: str) -> None:
        """Fail with a message unless a condition holds."""
        if not condition:
            self.fail(message)

    def floats(self, value: Traced) -> Traced:
        """Return a value that holds floats; anything else is an error."""
        self.require(is_float(value.dtype), f"is here for floats, not {value.dtype}")
        return value


def elements(shape: Shape) -> int:
    """Return the number of elements of a shape that does not depend on the batch."""
    return int(np.prod(shape, dtype=object)) if shape else 1
