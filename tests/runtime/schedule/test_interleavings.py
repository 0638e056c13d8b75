"""One run of the check tells what all interleavings of small programs do; see docs/reliability.md.

The test that is marked slow compares 10,000 programs at three capacities.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from runtime.schedule.instructions import Free, Send
from runtime.schedule.program import Schedule
from runtime.schedule.replay import check
from runtime.schedule.text import parse
from symgraph.core.errors import ScheduleError
from tests.helpers.interleavings import (
    Programs,
    broken,
    fault,
    last_states,
    messages,
    small_programs,
    small_topology,
)
from tests.runtime.schedule.programs import Sketch, sketch

CAPACITIES = (0, 1, None)


def random_programs(seed: int) -> tuple[Sketch, int, Programs]:
    rng = random.Random(seed)
    topology, mbs = small_topology(rng), rng.choice([1, 1, 2])
    programs = small_programs(topology, mbs, rng)
    return topology, mbs, broken(programs, rng) if rng.random() < 0.3 else programs


def said(programs: Programs, topology: Sketch, mbs: int, capacity: int | None) -> str:
    """What the check says: "ends", "hangs" or "faulty"."""
    try:
        check(Schedule.of(programs), topology, mbs, capacity=capacity)
    except ScheduleError as error:
        return "hangs" if str(error).startswith("no rank can continue") else "faulty"
    return "ends"


def compare(seeds: range) -> Counter[str]:
    """Compare the check with all interleavings; the number of programs of each outcome."""
    outcomes = Counter[str]()
    for seed in seeds:
        topology, mbs, programs = random_programs(seed)
        wrong = fault(programs, topology, mbs)
        for capacity in CAPACITIES:
            outcome = "faulty"
            if not wrong:
                last, end = last_states(programs, topology, capacity)
                assert len(last) == 1, "one interleaving would not suffice"
                outcome = "ends" if last == {end} else "hangs"
            case = f"seed {seed}, capacity {capacity}: {wrong}\n{Schedule.of(programs)}"
            assert said(programs, topology, mbs, capacity) == outcome, case
            outcomes[outcome] += 1
    return outcomes


@pytest.mark.slow
def test_check_says_what_all_interleavings_do():
    outcomes = compare(range(300))
    assert min(outcomes[o] for o in ("ends", "hangs", "faulty")) >= 90, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_check_says_what_all_interleavings_of_10_000_programs_do(part):
    outcomes = compare(range(1000 * part, 1000 * (part + 1)))
    print(outcomes)
    assert min(outcomes[o] for o in ("ends", "hangs", "faulty")) >= 300, outcomes


def valid(seeds: range) -> list[tuple[Sketch, int, Programs]]:
    made = map(random_programs, seeds)
    return [(t, mbs, p) for t, mbs, p in made if not fault(p, t, mbs)]


def test_what_ends_without_room_ends_whatever_is_buffered():
    """Siegel and Avrunin (2005): synchronous runs suffice, as no receive has a wildcard."""
    ended = 0
    for topology, _, programs in valid(range(1000, 1150)):
        if sum(map(len, programs)) > 40:  # choices of buffers double the states
            continue
        states = {c: last_states(programs, topology, c)[0] for c in (0, 1, 2, None, "any")}
        end = tuple(map(len, programs))
        if states[0] == {end}:
            ended += 1
            assert all(found == {end} for found in states.values())
        assert states["any"] >= states[0] | states[None]
    assert ended > 20


def waiting_at_once(programs: Programs, topology: Sketch) -> list[list[object]]:
    """Each free directly behind the only message of its body."""
    out = {edge.src: edge.tag for edge in messages(topology)}
    made = []
    for program in programs:
        frees = [i for i in program if isinstance(i, Free) and i.key in out]
        rest = [i for i in program if i not in frees]
        for free in frees:
            rest.insert(rest.index(Send(out[free.key], free.mb)) + 1, free)
        made.append(rest)
    return made


def test_a_send_with_its_wait_is_a_synchronous_send():
    """So the theorem's model, whose sends wait, fits programs that wait when they free."""
    outcomes = Counter[bool]()
    for topology, _, programs in valid(range(2000, 2400)):
        sources = [edge.src for edge in messages(topology)]
        if len({*sources}) < len(sources) or any(e.exchange for e in topology.edges):
            continue
        waiting = waiting_at_once(programs, topology)
        apart, end = last_states(waiting, topology, 0)
        together, _ = last_states(waiting, topology, "blocking")
        assert (apart == {end}) == (together == {end})
        outcomes[apart == {end}] += 1
        if last_states(programs, topology, "blocking")[0] == {end}:  # later waits only help
            assert last_states(programs, topology, 0)[0] == {end}
    assert min(outcomes.values()) >= 10, outcomes


@pytest.mark.parametrize(
    ("programs", "hang"),
    [
        (["0F0 S0.0 R1.0 D0F0 0B0 D0B0", "1F0 S1.0 R0.0 D1F0 1B0 D1B0"], ["blocking"]),
        (["0F0 S0.0 D0F0 R1.0 0B0 D0B0", "1F0 S1.0 D1F0 R0.0 1B0 D1B0"], ["blocking", "any", 0]),
        (
            ["R1.0 0F0 S0.0 D0F0 0B0 D0B0", "R0.0 1F0 S1.0 D1F0 1B0 D1B0"],
            ["blocking", "any", 0, 1, None],
        ),
    ],
)
def test_the_explorer_sees_what_is_plain(programs, hang):
    """Two ranks that send each other a value, and wait for each other or not."""
    topology = sketch([0, 1], "0F 1F 0B 1B", ["a 0F->1B", "b 1F->0B"])
    parsed = [list(program) for program in parse(programs).programs]
    assert fault(parsed, topology, 1) == ""
    for capacity in ("blocking", "any", 0, 1, None):
        last, end = last_states(parsed, topology, capacity)
        assert (last != {end}) == (capacity in hang)
    assert fault([p[1:] for p in parsed], topology, 1).startswith("rank 0: missing")
    assert fault([p[::-1] for p in parsed], topology, 1).startswith("rank 0: ")
