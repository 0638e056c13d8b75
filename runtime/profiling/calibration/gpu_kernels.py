"""The profile of a GPU: seconds of every distinct kernel of some graphs, by itself.

A GPU runs the calls of a stream one after the other, without what makes a CPU's times depend on
their neighbours (runtime/profiling/calibration/cpu_kernels.py): there is no cache of one core that
parameters are or are not in. So each signature is one call, made many times in a row between two
events, held in CUDA graphs as in a run. A call that cannot be held, and is too short to keep
the GPU busy, takes as long as the host takes to make it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

import numpy as np

from partitioner.costs.cost import Caches, CostTable, Measured, is_free, signature
from runtime.backends.calls import NodeFailed
from runtime.backends.device.arrays import device
from runtime.backends.device.table import CallContext
from runtime.profiling.calibration.bench import describe_card, repeated
from runtime.profiling.calibration.cpu_kernels import midmean
from runtime.profiling.calibration.excerpts import Excerpt, SyntheticInputs, captured
from runtime.profiling.calibration.rates import measure_speed, rates_of_card
from symgraph.core.context import Context
from symgraph.core.graph import Graph

SAMPLES = 5  # samples of a signature, if there is time
TIMES = 20  # calls of a signature in one CUDA graph, as a run has many
NO_CACHES = Caches(0, 0)


def measure_card(
    graphs: Iterable[Graph], context: Context, *, seconds: float, known: Collection[str] = ()
) -> CostTable:
    """Measure all kernels of these graphs on a GPU, on synthetic inputs.

    Kernels that fail on synthetic inputs are listed in the table's `failed`.

    Args:
        graphs: the graphs.
        context: the GPU.
        seconds: when they have passed, each signature that is left is sampled once.
        known: signatures that need not be measured.
    """
    here, begun = device(context), time.perf_counter()
    measured: dict[str, Measured] = {}
    failed: dict[str, str] = {}
    with here.use():
        speed, data = measure_speed(here), SyntheticInputs(here)
        for text, (graph, name) in _first_calls(graphs).items():
            if text in known:
                continue
            samples = SAMPLES if time.perf_counter() < begun + seconds else 1
            try:
                measured[text] = _measured(graph, name, data, samples)
            except (NodeFailed, IndexError) as error:
                cause = error.__cause__ or error
                failed[text] = f"{type(cause).__name__}: {cause}"
        about = describe_card(here)
    rates = rates_of_card(speed, context)
    return CostTable(speed, rates, NO_CACHES, measured, failed, about)


def _first_calls(graphs: Iterable[Graph]) -> dict[str, tuple[Graph, str]]:
    """Return for each signature the first node that has it."""
    found: dict[str, tuple[Graph, str]] = {}
    for graph in graphs:
        for node in graph:
            if not (node.is_variable or is_free(node, graph)):
                found.setdefault(signature(node, graph), (graph, node.name))
    return found


def _measured(graph: Graph, name: str, data: SyntheticInputs, samples: int) -> Measured:
    """Measure one call; raises NodeFailed, or IndexError if synthetic ids are out of range."""
    context = CallContext()
    body = Excerpt(graph, [name]).bind(data, context)
    run = captured(body, context, data.device, TIMES)
    context.check()
    times = [repeated(run, data.device) / TIMES for _ in range(samples)]
    low, high = map(float, np.percentile(times, (25, 75)))
    return Measured(midmean(times), high - low, samples)
