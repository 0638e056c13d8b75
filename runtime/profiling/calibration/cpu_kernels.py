"""The profile: seconds of every distinct kernel of some graphs on CPUs, measured where it stands.

What a call takes depends on what ran before it: which arrays and which code are in cache, whether
memory for the result is fresh. So kernels are not called on their own. A graph runs in its own
order, by the runtime's own loop, but each signature only a few times; what a node that is left out
would have made is random. Of an unrolled network that is a few time steps:

    step       0     1     2     3     4 ...
    layer 0    runs  runs  runs  -     -        with 3 calls
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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from partitioner.base.types import FORWARD, BodyKey
from partitioner.costs.cost import (
    STEADY,
    Caches,
    CostTable,
    Measured,
    Rates,
    Speed,
    Variation,
    parameters,
    signature,
)
from runtime.backends.bodies import BoundBody, read_as_arrays
from runtime.backends.calls import Call, NodeFailed
from runtime.backends.device.processor import CacheFlusher, core_count, find_caches
from runtime.backends.device.table import noop
from runtime.backends.native import NativeCalls, apart, joined, no_kernel
from runtime.engine.stopwatch import Stopwatch
from runtime.profiling.calibration.bench import describe_machine, timed
from runtime.profiling.calibration.excerpts import SyntheticInputs, cut_out
from runtime.profiling.calibration.rates import measure_rates, measure_speed
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find
from symgraph.core.types import Value
from symgraph.passes.precision import is_parameter_cast

LOG = logging.getLogger(__name__)
# The most calls of a signature in a pass, by the most time that they take; two are always made.
CALLS = {8: 4e-3, 64: 5e-4}
READING_SHARE = 0.03  # the least share of a call's time for which caches are distinguished
LEAST, PASSES = 3, 5  # the least number of passes, and the number if there is time
STABLE = 0.01  # the uncertainty of a graph's time that ends the measurement
SHORT = 5e-3  # seconds of a pass that is too short to tell how much the machine varies
IDLE_CALLS, IDLE_RUNS = 200, 20
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
    native: set[str] = field(default_factory=set)
    """Signatures of native calls."""


def cores() -> int:
    """Return the number of cores that a profile uses, of those that this process may use."""
    return min(MAX_THREADS, core_count())


def measure(
    graphs: Iterable[Graph],
    *,
    seconds: float = 20.0,
    known: CostTable | None = None,
    workers: int = 1,
) -> CostTable:
    """Measure all kernels of these graphs, on synthetic inputs, with the caller's BLAS threads.

    It ends when costs are known well or the time is up, but not before the third pass, and tells
    the logger of each. Kernels that fail on synthetic inputs are listed in the table's `failed`,
    and estimated.

    Args:
        graphs: the graphs.
        seconds: the time to use.
        known: what was measured before, and need not be again.
        workers: threads that run kernels at the same time.
    """
    begun = time.perf_counter()
    speed, caches = known.speed if known else measure_speed(), find_caches(workers)
    uses = Counter(dict.fromkeys({**known.measured, **known.failed} if known else (), max(CALLS)))
    failed: dict[str, str] = {}
    data = [SyntheticInputs() for _ in range(workers)]
    samples, idle, native = Samples(), _Idle(noop), _Idle(no_kernel)
    took: list[float] = []  # seconds of each pass
    with ThreadPoolExecutor(workers) as pool:
        prepare = _Prepare(speed, uses, failed, data, pool)
        passes = prepare.passes(graphs, caches)
        rates = [known.rates] if known else [*pool.map(lambda _: measure_rates(), range(workers))]
        ready = time.perf_counter()
        while True:
            LOG.debug("timing kernels", extra={"done": min(len(took), PASSES), "of": PASSES})
            begin = time.perf_counter()
            list(pool.map(_Pass.run, passes, [samples] * workers))  # all begin together
            took.append(time.perf_counter() - begin)
            for part in (_Pass.run_near, _Pass.run_far):
                list(pool.map(part, passes, [samples] * workers))
            idle.run()
            native.run()
            now = time.perf_counter()
            if now + (now - ready) / len(took) > begun + seconds and len(took) >= LEAST:
                break
            if len(took) >= PASSES and _uncertainty(samples, uses) < STABLE:
                break
    measured = dict.fromkeys(prepare.unread, Measured(0.0, 0.0, 1)) | _figures(
        samples, idle, native
    )
    rate, machine, variation = Rates.mean(rates), describe_machine(), _variation(took)
    return CostTable(speed, rate, caches, measured, failed, machine, variation)


# -- figures -------------------------------------------------------------------------------------


def _variation(took: Sequence[float]) -> Variation:
    """Return how much the seconds of passes varied."""
    low, median, high = map(float, np.percentile(took, (25, 50, 75)))
    return Variation(low / median, high / median) if median > SHORT else STEADY


def _figures(samples: Samples, idle: _Idle, native: _Idle) -> dict[str, Measured]:
    """Return the figures of each signature.

    Args:
        samples: their seconds.
        idle, native: calls that do nothing, from Python and native.
    """
    return {
        text: _measured(samples, text, native if text in samples.native else idle)
        for text in samples.every
    }


def _measured(samples: Samples, text: str, idle: _Idle) -> Measured:
    """Return the figures of a signature; idle: such calls that do nothing."""
    times, near, far = samples.every[text], samples.near[text], samples.far[text]
    low, high = map(float, np.percentile(times, (25, 75)))
    of_levels = [*zip(*near, strict=True), far] if far else []
    levels = np.maximum.accumulate([max(0.0, midmean(x) - idle.running) for x in of_levels])
    seconds = max(0.0, midmean(times) - idle.stamping)
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
    """A body whose calls are timed."""

    def __init__(
        self,
        body: BoundBody,
        signatures: Mapping[str, str],
        names: Collection[str],
        readers: Collection[str],
    ) -> None:
        """Put stamps between the calls of a body.

        Args:
            body: the body.
            signatures: the signatures of its nodes, by name.
            names: its nodes.
            readers: the nodes that read parameters.
        """
        calls = [*apart(body.steps)]
        native = [step for step in body.steps if isinstance(step.function, NativeCalls)]
        self.native = {signatures[call.name] for call in apart(native)}
        self.signatures = [signatures[call.name] for call in calls]
        made = {call.name for call in calls}
        #: Signatures of nodes that are made in the calls of others.
        self.merged = [signatures[name] for name in names if name not in made]
        self.readers = {
            signatures[call.name]: body._replace(steps=joined([call]))
            for call in calls
            if call.name in readers
        }
        self._stopwatch = Stopwatch()
        self._timed, _ = self._stopwatch.watch(body, 0, [])

    def run(self, samples: Samples) -> None:
        """Run all calls in their order once; raises NodeFailed."""
        with np.errstate(all="ignore"):
            self._timed.run()
        laps = self._stopwatch.laps()
        for text, ticks in zip(self.signatures, (laps.end - laps.start).tolist(), strict=True):
            samples.every[text].append(1e-9 * ticks)
        for text in self.merged:
            samples.every[text].append(0.0)
        samples.native |= self.native


class _Idle:
    """Calls that do nothing, which tell what it costs to measure a call."""

    def __init__(self, function: Callable[[], None]) -> None:
        calls = [Call(IDLE, function, ())] * IDLE_CALLS
        self._body = BoundBody(BodyKey(0, FORWARD), (), joined(calls), (), ())
        self._single = self._body._replace(steps=joined(calls[:1]))
        self._excerpt, self._samples = _Excerpt(self._body, {IDLE: IDLE}, (), ()), Samples()
        self._loops: list[float] = []  # seconds of a call among others
        self._runs: list[float] = []  # of one by itself

    def run(self) -> None:
        """Run all calls, with stamps, without, and one by itself."""
        self._excerpt.run(self._samples)
        self._loops.append(timed(self._body.run) / IDLE_CALLS)
        self._runs += [timed(self._single.run) for _ in range(IDLE_RUNS)]

    @property
    def stamping(self) -> float:
        """The seconds by which a call with a stamp takes longer than without."""
        return float(np.median(self._samples.every[IDLE]) - np.median(self._loops))

    @property
    def running(self) -> float:
        """The seconds by which a call that is run by itself takes longer than among others."""
        return float(np.median(self._runs) - np.median(self._loops))


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
        if not seconds:
            return min(CALLS)
        return max(2, *(min(calls, int(most / seconds)) for calls, most in CALLS.items()))

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
