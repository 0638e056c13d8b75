"""The BLAS libraries that products of matrices run by: numpy's own, and MKL.

Each is an entry of `BACK_ENDS`. A compiled kernel calls the library's function by its address, so
that products join the native calls around them (`native.py`). What a library cannot multiply where
it lies, and what has no such function, numpy multiplies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from threadpoolctl import threadpool_info

from runtime.backends.device.compile import I32, I64, VOID, intrinsic, jit
from runtime.backends.device.mkl import mkl, mkl_version
from runtime.backends.device.table import BoundCall
from symgraph.core.types import Array

SLOW_ROWS = range(2, 64)  # rows for which OpenBLAS does W x^T at twice the rate of x W^T
ROWS_FIRST, PLAIN, TURNED = 101, 111, 112  # CBLAS_LAYOUT, CBLAS_TRANSPOSE
# The functions, by the dtype of the factors: those of bfloat16 are passed as uint16. All take sizes
# of 64 bits.
MKL = {
    "float32": "cblas_sgemm_64",
    "float64": "cblas_dgemm_64",
    "uint16": "cblas_gemm_bf16bf16f32_64",
}
OPENBLAS = {"float32": "scipy_cblas_sgemm64_", "float64": "scipy_cblas_dgemm64_"}


class BackEnd(NamedTuple):
    """A library of matrix products."""

    #: out (M, N), C-contiguous, = x (M, K) y (K, N), which may be transposed views, plus a row
    #: (N,), if there is one, in every row. The call may hold addresses of the arrays only.
    bind: Callable[[Array, Array, Array, Array | None], BoundCall]
    #: The product of stacks of matrices, with the arguments of `numpy.matmul`.
    matmul: Callable[..., Array]
    #: Whether it is installed.
    installed: Callable[[], bool]
    #: Its name, version and, where it says so, kernels.
    describe: Callable[[], str]
    #: Whether it also binds products of bfloat16, passed as uint16, into float32.
    low: bool = False


# -- calls of a library --------------------------------------------------------------------------


@intrinsic  # type: ignore[untyped-decorator]
def call_gemm(
    typing: Any,
    function: Any,
    turns: Any,
    sizes: Any,
    x: Any,
    x_step: Any,
    y: Any,
    y_step: Any,
    out: Any,
    out_step: Any,
) -> Any:
    """Call a CBLAS function for out = x y, whose dtype tells that of alpha and beta."""
    number = ir.FloatType() if out.dtype == types.float32 else ir.DoubleType()

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        at, turns, sizes, x, x_step, y, y_step, out, out_step = args
        kind = [I32] * 3 + [I64] * 3 + [number, I64, I64, I64, I64, number, I64, I64]
        product = b.inttoptr(at, ir.FunctionType(VOID, kind).as_pointer())
        both = [b.trunc(b.extract_value(turns, place), I32) for place in range(2)]
        size = [b.extract_value(sizes, place) for place in range(3)]
        to = b.ptrtoint(context.make_array(signature.args[7])(context, b, out).data, I64)
        one, zero = ir.Constant(number, 1.0), ir.Constant(number, 0.0)
        factors = [x, x_step, y, y_step]
        b.call(product, [I32(ROWS_FIRST), *both, *size, one, *factors, zero, to, out_step])
        return context.get_dummy_value()

    return types.void(function, turns, sizes, x, x_step, y, y_step, out, out_step), generate


@jit
def add_row(rows: Array, row: Array) -> None:
    """Add row (N,) to every row of rows (M, N)."""
    for i in range(rows.shape[0]):
        to = rows[i]
        for j in range(row.size):
            to[j] += row[j]


@jit
def gemm(
    function: int,
    turns: tuple[int, int],
    sizes: tuple[int, int, int],
    x: tuple[int, int],
    y: tuple[int, int],
    out: Array,
    row: Array,
) -> None:
    """Compute out (M, N) = x (M, K) y (K, N), plus a row unless it is empty.

    Args:
        function: The address of a CBLAS function with sizes of 64 bits.
        turns: CBLAS's word for whether x, and y, lies transposed.
        sizes: M, N and K.
        x: Its address, and how far its rows, or columns, lie apart.
        y: As x.
        out: Its elements of a row lie side by side.
        row: (N,) or (0,).
    """
    apart = out.strides[0] // out.itemsize
    call_gemm(function, turns, sizes, x[0], x[1], y[0], y[1], out, max(apart, sizes[1]))
    if row.size:
        add_row(out, row)


@jit
def gemms(
    function: int,
    turns: tuple[int, int],
    sizes: tuple[int, int, int],
    x: tuple[int, int, int],
    y: tuple[int, int, int],
    out: Array,
) -> None:
    """Compute a stack of products; see `gemm`.

    Args:
        function, turns, sizes: As `gemm`.
        x: The address of the first, how far its rows, or columns, and how far matrices lie apart.
        y: As x.
        out: (count, M, N).
    """
    for i in range(len(out)):
        left, right = x[0] + i * x[2], y[0] + i * y[2]
        call_gemm(function, turns, sizes, left, x[1], right, y[1], out[i], sizes[1])


def _operand(array: Array) -> tuple[int, int, int] | None:
    """Return whether a matrix is transposed, its address and its row stride; None if it has none.

    Rows, or columns, must be contiguous.
    """
    (rows, columns), steps = array.shape, array.strides
    for operation, inner, outer, step, row in (
        (PLAIN, columns, rows, steps[1], steps[0]),
        (TURNED, rows, columns, steps[0], steps[1]),
    ):
        apart, left = divmod(row, array.itemsize)
        if outer == 1:
            apart, left = inner, 0
        if (step == array.itemsize or inner == 1) and apart >= inner and not left:
            return operation, array.ctypes.data, apart
    return None


def bound_gemm(
    functions: dict[str, int], x: Array, y: Array, out: Array, row: Array | None = None
) -> BoundCall | None:
    """Bind a product by a library's functions; None if none of them can do it.

    bfloat16, as uint16, is multiplied into float32.
    """
    kind, wide = x.dtype.name, "float32" if x.dtype.name == "uint16" else x.dtype.name
    if kind not in functions or y.dtype != x.dtype or out.dtype.name != wide:
        return None
    a, b, c = map(_operand, (x, y, out))
    if a is None or b is None or c is None or c[0] == TURNED or not x.size * y.size:
        return None
    row = np.empty(0, out.dtype) if row is None else row
    sizes = *out.shape, x.shape[1]
    return BoundCall(gemm, (functions[kind], (a[0], b[0]), sizes, a[1:], b[1:], out, row))


def _addresses(library: Any, names: dict[str, str]) -> dict[str, int]:
    """Return the addresses of those functions that a library has."""
    return {
        kind: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        for kind, name in names.items()
        if hasattr(library, name)
    }


# -- numpy's own ---------------------------------------------------------------------------------


@cache
def _numpy_libraries() -> list[dict[str, Any]]:
    """Return what threadpoolctl says of numpy's BLAS; others come with SciPy, once it is loaded."""
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    return [library for library in libraries if "numpy" in library["filepath"]] or libraries


