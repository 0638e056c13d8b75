"""A stand-in for MKL in `BACK_ENDS`: numpy's products, which are counted."""

from __future__ import annotations

import numpy as np

from runtime.backends.cpu.blas import BackEnd
from runtime.backends.device.table import BoundCall


def fake_mkl() -> tuple[BackEnd, list[str]]:
    """A back end, and a list that takes the dtype of each product's factors."""
    made: list[str] = []

    def multiply(x: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        made.append(x.dtype.name)
        if x.dtype == np.uint16:  # bfloat16: the upper half of float32
            x, y = ((a.astype(np.uint32) << 16).view(np.float32) for a in (x, y))
        return np.matmul(x, y, out=out)

    def add(x: np.ndarray, y: np.ndarray, out: np.ndarray, row: np.ndarray | None) -> None:
        multiply(x, y, out)
        if row is not None:
            out += row

    def bind(
        x: np.ndarray, y: np.ndarray, out: np.ndarray, row: np.ndarray | None = None
    ) -> BoundCall:
        return BoundCall(add, (x, y, out, row))

    return BackEnd(bind, multiply, lambda: True, lambda: "mkl 0", low=True), made
