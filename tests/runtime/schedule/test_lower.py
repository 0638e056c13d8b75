"""Lowering: compute lists become programs with messages, frees and updates."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

import pytest

from partitioner.base.chain import Chain, chain
from partitioner.base.types import BodyKey, CommEdge
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import Collective, Free, Instruction, Recv, Run, Send, Update
from runtime.schedule.lowering.lower import lower
from runtime.schedule.program import Program
from runtime.schedule.replay import check
from symgraph.core.errors import ScheduleError
from symgraph.core.types import TensorType, Value
from tests.runtime.schedule.programs import Sketch, lists, random_lists, random_topology, sketch

GPIPE = "0F0 0F1 0B1 0B0\n1F0 1F1 1B1 1B0"
ONE_F_ONE_B = "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"


def lowered(topology, compute: str, *, update: bool = False, mbs: int = 2) -> list[str]:
    schedule = lower(topology, lists(compute), update=update)
    for capacity in (0, 1, None):
        check(schedule, topology, mbs, capacity=capacity)
    return str(schedule).splitlines()


# -- small programs ------------------------------------------------------------------------------


def test_gpipe_two_stages():
    """S0 goes forward and S1 back; D0F0 waits for the news that S0.0 was taken: R1.1."""
    assert lowered(chain([0, 1]), GPIPE) == [
        "rank 0: 0F0 S0.0 0F1 S0.1 R1.1 D0F0 D0F1 0B1 D0B1 R1.0 0B0 D0B0",
        "rank 1: R0.0 1F0 D1F0 R0.1 1F1 D1F1 1B1 S1.1 1B0 S1.0 D1B1 D1B0",
    ]


def test_1f1b_two_stages():
    assert lowered(chain([0, 1]), ONE_F_ONE_B) == [
        "rank 0: 0F0 S0.0 0F1 S0.1 R1.0 D0F0 0B0 D0B0 R1.1 D0F1 0B1 D0B1",
        "rank 1: R0.0 1F0 D1F0 1B0 S1.0 R0.1 1F1 D1F1 1B1 S1.1 D1B0 D1B1",
    ]


def test_one_stage_sends_nothing():
    assert lowered(chain([0]), "0F0 0B0 0F1 0B1") == ["rank 0: 0F0 D0F0 0B0 D0B0 0F1 D0F1 0B1 D0B1"]


def test_several_stages_a_rank_send_nothing_within_it():
    """Stages 0 and 3 on rank 0, in a V: edge 1 joins stages 1 and 2, both of rank 1."""
    assert lowered(chain([0, 1, 1, 0]), "0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0", mbs=1) == [
        "rank 0: 0F0 S0.0 R2.0 D0F0 3F0 D3F0 3B0 S3.0 R5.0 D3B0 0B0 D0B0",
        "rank 1: R0.0 1F0 D1F0 2F0 S2.0 R3.0 D2F0 2B0 D2B0 1B0 S5.0 D1B0",
    ]


def test_segments_go_forward_rising_and_back_falling():
    """Edges 0 and 1 carry segments 0 and 1 forward, edges 2 and 3 segments 1 and 0 back."""
    compute = "0F0 0F0.1 0B0.1 0B0\n1F0 1F0.1 1B0.1 1B0"
    assert lowered(chain([0, 1], segments=2), compute, mbs=1) == [
        "rank 0: 0F0 S0.0 0F0.1 S1.0 R2.0 D0F0 D0F0.1 0B0.1 D0B0.1 R3.0 0B0 D0B0",
        "rank 1: R0.0 1F0 D1F0 R1.0 1F0.1 D1F0.1 1B0.1 S2.0 1B0 S3.0 D1B0.1 D1B0",
    ]


def test_a_cut_backward_becomes_its_halves():
    """Of the same segment, the gradient of inputs first, whose message leaves between them."""
    assert lowered(chain([0, 1], split=True), ONE_F_ONE_B) == [
        "rank 0: 0F0 S0.0 0F1 S0.1 R1.0 D0F0 0I0 D0I0 0W0 D0W0 R1.1 D0F1 0I1 D0I1 0W1 D0W1",
        "rank 1: R0.0 1F0 D1F0 1I0 S1.0 1W0 R0.1 1F1 D1F1 1I1 S1.1 1W1 D1I0 D1W0 D1I1 D1W1",
    ]
    assert lowered(chain([0], split=True, segments=2), "0F0 0F0.1 0B0.1 0B0", mbs=1) == [
        "rank 0: 0F0 D0F0 0F0.1 D0F0.1 0I0.1 D0I0.1 0W0.1 D0W0.1 0I0 D0I0 0W0 D0W0"
    ]


def test_halves_stay_where_the_lists_have_them():
    compute = "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1"
    assert lowered(chain([0, 1], split=True), compute)[1] == (
        "rank 1: R0.0 1F0 D1F0 1I0 S1.0 R0.1 1F1 D1F1 1I1 S1.1 1W0 1W1 D1I0 D1I1 D1W0 D1W1"
    )


def test_runs_of_bodies_that_there_are_not_are_left_out():
    assert lowered(chain([0, 1], train=False), GPIPE) == [
        "rank 0: 0F0 S0.0 0F1 S0.1 D0F0 D0F1",
        "rank 1: R0.0 1F0 D1F0 R0.1 1F1 D1F1",
    ]
    halves = sketch([0, 0, 0], "0F 0I 1F 1W 2F")
    assert lowered(halves, "0F0 0F0.1 1F0 2F0 2B0 1B0 0I0 0W0", mbs=1) == [
        "rank 0: 0F0 D0F0 1F0 D1F0 2F0 D2F0 1W0 D1W0 0I0 D0I0"
    ]


def test_a_training_step_ends_with_norms_and_updates():
    first, second = lowered(chain([0, 1]), GPIPE, update=True)
    assert first.endswith(" D0B0 C U0")
    assert second.endswith(" D1B0 C U1")
    both = lowered(chain([0, 1, 0]), "0F0 2F0 2B0 0B0\n1F0 1B0", update=True, mbs=1)
    assert both[0].endswith(" C U0 U2")


def test_ranks_without_stages_have_only_the_collective():
    idle = sketch([1], "0F", ranks=3)
    assert lowered(idle, "rank 0:\nrank 1: 0F0", update=True, mbs=1) == [
        "rank 0: C",
        "rank 1: 0F0 D0F0 C U0",
        "rank 2: C",
    ]


# -- the order of messages and frees -------------------------------------------------------------


def test_frees_follow_a_reply_that_was_sent_after_the_message_was_taken():
    """S0.2 leaves after R1.0 came, S0.1 before: so D1B0 stands behind R0.2."""
    rank0, rank1 = lowered(
        chain([0, 1]),
        "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3\n1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3",
        mbs=4,
    )
    assert rank0 == (
        "rank 0: 0F0 S0.0 0F1 S0.1 R1.0 D0F0 0B0 D0B0 0F2 S0.2 R1.1 D0F1 0B1 D0B1 0F3 S0.3 "
        "R1.2 D0F2 0B2 D0B2 R1.3 D0F3 0B3 D0B3"
    )
    assert "S1.0 R0.1 1F1 D1F1 1B1 S1.1 R0.2 D1B0" in rank1


CRISS_CROSS = sketch(
    # stage 0 (rank 0)   a ───────────┐
    # stage 1 (rank 1)   b            │
    # stage 2 (rank 0)   c            │
    # stage 3 (rank 1)   reads c and a┘
    [0, 1, 0, 1],
    "0F 1F 2F 3F",
    ["a 0F->1F", "a 0F->3F", "b 1F->2F", "c 2F->3F"],
)


def test_messages_of_a_channel_are_received_in_the_order_they_are_sent():
    """a goes to stages 1 and 3 of rank 1, as S0 and S1: R1.0 comes before R0.1 is wanted."""
    assert lowered(CRISS_CROSS, "0F0 0F1 2F0 2F1\n1F0 1F1 3F0 3F1") == [
        "rank 0: 0F0 S0.0 S1.0 0F1 S0.1 S1.1 R2.0 2F0 S3.0 R2.1 D0F0 2F1 S3.1 D0F1 D2F0 D2F1",
        "rank 1: R0.0 1F0 S2.0 R1.0 R0.1 1F1 S2.1 R1.1 R3.0 D1F0 3F0 D3F0 R3.1 D1F1 3F1 D3F1",
    ]


def test_frees_of_a_stage_keep_the_order_of_its_runs():
    """D1F0 waits for the reply R3.0; D1F0.1, which sends nothing, stays behind it."""
    cut = sketch(
        [0, 1, 0],
        "0F 1F 1F.1 2F",
        ["a 0F->1F", "b 1F->2F", "c 2F->1F.1"],
    )
    assert lowered(cut, "0F0 2F0\n1F0 1F0.1", mbs=1) == [
        "rank 0: 0F0 S0.0 R1.0 D0F0 2F0 S2.0 D2F0",
        "rank 1: R0.0 1F0 S1.0 R2.0 D1F0 1F0.1 D1F0.1",
    ]
    mute = sketch([0, 1], "0F 0F.1 1F", ["a 0F->1F"])
    assert lowered(mute, "0F0 0F0.1\n1F0", mbs=1)[0] == "rank 0: 0F0 S0.0 0F0.1 D0F0 D0F0.1"


# -- weights that stages share -------------------------------------------------------------------


def sharing(rank_of: list[int], pairs: Iterable[tuple[int, int]]) -> Chain:
    """A chain whose backward is cut; the first stage of a pair sends its W's term to the second."""
    row = chain(rank_of, split=True)
    more = [
        CommEdge(
            tag,
            Value(f"term{tag}"),
            TensorType((0,), "int8"),
            BodyKey(src, "W"),
            BodyKey(dst, "W"),
        )
        for tag, (src, dst) in enumerate(pairs, len(row.edges))
    ]
    return replace(row, edges=(*row.edges, *more))


