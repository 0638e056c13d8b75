"""The check: each way a schedule can be wrong has its own words; none that is right is refused."""

from __future__ import annotations

import pytest

from partitioner.base.chain import chain
from runtime.schedule.generators.segments import expand
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import Run
from runtime.schedule.lowering.lower import lower
from runtime.schedule.program import Schedule
from runtime.schedule.replay import check
from runtime.schedule.text import parse
from symgraph.core.errors import ScheduleError
from tests.runtime.schedule.programs import sketch

ONE = ["0F0 D0F0 0B0 D0B0"]
TWO = [  # edge 0: forward, edge 1: its gradient back
    "0F0 S0.0 R1.0 D0F0 0B0 D0B0",
    "R0.0 1F0 D1F0 1B0 S1.0 D1B0",
]
CUT = ["0F0 D0F0 0I0 D0I0 0W0 D0W0"]
TIME = ["0F0 D0F0 0F0.1 D0F0.1 0B0.1 D0B0.1 0B0 D0B0"]
ACT, GRAD = "edge 0 (act0.0 0F->1F int8[0])", "edge 1 (grad1.0 1B->0B int8[0])"


def passes(lines, topology, mbs: int = 1, capacity: int | None = 0) -> None:
    check(parse(lines), topology, mbs, capacity=capacity)


def refused(lines, why: str, topology=None, mbs: int = 1, capacity: int | None = 0) -> None:
    with pytest.raises(ScheduleError) as error:
        passes(lines, topology or chain([0, 1]), mbs, capacity)
    assert str(error.value) == why


def test_the_schedules_that_the_others_are_made_from_are_valid():
    passes(ONE, chain([0]))
    passes(TWO, chain([0, 1]))
    passes(CUT, chain([0], split=True))
    passes(TIME, chain([0], segments=2))


# -- what there must be: pipelines 4 -------------------------------------------------------------


def test_missing_rank():
    refused(TWO[:1], "1 program for 2 ranks")
    refused([*TWO, "rank 2:"], "3 programs for 2 ranks")


def test_missing_run():
    refused(["0F0 D0F0 D0B0"], "rank 0 never does 0B0 for body 0B", chain([0]))
    refused(
        [CUT[0].replace(" 0W0", "")], "rank 0 never does 0W0 for body 0W", chain([0], split=True)
    )
    refused(
        [TIME[0].replace(" 0F0.1", "")],
        "rank 0 never does 0F0.1 for body 0F.1",
        chain([0], segments=2),
    )


def test_missing_micro_batch():
    refused(ONE, "rank 0 never does 0F1 for body 0F", chain([0]), mbs=2)


def test_missing_free():
    refused(["0F0 D0F0 0B0"], "rank 0 never does D0B0 for body 0B", chain([0]))


def test_missing_message():
    refused(
        [TWO[0].replace("S0.0 ", ""), TWO[1].replace("R0.0 ", "")],
        f"rank 0 never does S0.0 for {ACT}",
    )


def test_send_without_receive():
    """The receiver's body would be named as well, but the message is what is wrong."""
    refused(
        [TWO[0], TWO[1].replace("R0.0 ", "")],
        f"rank 0, step 1: S0.0 of {ACT} is never received: rank 1 lacks R0.0",
    )


def test_receive_without_send():
    refused(
        [TWO[0], TWO[1].replace("S1.0 ", "")],
        f"rank 0, step 2: R1.0 of {GRAD} is never sent: rank 1 lacks S1.0",
    )


def test_duplicates():
    """PyTorch's validation keeps sets, so it does not see these."""
    refused([ONE[0] + " 0F0"], "rank 0, step 4: 0F0 already stands at step 0", chain([0]))
    refused([ONE[0] + " D0F0"], "rank 0, step 4: D0F0 already stands at step 1", chain([0]))
    refused([TWO[0] + " S0.0", TWO[1]], "rank 0, step 6: S0.0 already stands at step 1")
    refused([TWO[0] + " R1.0", TWO[1]], "rank 0, step 6: R1.0 already stands at step 2")
    refused([ONE[0] + " C U0 U0"], "rank 0, step 6: U0 already stands at step 5", chain([0]))
    passes([ONE[0] + " C C1 C U0"], chain([0]))


