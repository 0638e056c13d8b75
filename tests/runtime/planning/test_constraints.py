"""Constraints from options to plans: by hand, by a strategy, and on a grid."""

from __future__ import annotations

import pytest

from partitioner.strategies import Rule
from runtime.planning.costs.prices import NOMINAL, always
from runtime.planning.explain import explain
from symgraph.core.context import cpu
from symgraph.core.errors import LimitError, PlacementError
from tests.helpers.pipelines import make_plan, on_devices
from tests.runtime.planning.test_explain import layers

RULES = (
    Rule("together", ("layer0", "layer3")),
    Rule("not_on", ("fc0",), (cpu(1),)),
    Rule("apart", ("layer1", "layer2")),
)


def options(devices: int, groups, rules=RULES, **more):
    return on_devices(devices, groups, "1f1b", 2, rules=rules, pricing=always(NOMINAL), **more)


@pytest.mark.every(9)
@pytest.mark.parametrize("strategy", ["auto", "noncontiguous"])
def test_a_strategy_keeps_them(strategy):
    placement = make_plan(layers(4), options(3, {}, strategy=strategy, splits=False)).placement
    on = [placement.device_of(f"fc{i}") for i in range(4)]
    assert on[0] == on[3] != cpu(1)
    assert on[1] != on[2]


def test_those_of_group2ctx_count_too():
    groups = {"layer3": cpu(1)}
    words = r"contradict each other: pin: {layer3: cpu\(1\)}; together: .*; not_on: {fc0: cpu\(1\)}"
    with pytest.raises(PlacementError, match=words):
        make_plan(layers(4), options(3, groups, strategy="noncontiguous"))


def test_a_placement_by_hand_is_checked():
    groups = {f"layer{i}": cpu(d) for i, d in enumerate((0, 1, 2, 0))}
    plan = make_plan(layers(4), options(3, groups))
    (found,) = explain(plan, ["layer1"], NOMINAL)
    reasons = [choice.reason for choice in found.others]
    assert reasons == ["", "the placement breaks the constraint apart: [layer1, layer2]"]
    with pytest.raises(PlacementError, match=r"breaks the constraint apart: \[layer1, layer2\]"):
        make_plan(layers(4), options(3, groups | {"layer2": cpu(1)}))


@pytest.mark.parametrize("strategy", [None, "noncontiguous"])
def test_on_a_grid_they_hold_for_the_first_row(strategy):
    groups = {f"layer{i}": cpu(d) for i, d in enumerate((0, 1, 0))} if strategy is None else {}
    rules = (Rule("apart", ("layer0", "layer1")), Rule("same", ("layer0", "layer2")))
    case, more = layers(3), {"strategy": strategy, "data_axis": 2}
    assert make_plan(case, options(4, groups, rules, **more)).placement.devices
    with pytest.raises(PlacementError, match=r"layer1"):
        make_plan(case, options(4, groups, (*rules, Rule("same", ("layer1", "layer0"))), **more))


def test_auto_keeps_pins_that_no_row_of_devices_can():
    """It failed, though `noncontiguous`, one of the strategies that it tries, keeps them."""
    groups = {"layer0": cpu(0), "layer1": cpu(1), "layer2": cpu(0)}
    made = make_plan(layers(3), options(2, groups, (), strategy="auto", splits=False))
    assert [made.placement.device_of(f"fc{i}") for i in range(3)] == [cpu(0), cpu(1), cpu(0)]


def test_the_first_few_devices_are_tried_though_a_later_one_is_forbidden():
    """A rule with a device that was not among the first few made all these candidates fail."""
    rules = (Rule("not_on", ("layer0",), (cpu(2),)),)
    made = make_plan(layers(3), options(3, {}, rules, strategy="auto", splits=False))
    assert any("2 devices" in c.placed.strategy for c in made.placements)


def test_those_that_a_memory_limit_leaves_no_room_for_are_named():
    """The error named a larger limit only, though another placement keeps the given one."""
    rules = (
        Rule("apart", ("layer0", "layer1")),
        Rule("together", ("layer1", "layer2", "layer3")),
    )
    more = {"strategy": "chain", "recompute": "auto"}
    with pytest.raises(LimitError) as refused:
        make_plan(layers(4), options(3, {}, rules, memory=2700, **more))
    words = r"smallest limit that works; without together: \[layer1, layer2, layer3\] the given l"
    with pytest.raises(LimitError, match=words):
        make_plan(layers(4), options(3, {}, rules, memory=refused.value.smallest - 1, **more))
