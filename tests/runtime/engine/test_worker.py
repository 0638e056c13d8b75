"""The worker: what a step leaves, what it carries on, and what is said when a node fails."""

from __future__ import annotations

import gc
import random
import threading
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

import symgraph.frontend.sym as sym
from runtime.engine.worker import Worker
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.transports import ThreadCluster
from symgraph.core.context import cpu
from symgraph.core.errors import GraphError, PeerFailed, RunError
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.name import NameManager
from tests.helpers.networks import random_case
from tests.helpers.pipelines import (
    Case,
    assert_close,
    assert_same_bits,
    judge,
    local_result,
    make_plan,
    merged,
    on_devices,
)
from tests.helpers.recurrent import lstm_case

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")
SCHEDULES = ["gpipe", "1f1b"]


def options(devices: int, schedule: str = "gpipe", micro_batches: int = 2, **more: Any) -> Options:
    """Groups `g0`, `g1`, ... round the devices; every device is a rank."""
    groups = {f"g{i}": cpu(i % devices) for i in range(4)}
    return on_devices(devices, groups, schedule, micro_batches, **more)


class Ranks:
    """The workers of all ranks, stepped together."""

    def __init__(self, case: Case, made: Plan, cluster: ThreadCluster, wanted: Any = None) -> None:
        self.made, self.cluster = made, cluster
        self.workers = [
            Worker(made, rank, {n: a.copy() for n, a in case.arrays.items()}, wanted)
            for rank in range(cluster.size)
        ]

    def step(self, feeds: dict[str, np.ndarray], step: int = 0, carry: bool = False) -> None:
        def work(transport: Any) -> None:
            worker = self.workers[transport.rank]
            worker.step(transport, feeds, step=step)
            if carry:
                worker.carry_states()

        self.cluster.run(work)

    def result(self):
        return merged({w.rank: local_result(self.made, w) for w in self.workers})


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_a_step_leaves_nothing_and_the_next_one_is_as_good(devices, schedule):
    case = random_case(5)
    made = make_plan(case, options(devices, schedule, 3))
    with ThreadCluster(devices) as cluster:
        ranks = Ranks(case, made, cluster)
        ranks.step(case.feeds)
        first = ranks.result()
        assert_close(first, judge(case))
        other = Case(case.symbol, {n: a[::-1].copy() for n, a in case.feeds.items()}, case.arrays)
        ranks.step(other.feeds, step=1)
        assert_close(ranks.result(), judge(other))
        ranks.step(case.feeds, step=2)
        assert_same_bits(ranks.result(), first)
    for worker in ranks.workers:
        assert worker._tickets == {}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_memory_does_not_grow(devices):
    """Pipelines 21: what a step makes, the next one replaces."""
    case = random_case(7)
    made = make_plan(case, options(devices, "1f1b", 3))
    counts = []
    with ThreadCluster(devices) as cluster:
        ranks = Ranks(case, made, cluster)
        tracemalloc.start()
        try:
            for step in range(200):  # until the flight records are full
                ranks.step(case.feeds, step)
            for step in range(200, 204):
                ranks.step(case.feeds, step)
                gc.collect()
                counts.append((array_bytes(), sum(w.held for w in ranks.workers)))
        finally:
            tracemalloc.stop()
    assert len(set(counts)) == 1


def test_a_step_makes_no_arrays():
    """What nodes and messages need has its place before; a step makes its timeline, no more."""
    case = lstm_case(2, 8, batch=16, hidden=64)
    groups = {"layer0": cpu(0), "layer1": cpu(1), "head": cpu(1)}
    made = make_plan(case, Options(groups, cpu(0), (), "1f1b", 2))
    largest = max(t.nbytes for node in made.partition.graph for t in node.types)
    with ThreadCluster(2) as cluster:
        ranks = Ranks(case, made, cluster, wanted=())
        for step in range(2):
            ranks.step(case.feeds, step)
        tracemalloc.start()
        try:
            before = array_bytes()
            tracemalloc.reset_peak()
            quiet, _ = tracemalloc.get_traced_memory()
            ranks.step(case.feeds, 2)
            _, peak = tracemalloc.get_traced_memory()
            after = array_bytes()
        finally:
            tracemalloc.stop()
    instructions = sum(len(p) for p in made.schedule.programs)
    assert after - before <= 16 * instructions + 1024
    assert peak - quiet < min(largest, 1000 * instructions)


