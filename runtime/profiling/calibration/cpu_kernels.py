"""The profile: seconds of every distinct kernel of some graphs on CPUs, measured where it stands.

What a call takes depends on what ran before it: which arrays and which code are in cache, whether
memory for the result is fresh. So kernels are not called on their own. A graph runs in its own
order, by the runtime's own loop, but each signature only a few times; what a node that is left out
would have made is random. Of an unrolled network that is a few time steps:

    step       0     1     2     3     4 ...
    layer 0    runs  runs  runs  -     -        with CALLS = 3
    layer 1    -     -     -     -     -        equal to layer 0: only what is new of it runs

Such a pass is short however deep the network is, and it is repeated until the figures stand. Calls
that read parameters are also timed by themselves, with these in the core's own cache, in the shared
one and in memory, as it depends on the schedule where a run finds them. All of it runs on as many
threads at once as there will be devices, each on arrays of its own: cores of one processor share
its caches and its memory.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from partitioner.base.types import FORWARD, BodyKey
from partitioner.costs.cost import Caches, CostTable, Measured, Rates, Speed, parameters, signature
from runtime.backends.bodies import BoundBody, Call, NodeFailed, read_as_arrays
from runtime.backends.device.processor import CacheFlusher, core_count, find_caches
from runtime.backends.device.table import noop
from runtime.profiling.calibration.bench import describe_machine, timed
from runtime.profiling.calibration.excerpts import SyntheticInputs, cut_out
from runtime.profiling.calibration.rates import measure_rates, measure_speed
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find
from symgraph.core.types import Value
from symgraph.passes.precision import is_parameter_cast

LOG = logging.getLogger(__name__)
CALLS = 8  # the most calls of a signature in a pass
CALLS_SECONDS = 4e-3  # the most time for them, except that two calls are always made
READING_SHARE = 0.03  # the least share of a call's time for which caches are distinguished
LEAST, PASSES = 3, 5  # the least number of passes, and the number if there is time
STABLE = 0.01  # the uncertainty of a graph's time that ends the measurement
IDLE_CALLS = 200
IDLE = "idle"  # the signature of calls that do nothing
MAX_THREADS = 8  # more threads need much memory for the same result


_Times = dict[str, list[float]]


@dataclass
class Samples:
    """Seconds of each call, by signature."""

    every: _Times = field(default_factory=lambda: defaultdict(list))
    """Seconds of calls in the graph's order."""
    near: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Seconds of calls with their parameters in the core's own cache, and in the shared one."""
    far: _Times = field(default_factory=lambda: defaultdict(list))
    """Seconds of calls with their parameters in memory."""


def cores() -> int:
    """Return the number of cores that a profile uses, of those that this process may use."""
    return min(MAX_THREADS, core_count())


def measure(
    graphs: Iterable[Graph],
    *,
    seconds: float = 20.0,
    known: Collection[str] = (),
    workers: int = 1,
) -> CostTable:
    """Measure all kernels of these graphs, on synthetic inputs, with the caller's BLAS threads.

    The measurement ends when costs are known well or the time is up, but not before the third pass.
    The logger hears of each pass.
    Kernels that fail on synthetic inputs are listed in the table's `failed`, and estimated.

    Args:
        graphs: the graphs.
        seconds: the time to use.
        known: signatures that need not be measured.
        workers: threads that run kernels at the same time.
    """
    begun = time.perf_counter()
    speed, caches = measure_speed(), find_caches(workers)
    uses = Counter(dict.fromkeys(known, CALLS))
    failed: dict[str, str] = {}
    data = [SyntheticInputs() for _ in range(workers)]
    samples, idling = Samples(), Samples()
    idle, loops = _Excerpt.idle(), list[float]()
    with ThreadPoolExecutor(workers) as pool:
        prepare = _Prepare(speed, uses, failed, data, pool)
        passes = prepare.passes(graphs, caches)
        rates = list(pool.map(lambda worker: measure_rates(), range(workers)))
        ready = time.perf_counter()
        while True:
            LOG.debug("timing kernels", extra={"done": min(len(loops), PASSES), "of": PASSES})
            for part in (_Pass.run, _Pass.run_near, _Pass.run_far):
                list(pool.map(part, passes, [samples] * workers))  # all begin together
            idle.run(idling)
            loops.append(idle.run_at_once())
            now = time.perf_counter()
            one_more = (now - ready) / len(loops)
            if now + one_more > begun + seconds and len(loops) >= LEAST:
                break
            if len(loops) >= PASSES and _uncertainty(samples, uses) < STABLE:
                break
    alone = float(np.median(idling.every[IDLE]))
    measured = dict.fromkeys(prepare.unread, Measured(0.0, 0.0, 1))
    measured |= {text: _measured(samples, text, alone) for text in samples.every}
    dispatch, machine = float(np.median(loops)), describe_machine()
    return CostTable(speed, dispatch, Rates.mean(rates), caches, measured, failed, machine)


