"""cuBLAS of the stand-in for CuPy: a library's functions, called with addresses as ctypes would."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.fakes.fake_graphs import noted
from tests.fakes.fake_memory import uses
from tests.fakes.fake_streams import current

TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: "bfloat16"}
SUMS = {68: np.float32, 70: np.float64, 75: np.float32, 77: np.float32}


def columns(address: int, kind: int, rows: int, width: int, apart: int) -> np.ndarray:
    """A matrix that lies column after column, `apart` numbers from one to the next."""
    dtype = np.dtype(TYPES[kind])
    assert apart >= rows, "leading dimension"
    size = (width - 1) * apart + rows
    flat = np.frombuffer((ctypes.c_char * (size * dtype.itemsize)).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(
        flat, (rows, width), (dtype.itemsize, apart * dtype.itemsize), writeable=True
    )


class Function:
    """A function of the library: takes what its argument types take, raises by its result type."""

    argtypes: tuple[Any, ...] = ()
    restype: Any = None

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        assert len(args) == len(self.argtypes)
        for kind, arg in zip(self.argtypes, args, strict=True):
            assert type(arg) is int, "addresses and numbers, ready to be passed"
            kind.from_param(arg) if kind is ctypes.c_void_p else kind(arg)
        return self.restype(self._call(*args))


def _scalar(address: int, sums: Any) -> float:
    number = ctypes.c_double if sums is np.float64 else ctypes.c_float
    return number.from_address(address).value


def _gemm(handle: int, ta: int, tb: int, m: int, n: int, k: int, alpha: int, *rest: int) -> int:
    """One product, or several if there are distances between them."""
    several = len(rest) == 16
    step = 4 if several else 3
    a, b = rest[:step], rest[step : 2 * step]
    beta, c, tail = rest[2 * step], rest[2 * step + 1 : 3 * step + 1], rest[3 * step + 1 :]
    count = tail[0] if several else 1
    sums, algorithm = SUMS[tail[-2]], tail[-1]
    assert algorithm == -1
    assert HANDLES[handle] == current().ptr, "a product on another stream than its handle's"
    assert _scalar(alpha, sums) == 1
    adds = _scalar(beta, sums)
    assert adds in (0, 1)
    for i in range(count):
        place = [
            matrix[0] + (i * matrix[3] * np.dtype(TYPES[matrix[1]]).itemsize if several else 0)
            for matrix in (a, b, c)
        ]
        x = columns(place[0], *a[1:2], *((k, m) if ta else (m, k)), a[2])
        y = columns(place[1], *b[1:2], *((n, k) if tb else (k, n)), b[2])
        out = columns(place[2], *c[1:2], m, n, c[2])
        uses([x, y, *([out] if adds else [])], [out])

        def call(x: np.ndarray = x, y: np.ndarray = y, out: np.ndarray = out) -> None:
            left, right = (x.T if ta else x).astype(sums), (y.T if tb else y).astype(sums)
            before = out.astype(sums) if adds else 0
            out[...] = (left @ right + before).astype(out.dtype)

        noted(call, out)
    return 0


HANDLES: dict[int, int] = {}  # handle -> stream


def _create(address: int) -> int:
    handle = len(HANDLES) + 1
    HANDLES[handle] = 0
    ctypes.c_void_p.from_address(address).value = handle
    return 0


def _set_stream(handle: int, stream: int) -> int:
    assert handle in HANDLES
    HANDLES[handle] = stream
    return 0


def _set_workspace(handle: int, address: int, size: int) -> int:
    assert HANDLES[handle], "cublasSetStream takes a workspace away, so it comes first"
    return 0


class Library:
    """libcublas.so."""

    def __init__(self) -> None:
        self.cublasCreate_v2 = Function(_create)
        self.cublasSetStream_v2 = Function(_set_stream)
        self.cublasGemmEx = Function(_gemm)
        self.cublasGemmStridedBatchedEx = Function(_gemm)
        self.cublasSetWorkspace_v2 = Function(_set_workspace)