# -- what there must not be ----------------------------------------------------------------------


def test_unknown_stage():
    why = "refers to stage 5, but there are only 2 stages"
    refused([TWO[0] + " 5F0", TWO[1]], f"rank 0, step 6: 5F0 {why}")
    refused([TWO[0] + " D5F0", TWO[1]], f"rank 0, step 6: D5F0 {why}")
    refused([TWO[0] + " C U5", TWO[1]], f"rank 0, step 7: U5 {why}")


def test_unknown_edge():
    why = "refers to edge 7, but there are only 2 edges"
    refused([TWO[0] + " S7.0", TWO[1]], f"rank 0, step 6: S7.0 {why}")
    refused([TWO[0], TWO[1] + " R7.0"], f"rank 1, step 6: R7.0 {why}")


def test_unknown_phase_and_segment():
    why = "but the bodies of stage 0 are 0F, 0B"
    refused(["0F0 D0F0 0W0"], f"rank 0, step 2: 0W0 refers to body 0W, {why}", chain([0]))
    refused(["0F0.1"], f"rank 0, step 0: 0F0.1 refers to body 0F.1, {why}", chain([0]))
    refused(["D0F0.1"], f"rank 0, step 0: D0F0.1 refers to body 0F.1, {why}", chain([0]))


def test_unknown_micro_batch():
    why = "refers to micro-batch 1, but there is only 1 micro-batch"
    refused([ONE[0] + " 0F1"], f"rank 0, step 4: 0F1 {why}", chain([0]))
    refused([TWO[0] + " S0.1", TWO[1]], f"rank 0, step 6: S0.1 {why}")
    below = Schedule.of([[Run(0, "F", -1)]])
    with pytest.raises(ScheduleError, match="0F-1 refers to micro-batch -1, but there is only 1"):
        check(below, chain([0]), 1)
    with pytest.raises(ScheduleError, match="0 micro-batches"):
        check(Schedule.of([[]]), chain([0]), 0)


def test_stage_on_two_ranks():
    refused(
        [TWO[0] + " 1F0", TWO[1]],
        "rank 0, step 6: 1F0 belongs to rank 1: stage 1 cannot be on two ranks",
    )
    refused(
        [TWO[0], TWO[1].replace(" D1B0", "") + " D0B0"],
        "rank 1, step 5: D0B0 belongs to rank 0: stage 0 cannot be on two ranks",
    )


def test_instructions_on_the_wrong_rank():
    """Where a stage has nothing on its own rank, only that one is named."""
    refused(TWO[::-1], f"rank 0, step 0: R0.0 belongs to rank 1, where {ACT} ends")
    refused(["S1.0", "rank 1:"], f"rank 0, step 0: S1.0 belongs to rank 1, where {GRAD} begins")
    refused(["1F0", "0F0"], "rank 0, step 0: 1F0 belongs to rank 1")
    refused(
        [TWO[0] + " C U1", TWO[1] + " C U0"],
        "rank 0, step 7: U1 belongs to rank 1: stage 1 cannot be on two ranks",
    )


def test_message_within_a_rank():
    within = sketch([0, 1, 0], "0F 1F 2F", ["a 0F->1F", "a 0F->2F"])
    why = "belongs to edge 1 (a 0F->2F float32[2]), whose ends are both on rank 0"
    passes(["0F0 S0.0 2F0 D2F0 D0F0", "R0.0 1F0 D1F0"], within)
    refused(["0F0 S1.0", "rank 1:"], f"rank 0, step 1: S1.0 {why}", within)
    refused(["0F0 R1.0", "rank 1:"], f"rank 0, step 1: R1.0 {why}", within)


# -- order ---------------------------------------------------------------------------------------


