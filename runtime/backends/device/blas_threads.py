"""BLAS: how many threads it uses, and whether it is kept below what the processor can do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

# OpenBLAS's names of kernels, by the widest vector instructions that they use.
WIDTHS = {
    "avx512f": {"SkylakeX", "Cooperlake", "Sapphirerapids"},
    "avx2": {"Haswell", "Zen", "Excavator"},
    "avx": {"Sandybridge", "Bulldozer", "Piledriver", "Steamroller"},
}
CORE_TYPE = "OPENBLAS_CORETYPE"


def limit_blas(threads: int) -> Any:
    """Let matrix products use that many threads in this process (a context manager)."""
    return threadpool_limits(limits=threads, user_api="blas")


class SharedCores:
    """This process's cores shared out among ranks, for matrix products; cheap to enter each step.

    Products use no more threads than they were allowed before.
    """

    def __init__(self, ranks: int) -> None:
        self._controller = ThreadpoolController().select(user_api="blas")
        allowed = [library["num_threads"] for library in self._controller.info()]
        self.threads = max(1, min([os.cpu_count() or 1, *allowed]) // ranks)

    def limit(self) -> Any:
        """A context manager, inside of which products use `threads` threads."""
        return self._controller.limit(limits=self.threads)


def slowed_down(
    environment: dict[str, str], kernels: str | None = None, flags: set[str] | None = None
) -> str:
    """In words, that the environment makes OpenBLAS slower than the processor; "" if it does not.

    kernels: those that OpenBLAS has chosen. flags: of the processor. By default, found out.
    """
    if not environment.get(CORE_TYPE):
        return ""
    names = [str(b.get("architecture")) for b in threadpool_info() if b["user_api"] == "blas"]
    kernels = kernels or next(iter(names), "")
    flags = _flags() if flags is None else flags
    best = next((width for width in WIDTHS if width in flags), None)
    if best is None or kernels in WIDTHS[best]:
        return ""
    return (
        f"{CORE_TYPE}={environment[CORE_TYPE]} makes matrix products run without this processor's "
        f"{best.upper()}, at half their speed or less: unset it"
    )


def _flags() -> set[str]:
    """What /proc/cpuinfo says of the processor; nothing where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    found = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return set(next(found, []))
