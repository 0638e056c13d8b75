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
its caches and its memory. What a call gains while other devices wait is told by passes on one
thread. Short calls, which hardly leave the core's own cache, only run on one thread: several would
wait for the interpreter's lock.

On a shared machine cores may be slow for a second, above all when another one starts to work: other
programs use them, or a virtual machine has two on one core of the host. Products that all workers
repeat before and after a pass tell; passes wait for the end of that, or are made again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import ClassVar

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
    touched_bytes,
)
from runtime.backends.bodies import BoundBody, read_as_arrays
from runtime.backends.calls import Call, NodeFailed
from runtime.backends.cpu.choice import chosen
from runtime.backends.device.arrays import HOST
from runtime.backends.device.processor import (
    CacheFlusher,
    core_count,
    find_caches,
    product_threads,
)
from runtime.backends.device.table import noop
from runtime.backends.native import NativeCalls, apart, joined, no_kernel
from runtime.engine.stopwatch import Stopwatch
from runtime.profiling.calibration.bench import Work, describe_machine, timed
from runtime.profiling.calibration.excerpts import Excerpt, SyntheticInputs
from runtime.profiling.calibration.rates import measure_rates, measure_speed, product
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find
from symgraph.core.types import Value
from symgraph.passes.precision import is_parameter_cast

LOG = logging.getLogger(__name__)
# The most calls of a signature in a pass, by the most time that they take; two are always made.
CALLS = {8: 4e-3, 64: 5e-4}
READS = 8  # the most calls in a row that read parameters
READING_SHARE = 0.03  # the least share of a call's time for which caches are distinguished
LEAST, PASSES, MOST = 3, 5, 100  # the least number of passes, that if there is time, and the most
STABLE = 0.01  # the uncertainty of a graph's time, as a part of it, that ends the measurement
SMALL = 2e-6  # the same in seconds: a message costs ten times as much
SHORT = 5e-3  # seconds of a pass that is too short to tell how much the machine varies
SHORT_STEP = 1e-4  # seconds: of shorter steps, waits for Python's lock would be a part
IDLE_CALLS = 200
IDLE = "idle"  # the signature of calls that do nothing
MAX_THREADS = 8  # more threads need much memory for the same result
DISTURBED = 1.2  # times the least seconds of a probe's product, which slow cores exceed
PATIENCE = 1.0  # times the time to use: how much longer it may take if workers are disturbed
FIRST_SECONDS = 1.0  # to find out what it takes
PAUSE = 0.05  # seconds between probes: a core that rests is the sooner moved
PROBES, PROBE_SIDE = 30, 256  # products of a probe, and the side of their matrices
WAKING_SECONDS, WAKING_SIDE = 1e-3, 192  # of products before calls are timed


_Times = dict[str, list[float]]


@dataclass
class Samples:
    """Seconds of each call, by signature."""

    every: _Times = field(default_factory=lambda: defaultdict(list))
    """Seconds of calls in the graph's order."""
    alone: _Times = field(default_factory=lambda: defaultdict(list))
    """Seconds of the same while no other worker runs, where that makes a difference."""
    near: _Times = field(default_factory=lambda: defaultdict(list))
    """Seconds of calls with their parameters in the core's own cache."""
    shared: _Times = field(default_factory=lambda: defaultdict(list))
    """Seconds of calls with their parameters in the shared cache."""
    far: _Times = field(default_factory=lambda: defaultdict(list))
    """Seconds of calls with their parameters in memory."""
    native: set[str] = field(default_factory=set)
    """Signatures of native calls."""

    def add(self, other: Samples) -> None:
        """Add those of another pass."""
        for name in ("every", "alone", "near", "shared", "far"):
            for text, times in getattr(other, name).items():
                getattr(self, name)[text] += times
        self.native |= other.native


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

    It ends when costs are known well, the time is up, though not before the third pass, or after
    the hundredth, and tells the logger of each. Passes that other programs disturb do not count, as
    long as there is patience. Kernels that fail on synthetic inputs are listed in the table's
    `failed`, and estimated.

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
    idle, native = _Idle(noop), _Idle(no_kernel)
    with ThreadPoolExecutor(workers) as pool:
        prepare = _Prepare(speed, uses, failed, data, pool)
        passes = prepare.passes(graphs, caches)
        rates = [known.rates] if known else [*pool.map(lambda _: measure_rates(), range(workers))]
        samples, took = _repeat(passes, pool, (idle, native), uses, begun, seconds)
    unread = dict.fromkeys(prepare.unread, Measured(0.0, 0.0, 1))
    measured = unread | _figures(samples, prepare.others, idle, native)
    rate, machine, variation = Rates.mean(rates), describe_machine(), _variation(took)
    return CostTable(speed, rate, caches, measured, failed, machine, variation)


