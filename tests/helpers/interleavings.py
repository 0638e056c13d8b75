"""All interleavings of small programs, to compare with what one run of the check says.

The rules are written down here once more and share nothing with `runtime.schedule.replay`: `fault`
says whether programs are complete and in order, and `ends` visits every state that any order of
the ranks' steps can reach. A state is where each rank stands (and, for "any", which messages are
buffered): programs are straight lines, so everything else follows from that.

    send      posts its message and goes on; "blocking": meets its receive, as MPI_Ssend does
    receive   takes the head of its channel, which is a queue; of an exchange: waits for all of it
    free      waits for each message of its body: until it is received (capacity 0), or among the
              first n that are not (capacity n), or not at all (None). "any": MPI buffers it or not
    C         all ranks together
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import zip_longest

from partitioner.base.types import BodyKey, CommEdge
from runtime.schedule.instructions import Collective, Free, Instruction, Recv, Run, Send, Update
from symgraph.core.types import TensorType, Value
from tests.runtime.schedule.programs import Sketch

Programs = Sequence[Sequence[Instruction]]
Capacity = int | str | None  # a number of messages, None, "any" or "blocking"


def channel(topology: Sketch, tag: int) -> tuple[int, int, str]:
    edge = topology.edges[tag]
    return topology.rank_of[edge.src.stage], topology.rank_of[edge.dst.stage], edge.exchange


def messages(topology: Sketch) -> list[CommEdge]:
    return [edge for edge in topology.edges if topology.crosses(edge)]


def in_stage(topology: Sketch, stage: int) -> list[BodyKey]:
    return [key for key in topology.bodies if key.stage == stage]


# -- complete and in order -----------------------------------------------------------------------


def fault(programs: Programs, topology: Sketch, mbs: int) -> str:
    """The first thing that is missing, too many or too early on one rank or channel; "": none."""
    return next(_faults(programs, topology, mbs), "")


def _faults(programs: Programs, topology: Sketch, mbs: int) -> Iterator[str]:
    for rank, program in enumerate(programs):
        have = Counter(i for i in program if not isinstance(i, (Collective, Update)))
        want = Counter(_wanted(rank, topology, mbs))
        if have != want:
            yield f"rank {rank}: missing {want - have}, too many {have - want}"
            return
        at = {instruction: place for place, instruction in enumerate(program)}
        for instruction in program:
            for earlier in _needs(instruction, at, topology):
                if at[earlier] > at[instruction]:
                    yield f"rank {rank}: {instruction} before {earlier}"
    queues: dict[object, list[list[tuple[int, int]]]] = defaultdict(lambda: [[], []])
    for instruction in (i for program in programs for i in program):
        if isinstance(instruction, (Send, Recv)):
            queue = queues[channel(topology, instruction.tag)]
            queue[isinstance(instruction, Recv)].append((instruction.tag, instruction.mb))
    yield from (f"channel {ends}: {q}" for ends, q in queues.items() if q[0] != q[1])
    lists = [[i for i in program if isinstance(i, Collective)] for program in programs]
    if any(own != lists[0] for own in lists):
        yield f"collectives {lists}"
    yield from _update_faults(programs, topology)


def _wanted(rank: int, topology: Sketch, mbs: int) -> Iterator[Instruction]:
    for mb in range(mbs):
        for key in topology.bodies:
            if topology.rank_of[key.stage] == rank:
                yield from (Run(*key[:2], mb, key.segment), Free(*key[:2], mb, key.segment))
        for edge in messages(topology):
            source, target, _ = channel(topology, edge.tag)
            yield from [Send(edge.tag, mb)] * (source == rank)
            yield from [Recv(edge.tag, mb)] * (target == rank)


def _needs(
    instruction: Instruction, at: Mapping[Instruction, int], topology: Sketch
) -> Iterator[Instruction]:
    """What comes before an instruction on its rank."""
    if isinstance(instruction, (Collective, Update)):
        return
    mb = instruction.mb
    if isinstance(instruction, Recv):
        return
    if isinstance(instruction, Send):
        source = topology.edges[instruction.tag].src
        yield Run(*source[:2], mb, source.segment)
        return
    run = Run(*instruction.key[:2], mb, instruction.key.segment)
    sends = [Send(e.tag, mb) for e in messages(topology) if e.src == instruction.key]
    mates = [k for k in in_stage(topology, instruction.stage) if k != instruction.key]
    before = [k for k in mates if at[Run(*k[:2], mb, k.segment)] < at[run]]
    if isinstance(instruction, Free):
        yield from (run, *sends, *(Free(*k[:2], mb, k.segment) for k in before))
        return
    for key in topology.needs(instruction.key):
        if topology.rank_of[key.stage] == topology.rank_of[instruction.stage]:
            yield Run(*key[:2], mb, key.segment)
    yield from (Recv(e.tag, mb) for e in messages(topology) if e.dst == instruction.key)
    for edge in messages(topology):  # what is sent may be dropped once its stage runs again
        if edge.src in before:
            yield Send(edge.tag, mb)


def _update_faults(programs: Programs, topology: Sketch) -> Iterator[str]:
    """Updates: of all stages with gradients or of none, each last, behind a C behind all runs."""
    updated = Counter(i.stage for program in programs for i in program if isinstance(i, Update))
    for stage, count in updated.items():
        if not 0 <= stage < len(topology.rank_of) or count > 1:
            yield f"stage {stage} is updated {count} times"
            return
        program = programs[topology.rank_of[stage]]
        if Update(stage) not in program:
            yield f"U{stage} is on another rank"
            return
        at = program.index(Update(stage))
        collectives = [i for i, now in enumerate(program[:at]) if now == Collective()]
        own = [i for i, now in enumerate(program) if isinstance(now, (Run, Free))]
        own = [i for i in own if program[i].stage == stage]
        runs = [i for i in own if isinstance(program[i], Run)]
        if own and not (collectives and max(own) < at and max(runs) < collectives[-1]):
            yield f"U{stage} is too early"
    if updated:
        missing = {k.stage for k in topology.bodies if k.phase in "BW"} - updated.keys()
        yield from (f"U{stage} is missing" for stage in missing)


# -- all interleavings ---------------------------------------------------------------------------

State = tuple[tuple[int, ...], frozenset[Hashable]]


class Explorer:
    """The states that complete programs can reach."""

    def __init__(self, programs: Programs, topology: Sketch, capacity: Capacity) -> None:
        self.programs, self.topology, self.capacity = programs, topology, capacity
        self.place = {
            (type(now), now.tag, now.mb): i
            for program in programs
            for i, now in enumerate(program)
            if isinstance(now, (Send, Recv))
        }
        order: dict[object, list[tuple[int, int]]] = defaultdict(list)
        for now in (now for program in programs for now in program):
            if isinstance(now, Send):
                order[channel(topology, now.tag)].append((now.tag, now.mb))
        self.order = order

    def sent(self, at: tuple[int, ...], tag: int, mb: int) -> bool:
        return at[channel(self.topology, tag)[0]] > self.place[Send, tag, mb]

    def taken(self, at: tuple[int, ...], tag: int, mb: int) -> bool:
        return at[channel(self.topology, tag)[1]] > self.place[Recv, tag, mb]

    def delivered(self, state: State, tag: int, mb: int) -> bool:
        at, buffered = state
        line = self.order[channel(self.topology, tag)]
        if self.capacity in (None, "blocking") or channel(self.topology, tag)[2]:
            return True
        if self.capacity == "any":
            return (tag, mb) in buffered or self.taken(at, tag, mb)
        taken = sum(self.taken(at, *message) for message in line)
        return line.index((tag, mb)) < taken + int(self.capacity)

    def goes_on(self, now: Instruction, state: State) -> bool:
        """Whether a rank at this instruction can do it by itself."""
        if isinstance(now, Recv):
            edge = self.topology.edges[now.tag]
            tags = [now.tag]
            if edge.exchange:
                tags = [e.tag for e in messages(self.topology) if e.exchange == edge.exchange]
            elif self.capacity == "blocking":
                return False
            return all(self.sent(state[0], tag, now.mb) for tag in tags)
        if isinstance(now, Free):
            own = [e.tag for e in messages(self.topology) if e.src == now.key]
            return all(self.delivered(state, tag, now.mb) for tag in own)
        if isinstance(now, Send):
            return self.capacity != "blocking" or bool(channel(self.topology, now.tag)[2])
        return not isinstance(now, Collective)

    def successors(self, state: State) -> Iterator[State]:
        at, buffered = state
        heads = [p[i] if i < len(p) else None for p, i in zip_longest(self.programs, at)]
        if all(isinstance(now, Collective) for now in heads):
            yield tuple(i + 1 for i in at), buffered
        for rank, now in enumerate(heads):
            if now is None:
                continue
            if self.goes_on(now, state):
                after = (*at[:rank], at[rank] + 1, *at[rank + 1 :])
                yield after, buffered
                if self.capacity == "any" and isinstance(now, Send):
                    yield after, buffered | {(now.tag, now.mb)}
            elif isinstance(now, Send):  # blocking: both ends step together
                target = channel(self.topology, now.tag)[1]
                if heads[target] == Recv(now.tag, now.mb):
                    yield tuple(i + (r in (rank, target)) for r, i in enumerate(at)), buffered

    def last_states(self) -> set[tuple[int, ...]]:
        """Where ranks may stand when none can continue."""
        first: State = (0,) * len(self.programs), frozenset()
        seen, stack, last = {first}, [first], set()
        while stack:
            state = stack.pop()
            following = set(self.successors(state))
            if not following:
                last.add(state[0])
            stack += following - seen
            seen |= following
        return last


def last_states(
    programs: Programs, topology: Sketch, capacity: Capacity
) -> tuple[set[tuple[int, ...]], tuple[int, ...]]:
    """Where ranks may stand when none can continue, and where they all have ended."""
    return Explorer(programs, topology, capacity).last_states(), tuple(map(len, programs))


# -- small programs ------------------------------------------------------------------------------


def small_topology(rng: random.Random) -> Sketch:
    """Two to four ranks, a few stages with a forward and perhaps a backward body, a few edges."""
    ranks = rng.choice([2, 2, 3, 3, 4])
    stages = rng.randint(2, 4 if ranks < 4 else 5)
    rank_of = [*range(min(ranks, stages)), *(rng.randrange(ranks) for _ in range(stages - ranks))]
    rng.shuffle(rank_of)
    back = [s for s in reversed(range(stages)) if rng.random() < 0.4]
    row = [BodyKey(s, "F") for s in range(stages)] + [BodyKey(s, "B") for s in back]
    pairs = [(a, b) for i, a in enumerate(row) for b in row[i + 1 :] if a.stage != b.stage]
    picked = rng.sample(pairs, min(len(pairs), rng.randint(1, 4)))
    shared = rng.random() < 0.15
    edges = [
        CommEdge(t, Value(f"v{t}"), TensorType((1,)), a, b, "all" if shared and t < 2 else "")
        for t, (a, b) in enumerate(picked)
    ]
    return Sketch(tuple(rank_of), ranks, tuple(row), tuple(edges))


def small_programs(topology: Sketch, mbs: int, rng: random.Random) -> list[list[Instruction]]:
    """Programs in order on each rank and channel, at random apart from that: together, they hang
    or not.
    """
    runs = [Run(key.stage, key.phase, mb) for key in topology.bodies for mb in range(mbs)]
    every = _shuffled(runs, lambda a: [Run(*k[:2], a.mb) for k in topology.needs(a.key)], rng)
    turn = {run: i for i, run in enumerate(every)}
    sends = [(Send(e.tag, mb), e) for e in messages(topology) for mb in range(mbs)]
    sends.sort(key=lambda s: turn[Run(*s[1].src[:2], s[0].mb)])
    lines: dict[object, list[tuple[int, int]]] = defaultdict(list)
    for send, _ in sends:
        lines[channel(topology, send.tag)].append((send.tag, send.mb))
    programs = []
    for rank in range(topology.ranks):
        own = list(_wanted(rank, topology, mbs))
        at = {i: turn[i] for i in own if isinstance(i, Run)}

        def needs(now: Instruction, at: Mapping[Instruction, int] = at) -> list[Instruction]:
            found = list(_needs(now, at, topology))
            if isinstance(now, (Send, Recv)):
                line = lines[channel(topology, now.tag)]
                found += [type(now)(*m) for m in line[: line.index((now.tag, now.mb))]]
            return found

        program = _shuffled(own, needs, rng)
        programs.append(program)
    if rng.random() < 0.3:
        for program in programs:
            program.insert(rng.randrange(len(program) + 1), Collective(2))
    if rng.random() < 0.3:
        for rank, program in enumerate(programs):
            stages = [s for s, r in enumerate(topology.rank_of) if r == rank]
            program += [Collective(), *map(Update, stages)]
    return programs


def _shuffled(
    items: Sequence[Instruction],
    needs: Callable[[Instruction], Sequence[Instruction]],
    rng: random.Random,
) -> list[Instruction]:
    """The items in a random order in which each comes behind its needs."""
    waiting = {item: [n for n in needs(item) if n in items] for item in items}
    made: list[Instruction] = []
    while waiting:
        ready = [item for item, wants in waiting.items() if not any(w in waiting for w in wants)]
        item = rng.choice(ready)
        del waiting[item]
        made.append(item)
    return made


def broken(
    programs: Sequence[Sequence[Instruction]], rng: random.Random
) -> list[list[Instruction]]:
    """The programs with one change, which is a mistake most of the time."""
    changed = [list(program) for program in programs]
    rank = rng.choice([r for r, program in enumerate(changed) if program])
    program = changed[rank]
    at = rng.randrange(len(program))
    kind = rng.choice(["drop", "twice", "move", "move", "elsewhere", "swap"])
    if kind == "twice":
        program.insert(rng.randrange(len(program) + 1), program[at])
    elif kind == "swap":
        other = rng.randrange(len(program))
        program[at], program[other] = program[other], program[at]
    else:
        taken = program.pop(at)
        if kind != "drop":
            into = rng.choice(changed) if kind == "elsewhere" else program
            into.insert(rng.randrange(len(into) + 1), taken)
    return changed
