"""Exchanges: messages that go together as collectives, in one order on all ranks."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from partitioner import group2ctx
from partitioner.base.collectives import CollectiveLayout
from partitioner.cutting.cut import cut
from runtime.planning.options import Options
from runtime.schedule.exchanges import exchanges
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import Recv, Run, Send
from runtime.schedule.lowering.lower import lower
from runtime.schedule.message_costs import collective_seconds
from runtime.schedule.replay import Costs, Link, check, simulate
from runtime.transports import ThreadCluster
from symgraph.core.context import cpu
from symgraph.core.errors import ScheduleError
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower as lower_symbol
from tests.fakes.fake_cluster import FakeCluster
from tests.helpers.collectives import groups, network, tree
from tests.helpers.pipelines import (
    Case,
    Result,
    assert_close,
    assert_same_bits,
    judge,
    make_plan,
    merged,
    on_devices,
    run_step,
)

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")


def options(p: int, ranks: int, schedule: str = "1f1b", micro_batches: int = 1) -> Options:
    place = {g: cpu(i % ranks) for i, g in enumerate(groups(p))}
    return on_devices(ranks, place, schedule, micro_batches)


@pytest.mark.every(9)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("p", "ranks"), [(3, 3), (5, 2)])
@pytest.mark.parametrize("make", [network, tree])
def test_every_schedule_gives_the_numbers_of_one_device(make, schedule, p, ranks):
    case = make(p)
    plan = make_plan(case, options(p, ranks, schedule, 3))
    with FakeCluster(ranks, 0, seed=p) as cluster:
        assert_close(merged(run_step(plan, case, cluster)), judge(case))


@pytest.mark.parametrize("make", [network, tree])
def test_bits_do_not_depend_on_who_shares_a_rank(make):
    """Between ranks values go in collectives; on one rank they stay where they are."""
    case = make(4)
    results = []
    for ranks in (1, 2, 3, 4):
        plan = make_plan(case, options(4, ranks, micro_batches=2))
        with ThreadCluster(ranks) as cluster:
            results.append(merged(run_step(plan, case, cluster)))
    for result in results[1:]:
        assert_same_bits(result, results[0])


def kinds(case, p: int, ranks: int) -> Counter[str]:
    plan = make_plan(case, options(p, ranks))
    return Counter(x.kind for x in exchanges(plan.partition.edges, plan.partition.rank_of))


def test_collectives_and_their_gradients_are_what_they_say():
    """Sums are no part of them: a reduce_scatter is an alltoall, an allreduce both or a gather."""
    want = {"alltoall": 6, "allgather": 4}
    assert kinds(network(3), 3, 3) == want
    assert kinds(tree(3), 3, 3) == {"scatter": 2, "bcast": 1, "gather": 3}
    assert kinds(network(3), 3, 1) == {}


def test_what_a_rank_gives_to_all_is_given_once():
    plan = make_plan(network(3), options(3, 3))
    found = {x.name: x for x in exchanges(plan.partition.edges, plan.partition.rank_of)}
    (gathered,) = [x for n, x in found.items() if "allgather" in n and "back" not in n]
    blocks = gathered.layout
    assert blocks.ranks == (0, 1, 2)
    size = blocks.sizes[0][1]
    assert [blocks.given(i) for i in range(3)] == [size] * 3
    assert blocks.column(0) == [size] * 3


def test_parts_that_need_each_other_are_messages():
    """Rank 1's part of the gather is made of what rank 0 makes of rank 0's: no one call can do."""
    weights = {f"w{i}": np.full((2, 2), 0.5 + i) for i in range(2)}
    with AttrScope(ctx_group="rank1"):
        first = sym.dot(sym.Variable("data"), sym.Variable("w1"))
    (there,) = sym.comm.gather([first], "rank0", name="first")
    with AttrScope(ctx_group="rank0"):
        back = sym.dot(there, sym.Variable("w0"))
    with AttrScope(ctx_group="rank1"):
        second = sym.tanh(back, name="second")
    parts = sym.comm.gather([first, second], "rank0", name="both")
    with AttrScope(ctx_group="rank0"):
        loss = sym.MakeLoss(parts[0] * parts[1], name="loss")
    case = Case(loss, {"data": np.ones((4, 2))}, weights)
    plan = make_plan(case, Options({"rank0": cpu(0), "rank1": cpu(1)}, cpu(0), (), "1f1b", 2))
    with ThreadCluster(2) as cluster:
        assert_close(merged(run_step(plan, case, cluster)), judge(case))


def swap(p: int = 2):
    """Every rank gives one value to each other one; the cut, where stage p + i uses what i got."""
    names = groups(p)
    rows = []
    for i, name in enumerate(names):
        with AttrScope(ctx_group=name):
            rows.append([sym.Variable(f"x{i}{j}") if i != j else None for j in range(p)])
    used = []
    for name, column in zip(names, sym.comm.alltoall(rows, names), strict=True):
        with AttrScope(ctx_group=name):
            used.append(sym.tanh(sym.add_n(*[x for x in column if x is not None])))
    types = {x.name: (4, 8) for row in rows for x in row if x is not None}
    graph = lower_symbol(sym.Group(used), types)
    return cut(graph, group2ctx(graph, {n: cpu(i) for i, n in enumerate(names)}, cpu(0)))


def test_a_rank_that_takes_before_it_gives_is_refused():
    """Each message alone could be delivered; a collective waits for all that its ranks give."""
    partition = swap()
    good = lower(partition, [[Run(0, "F", 0), Run(2, "F", 0)], [Run(1, "F", 0), Run(3, "F", 0)]])
    check(good, partition, 1)
    early = lower(partition, [[Run(2, "F", 0), Run(0, "F", 0)], [Run(1, "F", 0), Run(3, "F", 0)]])
    with pytest.raises(
        ScheduleError, match=r"rank 0, step 0: R0\.0 waits for S1\.0 of rank 0 \(x01\)\n"
    ):
        check(early, partition, 1)


def test_a_collective_ends_when_the_last_rank_has_started_it_and_takes_what_it_costs():
    partition = swap(3)
    schedule = lower(partition, [[Run(r, "F", 0), Run(r + 3, "F", 0)] for r in range(3)])
    nbytes = 4 * 8 * 4
    link = Link(Fraction(1, 10), nbytes)  # a message takes 1 s
    slow = {(1, 2): Link(Fraction(1, 10), Fraction(nbytes, 2))}
    costs = Costs(lambda key: 5 if key.stage == 1 else 1, link, slow)
    (exchange,) = exchanges(partition.edges, partition.rank_of)
    takes = collective_seconds(exchange.layout, costs.link_of)
    assert takes == Fraction(2, 10) + 4  # pairwise: two rounds, two values a rank, at 2 s
    timeline = simulate(schedule, partition, costs)
    for track in timeline.tracks:
        taken = [
            int(e) * timeline.unit
            for i, e in zip(track.program, track.end, strict=True)
            if isinstance(i, Recv)
        ]
        assert taken == [5 + takes] * 2
        assert sum(isinstance(i, Send) for i in track.program) == 2


def uniform(kind: str, p: int, nbytes: int) -> CollectiveLayout:
    """Equal blocks; the root of a tree is rank 0."""
    to_root = kind == "gather"
    rows = [
        [
            0 if i == j or (kind in ("bcast", "scatter") and i) or (to_root and j) else nbytes
            for j in range(p)
        ]
        for i in range(p)
    ]
    return CollectiveLayout(kind, tuple(range(p)), tuple(map(tuple, rows)))


@pytest.mark.parametrize(
    ("kind", "latency", "want"),
    [
        ("bcast", 2, 3 * (2 + 8)),
        ("bcast", 0, Fraction(2 * 7, 8) * 8),
        ("scatter", 1, 3 + 7 * 8),
        ("gather", 1, 3 + 7 * 8),
        ("allgather", 1, 3 + 7 * 8),
        ("allgather", 0, 7 * 8),
        ("alltoall", 0, 7 * 8),
        ("alltoall", 100, 3 * (100 + 28)),
    ],
)
def test_costs_of_eight_ranks(kind, latency, want):
    blocks = uniform(kind, 8, 8)
    assert collective_seconds(blocks, lambda source, target: Link(latency, 1)) == want


def test_an_executor_runs_them_phase_by_phase():
    case = network(3)
    values = case.feeds | case.arrays
    place = {g: cpu(i) for i, g in enumerate(groups(3))}
    kinds, shapes = dict.fromkeys(values, "float64"), {n: a.shape for n, a in values.items()}
    with case.symbol.simple_bind(cpu(0), group2ctx=place, type_dict=kinds, **shapes) as executor:
        for name, array in values.items():
            executor.arg_dict[name][:] = array
        for _ in range(2):
            outputs = executor.forward(is_train=True)
            executor.backward()
            grads = {n: executor.grad_dict[n] for n in case.arrays}
            assert_close(Result(outputs, grads), judge(case))