def test_backward_before_forward():
    refused(
        ["0B0 0F0 D0F0 D0B0"],
        "rank 0, step 0: 0B0 needs what its forward run keeps, but 0F0 does not come before it",
        chain([0]),
    )
    refused(
        ["0I0 0F0 D0F0 D0I0 0W0 D0W0"],
        "rank 0, step 0: 0I0 needs what its forward run keeps, but 0F0 does not come before it",
        chain([0], split=True),
    )


def test_weight_gradients_before_input_gradients():
    refused(
        ["0F0 D0F0 0W0 0I0 D0W0 D0I0"],
        "rank 0, step 2: 0W0 needs what its input-gradient run keeps, "
        "but 0I0 does not come before it",
        chain([0], split=True),
    )


def test_segments_out_of_order():
    refused(
        ["0F0.1 0F0 D0F0.1 D0F0 0B0.1 D0B0.1 0B0 D0B0"],
        "rank 0, step 0: 0F0.1 needs segment 0 first, as F segments rise, "
        "but 0F0 does not come before it",
        chain([0], segments=2),
    )
    refused(
        ["0F0 0F0.1 D0F0 D0F0.1 0B0 0B0.1 D0B0 D0B0.1"],
        "rank 0, step 4: 0B0 needs segment 1 first, as B segments fall, "
        "but 0B0.1 does not come before it",
        chain([0], segments=2),
    )
    refused(
        ["0F0 0F0.1 D0F0 D0F0.1 0I0.1 0I0 0W0 0W0.1 D0I0.1 D0I0 D0W0 D0W0.1"],
        "rank 0, step 6: 0W0 needs segment 1 first, as W segments fall, "
        "but 0W0.1 does not come before it",
        chain([0], segments=2, split=True),
    )


def test_run_before_the_receive_it_needs():
    refused(
        [TWO[0], "1F0 R0.0 D1F0 1B0 S1.0 D1B0"],
        f"rank 1, step 0: 1F0 needs {ACT}, but R0.0 does not come before it",
    )


def test_run_before_the_run_of_another_stage_that_it_needs():
    refused(
        ["1F0 0F0 D1F0 D0F0"],
        "rank 0, step 0: 1F0 needs edge 0 (a 0F->1F float32[2]), but 0F0 does not come before it",
        sketch([0, 0], "0F 1F", ["a 0F->1F"]),
    )


def test_send_before_the_run_that_makes_its_value():
    refused(
        ["S0.0 0F0 R1.0 D0F0 0B0 D0B0", TWO[1]],
        f"rank 0, step 0: S0.0 comes before 0F0 makes {ACT}",
    )


def test_send_after_the_next_run_of_its_stage():
    """0F0's value is kept for 0B0, which drops it: such a send found nothing (fake cluster)."""
    refused(
        ["0F0 0B0 S0.0 D0F0 D0B0", "R0.0 1F0 D1F0"],
        "rank 0, step 2: S0.0 comes after 0B0, which may drop edge 0 (y 0F->1F float32[2]): a body "
        "must send before its stage runs the micro-batch again",
        sketch([0, 1], "0F 0B 1F", ["y 0F->1F"]),
    )


def test_free_before_the_run():
    refused(["D0F0 0F0 0B0 D0B0"], "rank 0, step 0: D0F0 comes before 0F0", chain([0]))


def test_free_before_the_send():
    refused(
        ["0F0 D0F0 S0.0 R1.0 0B0 D0B0", TWO[1]],
        f"rank 0, step 1: D0F0 comes before S0.0, so {ACT} is freed while needed",
    )


def test_frees_out_of_the_order_of_the_runs():
    refused(
        ["0F0 0B0 D0B0 D0F0"],
        "rank 0, step 2: D0B0 comes before D0F0: "
        "a stage must free a micro-batch in the order of its runs",
        chain([0]),
    )
    cut = chain([0], split=True, segments=2)
    start = "0F0 D0F0 0F0.1 D0F0.1 0I0.1"
    for rest in ("0W0.1 0I0 0W0 D0I0.1 D0W0.1 D0I0 D0W0", "0I0 0W0.1 0W0 D0I0.1 D0I0 D0W0.1 D0W0"):
        passes([f"{start} {rest}"], cut)  # I of the one and W of the other run in any order
        with pytest.raises(ScheduleError, match=r"D\S+ comes before D0I0\.1: a stage must free"):
            passes([f"{start} {rest}".replace("D0I0.1 ", "") + " D0I0.1"], cut)


