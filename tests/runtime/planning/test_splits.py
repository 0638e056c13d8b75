"""Groups that the planner puts on several devices: which are tried, and when they are taken."""

from __future__ import annotations

import pytest

import symgraph as sg
from examples.lstm_lm import build
from partitioner.costs.cost import Speed
from partitioner.strategies import Rule
from runtime.planning.costs.prices import CostModel
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.planning.splits import REPLICAS, SHARDS, GroupSplit, Weight, splits_to_try
from runtime.schedule.replay import Link
from symgraph.core.context import cpu
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
    free = language_model(400)
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
