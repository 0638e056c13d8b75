"""The namespace `sg.context`: devices, the current one, and the machine's GPUs (`mx.context`)."""

from __future__ import annotations

from symgraph.core.context import (
    Context,
    cpu,
    cpu_pinned,
    current_context,
    gpu,
    require_context,
    require_contexts,
)
from symgraph.frontend.backend import load

__all__ = [
    "Context",
    "cpu",
    "cpu_pinned",
    "current_context",
    "gpu",
    "gpu_memory_info",
    "num_gpus",
    "require_context",
    "require_contexts",
]


def num_gpus() -> int:
    """Count the GPUs that can be used here: 0 without CuPy or a driver (`mx.context.num_gpus`)."""
    count: int = load("arrays").count_gpus()
    return count


def gpu_memory_info(device_id: int = 0) -> tuple[int, int]:
    """Return the free and all bytes of a GPU (`mx.context.gpu_memory_info`).

    Raises PlacementError, saying what is missing, if there is no such GPU.
    """
    free, total = load("arrays").gpu_memory(gpu(device_id))
    return free, total