# -- figures -------------------------------------------------------------------------------------


def _measured(samples: Samples, text: str, alone: float) -> Measured:
    """Return the figures of a signature; alone: seconds of a call that does nothing."""
    times, near, far = samples.every[text], samples.near[text], samples.far[text]
    low, high = map(float, np.percentile(times, (25, 75)))
    of_levels = [*zip(*near, strict=True), far] if far else []
    levels = np.maximum.accumulate([max(0.0, midmean(level) - alone) for level in of_levels])
    seconds = max(0.0, midmean(times) - alone)
    return Measured(seconds, high - low, len(times), tuple(levels.tolist()))


def midmean(times: Sequence[float]) -> float:
    """Return the mean of the middle half, which lies between fast and slow calls."""
    ordered = sorted(times)
    cut = len(ordered) // 4
    return float(np.mean(ordered[cut : len(ordered) - cut]))


def _uncertainty(samples: Samples, uses: Mapping[str, int]) -> float:
    """Return the uncertainty of the time of all calls, as a part of it, by the samples' spread."""
    total = error = 0.0
    for text, times in samples.every.items():
        low, median, high = np.percentile(times, (25, 50, 75))
        total += uses[text] * median
        error += uses[text] * (high - low) / len(times) ** 0.5
    return error / total if total else 0.0


# -- excerpts ------------------------------------------------------------------------------------


class _Excerpt:
    """A body that is run call by call."""

    def __init__(
        self,
        body: BoundBody,
        signatures: Mapping[str, str],
        names: Collection[str] = (),
        readers: Collection[str] = (),
    ) -> None:
        """Split a body into calls.

        Args:
            body: the body.
            signatures: the signatures of its nodes, by name.
            names: its nodes.
            readers: the nodes that read parameters.
        """
        self.body = body
        self.signatures = [signatures[step.name] for step in body.steps]
        made = {step.name for step in body.steps}
        #: Signatures of nodes that are made in the calls of others.
        self.merged = [signatures[name] for name in names if name not in made]
        self.calls = [body._replace(steps=(step,)) for step in body.steps]
        self.readers = {
            signatures[step.name]: call
            for step, call in zip(body.steps, self.calls, strict=True)
            if step.name in readers
        }

    @classmethod
    def idle(cls) -> _Excerpt:
        """Return calls that do nothing, which tell the cost of the loop itself."""
        steps = (Call(IDLE, noop, ()),) * IDLE_CALLS
        return cls(BoundBody(BodyKey(0, FORWARD), (), steps, (), ()), {IDLE: IDLE})

    def run(self, samples: Samples) -> None:
        """Run all calls in their order once; raises NodeFailed."""
        clock, times = time.perf_counter, []
        with np.errstate(all="ignore"):
            for call in self.calls:
                start = clock()
                call.run()
                times.append(clock() - start)
        for text, seconds in zip(self.signatures, times, strict=True):
            samples.every[text].append(seconds)
        for text in self.merged:
            samples.every[text].append(0.0)

    def run_at_once(self) -> float:
        """Return the seconds per call with all calls in one run."""
        start = time.perf_counter()
        self.body.run()
        return (time.perf_counter() - start) / len(self.calls)


