"""Plans in ONNX's own fields, also such as other programs write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symgraph.core.context import cpu, gpu
from symgraph.core.errors import ConfigError, SymgraphError
from symgraph.interchange.onnx import import_model
from symgraph.interchange.onnx.plans import (
    Cut,
    DevicePlan,
    NodePlace,
    Spread,
    add_plan,
    device_plan_of,
    plan_of,
    read_plan,
)

onnx = pytest.importorskip("onnx")
helper = onnx.helper


def model(*, devices: int = 2, names: tuple[str, ...] = (), configured: bool = True) -> Any:
    """x -> a -> b -> c -> y, with a weight that b reads."""
    steps = [("Relu", ["x"], "a"), ("MatMul", ["a", "w"], "b"), ("Tanh", ["b"], "y")]
    nodes = [helper.make_node(op, ins, [out], out) for op, ins, out in steps]
    type_ = helper.make_tensor_type_proto(1, ["batch", 4])
    value = helper.make_value_info
    weight = onnx.TensorProto(name="w", data_type=1, dims=[4, 4], float_data=[0.0] * 16)
    graph = helper.make_graph(nodes, "g", [value("x", type_)], [value("y", type_)], [weight])
    made = helper.make_model(graph, ir_version=9)
    if configured:
        made.configuration.add(name="theirs", num_devices=devices, device=names)
    return made


def stated(made: Any, node: int, stage: int, **specs: dict[str, Any]) -> None:
    """State a stage, and specs by tensor."""
    into = made.graph.node[node].device_configurations.add(
        configuration_id="theirs", pipeline_stage=stage
    )
    for name, fields in specs.items():
        into.sharding_spec.add(tensor_name=name, **fields)


def dims(axis: int, *factors: tuple[str | int, int]) -> list[dict[str, Any]]:
    known = [
        {"dim_param" if isinstance(n, str) else "dim_value": n, "num_shards": pieces}
        for n, pieces in factors
    ]
    return [{"axis": axis, "simple_sharding": known}]


def test_what_is_written_is_read(tmp_path):
    rows, samples = Cut(0, ((4, 2),)), Cut(0, ((5, 1), ("batch", 2)))
    nodes = {
        "a": NodePlace(0, {"a": Spread((0,))}),
        "b": NodePlace(1, {"a": Spread((0, 1)), "w": Spread((0, 1), rows)}),
        "y": NodePlace(3, {"y": Spread((1, 0), samples)}),
    }
    plan, made = DevicePlan("symgraph", ("cpu(0)", "gpu(1)"), nodes), model(configured=False)
    add_plan(made, plan)
    assert made.ir_version == 11
    onnx.checker.check_model(made, full_check=True)
    assert device_plan_of(made) == plan
    file = tmp_path / "x.onnx"
    onnx.save(made, file)
    found = read_plan(file)
    assert found.devices == (cpu(0), gpu(1))
    assert found.group2ctx == {
        "stage0": cpu(0),
        "stage1_shards": (cpu(0), gpu(1)),
        "stage3_replicas": (gpu(1), cpu(0)),
    }
    assert found.nodes == {
        "a": {"__ctx_group__": "stage0"},
        "b": {"__ctx_group__": "stage1_shards", "__shard__": "2"},
        "y": {"__ctx_group__": "stage3_replicas", "__replicate__": "2"},
    }
    assert found.variables == {"w": {"__ctx_group__": "stage1_shards"}}


def test_a_model_without_a_plan_has_none():
    assert plan_of(model(configured=False)) is None
    assert plan_of(model()) is None  # devices, but no node that says anything


def test_stages_alone_are_devices_in_order():
    """Another program may say no more than the stages, and not name the devices."""
    made = model(devices=3)
    for node, stage in enumerate((1, 4, 4)):
        stated(made, node, stage)
    found = plan_of(made)
    assert found.devices == (cpu(0), cpu(1), cpu(2))
    assert found.group2ctx == {"stage1": cpu(0), "stage4": cpu(1)}
    assert [found.nodes[n]["__ctx_group__"] for n in "aby"] == ["stage1", "stage4", "stage4"]


def test_a_node_that_says_only_its_stage_is_where_others_of_it_are():
    made = model()
    stated(made, 0, 0, x={"device": [1]})
    stated(made, 1, 0)
    assert plan_of(made).group2ctx == {"stage0": cpu(1)}


def test_a_node_may_state_its_devices_alone():
    made = model(names=("cpu(0)", "gpu(0)"))
    into = made.graph.node[0].device_configurations.add(configuration_id="theirs")
    into.sharding_spec.add(tensor_name="a", device=[1])
    made.graph.node[1].device_configurations.add(configuration_id="of others", pipeline_stage=5)
    assert plan_of(made).group2ctx == {"stage0": gpu(0)}


def test_groups_of_one_stage_on_other_devices_have_names_of_their_own():
    made = model()
    stated(made, 0, 0, a={"device": [0]})
    stated(made, 1, 0, b={"device": [1]})
    stated(made, 2, 0, y={"device": [0]})
    assert plan_of(made).group2ctx == {"stage0": cpu(0), "stage0.1": cpu(1)}


COPIES = [{"key": -1, "value": [0, 1]}]
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "more names than devices": ({"names": ("cpu(0)",)}, {}, "has 2 devices, but names 1"),
    "no devices": ({"devices": 0}, {}, "has 0 devices"),
    "a device of another kind": ({"names": ("npu0", "npu1")}, {}, "a device of the file's plan"),
    "a device that is not there": ({}, {"device": [2]}, r"names devices \[2\], but.* has 0 to 1"),
    "no device at all": ({}, {"device": []}, r"names devices \[\]"),
    "two axes": (
        {"devices": 4},
        {"device": [0, 1, 2, 3], "sharded_dim": dims(0, (4, 2)) + dims(1, (4, 2))},
        "cuts several axes",
    ),
    "copies of pieces": (
        {"devices": 4},
        {"device": [-1, 3], "index_to_device_group_map": COPIES, "sharded_dim": dims(0, (4, 2))},
        "has copies of pieces",
    ),
    "more pieces than devices": (
        {},
        {"device": [0, 1], "sharded_dim": dims(0, (4, 4))},
        "makes other pieces than the 2 devices",
    ),
    "a cut of a negative number": (
        {},
        {"device": [0, 1], "sharded_dim": dims(0, (4, -2))},
        "makes other pieces than the 2 devices",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_groups_cannot_express_is_one_line(case):
    options, spec, message = WRONG[case]
    made = model(**options)
    stated(made, 0, 0, a=spec or {"device": [0]})
    with pytest.raises(ConfigError, match=message) as raised:
        plan_of(made)
    assert "\n" not in str(raised.value)


def test_more_stages_than_devices_say_where_they_are():
    made = model()
    for node in range(3):
        stated(made, node, node)
    with pytest.raises(ConfigError, match="3 stages for 2 devices, and does not say"):
        plan_of(made)
    for node, name in enumerate("aby"):
        made.graph.node[node].device_configurations[0].sharding_spec.add(
            tensor_name=name, device=[node % 2]
        )
    assert plan_of(made).group2ctx == {"stage0": cpu(0), "stage1": cpu(1), "stage2": cpu(0)}


def test_a_network_is_imported_without_a_plan_that_cannot_be_had():
    made = model()
    stated(made, 0, 0, a={"device": [2]})
    with pytest.warns(UserWarning, match="the plan in the file is left out: .*names devices"):
        symbol, _, _ = import_model(made)
    assert "__ctx_group__" not in symbol.attr_dict().get("a", {})
    del made.graph.node[0].device_configurations[:]
    stated(made, 0, 7, a={"device": [1]})
    symbol, _, _ = import_model(made)
    assert symbol.attr_dict()["a"]["__ctx_group__"] == "stage7"


def test_randomly_damaged_plans_are_read_or_refused_in_one_line(tmp_path):
    made = model(names=("cpu(0)", "cpu(1)"))
    stated(made, 0, 0, a={"device": [0]})
    stated(made, 1, 1, w={"device": [0, 1], "sharded_dim": dims(0, (4, 2))}, a={"device": [1]})
    stated(made, 2, 2, y={"device": [-1], "index_to_device_group_map": COPIES})
    whole, rng, refused = made.SerializeToString(), np.random.default_rng(0), list[str]()
    for _ in range(1000):
        damaged = bytearray(whole)
        for at in rng.integers(len(damaged), size=rng.integers(1, 5)):
            damaged[at] = rng.integers(256)
        try:
            read_plan(bytes(damaged))
        except SymgraphError as error:
            refused.append(str(error))
    assert 0 < len(refused) < 1000
    assert not any("\n" in line for line in refused)
