"""CPU kernels: operators as compiled loops that run without the interpreter's lock.

May import device; stands beside cuda.
Start reading: softmax.py; vector.py has the vectorised functions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtime.backends.cpu import (  # noqa: F401  (they fill the table)
    attention,
    conv,
    dropout,
    flat,
    gates,
    gemm,
    labels,
    normalize,
    pool,
    rows,
    sequence,
    softmax,
)
from runtime.backends.cpu.table import CASTING, KERNELS

__all__ = ["CASTING", "KERNELS", "cached"]


def cached() -> tuple[bool, Path | None]:
    """Tell whether compiled kernels are in the cache on disk, and return its folder, if any."""
    compiled: Any = rows.gather  # any of them
    folder = compiled.stats.cache_path
    return folder is not None and any(Path(folder).glob("*.nbi")), folder and Path(folder)
