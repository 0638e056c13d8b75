"""Placement by groups: which device every node goes to, and what is refused."""

from __future__ import annotations

import warnings

import pytest

import symgraph.frontend.sym as sym
from partitioner import group2ctx
from partitioner.base.types import BodyKey
from partitioner.cutting.cut import cut
from partitioner.placement.group2ctx import assign
from symgraph.core.context import Context, cpu
from symgraph.core.errors import PlacementError
from symgraph.core.graph import Graph
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.frontend.symbol import Symbol
from symgraph.passes.gradients import gradients

D0, D1, D2 = cpu(0), cpu(1), cpu(2)


def group(name: str) -> AttrScope:
    return AttrScope(ctx_group=name)


def lowered(symbol: Symbol, **shapes: tuple[int, ...]) -> Graph:
    return lower(symbol, shapes)


def devices(symbol: Symbol, groups: dict[str, Context] | None, **shapes) -> dict[str, Context]:
    return assign(lowered(symbol, **shapes), groups, D0)


def stages_graph() -> Graph:
    x = sym.Variable("x", attr={"ctx_group": "stage1"})
    y = sym.Cast(sym.elemwise_add(x, x, name="add1"), dtype="float64", name="cast1")
    with group("stage2"):
        z, e = sym.elemwise_add(y, y, name="add2"), sym.exp(y, name="exp")
    return lowered(sym.elemwise_add(z, e, name="add3"), x=(4,))


def test_nodes_follow_their_inputs_and_each_copy_is_made_once():
    """G4 (nnvm test_place_device), forward alone."""
    graph = stages_graph()
    placement = group2ctx(graph, {"stage1": D0, "stage2": D1}, D0)
    assert placement.devices == (D0, D1)
    where = {node: placement.device_of(node).index for node in graph.nodes}
    assert where == {"x": 0, "add1": 0, "cast1": 0, "add2": 1, "exp": 1, "add3": 1}
    assert [str(e) for e in cut(graph, placement).edges] == ["cast1 0F->1F float64[4]"]


def test_the_backward_pass_sends_the_gradient_once_too():
    """G4 with gradients: cast1 is used three times on the other device, and once in backward."""
    both = gradients(stages_graph(), ["x"])
    placement = group2ctx(both.graph, {"stage1": D0, "stage2": D1}, D0)
    edges = cut(both.graph, placement).edges
    assert [(str(e.src), str(e.dst), str(e.type)) for e in edges] == [
        ("0F", "1F", "float64[4]"),
        ("1B", "0B", "float64[4]"),
    ]
    assert edges[0].value.node == "cast1"
    assert both.graph[edges[1].value.node].origin == "cast1"


@pytest.mark.parametrize("wrt_data", [True, False])
def test_parameters_and_states_that_are_made_for_a_node_live_with_it(wrt_data):
    """G5 (test_ctx_group): also when the data needs no gradient."""
    with NameManager(), group("stage1"):
        x = sym.FullyConnected(sym.Variable("data"), num_hidden=128, name="fc1")
        x = sym.Activation(x, act_type="relu", name="relu1")
    with NameManager(), group("stage2"):
        x = sym.FullyConnected(x, num_hidden=64, name="fc2")
        x = sym.FullyConnected(sym.relu(x, name="relu2"), num_hidden=10, name="fc3")
        x = sym.SoftmaxOutput(sym.BatchNorm(x, name="norm"), name="softmax")
    graph = lowered(x, data=(1, 200))
    first = ["data", "fc1_weight", "fc1_bias", "fc1", "relu1"]
    wrt = [n for n in x.list_arguments() if n != "softmax_label" and (wrt_data or n != "data")]
    both = gradients(graph, wrt)
    for groups in ({"stage1": D0, "stage2": D1}, {"stage1": D1, "stage2": D0}):
        placement = group2ctx(both.graph, groups, D2)
        for node in graph:
            mine = groups["stage1" if node.name in first else "stage2"]
            assert placement.device_of(node.name) == mine, node.name
        bodies = cut(both.graph, placement).bodies
        where = {
            n.name: placement.devices[placement.rank_of[k.stage]]
            for k, body in bodies.items()
            for n in body.graph
        }
        for name, value in both.grads.items():
            assert where[value.node] == placement.device_of(name), name


@pytest.mark.parametrize("groups", [{"a": D0, "b": D1}, {"a": D1, "b": D0}])
@pytest.mark.parametrize("default", [D0, D1, D2])
def test_what_no_group_reaches_goes_to_the_default_device(groups, default):
    """G6 (mxnet#7934, where it went to the alphabetically first group)."""
    with group("a"):
        left = sym.tanh(sym.Variable("v"), name="left")
    with group("b"):
        right = sym.tanh(sym.Variable("w"), name="right")
    alone = sym.exp(sym.Variable("x"), name="alone")
    graph = lowered(sym.Group([left, right, alone]), v=(2,), w=(2,), x=(2,))
    placement = group2ctx(graph, groups, default)
    assert placement.device_of("alone") == placement.device_of("x") == default
    assert placement.device_of("left") == groups["a"]
    assert placement.device_of("right") == groups["b"]