def test_weights_shared_in_opposite_directions_do_not_hang():
    """Random operators, seed 25: zb-h2 and zb-v ended in "no rank can continue" (issue 24).

    Stages 0 and 2 share a weight, and stages 1 and 3. Each rank has a W that waits for the
    other's in front of the W that the other waits for:

        rank 0   ... 0W0 ... 3W0      0W0 needs 2W0
        rank 1   ... 1W0 ... 2W0      1W0 needs 3W0
    """
    compute = "0F0 3F0 3I0 0I0 0W0 3W0\n1F0 2F0 2I0 1I0 1W0 2W0"
    rank0, rank1 = lowered(sharing([0, 1, 1, 0], [(2, 0), (3, 1)]), compute, mbs=1)
    runs = [" ".join(i for i in rank.split() if i[1] in "FIW") for rank in (rank0, rank1)]
    assert runs == ["0F0 3F0 3I0 0I0 3W0 0W0", "1F0 2F0 2I0 1I0 1W0 2W0"]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("seed", range(8))
def test_no_schedule_hangs_whatever_stages_share_weights(name, seed):
    rng = random.Random(seed)
    ranks, mbs = rng.randint(2, 4), rng.randint(1, 9)
    rank_of = [*range(ranks), *reversed(range(ranks))]  # a V, or anything
    if seed % 2:
        rank_of = [rng.randrange(ranks) for _ in range(rng.randint(2, 6))]
    pairs = [(a, b) for a in range(len(rank_of)) for b in range(a) if rng.random() < 0.4]
    compute = SCHEDULES[name](rank_of, mbs)
    shared, alone = (lower(sharing(rank_of, p), compute) for p in (pairs, ()))
    for capacity in (0, None):
        check(shared, sharing(rank_of, pairs), mbs, capacity=capacity)
    for program, other in zip(shared.programs, alone.programs, strict=True):
        runs, others = ([i for i in p if isinstance(i, Run)] for p in (program, other))
        assert Counter(runs) == Counter(others)
        assert [i for i in runs if i.phase != "W"] == [i for i in others if i.phase != "W"]