def _repeat(
    passes: Sequence[_Pass],
    pool: Executor,
    idle: Iterable[_Idle],
    uses: Mapping[str, int],
    begun: float,
    seconds: float,
) -> tuple[Samples, list[float]]:
    """Repeat passes as long as `measure` says; return what they take, and the seconds of each.

    Args:
        passes: the passes, of each worker.
        pool: the workers.
        idle: runs after each pass.
        uses: the calls of every signature.
        begun: when the time began.
        seconds: the time.
    """
    samples, took, count = Samples(), list[float](), 0
    until = begun + (1 + PATIENCE) * seconds
    probe = _Probe(pool, len(passes), until) if passes[0].long else None
    ready = time.perf_counter()
    while True:
        LOG.debug("timing kernels", extra={"done": min(count, PASSES), "of": PASSES})
        one, spent = _run(passes, pool, probe, until)
        took.append(spent)
        if one is None:
            continue
        samples.add(one)
        count += 1
        for calls in idle:
            calls.run()
        now = time.perf_counter()
        if now + (now - ready) / len(took) > begun + seconds and count >= LEAST:
            return samples, took
        if count == MOST or (count % PASSES == 0 and _is_certain(samples, uses)):
            return samples, took


class _Probe:
    """A product that all workers repeat at once, to tell whether their cores are slow just now."""

    #: Its least seconds so far, by the number of workers, the threads of each, and the BLAS.
    least: ClassVar[dict[tuple[int, int, str], float]] = {}

    def __init__(self, pool: Executor, workers: int, until: float) -> None:
        """Find out what a product takes at least; until: the time to end, if it is not known."""
        self._pool, self._key = pool, (workers, product_threads(), str(chosen()))
        self._work = [product(HOST, PROBE_SIDE) for _ in range(workers)]
        if self._key not in self.least:
            self.least[self._key] = pool.submit(_probed, self._work[0]).result()  # alone
            self.settle(min(until, time.perf_counter() + FIRST_SECONDS))

    def disturbed(self) -> bool:
        """Tell whether the workers are slower than they were."""
        return self._seconds() > DISTURBED * self.least[self._key]

    def settle(self, until: float) -> None:
        """Wait until they are as fast as they were; if they are not until then, it is now so."""
        while (seconds := self._seconds()) > DISTURBED * self.least[self._key]:
            if time.perf_counter() > until:
                self.least[self._key] = seconds
                break
            time.sleep(PAUSE)

    def _seconds(self) -> float:
        seconds = max(self._pool.map(_probed, self._work))
        self.least[self._key] = min(seconds, self.least[self._key])
        return seconds


def _probed(work: Work) -> float:
    return float(np.median([timed(work) for _ in range(PROBES)]))


