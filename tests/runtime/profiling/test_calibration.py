"""Measured costs: which kernels run, on which data, and what becomes of their times."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from partitioner import group2ctx
from partitioner.base.types import Body
from partitioner.costs.cost import signature
from partitioner.cutting.cut import cut
from runtime.backends.cpu.choice import chosen
from runtime.backends.cpu.gemm import available
from runtime.backends.device.clocks import HostStamps
from runtime.backends.device.processor import limit_blas
from runtime.backends.device.table import noop
from runtime.backends.native import NativeCalls
from runtime.profiling.calibration import cpu_kernels
from runtime.profiling.calibration.cpu_kernels import CALLS, LEAST, measure, midmean
from runtime.profiling.calibration.excerpts import ENOUGH, Excerpt, SyntheticInputs
from symgraph import cpu, rnn
from symgraph.core.graph import Graph, Node
from symgraph.core.params import number
from symgraph.core.registry import OPS, VARIABLE, register
from symgraph.core.shapes import same
from symgraph.core.types import Array, TensorType, Value
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.passes.gradients import gradients
from symgraph.passes.precision import is_parameter_cast, reduced
from symgraph.passes.testing import op_graph

Work = Callable[[], None]
CTC_LENGTHS = ("use_data_lengths", "use_label_lengths")
NAME = "_work_of_test_profile"
TYPE = TensorType((3,), "float32")


@pytest.fixture
def register_work() -> Iterator[Callable[[Work], None]]:
    """Registers an operator that does some work and returns its input; gone after the test."""

    def make(work: Work) -> None:
        def compute(env: Any, attrs: Any, x: Array) -> Array:
            work()
            return x

        register(
            name=NAME,
            inputs=("data",),
            shape=same,
            compute=compute,
            params={"kind": number(0.0)},
        )

    yield make
    OPS.pop(NAME, None)


def chain(kinds: list[float]) -> Graph:
    """x -> n0 -> n1 -> ...: calls of the test's operator, then a tanh."""
    nodes = [Node("x", VARIABLE, types=(TYPE,))]
    for at, kind in enumerate(kinds):
        nodes.append(Node(f"n{at}", NAME, (Value(nodes[-1].name),), {"kind": kind}, (TYPE,)))
    nodes.append(Node("y", "tanh", (Value(nodes[-1].name),), types=(TYPE,)))
    return Graph.of(nodes, [Value("y")])


def test_excerpts_of_a_worker_share_memory(register_work):
    """Six versions of a network took six times its memory while their kernels were timed."""
    register_work(lambda: None)
    inputs = SyntheticInputs()
    graph = chain([0.0, 1.0, 2.0])
    bodies = [Excerpt(graph, ["n0", "n1", "n2"]).bind(inputs) for _ in range(2)]
    (_, first), (_, second) = (made for body in bodies for made in body.results)
    assert np.shares_memory(first, second)


def test_all_excerpts_have_the_memory_of_the_largest(monkeypatch):
    """Each size that was asked for stayed until the end: 2.1 GiB instead of 1.4 for a network."""
    asked: list[int] = []
    reserve = SyntheticInputs.memory
    monkeypatch.setattr(
        SyntheticInputs, "memory", lambda self, n: [asked.append(n), reserve(self, n)][1]
    )
    measure([op_graph("tanh", [zeros(n)]) for n in (100, 10_000)], seconds=0)
    assert asked[0] == max(asked) > asked[1]


