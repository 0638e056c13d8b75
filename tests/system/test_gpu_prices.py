"""What is measured on GPUs: timelines, profiles, prices and machine files.

There is no GPU here: tests.fakes.fake_cupy stands in for CuPy, its events tell the host's time.
With a real one the tests marked `gpu` run as well.
"""

from __future__ import annotations

import sys
import time
from dataclasses import astuple, replace

import numpy as np
import pytest

import symgraph as sg
from partitioner.costs.cost import Caches, CostTable, Measured, Rates, Speed, signature
from partitioner.costs.machine_files import load_machine
from runtime.backends.device import arrays, settings
from runtime.backends.device.clocks import EventStamps, HostStamps
from runtime.planning.costs.files import load_prices, save_prices
from runtime.planning.costs.prices import CostModel
from runtime.planning.options import Options
from runtime.profiling.calibration import bench, pricing
from runtime.profiling.calibration import gpu_kernels as card_profile
from runtime.profiling.calibration import machine as measure
from runtime.profiling.calibration import rates as calibrate
from runtime.profiling.calibration.machine import devices_to_measure
from runtime.profiling.calibration.pricing import measure_links, measured_prices, quick_prices
from runtime.profiling.trials.trial import Trial
from runtime.schedule.replay import Link, simulate
from runtime.training.job import prepare
from runtime.transports import ThreadCluster
from runtime.transports.base import LAUNCHER_VARIABLES
from symgraph import cpu, gpu
from symgraph.app.config import load_config
from symgraph.core.errors import ConfigError, PlacementError
from symgraph.core.registry import OPS, find
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.run import main
from tests.fakes.fake_cupy import fake_cupy
from tests.helpers.gpus import replays
from tests.helpers.pipelines import Case, make_plan, run_step
from tests.helpers.profiles import assert_calls_inside_runs, costs
from tests.helpers.recurrent import lstm_case
from tests.helpers.small_lm import write_config
from tests.runtime.backends.cuda.emulation import MISSING, compiler


@pytest.fixture
def little(monkeypatch):
    """Any number of contexts on one card, on which little is computed for each figure."""
    monkeypatch.setenv(settings.SHARE_GPUS, "1")
    monkeypatch.setattr(bench.GpuBench, "alone_sizes", bench.Sizes(64, 1 << 12))
    monkeypatch.setattr(bench.GpuBench, "crowded_sizes", bench.Sizes(64, 1 << 12))
    monkeypatch.setattr(bench, "ROW_CALLS", 1)
    monkeypatch.setattr(calibrate, "TRIES", 1)
    monkeypatch.setattr(calibrate, "CALLS", 3)
    monkeypatch.setattr(card_profile, "TIMES", 2)
    monkeypatch.setattr(measure, "SECONDS", 0.01)
    monkeypatch.setattr(pricing, "SECONDS", 0.0)


@pytest.fixture
def stand_in(little):
    if compiler() is None:
        pytest.skip(MISSING)
    with fake_cupy(cards=1) as cupy:
        yield cupy


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.gpu)])
def card(request, little):
    if request.param == "stand-in":
        yield request.getfixturevalue("stand_in")
        return
    try:
        arrays.require(gpu(0))
    except PlacementError as error:
        pytest.skip(str(error))
    yield arrays.loaded()


# -- stamps ----------------------------------------------------------------------------------------


def test_stamps_of_a_card_are_on_the_hosts_clock(card):
    here = arrays.device(gpu(0))
    stamps = here.stamps()
    assert isinstance(stamps, EventStamps)
    assert isinstance(arrays.device(cpu(0)).stamps(), HostStamps)
    for _ in range(2):  # events are used again
        with here.use():
            begun = time.perf_counter_ns()
            stamps.begin()
            before = time.perf_counter_ns()
            first = stamps.stamp()
            time.sleep(0.002)
            second = stamps.stamp()
            here.finish()  # the card may stamp later than it was asked to
            after = time.perf_counter_ns()
        start, end = stamps.ticks([first, second]).tolist()
        assert end - start >= 1_000_000  # a card may stamp the first one late
        off = before - begun  # the anchor is right to the time that seeing it took
        assert before - off < start < end < after + off
        assert len(stamps._events) == 3
    assert stamps.ticks([]).dtype == np.int64


def test_the_stand_in_is_strict_about_times(stand_in):
    recorded, never = stand_in.cuda.Event(), stand_in.cuda.Event()
    stand_in.cuda.Stream().record(recorded)
    with pytest.raises(AssertionError, match="no stream has recorded"):
        stand_in.cuda.get_elapsed_time(recorded, never)
    untimed = stand_in.cuda.Stream().record(stand_in.cuda.Event(disable_timing=True))
    with pytest.raises(AssertionError, match="disable_timing"):
        stand_in.cuda.get_elapsed_time(recorded, untimed)


