"""The rates of a device: products, additions and small calls, measured in a tenth of a second."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from statistics import median

import numpy as np

from partitioner.costs.cost import Rates, Speed
from runtime.backends.bodies import BoundBody, packed_buffer
from runtime.backends.cpu.choice import matmul
from runtime.backends.cpu.gemm import pack
from runtime.backends.device.arrays import HOST, Device
from runtime.backends.device.table import CallContext
from runtime.engine.session import Session, initialize
from runtime.planning.options import Options
from runtime.planning.planner import plan
from runtime.profiling.calibration.bench import Bench, Sizes, Work, bench_of, timed
from runtime.profiling.calibration.excerpts import ENOUGH, bound
from runtime.transports import ThreadCluster
from symgraph import Feed, sym
from symgraph.core.context import Context, cpu
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import VARIABLE
from symgraph.core.types import Array, TensorType, Value
from symgraph.frontend.init import Zero
from symgraph.frontend.optimizer import SGD

Timer = Callable[[Work, Device], float]  # the seconds of one call of some work

CALLS = 200  # calls of a small operator in one body
SMALL_TYPE = TensorType((16,))
TRIES = 7
STEPS = 30


def measure_speed(here: Device = HOST) -> Speed:
    """Measure a device by itself, as the best of a few tries.

    On the CPU, BLAS uses as many threads as the caller allows.
    """
    with here.use():
        return speed_of(here, bench_of(here).alone_sizes, least, call_seconds)


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
    multiply = matmul if here.is_host else here.xp.matmul
    return lambda: multiply(a, a, out=out)


def addition(here: Device, nbytes: int) -> Work:
    """Return a sum of two float32 arrays of that size, on the device that this thread uses."""
    x, y, z = (here.put(np.ones(nbytes // 4, np.float32)) for _ in range(3))
    return lambda: here.xp.add(x, y, out=z)


def measure_rates() -> Rates:
    """Measure how fast the CPU adds up memory, packs a weight, and begins and ends a step."""
    total, term = (np.ones(ENOUGH // 8, np.float32) for _ in range(2))
    adding = median(timed(lambda: np.add(total, term, out=total)) for _ in range(7))
    side, nbytes = Bench.alone_sizes
    weight = np.ones((nbytes // 4 // side, side), np.float32)
    as_is, transposed = (packed_buffer(weight, turned, weight.dtype) for turned in (False, True))

    def pack_both() -> None:
        pack(weight, as_is, False)
        pack(weight, transposed, True)

    packing = median(timed(pack_both) for _ in range(7))
    return Rates(3 * total.nbytes / adding, 4 * nbytes / packing, host_seconds(cpu(0)))


def rates_of_card(speed: Speed, context: Context) -> Rates:
    """Return the rates of a GPU; nothing is packed for its products."""
    return Rates(speed.bandwidth, inf, host_seconds(context))


def host_seconds(context: Context) -> float:
    """Return the seconds of the host to begin and end a training step on a device.

    That is about a whole step of a network that is nearly no work.
    """
    x = sym.FullyConnected(sym.Variable("data"), num_hidden=SMALL_TYPE.size, name="small")
    loss = sym.LinearRegressionOutput(x, sym.Variable("label"), name="loss")
    type_ = TensorType((1, SMALL_TYPE.size))
    feeds = {name: np.zeros(type_.shape, type_.dtype) for name in ("data", "label")}
    options = Options(default=context, update=True)
    made = plan(loss, dict.fromkeys(feeds, Feed(type_)), options, wrt=None)
    with ThreadCluster(1) as cluster:
        arrays = initialize(made, cluster, Zero(), 0)
        session = Session(made, cluster, arrays, optimizer=SGD(0.0), clip=1.0)
        return median(timed(partial(session.step, feeds)) for _ in range(STEPS))


def call_seconds(here: Device = HOST) -> float:
    """Return the least seconds of a small addition's call, of a few tries."""
    return seconds_of_calls("elemwise_add", 2, here)


def seconds_of_calls(op: str, inputs: int = 1, here: Device = HOST) -> float:
    """Return the least seconds of one call of an operator on 16 numbers, in a body of such."""
    context, bench = CallContext(), bench_of(here)
    body = calls_of(op, inputs, context, here)
    return min(bench.body_seconds(body, context) for _ in range(TRIES)) / CALLS


def calls_of(op: str, inputs: int, context: CallContext, here: Device) -> BoundBody:
    """Return a body of nothing but calls of an operator on 16 numbers."""
    reads = (Value("x"),) * inputs
    calls = [Node(f"call{i}", op, reads, types=(SMALL_TYPE,)) for i in range(CALLS)]
    graph = Graph.of([Node("x", VARIABLE, types=(SMALL_TYPE,)), *calls], ())
    x: Array = here.put(np.ones(SMALL_TYPE.shape, SMALL_TYPE.dtype))
    return bound(graph, {"x": x}, context, here)


def least(work: Work, here: Device) -> float:
    """Return the least seconds of a call of some work, of a few tries."""
    return min(bench_of(here).seconds(work) for _ in range(TRIES))
