"""The measurement of the machine under mpiexec: its ranks become the devices of the file."""

from __future__ import annotations

from partitioner.costs.machine_files import load_machine
from symgraph import cpu
from tests.mpi.launch import launch, needs_mpi

pytestmark = needs_mpi


def test_ranks_are_devices(tmp_path):
    path = tmp_path / "m.yaml"
    ended = launch(3, "symgraph.run", "--measure-machine", path)
    assert (ended.status, ended.stderr) == (0, ""), ended
    machine = load_machine(str(path))
    assert ended.stdout == f"{machine}\n"
    assert machine.contexts == (cpu(0), cpu(1), cpu(2))
    assert len({(d.speed, d.memory) for d in machine.devices}) == 1
    assert list(machine.links) == ["node"]
    assert 0 < machine.links["node"].latency < 10


def test_rank_0_says_what_is_wrong(tmp_path):
    ended = launch(2, "symgraph.run", "--measure-machine", tmp_path)
    assert ended.status == 2
    assert ended.stdout == ""
    assert f"cannot write the machine file {tmp_path}: Is a directory" in ended.stderr


def test_rank_0_measures_for_plans_of_all():
    """Each rank measured for itself, and the session refused what they had planned."""
    ended = launch(2, "tests.mpi.auto")
    assert (ended.status, ended.stderr) == (0, ""), ended
    first, second = (line.split() for line in ended.stdout.splitlines())
    assert first == second
    assert (first[0], first[2]) == ("False", "True")