def array_bytes() -> int:
    """The bytes of numpy's arrays that tracemalloc has seen made and that are still there."""
    numpys = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    traces = tracemalloc.take_snapshot().filter_traces([numpys])
    return sum(trace.size for trace in traces.traces)


def test_outputs_that_are_not_wanted_are_not_kept():
    case = random_case(3)
    made = make_plan(case, options(2))
    wanted = made.outputs[:1]
    with ThreadCluster(2) as cluster:
        ranks = Ranks(case, made, cluster, wanted)
        ranks.step(case.feeds)
    assert {v for w in ranks.workers for v in w.outputs} == set(wanted)


def test_every_instruction_is_an_event_in_its_order():
    case = random_case(1)
    made = make_plan(case, options(2, "1f1b"))
    with ThreadCluster(2) as cluster:
        ranks = Ranks(case, made, cluster)
        ranks.step(case.feeds)
    for worker, program in zip(ranks.workers, made.schedule.programs, strict=True):
        events = worker.timeline.events
        assert tuple(e.instruction for e in events) == program
        assert all(e.start <= e.end and e.rank == worker.rank for e in events)


class Dawdling:
    """A transport that waits a random while before each message."""

    def __init__(self, inner: Any, seed: int) -> None:
        self._inner, self._random = inner, random.Random(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, *args: Any) -> Any:
        time.sleep(self._random.random() / 500)
        return self._inner.send(*args)

    def recv(self, *args: Any) -> None:
        time.sleep(self._random.random() / 500)
        self._inner.recv(*args)


@pytest.mark.parametrize("seed", range(4))
def test_slow_ranks_change_nothing(seed):
    """Pipelines 7 (PiPPy#1088): whoever is late, every bit is the same."""
    case = random_case(11)
    made = make_plan(case, options(3, SCHEDULES[seed % 2], 3))
    with ThreadCluster(3) as cluster:
        ranks = Ranks(case, made, cluster)
        ranks.step(case.feeds)
        want = ranks.result()
        cluster.run(
            lambda end: ranks.workers[end.rank].step(Dawdling(end, 3 * seed + end.rank), case.feeds)
        )
        assert_same_bits(ranks.result(), want)


# -- states --------------------------------------------------------------------------------------


def counter_case(batch: int = 5) -> Case:
    """h' = tanh(W h + x) on one group, its sum on another: truncated back-propagation."""
    rng = np.random.default_rng(0)
    with NameManager():
        with AttrScope(ctx_group="g0"):
            x = sym.Variable("x")
        with AttrScope(ctx_group="g1"):
            h = sym.FullyConnected(sym.Variable("h"), num_hidden=3, no_bias=True, name="fc")
            h = sym.tanh(h + x, name="next")
            state = sym.BlockGrad(h, name="state")
        with AttrScope(ctx_group="g2"):
            loss = sym.MakeLoss(sym.square(h), name="loss")
    feeds = {"x": rng.standard_normal((batch, 3)), "h": np.zeros((batch, 3))}
    return Case(sym.Group([loss, state]), feeds, {"fc_weight": rng.standard_normal((3, 3))})


