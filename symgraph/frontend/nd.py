"""The namespace `sg.nd`: arrays, and every operator of `sg.sym` on arrays (MXNet's `mx.nd`).

    x = sg.nd.array([[1, 2], [3, 4]])
    sg.nd.softmax(x, axis=1).asnumpy()

An operator takes arrays where `sym` takes symbols, computes at once, and writes to `out=` if that
is given. It is a convenience around networks: to train, bind a symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from symgraph.core.context import Context
from symgraph.core.errors import nearest
from symgraph.core.types import Array, Shape, dtype_name
from symgraph.frontend import left_out, random, sym
from symgraph.frontend.ndarray import (
    ArrayNamespace,
    NDArray,
    array,
    call_function,
    call_operator,
    on_arrays,
    on_context,
    require_dense,
)
from symgraph.frontend.params_file import read_arrays, write_arrays

__all__ = [
    "NDArray",
    "arange",
    "array",
    "concatenate",
    "empty",
    "eye",
    "from_numpy",
    "full",
    "linspace",
    "load",
    "moveaxis",
    "onehot_encode",
    "ones",
    "random",
    "save",
    "waitall",
    "zeros",
]

SYMBOLS_ONLY = ("Group", "Symbol", "Variable", "comm", "load_json", "var")


# -- new arrays ----------------------------------------------------------------------------------


def full(
    shape: int | Shape, val: float, ctx: Context | None = None, dtype: Any = None, out: Any = None
) -> NDArray:
    """Fill a new array, or `out`, with a number (`mx.nd.full`)."""
    if out is not None:
        out[...] = val
        filled: NDArray = out
        return filled
    return on_context(np.full(shape, val, dtype_name(dtype or "float32")), ctx)


def zeros(
    shape: int | Shape,
    ctx: Context | None = None,
    dtype: Any = None,
    stype: str | None = None,
    out: Any = None,
) -> NDArray:
    """Make an array of zeros (`mx.nd.zeros`); its storage type is "default", dense."""
    require_dense(stype)
    return full(shape, 0, ctx, dtype, out)


def ones(
    shape: int | Shape, ctx: Context | None = None, dtype: Any = None, out: Any = None
) -> NDArray:
    """Make an array of ones (`mx.nd.ones`)."""
    return full(shape, 1, ctx, dtype, out)


def empty(shape: int | Shape, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """Make an array for values to come (`mx.nd.empty`), which are 0 until then."""
    return full(shape, 0, ctx, dtype)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool = False,
    ctx: Context | None = None,
    dtype: Any = "float32",
) -> NDArray:
    """Count from start to before stop, or from 0 to before start (`mx.nd.arange`).

    Each number comes `repeat` times; infer_range is accepted without effect.
    """
    begin, end = (0, start) if stop is None else (start, stop)
    numbers = np.arange(begin, end, step, dtype=dtype_name(dtype))
    return on_context(np.repeat(numbers, repeat), ctx)


def eye(N: int, M: int = 0, k: int = 0, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """Make an N by M array (N by N for 0) with ones on diagonal k (`mx.nd.eye`)."""
    return on_context(np.eye(N, M or None, k, dtype_name(dtype or "float32")), ctx)


def linspace(
    start: float,
    stop: float,
    num: int,
    endpoint: bool = True,
    ctx: Context | None = None,
    dtype: Any = "float32",
) -> NDArray:
    """Space `num` numbers evenly from start to stop (`mx.nd.linspace`)."""
    return on_context(np.linspace(start, stop, num, endpoint, dtype=dtype_name(dtype)), ctx)


def from_numpy(ndarray: Array, zero_copy: bool = True) -> NDArray:
    """Return an array on a numpy array's memory, or on a copy (`mx.nd.from_numpy`)."""
    return on_context(ndarray if zero_copy else ndarray.copy(), None)


def concatenate(arrays: Sequence[NDArray], axis: int = 0, always_copy: bool = True) -> NDArray:
    """Join arrays along an axis (`mx.nd.concatenate`)."""
    if len(arrays) == 1 and not always_copy:
        return arrays[0]
    return on_context(np.concatenate([np.asarray(a) for a in arrays], axis), arrays[0].context)


def onehot_encode(indices: NDArray, out: NDArray) -> NDArray:
    """Write rows that are 1 at an index and 0 elsewhere (`mx.nd.onehot_encode`)."""
    made: NDArray = call_function(sym.one_hot, indices, depth=out.shape[1], out=out)
    return made