def _run(
    passes: Sequence[_Pass], pool: Executor, probe: _Probe | None, until: float
) -> tuple[Samples | None, float]:
    """Run all passes once; return what they take, and the seconds of their excerpts.

    Only workers multiply: each thread that does may have helpers, which wait with a core each.

    Args:
        passes: the passes, of each worker.
        pool: the workers.
        probe: tells whether they are disturbed; then there are no samples. None: nothing is long.
        until: the time when they count even so.
    """
    samples = Samples()
    all_samples = [samples] * len(passes)
    short = timed(lambda: pool.submit(passes[0].run_short, samples).result())
    if probe is not None:
        probe.settle(until)
    begin = time.perf_counter()
    list(pool.map(_Pass.run_long, passes, all_samples))  # all begin together
    took = short + time.perf_counter() - begin
    _run_readers(passes, pool, samples)
    if probe is not None and time.perf_counter() < until and probe.disturbed():
        return None, took
    if len(passes) > 1:
        pool.submit(passes[0].run_long, samples, samples.alone).result()
    return samples, took


def _run_readers(passes: Sequence[_Pass], pool: Executor, samples: Samples) -> None:
    """Time the calls that read parameters, with these in each cache and in memory.

    What a cache has been read into twice it keeps, but not always what it has been read into once.
    The workers begin together, or one would be timed while another empties caches.
    """
    for text in passes[0].readers:
        for prepare, times, count in (
            (_Pass.read, samples.near, READS),
            (_Pass.flush_own, samples.shared, 1),
            (_Pass.flush_shared, samples.far, 1),
        ):
            list(pool.map(prepare, passes, repeat(text)))
            for seconds in pool.map(_Pass.read, passes, repeat(text)):
                times[text] += seconds[:count]


# -- figures -------------------------------------------------------------------------------------


def _variation(took: Sequence[float]) -> Variation:
    """Return how much the seconds of passes varied."""
    low, median, high = map(float, np.percentile(took, (25, 50, 75)))
    return Variation(low / median, high / median) if median > SHORT else STEADY


def _figures(
    samples: Samples, others: Mapping[str, float], idle: _Idle, native: _Idle
) -> dict[str, Measured]:
    """Return the figures of each signature.

    Args:
        samples: their seconds.
        others: see `_Prepare`.
        idle, native: calls that do nothing, from Python and native.
    """
    return {
        text: _measured(samples, text, others, native if text in samples.native else idle)
        for text in samples.every
    }


def _measured(samples: Samples, text: str, others: Mapping[str, float], idle: _Idle) -> Measured:
    """Return the figures of a signature; idle: such calls that do nothing.

    A call in its place takes longer than one that is repeated: its parameters are farther away, and
    so is all else that it reads and writes. The second part, by the bytes, is added to the levels.
    """
    times = samples.every[text]
    low, high = map(float, np.percentile(times, (25, 75)))
    of_levels = [level[text] for level in (samples.near, samples.shared, samples.far)]
    found = [max(0.0, midmean(x) - idle.stamping) for x in of_levels if x]
    levels = np.maximum.accumulate(found)
    seconds = max(0.0, midmean(times) - idle.stamping)
    if found:
        levels[:2] += others[text] * max(0.0, seconds - levels[1])
        levels = np.maximum.accumulate(levels)
    alone = 1.0
    if samples.alone[text] and seconds:
        alone = min(1.0, max(0.0, midmean(samples.alone[text]) - idle.stamping) / seconds)
    return Measured(seconds, high - low, len(times), tuple(levels.tolist()), alone)


def midmean(times: Sequence[float]) -> float:
    """Return the mean of the middle half, which lies between fast and slow calls."""
    ordered = sorted(times)
    cut = len(ordered) // 4
    return float(np.mean(ordered[cut : len(ordered) - cut]))


def _is_certain(samples: Samples, uses: Mapping[str, int]) -> bool:
    """Tell whether the time of all calls is known well, by the samples' spread."""
    total = error = 0.0
    for text, times in samples.every.items():
        low, median, high = np.percentile(times, (25, 50, 75))
        total += uses[text] * median
        error += uses[text] * (high - low) / len(times) ** 0.5
    return error <= max(STABLE * total, SMALL)


# -- excerpts ------------------------------------------------------------------------------------