def test_instructions_are_ranges_with_their_names(stand_in, monkeypatch):
    case = lstm_case(2, 3, batch=4)
    options = Options({"layer0": cpu(0), "layer1": gpu(0), "head": gpu(0)}, cpu(0), ())
    made = make_plan(case, options)
    for wanted in ("0", "1"):
        monkeypatch.setenv("SYMGRAPH_NVTX", wanted)
        stand_in.cuda.nvtx.closed.clear()
        with ThreadCluster(2) as cluster:
            run_step(made, case, cluster)
        names = {str(instruction) for instruction in made.schedule.programs[1]}
        closed = stand_in.cuda.nvtx.closed
        assert {name for names in closed for name in names.split()} == (
            names if wanted == "1" else set()
        )
        assert wanted == "0" or "R0.0 R1.0 R2.0" in closed  # of one layer's steps


# -- profiles --------------------------------------------------------------------------------------

MIXED = (
    "devices=[cpu(0), gpu(0)]",
    "group2ctx={embed: cpu(0), layer0: cpu(0), layer1: gpu(0), decode: gpu(0)}",
)


@pytest.mark.slow
def test_a_profile_of_both_kinds_adds_up(card, tmp_path):
    path = write_config(tmp_path, "optimizer: sgd, learning_rate: 0.5")
    given = load_config(str(path), [*MIXED, f"partition.costs={costs(tmp_path)}", "blas_threads=1"])
    with ThreadCluster(2) as cluster:
        trial = Trial.of(given, cluster, steps=3, warm_up=1)
        trial.run(3)
        profile = trial.profile()
    record = profile.typical.record
    for own in record.ranks:
        assert (own.end >= own.start).all()
        assert (own.start[:, 1:] >= own.end[:, :-1]).all()
        assert (own.start[:, 0] > own.walls[:, 0]).all()
    for parts in profile.parts:
        assert parts.total == pytest.approx(profile.step, rel=1e-9)
        assert min(astuple(parts.time)) >= 0
    assert {*profile.speeds} == {"cpu", "gpu"}
    assert profile.products.startswith("packed ")
    assert profile.products.endswith("; cuBLAS in float32")
    assert_calls_inside_runs(record)


def test_measured_steps_run_as_training_does(card, tmp_path):
    """By CUDA graphs, which the steps that time each call do without."""
    path = write_config(tmp_path, "optimizer: sgd, learning_rate: 0.5")
    prices = f"partition.costs={costs(tmp_path)}"
    given = load_config(str(path), ["devices=[gpu(0)]", "group2ctx={}", prices])
    with ThreadCluster(1) as cluster:
        trial = Trial.of(given, cluster, steps=2, warm_up=1)
        trial.run(2)
        (record,) = trial.recorder.records()
    runs = replays(trial.recorder.trainer.training)
    assert runs
    assert all(run._launches[True] for run in runs)
    assert record.steps == 2
    assert_calls_inside_runs(record)


# -- prices ----------------------------------------------------------------------------------------


def pipeline(devices, **how) -> Options:
    groups = {"layer0": devices[0], "layer1": devices[1], "head": devices[1]}
    return Options(groups, devices[0], (), micro_batches=2, **how)


def table(flops: float, call: float = 0.0) -> CostTable:
    return CostTable(Speed(flops, call), Rates(1e12, 1e12), Caches(0, 0), {}, {}, {})


NEAR, FAR = Link(1e-6, 1e12, by_receiver=True), Link(1e-3, 1e9, by_receiver=True)
LINKS = {("cpu", "cpu"): NEAR, ("gpu", "gpu"): NEAR, ("cpu", "gpu"): FAR, ("gpu", "cpu"): FAR}


def test_every_kernel_is_measured_on_the_kind_that_it_may_run_on(card):
    graph = make_plan(lstm_case(1, 3, batch=4), Options(None, gpu(0), ())).network.first
    prices = measured_prices(graph, (cpu(0), gpu(0), gpu(1)))
    assert {*prices.kinds} == {"cpu", "gpu"}
    assert {*prices.links} == {("cpu", "cpu"), ("cpu", "gpu"), ("gpu", "cpu"), ("gpu", "gpu")}
    for kind, bodies in prices.kinds.items():
        assert isinstance(bodies, CostTable)
        assert bodies.failed == {}
        assert bodies.measured_share(graph) == 1.0, kind
    on_card = prices.kinds["gpu"]
    assert on_card.machine["card"]
    assert all(m.levels == () for m in on_card.measured.values())
    assert {*on_card.measured} <= {*prices.kinds["cpu"].measured}