# -- lists that cannot be lowered ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("compute", "why"),
    [
        ("0F0\n1F0\n1B0", "3 compute lists for 2 ranks"),
        ("0F0 2F0\n1F0", r"rank 0, step 1: 2F0 refers to stage 2, but there are only 2 stages"),
        ("0F0\n1F0 0B0", "rank 1, step 1: 0B0 belongs to rank 0"),
        ("0F0 S0.0\n1F0", "rank 0, step 1: S0.0 is not a run: a compute list holds nothing else"),
        (
            "0F0 0B9\n1F0 1B0",
            "rank 0, step 1: 0B9 belongs to micro-batch 9, but no rank has more than 2 runs",
        ),
    ],
)
def test_lists_that_cannot_be_lowered(compute, why):
    with pytest.raises(ScheduleError, match=why):
        lower(chain([0, 1]), lists(compute))
    with pytest.raises(ScheduleError, match="0F-1 belongs to micro-batch -1"):
        lower(chain([0, 1]), [[Run(0, "F", -1)]])


def test_incomplete_lists_are_lowered_for_the_check_to_name_what_is_missing():
    topology = chain([0, 1])
    schedule = lower(topology, lists("0F0 0B0\n1B0"))
    with pytest.raises(ScheduleError, match="rank 1 never does 1F0 for body 1F"):
        check(schedule, topology, 1)
    assert [len(p) for p in lower(topology, []).programs] == [0, 0]


def test_lists_that_hang_are_lowered_for_the_check_to_tell():
    """Rank 0 wants stage 2 before it does stage 0; the reply to 0F0 stands before its message."""
    schedule = lower(chain([0, 1, 0], train=False), lists("2F0 0F0\n1F0"))
    assert str(schedule.programs[0]) == "R1.0 2F0 D2F0 0F0 S0.0 D0F0"
    with pytest.raises(ScheduleError, match="no rank can continue"):
        check(schedule, chain([0, 1, 0], train=False), 1)


