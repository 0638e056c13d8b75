"""Networks without a loss: the throughput of batches that stream, and the latency of one alone."""

from __future__ import annotations

import json
from statistics import median_low

import numpy as np
import pytest
import yaml

from runtime.planning import mixed_step
from runtime.planning.mixed_step import predict, stream, stream_batches
from runtime.profiling.analysis.pace import STREAM, steady
from runtime.profiling.trials.baseline import baseline_of, is_baseline
from runtime.schedule.instructions import Run
from runtime.schedule.replay import Costs, simulate
from runtime.training.job import prepare
from symgraph.app.config import load_config
from symgraph.core.errors import LimitError
from tests.helpers import forward_nets
from tests.helpers.profiles import costs
from tests.system.test_cli import figures, run


@pytest.fixture
def config(tmp_path):
    """The path of a config of a network on two devices, with random data."""

    def written(name="mlp"):
        sections = {
            "model": f"{forward_nets.__name__}:{name}",
            "data": {"batch_size": 8},
            "group2ctx": {"a": "cpu(0)", "b": "cpu(1)"},
            "pipeline": {"micro_batches": 3},
            "partition": {"costs": str(costs(tmp_path))},
            "candidates": {"a": [], "b": ["pipeline.micro_batches=2"]},
        }
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(sections), encoding="utf-8")
        return str(tmp_path / "run.yaml")

    return written


def test_batches_stream_in_order_without_a_pause(config):
    """Micro-batches of 3, 3 and 2: sorted by size, no batch left before the last ones entered."""
    plan = prepare(load_config(config(), synthetic=True)).training
    step = stream(plan, 4)
    for program in step.schedule.programs:
        assert [i.mb for i in program if isinstance(i, Run)] == [*range(12)]
    alone = simulate(plan.schedule, plan.partition, Costs(lambda key: 1.0))
    assert alone.makespan == 4.0  # 3 micro-batches through 2 stages
    assert steady(alone, 1) == 3.0


def test_a_pipeline_of_equal_stages_is_as_fast_as_its_stages(config):
    plan = prepare(load_config(config(), ["pipeline.micro_batches=4"], synthetic=True)).training
    prices = plan.options.costs(plan.network.first)
    streaming, alone = (predict(stream(plan, n), prices) for n in (STREAM, 1))
    assert steady(streaming, STREAM) < alone.makespan
    assert steady(streaming, STREAM) >= max(streaming.busy()) / STREAM


def test_large_messages_and_states_end_the_stream(config, monkeypatch):
    plan = prepare(load_config(config(), synthetic=True)).training
    assert stream_batches(plan, 8) == 8
    monkeypatch.setattr(mixed_step, "HELD", 3 * 8 * 8 * 4)  # three batches of float32[8,8]
    assert stream_batches(plan, 8) == 3
    running = prepare(load_config(config("running"), synthetic=True)).training
    assert stream_batches(running, 8) == 1


def test_batches_that_stream_keep_to_the_memory_limit(config):
    """A step of more batches holds more messages than the one that was planned."""

    def planned(limit):
        given = load_config(config(), [f"partition.memory={limit}"], synthetic=True)
        return prepare(given).training

    plan = planned("1GiB")
    peaks = [max(m.peak for m in stream(plan, count).memory) for count in (1, 3, 8)]
    assert peaks == sorted(set(peaks))
    assert [stream_batches(planned(peak), 8) for peak in peaks] == [1, 3, 8]
    with pytest.raises(LimitError, match=r"that is the smallest limit that works$"):
        planned(peaks[0] - 1)  # nothing can be run forward again


def test_a_plan_says_what_forward_only_means(config):
    done = run(config(), "--plan", "--json")
    assert done.returncode == 0, done.stderr
    assert "8 nodes forward only, batch of 8 in micro-batches of 3, 3, 2, schedule forw" in (
        done.stdout
    )
    for word in ("gradient", "optimizer", "nodes B", "with gradients"):
        assert word not in done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    assert 0 < found["predicted_batch_seconds"] < found["predicted_latency_seconds"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "running"])
def test_a_profile_has_throughput_and_latency(name, config):
    found = figures(config(name), "--profile", "--steps=4")
    assert found["samples_per_second"] == pytest.approx(8 / median_low(found["batch_seconds_all"]))
    assert found["latency_seconds"] == median_low(found["latency_seconds_all"])
    assert len(found["batch_seconds_all"]) == len(found["latency_seconds_all"]) == 4
    assert found["samples"] == 4 * 8 * (STREAM if name == "mlp" else 1)
    assert found["train_loss"] is None
    assert found["baseline"]["partition_step_seconds"] == pytest.approx(found["batch_seconds"])
    assert {row["name"] for row in found["operators"]}.isdisjoint({"(updates)", "(add gradients)"})


@pytest.mark.slow
def test_candidates_are_ranked_by_one_figure(config):
    path = config()
    found = figures(path, "--compare", "--steps=4", "partition.objective=latency")
    for row in found["ranking"]:
        assert row["latency"] == row["step"] == pytest.approx(8 / row["samples_per_second"])
    given = load_config(path, ["partition.objective=latency"], synthetic=True)
    assert is_baseline(baseline_of(given), given)
    assert baseline_of(given).partition.objective == "latency"
    mixed = "candidates={a: [], b: [partition.objective=latency]}"
    done = run(path, "--compare", "--steps=4", mixed)
    assert done.returncode == 2
    assert "'a' is ranked by throughput, but 'b' by latency; compare networks that all" in (
        done.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_a_search_ends_with_a_config_that_makes_the_same_plan(objective, config, tmp_path):
    winner = tmp_path / "winner.yaml"
    wanted = (f"partition.objective={objective}", f"--winner={winner}", "--steps=4")
    found = figures(config("sequences"), "--search", *wanted)
    best = found["ranking"][0]
    assert best["name"] == found["best"]
    again = figures(str(winner), "--plan")
    for key in ("placement", "micro_batches", "time_segment", "schedule"):
        assert again[key] == best[key]


def test_what_has_no_loss_is_not_trained(config):
    done = run(config(), "data={kind: random, batch_size: 8}")
    assert done.returncode == 2
    assert "has no loss, so there is nothing to train: `symgraph predict CONFIG" in done.stderr


def test_predictions_from_the_command_line(config, tmp_path):
    path, out = config(), tmp_path / "made" / "out.npz"
    np.savez(tmp_path / "in.npz", data=np.ones((11, 6), "float32"))
    data = f"data={{kind: arrays, path: {tmp_path}/in.npz, batch_size: 8}}"
    done = run(path, data, "--predict", str(out))
    assert done.returncode == 0, done.stderr
    assert "on cpu(0), cpu(1): initial weights, as the config names no checkpoint" in done.stdout
    assert "fc2_output  float32[11, 3]" in done.stdout
    found = figures(path, data, "--predict", str(out))
    assert found["outputs"] == {"fc2_output": {"shape": [11, 3], "dtype": "float32"}}
    (tmp_path / "in.npz").unlink()  # what cannot be written is refused before data is read
    for file, message in (
        ("out.txt", "out.txt: predictions are written as .npz, so use out.txt.npz"),
        ("/dev/null/out.npz", "cannot write outputs into /dev/null: Not a directory"),
    ):
        done = run(path, data.replace("in.npz", "run.yaml"), "--predict", file)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
