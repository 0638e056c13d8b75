"""Runs over several hosts: namespaces of this machine, with links that are slow or break."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from examples.cluster.__main__ import main
from partitioner.costs.machine_files import load_machine
from tests.helpers.small_lm import write_config
from tests.mpi.launch import LAUNCHER, ROOT, environment, left, needs_mpi

LIMIT = 150.0  # seconds; a run that comes near it hangs
RUN = [sys.executable, "-m", "symgraph.run"]
THREE = ("devices=[cpu(0), cpu(1), cpu(2)]", "group2ctx.decode=cpu(2)")


def why_not() -> str:
    """Say why there can be no namespaces here; "" if there can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    words = ["unshare", "--net", "--uts", "--ipc", "ip", "tuntap", "add", "sg", "mode", "tun"]
    try:
        tried = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


WHY_NOT = why_not()
on_hosts = [
    *needs_mpi,
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]
pytestmark = on_hosts


def start(*words: str | Path, hosts: int = 3, **streams: int) -> subprocess.Popen[str]:
    """Start the script. words: its options, --, and the command line."""
    command = [sys.executable, "-m", "examples.cluster", "--hosts", str(hosts), *map(str, words)]
    env = environment(os.environ)
    return subprocess.Popen(command, cwd=ROOT, env=env, text=True, **streams)


def run(*words: str | Path, hosts: int = 3) -> str:
    """Run the script; return the command's stdout."""
    script = start(*words, hosts=hosts, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = script.communicate(timeout=LIMIT)
    assert script.returncode == 0, out + err
    return out


def mpiexec(*words: str | Path, ranks: int = 3) -> list[str]:
    return ["--", *LAUNCHER, "-n", str(ranks), *map(str, words)]


def loss(text: str) -> float:
    return json.loads(text.splitlines()[-1])["loss"]


def namespaces(of: int) -> list[str]:
    """The hosts that a run of the script has made."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith(f"symgraph-{of}-")]


def test_hosts_compute_the_bits_of_threads(tmp_path):
    """F10: three hosts, 2 ms apart, of whose packets one in a hundred gets lost."""
    config = write_config(tmp_path, "steps: 8, seed: 3")
    words = [*RUN, str(config), *THREE, "--json"]
    threads = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    slow = ["--delay", "2ms", "--bandwidth", "100Mbit", "--loss", "1%"]
    assert loss(run(*slow, *mpiexec(*words))) == loss(threads.stdout)


def test_links_between_hosts_are_measured(tmp_path):
    """F10: no message arrives before the delay, and the file has a table of their sizes."""
    path = tmp_path / "machine.yaml"
    slow = ["--delay", "3ms", "--bandwidth", "800Mbit"]
    run(*slow, *mpiexec(*RUN, "--measure-machine", path, ranks=2), hosts=2)
    machine = load_machine(str(path))
    assert [device.node for device in machine.devices] == ["host1", "host2"]
    assert [*machine.links] == ["network"]
    assert all(seconds >= 0.003 for _, seconds in machine.links["network"].messages)
    assert machine.links["network"].bandwidth <= 1e8


def test_predictions_know_the_links_without_a_machine_file(tmp_path):
    """F10: over a slow link and without `machine:`, 0.9 ms were predicted beside 82."""
    config = write_config(tmp_path, "steps: 8, seed: 3")
    words = [*RUN, config, "--profile", "--steps=3", "--json"]
    found = json.loads(run("--delay", "20ms", *mpiexec(*words, ranks=2), hosts=2).splitlines()[-1])
    trips = 4  # at least: an activation there, a gradient back, two meetings at the end
    assert found["step_seconds"] > 0.020 * trips
    assert found["predicted_step_seconds"] > 0.020 * trips


def test_a_cut_link_ends_all_ranks(tmp_path):
    """F3: a partitioned network ended a run after 300 s only, and mpiexec itself never.

    The host that is cut off can tell nobody, so each rank's words go to a file.
    """
    config = write_config(tmp_path, "steps: 1000000, seed: 3", more="heartbeat: 3\ntimeout: 60\n")
    rank = "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"
    words = " ".join(map(repr, [*RUN, str(config), *THREE]))
    told = f'{words} 2>"{tmp_path}/$r.err"; echo $? >"{tmp_path}/$r.part"'
    each = f'r={rank}; {told}; mv "{tmp_path}/$r.part" "{tmp_path}/$r.status"'
    script = start("--cut", "3@12", *mpiexec("sh", "-c", each), stdout=subprocess.PIPE)
    begin, wanted = time.monotonic(), [tmp_path / f"{rank}.status" for rank in range(3)]
    while not all(path.exists() for path in wanted) and time.monotonic() < begin + LIMIT:
        time.sleep(0.2)
    script.terminate()  # mpiexec waits for a host that it cannot reach
    script.communicate(timeout=LIMIT)
    for path in wanted:
        assert path.read_text().strip() == "1"
        assert "symgraph: error: " in path.with_suffix(".err").read_text()
    assert namespaces(script.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_script_leaves_nothing(number):
    script = start("--", "sh", "-c", "sleep 1000 & echo $!; wait", stdout=subprocess.PIPE)
    assert script.stdout is not None
    sleeper = int(script.stdout.readline())
    script.send_signal(number)
    script.communicate(timeout=LIMIT)
    assert script.returncode == 128 + number
    assert namespaces(script.pid) == []
    assert left([sleeper], 10) == []


def test_hosts_of_a_killed_script_are_removed_by_the_next():
    script = start("--", "sh", "-c", "sleep 1000 & echo $!; wait", stdout=subprocess.PIPE)
    assert script.stdout is not None
    sleeper = int(script.stdout.readline())
    script.kill()
    script.wait(timeout=LIMIT)  # and not until its stdout ends: the sleeper holds that
    script.stdout.close()
    assert len(namespaces(script.pid)) == 3
    run("--", "true", hosts=1)
    assert namespaces(script.pid) == []
    assert left([sleeper], 10) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which command? give it after --"),
        (["--hosts", "0", "--", "true"], "--hosts: '0' is not a whole number of 1 or more"),
        (["--delay", "10 m", "--", "true"], "--delay: expected a figure in s, such as"),
        (["--bandwidth", "0Mbit", "--", "true"], "--bandwidth: nothing passes at 0 bit/s"),
        (["--loss", "200%", "--", "true"], "--loss: expected a share, such as 0.1%"),
        (["--cut", "2", "--", "true"], "--cut: expected a host and seconds, such as 2@20"),
        (["--cut", "3@1", "--", "true"], "--cut: there is no host3, as --hosts is 2"),
    ],
)
def test_wrong_options_are_named(words: Sequence[str], message: str, capsys):
    try:
        status = main(words)
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert message in capsys.readouterr().err
