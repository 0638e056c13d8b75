"""The command line's profiles, comparisons and searches."""

from __future__ import annotations

import json

import pytest

from tests.helpers.profiles import costs
from tests.helpers.small_lm import write_bucketed, write_config
from tests.system.test_cli import KEYS, STAGE_KEYS, figures, run

TINY = (
    "data.batch_size=2",
    "data.sequence_length=2",
    "pipeline.micro_batches=2",
    "partition.split=none",
)
NOT_IN_A_PROFILE = {"loss", "perplexity"}  # of held-out text


@pytest.fixture
def config(tmp_path):
    return str(write_config(tmp_path, "optimizer: sgd, learning_rate: 0.5, steps: 7"))


@pytest.mark.slow
def test_a_profile_with_all_its_files(config, tmp_path):
    trace, costs = tmp_path / "new/trace.json", tmp_path / "more/costs.json"
    done = run(
        config, "--profile", "--steps=4", "--json", f"--trace={trace}", f"--save-costs={costs}"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() >= KEYS - NOT_IN_A_PROFILE
    assert [s.keys() >= STAGE_KEYS for s in found["stages"]] == [True, True]
    assert found["steps"] == 4
    baseline = found["baseline"]
    assert (baseline["devices"], baseline["micro_batches"]) == (["cpu(0)"], 1)
    assert baseline["partition_step_seconds"] == found["step_seconds"]
    report = done.stderr.splitlines()
    (first,) = [at for at, line in enumerate(report) if line == baseline["verdict"]]
    assert report[first - 1] == "", "before all other figures"
    assert report[first + 3].startswith("4 steps, median ")
    for part in ("where the time of a step goes", "rank 1 ", "memory, predicted beside measured"):
        assert part in done.stderr
    assert json.loads(trace.read_text())["traceEvents"]
    more = figures(config, "--plan", "pipeline.schedule=auto", f"partition.costs={costs}")
    again = figures(config, "--plan", "pipeline.schedule=auto", f"partition.costs={costs}")
    assert more["predicted_step_seconds"] == again["predicted_step_seconds"] > 0
    low, high = more["predicted_step_interval"]
    assert low < more["predicted_step_seconds"] < high


@pytest.mark.slow
def test_a_profile_of_buckets_with_all_its_files(tmp_path):
    pytest.importorskip("jinja2", reason="needs the extra `report`")
    trace, report = tmp_path / "trace.json", tmp_path / "report"
    done = run(
        str(write_bucketed(tmp_path)),
        "--profile",
        "--steps=6",
        "--json",
        "--no-baseline",
        f"--trace={trace}",
        f"--report={report}",
    )
    assert done.returncode == 0, done.stderr
    assert "one device" not in done.stderr
    found = json.loads(done.stdout)
    assert found["baseline"] is None
    assert found.keys() >= KEYS - NOT_IN_A_PROFILE
    assert sum(row["steps"] for row in found["mixtures"]) == found["steps"] == 6
    assert "steps by their buckets" in done.stderr
    buckets = {
        e["args"].get("bucket")
        for e in json.loads(trace.read_text())["traceEvents"]
        if e.get("cat") == "node"
    }
    assert buckets <= {"4", "7", "12"}
    page = (report / "index.html").read_text()
    assert "Steps by their buckets" in page
    for row in found["mixtures"]:
        assert f'<td data-value="{row["step_seconds"]}">' in page, "to be sorted by"
    for name in ("timeline.png", "memory.png", "mixtures.csv", "instructions.csv"):
        assert (report / name).stat().st_size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps=3"], "--steps goes with --profile"),
        (["--trace=x.json"], "--trace goes with --profile"),
        (["--no-baseline"], "--no-baseline goes with --profile or --compare or --search"),
        (["--profile", "--steps=1", "--trace=README.md/x"], "cannot write the trace README.md/x"),
        (["--profile", "--save-costs=README.md/x"], "cannot write the costs to README.md/x"),
        (
            ["--profile", "--report=/dev/null"],
            "cannot write a report into /dev/null: Not a directory",
        ),
        (["--search", "--winner=README.md/x"], "cannot write the winner to README.md/x"),
        (["--plan", "--profile"], "--plan or --profile? one at a time"),
        (["--plan", "--measure-machine"], "--plan or --measure-machine? one at a time"),
        (
            ["candidates={a: [pipeline.schedule=gpip], b: []}", "--compare"],
            "candidate 'a': override 'pipeline.schedule=gpip': pipeline.schedule: unknown value",
        ),
    ],
)
def test_arguments_that_do_not_go_together(config, arguments, message):
    done = run(config, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stdout == "", "before anything is measured"


@pytest.mark.slow
def test_candidates_of_one_config_are_compared(config, tmp_path):
    with open(config, "a", encoding="utf-8") as file:
        file.write("candidates: {by hand: [], alone: ['devices=[cpu(0)]']}\n")
    found = figures(config, "--compare", "--steps=4", f"--report={tmp_path / 'report'}")
    rows = {row["name"]: row for row in found["ranking"]}
    assert rows.keys() == {"by hand", "alone", "one device"}  # alone has 4 micro-batches
    assert found["baseline"]["partition"] is None
    assert found["baseline"]["step_seconds"] == rows["one device"]["step"]
    speeds = [row["tokens_per_second"] for row in found["ranking"]]
    assert speeds == sorted(speeds, reverse=True)
    assert (tmp_path / "report" / "index.html").is_file()


@pytest.mark.slow
def test_files_are_compared_with_overrides_for_all(config, tmp_path):
    other = tmp_path / "other.yaml"
    text = (tmp_path / "config.yaml").read_text()
    other.write_text(text.replace("1f1b", "gpipe"))
    more = ("pipeline.micro_batches=2", "--compare", "--steps=4", "--no-baseline")
    found = figures(config, str(other), *more)
    rows = {row["name"]: row for row in found["ranking"]}
    assert rows[config]["schedule"] == "1f1b"
    assert rows[str(other)]["schedule"] == "gpipe"
    assert [row["micro_batches"] for row in rows.values()] == [2, 2]


def test_one_config_without_candidates_cannot_be_compared(config):
    done = run(config, "--compare")
    assert done.returncode == 2
    assert "a comparison needs two configs or more" in done.stderr


@pytest.mark.slow
def test_a_search_writes_the_winner_and_the_winner_trains(config, tmp_path):
    costs, winner = tmp_path / "costs.json", tmp_path / "winner.yaml"
    assert run(config, "--profile", "--steps=1", f"--save-costs={costs}").returncode == 0
    given = f"--winner={winner}", f"partition.costs={costs}", *TINY  # of which it has no kernels
    with pytest.warns(UserWarning, match="kernels of this network are not in it"):
        found = figures(config, "--search", "--steps=4", *given)
    assert found["best"] in {row["name"] for row in found["candidates"]}
    assert found["best"] == found["ranking"][0]["name"]
    assert "one device, 1 micro-batch" in {row["name"] for row in found["ranking"]}
    assert f"# {found['baseline']['verdict']}" in winner.read_text().splitlines()
    assert found["lower_bound_seconds"] <= found["predicted_step_seconds"]
    trained = figures(str(winner), "train.steps=3")
    assert trained["steps"] == 3


@pytest.mark.slow
def test_buckets_are_searched(tmp_path):
    winner = tmp_path / "winner.yaml"
    path = write_bucketed(tmp_path, "buckets: [3, 6], batches_per_step: 2", longest=6)
    found = figures(
        str(path),
        "--search",
        "--steps=4",
        f"--winner={winner}",
        f"partition.costs={costs(tmp_path)}",
        "data.batch_size=2",
        "pipeline.micro_batches=1",
        "partition.split=none",
    )
    assert found["best"] == found["ranking"][0]["name"]
    assert 0 < found["lower_bound_seconds"] <= found["predicted_step_seconds"]
    assert found["search_seconds"] > 0
    assert "buckets" in winner.read_text()


@pytest.mark.slow
def test_machines_that_are_not_here_are_searched_by_simulation(config, tmp_path):
    machine, winner = tmp_path / "machine.yaml", tmp_path / "winner.yaml"
    device = "{flops: 1 TFLOP/s, call: 1 us}"
    machine.write_text(
        f"devices: {{gpu(0): {device}, gpu(1): {device}}}\n"
        "links: {node: {latency: 1us, bandwidth: 10GB/s}}\n"
    )
    there = [f"machine={machine}", "devices=[gpu(0), gpu(1)]", "group2ctx={}", *TINY]
    found = figures(config, *there, "--search", f"--winner={winner}")
    assert found["ranking"] == []
    assert found["baseline"]["simulated"]
    assert found["baseline"]["devices"] == ["gpu(0)"]
    assert found["predicted_step_seconds"] > 0
    assert figures(str(winner), "--plan")["predicted_step_seconds"] == pytest.approx(
        found["predicted_step_seconds"]
    )
    done = run(str(winner))
    assert done.returncode == 2
    assert "gpu(0) cannot be used" in done.stderr
