"""Profiles: nothing of a step is left out or counted twice, and what is said of it follows."""

from __future__ import annotations

import json
from dataclasses import astuple, fields, replace
from fractions import Fraction

import numpy as np
import pytest

from partitioner.base.types import Body
from partitioner.costs.cost import Caches, CostTable, Speed, is_free
from partitioner.views.report import body_flops
from runtime.planning.costs.files import load_prices, save_prices
from runtime.planning.costs.prices import CostModel
from runtime.profiling.analysis.advice import advice
from runtime.profiling.analysis.profile import RankParts, profile_of
from runtime.profiling.analysis.record import middle
from runtime.profiling.analysis.rows import COPIES, UPDATES, run_seconds
from runtime.profiling.analysis.waits import reasons, waits
from runtime.profiling.report.text import again, figures, parts_table, warnings
from runtime.profiling.report.trace import shown
from runtime.profiling.report.views import exhibit
from runtime.profiling.trials.trial import Shared, Trial
from runtime.schedule.replay import Link
from runtime.schedule.timeline import Timeline
from runtime.schedule.views.breakdown import RankTime
from runtime.schedule.views.trace import RUNS, shown_events
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.summary import plan_rows
from runtime.training.trainer import Trainer
from runtime.transports import ThreadCluster
from symgraph.app.config import load_config
from symgraph.core.errors import ConfigError
from symgraph.core.registry import find
from symgraph.core.units import seconds_text
from tests.helpers.profiles import (
    ESTIMATES,
    RATES,
    STEPS,
    assert_calls_inside_runs,
    config,
    said_of,
    small_profile,
)
from tests.helpers.small_lm import write_bucketed
from tests.runtime.schedule.test_timeline import track

REPLICAS = ("group2ctx.layer0=[cpu(0), cpu(1)]", "pipeline.micro_batches=2")
ALONE = ("devices=[cpu(0)]",)
IDLE = ("devices=[cpu(0), cpu(1), cpu(2)]",)
PARTS = [field.name for field in fields(RankTime)]
SEGMENTS = ("pipeline.time_segment=2", "pipeline.schedule=zb-h1")


# -- the record -----------------------------------------------------------------------------------


def flops_of_calls(body: Body) -> int:
    """Operations of the nodes that take a call."""
    graph = body.graph
    return sum(
        find(n.op).flops(n.attrs, graph.types_of(n.inputs), n.types)
        for n in graph
        if not n.is_variable and not is_free(n, graph)
    )


@pytest.mark.parametrize("overrides", [(), SEGMENTS])
def test_the_calls_of_a_body_are_all_its_nodes_once(overrides):
    profile = small_profile(*overrides).typical
    plan = profile.record.plan
    for key in plan.partition.bodies:
        own = [call for call in profile.calls if call.key == key]
        bodies = [plan.partitions[size].bodies[key] for size in plan.sizes]
        assert sum(call.flops for call in own) == sum(map(flops_of_calls, bodies))
        nodes = [(n.name, n.op) for n in bodies[0].graph if not n.is_variable]
        first = [c for c in own if c.mb == 0 and not c.op.startswith("(")]
        assert [c.node for c in first] == [n for n, _ in nodes if n in {c.node for c in first}]


def test_calls_lie_inside_of_their_runs():
    assert_calls_inside_runs(small_profile().typical.record)


def test_a_stopwatch_changes_no_number(tmp_path):
    """And a trainer without one has none."""
    losses = []
    given = config(tmp_path, "train.steps=4")
    for timed in (False, True):
        with ThreadCluster(2) as cluster:
            trainer = Trainer(prepare(given), cluster, load_data(given), timed=timed)
            losses.append(trainer.fit()["loss"])
            watches = [w.stopwatch for w in trainer.training.workers.values()]
            assert all((w is not None) == timed for w in watches)
    assert losses[0] == losses[1]


