"""Plans that travel: `--plan --onnx FILE` writes them, and they are read as the same placement."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import symgraph as sg
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan, plan_model
from runtime.training.job import Planned, training_plan
from symgraph.app.config import load_config
from symgraph.core.context import cpu
from symgraph.core.errors import ConfigError
from symgraph.frontend.model import Model
from symgraph.frontend.symbol import Symbol, from_json
from symgraph.interchange.onnx import FilePlan
from symgraph.run import main
from tests.helpers.onnx_runtime import assert_equal, checked_model, onnx, reference, run_model
from tests.helpers.profiles import costs
from tests.helpers.small_lm import write_bucketed, write_config

THREE = "[cpu(0), cpu(1), cpu(2)]"
CASES: dict[str, list[str]] = {
    "two stages": [],
    "three stages": [
        f"devices={THREE}",
        "group2ctx={embed: cpu(0), layer0: cpu(1), layer1: cpu(2), decode: cpu(2)}",
    ],
    "there and back": ["group2ctx={embed: cpu(0), layer0: cpu(1), layer1: cpu(0), decode: cpu(1)}"],
    "in shards": [
        "group2ctx={embed: cpu(0), layer0: cpu(0), layer1: cpu(1), decode: [cpu(0), cpu(1)]}"
    ],
    "shards of the words": ["partition.shards={embed: 2}", "group2ctx.embed=[cpu(1), cpu(0)]"],
    "shards on one device": ["partition.shards={decode: 3}"],
    "replicas": [
        f"devices={THREE}",
        "group2ctx={embed: cpu(0), layer0: [cpu(0), cpu(2)], layer1: cpu(1), decode: cpu(1)}",
        "pipeline.micro_batches=3",
    ],
    "a grid": [
        "devices=[cpu(0), cpu(1), cpu(2), cpu(3)]",
        "partition.data_axis=2",
        "pipeline.micro_batches=3",
    ],
    "a strategy": ["group2ctx={}", "partition.strategy=parameters", f"devices={THREE}"],
}


class Written(NamedTuple):
    """A plan of a small language model, and the file that the command line has written of it."""

    made: Planned
    file: str


def small(folder: Path) -> list[str]:
    """The words of a command line for a small language model, for which nothing is measured."""
    config = write_config(folder, "optimizer: sgd, steps: 1")
    return [str(config), f"partition.costs={costs(folder)}"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Plan and write a case, once."""

    @cache
    def write(case: str) -> Written:
        folder = tmp_path_factory.mktemp("plan")
        file, words = str(folder / "x.onnx"), [*small(folder), *CASES[case]]
        assert main([*words, "--plan", "--onnx", file]) == 0
        return Written(training_plan(load_config(words[0], words[1:])), file)

    return write


def in_groups(symbol: Symbol, found: FilePlan) -> Symbol:
    """The network with the groups of a file in place of its own."""
    content = json.loads(symbol.tojson())
    for row in content["nodes"]:
        own = {"__ctx_group__", "__shard__", "__replicate__"}
        attrs = {k: v for k, v in row.get("attrs", {}).items() if k not in own}
        given = found.variables if row["op"] == "null" else found.nodes
        row["attrs"] = attrs | dict(given.get(row["name"], {}))
    return from_json(json.dumps(content))


def devices(made: Plan) -> dict[str, str]:
    """The device of every forward node, pieces included."""
    forward = [n.name for n in made.network.first if n.origin is None]
    return {name: str(made.placement.device_of(name)) for name in forward}


SHORT = ("three stages", "in shards")
each_case = pytest.mark.parametrize(
    "case", [c if c in SHORT else pytest.param(c, marks=pytest.mark.slow) for c in CASES]
)


@each_case
def test_a_file_is_read_as_the_same_placement(case, written):
    made, file = written(case)
    found = sg.onnx.read_plan(file)
    assert found.devices == made.training.devices
    model = made.model
    again = Model(in_groups(model.symbol, found), model.feeds, model.states)
    fields = {"groups": found.group2ctx, "strategy": None, "data_axis": 1, "shards": {}}
    options = replace(made.training.options, devices=found.devices, **fields)
    carried = plan_model(again, options, "float32", train=True)
    assert devices(carried) == devices(made.training)
    assert carried.placement.rank_of == made.training.placement.rank_of


