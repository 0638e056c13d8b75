"""The bench: how work on a device is timed; hosts and GPUs are told apart here.

A host's calls are timed one by one. A GPU's are queued, so that only many calls in a row can be.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_info

from runtime.backends.bodies import BoundBody
from runtime.backends.cpu.choice import chosen
from runtime.backends.device.arrays import Device
from runtime.backends.device.processor import host_memory, processor_name
from runtime.backends.device.table import CallContext
from runtime.profiling.calibration.excerpts import captured

PRODUCTS = "products"
ROW_SECONDS, ROW_CALLS = 2e-3, 1 << 12  # of a row of calls on a GPU: at least, and at most

Work = Callable[[], object]


class Sizes(NamedTuple):
    """The work that rates are measured by."""

    side: int
    """The side of square float32 matrices, whose product is large enough for the full rate."""
    adding: int
    """Bytes of each array that is added: more than the caches of one core, or of a GPU, hold."""


class Bench:
    """Times work on a host's device, which this thread uses."""

    alone_sizes, crowded_sizes = Sizes(512, 4 << 20), Sizes(512, 16 << 20)
    """The work of a device by itself, and while all others work as well."""
    round_trips = 1
    """Round trips of messages before the host waits for the device."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def seconds(self, work: Work) -> float:
        """Return the seconds of a call of some work."""
        return timed(work)

    def body_seconds(self, body: BoundBody, context: CallContext) -> float:
        """Return the seconds of a body's run."""
        return timed(body.run)

    def crowded_seconds(self, work: Work, enough: float) -> float:
        """Return the seconds of a call while all devices work; a quarter of the calls are faster.

        The median would count what other programs take from this one.
        """
        times: list[float] = []
        begun = end = time.perf_counter()
        while end < begun + enough:
            start, end = end, _after(work)
            times.append(end - start)
        return float(np.percentile(times, 25))

    def describe(self) -> dict[str, str]:
        """Describe what times depend on."""
        return describe_machine()

    def place(self) -> tuple[str, int]:
        """Return the name of the memory that devices share with this one, and its free bytes."""
        return "host", host_memory()


class GpuBench(Bench):
    """Times work on a GPU, which this thread uses."""

    alone_sizes = crowded_sizes = Sizes(4096, 128 << 20)
    round_trips = 10

    def seconds(self, work: Work) -> float:
        return repeated(work, self.device)

    def body_seconds(self, body: BoundBody, context: CallContext) -> float:
        return repeated(captured(body, context, self.device), self.device)

    def crowded_seconds(self, work: Work, enough: float) -> float:
        return repeated(work, self.device, enough)

    def describe(self) -> dict[str, str]:
        return describe_card(self.device)

    def place(self) -> tuple[str, int]:
        runtime = self.device.xp.cuda.runtime
        return f"card {runtime.getDevice()}", int(runtime.memGetInfo()[0])


def bench_of(device: Device) -> Bench:
    """Create the bench of a device."""
    return Bench(device) if device.is_host else GpuBench(device)


# -- times ---------------------------------------------------------------------------------------


def repeated(work: Work, here: Device, enough: float = ROW_SECONDS) -> float:
    """Return the mean seconds of many calls of some work for a GPU, one after the other.

    What takes longer counts: to make the calls, or to do what they ask for.

    Args:
        work: the work.
        here: the GPU, which this thread uses.
        enough: the seconds that all calls together should take.
    """
    stamps, count = here.stamps(), 1
    while True:
        stamps.begin()
        start = stamps.stamp()
        calling = timed(partial(_call, work, count))
        end = stamps.stamp()
        here.finish()
        begin, done = stamps.ticks([start, end]).tolist()
        spent: float = max(calling, (done - begin) * 1e-9)
        if spent >= enough or count >= ROW_CALLS:
            return spent / count
        count *= 4


def _call(work: Work, count: int) -> None:
    for _ in range(count):
        work()


def timed(work: Work) -> float:
    """Return the seconds that some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _after(work: Work) -> float:
    work()
    return time.perf_counter()


# -- surroundings --------------------------------------------------------------------------------


def describe_machine() -> dict[str, str]:
    """Describe what times depend on: processor, libraries and threads."""
    products = str(chosen())  # it loads a library that it needs
    blas = [
        f"{b['internal_api']} {b['version']} ({b.get('architecture', '?')}) on {b['num_threads']}"
        for b in threadpool_info()
        if b["user_api"] == "blas"
    ]
    return {
        "host": platform.node(),
        "processor": processor_name(),
        "cores": str(os.cpu_count()),
        "blas": ", ".join(blas) or "unknown",
        PRODUCTS: products,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def describe_card(here: Device) -> dict[str, str]:
    """Describe what times depend on: the GPU that this thread uses, and what drives it."""
    cupy = here.xp
    runtime = cupy.cuda.runtime
    return {
        "host": platform.node(),
        "card": runtime.getDeviceProperties(runtime.getDevice())["name"].decode(),
        "driver": str(runtime.driverGetVersion()),
        "cuda": str(runtime.runtimeGetVersion()),
        "cupy": cupy.__version__,
    }