# -- figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [(), SEGMENTS, REPLICAS, ALONE, IDLE])
def test_one_step_is_quoted_everywhere(overrides):
    """The headline, the table, the timeline and the page showed four different times of it."""
    profile = small_profile(*overrides)
    record = profile.typical.record
    assert len(record.seconds) == STEPS
    for own in profile.parts:
        assert own.total == pytest.approx(profile.step, rel=1e-9)
        assert min(astuple(own.time)) >= 0
        assert own.between > 0
    assert profile.step == pytest.approx(sorted(record.seconds)[(STEPS - 1) // 2])
    assert profile.typical.measured.makespan == profile.step
    said, step = said_of(profile), seconds_text(profile.step)
    for words in (f"median {step} (", f"measured step: {step}\n"):
        assert words in said
    rows = parts_table(profile)
    assert {row[-1] for row in rows[1:]} == {f"{profile.step * 1e3:.2f}"}
    assert exhibit(profile)["views"]["measured"]["seconds"] == profile.step
    assert json.dumps(exhibit(profile))


def test_the_median_of_an_even_number_of_steps_is_one_of_them():
    assert middle([4.0, 1.0, 3.0, 2.0]) == 3
    assert middle([4.0, 1.0, 3.0]) == 2


def test_the_operators_make_up_what_ranks_compute():
    profile = small_profile()
    record = profile.typical.record
    step = record.median_step
    calls = sum(float(call.seconds[step]) for call in profile.typical.calls)
    runs = sum(float(s[step]) for all_of in run_seconds(record).values() for s in all_of)
    rows = {row.name: row for row in profile.operators}
    assert 0 < runs - calls < runs
    assert rows[COPIES].calls == 2 * 2 * 4  # stages, phases, micro-batches
    assert rows[UPDATES].calls == 2
    assert sum(row.share for row in profile.operators) == pytest.approx(1)
    updates = profile.compute - runs
    assert updates > 0


def test_rows_say_what_was_done():
    rows = {row.name: row for row in small_profile().operators}
    assert rows["FullyConnected"].flops > 0
    assert rows["FullyConnected"].flops_per_second > 0
    assert rows["FullyConnected"].nbytes > 0
    assert rows["_lstm_gates"].calls == 2 * 5 * 4  # layers, time steps, micro-batches
    assert rows["_lstm_gates_grad"].calls == 2 * 5 * 4


def test_the_prediction_is_of_the_same_programs():
    profile = small_profile()
    shown = profile.typical
    for measured, predicted in zip(shown.measured.tracks, shown.predicted.tracks, strict=True):
        assert measured.program == predicted.program
    assert profile.error == shown.predicted.makespan / profile.step - 1


def test_everything_is_said_and_is_json():
    profile = small_profile()
    text = said_of(profile)
    for part in ("compute", "between steps", "FullyConnected", "predicted", "rank 1 ", "1B"):
        assert part in text
    found = json.loads(json.dumps(figures(profile)))
    assert len(found["ranks"]) == 2
    assert found["ranks"][0]["total"] == pytest.approx(found["step_seconds"])


def test_costs_that_do_not_add_up_are_warned_of():
    profile = small_profile()
    table = CostTable(Speed(1e3, 1.0, 1e3), RATES, Caches(1, 2), {}, {}, {})
    slow = CostModel.alike(table, Link())
    record = profile.typical.record
    worse = profile_of([record], slow, profile.speeds, record.plan)
    assert "of computing on all devices, their runs to" in warnings(worse)[0]
    assert f"warning: {warnings(worse)[0]}" in said_of(worse)
    of_kinds = run_seconds(record).items()
    largest = [s for (kind, _), all_of in of_kinds if kind.size == 2 for s in all_of]
    runs = seconds_text(sum(float(np.median(s)) for s in largest))
    assert f"their runs to {runs} " in warnings(worse)[0]


def test_operations_are_those_of_each_micro_batch():
    """Those of 2 and 1 samples all counted as 2."""
    plan = small_profile().typical.record.plan
    assert plan.sizes == (2, 2, 1, 1)
    for row in small_profile().bodies:
        of_both = [body_flops(plan.partitions[size].bodies[row.key]) for size in (2, 1)]
        assert of_both[0] > row.flops == round(sum(of_both) / 2)
    whole = 4 * sum(row.flops for row in small_profile().bodies)
    stages = plan_rows(plan, small_profile().memory)
    assert sum(stage["flops"] for stage in stages) == pytest.approx(whole, abs=20)


@pytest.mark.slow
@pytest.mark.parametrize("bucketed", [False, True])
def test_a_prediction_that_is_far_off_is_made_again_with_prices_of_now(bucketed, tmp_path):
    """By a file of costs each call takes a second: what these kernels take, none can be so far."""
    table = replace(ESTIMATES, speed=Speed(1e9, 1.0, 1e10))
    (tmp_path / "slow.json").write_text(table.to_json())
    slow = f"partition.costs={tmp_path / 'slow.json'}"
    given = config(tmp_path, slow)
    if bucketed:
        given = load_config(str(write_bucketed(tmp_path)), [slow])
    with ThreadCluster(len(given.devices)) as cluster:
        trial = Trial.of(given, cluster, steps=1, warm_up=1)
        trial.run(1)
        assert trial.profile().predicted_again is None
        found = trial.profile(Shared())
    before = found.typical.predicted.makespan
    assert 0 < found.predicted_again < 0.1 * before
    assert figures(found)["predicted_again_seconds"] == found.predicted_again
    (line,) = again(found)
    assert line in said_of(found)
    assert line in exhibit(found)["reasons"]
    assert f"{1 - found.predicted_again / before:.0%} faster than when the plan was priced" in line
    assert ("for buckets" in line) == bucketed


def test_kernels_that_did_not_change_are_said_to_be_as_fast():
    profile = small_profile()
    assert again(profile) == []
    (line,) = again(replace(profile, predicted_again=1.01 * profile.typical.predicted.makespan))
    assert line.endswith("this machine is as fast as when the plan was priced")
    (line,) = again(replace(profile, predicted_again=1.5 * profile.typical.predicted.makespan))
    assert line.endswith("this machine is 50% slower than when the plan was priced")


# -- waiting --------------------------------------------------------------------------------------


def test_waits_are_counted_by_the_body_that_is_waited_for():
    record = small_profile().typical.record
    partition = record.plan.partition
    (down, up) = (
        next(e.tag for e in partition.edges if e.src.stage == s and partition.crosses(e))
        for s in (0, 1)
    )
    lines = (f"0F0 R{up}.0 0B0", (0, 2), (2, 5), (5, 9)), (f"R{down}.0 1F0", (0, 3), (3, 4))
    timeline = Timeline(tuple(track(*line) for line in lines), Fraction(1))
    assert waits(timeline, record, 0) == {up: 3}
    assert waits(timeline, record, 0, before=True) == {}
    assert waits(timeline, record, 1, before=True) == {down: 3}


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("warm_up", "before its first run, most for"),
        ("drain", "after its last run"),
        ("imbalance", "between its runs, most for"),
        ("communication", "on their way"),
    ],
)
def test_a_rank_is_said_to_wait_for_what_it_waits_for_most(part, words):
    profile = small_profile()
    zero = replace(profile.parts[1].time, communication=0.0, warm_up=0.0, drain=0.0, imbalance=0.0)
    own = RankParts(replace(zero, **{part: 1.0}), 0.0)
    idle = RankParts(replace(zero, compute=1.0), 0.0)
    changed = replace(profile, parts=(idle, own))
    first, second = reasons(changed)
    assert first.startswith("rank 0 hardly waits")
    assert second.startswith("rank 1 waits 1.00 s")
    assert words in second


