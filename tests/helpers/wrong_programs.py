"""Random programs that are wrong in one place, of all three kinds that ranks run.

calls: a script of a communicator's calls on each rank; local: a network that each rank describes
its own part of; worker: a schedule's instructions, run without the check that refuses it. A right
program is drawn, then one rank's part is changed, until a model of the ranks, or the check, says
that it cannot end well.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from runtime.engine.worker import Worker
from runtime.frontends.chainermn import Communicator, join_ranks
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.schedule.instructions import Recv, Send
from runtime.schedule.program import Program, Schedule
from runtime.schedule.replay import check
from runtime.transports import Transport
from symgraph.chainermn.rank_view import pseudo_connect, recv, send
from symgraph.core.context import cpu
from symgraph.core.errors import ScheduleError
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.frontend.symbol import Symbol
from tests.helpers.pipelines import make_plan
from tests.helpers.recurrent import lstm_case

SMALL, LARGE = 8, 3000  # float64 elements; a large message waits for its receiver
ROOTED = ("bcast", "gather", "scatter")
VERBS = (*ROOTED, "allgather", "alltoall", "allreduce")


class Call(NamedTuple):
    """A call of one rank. peer: the other end or the root. size: of the array that it has."""

    verb: str
    peer: int = 0
    tag: int = 0
    size: int = SMALL


Script = list[Call]


class Wrong(NamedTuple):
    """A wrong program: what every rank does, with its endpoint and a communicator."""

    ranks: int
    work: Callable[[Transport, Communicator], object]


COUNT = 200  # of the programs, on 2, 3 and 4 ranks


def kind_of(number: int) -> tuple[Callable[..., Wrong], Callable[..., object]]:
    """How a program is drawn and what is changed in it: all kinds take turns."""
    kinds = [(draw, change) for draw, changes in DRAWS.items() for change in changes]
    return kinds[number % len(kinds)]


def name_of(number: int) -> str:
    draw, change = kind_of(number)
    return f"{number}-{draw.__name__.removeprefix('draw_')}-{change.__name__}"


@cache
def wrong_program(number: int) -> Wrong:
    draw, change = kind_of(number)
    return draw(number, change)


def first_wrong(
    number: int, draw: Callable[[random.Random], tuple[int, object] | None]
) -> tuple[int, object]:
    """The first of random draws that is something."""
    rng = random.Random(number)
    return next(found for found in iter(lambda: draw(rng), 0) if found is not None)


# -- changes of one rank's part --------------------------------------------------------------------

MESSAGES = ("send", "recv")


def dropped(script: Script, at: int, rng: random.Random, ranks: int) -> None:
    del script[at]


def swapped(script: Script, at: int, rng: random.Random, ranks: int) -> None:
    script.insert(rng.randrange(len(script)), script.pop(at))


def wrong_rank(script: Script, at: int, rng: random.Random, ranks: int) -> None:
    script[at] = script[at]._replace(peer=(script[at].peer + 1) % ranks)


def wrong_tag(script: Script, at: int, rng: random.Random, ranks: int) -> None:
    script[at] = script[at]._replace(tag=script[at].tag + 1)


def wrong_shape(script: Script, at: int, rng: random.Random, ranks: int) -> None:
    script[at] = script[at]._replace(size=script[at].size + 1)


def missing(script: Script, at: int, rng: random.Random, ranks: int) -> None:
    """The rank ends early."""
    del script[at:]


def another(script: Script, at: int, rng: random.Random, ranks: int) -> None:
    script[at] = script[at]._replace(verb=rng.choice(VERBS))


Change = Callable[[Script, int, random.Random, int], None]


def changed(scripts: list[Script], change: Change, rng: random.Random) -> list[Script]:
    new = [list(script) for script in scripts]
    one = rng.choice([script for script in new if script])
    change(one, rng.randrange(len(one)), rng, len(new))
    return new


# -- communicators' calls --------------------------------------------------------------------------


def draw_calls(number: int, change: Change) -> Wrong:
    def draw(rng: random.Random) -> tuple[int, object] | None:
        ranks = rng.randint(2, 4)
        scripts: list[Script] = [[] for _ in range(ranks)]
        for tag in range(rng.randint(4, 12)):
            size = rng.choice([SMALL, LARGE])
            if rng.random() < 0.6:
                src, dst = rng.sample(range(ranks), 2)
                scripts[src].append(Call("send", dst, tag, size))
                scripts[dst].append(Call("recv", src, tag, size))
            else:
                verb = rng.choice(VERBS)
                root = rng.randrange(ranks) if verb in ROOTED else 0
                for script in scripts:
                    script.append(Call(verb, root, 0, size))
        assert ends_well(scripts)
        new = changed(scripts, change, rng)
        own_end = any(c.verb in MESSAGES and c.peer == r for r, s in enumerate(new) for c in s)
        return None if own_end or ends_well(new) else (ranks, new)

    ranks, scripts = first_wrong(number, draw)
    return Wrong(ranks, partial(play, scripts))


def ends_well(scripts: Sequence[Script]) -> bool:
    """Whether ranks that call this come to their ends: a model of communicators."""
    at, taken = [0] * len(scripts), [False] * len(scripts)
    channels: dict[tuple[int, int], deque[tuple[Call, int]]] = {}
    while True:
        now = [s[i] if i < len(s) else None for s, i in zip(scripts, at, strict=True)]
        if not any(now):
            return True
        if all(call is not None and call.verb in VERBS for call in now):
            if len({agreed(call) for call in now if call is not None}) > 1:
                return False
            at = [i + 1 for i in at]
            continue
        moved = False
        for rank, call in enumerate(now):
            if call is not None and call.verb == "send":
                channel = channels.setdefault((rank, call.peer), deque())
                if not any(source == at[rank] for _, source in channel) and not taken[rank]:
                    channel.append((call, at[rank]))
                    taken[rank] = call.size < LARGE
                    moved = True
                if taken[rank]:
                    at[rank], taken[rank], moved = at[rank] + 1, False, True
            if call is not None and call.verb == "recv":
                channel = channels.setdefault((call.peer, rank), deque())
                if channel:
                    (sent, _), moved = channel.popleft(), True
                    if (sent.tag, sent.size) != (call.tag, call.size):
                        return False
                    taken[call.peer] |= sent.size >= LARGE
                    at[rank] += 1
        if not moved:
            return False


def agreed(call: Call) -> tuple[object, ...]:
    """What ranks must give alike."""
    verb, root, _, size = call
    return verb, root if verb in ROOTED else None, size if verb == "allreduce" else None


def play(scripts: Sequence[Script], end: Transport, comm: Communicator) -> None:
    """Do a rank's calls."""
    for verb, peer, tag, size in scripts[comm.rank]:
        array = np.full(size, float(comm.rank))
        here = comm.rank == peer
        if verb == "send":
            comm.send(array, peer, tag)
        elif verb == "recv":
            comm.recv(peer, tag, out=array)
        elif verb == "bcast":
            comm.bcast(array if here else None, peer)
        elif verb == "scatter":
            comm.scatter([array] * comm.size if here else None, peer)
        elif verb == "gather":
            comm.gather(array, peer)
        else:
            getattr(comm, verb)([array] * comm.size if verb == "alltoall" else array)