def test_what_is_known_is_not_measured_again(card):
    graph = make_plan(lstm_case(1, 2), Options(None, gpu(0), ())).network.first
    first = measured_prices(graph, (gpu(0),))
    assert {*first.kinds} == {"gpu"}
    assert first.links == {}
    again = measured_prices(graph, (gpu(0), gpu(1)), first)
    assert again.kinds["gpu"] == first.kinds["gpu"]
    assert {*again.links} == {("gpu", "gpu")}


def test_an_id_out_of_range_fails_alone(card, monkeypatch):
    embedding = replace(find("Embedding"), ids={})  # so that ids are any numbers
    monkeypatch.setitem(OPS, "Embedding", embedding)
    net = sym.Embedding(sym.Variable("x") * 9 + 5, input_dim=3, output_dim=2, name="embed")
    graph = lower(sym.tanh(net), {"x": (4,)})
    costs_of = measured_prices(graph, (gpu(0),)).kinds["gpu"]
    ((text, why),) = costs_of.failed.items()
    assert text.startswith("Embedding(")
    assert "is outside 0..2" in why
    assert any(text.startswith("tanh(") for text in costs_of.measured)


def test_each_rank_has_the_prices_of_its_kind(stand_in):
    case = lstm_case(2, 3, batch=4)
    prices = CostModel({"cpu": table(1e6), "gpu": table(1e9)}, LINKS, overhead=0.0)
    seconds = {}
    for devices in ((cpu(0), cpu(1)), (gpu(0), gpu(1)), (cpu(0), gpu(0))):
        partition = make_plan(case, pipeline(devices)).partition
        found = prices.costs(partition)
        for key, body in partition.bodies.items():
            speed = prices.of(devices[partition.rank(key)])
            assert found.run(key) == speed.seconds(body)
        seconds[devices] = found
        assert found.link_of(0, 1) == (FAR if devices[0].kind != devices[1].kind else NEAR)
    assert seconds[cpu(0), gpu(0)].update(0) >= 0


@pytest.mark.slow
def test_the_placement_follows_the_prices_of_both_kinds(stand_in):
    case = lstm_case(3, 4, batch=4)
    for fast, slow in ((gpu(0), cpu(0)), (cpu(0), gpu(0))):
        kinds = {fast.kind: table(1e9), slow.kind: table(1e6)}
        prices = CostModel(kinds, dict.fromkeys(LINKS, NEAR), overhead=0.0)
        made = make_plan(
            case,
            Options(
                None,
                cpu(0),
                (cpu(0), gpu(0)),
                strategy="optimal",
                micro_batches=2,
                splits=False,
                pricing=lambda graph, contexts, prices=prices: prices,
            ),
        )
        placement = made.partition.placement
        work = {fast: 0.0, slow: 0.0}
        for key, body in made.partition.bodies.items():
            work[placement.devices[made.partition.rank(key)]] += table(1.0).seconds(body)
        assert work[fast] > 20 * work[slow]


@pytest.mark.slow
def test_an_operator_goes_where_it_was_measured_to_be_fast(stand_in):
    """Though the rooflines of both kinds are equal."""
    with sg.AttrScope(ctx_group="a"):
        net = sym.tanh(sym.Variable("x"), name="first")
    with sg.AttrScope(ctx_group="b"):
        net = sym.exp(net, name="second")
    case = Case(net, {"x": np.ones((2, 8))}, {})
    graph = make_plan(case, Options(None, cpu(0), ())).network.first

    def slow_at(name: str) -> CostTable:
        slow, quick = Measured(1.0, 0.0, 1), Measured(1e-3, 0.0, 1)
        calls = {n.name: n for n in graph if not n.is_variable}
        found = {signature(n, graph): slow if n.name == name else quick for n in calls.values()}
        return replace(table(1e9), measured=found)

    for first, second in ((cpu(0), gpu(0)), (gpu(0), cpu(0))):
        kinds = {first.kind: slow_at("second"), second.kind: slow_at("first")}
        prices = CostModel(kinds, LINKS)
        made = make_plan(
            case,
            Options(
                None,
                cpu(0),
                (cpu(0), gpu(0)),
                strategy="optimal",
                splits=False,
                pricing=lambda graph, contexts, prices=prices: prices,
            ),
        )
        placement = made.partition.placement
        assert placement.device_of("first") == first
        assert placement.device_of("second") == second


def test_prices_of_a_kind_that_was_not_measured(stand_in, tmp_path):
    path = tmp_path / "costs.json"
    save_prices(CostModel({"cpu": table(1e9)}, {}), path)
    config = load_config(
        str(write_config(tmp_path, "steps: 1")),
        [*MIXED, f"partition.costs={path}", "pipeline.schedule=auto"],
    )
    with pytest.raises(ConfigError, match=r"gpu\(0\) has no costs, they were measured for cpu"):
        prepare(config)


