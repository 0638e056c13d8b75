"""Groups that the planner puts on several devices: which are tried, and when they are taken."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import symgraph as sg
from examples.lstm_lm import build
from partitioner.costs.cost import Speed
from partitioner.costs.machine import Device, Level, Machine
from partitioner.strategies import Rule
from runtime.planning.costs.prices import CostModel, always
from runtime.planning.grid import Grid, grids_to_try
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.planning.splits import REPLICAS, SHARDS, GroupSplit, Weight, splits_to_try
from runtime.schedule.replay import Link
from symgraph.core.context import cpu
from symgraph.core.errors import ConfigError, LimitError, PlacementError
from symgraph.core.types import TensorType
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.passes.batching import Feed

PRICES = CostModel.alike(Speed(1e9, 1e-7, 1e12), Link(1e-7, 1e12), overhead=0.0)
DEVICES = (cpu(0), cpu(1))


def language_model(vocab: int, **more: object) -> Plan:
    model = build(4, 6, vocab, 4, 16, 16, residual=False)
    given: dict[str, object] = {"strategy": "auto", "schedule": "auto", "micro_batches": 2}
    options = Options(
        None,
        cpu(0),
        DEVICES,
        states=model.states,
        update=True,
        whole=False,
        pricing=lambda graph, contexts: PRICES,
        **given | more,
    )
    return plan(model.symbol, model.feeds, options, wrt=None)


@pytest.mark.parametrize(
    ("weights", "want"),
    [
        ({"a": Weight(1.0, 8), "b": Weight(1.0, 8)}, [SHARDS + " a"]),
        ({"a": Weight(3.0, 8), "b": Weight(1.0, 8)}, [SHARDS + " a"]),
        (
            {"a": Weight(3.0, 0), "b": Weight(1.5, 8)},
            [SHARDS + " b", REPLICAS + " a", SHARDS + " b " + REPLICAS + " a"],
        ),
        ({"a": Weight(3.0, 0), "b": Weight(0.1, 8)}, [REPLICAS + " a"]),
        ({"": Weight(9.0, 8), "b": Weight(0.1, 8)}, []),
        ({"a": Weight(1.0, 0), "b": Weight(1.0, 0)}, []),
        ({"a": Weight(1.0, 1), "b": Weight(1.0, 0)}, []),  # one row makes no two pieces
    ],
)
def test_what_is_tried(weights, want):
    found = splits_to_try(weights, (), 2)
    assert [" ".join(f"{s.kind} {s.group}" for s in splits) for splits in found] == want


def test_groups_that_the_user_names_are_not_split():
    weights = {"a": Weight(3.0, 8), "b": Weight(1.5, 8)}
    assert splits_to_try(weights, ("a",), 2) == [(GroupSplit("b", SHARDS),)]


def test_groups_are_split_along_the_axis_that_the_user_names():
    weights = {"a": Weight(3.0, 8), "b": Weight(1.5, 8)}
    along = [Rule("split", ("a",), axis="samples")]
    a, b = GroupSplit("a", REPLICAS), GroupSplit("b", SHARDS)
    assert splits_to_try(weights, (), 2, along) == [(b,), (a,), (b, a)]
    assert splits_to_try(weights, (), 2, [Rule("split", ("a",), axis="none")]) == [(b,)]
    assert splits_to_try(weights, (), 2, [Rule("split", ("*",), axis="none")]) == []


@pytest.mark.slow
def test_a_decoder_that_outweighs_the_layers_is_put_in_shards():
    """No cut balances a decoder of two thirds of the work; its halves do."""
    whole = language_model(400, splits=False)
    free = language_model(400, data_axis=1)
    assert not whole.shards
    assert {s.parameter for s in free.shards.values()} == {"decode_weight", "decode_bias"}
    assert free.options.groups == {"decode": DEVICES}
    (none, *_) = free.splits
    best = min(free.splits, key=lambda c: c.seconds)
    assert none.splits == ()
    assert best.splits == (GroupSplit("decode", SHARDS),)
    assert best.seconds < 0.95 * none.seconds
    assert best.split_words.startswith("decode in shards: ")


@pytest.mark.slow
def test_a_network_that_balances_is_left_whole():
    assert not language_model(20).shards


def chain(**more: object) -> Plan:
    """Layers one after the other, all in one group."""
    x = sym.Variable("data")
    with AttrScope(ctx_group="only"):
        for i in range(8):
            x = sym.tanh(x, name=f"layer{i}")
    feeds = {"data": Feed(TensorType((8, 5000), "float32"))}
    options = Options(
        None, cpu(0), DEVICES, strategy="auto", pricing=lambda graph, contexts: PRICES, **more
    )
    return plan(sg.sym.MakeLoss(x), feeds, options)


@pytest.mark.slow
def test_a_group_that_cannot_be_cut_is_replicated():
    """One micro-batch through a chain leaves one of two devices waiting; halves of it do not."""
    made = chain(keep_groups=True)
    assert made.options.groups == {"only": DEVICES}
    assert made.splits[-1].splits == (GroupSplit("only", REPLICAS),)
    assert made.splits[-1].seconds < 0.6 * made.splits[0].seconds


@pytest.mark.slow
def test_what_is_to_be_short_is_an_option():
    """Two devices do more layers a second, but no single micro-batch is done sooner."""
    used = {
        objective: len(
            set(chain(objective=objective, splits=False, micro_batches=4).partition.rank_of)
        )
        for objective in ("latency", "throughput")
    }
    assert used == {"latency": 1, "throughput": 2}


# -- grids ------------------------------------------------------------------------------------


def layers(devices: int = 2, norm: bool = False, **more: object) -> Plan:
    """Layers of one micro-batch, which a pipeline cannot overlap."""
    x = sym.Variable("data")
    for i in range(4):
        x = sym.FullyConnected(x, num_hidden=64, name=f"fc{i}")
    if norm:
        x = sym.BatchNorm(x, name="norm")
    feeds = {"data": Feed(TensorType((16, 64), "float32"))}
    given: dict[str, object] = {"pricing": lambda graph, contexts: PRICES, "strategy": "auto"}
    contexts = tuple(map(cpu, range(devices)))
    options = Options(default=cpu(0), devices=contexts, update=True, **given | more)
    return plan(sg.sym.MakeLoss(x, name="loss"), feeds, options, wrt=None)


def test_data_parallelism_where_a_pipeline_only_waits():
    made = layers()
    assert made.options.data_axis == 2
    assert [c.split_words.partition(":")[0] for c in made.splits] == ["no group split", "2 rows"]
    assert made.splits[1].seconds == made.choice.seconds < 0.6 * made.splits[0].seconds
    assert made.digest == layers(strategy=None, data_axis=2).digest
    assert made.placements


@pytest.mark.every(4)
@pytest.mark.parametrize(
    "more",
    [
        {"splits": False},
        {"data_axis": 1},
        {"model_axis": 2},
        {"rules": (Rule("at_most", ("*",), count=1),)},
        {"rules": (Rule("split", ("fc0",), axis="none"),)},
        {"groups": {"fc0": cpu(0)}},
    ],
)
def test_no_grid_where_the_user_says_otherwise(more):
    assert layers(**more).options.rows == 1


def test_the_length_of_rows_alone_makes_a_grid():
    assert layers(model_axis=1).digest == layers(model_axis=1, data_axis=2).digest
    with pytest.raises(ConfigError, match="model_axis=3 does not divide the 2 devices into equal"):
        layers(model_axis=3)


def test_rules_that_contradict_each_other_are_named_by_auto_too():
    """It said that "the placement", of which the user had given none, broke one of them."""
    rules = (Rule("at_most", ("*",), count=1), Rule("apart", ("fc0", "fc1")))
    with pytest.raises(PlacementError, match=r"contradict each other: at_most: .*; apart: \[fc0"):
        layers(rules=rules)


def test_samples_that_a_network_mixes_are_not_dealt_out():
    made = layers(norm=True)
    assert made.options.rows == 1
    assert "norm" in made.splits[1].failed
    assert made.splits[1].split_words == f"2 rows: {made.splits[1].failed}"


def test_each_row_needs_a_sample_and_as_many_devices():
    assert grids_to_try(6, 4, uneven=False) == [Grid(2), Grid(3)]
    assert grids_to_try(4, 1, uneven=False) == []
    assert grids_to_try(4, 9, uneven=True) == [Grid(2), Grid(2, near=True), Grid(4)]


def test_replicas_are_inside_hosts_where_the_network_is_slow():
    """Two hosts of two devices: sums stay inside, and one activation goes from host to host."""
    speed = Device(cpu(0), 1e9, 0.0, math.inf)
    devices = tuple([replace(speed, context=cpu(i), node=str(i // 2)) for i in range(4)])
    machine = Machine(devices, {"node": Level(1e-7, 1e12), "network": Level(1e-6, 5e7)})
    prices = CostModel.of_machine(machine)
    made = layers(4, machine=machine, micro_batches=4, schedule="1f1b", pricing=always(prices))
    assert (made.options.rows, made.options.replicas_near) == (2, True)
    assert set(made.options.groups.values()) == {(cpu(0), cpu(1)), (cpu(2), cpu(3))}


def test_a_grid_with_a_group_on_several_columns_can_be_evaluated():
    """It said that group2ctx did not map the group."""
    x = sym.Variable("data")
    with AttrScope(ctx_group="wide"):
        left, right = (sym.FullyConnected(x, num_hidden=96, name=n) for n in ("left", "right"))
        right = sym.sum(sym.tanh(right), axis=1)
    with AttrScope(ctx_group="end"):
        loss = sg.sym.MakeLoss(sym.sum(sym.tanh(left), axis=1) + right, name="loss")
    feeds = {"data": Feed(TensorType((6, 32), "float32"))}
    prices = CostModel.alike(Speed(1e7, 1e-7, 1e12), Link(1e-7, 1e12), overhead=0.0)
    rules = (Rule("split", ("wide",), axis="samples"), Rule("together", ("left", "end")))
    options = Options(
        devices=tuple(map(cpu, range(4))),
        strategy="auto",
        micro_batches=3,
        rules=rules,
        pricing=always(prices),
    )
    made = plan(loss, feeds, options, wrt=None)
    assert {"end", "wide cpu(0)", "wide cpu(1)"} == set(made.options.groups)
    assert plan(loss, feeds, made.evaluating()).placement == made.placement


def test_a_column_for_a_group_that_no_node_is_in_is_refused():
    """It was left out, and the network placed on the first column without a word."""
    with AttrScope(ctx_group="front"):
        loss = sg.sym.MakeLoss(sym.tanh(sym.Variable("data")), name="loss")
    feeds = {"data": Feed(TensorType((4, 3), "float32"))}
    options = Options({"fornt": DEVICES}, devices=DEVICES, data_axis=2)
    with pytest.raises(PlacementError, match="did you mean 'fornt'"):
        plan(loss, feeds, options)


# -- micro-batches ----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_number_of_micro_batches_is_that_of_the_shortest_step():
    open_ = {"data_axis": 1, "schedule": "auto"}
    made = layers(micro_batches="auto", **open_)
    alone = {count: layers(micro_batches=count, **open_).choice.seconds for count in made.counts}
    assert made.counts == alone
    assert made.options.micro_batches == len(made.sizes) == min(alone, key=alone.__getitem__) > 1
    assert made.choice.seconds == alone[len(made.sizes)]
    assert made.digest == layers(micro_batches=len(made.sizes), **open_).digest


def test_more_micro_batches_are_tried_until_two_in_a_row_are_worse():
    counts = layers(micro_batches="auto", strategy=None).counts  # two devices, of which one works
    assert [*counts] == [1, 2, 4]  # the batch of 16 could have more
    assert [*counts.values()] == sorted(counts.values())


@pytest.mark.parametrize("more", [{"devices": 1}, {"norm": True}])
def test_one_device_or_mixed_samples_have_one_micro_batch(more):
    made = layers(micro_batches="auto", **more)
    assert len(made.sizes) == 1
    assert [*made.counts] == [1]


@pytest.mark.slow
def test_a_memory_limit_makes_more_micro_batches():
    x = sym.Variable("data")
    for i in range(4):
        x = sym.Activation(sym.FullyConnected(x, num_hidden=8, name=f"fc{i}"), act_type="tanh")
    loss, feeds = sg.sym.MakeLoss(x, name="loss"), {"data": Feed(TensorType((128, 8), "float32"))}

    def made(micro_batches: int | str, memory: int) -> Plan:
        options = Options(schedule="1f1b", micro_batches=micro_batches, memory=memory, update=True)
        return plan(loss, feeds, options, wrt=None)

    peaks = {count: made(count, 1 << 30).memory[0].peak for count in (1, 2, 128)}
    assert len(made("auto", peaks[1]).sizes) == 1
    assert len(made("auto", peaks[1] - 1).sizes) == 2
    with pytest.raises(LimitError) as caught:
        made("auto", 1000)
    assert 1000 < caught.value.smallest <= min(peaks.values())
