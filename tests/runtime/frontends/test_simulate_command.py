"""`python -m runtime simulate`: published figures, files both ways, one line for bad input."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from runtime.frontends.cli.schedule_commands import EXAMPLES, main
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.text import load_csv, text


@pytest.fixture
def simulate(capsys):
    """The figures that a command line gives."""

    def run(line: str) -> dict[str, Any]:
        status = main(["simulate", *shlex.split(line), "--json"])
        out, err = capsys.readouterr()
        assert (status, err) == (0, "")
        figures: dict[str, Any] = json.loads(out.splitlines()[-1])
        return figures

    return run


@pytest.fixture
def refused(capsys):
    """The line that is said about bad input."""

    def run(line: str) -> str:
        status = main(["simulate", *shlex.split(line)])
        out, err = capsys.readouterr()
        assert (status, out) == (2, "")
        assert err.startswith("symgraph: error: ")
        return err.removeprefix("symgraph: error: ").rstrip("\n")

    return run


# -- figures that others published ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "mbs", "one", "zb", "two", "four"),
    [
        (2, 4, 15, 13, 13.5, 12.75),
        (4, 4, 21, 15, 16.5, 14.25),
        (4, 8, 33, 27, 28.5, 26.25),
        (8, 8, 45, 31, 34.5, 29.25),
        (8, 32, 117, 103, 106.5, 101.25),
    ],
)
def test_makespans_without_messages(simulate, ranks, mbs, one, zb, two, four):
    """The survey's oracle table; the times are those of a rank, however many stages it has."""
    size = f"--stages {ranks} --micro-batches {mbs} --forward 1 --backward 2"
    assert simulate(f"--schedule 1f1b {size}")["makespan"] == one
    assert simulate(f"--schedule gpipe {size}")["makespan"] == one
    assert simulate(f"--schedule zb-h1 {size}")["makespan"] == zb
    assert simulate(f"--schedule interleaved --chunks 2 {size}")["makespan"] == two
    assert simulate(f"--schedule interleaved --chunks 4 {size}")["makespan"] == four


@pytest.mark.parametrize(
    ("latency", "gpipe", "one", "two", "zb"),
    [
        ("0", 33, 33, 28.5, 27),
        ("0.1", 33.6, 34.6, 29.9, 28.2),
        ("1/4", 34.5, 37, 32, 30),
        ("0.5", 36, 41, 35.5, 33),
    ],
)
def test_makespans_with_latency(simulate, latency, gpipe, one, two, zb):
    """Finding 4: 1F1B is not always as good as GPipe. The figures are exact, not near."""
    size = f"--stages 4 --micro-batches 8 --latency {latency}"
    for name, makespan in {"gpipe": gpipe, "1f1b": one, "interleaved": two, "zb-h1": zb}.items():
        assert simulate(f"--schedule {name} {size}")["makespan"] == makespan


