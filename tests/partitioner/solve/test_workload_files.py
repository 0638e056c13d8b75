"""Reading workload files: both formats, and one clear line for each way they can be wrong."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest

from partitioner.solve import evaluate, solve
from partitioner.solve.workload_files import read_workload
from symgraph.core.errors import ConfigError

DATA = Path(__file__).parents[1] / "data"
DIAMOND = json.loads((DATA / "diamond.json").read_text(encoding="utf-8"))
PROFILE = (DATA / "lstm_profile.txt").read_text(encoding="utf-8")


def test_a_json_workload_is_read_as_it_stands():
    workload = read_workload(DATA / "diamond.json")
    problem = workload.problem
    assert problem.names == ("10", "3", "7", "5", "8", "1")
    accelerator, cpu = problem.kinds
    assert list(accelerator.times) == [1, 4, 4, 2, 2, 1]
    assert list(cpu.times) == [8, 40, 40, 20, 20, 2]
    assert list(problem.memory) == [10, 30, 30, 10, 10, 10]
    assert problem.colours == (-1, -1, -1, 0, 0, -1)
    assert (accelerator.count, cpu.count, accelerator.memory_limit) == (2, 1, 100.0)
    assert {(t.source, t.targets, t.cost) for t in problem.transfers} == {
        (0, (1, 2), 0.5),
        (1, (3,), 2.0),
        (2, (4,), 0.25),
        (3, (5,), 0.5),
        (4, (5,), 0.5),
    }
    assert workload.titles[0] == "op10"


def test_backward_nodes_follow_their_colours_and_orphans_go_where_they_cost_least():
    problem = read_workload(DATA / "training.json").problem
    assert problem.backward == (False, False, False, True, True, True, True)
    solution = solve(problem)
    at = dict(zip(problem.names, solution.assignment, strict=True))
    assert at["1"] == at["4"]
    assert at["2"] == at["5"]
    assert at["3"] == at["6"]
    # {3, 6} on one device at 9, +0.25 +0.25 for 2 -> 3 and 6 -> 5, 9; the rest is 9.5 and more
    assert solution.optimal
    assert solution.max_load == max(x.total for x in evaluate(problem, solution.assignment))
    assert solution.max_load == pytest.approx(10.0)


def test_limits_given_replace_those_of_the_file():
    workload = read_workload(DATA / "diamond.json", accelerators=4, cpus=0, memory_limit=50.0)
    accelerator, cpu = workload.problem.kinds
    assert (accelerator.count, cpu.count, accelerator.memory_limit) == (4, 0, 50.0)


def changed(tmp_path: Path, change) -> Path:
    """The diamond's file after a change to it."""
    top = copy.deepcopy(DIAMOND)
    change(top)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(top), encoding="utf-8")
    return path


def set_node(i, **fields):
    return lambda top: top["nodes"][i].update(fields)


def set_edge(i, **fields):
    return lambda top: top["edges"][i].update(fields)