def test_quick_prices_know_all_kinds(card):
    prices = quick_prices((cpu(0), gpu(0)))
    assert all(isinstance(prices.kinds[kind], Speed) for kind in ("cpu", "gpu"))
    assert prices.kinds["gpu"] != prices.kinds["cpu"]


@pytest.mark.slow
def test_a_training_run_on_both_kinds_plans_with_what_it_measures(card, tmp_path):
    path = write_config(tmp_path, "optimizer: sgd, learning_rate: 0.5")
    given = load_config(str(path), [*MIXED, "pipeline.schedule=auto", "blas_threads=1"])
    with ThreadCluster(2) as cluster:
        trial = Trial.of(given, cluster, steps=2, warm_up=1)
        trial.run(2)
        profile = trial.profile()
    prices = trial.planned.training.prices
    save_prices(prices, tmp_path / "costs.json")
    assert load_prices(tmp_path / "costs.json") == prices
    assert profile.predicted_step > 0
    assert {*prices.kinds} == {"cpu", "gpu"}


# -- machine files ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_machine_of_cards_is_measured_and_used(stand_in, tmp_path, monkeypatch, capsys):
    stand_in.cuda.runtime.memGetInfo = lambda: (256 << 20, 1 << 30)
    path = tmp_path / "machine.yaml"
    assert main(["--measure-machine", str(path), "devices=[gpu(0), gpu(1)]"]) == 0
    assert "gpu(1)" in capsys.readouterr().out
    assert "#   card: stand-in 0\n" in path.read_text()
    machine = load_machine(str(path))
    assert machine.contexts == (gpu(0), gpu(1))
    assert [d.memory for d in machine.devices] == [128 << 20] * 2  # both are on one card
    assert machine.devices[0].speed == machine.devices[1].speed
    assert {*machine.links} == {"node"}
    given = [
        f"machine={path}",
        "devices=[gpu(0), gpu(1)]",
        "group2ctx={}",
        "partition.strategy=optimal",
        "pipeline.schedule=auto",
    ]
    made = prepare(load_config(str(write_config(tmp_path, "steps: 1")), given)).training
    assert made.partition.placement.devices == (gpu(0), gpu(1))
    assert simulate(made.schedule, made.partition, made.prices.costs(made.partition)).makespan > 0


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("devices=[cpu(0), gpu(0)]", "must be different ones of one kind"),
        ("devices=[gpu(0), gpu(0)]", "must be different ones of one kind"),
        ("devices=gpus", "'gpus' is not a device"),
        ("devices=[gpu(0), gpu(9)]", "gpu(9) cannot be used: this machine has gpu(0)"),
    ],
)
def test_devices_that_cannot_be_measured(stand_in, monkeypatch, capsys, word, message):
    monkeypatch.delenv(settings.SHARE_GPUS)
    assert main(["--measure-machine", word]) == 2
    assert message in capsys.readouterr().err


def test_under_mpiexec_cards_are_not_asked_for_before_ranks_fork(stand_in, monkeypatch):
    """What CUDA is asked before a fork, it answers in the parent alone, and a rank is the child."""
    monkeypatch.setenv(LAUNCHER_VARIABLES[0], "0")
    monkeypatch.setattr(stand_in.cuda.runtime, "getDeviceCount", lambda: pytest.fail("asked"))
    assert devices_to_measure(["devices=[gpu(0), gpu(1)]"]) == (gpu(0), gpu(1))


def test_without_a_card_nothing_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)
    refused = "gpu(0) cannot be used: the package cupy cannot be imported"
    assert main(["--measure-machine", "devices=gpu(0)"]) == 2
    assert refused in capsys.readouterr().err
    config = write_config(tmp_path, "steps: 1")
    assert main([str(config), "devices=[gpu(0)]", "pipeline.schedule=auto"]) == 2
    assert refused in capsys.readouterr().err


def test_links_are_measured_between_two_devices_of_each_two_kinds(card):
    assert {*measure_links((gpu(0),))} == set()
    both = measure_links((cpu(0), gpu(1)))
    assert {*both} == {("cpu", "cpu"), ("cpu", "gpu"), ("gpu", "cpu")}
    to_card, from_card = both["cpu", "gpu"], both["gpu", "cpu"]
    assert (to_card.latency, to_card.bandwidth) == (from_card.latency, from_card.bandwidth)
    assert not to_card.by_receiver  # it has a stream for what it receives
    assert from_card.by_receiver
    assert both["cpu", "cpu"].by_receiver
    assert measure_links((cpu(0), gpu(1)), known=both) == {}