@each_case
def test_the_imported_network_is_placed_likewise(case, written):
    """A loss is its output in a file, so what a loss shares with others is left out."""
    made, file = written(case)
    symbol, _, _ = sg.onnx.import_model(file)
    found = sg.onnx.read_plan(file)
    options = Options(found.group2ctx, found.devices[0], found.devices, micro_batches=3)
    carried = plan(symbol, made.model.feeds, options)
    assert {*carried.parameters} == {*made.training.parameters}  # shards and copies
    again, before = devices(carried), devices(made.training)
    both = [name for name in before if name in again and "softmax" not in name]
    assert len(both) > len(before) / 2
    assert {n: again[n] for n in both} == {n: before[n] for n in both}


@each_case
def test_a_model_with_a_plan_is_valid_and_runs_elsewhere(case, written):
    made, file = written(case)
    model = checked_model(file)
    assert model.ir_version >= 11
    (configuration,) = model.configuration
    assert list(configuration.device) == [repr(d) for d in made.training.devices]
    assert configuration.num_devices == len(configuration.device)
    stated = [n.device_configurations for n in model.graph.node if n.op_type != "Constant"]
    assert all(len(found) == 1 for found in stated)
    tensors = {t for n in model.graph.node for t in (*n.input, *n.output)}
    specs = [s for (found,) in stated for s in found.sharding_spec]
    assert {s.tensor_name for s in specs} <= tensors
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    rng = np.random.default_rng(0)
    fed = {
        name: rng.integers(0, 20, shape, "int32") if "int" in dtype else np.ones(shape, dtype)
        for name, ((shape, dtype), _) in made.model.feeds.items()
    }
    assert_equal(run_model(file, fed), reference(made.model.symbol, {**fed, **weights}))


def test_stages_are_in_the_nodes_fields(written):
    made, file = written("three stages")
    stages: dict[int, set[int]] = {}
    for node in checked_model(file).graph.node:
        for given in node.device_configurations:
            (device,) = {d for spec in given.sharding_spec for d in spec.device}
            stages.setdefault(given.pipeline_stage, set()).add(device)
    assert stages == {0: {0}, 1: {1}, 2: {2}}
    assert made.training.placement.rank_of == (0, 1, 2)


def test_shards_are_pieces_of_equal_length(written):
    _, file = written("in shards")
    (node,) = (n for n in checked_model(file).graph.node if n.name == "decode")
    (given,) = node.device_configurations
    cuts = {}
    for spec in given.sharding_spec:
        axes = [(d.axis, d.simple_sharding[0].num_shards) for d in spec.sharded_dim]
        cuts[spec.tensor_name] = ([*spec.device], axes)
    assert cuts == {
        "rows": ([-1], []),  # each device has a copy
        "decode_weight": ([0, 1], [(0, 2)]),
        "decode_bias": ([0, 1], [(0, 2)]),
        "decode": ([0, 1], [(1, 2)]),
    }
    found = sg.onnx.read_plan(file)
    group = found.nodes["decode"]["__ctx_group__"]
    assert found.group2ctx[group] == (cpu(0), cpu(1))
    assert found.nodes["decode"]["__shard__"] == "2"
    assert found.nodes["layer0_t0_i2h"] == {"__ctx_group__": "stage0"}


def test_pieces_in_a_proportion_are_refused(tmp_path, capsys):
    file = str(tmp_path / "x.onnx")
    uneven = "partition.shards={decode: '3:1'}"
    assert main([*small(tmp_path), uneven, "--plan", "--onnx", file]) == 2
    assert (
        "'decode_weight' is cut into pieces of [15, 5], but ONNX cuts an axis into equal ones"
        in (capsys.readouterr().err)
    )
    assert not (tmp_path / "x.onnx").exists()


@pytest.mark.slow
def test_buckets_are_refused(tmp_path, capsys):
    words = [str(write_bucketed(tmp_path)), f"partition.costs={costs(tmp_path)}"]
    assert main([*words, "--plan", "--onnx", str(tmp_path / "x.onnx")]) == 2
    assert "--onnx: a model has one shape, but data.buckets has several" in capsys.readouterr().err


def test_onnx_goes_with_plan(tmp_path, capsys):
    words = small(tmp_path)
    assert main([*words, "--onnx", "x.onnx"]) == 2
    assert "--onnx goes with --plan" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main([*words, "--plan", "--onnx", str(tmp_path / "file/x.onnx")]) == 2
    assert "cannot write --onnx" in capsys.readouterr().err


def test_a_damaged_file_is_one_line(tmp_path):
    file = tmp_path / "x.onnx"
    with pytest.raises(ConfigError, match="no such model file of ONNX"):
        sg.onnx.read_plan(file)
    file.write_bytes(b"\xff" * 100)
    with pytest.raises(ConfigError, match="not a model file of ONNX"):
        sg.onnx.read_plan(file)