@pytest.mark.parametrize("micro_batches", [1, 2, 5])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_states_are_carried_to_the_same_samples(devices, schedule, micro_batches):
    """Five samples in two micro-batches are (3, 2): each keeps its own state."""
    case = counter_case()
    states = {"h": "state_output"}
    made = make_plan(case, options(devices, schedule, micro_batches, states=states))
    expected = case.feeds["h"]
    with ThreadCluster(devices) as cluster:
        ranks = Ranks(case, made, cluster)
        for step in range(3):
            now = Case(case.symbol, case.feeds | {"h": expected}, case.arrays)
            ranks.step(case.feeds, step, carry=True)
            want = judge(now)
            assert_close(ranks.result(), want)
            expected = want.outputs[1]
        for worker in ranks.workers:
            worker.states = {}
        ranks.step(case.feeds, 3, carry=True)
        assert_close(ranks.result(), judge(case))


# -- failures: pipelines 18 ----------------------------------------------------------------------


def fragile_case() -> Case:
    """Looks an embedding up on stage 0, classifies on the last: both fail on ids out of range."""
    rng = np.random.default_rng(0)
    with NameManager():
        with AttrScope(ctx_group="g0"):
            x = sym.Embedding(sym.Variable("ids"), input_dim=4, output_dim=3, name="embed")
        with AttrScope(ctx_group="g1"):
            x = sym.tanh(x, name="middle")
        with AttrScope(ctx_group="g2"):
            x = sym.SoftmaxOutput(x, sym.Variable("label"), name="softmax")
    feeds = {"ids": np.array([0.0, 1, 2, 3]), "label": np.array([0.0, 1, 2, 0])}
    return Case(x, feeds, {"embed_weight": rng.standard_normal((4, 3))})


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize(
    ("feed", "rank", "instruction", "node"),
    [("ids", 0, "0F1", "embed"), ("label", -1, "B1", "softmax_grad0")],
)
def test_a_failing_node_is_named_and_the_next_step_works(
    feed, rank, instruction, node, devices, schedule
):
    """The second micro-batch has a 9 among its ids (forward) or labels (backward)."""
    case = fragile_case()
    made = make_plan(case, options(devices, schedule, 2))
    bad = case.feeds | {feed: case.feeds[feed].copy()}
    bad[feed][3] = 9
    stages = made.partition.placement.rank_of
    rank = stages[rank]
    if len(instruction) == 2:  # the last stage's backward run
        instruction = f"{len(stages) - 1}{instruction}"
    heard: dict[int, BaseException] = {}
    with ThreadCluster(devices) as cluster:
        ranks = Ranks(case, made, cluster)
        ranks.step(case.feeds)
        good = ranks.result()

        def work(transport: Any) -> None:
            try:
                ranks.workers[transport.rank].step(transport, bad, step=7)
            except BaseException as error:
                heard[transport.rank] = error
                raise

        with pytest.raises(RunError) as error:
            cluster.run(work)
        words = f"rank {rank} failed at {instruction} (step 7), node '{node}': "
        assert str(error.value).startswith(words)
        assert isinstance(error.value.__cause__, IndexError)
        for other, told in heard.items():
            if other != rank:
                assert isinstance(told, PeerFailed)
                assert words in str(told)
        ranks.step(case.feeds, step=8)
        assert_same_bits(ranks.result(), good)
    names = [t.name for t in threading.enumerate()]
    assert not [name for name in names if name.startswith("symgraph-rank")]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"label": None}, r"no value is given for 'label' of float64\[4\]"),
        ({"label": np.zeros(5)}, r"'label' of float64\[4\] is given float64\[5\]"),
        ({"ids": np.zeros(4, "int32")}, r"'ids' of float64\[4\] is given int32\[4\]"),
    ],
)
def test_feeds_that_do_not_fit_are_refused(change, why):
    case = fragile_case()
    made = make_plan(case, options(2))
    with ThreadCluster(2) as cluster:
        ranks = Ranks(case, made, cluster)
        with pytest.raises(GraphError, match=why):
            ranks.step({n: a for n, a in (case.feeds | change).items() if a is not None})