# -- networks of one rank each ---------------------------------------------------------------------


def to_itself(script: Script, at: int, rng: random.Random, ranks: int) -> None:
    """The change is made where the rank is known: see `described`."""
    script[at] = script[at]._replace(peer=-1)


def draw_local(number: int, change: Change) -> Wrong:
    def draw(rng: random.Random) -> tuple[int, object] | None:
        ranks = rng.randint(2, 4)
        scripts: list[Script] = [[] for _ in range(ranks)]
        for tag in range(rng.randint(2, 8)):
            src, dst = rng.sample(range(ranks), 2)
            scripts[src].append(Call("send", dst, tag, 4))
            scripts[dst].append(Call("recv", src, tag, 4))
        assert fits(scripts)
        new = changed(scripts, change, rng)
        return None if fits(new) else (ranks, new)

    ranks, scripts = first_wrong(number, draw)
    return Wrong(ranks, partial(describe, scripts))


def fits(scripts: Sequence[Script]) -> bool:
    """Whether each message has two ends, of one type, and some order of all calls is possible."""
    ends = Counter[tuple[int, int, int, int]]()
    for rank, script in enumerate(scripts):
        for verb, peer, tag, size in script:
            sending = verb == "send"
            ends[(rank, peer, tag, size) if sending else (peer, rank, tag, size)] += (
                1 if sending else -1
            )
    if any(ends.values()):
        return False
    sent: set[tuple[int, int, int]] = set()
    at, moved = [0] * len(scripts), True
    while moved:
        moved = False
        for rank, script in enumerate(scripts):
            while at[rank] < len(script):
                verb, peer, tag, _ = script[at[rank]]
                if verb == "recv" and (peer, rank, tag) not in sent:
                    break
                sent.add((rank, peer, tag))
                at[rank], moved = at[rank] + 1, True
    return all(i == len(script) for i, script in zip(at, scripts, strict=True))


