"""Explanations: the plan with one node or group on every other device."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph.frontend.sym as sym
from runtime.planning.costs.prices import NOMINAL, always
from runtime.planning.explain import Explanation, explain
from runtime.planning.plan import Plan
from symgraph.core.context import cpu
from symgraph.core.errors import ConfigError
from symgraph.frontend.attribute import AttrScope
from tests.helpers.pipelines import Case, make_plan, on_devices

WIDTH = 8


def layers(count: int) -> Case:
    """Products of a batch of 12 with weights 8 x 8, each in a group of its own; a loss."""
    rng = np.random.default_rng(0)
    x, arrays = sym.Variable("x"), {}
    for i in range(count):
        with AttrScope(ctx_group=f"layer{i}"):
            x = sym.FullyConnected(x, num_hidden=WIDTH, no_bias=True, name=f"fc{i}")
        arrays[f"fc{i}_weight"] = rng.standard_normal((WIDTH, WIDTH)).astype("float32")
    loss = sym.MakeLoss(sym.sum(sym.square(x), axis=1), name="loss")
    return Case(loss, {"x": rng.standard_normal((12, WIDTH)).astype("float32")}, arrays)


def planned(devices: list[int], **more) -> Plan:
    """The layers on these devices."""
    groups = {f"layer{i}": cpu(d) for i, d in enumerate(devices)}
    options = on_devices(3, groups, "1f1b", 3, pricing=always(NOMINAL), **more)
    return make_plan(layers(len(devices)), options)


def explained(plan: Plan, name: str) -> Explanation:
    (explanation,) = explain(plan, [name], NOMINAL)
    return explanation


def test_each_device_has_the_figures_of_a_plan_with_the_group_there():
    found = explained(planned([0, 1, 2]), "layer1")
    assert found.nodes == ("fc1_weight", "fc1")
    assert [c.devices for c in (found.now, *found.others)] == [(cpu(1),), (cpu(0),), (cpu(2),)]
    for choice, device in zip((found.now, *found.others), (1, 0, 2), strict=True):
        other = explained(planned([0, device, 2]), "layer1").now
        assert (choice.seconds, choice.sent, choice.peaks) == (
            other.seconds,
            other.sent,
            other.peaks,
        )
    message = 12 * WIDTH * 4  # bytes of a batch's activations or their gradients
    assert [c.sent for c in (found.now, *found.others)] == [4 * message, 2 * message, 2 * message]
    assert found.conclusion.startswith("layer1 is on cpu(1), as group2ctx says; on cpu(")
    assert found.conclusion.endswith(f"with {2 * message} B less in messages")


def test_a_node_takes_the_variables_along_that_only_it_reads():
    found = explained(planned([0, 0, 1]), "fc0")
    assert found.nodes == ("x", "fc0_weight", "fc0")
    assert found.others[0].sent == 4 * 12 * WIDTH * 4


def test_a_device_without_the_memory_for_it_cannot_be_chosen():
    plan = planned([0, 1, 2])
    most = max(m.peak for m in plan.memory)
    found = explained(planned([0, 1, 2], memory=most), "layer1")
    assert [bool(c.reason) for c in found.others] == [True, True]
    assert found.others[0].peaks == explained(plan, "layer1").others[0].peaks
    assert "it can be on no other" in found.conclusion
    assert "more than the limit" in found.conclusion


def test_where_a_state_is_not_with_its_reader_there_is_no_plan():
    with AttrScope(ctx_group="a"):
        x = sym.BatchNorm(sym.Variable("x"), name="norm")
    with AttrScope(ctx_group="b"):
        loss = sym.MakeLoss(sym.square(x), name="loss")
    case = Case(loss, {"x": np.ones((4, 3))}, {})
    options = on_devices(2, {"a": cpu(0), "b": cpu(1)}, "gpipe", 1, pricing=always(NOMINAL))
    plan = make_plan(case, options)
    assert explained(plan, "norm").others[0].peaks
    (mean,) = explained(plan, "norm_moving_mean").others
    assert not mean.peaks
    assert "updates its state 'norm_moving_mean'" in mean.reason


@pytest.mark.parametrize(
    ("pieces", "where"),
    [
        ({}, [(cpu(0), cpu(1)), (cpu(0),), (cpu(1),), (cpu(2),)]),
        ({"data_axis": 3}, [(cpu(0), cpu(1), cpu(2))]),
    ],
)
def test_pieces_are_moved_together(pieces, where):
    """Replicas on any one device; on a grid of one column, nowhere else."""
    case = layers(2)
    groups = {"layer0": cpu(0), "layer1": cpu(0) if pieces else (cpu(0), cpu(1))}
    replicas = {} if pieces else {"layer1": "2"}
    options = on_devices(3, groups, "1f1b", 2, replicas=replicas, **pieces)
    found = explained(make_plan(case, options), "layer1")
    assert [c.devices for c in (found.now, *found.others)] == where
    assert all(c.peaks for c in found.others)
    if pieces:
        assert found.conclusion.endswith("the only one")


def test_a_strategy_has_placed_it():
    plan = planned([0, 1, 2])
    options = on_devices(2, {"layer2": cpu(1)}, "auto", 3, strategy="chain", splits=False)
    plan = make_plan(layers(3), options)
    found = explain(plan, ["fc0", "layer2"], NOMINAL)
    assert "where strategy chain put it" in found[0].conclusion
    assert "as group2ctx says" in found[1].conclusion


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="no ctx_group or node 'layr1'; did you mean 'layer1'"):
        explain(planned([0, 1, 2]), ["layer0", "layr1"], NOMINAL)
    with pytest.raises(ConfigError, match="no ctx_group or node 'fc9'; did you mean 'fc"):
        explain(planned([0, 1, 2]), ["fc9"], NOMINAL)