@pytest.mark.parametrize(
    ("part", "overrides", "words"),
    [
        ("imbalance", (), "pipeline.schedule=auto"),
        ("imbalance", ("pipeline.schedule=auto",), "symgraph search"),
        ("communication", (), "partition.strategy=auto"),
        ("drain", (), "pipeline.micro_batches=6"),
        ("dispatch", (), "pipeline.micro_batches=2"),
        ("compute", (), "only more devices"),
    ],
)
def test_the_largest_loss_says_what_to_change_next(part, overrides, words, tmp_path):
    profile = small_profile()
    own = RankParts(RankTime(**{**dict.fromkeys(PARTS, 0.0), part: profile.step}), 0.0)
    changed = replace(profile, parts=(own, own))
    assert words in advice(changed, config(tmp_path, *overrides))
    assert "devices=[gpu(0)]" in advice(changed, config(tmp_path), alone="gpu(0)")


# -- traces ---------------------------------------------------------------------------------------


def test_a_trace_has_nodes_inside_runs_and_rows_for_both_timelines():
    profile = small_profile()
    events = [e for at, one in enumerate(shown(profile)) for e in shown_events(one, at)]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert rows[1, 0] == "measured runs"
    assert rows[1, 3] == "predicted messages"
    nodes = [e for e in events if e.get("cat") == "node"]
    assert len(nodes) == len(profile.typical.calls)
    runs = [
        e
        for e in events
        if e["ph"] == "X" and e["tid"] == RUNS and e["cat"] in ("forward", "backward")
    ]
    for node in nodes:
        assert {"operator", "micro-batch", "flops", "bytes"} <= node["args"].keys()
        assert any(
            r["pid"] == node["pid"]
            and r["ts"] <= node["ts"] + 1e-3
            and node["ts"] + node["dur"] <= r["ts"] + r["dur"] + 1e-3
            for r in runs
        )
    sends = [e for e in events if e.get("cat") == "send"]
    assert sends
    assert all(e["args"]["bytes"] > 0 for e in sends)
    leave, arrive = ([e["id"] for e in events if e["ph"] == ph] for ph in "sf")
    assert len(leave) == len(set(leave)) > 0
    assert set(leave) == set(arrive)


