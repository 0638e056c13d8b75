"""Native: operators as compiled loops on arrays that are given, without the interpreter's lock."""

from __future__ import annotations

from runtime.native import flat, gates, gemm, rows, softmax  # noqa: F401  (they fill the table)
from runtime.native.base import KERNELS, Bound, Clock, Task, nothing

__all__ = ["KERNELS", "Bound", "Clock", "Task", "nothing"]