def test_own_group_comes_before_inputs():
    with group("a"):
        x = sym.Variable("x")
    with group("b"):
        y = sym.tanh(x, name="y")
    assert devices(y, {"a": D1, "b": D2}, x=(2,)) == {"x": D1, "y": D2}


def test_the_first_placed_input_decides():
    x = sym.Variable("x")  # no group: skipped, and then follows its consumer
    v = sym.Variable("v", attr={"ctx_group": "a"})
    w = sym.Variable("w", attr={"ctx_group": "b"})
    y = sym.add_n(x, v, w, name="y")
    assert devices(y, {"a": D1, "b": D2}, x=(2,)) == {"x": D1, "v": D1, "w": D2, "y": D1}


def test_inputs_without_group_follow_their_last_consumer():
    x = sym.Variable("x")
    before = sym.tanh(x, name="before")
    with group("a"):
        first = sym.exp(before, name="first")
    with group("b"):
        second = sym.exp(before, name="second")
    found = devices(sym.Group([first, second]), {"a": D1, "b": D2}, x=(2,))
    assert found == {"x": D2, "before": D2, "first": D1, "second": D2}


def test_without_groups_everything_is_on_the_default_device():
    """G8, the placement: annotations do nothing, and nobody warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        placement = group2ctx(stages_graph(), None, D1)
    assert placement.devices == (D1,)
    assert placement.rank_of == (0,)
    assert set(placement.stage_of.values()) == {0}


def test_groups_on_one_device_make_one_stage():
    placement = group2ctx(stages_graph(), {"stage1": D1, "stage2": D1}, D0)
    assert placement.rank_of == (0,)
    assert placement.devices == (D1,)


def test_listed_devices_are_ranks_in_their_order_even_if_idle():
    placement = group2ctx(stages_graph(), {"stage1": D2, "stage2": D0}, D0, [D2, D1])
    assert placement.devices == (D2, D1, D0)
    assert placement.rank_of == (0, 2)
    assert placement.ranks == 3


def test_unknown_group_names_node_group_and_known_groups():
    """G7."""
    with pytest.raises(
        PlacementError,
        match=r"node 'add2' is in group 'stage2', which group2ctx does not map to a device; "
        r"did you mean 'stage1'\? \(known: 'other', 'stage1'\)",
    ):
        group2ctx(stages_graph(), {"stage1": D0, "other": D1}, D0)
    with pytest.raises(PlacementError, match=r"node 'x' is in group 'stage1', .* none are known"):
        group2ctx(stages_graph(), {}, D0)


def test_unused_group_is_only_a_warning():
    """G7."""
    groups = {"stage1": D0, "stage2": D1, "stage3": D2}
    with pytest.warns(UserWarning, match=r"group2ctx maps groups that no node is in: \['stage3'\]"):
        placement = group2ctx(stages_graph(), groups, D0)
    assert placement.devices == (D0, D1)


def test_gradient_nodes_and_head_gradients_live_with_what_they_serve():
    with group("a"):
        x = sym.FullyConnected(sym.Variable("x"), num_hidden=3, name="fc")
    with group("b"):
        x = sym.tanh(x, name="tanh")
    both = gradients(lowered(x, x=(2, 5)), ["x", "fc_weight", "fc_bias"])
    bodies = cut(both.graph, group2ctx(both.graph, {"a": D0, "b": D1}, D0)).bodies
    assert list(map(str, bodies)) == ["0F", "0B", "1F", "1B"]
    served = {
        str(key): {both.graph[n.name].origin for n in body.graph if n.name not in body.imports}
        for key, body in bodies.items()
    }
    assert served == {
        "0F": {None},
        "0B": {"fc", "x", "fc_weight", "fc_bias"},
        "1F": {None},
        "1B": {"tanh"},
    }
    assert both.heads[0] in bodies[BodyKey(1, "B")].graph.nodes


def test_auxiliary_state_on_another_device_is_refused():
    """G13 (MXNet's PlaceDevice: mutable state cannot go across device)."""
    mean = sym.Variable("mean", attr={"ctx_group": "a"})
    with group("b"):
        y = sym.BatchNorm(sym.Variable("x"), moving_mean=mean, name="norm")
    graph = lowered(y, x=(4, 3))
    with pytest.raises(
        PlacementError,
        match=r"BatchNorm 'norm' on cpu\(1\) updates its state 'mean' on cpu\(0\); "
        "give both the same ctx_group",
    ):
        group2ctx(graph, {"a": D0, "b": D1}, D0)
    assert group2ctx(graph, {"a": D1, "b": D1}, D0).devices == (D1,)


def test_auxiliary_state_shared_by_two_devices_is_refused():
    """G13: whichever of the two it lives with, the other one cannot update it."""
    mean = sym.Variable("mean")
    with group("a"):
        x = sym.BatchNorm(sym.Variable("x"), moving_mean=mean, name="one")
    with group("b"):
        x = sym.BatchNorm(x, moving_mean=mean, name="two")
    with pytest.raises(PlacementError, match="updates its state 'mean' on"):
        group2ctx(lowered(x, x=(4, 3)), {"a": D0, "b": D1}, D0)