@pytest.mark.parametrize(("steps", "overhead", "time"), [(6, 2, 104), (15, 10, 175), (60, 0, 240)])
def test_wavefront(simulate, steps, overhead, time):
    """(T / k + p - 1) (k c + a) for T = 60, p = 4, c = 1."""
    found = simulate(
        "--schedule wavefront --stages 4 --micro-batches 1 --forward-only "
        f"--time-steps 60 --time-segment {steps} --overhead {overhead}"
    )
    assert found["makespan"] == time == (60 / steps + 3) * (steps + overhead)
    assert found["time_segments"] == 60 // steps
    assert [t["dispatch"] for t in found["breakdown"]] == [60 // steps * overhead] * 4


def test_both_bubbles_and_that_of_the_longest_own_span(simulate):
    found = simulate("--schedule 1f1b --stages 4 --micro-batches 8")
    assert found["bubble_fraction_of_total"] == pytest.approx(3 / 11)
    assert found["bubble_fraction_of_ideal"] == pytest.approx(3 / 8)
    assert found["ideal"] == 24
    assert found["own_spans"] == [33, 30, 27, 24]
    zb_v = simulate("--schedule zb-v --stages 4 --micro-batches 8")
    assert zb_v["bubble_fraction_of_longest_own_span"] == pytest.approx(0, abs=1e-12)
    assert zb_v["bubble_fraction_of_total"] > 0


def test_where_the_time_goes(simulate):
    found = simulate("--schedule 1f1b --stages 4 --micro-batches 8 --latency 0.25")
    assert found["peak_in_flight"] == [4, 3, 2, 1]
    for time in found["breakdown"]:
        assert sum(time.values()) == pytest.approx(37)
        assert time["compute"] == 24
    assert [t["warm_up"] for t in found["breakdown"]] == [0, 1.25, 2.5, 3.75]
    assert found["critical_path"][:4] == ["0F0", "1F0", "2F0", "3F0"]
    assert found["critical_path"][-1] == "0B7"


# -- options -------------------------------------------------------------------------------------


def test_keys_of_json(simulate):
    """They are stable: others read them."""
    found = simulate("--schedule zb-v --stages 2 --micro-batches 4")
    assert {k: found[k] for k in ("schedule", "ranks", "stages", "placement", "micro_batches")} == {
        "schedule": "zb-v",
        "ranks": 2,
        "stages": 4,
        "placement": [0, 1, 1, 0],
        "micro_batches": 4,
    }
    assert set(found) >= {
        "makespan",
        "bubble_fraction_of_total",
        "bubble_fraction_of_ideal",
        "peak_in_flight",
        "own_spans",
        "breakdown",
        "time_steps",
        "time_segment",
        "time_segments",
    }
    assert set(found["breakdown"][0]) == {
        "compute",
        "communication",
        "warm_up",
        "drain",
        "imbalance",
        "dispatch",
    }


def test_every_schedule_runs_as_it_is(simulate):
    for name in SCHEDULES:
        for mbs in (1, 3, 8):
            found = simulate(f"--schedule {name} --stages 3 --micro-batches {mbs}")
            assert found["busy"] == pytest.approx([3 * mbs] * 3)


def test_split_backward(simulate):
    """--backward is that of inputs alone once --weight is given; 1F1B then runs I and W in turn."""
    size = "--schedule 1f1b --stages 4 --micro-batches 8"
    assert simulate(f"{size} --backward 1 --weight 1")["makespan"] < 33  # I is sent before W
    assert simulate(f"{size} --weight 1")["busy"] == [24] * 4
    assert simulate(f"{size} --backward 2 --weight 0")["makespan"] == 33


def test_stages_share_the_time_of_their_rank(simulate):
    found = simulate("--schedule gpipe --placement 0,1,1,0 --micro-batches 1 --forward 4")
    assert found["makespan"] == 24
    uneven = simulate("--schedule gpipe --placement 0,0,1 --micro-batches 1 --forward-only")
    assert (uneven["makespan"], uneven["busy"]) == (2, [1, 1])


def test_the_last_segment_may_be_shorter(simulate):
    """7 steps in threes: 3, 3, 1; a rank's runs take the time of all steps, and the overhead."""
    found = simulate(
        "--schedule wavefront --stages 2 --micro-batches 1 --forward-only --forward 1/2 "
        "--time-steps 7 --time-segment 3 --overhead 1"
    )
    assert found["time_segments"] == 3
    assert found["busy"] == [3.5 + 3] * 2
    assert found["makespan"] == 2.5 * 3 + 1.5  # the second rank begins a segment later


def test_messages_take_their_bytes(simulate):
    size = "--schedule gpipe --stages 2 --micro-batches 1"
    assert simulate(f"{size} --bandwidth 4 --message-bytes 8 --latency 1")["makespan"] == 6 + 2 * 3


@pytest.mark.slow
@pytest.mark.parametrize(("latency", "makespan"), [("0", 33), ("1/4", "34.5"), ("0.5", 36)])
def test_auto_is_as_short_as_can_be_and_says_so(simulate, capsys, latency, makespan):
    """Finding 4 again: at every latency the best of the named ones, and proved."""
    line = f"--schedule auto --stages 4 --micro-batches 8 --latency {latency}"
    assert simulate(line)["makespan"] == float(makespan)
    assert main(["simulate", *shlex.split(line)]) == 0
    said = capsys.readouterr().out
    assert f"no order of these runs takes less than {makespan}, and this one is not longer" in said


def test_auto_of_time_segments_is_the_wavefront(simulate):
    size = "--stages 3 --micro-batches 1 --time-steps 12 --time-segment 3 --forward-only"
    wavefront = simulate(f"--schedule wavefront {size}")["makespan"]
    assert simulate(f"--schedule auto {size}")["makespan"] == wavefront == 18


def test_order_of_gpipe(simulate):
    size = "--schedule gpipe --stages 2 --micro-batches 3"
    assert simulate(f"{size} --order forward")["critical_path"][-1] == "0B2"
    assert simulate(size)["critical_path"][-1] == "0B0"


# -- what is printed and written -----------------------------------------------------------------


def test_report(capsys):
    assert main(shlex.split("simulate --schedule zb-h1 --stages 2 --micro-batches 4")) == 0
    report = capsys.readouterr().out
    for line in (
        "zb-h1: 4 micro-batches, 2 stages on 2 ranks; per micro-batch: F 1, I 1, W 1",
        "without --weight, I and W take half of the backward each",
        "proved: complete and in order; cannot hang, even with links that hold no message",
        "makespan 13 from the first start to the last end",
        "bubble of total 7.69% (makespan - ideal) / makespan, as GPipe counts",
        "bubble of ideal 8.33% (makespan - ideal) / ideal, as Megatron-LM counts",
        "rank in flight compute communication warm-up drain imbalance dispatch",
    ):
        assert line in [" ".join(said.split()) for said in report.splitlines()]
    assert "\n\n  rank 0  F 00000" in report
    assert re.search(r"\ncritical path: 0F0 .*W3 \(\d+ runs: 13, messages and waiting: 0", report)


def test_no_chart_of_many_ranks_or_when_told(capsys):
    assert main(shlex.split("simulate --stages 65 --micro-batches 2")) == 0
    out = capsys.readouterr().out
    assert "no chart of 65 ranks and 260 runs" in out
    assert "... 49 more" in out
    assert main(shlex.split("simulate --stages 2 --micro-batches 2 --no-chart")) == 0
    assert "rank 0" not in capsys.readouterr().out


@pytest.mark.parametrize("name", SCHEDULES)
def test_written_schedules_run_as_the_named_one(simulate, tmp_path, name):
    """A whole program, and the runs alone as PyTorch has them, with messages and segments too."""
    times = "--latency 1/8 --time-steps 4 --time-segment 2"
    whole, runs = tmp_path / "whole.txt", tmp_path / "runs.csv"
    want = simulate(
        f"--schedule {name} --stages 2 --micro-batches 4 {times} --dump {whole} --csv {runs}"
    )
    for path in (whole, runs):
        found = simulate(f"--schedule {path} {times}")
        assert {k: v for k, v in found.items() if k != "schedule"} == {
            k: v for k, v in want.items() if k != "schedule"
        }
    assert "S0.0" in whole.read_text()
    assert "0F0.1" in whole.read_text()


def test_csv_of_the_runs_that_were_simulated(simulate, tmp_path):
    path = tmp_path / "f.csv"
    simulate(f"--schedule 1f1b --stages 2 --micro-batches 2 --forward-only --csv {path}")
    assert [text(p) for p in load_csv(path)] == ["0F0 0F1", "1F0 1F1"]


def test_pictures(simulate, tmp_path):
    simulate(
        f"--schedule dualpipe-v --stages 2 --micro-batches 4 --svg {tmp_path}/a.svg "
        f"--trace {tmp_path}/a.json"
    )
    picture = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert picture[0].text.startswith("dualpipe-v: 4 micro-batches, 4 stages on 2 ranks")
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    assert {e["name"] for e in events} >= {"0F0", "3I0", "message"}


# -- schedules of the user -----------------------------------------------------------------------

CROSSED = """
0F0 S0.0 0F1 S0.1 D0F0 D0F1 R1.0 0B0 D0B0 R1.1 0B1 D0B1
R0.0 1F0 D1F0 1B0 S1.0 D1B0 R0.1 1F1 D1F1 1B1 S1.1 D1B1
"""


def test_a_schedule_that_would_hang(simulate, refused, capsys, tmp_path):
    """It goes through with buffered messages, which is said; without them every rank stands."""
    path = tmp_path / "crossed.txt"
    path.write_text(CROSSED)
    said = refused(f"--schedule {path} --capacity 0")
    assert "rank 0" in said
    assert "rank 1" in said
    assert main(["simulate", "--schedule", str(path)]) == 0
    assert "with --capacity 0 it would hang" in capsys.readouterr().out
    assert simulate(f"--schedule {path} --capacity 1")["makespan"] == 9


def test_a_schedule_that_breaks_an_order(refused, tmp_path):
    path = tmp_path / "wrong.csv"
    path.write_text("0F0,0B0\n1B0,1F0\n")
    said = refused(f"--schedule {path}")
    assert "rank 1" in said
    assert "1B0" in said


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--schedule 1f1 --stages 2 --micro-batches 2", "no schedule '1f1'; did you mean '1f1b'?"),
        ("--schedule aut --stages 2 --micro-batches 2", "no schedule 'aut'; did you mean 'auto'?"),
        ("--schedule none.csv", "none.csv: no such schedule file"),
        ("--schedule a/b", "a/b: no such schedule file"),
        ("--stages 2", "--micro-batches is missing"),
        ("--micro-batches 2", "--stages is missing"),
        ("--stages 0", "argument --stages: '0' is not a whole number of 1 or more"),
        ("--stages 2 --latency -1", "argument --latency: -1 must not be negative"),
        ("--stages 2 --forward 1/0", "argument --forward: '1/0' is not a number; write it like 2"),
        ("--stages 2 --bandwidth 0", "argument --bandwidth: 0 must be more than 0"),
        ("--stages 2 --micro-batches 2 --bandwidth 9", "--bandwidth and --message-bytes go"),
        ("--capacity all", "argument --capacity: 'all' is not a whole number"),
        ("--placement 0,x", "argument --placement: '0,x' is not a list of ranks"),
        ("--placement 0,2 --micro-batches 2", "rank 1 has no stage, but rank 2 has"),
        ("--placement 0,1 --stages 2 --micro-batches 2", "--placement already implies --stages"),
        ("--stages 2 --micro-batches 2 --order forward", "--order is for gpipe only, not for 1f1b"),
        ("--stages 2 --micro-batches 2 --forward-only --weight 1", "no times of --forward-only"),
        ("--stages 2 --micro-batches 2 --capacity x", "'x' is not a whole number of 1 or more, 0"),
        ("--stages 2 --micro-batches 2 --time-segment 2", "--time-segment 2 needs --time-steps"),
        (
            "--stages 2 --micro-batches 2 --time-steps 1 --time-segment 2",
            "--time-segment 2 needs --time-steps of 2 or more, not 1",
        ),
        (
            "--stages 2 --micro-batches 2 --svg README.md/a.svg",
            "cannot write --svg README.md/a.svg: Not a directory",
        ),
        ("--stages 2 --micro-batches 60000 --svg a.svg", "240,000 runs are too many to draw"),
        ("--bogus", "unrecognized arguments: --bogus"),
        ("--stages 2 --forward 1e400", "--forward: 1e400 is not between 1e-30 and 1e30; choose"),
        ("--stages 2 --latency 1e-999999999999", "--latency: 1e-999999999999 is not between"),
        (f"--stages 2 --forward 1/{10**40}", "is not between 1e-30 and 1e30; choose another unit"),
        ("--stages 1000000 --micro-batches 2", "1,000,000 stages: too many to simulate (at most"),
        ("--stages 2000000000 --chunks 2 --micro-batches 2", "4,000,000,000 stages: too many"),
        ("--stages 2 --micro-batches 2000000000", "2,000,000,000 micro-batches: too many"),
        ("--stages 9999 --micro-batches 9999", "99,980,001 forward runs: too many to simulate"),
        (
            "--stages 2 --micro-batches 2 --time-steps 1000000 --time-segment 2",
            "2 stages of 500,000 time segments each: too many to simulate (at most 20,000)",
        ),
    ],
)
def test_bad_input_is_one_line(refused, line, why):
    said = refused(line)
    assert why in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--stages 3", "--stages 3, but FILE has 2 ranks; leave the option out"),
        ("--micro-batches 1", "--micro-batches 1, but FILE has 2 micro-batches"),
        ("--chunks 2", "--chunks 2, but FILE has 1 stages per rank"),
        ("--placement 1,0", "--placement 1, 0, but FILE has 0, 1 as the ranks of its stages"),
        ("--order reverse", "--order is for gpipe only; FILE has its own order"),
        ("--forward-only", "FILE holds messages, so --forward-only and --weight cannot change it"),
        ("--weight 1", "FILE holds messages, so --forward-only and --weight cannot change it"),
        ("--time-steps 4 --time-segment 2", "makes 2 segments, but FILE has 1"),
    ],
)
def test_options_that_a_file_contradicts(refused, tmp_path, line, why):
    path = tmp_path / "crossed.txt"
    path.write_text(CROSSED)
    assert why.replace("FILE", str(path)) in refused(f"--schedule {path} {line}")


