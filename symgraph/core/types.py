"""Values and tensor types: what flows along the edges of a graph."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from symgraph.core.errors import DTypeError

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

DTYPES = (
    "float16",
    "float32",
    "float64",
    "bool",
    "int8",
    "uint8",
    "int32",
    "int64",
)


BFLOAT16 = "bfloat16"  # known once the package ml_dtypes is loaded; see `dtype_name`
HALVES = ("float16", BFLOAT16)


CODES = (
    "float32",
    "float64",
    "float16",
    "uint8",
    "int32",
    "int8",
    "int64",
    "bool",
)  # by MXNet's numbers of dtypes, which its files hold


@cache
def name_of(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name, which numpy would put together anew each time."""
    return dtype.name


def dtype_name(raw: Any) -> str:
    """Return the name of a dtype given by any name or type of numpy's, or MXNet's number.

    numpy itself does not have bfloat16: the package ml_dtypes, imported at the first use of that
    name, adds it.

    Raises:
        KeyError: There is no such dtype.
        DTypeError: bfloat16 without the package ml_dtypes.
    """
    text = raw if isinstance(raw, str) else getattr(raw, "__name__", None) or str(raw)
    if text.isdigit() and int(text) < len(CODES):
        return CODES[int(text)]
    if text == BFLOAT16:
        _load_bfloat16()
        return text
    if text in DTYPES:
        return text
    try:
        name = np.dtype(text).name  # "half", "<f4"
    except TypeError:
        raise KeyError(text) from None
    if name not in DTYPES:
        raise KeyError(text)
    return name


def _load_bfloat16() -> None:
    try:
        importlib.import_module("ml_dtypes")
    except ImportError as error:
        raise DTypeError(
            f"bfloat16 needs the package ml_dtypes ({error}): pip install ml_dtypes, or use float16"
        ) from None


class Value(NamedTuple):
    """An output of a node."""

    node: str
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which is not needed

    def __str__(self) -> str:
        return f"{self.node}[{self.index}]" if self.index else self.node


class TensorType(NamedTuple):
    """Shape (all dimensions known) and dtype name of a value."""

    shape: Shape
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of a dense array of this type."""
        return self.size * item_bytes(self.dtype)

    def before(self, axis: int) -> int:
        """Return the product of the dimensions before an axis: 1 if its parts are contiguous."""
        return math.prod(self.shape[: axis % len(self.shape)])

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


Types = Sequence[TensorType]


@cache
def item_bytes(dtype: str) -> int:
    """Return the bytes of an element; asked for very often."""
    return np.dtype(dtype).itemsize


def is_float(dtype: str) -> bool:
    """Tell whether gradients can flow through values of this dtype."""
    return dtype.startswith("float") or dtype == BFLOAT16


def wide(dtype: Any) -> Any:
    """Return the dtype in which values of a dtype are computed: float32 for floats of 16 bits."""
    return "float32" if str(dtype) in HALVES else dtype