class _Pass:
    """The calls that a worker repeats: its excerpts, and those that read parameters alone."""

    def __init__(self, excerpts: Sequence[_Excerpt], sweeps: CacheFlusher) -> None:
        self.excerpts, self.sweeps = excerpts, sweeps
        self.readers = {t: call for excerpt in excerpts for t, call in excerpt.readers.items()}

    def run(self, samples: Samples) -> None:
        """Run all calls in their order; raises NodeFailed, as the others do."""
        for excerpt in self.excerpts:
            excerpt.run(samples)

    def run_near(self, samples: Samples) -> None:
        """Run the calls that read parameters, with these in caches."""
        with np.errstate(all="ignore"):
            for text, call in self.readers.items():
                call.run()
                own = timed(call.run)
                self.sweeps.own()
                samples.near[text].append((own, timed(call.run)))

    def run_far(self, samples: Samples) -> None:
        """Run the calls that read parameters, with these in memory."""
        with np.errstate(all="ignore"):
            for text, call in self.readers.items():
                self.sweeps.all()
                samples.far[text].append(timed(call.run))


class _Prepare:
    """Cuts excerpts out of graphs, for each worker, and runs them once to warm up."""

    def __init__(
        self,
        speed: Speed,
        uses: Counter[str],
        failed: dict[str, str],
        data: Sequence[SyntheticInputs],
        pool: Executor,
    ) -> None:
        """Prepare without running anything.

        Args:
            speed: the estimated speed of the device.
            uses: counts the calls of every signature.
            failed: collects signatures that fail, with the reason.
            data: the inputs of each worker.
            pool: the workers.
        """
        self.speed, self.uses, self.failed, self.data, self.pool = speed, uses, failed, data, pool
        #: The signatures of casts that a run does not make: their readers take parameters packed.
        self.unread: set[str] = set()

    def passes(self, graphs: Iterable[Graph], caches: Caches) -> list[_Pass]:
        """Return the calls of each worker for graphs that are not known yet."""
        teams = [self(graph) for graph in graphs if self.is_new(graph)]
        workers = len(self.data)
        sweeps = CacheFlusher(caches, workers)  # of all, as the memory that it reads is large
        return [_Pass([team[worker] for team in teams], sweeps) for worker in range(workers)]

    def calls(self, node: Node, graph: Graph) -> int:
        """Return how many calls of a signature are enough."""
        seconds = self.speed.seconds_of(node, graph)
        return max(2, min(CALLS, int(CALLS_SECONDS / seconds))) if seconds else CALLS

    def is_new(self, graph: Graph) -> bool:
        """Return whether some call has not been measured often enough."""
        calls = (n for n in graph if not n.is_variable)
        return any(self.uses[signature(n, graph)] < self.calls(n, graph) for n in calls)

    def __call__(self, graph: Graph) -> list[_Excerpt]:
        """Return an excerpt for each worker."""
        texts = {n.name: signature(n, graph) for n in graph if not n.is_variable}
        casts = {Value(name) for name in texts if is_parameter_cast(graph, name)}
        unread = {v.node for v in casts - read_as_arrays(graph) - {*graph.outputs}}
        self.unread |= {texts[name] for name in unread}
        chosen = []
        for name, text in texts.items():
            if name not in unread and self.uses[text] < self.calls(graph[name], graph):
                chosen.append(name)
            self.uses[text] += 1
        while True:
            names = [name for name in chosen if texts[name] not in self.failed]
            readers = [name for name in names if self._depends(graph[name], graph)]
            excerpts = [
                _Excerpt(cut_out(graph, names, own), texts, names, readers) for own in self.data
            ]
            try:
                list(self.pool.map(lambda excerpt: excerpt.run(Samples()), excerpts))
            except NodeFailed as error:
                cause = error.__cause__
                self.failed[texts[error.node]] = f"{type(cause).__name__}: {cause}"
            else:
                return excerpts

    def _depends(self, node: Node, graph: Graph) -> bool:
        """Return whether it matters where a call's parameters come from."""
        read = sum(graph[name].types[0].nbytes for name in parameters(node, graph))
        flops = find(node.op).flops(node.attrs, graph.types_of(node.inputs), node.types)
        least = self.speed.call + flops / self.speed.flops
        return read / self.speed.bandwidth > READING_SHARE * least
