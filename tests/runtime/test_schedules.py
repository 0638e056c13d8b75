"""Schedules as text, against pictures and properties."""

from __future__ import annotations

import pytest

from runtime.instructions import Run, parse, text
from runtime.schedules import SCHEDULES, find_schedule, forward_only, gpipe, one_f_one_b
from symgraph.errors import ConfigError, ScheduleError


def lines(ranks: list[list[Run]]) -> list[str]:
    return [text(program) for program in ranks]


def test_gpipe_runs_backward_in_reverse_order():
    assert lines(gpipe([0, 1, 2], 3)) == [
        "0F0 0F1 0F2 0B2 0B1 0B0",
        "1F0 1F1 1F2 1B2 1B1 1B0",
        "2F0 2F1 2F2 2B2 2B1 2B0",
    ]


def test_1f1b_three_stages():
    assert lines(one_f_one_b([0, 1, 2], 4)) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]


def test_gpipe_on_a_rank_with_two_stages_goes_through_them_and_back():
    assert lines(gpipe([0, 1, 0], 2)) == [
        "0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0",
        "1F0 1F1 1B1 1B0",
    ]


@pytest.mark.parametrize("mbs", [1, 2, 3, 8])
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_1f1b_holds_no_more_than_its_depth(stages, mbs):
    for stage, program in enumerate(one_f_one_b(list(range(stages)), mbs)):
        held = peak = 0
        for run in program:
            held += 1 if run.phase == "F" else -1
            peak = max(peak, held)
        assert peak == min(stages - stage, mbs)
        assert held == 0


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("mbs", [1, 2, 5])
@pytest.mark.parametrize("rank_of", [[0], [0, 1], [0, 1, 0], [1, 0, 1, 0], [0, 1, 2, 0, 1, 2]])
def test_every_stage_runs_every_micro_batch_once_forward_before_backward(name, mbs, rank_of):
    ranks = SCHEDULES[name](rank_of, mbs)
    for rank, program in enumerate(ranks):
        own = [s for s, r in enumerate(rank_of) if r == rank]
        wanted = {Run(s, p, m) for s in own for p in "FB" for m in range(mbs)}
        assert len(program) == len(wanted)
        assert set(program) == wanted
        for run in wanted:
            if run.phase == "B":
                assert program.index(Run(run.stage, "F", run.mb)) < program.index(run)


def test_forward_only_has_no_backward():
    assert lines(forward_only([0, 1], 2)) == ["0F0 0F1", "1F0 1F1"]


def test_unknown_schedule_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"no schedule 'guipe'; did you mean 'gpipe'\?"):
        find_schedule("guipe")


def test_text_round_trip():
    program = "R0.1 0F1 S12.1 D0F1 0B1 C U0"
    schedule = parse([f"rank 0: {program}", "1F10"])
    assert str(schedule) == f"rank 0: {program}\nrank 1: 1F10"
    assert parse(str(schedule).splitlines()) == schedule


def test_unknown_token_names_token_rank_and_position():
    with pytest.raises(ScheduleError, match="rank 1, instruction 2: '2Q0' is none of"):
        parse(["0F0", "1F0 1B0 2Q0"])
