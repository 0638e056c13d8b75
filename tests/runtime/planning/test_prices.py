"""Costs on machines from files: every rank at its own speed, messages over the links between."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf

import pytest

from partitioner import Partition, group2ctx
from partitioner.costs.cost import Speed, Variation
from partitioner.costs.machine import Device, Level, Machine
from partitioner.cutting.cut import cut
from runtime.planning.costs.files import load_prices, save_prices
from runtime.planning.costs.prices import UNSURE, CostModel
from runtime.schedule.generators.forward import forward_only
from runtime.schedule.lowering.lower import lower as lower_schedule
from runtime.schedule.replay import Costs, Link, simulate
from symgraph import AttrScope, Context, cpu, gpu
from symgraph.core.errors import ConfigError
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from tests.helpers.profiles import ESTIMATES

# Elements: 10 x 10 inputs; so each of the nodes below does 100 operations and makes 400 bytes.
SHAPE = (10, 10)


def two_into_one(devices: tuple[Context, ...]) -> Partition:
    """Nodes a and b on the first two devices, whose sum c is on the third."""
    with AttrScope(ctx_group="a"):
        a = sym.negative(sym.Variable("x"), name="a")
    with AttrScope(ctx_group="b"):
        b = sym.negative(sym.Variable("y"), name="b")
    with AttrScope(ctx_group="c"):
        net = sym.elemwise_add(a, b, name="c")
    graph = lower(net, {"x": SHAPE, "y": SHAPE})
    groups = dict(zip("abc", devices, strict=True))
    return cut(graph, group2ctx(graph, groups, devices[0], devices))


def machine(network: Level, **changed: float) -> Machine:
    """One device a node; gpu(0) does 25 operations a second, gpu(1) 50 and gpu(2) 100."""
    devices = tuple(Device(gpu(i), 25.0 * 2**i, node=str(i)) for i in range(3))
    return Machine(devices, {"rack": network})


def costs_on(on: Machine, partition: Partition, overhead: float = 0.0) -> Costs:
    return replace(CostModel.of_machine(on), overhead=overhead).costs(partition)


def makespan(partition: Partition, on: Machine, overhead: float = 0.0) -> float:
    programs = lower_schedule(partition, forward_only(partition.rank_of, 1))
    return simulate(programs, partition, costs_on(on, partition, overhead)).makespan


def test_links_of_ranks_whatever_the_order_of_devices():
    on = Machine(
        tuple(Device(gpu(i), 1.0, node="ab"[i // 2]) for i in range(3)),
        {"node": Level(1.0, 2.0), "network": Level(3.0, 4.0, shared=True)},
    )
    partition = two_into_one((gpu(2), gpu(0), gpu(1)))
    near, far = Link(1.0, 2.0), Link(3.0, 4.0, "network")
    assert costs_on(on, partition).links == {
        (0, 1): far,
        (0, 2): far,
        (1, 0): far,
        (2, 0): far,
        (1, 2): near,
        (2, 1): near,
    }


def test_bodies_take_their_own_devices_time():
    partition = two_into_one((gpu(0), gpu(1), gpu(2)))
    costs = costs_on(machine(Level()), partition)
    assert {key.stage: costs.run(key) for key in partition.bodies} == {0: 4.0, 1: 2.0, 2: 1.0}
    moved = two_into_one((gpu(2), gpu(1), gpu(0)))
    costs = costs_on(machine(Level()), moved)
    assert {key.stage: costs.run(key) for key in moved.bodies} == {0: 1.0, 1: 2.0, 2: 4.0}


@pytest.mark.parametrize(
    ("network", "seconds"),
    [
        (Level(), 4 + 1),
        (Level(0.5, 100.0), 4 + 0.5 + 4 + 1),
        (Level(0.5, 100.0, shared=True), 2 + 4 + 4 + 0.5 + 1),  # rank 1 sends first; rank 0 waits
    ],
)
def test_messages_take_turns_on_a_shared_link(network, seconds):
    assert makespan(two_into_one((gpu(0), gpu(1), gpu(2))), machine(network)) == seconds


def test_overhead_comes_before_each_instruction():
    partition = two_into_one((gpu(0), gpu(1), gpu(2)))
    free, dear = (makespan(partition, machine(Level()), overhead=x) for x in (0.0, 0.25))
    # rank 0: run, send; rank 2 has waited for it: receive, run, free
    assert dear - free == 5 * 0.25


def test_a_uniform_machine_is_one_speed_and_one_link():
    partition = two_into_one((cpu(0), cpu(1), cpu(2)))
    on = Machine.uniform(map(cpu, range(3)), Speed(50.0, 1.0), 0.5, 400.0)
    assert makespan(partition, on) == 3 + 0.5 + 1 + 3
    assert makespan(partition, Machine.uniform(map(cpu, range(3)), Speed(50.0, 1.0), 0, inf)) == 6


def test_a_device_that_the_machine_has_not():
    partition = two_into_one((gpu(0), gpu(1), gpu(3)))
    with pytest.raises(ConfigError, match=r"the machine has no device gpu\(3\): did you mean 'gpu"):
        costs_on(machine(Level()), partition)


# -- F10: links between hosts ----------------------------------------------------------------------

TABLE = ((8, 0.010), (1000, 0.030), (101_000, 0.130))


def test_a_message_takes_what_was_measured_of_its_size():
    """F10: 20 kB took 42 ms where the 14.7 ms of 8 B and the bandwidth of 4 MiB say 16."""
    link = Link(0.010, 1e6, "", TABLE)
    for size, seconds in TABLE:
        assert float(link.seconds_of(size)) == pytest.approx(seconds)
    assert float(link.seconds_of(1)) == pytest.approx(0.010 - 7e-6)
    assert float(link.seconds_of(504)) == pytest.approx(0.020)  # halfway between two
    assert float(link.seconds_of(201_000)) == pytest.approx(0.230)  # at the bandwidth
    assert Link(Fraction(1, 3), 8).seconds_of(4) == Fraction(5, 6)  # without a table: exact


def test_steps_end_with_meetings_of_all_ranks():
    """F10: the exchange of norms took 40 ms of a step and was predicted to take none."""
    partition = two_into_one((gpu(0), gpu(1), gpu(2)))
    costs = costs_on(machine(Level(0.5, inf)), partition)
    assert costs.meeting == 2 * 2 * 0.5  # what they call, then the norms: trees of two rounds each
    assert CostModel.alike(Speed(1.0, 0.0), Link(0.5)).costs(partition).meeting == 0


def measured_on_two_hosts() -> CostModel:
    links = {"node": Level(1e-5, 1e9), "network": Level(0.010, 1e6, False, TABLE)}
    kernels = CostModel({"cpu": ESTIMATES}, {("cpu", "cpu"): Link(1e-6, 1e9, by_receiver=True)})
    return kernels.on_hosts((cpu(0), cpu(1), cpu(2)), ("a", "a", "b"), links)


def test_measured_links_between_hosts_carry_messages():
    """F10: without a machine file, a run over slow links predicted 0.9 ms beside 82."""
    prices = measured_on_two_hosts()
    assert prices.measured
    assert prices.link_between(cpu(0), cpu(1)) == Link(1e-5, 1e9)
    assert prices.link_between(cpu(2), cpu(0)) == Link(0.010, 1e6, "", TABLE)
    made = prices.machine_of((cpu(1), cpu(2)))
    assert made.link(0, 1) == (0.010, 1e6, "", TABLE)


def test_prices_of_several_hosts_are_kept_in_files(tmp_path):
    prices = measured_on_two_hosts()
    save_prices(prices, tmp_path / "costs.json")
    found = load_prices(tmp_path / "costs.json")
    assert found.machine is not None
    assert found.machine.links == prices.machine.links
    assert found.link_between(cpu(2), cpu(0)) == prices.link_between(cpu(2), cpu(0))


def test_kernels_timed_again_keep_the_links():
    """F10: the second prediction dropped the links and called the machine 97% faster."""
    first = CostModel.of_machine(machine(Level(0.5, 8.0)))
    again = CostModel({"gpu": ESTIMATES}, {}).with_links_of(first)
    assert again.of(gpu(0)) is ESTIMATES
    assert again.link_between(gpu(0), gpu(1)) == first.link_between(gpu(0), gpu(1))


def test_a_prediction_is_as_unsure_as_the_machine_varied():
    varied = replace(ESTIMATES, variation=Variation(0.9, 1.3))
    low, high = CostModel({"cpu": ESTIMATES, "gpu": varied}, {}).interval(2.0)
    assert low == pytest.approx(2.0 * 0.9 * (1 - UNSURE))
    assert high == pytest.approx(2.0 * 1.3 * (1 + UNSURE))
    assert CostModel({"cpu": ESTIMATES, "gpu": Speed(1.0, 0.0)}, {}).interval(2.0) is None
