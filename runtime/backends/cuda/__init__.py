"""Kernels for GPUs, by operator: what is not here runs by the operator's own computation."""

from __future__ import annotations

from runtime.backends.cuda import (  # noqa: F401  (they fill the table)
    conv,
    dropout,
    flat,
    gates,
    labels,
    linear,
    lines,
    movement,
    norm,
    pool,
    reductions,
    rows,
    sequence,
    softmax,
)
from runtime.backends.cuda.base import KERNELS

__all__ = ["KERNELS"]