def described(script: Script, rank: int) -> Symbol:
    """A rank's part: a value that gathers what comes, and is sent as it is then."""
    with NameManager():
        h = sym.tanh(sym.FullyConnected(sym.Variable("data"), num_hidden=4))
        for verb, peer, tag, size in script:
            peer = rank if peer < 0 else peer
            if verb == "send":
                gone = sym.FullyConnected(h, num_hidden=size)
                h = pseudo_connect(send(gone, peer, tag), h)
            else:
                came = recv(peer, tag, shape=(5, size))
                h = h + sym.tanh(sym.FullyConnected(came, num_hidden=4))
        return sym.MakeLoss(h, name="loss")


def describe(scripts: Sequence[Script], end: Transport, comm: Communicator) -> None:
    outputs = join_ranks(described(scripts[comm.rank], comm.rank), comm)
    whole = sym.Group([out for out in outputs if out is not None])
    lower(whole, {f"rank{rank}_data": (5, 3) for rank in range(comm.size)})


# -- worker programs -------------------------------------------------------------------------------


def draw_worker(number: int, change: Callable[[Plan, random.Random], Schedule]) -> Wrong:
    def draw(rng: random.Random) -> tuple[int, object] | None:
        ranks = rng.randint(2, 4)
        case = lstm_case(3, 3, batch=4, hidden=2, seed=number)
        names = ["layer0", "layer1", "layer2", "head"]
        groups = {name: cpu(i % ranks) for i, name in enumerate(rng.sample(names, 4))}
        devices = tuple(map(cpu, range(ranks)))
        schedule = rng.choice(["gpipe", "1f1b"])
        made = make_plan(case, Options(groups, cpu(0), devices, schedule, 2))
        new = change(made, rng)
        try:
            check(new, made.partition, len(made.sizes))
        except ScheduleError:
            return ranks, (case, made, new)
        return None

    ranks, (case, made, schedule) = first_wrong(number, draw)

    def work(end: Transport, comm: Communicator) -> None:
        arrays = {n: a.copy() for n, a in case.arrays.items()}
        worker = Worker(made, end.rank, arrays, schedules=[schedule])
        worker.step(end, case.feeds)

    return Wrong(ranks, work)


def some_rank(schedule: Schedule, kind: type, rng: random.Random) -> tuple[int, list[int]]:
    """A rank, and where in its program there are messages of this kind."""
    places = [
        (rank, [at for at, i in enumerate(program) if isinstance(i, kind)])
        for rank, program in enumerate(schedule.programs)
    ]
    return rng.choice([(rank, steps) for rank, steps in places if steps])


def without(schedule: Schedule, rank: int, steps: Sequence[int]) -> Schedule:
    programs = list(schedule.programs)
    kept = [i for at, i in enumerate(programs[rank]) if at not in steps]
    programs[rank] = Program.of(kept)
    return Schedule(tuple(programs))


def dropped_send(plan: Plan, rng: random.Random) -> Schedule:
    rank, steps = some_rank(plan.schedule, Send, rng)
    return without(plan.schedule, rank, [rng.choice(steps)])


def swapped_receives(plan: Plan, rng: random.Random) -> Schedule:
    """Two messages of one channel, of different values, are taken for each other."""
    rank, steps = some_rank(plan.schedule, Recv, rng)
    source = {edge.tag: plan.partition.rank(edge.src) for edge in plan.partition.edges}
    programs = list(plan.schedule.programs)
    program = list(programs[rank])
    a, b = rng.choice(steps), rng.choice(steps)
    tags = program[a].tag, program[b].tag
    if tags[0] != tags[1] and source[tags[0]] == source[tags[1]]:
        program[a], program[b] = program[b], program[a]
    programs[rank] = Program.of(program)
    return Schedule(tuple(programs))


def missing_rank(plan: Plan, rng: random.Random) -> Schedule:
    """A rank that others wait for does nothing."""
    rank, _ = some_rank(plan.schedule, Send, rng)
    return without(plan.schedule, rank, range(len(plan.schedule.programs[rank])))


def early_end(plan: Plan, rng: random.Random) -> Schedule:
    schedule = plan.schedule
    rank, steps = some_rank(schedule, Send, rng)
    return without(schedule, rank, range(rng.choice(steps), len(schedule.programs[rank])))


DRAWS: dict[Callable[..., Wrong], tuple[Callable[..., object], ...]] = {
    draw_calls: (dropped, swapped, wrong_rank, wrong_tag, wrong_shape, missing, another),
    draw_local: (dropped, swapped, wrong_rank, wrong_tag, wrong_shape, missing, to_itself),
    draw_worker: (dropped_send, swapped_receives, missing_rank, early_end),
}
