"""Products by cuBLAS, called with prepared arguments, so that a CUDA graph can hold them.

CuPy's products cannot be captured, and check types, strides and handles at each call. Here a
product is checked once, when it is bound; then it is one call of the library
that CuPy has loaded. Each stream has a handle of its own, with a workspace of its own: cuBLAS would
otherwise allocate one in every graph. Sums are float32 for 16-bit numbers and float32, float64 for
float64; `SYMGRAPH_PRODUCTS` lets those of float32 be less strict, see
runtime/backends/device/arrays.py.

Source: cuBLAS's documentation of cublasGemmStridedBatchedEx, and its notes on CUDA graphs.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from runtime.backends.cuda.base import PLANNED
from runtime.backends.device import arrays, settings
from runtime.backends.device.table import BoundCall, noop
from symgraph.core.types import Array, wide

LIBRARIES = ("libcublas.so.13", "libcublas.so.12")
WORKSPACE = 32 << 20  # bytes: what cuBLAS wants for itself on Hopper, and more than it does before
TYPES = {"float64": 1, "float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType
PLAIN, TURNED = 0, 1  # cublasOperation_t
SUMS_32, SUMS_64 = 68, 70  # cublasComputeType_t
LOOSE = {"float32": SUMS_32, "tf32": 77, "bfloat16": 75}  # for products of float32
ANY_ALGORITHM = -1
POINTER, INT, WIDE = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
MATRIX = (POINTER, INT, INT)  # address, type, row stride; then the stride of several matrices
GEMM = (POINTER, *[INT] * 5, POINTER, *MATRIX, *MATRIX, POINTER, *MATRIX, INT, INT)
ALL = *MATRIX, WIDE
GEMMS = (POINTER, *[INT] * 5, POINTER, *ALL, *ALL, POINTER, *ALL, INT, INT, INT)


class BlasError(RuntimeError):
    """A cuBLAS call failed."""


def _checked(status: int) -> None:
    if status:
        raise BlasError(f"cuBLAS status {status} (see cublasStatus_t)")


@cache
def _library(cublas: Any) -> Any:
    """Return the cuBLAS library that CuPy has loaded, with typed functions that raise BlasError.

    Handles are made by it as well, and not by the module: where another package has loaded a
    cuBLAS of another version, this one may be that.
    """
    library = arrays.shared_library(*LIBRARIES)
    for name, types in (
        ("cublasCreate_v2", (POINTER,)),
        ("cublasSetStream_v2", (POINTER, POINTER)),
        ("cublasGemmEx", GEMM),
        ("cublasGemmStridedBatchedEx", GEMMS),
        ("cublasSetWorkspace_v2", (POINTER, POINTER, ctypes.c_size_t)),
    ):
        function = getattr(library, name)
        function.argtypes, function.restype = types, _checked
    return library


class Blas:
    """cuBLAS on one stream."""

    def __init__(self, cupy: Any, stream: int) -> None:
        library, handle = _library(cupy.cuda.cublas), ctypes.c_void_p()
        self.gemm: Callable[..., None] = library.cublasGemmEx
        self.gemms: Callable[..., None] = library.cublasGemmStridedBatchedEx
        library.cublasCreate_v2(ctypes.addressof(handle))
        self.handle = handle.value
        library.cublasSetStream_v2(self.handle, stream)  # takes the workspace away: comes first
        self._workspace = cupy.empty(WORKSPACE, "uint8")
        library.cublasSetWorkspace_v2(self.handle, arrays.address(self._workspace), WORKSPACE)


_of_streams: dict[tuple[Any, int], Blas] = {}


def blas_of(cupy: Any) -> Blas:
    """Return the current stream's cuBLAS."""
    at = cupy, cupy.cuda.get_current_stream().ptr
    if at not in _of_streams:
        _of_streams[at] = Blas(*at)
    return _of_streams[at]


def workspace_held() -> int:
    """Return the bytes of the current stream's workspace."""
    cupy = arrays.loaded()
    return WORKSPACE if (cupy, cupy.cuda.get_current_stream().ptr) in _of_streams else 0


class Matrix(NamedTuple):
    """Matrices (count, rows, columns) as cuBLAS takes them, which reads column after column."""

    array: Array
    operation: int  # what makes their transposes, as cuBLAS reads them, of what lies there
    rows_apart: int  # numbers from one row, or column, to the next
    apart: int  # numbers from one matrix to the next

    @classmethod
    def of(cls, array: Array) -> Matrix | None:
        """Describe an array of 2 or 3 axes; None if neither rows nor columns are contiguous."""
        *lead, rows, columns = (s // array.itemsize for s in array.strides)
        height, width = array.shape[-2:]
        apart = lead[0] if lead else 0
        if columns == 1 or width == 1:
            return cls(array, PLAIN, max(rows if height > 1 else width, width), apart)
        if rows == 1 or height == 1:
            return cls(array, TURNED, max(columns if width > 1 else height, height), apart)
        return None

    @property
    def place(self) -> tuple[int, ...]:
        """The arguments of `MATRIX`, or those of `ALL` for several matrices."""
        kind, several = TYPES[self.array.dtype.name], self.array.ndim > 2
        return arrays.address(self.array), kind, self.rows_apart, *([self.apart] * several)


def product(x: Array, y: Array, out: Array, *, adds: bool = False) -> BoundCall | None:
    """Bind out (M, N) = x (M, K) y (K, N), or that for each of `count` if all have 3 axes.

    With `adds`, the product is added to what out is.

    x and y may be transposed views; out is contiguous. x and y are of one dtype of `TYPES`, and so
    is out, which is float32 as well if they have 16 bits; None if they are not, or if cuBLAS cannot
    read them where they lie.
    """
    kind, inner = x.dtype.name, x.shape[-1]
    if kind not in TYPES or x.dtype != y.dtype or out.dtype.name not in (kind, wide(kind)):
        return None
    if not math.prod(out.shape) * inner:
        return None
    a, b, c = (
        Matrix.of(array) for array in (y, x, out)
    )  # cuBLAS stores columns first: out^T = y^T x^T
    if a is None or b is None or c is None or c.operation == TURNED:
        return None
    needs = PLANNED.get()
    if needs is not None:
        needs.workspace = WORKSPACE
        return BoundCall(noop, ())
    number = ctypes.c_double if kind == "float64" else ctypes.c_float
    sums = SUMS_64 if kind == "float64" else SUMS_32
    if kind == "float32":
        sums = LOOSE[settings.product_precision()]
    one, before = number(1), number(1 if adds else 0)
    rows, columns = out.shape[-2:]
    args = (
        a.operation,
        b.operation,
        columns,
        rows,
        inner,
        ctypes.addressof(one),
        *a.place,
        *b.place,
        ctypes.addressof(before),
        *c.place,
        *out.shape[:-2],
        sums,
        ANY_ALGORITHM,
    )
    kept = x, y, out, one, before
    cupy = arrays.loaded()
    blas_of(cupy)  # its workspace is allocated now
    return BoundCall(_call, (cupy, out.ndim > 2, args, kept))


def times(x: Array, y: Array, out: Array) -> BoundCall:
    """Bind a product of arrays that are known to be such as `product` takes."""
    bound = product(x, y, out)
    assert bound is not None
    return bound


def _call(cupy: Any, several: bool, args: tuple[Any, ...], kept: object) -> None:
    """Run a product; `kept` keeps alive the memory that the arguments point to."""
    blas = blas_of(cupy)
    (blas.gemms if several else blas.gemm)(blas.handle, *args)
