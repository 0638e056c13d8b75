"""The BLAS libraries that products of matrices run by: numpy's own, and MKL.

Each is an entry of `BACK_ENDS`. What a library cannot multiply where it lies, numpy multiplies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_info

from runtime.backends.device.mkl import mkl, mkl_version
from runtime.backends.device.table import BoundCall
from symgraph.core.types import Array

SLOW_ROWS = range(2, 64)  # rows for which OpenBLAS does W x^T at twice the rate of x W^T
ROWS_FIRST, PLAIN, TURNED = 101, 111, 112  # CBLAS_LAYOUT, CBLAS_TRANSPOSE
ENUM, SIZE, POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
# The functions, by the dtype of the factors: those of bfloat16 are passed as uint16.
GEMMS: dict[str, tuple[str, Any]] = {
    "float32": ("cblas_sgemm_64", ctypes.c_float),
    "float64": ("cblas_dgemm_64", ctypes.c_double),
    "uint16": ("cblas_gemm_bf16bf16f32_64", ctypes.c_float),
}


class BackEnd(NamedTuple):
    """A library of matrix products."""

    #: out (M, N), C-contiguous, = x (M, K) y (K, N), which may be transposed views.
    bind: Callable[[Array, Array, Array], BoundCall]
    #: The product of stacks of matrices, with the arguments of `numpy.matmul`.
    matmul: Callable[..., Array]
    #: Whether it is installed.
    installed: Callable[[], bool]
    #: Its name, version and, where it says so, kernels.
    describe: Callable[[], str]
    #: Whether it also binds products of bfloat16, passed as uint16, into float32.
    low: bool = False


# -- numpy's own ---------------------------------------------------------------------------------


def numpy_product(x: Array, y: Array, out: Array) -> BoundCall:
    """Bind a product by numpy's BLAS."""
    if len(x) in SLOW_ROWS and y.strides[0] == y.itemsize < y.strides[1]:
        return BoundCall(_turned, (x, y, out))
    return BoundCall(np.dot, (x, y, out))


def _turned(x: Array, y: Array, out: Array) -> None:
    """Compute x y as (y^T x^T)^T."""
    out[...] = (y.T @ x.T).T


@cache
def numpy_blas() -> str:
    """Return numpy's library and the kernel it chose, such as "openblas 0.3.31 SkylakeX"."""
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    numpys = [library for library in libraries if "numpy" in library["filepath"]]
    found = {
        " ".join(str(library.get(key) or "") for key in ("internal_api", "version", "architecture"))
        for library in numpys or libraries  # others come with SciPy, once something imports it
    }
    return ", ".join(sorted(found)) or "unknown"


# -- MKL -----------------------------------------------------------------------------------------


@cache
def _gemm(dtype: str) -> tuple[Any, Any]:
    """Return MKL's function for a dtype, and the type of its factors alpha and beta."""
    name, number = GEMMS[dtype]
    function = getattr(mkl(), name)
    matrix = (POINTER, SIZE)
    function.argtypes = (*[ENUM] * 3, *[SIZE] * 3, number, *matrix, *matrix, number, *matrix)
    function.restype = None
    return function, number


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


def mkl_arguments(x: Array, y: Array, out: Array) -> tuple[Any, ...] | None:
    """Return a function of MKL, and its arguments, for out = x y; None if it has none.

    bfloat16, as uint16, is multiplied into float32.
    """
    kind, wide = x.dtype.name, "float32" if x.dtype.name == "uint16" else x.dtype.name
    if kind not in GEMMS or y.dtype != x.dtype or out.dtype.name != wide:
        return None
    a, b, c = map(_operand, (x, y, out))
    if a is None or b is None or c is None or c[0] == TURNED or not x.size * y.size:
        return None
    function, number = _gemm(kind)
    sizes = *out.shape, x.shape[1]
    return (
        function,
        *(ROWS_FIRST, a[0], b[0], *sizes, number(1)),
        *(*a[1:], *b[1:], number(0), *c[1:]),
    )


def mkl_product(x: Array, y: Array, out: Array) -> BoundCall:
    """Bind a product by MKL."""
    made = mkl_arguments(x, y, out)
    if made is None:
        return numpy_product(x, y, out)
    function, *args = made
    return BoundCall(_call, (function, args, (x, y, out)))


def _call(function: Callable[..., None], args: list[Any], kept: object) -> None:
    """Run a product; `kept` keeps alive the memory that the arguments point to."""
    function(*args)


def mkl_matmul(x: Array, y: Array, out: Array | None = None) -> Array:
    """Multiply stacks of matrices by MKL, as `numpy.matmul` does."""
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    if out is None:
        out = np.empty((*lead, x.shape[-2], y.shape[-1]), np.result_type(x, y))
    if x.dtype != y.dtype or x.dtype != out.dtype or not out.flags.c_contiguous:
        return np.matmul(x, y, out=out)
    xs, ys = (np.broadcast_to(a, (*lead, *a.shape[-2:])) for a in (x, y))
    for index in np.ndindex(lead):
        made = mkl_arguments(xs[index], ys[index], out[index])
        if made is None:
            np.matmul(xs[index], ys[index], out=out[index])
        else:
            made[0](*made[1:])
    return out


BACK_ENDS = {
    "openblas": BackEnd(numpy_product, np.matmul, lambda: True, numpy_blas),
    "mkl": BackEnd(
        mkl_product, mkl_matmul, lambda: mkl() is not None, lambda: f"mkl {mkl_version()}", low=True
    ),
}
