"""The kernel table of GPUs: CUDA sources beside this file, as functions that are launched.

A source is compiled for the dtypes of its arrays when a kernel of it is first bound, and CuPy
keeps the result on disk. The kernels neither allocate nor wait, so that a CUDA graph can hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from runtime.backends.device import arrays, table
from runtime.backends.device.operands import is_id_array
from runtime.backends.device.table import BoundCall, Maker, noop
from symgraph.core.types import Array, TensorType, wide

FOLDER = Path(__file__).parent
NAMES = {  # in CUDA
    "float32": "float",
    "float64": "double",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "int32": "i32",
    "int64": "i64",
}
HEADERS = {"float16": "<cuda_fp16.h>", "bfloat16": "<cuda_bf16.h>"}
FLOATS = ("float32", "float64", *HEADERS)
WARP = 32
BLOCK = 256  # threads of a block whose threads work independently
WIDE = 512  # threads, at most, that share a row; 4 rows then fit a multiprocessor's cache
WARPS = 8  # of a block, where each has a row
MAX_GRID_Y = 65535  # blocks of a grid along its second axis
PACK = 4  # elements that a thread loads at once, see common.cuh

KERNELS: dict[str, Maker] = {}
kernel = partial(table.kernel, table=KERNELS)


def floating(*values: Array, calc: Sequence[Array] = ()) -> bool:
    """Tell whether all have one float dtype with kernels, and `calc` the dtype of computations."""
    kinds = {value.dtype.name for value in values}
    wider = {wide(kind) for kind in kinds}
    return len(kinds) == 1 and kinds <= set(FLOATS) and {a.dtype.name for a in calc} <= wider


def by_id(ids: Array, *values: Array, calc: Sequence[Array] = ()) -> bool:
    """Tell whether there are kernels for ids or labels of this dtype with such values."""
    return is_id_array(ids) and floating(*values, calc=calc)


# -- plans -------------------------------------------------------------------------------------


class Needs:
    """Memory that calls need besides their arrays, in bytes."""

    def __init__(self) -> None:
        self.pieces: set[int] = set()  # sizes of pieces of scratch
        self.workspace = 0  # of cuBLAS


# Collects the needs of calls that are bound only for a plan and never run; None: calls will run.
PLANNED: ContextVar[Needs | None] = ContextVar("PLANNED", default=None)


class Nowhere:
    """The array module of calls that never run: its arrays have no memory."""

    add = copyto = staticmethod(noop)

    @staticmethod
    def empty(shape: int | tuple[int, ...], dtype: str) -> Array:
        """Return an array that must not be read or written."""
        return absent(TensorType((shape,) if isinstance(shape, int) else shape, dtype))

    zeros = empty

    @staticmethod
    def full(shape: int | tuple[int, ...], value: float, dtype: str) -> Array:
        """Return the same as `empty`."""
        return Nowhere.empty(shape, dtype)


def absent(type_: TensorType) -> Array:
    """Return an array of a type without its memory."""
    dtype = np.dtype(type_.dtype)
    steps = np.cumprod([dtype.itemsize, *type_.shape[:0:-1]])[: len(type_.shape)]
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), type_.shape, steps[::-1].tolist())


def module() -> Any:
    """Return CuPy, or its replacement while a plan is made."""
    return arrays.loaded() if PLANNED.get() is None else Nowhere


# -- sources -----------------------------------------------------------------------------------


WRITTEN: dict[str, str] = {}  # by source: kernels that are not in its file, if it has one


def code_of(source: str) -> str:
    """Return the text of a source after that of common.cuh."""
    files = [FOLDER / "common.cuh", FOLDER / f"{source}.cu"]
    texts = [file.read_text() for file in files if file.exists()]
    return "\n".join([*texts, WRITTEN.get(source, "")])


def options(**types: str) -> tuple[str, ...]:
    """Return the compiler's options that define types, by name, as dtypes."""
    headers = [f"-Dheader={HEADERS[dtype]}" for dtype in types.values() if dtype in HEADERS]
    return "-std=c++17", *headers, *(f"-D{name}={NAMES[d]}" for name, d in types.items())


@cache
def _module(cupy: Any, source: str, flags: tuple[str, ...]) -> Any:
    return cupy.RawModule(code=code_of(source), options=flags)


@cache
def _function(cupy: Any, source: str, name: str, flags: tuple[str, ...]) -> Any:
    return _module(cupy, source, flags).get_function(name)


def function(source: str, name: str, **types: str) -> Callable[..., None]:
    """Return a kernel of a source on the current GPU, to be called with (grid, block, arguments).

    It is compiled and loaded at once: loading at the first launch would wait for all work of the
    GPU, and so for messages in flight, which a peer may receive only after this rank's next work.
    """
    if PLANNED.get() is not None:
        return noop
    compiled: Callable[..., None] = _function(
        arrays.loaded(), source, name, options(**types)
    ).kernel
    return compiled


# -- launches ----------------------------------------------------------------------------------


def launch(
    kernel: Callable[..., None], grid: tuple[int, ...], block: tuple[int, ...], *args: Any
) -> BoundCall:
    """Bind a kernel; Python's integers become i64, its floats double."""
    return BoundCall(kernel, (grid, block, tuple(map(_argument, args))))


def _argument(value: Any) -> Any:
    if isinstance(value, (bool, int)):
        return np.int64(value)
    return np.float64(value) if type(value) is float else value


def in_turn(*calls: BoundCall) -> BoundCall:
    """Join several calls into one."""
    return BoundCall(_all, (calls,))


def _all(calls: Sequence[BoundCall]) -> None:
    for function, args in calls:
        function(*args)


Shape = tuple[tuple[int, ...], tuple[int, ...]]  # grid and block


def warps(count: int, most: int) -> int:
    """Return the number of threads for `count` elements: whole warps, at most `most`."""
    return min(most, -(-count // WARP) * WARP)


def packed(*values: Array) -> bool:
    """Tell whether contiguous arrays of one size can be loaded by packs."""
    return all(v.size % PACK == 0 == arrays.address(v) % (PACK * v.itemsize) for v in values)


def packed_rows(*values: Array) -> bool:
    """Tell whether all rows of contiguous arrays can be loaded by packs."""
    return all(v.shape[-1] % PACK == 0 for v in values) and packed(*values)


def each(count: int) -> Shape:
    """Return a launch with a thread for each element."""
    return (-(-count // BLOCK),), (BLOCK,)


def each_of_rows(rows: int, columns: int) -> Shape:
    """Return a launch with threads along rows and blocks along both axes."""
    threads = warps(columns, BLOCK)
    return (-(-columns // threads), min(rows, MAX_GRID_Y)), (threads,)


def warp_a_row(rows: int) -> Shape:
    """Return a launch with a warp for each row."""
    return (-(-rows // WARPS),), (WARP, WARPS)


def block_a_row(rows: int, columns: int) -> Shape:
    """Return a launch with a block for each row."""
    return (rows,), (warps(columns, WIDE),)
