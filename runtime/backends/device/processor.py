"""The processor of this machine: its cores, what its caches hold, and the threads of its BLAS."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from threadpoolctl import ThreadpoolController, threadpool_info

from partitioner.costs.cost import Caches
from runtime.backends.device.mkl import mkl
from symgraph.core.types import Array

CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL_CACHES = Caches(1 << 20, 32 << 20)  # where the system does not say
LINE = 64  # bytes
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# OpenBLAS's names of kernels, by the widest vector instructions that they use.
BLAS_KERNELS = {
    "avx512f": {"SkylakeX", "Cooperlake", "Sapphirerapids"},
    "avx2": {"Haswell", "Zen", "Excavator"},
    "avx": {"Sandybridge", "Bulldozer", "Piledriver", "Steamroller"},
}
CORE_TYPE = "OPENBLAS_CORETYPE"
QUIET_SECONDS, LOOK_SECONDS = 0.5, 5e-3  # of `await_quiet`, in all and at a time
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(usable_cores())


def processor_name() -> str:
    """Return the name of this machine's processor."""
    return _processor_line("model name") or platform.processor() or platform.machine()


def _processor_line(key: str) -> str:
    """Return the first value of a key of /proc/cpuinfo; none where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


# -- caches ------------------------------------------------------------------------------------


def find_caches(workers: int = 1, folder: Path = CACHE_FOLDER) -> Caches:
    """Return each worker's caches, one core per worker: its own, and its part of the shared one."""
    levels: dict[int, tuple[int, int]] = {}  # level -> bytes, and number of cores that share them
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size, cpus = (
                (index / name).read_text(encoding="ascii").strip()
                for name in ("type", "level", "size", "shared_cpu_list")
            )
            if kind != "Instruction":
                levels[int(level)] = _bytes(size), _cpu_count(cpus)
        except (OSError, ValueError, KeyError):
            continue
    if len(levels) < 2:
        return Caches(USUAL_CACHES.own, USUAL_CACHES.shared // workers)
    *_, (own, _), (last, cores) = (levels[level] for level in sorted(levels))
    return Caches(own, max(own, last // min(workers, cores)))


def _bytes(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def _cpu_count(cpus: str) -> int:
    """Count the processors of a list such as 0-3,8."""
    ranges = [part.split("-") for part in cpus.split(",")]
    return sum(int(r[-1]) - int(r[0]) + 1 for r in ranges)


class CacheFlusher:
    """Empties a worker's caches by reading more than they hold: memory taken when it is read."""

    def __init__(self, caches: Caches) -> None:
        """Take nothing yet; caches: those of the worker."""
        self._caches = caches

    @cached_property
    def _own(self) -> Array:
        return _lines(2 * self._caches.own)

    @cached_property
    def _shared(self) -> Array:
        return _lines(2 * self._caches.shared)

    def own(self) -> None:
        """Empty the cache of this core."""
        self._own.sum()

    def shared(self) -> None:
        """Empty the worker's part of the cache that the cores share, as all workers must."""
        self._shared.sum()


def _lines(nbytes: int) -> Array:
    """Take memory; return a number of each line of it, which is what a cache reads at once."""
    memory = np.ones(nbytes // 4, np.float32)
    return memory[:: LINE // memory.itemsize]


# -- BLAS --------------------------------------------------------------------------------------


_allowed: list[int] = []  # threads of a product, by all limits in force; the last counts


class _Libraries:
    """The BLAS libraries that this process has loaded."""

    def __init__(self) -> None:
        mkl()  # loaded later it would have no limit
        loaded = ThreadpoolController().select(user_api="blas")
        kinds = {library.internal_api for library in loaded.lib_controllers}
        self._mkl = [one.dynlib for one in loaded.lib_controllers if one.internal_api == "mkl"]
        self._others = loaded.select(internal_api=[*(kinds - {"mkl"})])
        self._all = loaded

    def threads(self) -> list[int]:
        """Return the threads that a product on this thread may use, by library."""
        return [library["num_threads"] for library in self._all.info()]

    @contextmanager
    def limit(self, threads: int) -> Iterator[None]:
        """Limit products of all threads of this process, and those of our own kernels.

        threadpoolctl limits MKL for the calling thread only.
        """
        before = [
            (one, one.MKL_Set_Num_Threads_Local(0), one.MKL_Get_Max_Threads()) for one in self._mkl
        ]
        with self._others.limit(limits=threads):
            for library in self._mkl:
                library.MKL_Set_Num_Threads(threads)
            _allowed.append(threads)
            try:
                yield
            finally:
                _allowed.pop()
                for library, here, everywhere in before:
                    library.MKL_Set_Num_Threads(everywhere)
                    library.MKL_Set_Num_Threads_Local(here)


def limit_blas(threads: int) -> AbstractContextManager[None]:
    """Limit matrix products to this number of threads in this process, our own kernels' too."""
    return _Libraries().limit(threads)


def product_threads() -> int:
    """Return the threads that a product of our own kernels may use: 1 where there is no limit."""
    return _allowed[-1] if _allowed else 1


def await_quiet() -> None:
    """Wait until this process rests, before something is timed; for half a second at most.

    After a product the threads of a BLAS wait for the next one with a core each: those of OpenBLAS
    for 2**26 cycles, those of Intel's OpenMP for 0.2 s.
    """
    end = time.perf_counter() + QUIET_SECONDS
    while time.perf_counter() < end:
        used = time.process_time()
        time.sleep(LOOK_SECONDS)
        if time.process_time() - used < LOOK_SECONDS / 5:
            return


@cache
def _libraries() -> _Libraries:
    return _Libraries()


class SharedCores:
    """A rank's share of this host's cores, for matrix products; cheap to enter each step."""

    def __init__(self, cores: int) -> None:
        self._cores = cores

    @cached_property
    def threads(self) -> int:
        """The threads of a product: no more than it was allowed before."""
        return min([self._cores, *_libraries().threads()])

    def limit(self) -> AbstractContextManager[None]:
        """Return a context manager inside which products use `threads`, or what `limit_blas` says.

        Ranks that share the cores without any limit wait for each other's threads of BLAS, for many
        times the time of the work.
        """
        if _allowed:
            return nullcontext()
        return _libraries().limit(self.threads)


def slow_blas_warning(
    environment: dict[str, str], kernels: str | None = None, flags: set[str] | None = None
) -> str:
    """Return a warning if OPENBLAS_CORETYPE makes BLAS slower than this processor allows, else "".

    kernels: the kernel set that OpenBLAS has chosen; flags: of the processor; both are looked up
    by default.
    """
    if not environment.get(CORE_TYPE):
        return ""
    names = [b["architecture"] for b in threadpool_info() if b.get("architecture")]
    kernels = kernels or next(iter(names), "")
    flags = {*_processor_line("flags").split()} if flags is None else flags
    best = next((width for width in BLAS_KERNELS if width in flags), None)
    if best is None or kernels in BLAS_KERNELS[best]:
        return ""
    return (
        f"{CORE_TYPE}={environment[CORE_TYPE]} makes matrix products run without this processor's "
        f"{best.upper()}, at half their speed or less: unset it"
    )


def host_memory() -> int:
    """Return the bytes of this host's memory, or of this container's where that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        text = path.read_text().strip() if path.is_file() else ""
        limits += [int(text)] if text.isdigit() else []
    return min(limits)
