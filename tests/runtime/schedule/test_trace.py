"""Trace files: what a viewer would find in them."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from runtime.schedule.instructions import Run
from runtime.schedule.timeline import EMPTY, Timeline
from runtime.schedule.views.trace import MESSAGES, RUNS, Shown, shown_events, write_trace
from tests.runtime.schedule.test_draw import TWO, timed


def of_kind(timeline: Timeline, kind: str) -> list[dict[str, Any]]:
    return [event for event in shown_events(Shown(timeline)) if event["ph"] == kind]


def test_files_are_json_as_viewers_read_it(tmp_path):
    write_trace(TWO, tmp_path / "trace.json")
    content = json.loads((tmp_path / "trace.json").read_text())
    assert content["traceEvents"] == list(shown_events(Shown(TWO)))
    write_trace(Timeline((EMPTY,), Fraction(1)), tmp_path / "empty.json")
    assert len(json.loads((tmp_path / "empty.json").read_text())["traceEvents"]) == 4


def test_every_instruction_is_a_slice_of_its_ranks_process():
    slices = of_kind(TWO, "X")
    found = [(e["pid"], e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in slices]
    assert found == [(rank, str(i), start, end) for rank, i, start, end in TWO.events]
    rows = {e["name"]: e["tid"] for e in slices}
    assert [rows[i] for i in ("0F0", "U0", "S0.0", "R1.0", "D0F0")] == [RUNS] * 2 + [MESSAGES] * 3
    run = next(e for e in slices if e["name"] == "1B0")
    assert run["cat"] == "backward"
    assert run["args"] == {"stage": 1, "micro-batch": 0, "segment": 0}


def test_ranks_and_rows_have_names():
    names = {(e["name"], e["pid"], e["tid"]): e["args"] for e in of_kind(TWO, "M")}
    assert names["process_name", 1, 0] == {"name": "rank 1"}
    assert names["thread_name", 1, RUNS] == {"name": "runs"}
    assert names["thread_name", 0, MESSAGES] == {"name": "messages"}


def test_slices_of_a_row_do_not_overlap():
    for rank in range(2):
        for row in (RUNS, MESSAGES):
            own = [e for e in of_kind(TWO, "X") if (e["pid"], e["tid"]) == (rank, row)]
            assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(own))


def enclosing(timeline: Timeline, event: dict[str, Any]) -> str:
    """The run in whose slice an arrow ends, well inside of it."""
    return next(
        str(i)
        for rank, i, start, end in timeline.events
        if rank == event["pid"] and isinstance(i, Run) and start * 1e6 < event["ts"] < end * 1e6
    )


def test_arrows_lead_from_the_run_that_sends_to_the_run_that_waited():
    leave = {e["id"]: enclosing(TWO, e) for e in of_kind(TWO, "s")}
    arrive = {e["id"]: enclosing(TWO, e) for e in of_kind(TWO, "f")}
    assert all(isinstance(i, int) for i in leave)  # Perfetto reads other ids as hexadecimal
    assert {(leave[i], arrive[i]) for i in leave} == {
        ("0F0", "1F0"),
        ("0F1", "1F1"),
        ("1B0", "0B0"),
        ("1B1", "0B1"),
    }
    assert len(leave) == len(arrive) == 4


def test_all_kinds_of_instructions_and_other_ranks():
    timeline = timed("0F0@10-20 C@20-30 U0@30-31", "", unit=Fraction(1, 1000))
    slices = of_kind(timeline, "X")
    assert [(e["name"], e["cat"]) for e in slices] == [
        ("0F0", "forward"),
        ("C", "reduction"),
        ("U0", "update"),
    ]
    assert [e["ts"] for e in slices] == pytest.approx([0, 10_000, 20_000])  # from the begin