def test_programs_are_lowered_like_lists():
    compute = lists(ONE_F_ONE_B)
    columns = [Program.of([*runs, *runs])[::2][:0] for runs in compute]  # not contiguous, empty
    assert [len(p) for p in lower(chain([0, 1]), columns).programs] == [0, 0]
    twice = [Program.of([run for run in runs for _ in range(2)])[::2] for runs in compute]
    assert lower(chain([0, 1]), twice) == lower(chain([0, 1]), compute)


# -- against a lowering by definition ------------------------------------------------------------


def by_definition(
    topology: Sketch, compute: list[list[Run]], update: bool
) -> list[list[Instruction]]:
    """What `lower` does, looked up in lists: no positions, no order of one walk.

    A body's messages leave right after it. A receive stands as late as it can: before the first
    body that wants it or one sent after it on the channel. A free stands as early as it can: once
    a message has come that its receiver sent after taking this body's, or at the end.
    """
    between = defaultdict(list)  # (source, target) -> messages in the order sent
    for rank, runs in enumerate(compute):
        for run in runs:
            for edge in topology.edges:
                if edge.src == run.key and topology.crosses(edge):
                    target = topology.rank_of[edge.dst.stage]
                    between[rank, target].append((edge.tag, run.mb))
    programs = [_with_messages(topology, rank, runs, between) for rank, runs in enumerate(compute)]
    full = []
    for rank, program in enumerate(programs):
        frees = defaultdict(list)
        last = defaultdict(int)
        for step, run in enumerate(program):
            if isinstance(run, Run):
                at = max(last[run.stage, run.mb], _known(topology, programs, rank, step))
                last[run.stage, run.mb] = at
                frees[at].append(Free(run.stage, run.phase, run.mb, run.segment))
        full.append([i for step, now in enumerate(program) for i in (now, *frees[step])])
        if update:
            own = [s for s, r in enumerate(topology.rank_of) if r == rank]
            full[-1] += [Collective(), *map(Update, own)]
    return full


def _with_messages(topology, rank, runs, between) -> list[Instruction]:
    program: list[Instruction] = []
    for run in runs:
        for edge in topology.edges:
            if edge.dst == run.key and topology.crosses(edge):
                queue = between[topology.rank_of[edge.src.stage], rank]
                for tag, mb in queue[: queue.index((edge.tag, run.mb)) + 1]:
                    if Recv(tag, mb) not in program:
                        program.append(Recv(tag, mb))
        program.append(run)
        out = [e for e in topology.edges if e.src == run.key and topology.crosses(e)]
        program += [Send(edge.tag, run.mb) for edge in out]
    return program


def _known(topology, programs, rank, step) -> int:
    """The first step at which all messages of the run at this step are known to be taken."""
    run, program = programs[rank][step], programs[rank]
    sends = [e for e in topology.edges if e.src == run.key and topology.crosses(e)]
    for at in range(step + len(sends), len(program)):
        if all(_replied(topology, programs, rank, at, e, run.mb) for e in sends):
            return at
    return len(program) - 1


def _replied(topology, programs, rank, at, edge, mb) -> bool:
    other = programs[topology.rank_of[edge.dst.stage]]
    after = other[other.index(Recv(edge.tag, mb)) :]
    return any(
        isinstance(now, Recv) and Send(now.tag, now.mb) in after for now in programs[rank][: at + 1]
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_topologies_are_lowered_by_definition(seed):
    rng = random.Random(seed)
    topology, mbs, update = random_topology(rng), rng.randint(1, 4), rng.random() < 0.5
    compute = random_lists(topology, mbs, rng)
    schedule = lower(topology, compute, update=update)
    assert [list(p) for p in schedule.programs] == by_definition(topology, compute, update)
    messages = Counter(i for p in schedule.programs for i in p if isinstance(i, (Send, Recv)))
    assert messages == Counter(
        kind(e.tag, mb)
        for e in topology.edges
        for kind in (Send, Recv)
        for mb in range(mbs)
        if topology.crosses(e)
    )


@pytest.mark.parametrize("seed", range(20))
def test_uncut_lists_are_lowered_like_those_that_spell_the_halves_out(seed):
    rng = random.Random(seed)
    topology = chain([rng.randrange(3) for _ in range(4)], split=True, segments=rng.randint(1, 3))
    whole = chain(topology.rank_of, segments=max(k.segment for k in topology.bodies) + 1)
    runs = random_lists(Sketch(whole.rank_of, whole.ranks, whole.bodies, whole.edges), 2, rng)
    halves = [
        [half for r in row for half in ([r] if r.phase == "F" else _halves(r))] for row in runs
    ]
    assert lower(topology, runs) == lower(topology, halves)


def _halves(run: Run) -> list[Run]:
    return [Run(run.stage, phase, run.mb, run.segment) for phase in "IW"]
