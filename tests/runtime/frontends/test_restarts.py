"""What a restart changes: the devices that take part, and the config that they run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from runtime.frontends.cli.restarts import (
    Blame,
    DeviceChoice,
    blame,
    plan_overrides,
    read_records,
)
from runtime.frontends.cli.supervisor import Attempt, Supervisor
from runtime.training.data.table import load_data
from runtime.training.job import plan_facts, prepare
from runtime.training.trainer import Trainer
from runtime.transports import make_cluster
from symgraph.app.config import RestartsConfig, load_config
from symgraph.core.errors import ConfigError
from tests.helpers.small_lm import write_config

THREE = ("cpu(0)", "cpu(1)", "cpu(2)")
TRAIN = "optimizer: adam, learning_rate: 0.02, steps: 3, clip_global_norm: 1.0"


def record(folder: Path, rank: int, failed: int, message: str = "boom", where: str = "") -> None:
    failure = {"rank": failed, "where": where, "message": message, "status": 1}
    facts = {"rank": rank, "failure": failure, "devices": THREE, "clock": {"unix": 5e9}}
    (folder / f"rank-{rank}.json").write_text(json.dumps(facts))


def test_the_records_of_survivors_name_the_device_of_the_rank_that_was_lost(tmp_path):
    record(tmp_path, 0, 1, "its process was lost")
    record(tmp_path, 2, 1, "its process was lost")
    found = blame(read_records(tmp_path))
    assert (found.rank, found.device, found.told) == (1, "cpu(1)", False)
    assert found.reason == "rank 1 (cpu(1)) failed: its process was lost"


def test_a_rank_that_tells_of_its_own_error_is_believed_first(tmp_path):
    """Rank 0 heard that rank 2 was lost, but that had ended because of its own error."""
    record(tmp_path, 0, 2, "its process was lost")
    record(tmp_path, 2, 2, "ValueError: x", where="2F0")
    found = blame(read_records(tmp_path))
    assert found.reason == "rank 2 (cpu(2)) failed at 2F0: ValueError: x"
    assert found.told


def test_damaged_records_and_those_that_were_asked_for_blame_nobody(tmp_path):
    (tmp_path / "rank-0.json").write_text('{"failure": {"rank"')
    (tmp_path / "rank-1.json").write_text("[]")
    (tmp_path / "rank-2.json").write_text('{"failure": null}')
    assert blame(read_records(tmp_path)) is None


def test_a_device_that_failed_is_left_out_once():
    choice = DeviceChoice(THREE)
    assert choice.next("cpu(1)") == ("cpu(0)", "cpu(2)")
    assert choice.next("cpu(2)") == ("cpu(0)", "cpu(1)")
    assert choice.next("") == THREE


def test_a_device_that_fails_whenever_it_comes_back_is_left_out_for_longer_and_longer():
    choice, attempts = DeviceChoice(THREE), []
    blamed = "cpu(1)"
    for _ in range(18):
        devices = choice.next(blamed)
        attempts.append(len(devices))
        blamed = "cpu(1)" if "cpu(1)" in devices else ""
    assert attempts == [2, 3, 2, 2, 3, 2, 2, 2, 2, 3, *[2] * 8]


def test_a_device_that_held_out_after_coming_back_starts_anew():
    choice = DeviceChoice(THREE)
    assert choice.next("cpu(1)") == ("cpu(0)", "cpu(2)")
    assert choice.next("") == THREE
    assert choice.next("cpu(0)") == ("cpu(1)", "cpu(2)")  # cpu(1) held out
    assert choice.next("cpu(1)") == ("cpu(0)", "cpu(2)")
    assert choice.next("") == THREE


def test_the_only_device_is_not_left_out():
    choice = DeviceChoice(["cpu(0)"])
    assert choice.next("cpu(0)") == ("cpu(0)",)


# -- bits ------------------------------------------------------------------------------------------


def trained(path: Path, overrides: Sequence[str]) -> tuple[dict[str, np.ndarray], dict]:
    """The weights after a run on threads, and what it planned."""
    config = load_config(str(path), overrides)
    with make_cluster("threads", len(config.devices)) as cluster:
        job = prepare(config)
        trainer = Trainer(job, cluster, load_data(config))
        trainer.fit()
        return trainer.training.parameters(), plan_facts(job)


PLACED = ("devices=[cpu(0), cpu(1), cpu(2)]", "pipeline.micro_batches=3")
CASES = {
    # A product with the first state, which needs nothing of other groups, was alone in an early
    # stage if its device had one: so a bias' gradient was summed in another order.
    "back and forth": ["group2ctx={embed: cpu(0), layer0: cpu(1), layer1: cpu(0), decode: cpu(2)}"],
    "groups": ["group2ctx={embed: cpu(0), layer0: cpu(0), layer1: cpu(1), decode: cpu(2)}"],
    "shards": [
        "group2ctx={embed: cpu(0), layer0: cpu(0), layer1: cpu(1), "
        "decode: [cpu(0), cpu(1), cpu(2)]}",
        "partition.shards={decode: devices}",
    ],
    "replicas": [
        "group2ctx={embed: cpu(0), layer0: [cpu(1), cpu(2)], layer1: cpu(1), decode: cpu(2)}"
    ],
    "strategy": ["group2ctx={}", "partition.strategy=chain"],
    "segments": [
        "group2ctx={embed: cpu(0), layer0: cpu(0), layer1: cpu(1), decode: cpu(2)}",
        "pipeline.time_segment=auto",
        "pipeline.schedule=auto",
    ],
    "split": ["group2ctx={}", "partition.strategy=auto", "pipeline.schedule=auto"],
    "recompute": [
        "group2ctx={embed: cpu(0), layer0: cpu(0), layer1: cpu(1), decode: cpu(2)}",
        "pipeline.recompute=[0, 1]",
    ],
    "schedule": [
        "group2ctx={}",
        "partition.strategy=uniform",
        "pipeline.schedule=gpipe",
        "pipeline.order=forward",
    ],
}


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return write_config(tmp_path_factory.mktemp("restarts"), TRAIN)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "missing"), [*zip(CASES, cycle(THREE), strict=False)])
def test_without_any_one_device_the_bits_are_the_same(case, missing, path):
    overrides = [*PLACED, *CASES[case]]
    whole, facts = trained(path, overrides)
    devices = [d for d in THREE if d != missing]
    changes = plan_overrides(load_config(str(path), overrides), devices, facts)
    weights, _ = trained(path, [*overrides, *changes])
    assert weights.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(weights[name], array, err_msg=name)


@pytest.mark.slow
def test_a_grid_keeps_its_rows(tmp_path):
    path = write_config(tmp_path, TRAIN)
    overrides = ["devices=[cpu(0), cpu(1), cpu(2), cpu(3)]", "partition.data_axis=2"]
    overrides.append("pipeline.micro_batches=3")
    whole, facts = trained(path, overrides)
    config = load_config(str(path), overrides)
    changes = plan_overrides(config, ["cpu(0)", "cpu(2)", "cpu(3)"], facts)
    assert 'devices=["cpu(0)", "cpu(2)"]' in changes
    weights, _ = trained(path, [*overrides, *changes])
    for name, array in whole.items():
        np.testing.assert_array_equal(weights[name], array, err_msg=name)
    with pytest.raises(ConfigError, match=r"2 rows need 2 devices, but only cpu\(3\) remains"):
        plan_overrides(config, ["cpu(3)"], facts)


def test_a_launcher_starts_as_many_ranks_as_a_grid_has_devices(tmp_path):
    """It started 3 ranks for 2 devices, after which the run was over: bad input."""
    words = ["devices=[cpu(0), cpu(1), cpu(2), cpu(3)]", "partition.data_axis=2"]
    words.append(f"checkpoint.directory={tmp_path}")
    config = load_config(str(write_config(tmp_path, TRAIN)), words)
    settings = RestartsConfig(launcher="echo -n {ranks}")
    supervisor = Supervisor(config, settings, lambda overrides: [*overrides])
    devices = supervisor._next_devices(
        Attempt(1, config.devices, 0.0), Blame("lost", "lost", 1, "cpu(1)")
    )
    assert devices == ("cpu(0)", "cpu(2)")
    assert supervisor._words(devices)[:3] == ["echo", "-n", "2"]
    supervisor._server.close()


def test_a_config_that_needs_all_devices_takes_them_back(tmp_path, monkeypatch):
    """A pin to the device that was left out was bad input, which ended the run for good."""
    words = ["devices=[cpu(0), cpu(1), cpu(2)]", f"checkpoint.directory={tmp_path}"]
    config = load_config(str(write_config(tmp_path, TRAIN)), words)
    flight = tmp_path / "flight"
    flight.mkdir()
    attempts = []

    def command(overrides):
        """Fail on rank 1; then be bad input; then succeed."""
        attempts.append(any(word.startswith("devices=") for word in overrides))
        if len(attempts) == 1:
            record(tmp_path, 0, 1, "its process was lost")
            return ["sh", "-c", f"mv {tmp_path}/rank-0.json {flight}; exit 1"]
        return ["sh", "-c", f"exit {2 if attempts[-1] else 0}"]

    monkeypatch.setattr("signal.signal", lambda *_: None)
    supervisor = Supervisor(config, RestartsConfig(count=3), command)
    status = supervisor.run(capture=False)
    supervisor._server.close()
    assert (status, attempts) == (0, [False, True, False])


def test_a_grid_that_auto_chose_keeps_its_rows(tmp_path):
    words = ["devices=[cpu(0), cpu(1), cpu(2), cpu(3)]", *CASES["split"]]
    config = load_config(str(write_config(tmp_path, TRAIN)), words)
    facts = {"data_axis": 2, "split": {"cpu(0)": ["cpu(0)", "cpu(2)"]}, "shards": {}}
    assert plan_overrides(config, config.devices, facts) == ["partition.data_axis=2"]
    changes = plan_overrides(config, ["cpu(0)", "cpu(1)", "cpu(3)"], facts)
    assert {'devices=["cpu(0)", "cpu(1)"]', "partition.data_axis=2", "group2ctx={}"} <= {*changes}
