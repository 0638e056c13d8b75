"""Kernels for GPUs, by operator: what is not here runs by the operator's own computation."""

from __future__ import annotations

from runtime.native.base import Maker

KERNELS: dict[str, Maker] = {}

__all__ = ["KERNELS"]
