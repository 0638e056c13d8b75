"""A quick measurement of this machine, for predictions before the first step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

import numpy as np

from partitioner import Placement, cut
from partitioner.cost import Rates, Speed
from partitioner.layout import lay_out
from runtime.kernels import Binder, BoundBody, Packs, packed_buffer
from runtime.native import Clock
from runtime.native.gemm import pack
from symgraph.arrays import HOST
from symgraph.context import cpu
from symgraph.graph import Graph, Node
from symgraph.ops.registry import VARIABLE
from symgraph.types import Array, TensorType, Value

SIZE = 512  # of the square float32 product; large enough for BLAS's full rate
BYTES = 4 << 20  # of the arrays that are added; more than the caches of one core hold
LARGE = 16 << 20  # more than there is room for in a cache that cores share
CALLS = 200  # of a small operator in one body
SMALL = TensorType((16,))


def measure_speed() -> Speed:
    """The rates of matrix products and of large additions, and a small call; best of a few tries.

    One thread of BLAS or as many as the caller allows.
    """
    a = np.ones((SIZE, SIZE), np.float32)
    out = np.empty_like(a)
    product = min(timed(lambda: np.matmul(a, a, out=out)) for _ in range(7))
    x, y, z = (np.ones(BYTES // 4, np.float32) for _ in range(3))
    addition = min(timed(lambda: np.add(x, y, out=z)) for _ in range(7))
    call = min(call_seconds("elemwise_add", 2) for _ in range(7))
    return Speed(2 * SIZE**3 / product, call, 3 * BYTES / addition)


def measure_rates() -> Rates:
    """The rates of additions of large arrays, and of packing a large weight in both forms."""
    total, term = (np.ones(LARGE // 4, np.float32) for _ in range(2))
    adding = median(timed(lambda: np.add(total, term, out=total)) for _ in range(15))
    weight = np.ones((BYTES // 4 // SIZE, SIZE), np.float32)
    as_is, transposed = (packed_buffer(weight, turned) for turned in (False, True))

    def pack_both() -> None:
        pack(weight, as_is, False)
        pack(weight, transposed, True)

    packing = median(timed(pack_both) for _ in range(7))
    return Rates(3 * LARGE / adding, 4 * BYTES / packing)


def call_seconds(op: str, inputs: int = 1) -> float:
    """Seconds of one call of an operator on 16 numbers, in a body of nothing else."""
    return timed(calls_of(op, inputs).run) / CALLS


def calls_of(op: str, inputs: int = 1) -> BoundBody:
    """A body of nothing but calls of an operator on 16 numbers."""
    reads = (Value("x"),) * inputs
    calls = [Node(f"call{i}", op, reads, types=(SMALL,)) for i in range(CALLS)]
    graph = Graph.of([Node("x", VARIABLE, types=(SMALL,)), *calls], ())
    return bound(graph, {"x": np.ones(SMALL.shape, SMALL.dtype)})


def bound(graph: Graph, arrays: Mapping[str, Array], clock: Clock | None = None) -> BoundBody:
    """A whole forward graph as one body, bound as the worker does it; arrays: of its variables."""
    partition = cut(graph, Placement(dict.fromkeys(graph.nodes, 0), (0,), (cpu(0),)))
    (body,) = partition.bodies.values()
    layout = lay_out(partition, 0, arrays)
    memory = HOST.bytes(layout.scratch[body.key])
    binder = Binder(layout, arrays, frozenset(arrays), memory, Packs(), clock or Clock())
    return binder.bind(body, {}, 0)


def timed(work: Callable[[], object]) -> float:
    """Seconds that some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