def test_update_before_the_reduction_or_before_its_stage_is_done():
    passes([ONE[0] + " C U0"], chain([0]))
    passes(["C " + ONE[0] + " C U0"], chain([0]))
    refused([ONE[0] + " U0 C"], "rank 0, step 4: U0 comes before C", chain([0]))
    refused([ONE[0] + " C1 U0"], "rank 0, step 5: U0 comes before C", chain([0]))
    refused(["0F0 D0F0 C U0 0B0 D0B0"], "rank 0, step 3: U0 comes before 0B0", chain([0]))
    refused(["0F0 D0F0 0B0 C U0 D0B0"], "rank 0, step 4: U0 comes before D0B0", chain([0]))
    refused(
        ["0F0 D0F0 C 0B0 D0B0 U0"],
        "rank 0, step 2: C comes before 0B0, whose gradients U0 uses",
        chain([0]),
    )


def test_all_stages_are_updated_or_none():
    refused(
        [TWO[0] + " C U0", TWO[1] + " C"],
        "rank 1 never does U1 for the gradients of body 1B, but rank 0 does U0",
    )
    untrained = sketch([0, 1], "0F 1F 1B", ["a 0F->1F"])
    passes(["0F0 S0.0 C D0F0", "R0.0 1F0 D1F0 1B0 D1B0 C U1"], untrained)


# -- between ranks -------------------------------------------------------------------------------


def test_messages_of_a_channel_in_another_order_than_sent():
    lines = [
        "0F0 S0.0 0F1 S0.1 R1.1 D0F0 D0F1 0B1 D0B1 R1.0 0B0 D0B0",
        "R0.1 1F1 D1F1 R0.0 1F0 D1F0 1B1 S1.1 1B0 S1.0 D1B1 D1B0",
    ]
    refused(
        lines,
        f"rank 1, step 0: R0.1 of {ACT} is out of order: "
        f"of the messages from rank 0 to rank 1, S0.0 of {ACT} is next",
        mbs=2,
    )
    two_edges = sketch([0, 1], "0F 1F", ["a 0F->1F", "b 0F->1F"])
    refused(
        ["0F0 S1.0 S0.0 D0F0", "R0.0 R1.0 1F0 D1F0"],
        "rank 1, step 0: R0.0 of edge 0 (a 0F->1F float32[2]) is out of order: of the messages "
        "from rank 0 to rank 1, S1.0 of edge 1 (b 0F->1F float32[2]) is next",
        two_edges,
    )


def test_collectives_that_do_not_meet():
    refused([TWO[0] + " C", TWO[1]], "rank 0, step 6: C is one too many: rank 1 does 0 collectives")
    refused([TWO[0], "C " + TWO[1]], "rank 1, step 0: C is one too many: rank 0 does 0 collectives")
    refused(
        [TWO[0] + " C C1", TWO[1] + " C1 C"],
        "rank 1, step 6: C1 meets C of rank 0, step 6: all ranks must do the same collectives in "
        "the same order",
    )


def test_every_collective_waits_for_all_ranks():
    """The first one lets both go on; the second one is not reached by rank 1, which waits for 0."""
    one_way = sketch([0, 1], "0F 1F", ["a 0F->1F"])
    refused(
        ["C 0F0 C S0.0 D0F0", "C R0.0 1F0 D1F0 C"],
        "no rank can continue:\n"
        "  rank 0, step 2: C waits for the other ranks\n"
        "  rank 1, step 1: R0.0 waits for S0.0 of rank 0 (a)",
        one_way,
    )
    passes(["C 0F0 S0.0 C D0F0", "C R0.0 1F0 D1F0 C"], one_way)


