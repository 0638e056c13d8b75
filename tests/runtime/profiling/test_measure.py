"""The measurement of this machine: what must hold however fast it is."""

from __future__ import annotations

import platform
import threading
from math import inf

import pytest

from partitioner.costs.machine import Machine
from partitioner.costs.machine_files import load_machine
from runtime.backends.device import processor
from runtime.backends.device.processor import host_memory
from runtime.frontends.cli.command import main as symgraph
from runtime.planning.costs.prices import CostModel
from runtime.profiling.calibration import machine as measure
from runtime.profiling.calibration.machine import (
    machine_file,
    measure_machine,
    measuring_ranks,
)
from runtime.profiling.calibration.pricing import Reach, reach_of
from runtime.schedule.replay import Link
from runtime.transports import ThreadCluster
from symgraph import cpu
from symgraph.app.config import load_config
from symgraph.run import main
from tests.helpers.small_lm import write_config

MEBI = 1 << 20


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(measure, "SECONDS", 0.02)


def measured(ranks: int) -> Machine:
    with ThreadCluster(ranks) as cluster:
        return measure_machine(cluster)


def check_figures(machine: Machine) -> None:
    for device in machine.devices:
        assert 1e6 < device.flops < 1e15
        assert 1e6 < device.bandwidth < 1e14
        assert 0 < device.call < 1
    for link in machine.links.values():
        assert 0 < link.latency < 10
        assert 0 < link.bandwidth < inf


def test_threads_are_equal_devices_of_one_node():
    machine = measured(2)
    check_figures(machine)
    assert machine.contexts == (cpu(0), cpu(1))
    first, second = machine.devices
    assert first.speed == second.speed
    assert first.memory == second.memory == host_memory() // 2 // MEBI * MEBI
    assert list(machine.links) == ["node"]
    assert machine.link(0, 1).latency == machine.links["node"].latency


def test_one_rank_has_no_link():
    machine = measured(1)
    check_figures(machine)
    assert machine.contexts == (cpu(0),)
    assert machine.links == {}


def test_hosts_are_nodes(monkeypatch):
    """Three ranks of which the last says that it is on another host."""
    last = "symgraph-rank-2"
    monkeypatch.setattr(
        platform, "node", lambda: "b" if threading.current_thread().name == last else "a"
    )
    machine = measured(3)
    check_figures(machine)
    assert [d.node for d in machine.devices] == ["a", "a", "b"]
    shares = [host_memory() // ranks // MEBI * MEBI for ranks in (2, 2, 1)]
    assert [d.memory for d in machine.devices] == shares
    assert {*machine.links} == {"node", "network"}
    assert machine.link(0, 1)[:2] == machine.links["node"][:2]
    assert machine.link(0, 2) == machine.link(1, 2)
    assert machine.link(0, 2)[:2] == machine.links["network"][:2]
    sizes, seconds = zip(*machine.links["network"].messages, strict=True)
    assert (sizes[0], sizes[-1]) == (measure.SMALL_MESSAGE, measure.LARGE_MESSAGE)
    assert [*sizes] == sorted(sizes)
    assert [*seconds] == sorted(seconds)
    assert machine.links["node"].messages == ()


def test_the_file_holds_all_of_the_machine(tmp_path):
    machine = measured(2)
    text = machine_file(machine)
    (tmp_path / "m.yaml").write_text(text)
    assert load_machine(str(tmp_path / "m.yaml")) == machine
    assert f"#   host: {platform.node()}\n" in text


@pytest.mark.parametrize(
    ("limits", "memory"),
    [
        ((), None),
        (("max",), None),
        (("", "9" * 20), None),
        (("4096",), 4096),
        (("max", "8192"), 8192),
    ],
)
def test_the_memory_is_that_of_the_container(limits, memory, tmp_path, monkeypatch):
    whole = host_memory()
    paths = [tmp_path / f"limit{i}" for i in range(3)]
    for path, text in zip(paths, limits, strict=False):
        path.write_text(text + "\n")
    monkeypatch.setattr(processor, "CGROUP_LIMITS", paths)
    assert host_memory() == memory or (memory is None and host_memory() >= whole)


def test_as_many_ranks_as_cores():
    with measuring_ranks({}, None) as cluster:
        assert cluster.size == measure.core_count()


def test_links_of_processes_are_measured_between_processes(monkeypatch):
    """Ranks that are threads need none: all prices have the link between two threads."""
    devices = cpu(0), cpu(1)
    with ThreadCluster(2) as cluster:
        assert reach_of(cluster, devices) == Reach()
        monkeypatch.setattr(ThreadCluster, "ranks", (0,))
        reach = reach_of(cluster, devices)
    link = reach.of(CostModel({}, {("cpu", "cpu"): Link(1.0, 1.0)})).link
    assert link == reach.links["cpu", "cpu"]
    assert link.by_receiver
    assert 0 < link.latency < 1


# -- the command line --------------------------------------------------------------------------


def test_measured_file_in_a_config(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["--measure-machine", "machine.yaml"]) == 0
    machine = load_machine("machine.yaml")
    assert machine.contexts == tuple(map(cpu, range(measure.core_count())))
    said = capsys.readouterr()
    assert said.out == f"{machine}\n"
    assert said.err == ""
    config = write_config(tmp_path, "steps: 1")
    assert load_config(str(config), ["machine=machine.yaml"]).machine == "machine.yaml"


@pytest.mark.slow
def test_without_a_file_it_is_printed(tmp_path, capsys):
    assert main(["--measure-machine"]) == 0
    (tmp_path / "m.yaml").write_text(capsys.readouterr().out)
    assert load_machine(str(tmp_path / "m.yaml")).devices[0].context == cpu(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run.yaml", "--measure-machine"],
            "measuring a machine takes devices=[...] and no config; leave out 'run.yaml'",
        ),
        (  # measured all devices and wrote a file of that name
            ["--measure-machine", "devcies=[cpu(0)]"],
            "measuring a machine takes devices=[...] and no config; leave out 'devcies=[cpu(0)]'",
        ),
        (
            ["--measure-machine", "devices=[cpu(0)"],
            "'[cpu(0)' is not a device: write cpu(N) or gpu(N) with N = 0, 1, 2, ..., as in "
            "'cpu(0)'",
        ),
        (
            ["--measure-machine", "README.md/m.yaml"],
            "cannot write the machine file README.md/m.yaml: Not a directory",
        ),
    ],
)
def test_mistakes_are_one_line_and_status_2(arguments, message, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"symgraph: error: {message}\n"


def test_a_config_is_not_written_over(tmp_path, monkeypatch, capsys):
    """`--measure-machine run.yaml` put a machine in the place of the config."""
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, "steps: 1")
    before = config.read_text()
    assert main(["--measure-machine", config.name]) == 2
    assert config.read_text() == before
    assert "would write over config.yaml, which is not a machine file" in capsys.readouterr().err
    assert symgraph(["machine", config.name]) == 2  # ended in an AttributeError
    assert "would write over config.yaml" in capsys.readouterr().err
    for _ in range(2):  # an older machine file is
        assert main(["--measure-machine", "machine.yaml"]) == 0
