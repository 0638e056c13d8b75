"""The check of random schedules: valid ones pass, one thing wrong is refused, hangs are found."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from runtime.schedule.instructions import Collective, Free, Instruction, Recv, Run, Send, Update
from runtime.schedule.lowering.lower import lower
from runtime.schedule.program import Schedule
from runtime.schedule.replay import check
from symgraph.core.errors import ScheduleError
from tests.runtime.schedule.programs import Sketch, random_lists, random_topology


def valid(rng: random.Random) -> tuple[Sketch, int, Schedule]:
    """A random topology, a number of micro-batches and a schedule that ends at any capacity."""
    topology, mbs = random_topology(rng), rng.randint(1, 4)
    trained = {key.stage for key in topology.bodies if key.phase in "BW"}
    update = len(trained) > 1 and rng.random() < 0.7
    return topology, mbs, lower(topology, random_lists(topology, mbs, rng), update=update)


@pytest.mark.parametrize("seed", range(60))
def test_random_schedules_come_to_their_end(seed):
    topology, mbs, schedule = valid(random.Random(seed))
    for capacity in (0, 1, 2, None):
        check(schedule, topology, mbs, capacity=capacity)


def assert_refused(schedule: Schedule, topology: Sketch, mbs: int, what: str) -> None:
    try:
        check(schedule, topology, mbs)
    except ScheduleError:
        return
    pytest.fail(f"not refused: {what}\n{schedule}")


def changed(
    programs: list[list[Instruction]], topology: Sketch, rng: random.Random
) -> Iterator[tuple[str, list[list[Instruction]]]]:
    """The programs with one thing wrong, in every way for every instruction; what it is."""
    for rank, program in enumerate(programs):
        for step, now in enumerate(program):
            rest = program[:step] + program[step + 1 :]
            again = rng.randrange(len(program) + 1)
            other = rng.choice([r for r in range(len(programs)) if r != rank])
            place = rng.randrange(len(programs[other]) + 1)
            new = {
                "drop": {rank: rest},
                "twice": {rank: [*program[:again], now, *program[again:]]},
                "move": {rank: rest, other: programs[other][:]},
            }
            new["move"][other].insert(place, now)
            if isinstance(now, Update) and not _trained(now.stage, topology):
                del new["drop"]  # nobody misses it
            if step + 1 < len(program) and _depends(program[step + 1], now, topology):
                swapped = [*program[:step], program[step + 1], now, *program[step + 2 :]]
                new["swap"] = {rank: swapped}
            for what, these in new.items():
                yield (
                    f"{what} {now} of rank {rank}",
                    [these.get(r, p) for r, p in enumerate(programs)],
                )


def _trained(stage: int, topology: Sketch) -> bool:
    return any(key.stage == stage and key.phase in "BW" for key in topology.bodies)


def _depends(later: Instruction, now: Instruction, topology: Sketch) -> bool:
    """Whether two neighbours of a program must stand in this order."""
    match now, later:
        case (Send(), Send()) | (Recv(), Recv()):
            ends = [
                (topology.rank_of[e.src.stage], topology.rank_of[e.dst.stage])
                for e in (topology.edges[now.tag], topology.edges[later.tag])
            ]
            return ends[0] == ends[1]
        case Collective(), Update():
            return True
        case Free(), Free():
            return (now.stage, now.mb) == (later.stage, later.mb)
        case Run(), Send():
            return now.mb == later.mb and topology.edges[later.tag].src == now.key
        case Run(), Run():
            return now.mb == later.mb and now.key in topology.needs(later.key)
        case Run(), Free():
            return (now.key, now.mb) == (later.key, later.mb)
        case Recv(), Run():
            return now.mb == later.mb and topology.edges[now.tag].dst == later.key
        case Send(), Free():
            return now.mb == later.mb and topology.edges[now.tag].src == later.key
    return False


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(25))
def test_one_thing_wrong_is_refused(seed):
    rng = random.Random(seed)
    topology, mbs, schedule = valid(rng)
    for what, programs in changed([list(p) for p in schedule.programs], topology, rng):
        assert_refused(Schedule.of(programs), topology, mbs, what)


def stands(programs: list[list[Instruction]], topology: Sketch, capacity: int | None) -> list[int]:
    """Where every rank comes to a stop, one instruction of one rank at a time."""
    at = [0] * len(programs)
    posted: dict[tuple[int, int], list[tuple[int, int]]] = {}
    taken: dict[tuple[int, int], int] = {}

    def channel(tag: int) -> tuple[int, int]:
        edge = topology.edges[tag]
        return topology.rank_of[edge.src.stage], topology.rank_of[edge.dst.stage]

    def delivered(tag: int, mb: int) -> bool:
        line = channel(tag)
        place = posted[line].index((tag, mb))
        return capacity is None or place < taken.get(line, 0) + capacity

    def goes_on(now: Instruction) -> bool:
        match now:
            case Send(tag, mb):
                posted.setdefault(channel(tag), []).append((tag, mb))
            case Recv(tag, mb):
                line = channel(tag)
                if posted.get(line, [])[taken.get(line, 0) :][:1] != [(tag, mb)]:
                    return False
                taken[line] = taken.get(line, 0) + 1
            case Free():
                out = [e for e in topology.edges if e.src == now.key and topology.crosses(e)]
                return all(delivered(e.tag, now.mb) for e in out)
            case Collective():
                return False
        return True

    moved = True
    while moved:
        moved = False
        here = [p[i] if i < len(p) else None for p, i in zip(programs, at, strict=True)]
        if all(isinstance(now, Collective) for now in here):
            at = [i + 1 for i in at]
            moved = True
        for rank, program in enumerate(programs):
            if at[rank] < len(program) and goes_on(program[at[rank]]):
                at[rank] += 1
                moved = True
    return at


def restless(schedule: Schedule, topology: Sketch, rng: random.Random) -> list[list[Instruction]]:
    """Its programs with frees early and collectives anywhere, so that they may hang."""
    programs = []
    for program in schedule.programs:
        made: list[Instruction] = [i for i in program if not isinstance(i, Free)]
        for free in (i for i in program if isinstance(i, Free)):
            out = [e for e in topology.edges if e.src == free.key and topology.crosses(e)]
            before = [Run(free.stage, free.phase, free.mb, free.segment)]
            before += [Send(e.tag, free.mb) for e in out]
            least = 1 + max(
                i
                for i, now in enumerate(made)
                if now in before
                or (isinstance(now, Free) and (now.stage, now.mb) == (free.stage, free.mb))
            )
            made.insert(min(len(made), least + rng.choice([0, 0, 1, 3])), free)
        first, second = sorted(rng.choices(range(len(made) + 1), k=2))
        made.insert(second, Collective(2))
        made.insert(first, Collective(1))
        programs.append(made)
    return programs


@pytest.mark.parametrize("capacity", [0, 1, 2, None])
def test_ranks_stop_where_a_slow_walk_stops(capacity):
    """Lists that are valid for each rank alone; most of them hang together."""
    ended = 0
    for seed in range(60):
        rng = random.Random(seed)
        topology, mbs = random_topology(rng), rng.randint(1, 3)
        orders = [random_lists(topology, mbs, rng) for _ in range(rng.choice([1, 1, 2]))]
        compute = [rng.choice(orders)[rank] for rank in range(topology.ranks)]
        programs = restless(lower(topology, compute), topology, rng)
        at = stands(programs, topology, capacity)
        ends = [len(p) for p in programs]
        if at == ends:
            check(Schedule.of(programs), topology, mbs, capacity=capacity)
            ended += 1
            continue
        with pytest.raises(ScheduleError) as error:
            check(Schedule.of(programs), topology, mbs, capacity=capacity)
        lines = str(error.value).splitlines()
        assert lines[0] == "no rank can continue:"
        for rank, line in enumerate(lines[1:]):
            step = at[rank]
            where = " has finished"
            if step < ends[rank]:
                where = f", step {step}: {programs[rank][step]} waits"
            assert line.startswith(f"  rank {rank}{where}")
    assert 5 < ended < 55
