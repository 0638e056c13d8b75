"""The command line's profiles, comparisons and searches, in a process of their own."""

from __future__ import annotations

import json

import pytest

from tests.small_lm import write_config
from tests.test_cli import KEYS, STAGE_KEYS, figures, run

NOT_IN_A_PROFILE = {"loss", "perplexity"}  # of held-out text


@pytest.fixture
def config(tmp_path):
    return str(write_config(tmp_path, "optimizer: sgd, learning_rate: 0.5, steps: 7"))


def test_a_profile_with_all_its_files(config, tmp_path):
    trace, costs = tmp_path / "trace.json", tmp_path / "costs.json"
    done = run(config, "--profile", "--steps=4", "--json", f"--trace={trace}",
               f"--save-costs={costs}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() >= KEYS - NOT_IN_A_PROFILE
    assert [s.keys() >= STAGE_KEYS for s in found["stages"]] == [True, True]
    assert found["steps"] == 4
    for part in ("where the time of a step goes", "rank 1 ", "memory, predicted beside measured"):
        assert part in done.stderr
    assert json.loads(trace.read_text())["traceEvents"]
    more = figures(config, "--plan", "pipeline.schedule=auto", f"partition.costs={costs}")
    again = figures(config, "--plan", "pipeline.schedule=auto", f"partition.costs={costs}")
    assert more["predicted_step_seconds"] == again["predicted_step_seconds"] > 0


@pytest.mark.parametrize(("arguments", "message"), [
    (["--steps=3"], "--steps goes with --profile"),
    (["--trace=x.json"], "--trace goes with --profile"),
    (["--plan", "--profile"], "--plan or --profile? one at a time"),
])  # fmt: skip
def test_arguments_that_do_not_go_together(config, arguments, message):
    done = run(config, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