def test_no_more_large_inputs_are_made_than_leave_every_cache():
    """Each weight of a deep network had its own: 2.2 GiB for one that trains in 1.2."""
    inputs = SyntheticInputs()
    large = TensorType((ENOUGH // 8,), "float16"), None
    found = [inputs.array(large, index) for index in range(6)]
    assert len({id(array) for array in found}) == 4
    assert found[4] is found[0]


def test_what_a_call_writes_is_no_nearer_than_in_its_place():
    """Repeated, a product of few units wrote to a cache: it was priced a quarter too low."""
    samples, idle = cpu_kernels.Samples(), cpu_kernels._Idle(noop)
    idle.run()
    for times, seconds in (("near", 1.0), ("shared", 1.2), ("far", 1.5), ("every", 2.0)):
        getattr(samples, times)["call"].append(seconds)
    found = cpu_kernels._measured(samples, "call", {"call": 0.5}, idle)
    assert found.levels == pytest.approx((1.4, 1.6, 1.6), abs=1e-3)


def test_what_was_just_made_is_read_from_a_cache():
    """All inputs were read from memory: gates of an LSTM took four times as long as in a step."""
    x = Node("x", VARIABLE, types=(TYPE,))
    made = [Node(f"made{i}", "tanh", (Value("x"),), {}, (TYPE,)) for i in range(10)]
    late = [Node(f"late{i}", "tanh", (Value(f"made{i}"),), {}, (TYPE,)) for i in range(10)]
    at_once = [node for pair in zip(made, late, strict=True) for node in pair]
    for order, arrays in ((at_once, 2), ([*made, *late], 10), ([*made, *late[::-1]], 8)):
        inputs = SyntheticInputs()
        graph = Graph.of([x, *order], [Value(node.name) for node in late])
        Excerpt(graph, [node.name for node in late]).bind(inputs)
        assert len(inputs._arrays[TYPE, None]) == arrays


@pytest.mark.skipif(not available(), reason="packed products need AVX-512, or AVX2 and FMA")
def test_excerpts_of_a_worker_read_one_packed_weight_with_its_numbers():
    """It was never written: all of it was one page of zeros, which is always in a cache."""
    x, weight = zeros(4, 600), zeros(700, 600)
    graph = op_graph("FullyConnected", [x, weight], num_hidden=700, no_bias=True)
    inputs = SyntheticInputs()
    (name,) = (node.name for node in graph if not node.is_variable)
    for _ in range(2):
        Excerpt(graph, [name]).bind(inputs)
    ((_, packed, _, _),) = inputs.packs.buffers.values()
    assert np.count_nonzero(packed) >= 700 * 600 * 0.99


def bodies_of(graph: Graph) -> list[Body]:
    return list(cut(graph, group2ctx(graph, None, cpu(0))).bodies.values())


def test_a_known_time_is_found(register_work, monkeypatch):
    """By a clock that only the operator moves, by 2 ms a call, and each look at it, by 100 ns."""
    clock = SimpleNamespace(now=0.0)

    def move(seconds: float) -> float:
        clock.now += seconds
        return clock.now

    monkeypatch.setattr(time, "perf_counter", lambda: move(1e-7))
    monkeypatch.setattr(HostStamps, "stamp", lambda self: round(1e9 * move(1e-7)))

    def timed(calls: NativeCalls) -> list[int]:
        calls()
        return [round(1e9 * move(1e-7)) for _ in calls.calls]

    monkeypatch.setattr(NativeCalls, "timed", timed)
    register_work(lambda: move(0.002))
    graph = chain([0.0, 0.0, 1.0])
    costs = measure([graph], seconds=3)
    for name in ("n0", "n2"):
        assert costs.seconds_of(graph[name], graph) == pytest.approx(0.002, rel=1e-3)
    assert costs.seconds_of(graph["y"], graph) < 0.001
    (body,) = bodies_of(graph)
    assert costs.seconds(body) == sum(costs.seconds_of(n, graph) for n in graph)


@pytest.mark.parametrize("seconds", [0, 60])
def test_passes_that_other_programs_disturb_do_not_count(register_work, monkeypatch, seconds):
    """They take three times as long while the probes do; without time to wait they count."""
    slow = iter([1, 1, 1, 3, 3, 3, 1, 1, 3, 3, *[1] * 100])
    machine = SimpleNamespace(slow=1)

    def probed(work: Work) -> float:
        machine.slow = next(slow) if seconds else 3
        return 1e-3 * machine.slow

    monkeypatch.setattr(cpu_kernels, "_probed", probed)
    monkeypatch.setattr(cpu_kernels, "PAUSE", 0.0)
    monkeypatch.setattr(cpu_kernels._Probe, "least", {(1, 1, str(chosen())): 1e-3})
    register_work(lambda: time.sleep(0.005 * machine.slow))
    graph = chain([0.0])
    with limit_blas(1):
        found = measure([graph], seconds=seconds).seconds_of(graph["n0"], graph)
    assert found >= 0.005
    assert (found < 0.01) == (seconds > 0)


@pytest.mark.parametrize("depth", [3, max(CALLS), 80])
def test_a_signature_runs_a_few_times_a_pass_however_often_it_stands_there(register_work, depth):
    runs = []
    register_work(lambda: runs.append(0))
    graph = chain([0.0] * depth)
    costs = measure([graph, graph], seconds=0)
    assert len(runs) == (2 + LEAST) * min(2 * depth, max(CALLS))
    assert costs.measured[signature(graph["n0"], graph)].calls == LEAST * min(2 * depth, max(CALLS))
    assert costs.measured_share(graph) == 1.0


def test_a_kernel_that_fails_is_listed_and_estimated(register_work):
    def fail() -> None:
        raise RuntimeError("no such device")

    register_work(fail)
    graph = chain([0.0, 1.0])
    costs = measure([graph], seconds=0)
    assert costs.failed == {
        signature(graph[name], graph): "RuntimeError: no such device" for name in ("n0", "n1")
    }
    assert costs.seconds_of(graph["n0"], graph) == costs.speed.seconds_of(graph["n0"], graph)
    assert signature(graph["y"], graph) in costs.measured
    assert 0 < costs.measured_share(graph) < 1


def test_a_graph_whose_kernels_all_fail_is_estimated(register_work):
    """Nothing was left to time, which ended in a traceback: `not enough values to unpack`."""

    def fail() -> None:
        raise RuntimeError("no such device")

    register_work(fail)
    graph = op_graph(NAME, [zeros(3)])
    costs = measure([graph, chain([0.0])], seconds=0)
    assert [*costs.failed] == [signature(graph["op"], graph)]


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("op", "shapes", "attrs"),
    [
        ("CTCLoss", [(6, 2, 4), (2, 3)], {}),
        ("CTCLoss", [(6, 2, 4), (2, 3), (2,), (2,)], dict.fromkeys(CTC_LENGTHS, True)),
        ("CTCLoss", [(6, 2, 1), (2, 3)], {"blank_label": "last"}),
        ("_sample_gamma", [(3,), (3,)], {}),
        ("_sample_negative_binomial", [(3,), (3,)], {}),
    ],
)
def test_kernels_that_refuse_some_numbers_are_measured(op, shapes, attrs):
    graph = op_graph(op, [zeros(*shape) for shape in shapes], **attrs)
    assert measure([graph], seconds=0).failed == {}


def test_kernels_are_measured_on_usual_numbers():
    """Logarithms of negative numbers took six times as long; all of a mask was one."""
    x, mask, other = map(sym.Variable, ("x", "mask", "other"))
    y = sym.where(mask, sym.log(x), sym.log(sym.exp(other)))
    graph = lower(y, dict.fromkeys(("x", "mask", "other"), (300, 300)))
    calls = [node.name for node in graph if not node.is_variable]
    body = Excerpt(graph, calls).bind(SyntheticInputs())
    body.run()
    ((_, made),) = body.results
    assert np.isfinite(made).all()
    assert made.min() < 0  # what is made inside is read as it is
    assert 0.4 < len(np.unique(made)) / made.size < 0.6  # of each number of the mask, about half


def language_model(steps: int, dtype: str = "float32") -> Graph:
    """Word ids, two LSTM layers with dropout, and a softmax, with gradients."""
    words = sym.Embedding(sym.Variable("data"), input_dim=50, output_dim=6, name="embed")
    stack = rnn.SequentialRNNCell()
    for layer in range(2):
        stack.add(rnn.LSTMCell(6, prefix=f"l{layer}_"))
        stack.add(rnn.DropoutCell(0.3))
    outputs, _ = stack.unroll(steps, words, merge_outputs=True)
    scores = sym.FullyConnected(sym.Reshape(outputs, shape=(-1, 6)), num_hidden=50, name="scores")
    label = sym.Reshape(sym.Variable("label"), shape=(-1,))
    loss = sym.SoftmaxOutput(scores, label, normalization="valid", use_ignore=True, name="loss")
    fed = {"data": (4, steps), "label": (4, steps)}
    graph = lower(loss, fed, dict.fromkeys(loss.list_arguments(), dtype))
    weights = [n.name for n in graph.variables if n.name not in fed]
    return gradients(graph, weights).graph


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_kernel_of_a_language_model_is_measured(dtype):
    short, long = language_model(3, dtype), language_model(40, dtype)
    costs = measure([short, long], seconds=1)
    assert costs.failed == {}
    for graph in (short, long):
        forward, backward = bodies_of(graph)
        assert costs.measured_share(forward.graph) == costs.measured_share(backward.graph) == 1.0
        total = sum(costs.seconds_of(n, graph) for n in graph)
        assert costs.seconds(forward) + costs.seconds(backward) == pytest.approx(total)
    assert all(m.calls >= 1 and m.seconds >= 0 <= m.spread for m in costs.measured.values())
    assert len(costs.measured) < len(short)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_calls_that_read_large_parameters_are_timed_with_them_in_each_cache(workers, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "SHORT_STEP", 0.0)  # all count as long: all workers run them
    x = sym.Variable("x")
    net = sym.FullyConnected(sym.tanh(x), num_hidden=300, no_bias=True, name="large")
    net = sym.FullyConnected(net, num_hidden=3, no_bias=True, name="small")
    graph = lower(net, {"x": (4, 256)})
    # As for a choice: two threads of BLAS are slow where other programs run, which hides reading.
    with threadpool_limits(limits=1, user_api="blas"):
        costs = measure([graph], seconds=0, workers=workers)
    large = costs.measured[signature(graph["large"], graph)]
    assert len(large.levels) == 3
    assert 0 < large.levels[0] <= large.levels[1] <= large.levels[2]
    assert large.calls == LEAST * workers
    assert 0 < large.alone <= 1
    small = costs.measured[signature(graph["small"], graph)]
    assert small.levels == ()
    assert costs.rates.packing > 0
    assert costs.rates.passes > 0
    assert costs.caches.own <= costs.caches.shared


def test_the_midmean_is_between_the_fast_and_the_slow():
    assert midmean([1.0]) == 1.0
    assert midmean([1.0, 3.0]) == 2.0
    assert midmean([100.0, 1.0, 2.0, 4.0, 0.0]) == pytest.approx((1 + 2 + 4) / 3)


def zeros(*shape: int, dtype: str = "float32") -> Array:
    return np.zeros(shape, dtype)


MANY = 60  # ids of few kinds, so that one out of range would be met
ROWS, IDS, FLOAT_IDS = zeros(MANY, 3), zeros(MANY, dtype="int32"), zeros(MANY)
BY_ID = [
    ("Embedding", (IDS, zeros(2, 5)), {"input_dim": 2, "output_dim": 5}),
    ("_embedding_grad", (FLOAT_IDS, ROWS), {"input_dim": 2}),
    ("take", (zeros(4, 3), IDS), {"axis": 1, "mode": "raise"}),
    ("_take_grad", (IDS, ROWS), {"axis": 0, "size": 1, "mode": "raise"}),
    ("pick", (ROWS, IDS), {}),
    ("_pick_grad", (IDS, FLOAT_IDS), {"axis": 1, "shape": (MANY, 3)}),
    ("one_hot", (IDS,), {"depth": 3}),
    ("SoftmaxOutput", (ROWS, IDS), {}),
    ("_softmax_output_grad", (ROWS, FLOAT_IDS), {}),
    ("_softmax_output_grad", (zeros(MANY, 2, 7), zeros(MANY, 7)), {"multi_output": True}),
    ("softmax_cross_entropy", (ROWS, IDS), {}),
    ("_nll", (ROWS[:, :1], IDS), {}),
]
LENGTHS, LENGTH = zeros(MANY, dtype="int32"), {"use_sequence_length": True}
BY_ID += [
    ("SequenceLast", (zeros(3, MANY, 2), LENGTHS), LENGTH),
    ("_sequence_last_grad", (zeros(MANY, 2), LENGTHS), {**LENGTH, "axis": 1, "size": 3}),
]


def test_synthetic_ids_and_lengths_are_in_range():
    graphs = [op_graph(op, arrays, **attrs) for op, arrays, attrs in BY_ID]
    costs = measure(graphs, seconds=0)
    assert costs.failed == {}
    assert len(costs.measured) == len(BY_ID)


def test_the_logger_hears_of_each_pass(caplog):
    with caplog.at_level(logging.DEBUG, "runtime.profiling"):
        costs = measure([op_graph("tanh", [ROWS])], seconds=2)
    told = [record.done for record in caplog.records]
    assert len(told) > 1
    assert told == sorted(told)
    assert {"processor", "cores", "blas", "numpy"} <= set(costs.machine)


@pytest.mark.skipif(not available(), reason="packed products need AVX-512, or AVX2 and FMA")
def test_casts_that_no_run_makes_are_free():
    """Products of bfloat16 take weights packed from the parameters, so their casts are not made."""
    graph = reduced(language_model(2), "bfloat16", ["data", "label"])
    costs = measure([graph], seconds=0)
    weights = [n for n in graph if is_parameter_cast(graph, n.name) and len(n.types[0].shape) == 2]
    assert len(weights) >= 3
    assert {costs.measured[signature(n, graph)].seconds for n in weights} == {0.0}
    score = graph["scores"]
    assert costs.measured[signature(score, graph)].seconds > 0
    casts = {signature(n, graph) for n in weights}
    known = {text: m for text, m in costs.measured.items() if text not in casts}
    again = measure([graph], seconds=0, known=replace(costs, measured=known))
    assert casts <= {*again.measured}
