"""Kernels for GPUs, by operator: what is not here runs by the operator's own computation."""

from __future__ import annotations

from runtime.cuda import conv, dropout, gates, labels, linear, pool, rows, softmax  # noqa: F401  (they fill the table)
from runtime.cuda.base import KERNELS

__all__ = ["KERNELS"]
