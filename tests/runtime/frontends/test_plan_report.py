"""The plan report: its tables mark what was chosen."""

from __future__ import annotations

import pytest

import symgraph as sg
from partitioner.costs.cost import Speed
from partitioner.costs.machine import Machine
from partitioner.strategies import Rule
from runtime.frontends.cli.plan_report import (
    candidates_table,
    config_block,
    placements_table,
    plan_report,
    prices_of,
)
from runtime.planning.costs.files import load_prices, save_prices
from runtime.planning.costs.prices import NOMINAL, CostModel, always
from runtime.planning.options import Options
from runtime.planning.planner import plan
from runtime.training.job import prepare, training_plan
from symgraph.core.context import cpu
from symgraph.core.errors import ConfigError
from symgraph.core.types import TensorType
from symgraph.core.units import seconds_text
from symgraph.passes.batching import Feed
from tests.helpers.pipelines import make_plan
from tests.helpers.profiles import ESTIMATES, config
from tests.helpers.recurrent import lstm_case


@pytest.mark.slow
def test_the_chosen_candidate_is_marked_without_a_memory_limit():
    """None was: peaks before packing, of candidates, were compared with the plan's after it."""
    groups = {"layer0": cpu(0), "layer1": cpu(1), "head": cpu(1)}
    how = {"schedule": "auto", "micro_batches": 2, "pricing": always(NOMINAL)}
    made = make_plan(lstm_case(2, 4), Options(groups, cpu(0), **how))
    marked = [line for line in candidates_table(made).splitlines() if line.startswith("->")]
    assert len(marked) == 1
    assert f" {made.choice.schedule} " in marked[0]


def test_what_idle_devices_cost_is_told():
    """All on one of three devices took 17 ms a step, as idle ones end it too: 1 ms without them."""
    x = sg.sym.FullyConnected(sg.sym.Variable("data"), num_hidden=8, name="fc")
    on = Machine.uniform([cpu(i) for i in range(3)], Speed(1e9, 1e-6), 4e-3, 1e8)
    given = {"machine": on, "update": True, "pricing": always(CostModel.of_machine(on))}
    feeds = {"data": Feed(TensorType((8, 4), "float32"))}

    def made(*numbers):
        devices = tuple(map(cpu, numbers))
        asked = Options(default=devices[0], devices=devices, strategy="auto", **given)
        return plan(sg.sym.MakeLoss(x), feeds, asked, wrt=None)

    every, one = made(0, 1, 2), made(0)
    note, proof = placements_table(every, every.prices).splitlines()[-2:]
    assert note.startswith("idle, as the step would be longer with work on them: cpu(1), cpu(2);")
    steps = [seconds_text(p.choice.seconds) for p in (one, every)]
    assert note.endswith(f"the predicted step of this placement is {steps[0]}, not {steps[1]}")
    assert "on these devices, which all join the end of a step, takes less than" in proof
    alone = placements_table(one, one.prices)
    assert "idle" not in alone
    assert "which all join" not in alone


def test_a_plan_without_a_choice_is_predicted_with_the_costs_of_the_config(tmp_path):
    """It was measured again, so the predictions of one file of costs differed from run to run."""
    given = config(tmp_path)
    made = training_plan(given).training
    assert made.prices is None
    assert prices_of(given, made) == load_prices(str(given.partition.costs))


def test_the_block_of_a_grid_names_the_groups_of_the_network():
    """It named the parts that a grid divides them into, as `body cpu(0)`, which no config knows."""
    x = sg.sym.Variable("data")
    with sg.AttrScope(ctx_group="body"):
        for i in range(4):
            x = sg.sym.FullyConnected(x, num_hidden=64, name=f"fc{i}")
    on = Machine.uniform([cpu(i) for i in range(4)], Speed(1e9, 1e-6), 1e-6, 1e9)
    rules = (Rule("apart", ("fc0", "fc3")), Rule("split", ("body",), axis="samples"))
    given = {"machine": on, "update": True, "pricing": always(CostModel.of_machine(on))}
    asked = Options(None, cpu(0), on.contexts, strategy="auto", rules=rules, **given)
    feeds = {"data": Feed(TensorType((256, 64), "float32"))}
    note = "  # split: 2 nodes on cpu(0), 2 nodes on cpu(1); use keep_groups"
    assert config_block(plan(sg.sym.MakeLoss(x), feeds, asked, wrt=None)) == (
        f"group2ctx:\n  body: cpu(0){note}\n  # 1 node in no group, placed by their inputs\n"
        "partition:\n  data_axis: 2\n"
    )


def test_costs_of_other_devices_are_refused_with_their_kind(tmp_path):
    costs = tmp_path / "gpu.json"
    save_prices(CostModel({"gpu": ESTIMATES}, {}), costs)
    job = prepare(config(tmp_path, f"partition.costs={costs}"))
    with pytest.raises(ConfigError, match=r"cpu\(0\) has no costs, they were measured for gpu dev"):
        plan_report(job)