# -- help ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_help_and_wrong_commands_from_the_shell():
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "runtime"]
    shown = subprocess.run(
        [*command, "simulate", "--help"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    assert all(name in shown for name in SCHEDULES)
    assert EXAMPLES in shown
    wrong = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert len(wrong.stderr.splitlines()) == 1


def test_a_reader_that_has_seen_enough():
    """As `| head` does: the pipe is closed before all is written."""
    command = [sys.executable, "-m", "runtime", "simulate", "--stages", "2", "--micro-batches", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], **pipes) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_the_examples_of_the_help_say_the_truth(simulate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = EXAMPLES.replace("\\\n", "")
    lines = re.findall(r"symgraph simulate (.*)\n(?: {8}([0-9.]+[0-9]))?", shown)
    assert [claim for _, claim in lines] == ["33", "28.5", "27", "104", "", ""]
    for line, claim in lines:
        makespan = simulate(line)["makespan"]
        assert not claim or makespan == float(claim)
    size = "--stages 4 --micro-batches 8 --latency 0.25"
    assert simulate(f"--schedule 1f1b {size}")["makespan"] == 37
    assert simulate(f"--schedule gpipe {size}")["makespan"] == 34.5
    wave = lines[3][0].replace("--time-segment 6", "")
    assert simulate(wave)["makespan"] == 248
