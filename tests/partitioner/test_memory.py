"""The memory plan: figures by hand, and beside what the meter measures while a plan runs."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph.sym as sym
from partitioner import BodyKey, BodyMemory, Partition, cut, group2ctx, plan_memory
from partitioner.lifetimes import SAME, SAME_IF_UNCHANGED, SLICES, is_view, lifetimes
from partitioner.memory import kept_bytes
from runtime.meter import Meter
from runtime.pipeline import Options
from runtime.schedules import SCHEDULES
from runtime.transports import ThreadCluster
from runtime.worker import Worker
from symgraph.attribute import AttrScope
from symgraph.context import cpu
from symgraph.gradients import gradients
from symgraph.lower import lower
from symgraph.ops.registry import find
from symgraph.symbol import Symbol
from symgraph.testing import op_graph, run_op
from symgraph.types import Value
from tests.networks import random_case, random_groups
from tests.pipelines import Case, make_plan
from tests.recurrent import lstm_case

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")

X, W, Y = 5 * 4 * 8, 3 * 4 * 8, 5 * 3 * 8  # bytes of the arrays of `small`


def small(reshaped: bool = False) -> Symbol:
    """W.x, its tanh and a loss, in float64."""
    h = sym.FullyConnected(sym.Variable("x"), name="fc", num_hidden=3, no_bias=True)
    y = sym.tanh(h, name="y")
    if reshaped:
        y = sym.Reshape(y, shape=(-1,), name="flat")
    return sym.MakeLoss(y, name="loss")


def partition_of(symbol: Symbol, devices: int = 1, train: bool = True, **how: bool) -> Partition:
    graph = lower(symbol, {"x": (5, 4)}, {"x": "float64"})
    if train:
        graph = gradients(graph, ["fc_weight"]).graph
    groups = {f"g{i}": cpu(i) for i in range(devices)} if devices > 1 else None
    return cut(graph, group2ctx(graph, groups, cpu(0)), **how)


# -- by hand -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reshaped", [False, True])
def test_figures_of_one_stage(reshaped):
    """y is all that backward needs of forward: fc's gradient reads x, which is the caller's.

    forward    fc     (fc y)          y
    backward   y      (y g)   (y g dh)   (dh dw)

    The reshape and the loss are the same memory as y.
    """
    partition = partition_of(small(reshaped))
    assert kept_bytes(partition) == (Y,)
    gradient = partition.graph.outputs[-1]
    plan = plan_memory(partition, grads={"fc_weight": gradient}, slots=2, parameters=["fc_weight"])
    assert (plan.parameters, plan.optimizer) == ((W,), (2 * W,))
    assert plan.bodies == {
        BodyKey(0, "F"): BodyMemory(top=2 * Y, kept=Y),
        BodyKey(0, "B"): BodyMemory(top=2 * Y, kept=-Y, sums=W),
    }


def test_a_backward_phase_in_two_keeps_what_the_second_needs():
    """dh is made in I and read by W."""
    plan = plan_memory(partition_of(small(), split=True))
    assert plan.bodies == {
        BodyKey(0, "F"): BodyMemory(top=2 * Y, kept=Y),
        BodyKey(0, "I"): BodyMemory(top=2 * Y, kept=Y - Y),
        BodyKey(0, "W"): BodyMemory(top=W, kept=-Y),
    }


def test_messages():
    """fc is sent to the other stage: nobody here needs it, but it stays until it is taken.

    The other stage holds it from when it is received until y is made, and sends dh back.
    """
    with AttrScope(ctx_group="g0"):
        h = sym.FullyConnected(sym.Variable("x"), name="fc", num_hidden=3, no_bias=True)
    with AttrScope(ctx_group="g1"):
        loss = sym.MakeLoss(sym.tanh(h, name="y"), name="loss")
    bodies = plan_memory(partition_of(loss, 2)).bodies
    assert bodies[BodyKey(0, "F")] == BodyMemory(top=Y, kept=0, sending=Y)
    assert bodies[BodyKey(1, "F")] == BodyMemory(top=Y, kept=Y - Y)
    assert bodies[BodyKey(1, "B")] == BodyMemory(top=2 * Y, kept=-Y, sending=Y)
    assert bodies[BodyKey(0, "B")] == BodyMemory(top=W, kept=-Y)


def test_a_value_for_another_stage_of_the_same_rank_is_counted_once():
    """y0 goes to stage 2 of the same rank and is kept by stage 0 for its own gradient."""
    with AttrScope(ctx_group="g0"):
        h = sym.FullyConnected(sym.Variable("x"), name="fc", num_hidden=3, no_bias=True)
        y = sym.tanh(h, name="y0")
    with AttrScope(ctx_group="g1"):
        z = sym.tanh(y, name="y1")
    with AttrScope(ctx_group="g0"):
        loss = sym.MakeLoss(sym.sin(z) * y, name="loss")
    bodies = plan_memory(partition_of(loss, 2)).bodies
    assert bodies[BodyKey(0, "F")].kept == Y
    total = sum(m.kept for k, m in bodies.items() if k.stage in (0, 2))
    received = 2 * Y  # y1 at stage 2, its gradient at stage 0
    assert total == -received


def test_forward_only_leaves_nothing():
    (body,) = plan_memory(partition_of(small(), train=False)).bodies.values()
    assert body == BodyMemory(top=2 * Y, kept=0)


def test_lifetimes_of_one_stage():
    partition = partition_of(small())
    forward, backward = (partition.bodies[BodyKey(0, p)] for p in "FB")
    assert [n.name for n in forward.graph if not n.is_variable] == ["fc", "y", "loss"]
    life = lifetimes(forward, partition)
    assert life.drops == ((Value("fc_weight"),), (Value("fc"),), ())  # y stays for backward
    assert (life.spent, life.sent) == ((Value("loss"),), ())
    life = lifetimes(backward, partition)
    assert Value("y") in {v for drop in life.drops for v in drop}
    assert (life.spent, life.sent) == ((Value("fc_weight_grad0"),), ())


# -- which outputs share memory ------------------------------------------------------------------

VIEWS = [
    ("identity", (2, 3), {}), ("BlockGrad", (2, 3), {}), ("Reshape", (2, 3), {"shape": (3, 2)}),
    ("Flatten", (2, 3, 4), {}), ("expand_dims", (2, 3), {"axis": 1}), ("squeeze", (2, 1), {}),
    ("MakeLoss", (2, 3), {}), ("Cast", (2, 3), {"dtype": "float64"}),
    ("broadcast_to", (2, 3), {"shape": (2, 3)}), ("_sum_to", (2, 3), {"shape": (2, 3)}),
    ("broadcast_axis", (2, 3), {}), ("SliceChannel", (4, 3), {"num_outputs": 2, "axis": 0}),
    ("_broadcast_axes", (2, 1), {"axes": (1,), "shape": (2, 1), "keepdims": True}),
    ("SliceChannel", (1, 6), {"num_outputs": 2, "axis": 1}),
    ("SliceChannel", (3, 2), {"num_outputs": 3, "axis": 0, "squeeze_axis": True}),
    ("slice_axis", (4, 3), {"axis": 0, "begin": 1, "end": 3}),
    ("slice_axis", (4, 3), {"axis": 1, "begin": 0, "end": None}),
]  # fmt: skip
COPIES = [
    ("Cast", (2, 3), {"dtype": "float32"}), ("broadcast_to", (2, 1), {"shape": (2, 3)}),
    ("_sum_to", (2, 3), {"shape": (1, 3)}), ("broadcast_axis", (2, 1), {"axis": 1, "size": 3}),
    ("SliceChannel", (2, 4), {"num_outputs": 2, "axis": 1}), ("transpose", (2, 3), {}),
    ("slice_axis", (4, 3), {"axis": 1, "begin": 1, "end": 3}), ("tanh", (2, 3), {}),
    ("_broadcast_axes", (2,), {"axes": (1,), "shape": (2, 3)}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shape", "attrs"), VIEWS + COPIES)
def test_views_are_what_shares_memory(op, shape, attrs):
    x = np.random.default_rng(0).standard_normal(shape)
    graph = op_graph(op, [x], **attrs)
    outs = run_op(op, x, **attrs)
    for out in outs if isinstance(outs, list) else [outs]:
        assert np.shares_memory(out, x) == ((op, shape, attrs) in VIEWS)
    assert is_view(graph["op"], graph) == ((op, shape, attrs) in VIEWS)


def test_every_operator_of_the_table_is_tried():
    regression = {"LinearRegressionOutput", "MAERegressionOutput"}
    assert {op for op, _, _ in VIEWS} == (SAME | SAME_IF_UNCHANGED | SLICES) - regression
    x = np.ones((2, 3))
    for op in regression:
        assert run_op(op, x, np.zeros((2, 3))) is x
    assert not any(find(op).random for op, _, _ in VIEWS)


# -- beside the meter ----------------------------------------------------------------------------


def mlp_case() -> Case:
    rng = np.random.default_rng(0)
    x = sym.Variable("data")
    for layer in range(4):
        with AttrScope(ctx_group=f"layer{layer}"):
            x = sym.tanh(sym.FullyConnected(x, num_hidden=20 + layer, name=f"fc{layer}"))
    with AttrScope(ctx_group="head"):
        x = sym.SoftmaxOutput(x, name="softmax")
    labels = rng.integers(0, 10, 24).astype(float)
    feeds = {"data": rng.standard_normal((24, 16)), "softmax_label": labels}
    shapes, _, _ = x.infer_shape(**{n: a.shape for n, a in feeds.items()})
    names = zip(x.list_arguments(), shapes, strict=True)
    return Case(x, feeds, {n: rng.standard_normal(s) / 3 for n, s in names if n not in feeds})


def peaks(case: Case, options: Options) -> list[tuple[int, int]]:
    """For each rank, the peak that is planned and the one that is measured, parameters aside."""
    made = make_plan(case, options)
    measured = {}

    def work(transport) -> None:
        arrays = {n: a.copy() for n, a in case.arrays.items()}
        worker = Worker(made, transport.rank, arrays, wanted=())
        worker.meter = Meter(arrays.values())
        worker.step(transport, case.feeds)
        measured[transport.rank] = worker.meter.peak

    with ThreadCluster(made.partition.ranks) as cluster:
        cluster.run(work)
    return [(m.peak - m.parameters, measured[rank]) for rank, m in enumerate(made.memory)]


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "wavefront"])
@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("make", [mlp_case, lambda: lstm_case(3, 5, batch=8, hidden=6)])
def test_planned_peak_is_the_measured_one(make, devices, schedule, micro_batches):
    groups = {f"layer{i}": cpu(min(i, devices - 1)) for i in range(4)}
    groups["head"] = cpu(devices - 1)
    options = Options(groups, cpu(0), (), schedule, micro_batches)
    for planned, measured in peaks(make(), options):
        assert planned == measured > 0


@pytest.mark.parametrize("recompute", ["none", "all"])
@pytest.mark.parametrize("time_segment", [1, 2, 5])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "wavefront"])
def test_planned_peak_with_time_segments(schedule, time_segment, recompute):
    case = lstm_case(3, 5, batch=8, hidden=6)
    groups = {f"layer{i}": cpu(i) for i in range(3)} | {"head": cpu(2)}
    more = {"time_segment": time_segment, "recompute": recompute}
    for planned, measured in peaks(case, Options(groups, cpu(0), (), schedule, 2, **more)):
        assert planned == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(8))
def test_planned_peak_of_random_nets(seed, schedule):
    """Skips, shared weights, several stages a rank.

    Two things are not known from the cut alone: whether a message whose memory a later body of
    the sender drops has gone by then, and which of two stages of a rank drops shared memory last.
    In these tiny nets, one array is several per cent.
    """
    case = random_case(seed, batch=8)
    close = []
    for devices in (1, 2, 3):
        options = Options(random_groups(seed, devices), cpu(0), (), schedule, 4)
        for planned, measured in peaks(case, options):
            assert planned == pytest.approx(measured, rel=0.17)
            close.append(planned == measured)
    assert sum(close) >= len(close) - 3