BAD = {
    "no maxCPUs": (lambda top: top.pop("maxCPUs"), "the file has no 'maxCPUs'; did you mean"),
    "nodes no list": (lambda top: top.update(nodes={}), "nodes is {}, not a list"),
    "no nodes": (lambda top: top.update(nodes=[]), "nodes is empty"),
    "node a number": (lambda top: top.update(nodes=[1]), r"nodes\[0\] is 1, not an object"),
    "no latency": (lambda top: top["nodes"][1].pop("cpuLatency"), r"nodes\[1\] has no 'cpuLat"),
    "id twice": (set_node(1, id=10), r"nodes\[1\]: id 10 is taken by nodes\[0\]"),
    "id a list": (set_node(1, id=[1]), r"nodes\[1\]: id is \[1\]"),
    "negative": (set_node(0, fpgaLatency=-1), "node 10: fpgaLatency is -1, not a number >= 0"),
    "not a number": (set_node(0, cpuLatency=math.nan), "node 10: cpuLatency is NaN"),
    "text": (set_node(0, size="big"), 'node 10: size is "big", not a number >= 0'),
    "flag": (set_node(0, supportedOnFpga=2), "supportedOnFpga is 2, not true, false, 0 or 1"),
    "colour": (set_node(0, colorClass="red"), 'colorClass is "red", not a whole number'),
    "devices": (lambda top: top.update(maxFPGAs=1.5), "maxFPGAs is 1.5, not a whole number"),
    "unknown end": (set_edge(0, destId=99), r"edges\[0\]: destId 99 is not the id of a node"),
    "to itself": (set_edge(0, destId=10), r"edges\[0\]: node 10 has an edge to itself"),
    "cost": (set_edge(2, cost=None), "edge 3 -> 5: cost is null, not a number >= 0"),
    "two costs": (set_edge(0, cost=0.75), "node 10 has two costs, 0.75 and 0.5"),
    "ring": (set_edge(2, destId=10), "the forward nodes form a cycle: "),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_workload_is_refused_in_one_line(tmp_path, change, message):
    path = changed(tmp_path, change)
    with pytest.raises(ConfigError, match=message) as caught:
        read_workload(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file has no nodes"),
        ("hello\n", "line 1: neither JSON nor a node"),
        ('{"nodes": [', "bad:1: not a workload: not valid JSON at column 12"),
        ("[" * 200_000, "nested too deeply"),
        ("[]", "the file is \\[\\], not an object"),
        ("node1 -- A -- forward_compute_time=1\n", "line 1: node1 has no backward_compute_time"),
        (PROFILE.replace("=2.000", "=two", 1), "line 3: forward_compute_time of node3 is 'two'"),
        (PROFILE + "\tnode1 -- node77\n", "line 18: an edge refers to node77"),
        (PROFILE + "\tnode1\n", "line 18: an edge is"),
        (PROFILE + PROFILE.splitlines()[0], "line 18: node1 is listed twice"),
        (PROFILE + "\tnode8 -- node6\n", "the forward nodes form a cycle: node6 -> node7 -> node8"),
    ],
)
def test_text_that_is_no_workload_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "bad"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        read_workload(path, accelerators=2)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.json: no such workload$"):
        read_workload(tmp_path / "nothing.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="binary:1: not a workload: not UTF-8"):
        read_workload(tmp_path / "binary")


def test_a_profile_gives_forward_and_backward_time_and_both_kinds_of_memory():
    problem = read_workload(DATA / "lstm_profile.txt", accelerators=2).problem
    assert problem.names == tuple(f"node{i}" for i in range(1, 10))
    assert list(problem.kinds[0].times) == pytest.approx([0, 4.4, 2.02, 0, 0, 6, 6.1, 6.3, 9])
    assert list(problem.memory[:3]) == [0, 7200, 7000]
    assert all(t.cost == 0 for t in problem.transfers)
    assert solve(problem).max_load == pytest.approx(18.52)  # up to node7 | node8, node9: 15.3


def test_a_profile_with_a_bandwidth_pays_for_values_and_their_gradients():
    problem = read_workload(DATA / "lstm_profile.txt", accelerators=2, bandwidth=1e6).problem
    costs = {problem.names[t.source]: t.cost for t in problem.transfers}
    assert costs["node7"] == pytest.approx(8.0)  # 4000 bytes at 1e6 a second, there and back, ms
    assert costs["node1"] == 0.0
    with pytest.raises(ConfigError, match="bandwidth is for profiles"):
        read_workload(DATA / "diamond.json", bandwidth=1e9)


def test_a_profile_needs_a_number_of_devices():
    with pytest.raises(ConfigError, match="add --accelerators"):
        read_workload(DATA / "lstm_profile.txt")


def test_backward_times_on_the_wrong_node_are_flagged():
    """In gnmt's published profile an LSTM has 14 ms forward and 0.02 ms backward, and the
    embedding before it has what is missing."""
    notes = read_workload(DATA / "lstm_profile.txt", accelerators=2).notes
    flagged = [note.split()[0] for note in notes if "usual" in note]
    assert flagged == ["node2", "node3"]
    assert any("node1 (Input0) loads data for 50 ms, which is not" in note for note in notes)
    assert any("communication is not counted" in note for note in notes)


def test_a_sound_profile_is_not_flagged(tmp_path):
    sound = PROFILE.replace("backward_compute_time=4.300", "backward_compute_time=0.300")
    sound = sound.replace("backward_compute_time=0.020", "backward_compute_time=4.020")
    (tmp_path / "sound.txt").write_text(sound, encoding="utf-8")
    notes = read_workload(tmp_path / "sound.txt", accelerators=2).notes
    assert not [note for note in notes if "usual" in note]
