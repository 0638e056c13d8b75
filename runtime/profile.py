"""The profile: seconds of every distinct kernel of some graphs, measured where it stands.

What a call takes depends on what ran before it: which arrays and which code are in cache, whether
memory for the result is fresh. So kernels are not called on their own. A graph runs in its own
order, by the runtime's own loop, but each signature only a few times; what a node that is left out
would have made is random. Of an unrolled network that is a few time steps:

    step       0     1     2     3     4 ...
    layer 0    runs  runs  runs  -     -        with CALLS = 3
    layer 1    -     -     -     -     -        equal to layer 0: only what is new of it runs

Such a pass is short however deep the network is, and it is repeated until the figures stand.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from partitioner.cost import CostTable, Measured, signature
from partitioner.types import FORWARD, BodyKey
from runtime.calibrate import bound, measure_speed
from runtime.kernels import BoundBody, NodeFailed, Step
from runtime.native import Clock, nothing
from symgraph.build import Builder
from symgraph.graph import Graph, Node
from symgraph.ops.params import Attrs
from symgraph.ops.registry import VARIABLE, Env, Types
from symgraph.types import Array, TensorType, Value, is_float

CALLS = 8  # of a signature in a pass: the first finds its weights in memory, the next in cache
PASSES = 5  # at least, if there is time
STABLE = 0.01  # the uncertainty of a graph's time that ends the measurement
IDLE_CALLS = 200
IDLE = "idle"  # calls that do nothing
TRAINING = Env(train=True)

Samples = dict[str, list[float]]  # signature -> seconds of each call


def measure(
    graphs: Iterable[Graph],
    *,
    seconds: float = 20.0,
    known: Collection[str] = (),
    progress: Callable[[float], None] = lambda used: None,
) -> CostTable:
    """The costs of all kernels of these graphs, on made-up data, with the caller's BLAS threads.

    known: signatures that need not be measured.
    Ends when they are known well or the time is up, but not before every kernel is measured.
    progress: told after each pass which part of the time is used, and 1 at the end. Kernels that
    fail on made-up data are listed in the table's `failed`, and estimated.
    """
    begun = time.perf_counter()
    speed = measure_speed()
    uses = Counter(dict.fromkeys(known, CALLS))
    failed: dict[str, str] = {}
    excerpts = [_prepare(graph, uses, failed) for graph in graphs if _is_new(graph, uses)]
    idle = _Excerpt.idle()
    samples: Samples = defaultdict(list)
    idling: Samples = defaultdict(list)
    loops: list[float] = []
    ready = time.perf_counter()
    while True:
        for excerpt in excerpts:
            excerpt.run(samples)
        idle.run(idling)
        loops.append(idle.run_at_once())
        now = time.perf_counter()
        one_more = (now - ready) / len(loops)
        if now + one_more > begun + seconds:
            break
        if len(loops) >= PASSES and _uncertainty(samples, uses) < STABLE:
            break
        progress((now - begun) / seconds)
    progress(1.0)
    alone = float(np.median(idling[IDLE]))
    measured = {text: _measured(times, alone) for text, times in samples.items()}
    return CostTable(speed, float(np.median(loops)), measured, failed, describe_machine())


def describe_machine() -> dict[str, str]:
    """In words, what times depend on: processor, libraries and threads."""
    blas = [
        f"{b['internal_api']} {b['version']} ({b.get('architecture', '?')}) on {b['num_threads']}"
        for b in threadpool_info()
        if b["user_api"] == "blas"
    ]
    return {
        "host": platform.node(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "blas": ", ".join(blas) or "unknown",
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


# -- figures -------------------------------------------------------------------------------------


def _measured(times: Sequence[float], alone: float) -> Measured:
    """alone: seconds of a call that does nothing, run by itself."""
    low, median, high = np.percentile(times, (25, 50, 75))
    return Measured(max(0.0, float(median) - alone), float(high - low), len(times))


def _uncertainty(samples: Samples, uses: Mapping[str, int]) -> float:
    """How far off the time of all calls may be, as a part of it, from the spread of the samples."""
    total = error = 0.0
    for text, times in samples.items():
        low, median, high = np.percentile(times, (25, 50, 75))
        total += uses[text] * median
        error += uses[text] * (high - low) / len(times) ** 0.5
    return error / total if total else 0.0


# -- excerpts ------------------------------------------------------------------------------------


class _Excerpt:
    """A body that is run call by call; signatures: of the nodes, by name."""

    def __init__(self, body: BoundBody, signatures: Mapping[str, str]) -> None:
        self.body = body
        self.signatures = [signatures[step.name] for step in body.steps]
        self.calls = [body._replace(steps=(step,)) for step in body.steps]

    @classmethod
    def idle(cls) -> _Excerpt:
        """Calls that do nothing, by which the cost of the loop itself is known."""
        steps = (Step(IDLE, nothing, ()),) * IDLE_CALLS
        return cls(BoundBody(BodyKey(0, FORWARD), (), steps, (), ()), {IDLE: IDLE})

    def run(self, samples: Samples) -> None:
        """One pass; raises NodeFailed."""
        clock, times = time.perf_counter, []
        with np.errstate(all="ignore"):
            for call in self.calls:
                start = clock()
                call.run()
                times.append(clock() - start)
        for text, seconds in zip(self.signatures, times, strict=True):
            samples[text].append(seconds)

    def run_at_once(self) -> float:
        """Seconds a call, all calls in one run."""
        start = time.perf_counter()
        self.body.run()
        return (time.perf_counter() - start) / len(self.calls)


def _is_new(graph: Graph, uses: Counter[str]) -> bool:
    """Whether some call has not been measured often enough."""
    return any(uses[signature(n, graph)] < CALLS for n in graph if not n.is_variable)


def _prepare(graph: Graph, uses: Counter[str], failed: dict[str, str]) -> _Excerpt:
    """The part of the graph that is to be run, after a pass to warm up.

    uses: counts the calls of every signature, those of the graphs before included.
    """
    texts = {n.name: signature(n, graph) for n in graph if not n.is_variable}
    chosen = []
    for name, text in texts.items():
        if uses[text] < CALLS:
            chosen.append(name)
        uses[text] += 1
    while True:
        names = [name for name in chosen if texts[name] not in failed]
        excerpt = _cut_out(graph, names, texts)
        try:
            excerpt.run(defaultdict(list))
        except NodeFailed as error:
            cause = error.__cause__
            failed[texts[error.node]] = f"{type(cause).__name__}: {cause}"
        else:
            return excerpt


def _cut_out(graph: Graph, names: Sequence[str], signatures: Mapping[str, str]) -> _Excerpt:
    """These calls alone, in their order; what others make is made up, what others read is kept."""
    inside = set(names)
    kept = {v for n in graph if n.name not in inside for v in n.inputs} | {*graph.outputs}
    fresh, rng = Builder(graph).fresh, np.random.default_rng(0)
    made_up: dict[tuple[Value, int | None], Node] = {}
    feeds: dict[str, Array] = {}
    calls = []
    for name in names:
        node = graph[name]
        types = graph.types_of(node.inputs)
        inputs = []
        for value, type_, limit in zip(node.inputs, types, _limits(node, types), strict=True):
            if value.node in inside and limit is None:
                inputs.append(value)
                continue
            if (value, limit) not in made_up:
                variable = Node(fresh("made_up"), VARIABLE, types=(type_,))
                made_up[value, limit] = variable
                feeds[variable.name] = _random(rng, type_, limit)
            inputs.append(Value(made_up[value, limit].name))
        calls.append(Node(name, node.op, tuple(inputs), node.attrs, node.types))
    results = [v for n in calls for i in range(len(n.types)) if (v := Value(n.name, i)) in kept]
    clock = Clock()
    clock.env = TRAINING
    body = bound(Graph.of([*made_up.values(), *calls], results), feeds, clock)
    return _Excerpt(body, signatures)


# -- made-up data --------------------------------------------------------------------------------


def _classes(attrs: Attrs, ins: Types) -> int:
    """The labels that a softmax over these inputs knows."""
    return ins[0].shape[1 if attrs.get("multi_output") else -1]


def _of_all(attrs: Attrs, ins: Types) -> int:
    """The ids of a whole operator that this is a shard of."""
    count: int = attrs["classes"]
    return count


# Operator -> the input that holds ids, and how many ids there are.
IDS: Mapping[str, tuple[int, Callable[[Attrs, Types], int]]] = {
    "Embedding": (0, lambda attrs, ins: attrs["input_dim"]),
    "_embedding_grad": (0, lambda attrs, ins: attrs["input_dim"]),
    "take": (1, lambda attrs, ins: ins[0].shape[attrs["axis"]]),
    "_take_grad": (0, lambda attrs, ins: attrs["size"]),
    "pick": (1, lambda attrs, ins: ins[0].shape[attrs["axis"]]),
    "_pick_grad": (0, lambda attrs, ins: attrs["shape"][attrs["axis"]]),
    "one_hot": (0, lambda attrs, ins: attrs["depth"]),
    "SoftmaxOutput": (1, _classes),
    "_softmax_output_grad": (1, _classes),
    "softmax_cross_entropy": (1, _classes),
    "_nll": (1, _classes),
    "_shard_embedding": (0, _of_all),
    "_shard_embedding_grad": (0, _of_all),
    "_shard_softmax_output": (1, _of_all),
    "_shard_softmax_output_grad": (1, _of_all),
    "_shard_cross_entropy": (1, _of_all),
    "_shard_residual": (1, _of_all),
    "_shard_pick": (1, _of_all),
}


def _limits(node: Node, types: Types) -> list[int | None]:
    """For each input the number of ids it may hold; None: any numbers."""
    limits: list[int | None] = [None] * len(types)
    if node.op in IDS:
        at, count = IDS[node.op]
        limits[at] = count(node.attrs, types)
    return limits


def _random(rng: np.random.Generator, type_: TensorType, limit: int | None) -> Array:
    if limit is None and is_float(type_.dtype):
        numbers = rng.standard_normal(type_.shape, np.float32)
        numbers *= 0.1  # so that products of many stay in range
        return numbers.astype(type_.dtype, copy=False)
    return rng.integers(0, 2 if limit is None else limit, type_.shape).astype(type_.dtype)
