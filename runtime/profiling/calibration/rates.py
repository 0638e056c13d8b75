"""A quick measurement of what a device does at its best, for predictions before the first step."""

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
from runtime.profiling.calibration.excerpts import bound, on_card
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import VARIABLE
from symgraph.core.types import Array, TensorType, Value


class Sizes(NamedTuple):
    """What is computed. side: of square float32 products; large enough for the full rate.

    adding: bytes of each array that is added; more than the caches of one core, or of a card, hold.
    """

    side: int
    adding: int


ON_HOST, ON_CARD = Sizes(512, 4 << 20), Sizes(4096, 128 << 20)
LARGE = 16 << 20  # bytes: more than there is room for in a cache that cores share
CALLS = 200  # of a small operator in one body
SMALL = TensorType((16,))
TRIES = 7
ENOUGH, MOST = 2e-3, 1 << 12  # seconds of calls for a card in a row; calls


def measure_speed(here: Device = HOST) -> Speed:
    """The rates of matrix products and of large additions, and a small call; best of a few tries.

    On the CPU one thread of BLAS or as many as the caller allows.
    """
    sizes = ON_HOST if here.is_host else ON_CARD
    with here.use():
        multiply = least(product(here, sizes.side), here)
        add = least(addition(here, sizes.adding), here)
        call = min(call_seconds("elemwise_add", 2, here) for _ in range(TRIES))
    return Speed(2 * sizes.side**3 / multiply, call, 3 * sizes.adding / add)


def product(here: Device, side: int) -> Callable[[], object]:
    """A product of two square float32 matrices, on the device that this thread uses."""
    a = here.put(np.ones((side, side), np.float32))
    out = here.xp.empty_like(a)
    return lambda: here.xp.matmul(a, a, out=out)


def addition(here: Device, nbytes: int) -> Callable[[], object]:
    """A sum of two float32 arrays of so many bytes, on the device that this thread uses."""
    x, y, z = (here.put(np.ones(nbytes // 4, np.float32)) for _ in range(3))
    return lambda: here.xp.add(x, y, out=z)


def measure_rates() -> Rates:
    """The CPU's rates of adding large arrays, and of packing a large weight in both forms."""
    total, term = (np.ones(LARGE // 4, np.float32) for _ in range(2))
    adding = median(timed(lambda: np.add(total, term, out=total)) for _ in range(15))
    side, nbytes = ON_HOST
    weight = np.ones((nbytes // 4 // side, side), np.float32)
    as_is, transposed = (packed_buffer(weight, turned) for turned in (False, True))

    def pack_both() -> None:
        pack(weight, as_is, False)
        pack(weight, transposed, True)

    packing = median(timed(pack_both) for _ in range(7))
    return Rates(3 * LARGE / adding, 4 * nbytes / packing)


def rates_of_card(speed: Speed) -> Rates:
    """A GPU's rates; nothing is packed for its products."""
    return Rates(speed.bandwidth, inf)


def call_seconds(op: str, inputs: int = 1, here: Device = HOST) -> float:
    """Seconds of one call of an operator on 16 numbers, in a body of nothing else."""
    context = CallContext()
    body = calls_of(op, inputs, context, here)
    seconds = timed(body.run) if here.is_host else repeated(on_card(body, context, here), here)
    return seconds / CALLS


def calls_of(op: str, inputs: int, context: CallContext, here: Device) -> BoundBody:
    """A body of nothing but calls of an operator on 16 numbers."""
    reads = (Value("x"),) * inputs
    calls = [Node(f"call{i}", op, reads, types=(SMALL,)) for i in range(CALLS)]
    graph = Graph.of([Node("x", VARIABLE, types=(SMALL,)), *calls], ())
    x: Array = here.put(np.ones(SMALL.shape, SMALL.dtype))
    return bound(graph, {"x": x}, context, here)


def least(work: Callable[[], object], here: Device) -> float:
    """The least seconds of a call of some work, of a few tries."""
    return min(timed(work) if here.is_host else repeated(work, here) for _ in range(TRIES))


def repeated(work: Callable[[], object], here: Device, enough: float = ENOUGH) -> float:
    """Seconds of each of many calls of some work for a GPU, one after the other.

    What takes longer counts: to make the calls, or to do what they ask for. enough: seconds of all.
    """
    stamps, count = here.stamps(), 1
    while True:
        stamps.begin()
        start = stamps.stamp()
        made = timed(partial(_call, work, count))
        end = stamps.stamp()
        here.finish()
        begin, done = stamps.ticks([start, end]).tolist()
        spent: float = max(made, (done - begin) * 1e-9)
        if spent >= enough or count >= MOST:
            return spent / count
        count *= 4


def _call(work: Callable[[], object], count: int) -> None:
    for _ in range(count):
        work()


def timed(work: Callable[[], object]) -> float:
    """Seconds that some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
