"""The rates of a device: products, additions and small calls, measured in a tenth of a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from math import inf
from statistics import median
from typing import NamedTuple

import numpy as np

from partitioner.costs.cost import Rates, Speed
from runtime.backends.bodies import BoundBody, packed_buffer
from runtime.backends.cpu.gemm import pack
from runtime.backends.device.arrays import HOST, Device
from runtime.backends.device.table import CallContext
from runtime.profiling.calibration.excerpts import bound, captured
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import VARIABLE
from symgraph.core.types import Array, TensorType, Value

Work = Callable[[], object]
Timer = Callable[[Work, Device], float]  # the seconds of one call of some work


class Sizes(NamedTuple):
    """The work that rates are measured by."""

    side: int
    """The side of square float32 matrices, whose product is large enough for the full rate."""
    adding: int
    """Bytes of each array that is added: more than the caches of one core, or of a GPU, hold."""


HOST_SIZES, GPU_SIZES = Sizes(512, 4 << 20), Sizes(4096, 128 << 20)
UNCACHED = 16 << 20  # bytes: more than fit in a cache that cores share
CALLS = 200  # of a small operator in one body
SMALL_TYPE = TensorType((16,))
TRIES = 7
ROW_SECONDS, ROW_CALLS = 2e-3, 1 << 12  # of calls on a GPU in a row, at least and at most


def measure_speed(here: Device = HOST) -> Speed:
    """Measure a device by itself, as the best of a few tries.

    On the CPU, BLAS uses as many threads as the caller allows.
    """
    with here.use():
        return speed_of(here, HOST_SIZES if here.is_host else GPU_SIZES, least, call_seconds)


def speed_of(
    here: Device, sizes: Sizes, timer: Timer, call_timer: Callable[[Device], float]
) -> Speed:
    """Measure the rates of matrix products and of large additions, and a small call.

    Args:
        here: the device, which this thread uses.
        sizes: the work.
        timer: times products and additions.
        call_timer: times small calls.
    """
    multiply = timer(product(here, sizes.side), here)
    add = timer(addition(here, sizes.adding), here)
    return Speed(2 * sizes.side**3 / multiply, call_timer(here), 3 * sizes.adding / add)


def product(here: Device, side: int) -> Work:
    """Return a product of two square float32 matrices, on the device that this thread uses."""
    a = here.put(np.ones((side, side), np.float32))
    out = here.xp.empty_like(a)
    return lambda: here.xp.matmul(a, a, out=out)


def addition(here: Device, nbytes: int) -> Work:
    """Return a sum of two float32 arrays of that size, on the device that this thread uses."""
    x, y, z = (here.put(np.ones(nbytes // 4, np.float32)) for _ in range(3))
    return lambda: here.xp.add(x, y, out=z)


def measure_rates() -> Rates:
    """Measure how fast the CPU adds large arrays, and packs a large weight in both forms."""
    total, term = (np.ones(UNCACHED // 4, np.float32) for _ in range(2))
    adding = median(timed(lambda: np.add(total, term, out=total)) for _ in range(15))
    side, nbytes = HOST_SIZES
    weight = np.ones((nbytes // 4 // side, side), np.float32)
    as_is, transposed = (packed_buffer(weight, turned) for turned in (False, True))

    def pack_both() -> None:
        pack(weight, as_is, False)
        pack(weight, transposed, True)

    packing = median(timed(pack_both) for _ in range(7))
    return Rates(3 * UNCACHED / adding, 4 * nbytes / packing)


def rates_of_card(speed: Speed) -> Rates:
    """Return the rates of a GPU; nothing is packed for its products."""
    return Rates(speed.bandwidth, inf)


def call_seconds(here: Device = HOST) -> float:
    """Return the least seconds of a small addition's call, of a few tries."""
    return min(seconds_of_calls("elemwise_add", 2, here) for _ in range(TRIES))


def seconds_of_calls(op: str, inputs: int = 1, here: Device = HOST) -> float:
    """Return the seconds of one call of an operator on 16 numbers, in a body of nothing else."""
    context = CallContext()
    body = calls_of(op, inputs, context, here)
    seconds = timed(body.run) if here.is_host else repeated(captured(body, context, here), here)
    return seconds / CALLS


def calls_of(op: str, inputs: int, context: CallContext, here: Device) -> BoundBody:
    """Return a body of nothing but calls of an operator on 16 numbers."""
    reads = (Value("x"),) * inputs
    calls = [Node(f"call{i}", op, reads, types=(SMALL_TYPE,)) for i in range(CALLS)]
    graph = Graph.of([Node("x", VARIABLE, types=(SMALL_TYPE,)), *calls], ())
    x: Array = here.put(np.ones(SMALL_TYPE.shape, SMALL_TYPE.dtype))
    return bound(graph, {"x": x}, context, here)


def least(work: Work, here: Device) -> float:
    """Return the least seconds of a call of some work, of a few tries."""
    return min(timed(work) if here.is_host else repeated(work, here) for _ in range(TRIES))


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