# -- costs in files -------------------------------------------------------------------------------


def test_costs_are_saved_and_loaded(tmp_path):
    path = tmp_path / "costs.json"
    table = CostTable(Speed(1e9, 1e-6, 2e9), RATES, Caches(1, 2), {}, {"f": "no"}, {"host": "a"})
    card = replace(table, machine={"card": "b"})
    near, far = Link(1e-5, 1e9, by_receiver=True), Link(2e-5, 5e8)
    to_host = replace(far, by_receiver=True)
    links = {("cpu", "cpu"): near, ("cpu", "gpu"): far, ("gpu", "cpu"): to_host}
    prices = CostModel({"cpu": table, "gpu": card}, links)
    save_prices(prices, path)
    assert load_prices(path) == prices
    text = json.loads(path.read_text())
    text["links"]["cpu cpu"] = {"latency": "x"}
    path.write_text(json.dumps(text))
    with pytest.raises(
        ConfigError,
        match=r"costs\.json: not a table of costs .* to float: 'x'",
    ):
        load_prices(path)
    with pytest.raises(ConfigError, match="no costs were measured"):
        save_prices(replace(prices, kinds={"cpu": Speed(1.0, 1.0)}), path)
    with pytest.raises(ConfigError, match="cannot write the costs to /nowhere/x: No such"):
        save_prices(prices, "/nowhere/x")


@pytest.mark.slow
def test_saved_costs_are_what_a_plan_is_made_with(tmp_path):
    given = config(tmp_path, "pipeline.schedule=auto")
    with ThreadCluster(2) as cluster:
        trial = Trial.of(given, cluster, warm_up=1)
        prices = trial.planned.training.prices
        assert prices is not None
        assert prices.kinds["cpu"] == ESTIMATES
        assert np.isinf(float(prices.link.bandwidth))
        trial.run(1)
        assert trial.profile().prices is prices


def test_costs_of_this_machine_are_not_for_another(tmp_path):
    machine = tmp_path / "machine.yaml"
    machine.write_text("devices: {cpu(0): {flops: 1 GFLOP/s}}\nlinks: {}\n")
    with pytest.raises(ConfigError, match=r"partition\.costs: are this machine's, but `machine`"):
        config(tmp_path, f"machine={machine}")
