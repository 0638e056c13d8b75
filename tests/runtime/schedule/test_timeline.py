"""Timelines: figures of hand-made tracks, both bubbles, and merging what single ranks measured."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from partitioner.base.chain import chain
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import Run, Send
from runtime.schedule.lowering.lower import lower
from runtime.schedule.message_costs import Link
from runtime.schedule.replay.simulation import Costs, simulate
from runtime.schedule.text import parse
from runtime.schedule.timeline import EMPTY, Event, Timeline, Track, merge


def track(line: str, *times: tuple[int, int]) -> Track:
    """What one rank did: its program and the start and end of each instruction."""
    start, end = np.array(times, np.int64).reshape(-1, 2).T
    return Track(parse([line]).programs[0], start, end)


MILLI = Fraction(1, 1000)
PAIR = Timeline(
    (
        track(
            "0F0 S0.0 R1.0 0B0 U0",
            (1000, 1200),
            (1210, 1220),
            (1230, 1700),
            (1705, 1900),
            (1901, 1950),
        ),
        track("R0.0 1F0 1B0 S1.0", (1005, 1230), (1235, 1335), (1335, 1635), (1640, 1660)),
    ),
    MILLI,
)


def test_figures():
    assert (PAIR.ranks, PAIR.exact, PAIR.makespan) == (2, Fraction(95, 100), 0.95)
    assert PAIR.ticks == (1000, 1950)
    assert PAIR.busy() == [0.444, 0.4]  # with the update
    assert PAIR.own_spans() == [0.9, 0.4]


def test_bubbles_under_their_two_definitions():
    """Of total, as GPipe and zero-bubble count; of ideal, as Megatron does."""
    assert PAIR.bubble_fraction == pytest.approx(1 - 0.844 / 1.9)
    assert PAIR.bubble_fraction_of_ideal == pytest.approx(1.9 / 0.844 - 1)


@pytest.mark.parametrize(("ranks", "mbs"), [(2, 4), (4, 8), (4, 1), (1, 5), (8, 32)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubbles_of_equal_stages(name, ranks, mbs):
    """N3: (p - 1) / (m + p - 1) of total and (p - 1) / m of ideal."""
    topology = chain(range(ranks))
    schedule = lower(topology, SCHEDULES[name](range(ranks), mbs))
    found = simulate(schedule, topology, Costs(lambda key: 1 + (key.phase == "B")))
    assert found.bubble_fraction == float(Fraction(ranks - 1, mbs + ranks - 1))
    assert found.bubble_fraction_of_ideal == float(Fraction(ranks - 1, mbs))


def test_events_are_in_seconds_after_the_begin():
    assert PAIR.events[0] == Event(0, Run(0, "F", 0), 0.0, 0.2)
    assert PAIR.events[1] == Event(0, Send(0, 0), 0.21, 0.22)
    assert PAIR.events[5].start == 0.005
    assert len(PAIR.events) == 9
    assert PAIR.event(1, 2) == PAIR.events[7] == Event(1, Run(1, "B", 0), 0.335, 0.635)


def test_a_step_may_begin_before_its_first_instruction():
    early = Timeline(PAIR.tracks, PAIR.unit, origin=900)
    assert early.makespan == 1.05
    assert early.events[0].start == 0.1
    assert early.own_spans() == PAIR.own_spans()


def test_a_simulation_begins_with_the_overhead_of_its_first_instruction():
    found = simulate(parse(["0F0 D0F0"]), chain([0]), Costs(lambda key: 4, overhead=3))
    assert found.exact == 10
    assert [(e.start, e.end) for e in found.events] == [(3, 7), (10, 10)]


def test_printed_by_start():
    assert str(PAIR).splitlines()[:4] == [
        "  0.000000   0.200000  rank 0  0F0",
        "  0.005000   0.230000  rank 1  R0.0",
        "  0.210000   0.220000  rank 0  S0.0",
        "  0.230000   0.700000  rank 0  R1.0",
    ]


def test_nothing_at_all():
    none = Timeline((EMPTY, EMPTY), MILLI)
    assert (none.makespan, none.busy(), none.own_spans()) == (0.0, [0.0, 0.0], [0.0, 0.0])
    assert (none.bubble_fraction, none.bubble_fraction_of_ideal) == (0.0, 0.0)
    assert (none.events, str(none)) == ((), "")


def test_merging_what_ranks_measured_for_themselves():
    first = Timeline((PAIR.tracks[0], EMPTY), MILLI)
    second = Timeline((EMPTY, PAIR.tracks[1]), MILLI)
    for merged in (merge([first, second]), merge([second, first])):
        assert merged.tracks == PAIR.tracks
        assert merged.ticks == PAIR.ticks
        assert merged.events == PAIR.events


def test_merging_keeps_the_earliest_begin_and_absent_ranks_empty():
    first = Timeline((PAIR.tracks[0], EMPTY, EMPTY), MILLI, origin=990)
    second = Timeline((EMPTY, PAIR.tracks[1], EMPTY), MILLI)
    merged = merge([second, first])
    assert merged.ticks == (990, 1950)
    assert merged.tracks[2] is EMPTY
    assert merged.busy() == [0.444, 0.4, 0.0]


def test_numbers_of_a_long_simulation_are_rounded_once():
    """A thousand thirds: sums of floats would have drifted."""
    lines = [
        " ".join(f"0F{i} S0.{i} D0F{i}" for i in range(1000)),
        " ".join(f"R0.{i} 1F{i} D1F{i}" for i in range(1000)),
    ]
    costs = Costs(lambda key: Fraction(1, 3), Link(Fraction(1, 7)))
    found = simulate(parse(lines), chain((0, 1)), costs)
    assert found.exact == Fraction(1001, 3) + Fraction(1, 7)
    assert found.events[-1].end == found.makespan == float(Fraction(1001, 3) + Fraction(1, 7))