def moveaxis(tensor: NDArray, source: Any, destination: Any) -> NDArray:
    """Move axes to other positions (`mx.nd.moveaxis`)."""
    return np.moveaxis(tensor, source, destination).copy()


def waitall() -> None:
    """Return at once: arrays are complete when a call returns them (`mx.nd.waitall`)."""


# -- arithmetic of two arrays, or of an array and a number ---------------------------------------

ARITHMETIC = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.true_divide,
    "true_divide": np.true_divide,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "lesser": np.less,
    "lesser_equal": np.less_equal,
}


def _arithmetic(name: str) -> Callable[[Any, Any], Any]:
    function = ARITHMETIC[name]

    def compute(lhs: Any, rhs: Any) -> Any:
        array = lhs if isinstance(lhs, np.ndarray) else rhs
        if not isinstance(array, np.ndarray):
            return function(lhs, rhs).item()  # of two numbers, a number
        found = np.asarray(function(lhs, rhs))
        kind = array.dtype if found.dtype == bool else found.dtype  # comparisons are not booleans
        return on_context(found.astype(kind), getattr(array, "context", None))

    compute.__name__ = compute.__qualname__ = name
    compute.__doc__ = f"Compute `numpy.{function.__name__}` in the dtype of the arrays, or numbers."
    return compute


# Functions of two arrays whose shapes broadcast, where those of `sym` take equal ones.
BROADCASTING = ("maximum", "minimum", "power", "logical_and", "logical_or", "logical_xor")
BROADCASTS = {"modulo": "mod", **{name: name for name in BROADCASTING}}


def _broadcasting(name: str) -> Callable[[Any, Any], Any]:
    operator = f"broadcast_{BROADCASTS[name]}"

    def compute(lhs: Any, rhs: Any) -> Any:
        if not isinstance(lhs, np.ndarray) and not isinstance(rhs, np.ndarray):
            return getattr(np, BROADCASTS[name])(lhs, rhs).item()
        kind = lhs.dtype if isinstance(lhs, np.ndarray) else rhs.dtype
        pair = [a if isinstance(a, np.ndarray) else np.full(1, a, kind) for a in (lhs, rhs)]
        made: NDArray = call_operator(operator, *pair)
        return made

    compute.__name__ = compute.__qualname__ = name
    compute.__doc__ = f"Compute `{operator}` of two arrays, or of numbers."
    return compute


# -- files ---------------------------------------------------------------------------------------


def save(fname: str | PathLike[str], data: Any) -> None:
    """Write an array, a list of arrays, or arrays by name (`mx.nd.save`); MXNet reads the file.

    Raises ConfigError if it cannot be written or a dtype has no number in such files.
    """
    if isinstance(data, Mapping):
        write_arrays(fname, list(data.values()), list(data))
        return
    arrays = [data] if isinstance(data, np.ndarray) else list(data)
    for value in arrays:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"nd.save: the list holds a {type(value).__name__}, not only arrays")
    write_arrays(fname, arrays, [])


def load(fname: str | PathLike[str]) -> list[NDArray] | dict[str, NDArray]:
    """Read what `save` or MXNet wrote: arrays by name, or a list if they have none.

    Raises ConfigError for a file that is missing, cut short or something else.
    """
    arrays, names = read_arrays(fname)
    made = [on_context(a, None) for a in arrays]
    return dict(zip(names, made, strict=True)) if names else made


# -- operators -----------------------------------------------------------------------------------


def __getattr__(name: str) -> Any:
    left_out.refuse(f"nd.{name}")
    if name in ARITHMETIC:
        return _arithmetic(name)
    if name in BROADCASTS:
        return _broadcasting(name)
    found = None if name.startswith("__") or name in SYMBOLS_ONLY else getattr(sym, name, None)
    if not isinstance(found, FunctionType | ModuleType):
        raise AttributeError(f"symgraph.nd has no {name!r}; {nearest(name, __dir__())}")
    return ArrayNamespace(found) if isinstance(found, ModuleType) else on_arrays(found)


def __dir__() -> list[str]:
    operators = [n for n in dir(sym) if not n.startswith("_") and n not in SYMBOLS_ONLY]
    return sorted({*__all__, *ARITHMETIC, *BROADCASTS, *operators})