class _Timed:
    """A body that tells the seconds of each of its calls."""

    def __init__(self, body: BoundBody) -> None:
        self._stopwatch = Stopwatch()
        self._body = self._stopwatch.watch(body, 0)

    def __call__(self) -> list[float]:
        """Run it; raises NodeFailed."""
        with np.errstate(all="ignore"):
            self._body.run()
        laps = self._stopwatch.laps()
        seconds: list[float] = (1e-9 * (laps.end - laps.start)).tolist()
        return seconds


class _Timings:
    """A body whose calls are timed, and those that read parameters also by themselves."""

    def __init__(
        self,
        body: BoundBody,
        signatures: Mapping[str, str],
        names: Collection[str],
        readers: Mapping[str, int],
    ) -> None:
        """Put stamps between the calls of a body.

        Args:
            body: the body.
            signatures: the signatures of its nodes, by name.
            names: its nodes.
            readers: the nodes that read parameters, and how often they run by themselves.
        """
        calls = [*apart(body.steps)]
        native = [step for step in body.steps if isinstance(step.function, NativeCalls)]
        self.native = {signatures[call.name] for call in apart(native)}
        self.signatures = [signatures[call.name] for call in calls]
        made = {call.name for call in calls}
        #: Signatures of nodes that are made in the calls of others.
        self.merged = [signatures[name] for name in names if name not in made]
        self.readers = {
            signatures[call.name]: _Timed(body._replace(steps=joined([call] * readers[call.name])))
            for call in calls
            if call.name in readers
        }
        self._timed, self._steps = _Timed(body), len(body.steps)
        #: Whether Python comes to a next step so soon that workers wait for its lock.
        self.short = False

    def warm_up(self) -> None:
        """Run all calls to compile them, and again to time a step; raises NodeFailed."""
        self.run(Samples())
        begin = time.perf_counter()
        self.run(Samples())
        self.short = time.perf_counter() - begin < SHORT_STEP * self._steps

    def run(self, samples: Samples, times: _Times | None = None) -> None:
        """Run all calls in their order once; raises NodeFailed.

        Args:
            samples: collects which calls are native.
            times: collects their seconds; by default `samples.every`.
        """
        times = samples.every if times is None else times
        for text, seconds in zip(self.signatures, self._timed(), strict=True):
            times[text].append(seconds)
        for text in self.merged:
            times[text].append(0.0)
        samples.native |= self.native


class _Idle:
    """Calls that do nothing, which tell what it costs to measure a call."""

    def __init__(self, function: Callable[[], None]) -> None:
        steps = joined([Call(IDLE, function, ())] * IDLE_CALLS)
        self._body = BoundBody(BodyKey(0, FORWARD), (), steps, (), (), ())
        self._timed = _Timed(self._body)
        self._stamped: list[float] = []  # seconds of a call with a stamp
        self._plain: list[float] = []  # without

    def run(self) -> None:
        """Run all calls, with stamps and without."""
        self._stamped += self._timed()
        self._plain.append(timed(self._body.run) / IDLE_CALLS)

    @property
    def stamping(self) -> float:
        """The seconds of a stamp."""
        return float(np.median(self._stamped) - np.median(self._plain))


class _Pass:
    """The calls that a worker repeats: its excerpts, and those that read parameters alone."""

    def __init__(self, excerpts: Sequence[_Timings], sweeps: CacheFlusher) -> None:
        self.excerpts, self.sweeps = excerpts, sweeps
        #: The excerpts of long steps.
        self.long = [excerpt for excerpt in excerpts if not excerpt.short]
        self._small = product(HOST, WAKING_SIDE)
        self.readers = {text: r for excerpt in excerpts for text, r in excerpt.readers.items()}

    def run_long(self, samples: Samples, times: _Times | None = None) -> None:
        """Run all excerpts of long steps; see `_Timings.run`. Raises NodeFailed, as others do."""
        self._wake()
        for excerpt in self.long:
            excerpt.run(samples, times)

    def run_short(self, samples: Samples) -> None:
        """Run all others, while nobody else runs."""
        self._wake()
        for excerpt in self.excerpts:
            if excerpt.short:
                excerpt.run(samples)

    def _wake(self) -> None:
        """Multiply for a moment: after a pause a core takes 0.2 ms longer for its first product."""
        end = time.perf_counter() + WAKING_SECONDS
        while time.perf_counter() < end:
            self._small()

    def read(self, text: str) -> list[float]:
        """Run a call that reads parameters some times in a row; return the seconds of each."""
        self._wake()
        return self.readers[text]()

    def flush_own(self, text: str) -> None:
        """Leave its parameters in the shared cache."""
        self.sweeps.own()

    def flush_shared(self, text: str) -> None:
        """Leave its parameters in memory."""
        self.sweeps.shared()