def test_crossed_sends_tell_where_every_rank_stands():
    """Each rank frees a message, which waits until it is taken, before it takes the other's."""
    crossed = [
        "0F0 S0.0 0F1 S0.1 D0F0 D0F1 R1.0 0B0 D0B0 R1.1 0B1 D0B1",
        "R0.0 1F0 D1F0 1B0 S1.0 D1B0 R0.1 1F1 D1F1 1B1 S1.1 D1B1",
    ]
    table = (
        "no rank can continue:\n"
        "  rank 0, step 5: D0F1 waits until rank 1 takes S0.1\n"
        "  rank 1, step 5: D1B0 waits until rank 0 takes S1.0"
    )
    refused(crossed, table, mbs=2)
    passes(crossed, chain([0, 1]), 2, capacity=1)  # buffered, it goes through
    passes(crossed, chain([0, 1]), 2, capacity=None)


ROUND = sketch([0, 1, 0], "0F 1F 2F", ["a 0F->1F", "b 1F->2F"])


@pytest.mark.parametrize("capacity", [0, 1, 2, 3])
def test_channels_hold_as_many_messages_as_they_should(capacity):
    """Rank 1 goes on for n messages more than are taken, rank 0 needs all but n of them taken."""
    for mbs in range(1, 2 * capacity + 4):
        there = " ".join(f"0F{m} S0.{m}" for m in range(mbs))
        freed = " ".join(f"D0F{m}" for m in range(mbs))
        back = " ".join(f"R1.{m} 2F{m} D2F{m}" for m in range(mbs))
        lines = [
            f"{there} {freed} {back}",
            " ".join(f"R0.{m} 1F{m} S1.{m} D1F{m}" for m in range(mbs)),
        ]
        passes(lines, ROUND, mbs, None)
        if mbs <= 2 * capacity + 1:
            passes(lines, ROUND, mbs, capacity)
        else:
            with pytest.raises(ScheduleError, match="no rank can continue"):
                passes(lines, ROUND, mbs, capacity)


def test_a_free_waits_for_all_its_messages():
    fan = sketch([0, 1, 2], "0F 1F 2F", ["a 0F->1F", "a 0F->2F", "b 1F->2F"])
    lines = ["0F0 S0.0 S1.0 D0F0", "R0.0 1F0 S2.0 D1F0", "R2.0 R1.0 2F0 D2F0"]
    passes(lines, fan)
    stuck = ["0F0 S0.0 S1.0 D0F0 C", "C R0.0 1F0 S2.0 D1F0", "C R2.0 R1.0 2F0 D2F0"]
    table = (
        "no rank can continue:\n"
        "  rank 0, step 3: D0F0 waits until rank 1 takes S0.0, rank 2 takes S1.0\n"
        "  rank 1, step 0: C waits for the other ranks\n"
        "  rank 2, step 0: C waits for the other ranks"
    )
    refused(stuck, table, fan)
    passes(stuck, fan, capacity=1)


def test_ranks_that_are_done_stand_at_their_end():
    other = sketch([0, 1, 2], "0F 1F 2F", ["a 0F->1F", "b 1F->0F"])
    refused(
        ["R1.0 0F0 S0.0 D0F0", "R0.0 1F0 S1.0 D1F0", "2F0 D2F0"],
        "no rank can continue:\n"
        "  rank 0, step 0: R1.0 waits for S1.0 of rank 1 (b)\n"
        "  rank 1, step 0: R0.0 waits for S0.0 of rank 0 (a)\n"
        "  rank 2 has finished",
        other,
        capacity=None,
    )


def test_capacities_are_not_negative():
    with pytest.raises(ScheduleError, match="channels of capacity -1"):
        passes(ONE, chain([0]), capacity=-1)


@pytest.mark.timeout(120)
def test_thousands_of_time_segments_do_not_take_minutes():
    """The facts of a cut looked at all segments for each one: many minutes for 2,000 of them."""
    topology = chain(range(2), segments=2000)
    check(lower(topology, expand(SCHEDULES["gpipe"](range(2), 1), 2000)), topology, 1)
