"""Shapes: which are tried, what is proved of them, and what searches make of many devices."""

from __future__ import annotations

import pytest

from partitioner.costs.machine_files import load_machine
from runtime.frontends.cli.plan_report import plan_report
from runtime.planning.costs.prices import CostModel, always
from runtime.profiling.search.search import Found, search
from runtime.profiling.search.shapes import Forecast, Shape, device_counts, promising, shapes
from runtime.training.job import prepare, training_plan
from symgraph.app.config import Config
from tests.helpers.profiles import config

HOSTS, EACH = 3, 4
DEVICE = "{flops: 15 TFLOP/s, bandwidth: 900 GB/s, call: 10 us, node: %d}"
LINKS = "{node: {latency: 8us, bandwidth: 25 GB/s}, network: {latency: 30us, bandwidth: 1 GB/s}}"
pytestmark = pytest.mark.xdist_group("shapes")  # a worker of xdist searches once for all tests


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> Config:
    """The small model on twelve GPUs of three hosts."""
    folder = tmp_path_factory.mktemp("shapes")
    rows = [f"  gpu({i}): {DEVICE % (i // EACH)}" for i in range(HOSTS * EACH)]
    machine = folder / "machine.yaml"
    machine.write_text("\n".join(["devices:", *rows, f"links: {LINKS}\n"]), encoding="utf-8")
    devices = ", ".join(f"gpu({i})" for i in range(HOSTS * EACH))
    return config(
        folder,
        "partition.costs=null",
        f"machine={machine}",
        f"devices=[{devices}]",
        "group2ctx={}",
        "data.sequence_length=1",
    )


@pytest.fixture(scope="module")
def forecast(given) -> Forecast:
    machine = load_machine(str(given.machine))
    one = given.model_copy(update={"devices": ("gpu(0)",)})
    return Forecast(training_plan(one, quick=True).training, machine, 1)


def searched(given: Config, **limits: float) -> Found:
    machine = load_machine(str(given.machine))
    return search(given, always(CostModel.of_machine(machine)), **limits)


@pytest.fixture(scope="module")
def found(given) -> Found:
    return searched(given, work=1000)


@pytest.mark.parametrize(
    ("devices", "least", "counts"),
    [
        (1, 1, [1]),
        (5, 1, [1, 2, 3, 4, 5]),
        (12, 2, [2, 4, 8, 12]),
        (64, 1, [1, 2, 4, 8, 16, 32, 64]),
        (12, 5, [8, 12]),
    ],
)
def test_numbers_of_devices(devices, least, counts):
    assert device_counts(devices, least) == counts


def test_every_sample_has_one_replica_and_one_micro_batch():
    every = [*shapes([1, 2, 3], 6, 6, rows=True, most=4)]
    assert len(every) == len({*every})
    for devices, rows, count in every:
        assert devices * rows <= 6
        assert 6 % rows == 0
        assert rows * count <= 6
    assert Shape(3, 2, 2) in every
    assert {shape.rows for shape in shapes([1], 6, 6, rows=False, most=4)} == {1}


def test_an_estimate_of_one_device_is_what_its_plan_takes(given, forecast):
    one = given.model_copy(update={"devices": ("gpu(0)",)})
    for count in (1, 2):
        pipeline = one.pipeline.model_copy(update={"micro_batches": count, "schedule": "auto"})
        counted = one.model_copy(update={"pipeline": pipeline})
        plan = training_plan(counted, quick=True).training
        outlook = forecast.of(Shape(1, 1, count))
        assert outlook.bound == pytest.approx(outlook.seconds)
        assert outlook.seconds == pytest.approx(plan.choice.seconds, rel=0.5)
        assert outlook.bound <= plan.choice.seconds


@pytest.mark.slow
def test_nothing_false_is_proved_of_micro_batches_of_unequal_sizes(tmp_path):
    """Six samples in four counted as eight: a step was 20 % shorter than what none could beat."""
    machine = tmp_path / "slow.yaml"
    devices = "devices: {cpu(0): &d {flops: 10 MFLOP/s}, cpu(1): *d}"
    machine.write_text(f"{devices}\nlinks: {{node: {{latency: 1us}}}}\n", encoding="utf-8")
    slow = config(
        tmp_path,
        "partition.costs=null",
        f"machine={machine}",
        "data.batch_size=6",
        "partition.strategy=auto",
        "pipeline={schedule: auto, micro_batches: 4}",
        "data.sequence_length=1",
    )
    report, figures = plan_report(prepare(slow))
    found = searched(slow, work=1000).candidates
    whole = Forecast(prepare(slow).training, load_machine(str(machine)), 1)
    for candidate in found:
        shape = Shape(len(candidate.config.devices), 1, len(candidate.plan.sizes))
        assert max(candidate.bound, whole.of(shape).bound) <= candidate.seconds
    alike = [c.seconds for c in found if len(c.plan.sizes) == 4 and len(c.config.devices) == 2]
    assert figures["predicted_step_seconds"] == pytest.approx(min(alike), rel=0.02)
    assert "no placement of whole operators" not in report


def test_devices_that_a_row_leaves_idle_are_no_shape_of_their_own(forecast):
    outlooks = [forecast.of(Shape(d, 1, 1)) for d in (1, 2, 4, 8, 12)]
    kept = promising(outlooks)
    assert kept == sorted(kept)
    assert {o.used for o in kept} == {o.used for o in outlooks}
    assert len(kept) == len({o.used for o in kept})
    assert all(o.bound <= o.seconds * (1 + 1e-9) for o in outlooks)


def test_a_search_of_many_devices_tries_few(found):
    """Twelve devices took a step of 39 ms where one of them alone took 9 ms."""
    used = [len(c.config.devices) for c in found.candidates]
    best, alone = found.candidates[0], found.candidates[used.index(1)]
    assert best.seconds <= alone.seconds
    assert alone.name.endswith("1 device")
    assert found.left_out == 0
    assert found.proved + found.unpromising > 0


def test_a_search_ends_by_work_and_finds_the_same_again(given, found):
    again = searched(given, work=1000)
    assert [(c.name, c.seconds) for c in again.candidates] == [
        (c.name, c.seconds) for c in found.candidates
    ]
    assert (again.proved, again.unpromising) == (found.proved, found.unpromising)


def test_no_time_is_said(given):
    hurried = searched(given, seconds=0.0)
    assert len(hurried.candidates) == 1
    assert hurried.left_out > 0