@dataclass(frozen=True)
class _Chosen:
    """Some calls of a graph; texts: the signatures of all."""

    graph: Graph
    texts: Mapping[str, str]
    names: tuple[str, ...]

    @cached_property
    def excerpt(self) -> Excerpt:
        """The calls, cut out."""
        return Excerpt(self.graph, self.names)

    def without(self, failed: Collection[str]) -> _Chosen:
        """Return those whose signature is none of these."""
        names = tuple([name for name in self.names if self.texts[name] not in failed])
        return self if names == self.names else replace(self, names=names)


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
        #: By signature of calls that read parameters: the bytes of all else that they read and
        #: write, relative to those of the parameters, at most 1.
        self.others: dict[str, float] = {}

    def passes(self, graphs: Iterable[Graph], caches: Caches) -> list[_Pass]:
        """Return the calls of each worker for graphs that are not known yet."""
        new = [self._choose(graph) for graph in graphs if self.is_new(graph)]
        chosen = [calls for calls in new if calls.names]  # there may be only casts left to time
        for own in self.data:  # all excerpts have the memory of the largest
            own.memory(max((calls.excerpt.nbytes for calls in chosen), default=0))
        teams = [self._bind(calls) for calls in chosen]
        return [
            _Pass([t[worker] for t in teams if t], CacheFlusher(caches))
            for worker in range(len(self.data))
        ]

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

    def _choose(self, graph: Graph) -> _Chosen:
        """Return the calls of a graph that are to be timed."""
        texts = {n.name: signature(n, graph) for n in graph if not n.is_variable}
        casts = {Value(name) for name in texts if is_parameter_cast(graph, name)}
        unread = {v.node for v in casts - read_as_arrays(graph) - {*graph.outputs}}
        self.unread |= {texts[name] for name in unread}
        chosen = []
        for name, text in texts.items():
            if name not in unread and self.uses[text] < self.calls(graph[name], graph):
                chosen.append(name)
            self.uses[text] += 1
        return _Chosen(graph, texts, tuple(chosen))

    def _bind(self, chosen: _Chosen) -> list[_Timings]:
        """Return an excerpt for each worker, of the calls that do not fail; none if all do."""
        while (chosen := chosen.without(self.failed)).names:
            graph, texts, names = chosen.graph, chosen.texts, chosen.names
            readers = {
                name: min(READS, self.calls(graph[name], graph))
                for name in names
                if self._depends(graph[name], graph)
            }
            excerpts = [
                _Timings(chosen.excerpt.bind(own), texts, names, readers) for own in self.data
            ]
            try:
                list(self.pool.map(_Timings.warm_up, excerpts))
            except NodeFailed as error:
                cause = error.__cause__
                self.failed[texts[error.node]] = f"{type(cause).__name__}: {cause}"
            else:
                return excerpts
        return []

    def _depends(self, node: Node, graph: Graph) -> bool:
        """Return whether it matters where a call's parameters come from, and note `others`."""
        read = sum(graph[name].types[0].nbytes for name in parameters(node, graph))
        if read:
            rest = max(0, touched_bytes(node, graph) - read)
            self.others[signature(node, graph)] = min(1.0, rest / read)
        flops = find(node.op).flops(node.attrs, graph.types_of(node.inputs), node.types)
        least = self.speed.call + flops / self.speed.flops
        return read / self.speed.bandwidth > READING_SHARE * least
