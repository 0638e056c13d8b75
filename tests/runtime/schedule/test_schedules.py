"""Schedules against golden text, published figures and what any ranks and micro-batches ask for."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from runtime.schedule.generators.forward import forward_only
from runtime.schedule.generators.gpipe import gpipe
from runtime.schedule.generators.segments import expand
from runtime.schedule.generators.table import SCHEDULES, find_schedule
from runtime.schedule.generators.zb_h1 import zb_h1
from runtime.schedule.instructions import Run
from runtime.schedule.program import Program
from symgraph.core.errors import ConfigError
from tests.runtime.schedule.chains import GRID
from tests.runtime.schedule.ideal import Ideal, Lists, costs, ideal, peak
from tests.runtime.schedule.write_golden import CASES, FOLDER, golden

SMALL = [(v, m, p) for v in (1, 2, 3) for m in (1, 2, 3, 7) for p in (1, 2, 5)]
ODD_RANKS = {
    "V": [0, 1, 1, 0],
    "V of one rank": [0, 0],
    "W": [0, 1, 2, 2, 1, 0, 0, 1, 2],
    "unbalanced": [0, 0, 1, 1, 0],
    "backwards": [3, 2, 1, 0],
    "ranks without stages": [1, 4, 1],
    "blocks": [0, 0, 0, 1, 1, 2],
    "there and back": [0, 1, 0, 1, 2, 0],
    "loop cut short": [0, 1, 2, 0, 1],
}


def loop(ranks: int, stages_a_rank: int = 1) -> list[int]:
    return list(range(ranks)) * stages_a_rank


def vee(ranks: int) -> list[int]:
    return [*range(ranks), *reversed(range(ranks))]


def simulated(name: str, rank_of: list[int], mbs: int, hop: Fraction | int = 0) -> Ideal:
    """F = 1 and B = 2, I = W = 1 for all stages of a rank together."""
    share = len(rank_of) // (max(rank_of) + 1)
    return ideal(SCHEDULES[name](rank_of, mbs), rank_of, costs(share), hop)


def assert_valid(lists: Lists, rank_of: list[int], mbs: int) -> None:
    """Everything once, on its rank, in an order that the ranks can run in."""
    programs = as_tuples(lists)
    assert len(programs) == max(rank_of) + 1
    phases: dict[tuple[int, int], str] = {}
    for rank, program in enumerate(programs):
        assert {rank_of[stage] for stage, _, _ in program} <= {rank}
        for stage, phase, mb in program:
            phases[stage, mb] = phases.get((stage, mb), "") + phase
    assert set(phases) == {(stage, mb) for stage in range(len(rank_of)) for mb in range(mbs)}
    assert set(phases.values()) <= {"FB", "FIW"}
    assert_runs(programs, len(rank_of))


def as_tuples(lists: Lists) -> list[list[tuple[int, str, int]]]:
    return [[(run.stage, run.phase, run.mb) for run in runs] for runs in lists]


def assert_runs(programs: list[list[tuple[int, str, int]]], stages: int) -> None:
    """The ranks come to their end, whatever their runs take."""
    ended: set[tuple[int, str, int]] = set()
    done = [0] * len(programs)
    before = None
    while before != done:
        before = list(done)
        for rank, program in enumerate(programs):
            while done[rank] < len(program) and may_run(*program[done[rank]], stages, ended):
                stage, phase, mb = program[done[rank]]
                ended.add((stage, "B" if phase == "I" else phase, mb))
                done[rank] += 1
    assert done == [len(program) for program in programs]


def may_run(stage: int, phase: str, mb: int, stages: int, ended: set[tuple[int, str, int]]) -> bool:
    if phase == "F":
        return stage == 0 or (stage - 1, "F", mb) in ended
    if phase == "W":
        return (stage, "B", mb) in ended
    behind = (stage + 1, "B", mb) if stage < stages - 1 else (stage, "F", mb)
    return behind in ended and (stage, "F", mb) in ended


@pytest.mark.every(4)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("v", "mbs", "ranks"), GRID + SMALL)
def test_the_grid_is_valid(name, v, mbs, ranks):
    assert_valid(SCHEDULES[name](loop(ranks, v), mbs), loop(ranks, v), mbs)
    if v == 2:
        assert_valid(SCHEDULES[name](vee(ranks), mbs), vee(ranks), mbs)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("rank_of", ODD_RANKS.values(), ids=ODD_RANKS)
@pytest.mark.parametrize("mbs", [1, 2, 3, 8])
def test_stages_may_be_on_any_ranks(name, rank_of, mbs):
    assert_valid(SCHEDULES[name](rank_of, mbs), rank_of, mbs)


@pytest.mark.parametrize("name", SCHEDULES)
def test_random_ranks_and_micro_batches_are_valid(name):
    rng = random.Random(5)
    for _ in range(60):
        ranks = rng.randint(1, 6)
        rank_of = [rng.randrange(ranks) for _ in range(rng.randint(1, 14))]
        mbs = rng.randint(1, 12)
        assert_valid(SCHEDULES[name](rank_of, mbs), rank_of, mbs)


def test_interleaved_rounds_that_do_not_divide_are_valid():
    for ranks in range(1, 8):
        for v in (2, 3, 5):
            for mbs in range(1, 3 * ranks + 2):
                lists = SCHEDULES["interleaved"](loop(ranks, v), mbs)
                assert_runs(as_tuples(lists), v * ranks)


@pytest.mark.parametrize("name", golden())
def test_golden(name):
    """The texts are made by tests/runtime/schedule/write_golden.py."""
    assert golden()[name] == (FOLDER / f"{name}.txt").read_text()


def test_every_schedule_has_a_golden_text():
    assert {schedule for schedule, _, _ in CASES.values()} == set(SCHEDULES)
    assert {path.stem for path in FOLDER.iterdir()} == set(golden())


# Ranks, micro-batches; then the lengths of 1F1B, ZB-H1, interleaved with 2 and 4 stages a rank.
LENGTHS = [
    (2, 4, 15, 13, "13.5", "12.75"),
    (4, 4, 21, 15, "16.5", "14.25"),
    (4, 8, 33, 27, "28.5", "26.25"),
    (8, 8, 45, 31, "34.5", "29.25"),
    (8, 32, 117, 103, "106.5", "101.25"),
]


@pytest.mark.parametrize(("ranks", "mbs", "plain", "zb", "two", "four"), LENGTHS)
def test_ideal_lengths(ranks, mbs, plain, zb, two, four):
    assert simulated("1f1b", loop(ranks), mbs).makespan == plain
    assert simulated("gpipe", loop(ranks), mbs).makespan == plain
    assert simulated("zb-h1", loop(ranks), mbs).makespan == zb
    for v, length in ((2, two), (4, four)):
        assert simulated("interleaved", loop(ranks, v), mbs).makespan == Fraction(length)
        assert simulated("looped-bfs", loop(ranks, v), mbs).makespan == Fraction(length)


@pytest.mark.parametrize(
    ("name", "v", "lengths"),
    [
        ("gpipe", 1, "33 33.6 34.5 36"),
        ("1f1b", 1, "33 34.6 37 41"),
        ("interleaved", 2, "28.5 29.9 32 35.5"),
        ("zb-h1", 1, "27 28.2 30 33"),
    ],
)
def test_lengths_where_hops_take_time(name, v, lengths):
    hops = map(Fraction, ("0", "0.1", "0.25", "0.5"))
    got = [simulated(name, loop(4, v), 8, hop).makespan for hop in hops]
    assert got == [Fraction(length) for length in lengths.split()]


@pytest.mark.parametrize("mbs", [1, 2, 3, 8])
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_1f1b_holds_no_more_than_its_depth(stages, mbs):
    lists = SCHEDULES["1f1b"](loop(stages), mbs)
    assert [peak(runs) for runs in lists] == [min(stages - s, mbs) for s in range(stages)]


@pytest.mark.parametrize(("ranks", "mbs"), [(1, 3), (2, 4), (4, 8), (5, 20), (8, 8)])
def test_zb_h1_has_a_third_of_the_bubble_in_the_memory_of_1f1b(ranks, mbs):
    assert simulated("zb-h1", loop(ranks), mbs).makespan == 3 * mbs + ranks - 1
    assert {peak(runs, "W") for runs in zb_h1(loop(ranks), mbs)} == {min(ranks, mbs)}


@pytest.mark.parametrize(("ranks", "mbs"), [(1, 3), (2, 4), (4, 8), (5, 20), (8, 8)])
def test_gpipe_2bp_never_waits_for_gradients_of_weights(ranks, mbs):
    assert simulated("gpipe-2bp", loop(ranks), mbs).makespan == 2 * (mbs + ranks - 1) + mbs
    assert {peak(runs, "W") for runs in SCHEDULES["gpipe-2bp"](loop(ranks), mbs)} == {mbs}


@pytest.mark.parametrize("v", [2, 3, 4])
@pytest.mark.parametrize(("ranks", "mbs"), [(2, 2), (2, 8), (4, 4), (4, 8), (4, 16), (8, 32)])
def test_interleaved_bubble_and_chunks_in_flight(ranks, v, mbs):
    lists = SCHEDULES["interleaved"](loop(ranks, v), mbs)
    assert peak(lists[0]) == min(mbs * v, v * ranks + ranks - 1)
    assert ideal(lists, loop(ranks, v), costs(v)).makespan == 3 * mbs + Fraction(3 * ranks - 3, v)


def test_interleaved_with_one_stage_a_rank_is_1f1b():
    assert SCHEDULES["interleaved"](loop(4), 6) == SCHEDULES["1f1b"](loop(4), 6)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_zb_h2_never_waits(ranks):
    for mbs in (2 * ranks - 1, 2 * ranks, 5 * ranks):
        lists = SCHEDULES["zb-h2"](loop(ranks), mbs)
        timeline = ideal(lists, loop(ranks), costs())
        assert set(timeline.spans) == {3 * mbs}
        assert timeline.makespan == 3 * mbs + ranks - 1
        assert {peak(runs, "W") for runs in lists} == {2 * ranks - 1}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_zb_v_never_waits_in_the_memory_of_1f1b(ranks):
    for mbs in (2 * ranks - 1, 2 * ranks, 5 * ranks):
        lists = SCHEDULES["zb-v"](vee(ranks), mbs)
        timeline = ideal(lists, vee(ranks), costs(2))
        assert set(timeline.spans) == {3 * mbs}
        assert timeline.makespan == 3 * mbs + Fraction(ranks - 1, 2)
        assert {peak(runs, "W") for runs in lists} == {2 * ranks}


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_dualpipe_v_bubble_and_memory(ranks):
    for mbs in (2 * ranks, 2 * ranks + 3, 5 * ranks):
        lists = SCHEDULES["dualpipe-v"](vee(ranks), mbs)
        assert {peak(runs, "BW") for runs in lists} == {2 * ranks + 1}
        length = ideal(lists, vee(ranks), costs(2)).makespan
        assert length == 3 * mbs + Fraction(ranks - 1, 2)


def test_zero_bubble_schedules_keep_to_their_limits_on_any_ranks():
    rng = random.Random(11)
    for _ in range(40):
        rank_of = [rng.randrange(4) for _ in range(rng.randint(1, 12))]
        used = len(set(rank_of))
        for name, limit in (("zb-h1", used), ("zb-h2", 2 * used - 1)):
            for rank, runs in enumerate(SCHEDULES[name](rank_of, rng.randint(1, 12))):
                assert peak(runs, "W") <= rank_of.count(rank) * limit


def test_looped_bfs_goes_back_in_reverse():
    for runs in SCHEDULES["looped-bfs"](loop(3, 2), 5):
        assert [run.mb for run in runs if run.phase == "B"] == [4, 3, 2, 1, 0] * 2
        stages = [run.stage for run in runs if run.phase == "B"]
        assert stages == sorted(stages, reverse=True)


def test_gpipe_may_go_back_in_forward_order_which_takes_as_long():
    lists = gpipe(loop(4), 8, order="forward")
    assert [run.mb for run in lists[1] if run.phase == "B"] == list(range(8))
    assert ideal(lists, loop(4), costs()).makespan == 33
    unbalanced = ODD_RANKS["unbalanced"]
    assert_valid(gpipe(unbalanced, 4, order="forward"), unbalanced, 4)
    with pytest.raises(ConfigError, match=r"no order 'revers'; did you mean 'reverse'\?"):
        gpipe(loop(2), 2, order="revers")


@pytest.mark.parametrize(("steps", "fixed", "length"), [(6, 2, 104), (15, 10, 175), (60, 0, 240)])
def test_wavefront_over_time_segments(steps, fixed, length):
    """60 time steps of length 1 in segments, each with a fixed cost, on 4 ranks."""
    cost = costs(forward=steps + fixed, backward=0, weight=0)
    forward = expand(forward_only(loop(4), 1), 60 // steps)
    assert ideal(forward, loop(4), cost).makespan == length
    both = expand(SCHEDULES["wavefront"](loop(4), 3), 60 // steps)
    cost["B"] = cost["F"]
    assert ideal(both, loop(4), cost).makespan == 3 * 2 * length
    assert {peak([run for run in runs if not run.segment]) for runs in both} == {1}


def test_expand_turns_backward_phases_round():
    runs = [Run(0, phase, 7) for phase in "FBIW"]
    (program,) = expand([runs], 2)
    assert str(program) == "0F7 0F7.1 0B7.1 0B7 0I7.1 0I7 0W7.1 0W7"
    assert expand([runs, []], 1) == [runs, []]
    assert [column.dtype for column in program.columns] == ["uint8", "int32", "int32", "int32"]


@pytest.mark.parametrize("name", SCHEDULES)
def test_expanded_lists_come_to_their_end(name):
    for rank_of in (loop(3), vee(3), loop(2, 3)):
        lists = SCHEDULES[name](rank_of, 4)
        ideal(expand(lists, 3), rank_of, costs())


@pytest.mark.parametrize("name", SCHEDULES)
def test_programs_are_columns_of_the_right_kind(name):
    for rank_of in (loop(2), vee(2), ODD_RANKS["ranks without stages"]):
        for program in SCHEDULES[name](rank_of, 4):
            assert isinstance(program, Program)
            assert [c.dtype for c in program.columns] == ["uint8", "int32", "int32", "int32"]
            assert all(column.flags.c_contiguous for column in program.columns)


def test_1f1b_of_many_ranks_is_what_each_rank_can_work_out_alone():
    """Forwards to fill the stages behind, then a forward and a backward in turns."""
    for rank, program in enumerate(SCHEDULES["1f1b"](loop(64), 100)):
        warm = 63 - rank
        forward = [Run(rank, "F", mb) for mb in range(100)]
        backward = [Run(rank, "B", mb) for mb in range(100)]
        turns = [run for both in zip(forward[warm:], backward, strict=False) for run in both]
        assert program == forward[:warm] + turns + backward[100 - warm :]


def test_forward_only_has_no_backward():
    assert forward_only(ODD_RANKS["unbalanced"], 2) == [
        [
            Run(0, "F", 0),
            Run(1, "F", 0),
            Run(0, "F", 1),
            Run(1, "F", 1),
            Run(4, "F", 0),
            Run(4, "F", 1),
        ],
        [Run(2, "F", 0), Run(3, "F", 0), Run(2, "F", 1), Run(3, "F", 1)],
    ]


def test_the_ideal_timeline_notices_lists_that_stop():
    lists = [[Run(0, "B", 0), Run(0, "F", 0)], [Run(1, "F", 0), Run(1, "B", 0)]]
    with pytest.raises(ValueError, match="no rank can continue: 0B0, 1F0"):
        ideal(lists, [0, 1], costs())


def test_unknown_schedule_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"no schedule 'guipe'; did you mean 'gpipe'\?"):
        find_schedule("guipe")


@pytest.mark.timeout(120)
def test_thousands_of_ranks_do_not_take_minutes():
    """The list scheduler asked every free rank at every tick: many minutes for 20,000 ranks."""
    make = SCHEDULES["1f1b"]
    make(range(2), 2)  # compiles
    lists = make(range(20_000), 2)
    assert [str(p) for p in lists[-2:]] == [
        "19998F0 19998F1 19998B0 19998B1",
        "19999F0 19999B0 19999F1 19999B1",
    ]
