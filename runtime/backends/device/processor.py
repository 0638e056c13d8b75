"""The processor of this machine: its cores, what its caches hold, and how to empty them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from partitioner.costs.cost import Caches

FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL = Caches(1 << 20, 32 << 20)  # where the system does not say
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def core_count() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def find_caches(workers: int = 1, folder: Path = FOLDER) -> Caches:
    """What one of so many cores finds at hand: its own cache, and its part of the shared one."""
    found: dict[int, tuple[int, int]] = {}  # level -> bytes, and how many cores share them
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size, cpus = (
                (index / name).read_text(encoding="ascii").strip()
                for name in ("type", "level", "size", "shared_cpu_list")
            )
            if kind != "Instruction":
                found[int(level)] = _bytes(size), _count(cpus)
        except (OSError, ValueError, KeyError):
            continue
    if len(found) < 2:
        return Caches(USUAL.own, USUAL.shared // workers)
    *_, (own, _), (last, cores) = (found[level] for level in sorted(found))
    return Caches(own, max(own, last // min(workers, cores)))


class Sweeps:
    """Reads so much that what a cache held is gone from it."""

    def __init__(self, caches: Caches, workers: int) -> None:
        self._buffer = np.ones(2 * caches.shared * workers // 4, np.float32)
        self._few = self._buffer[: 2 * caches.own // 4]

    def own(self) -> None:
        """Empty the cache of this core."""
        self._few.sum()

    def all(self) -> None:
        """Empty the cache that the cores share."""
        self._buffer.sum()


def _bytes(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def _count(cpus: str) -> int:
    """How many there are in a list such as 0-3,8."""
    ranges = [part.split("-") for part in cpus.split(",")]
    return sum(int(r[-1]) - int(r[0]) + 1 for r in ranges)