@cache
def _numpy_functions() -> dict[str, int]:
    """Return the functions of numpy's BLAS; none if it is another than that of numpy's wheels."""
    paths = [library["filepath"] for library in _numpy_libraries()]
    return _addresses(ctypes.CDLL(paths[0]), OPENBLAS) if len(paths) == 1 else {}


def numpy_product(x: Array, y: Array, out: Array, row: Array | None = None) -> BoundCall:
    """Bind a product by numpy's BLAS."""
    if len(x) in SLOW_ROWS and y.strides[0] == y.itemsize < y.strides[1]:
        return BoundCall(_by_numpy, (_turned, x, y, out, row))
    bound = bound_gemm(_numpy_functions(), x, y, out, row)
    multiply = np.dot if out.flags.c_contiguous else np.matmul  # dot needs whole rows
    return bound or BoundCall(_by_numpy, (multiply, x, y, out, row))


def _turned(x: Array, y: Array, out: Array) -> None:
    """Compute x y as (y^T x^T)^T."""
    out[...] = (y.T @ x.T).T


def _by_numpy(
    multiply: Callable[[Array, Array, Array], object],
    x: Array,
    y: Array,
    out: Array,
    row: Array | None,
) -> None:
    multiply(x, y, out)
    if row is not None:
        add_row(out, row)


@cache
def numpy_blas() -> str:
    """Return numpy's library and the kernel it chose, such as "openblas 0.3.31 SkylakeX"."""
    found = {
        " ".join(str(library.get(key) or "") for key in ("internal_api", "version", "architecture"))
        for library in _numpy_libraries()
    }
    return ", ".join(sorted(found)) or "unknown"


# -- MKL -----------------------------------------------------------------------------------------


@cache
def _mkl_functions() -> dict[str, int]:
    return _addresses(mkl(), MKL)


def mkl_product(x: Array, y: Array, out: Array, row: Array | None = None) -> BoundCall:
    """Bind a product by MKL."""
    return bound_gemm(_mkl_functions(), x, y, out, row) or numpy_product(x, y, out, row)


def mkl_matmul(x: Array, y: Array, out: Array | None = None) -> Array:
    """Multiply stacks of matrices by MKL, as `numpy.matmul` does."""
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    if out is None:
        out = np.empty((*lead, x.shape[-2], y.shape[-1]), np.result_type(x, y))
    if x.dtype != y.dtype or x.dtype != out.dtype or not out.flags.c_contiguous:
        return np.matmul(x, y, out=out)
    count = lead[-1:] or (1,)
    xs, ys = (np.broadcast_to(a, (*lead[:-1], *count, *a.shape[-2:])) for a in (x, y))
    products = out.reshape(xs.shape[:-1] + out.shape[-1:])
    for index in np.ndindex(lead[:-1]):
        left, right, made = xs[index], ys[index], products[index]
        one = bound_gemm(_mkl_functions(), left[0], right[0], made[0]) if made.size else None
        if one is None:
            np.matmul(left, right, out=made)
        else:
            function, turns, sizes, a, b, _, _ = one.args
            steps = left.strides[0], right.strides[0]
            gemms(function, turns, sizes, (*a, steps[0]), (*b, steps[1]), made)
    return out


BACK_ENDS = {
    "openblas": BackEnd(numpy_product, np.matmul, lambda: True, numpy_blas),
    "mkl": BackEnd(
        mkl_product, mkl_matmul, lambda: mkl() is not None, lambda: f"mkl {mkl_version()}", low=True
    ),
}
