"""Choices: schedules by name and from files, time segments, recomputation, memory limits."""

from __future__ import annotations

import gc
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import symgraph.frontend.sym as sym
from partitioner import Partition, plan_memory
from partitioner.costs.cost import Speed
from runtime.engine.worker import Worker
from runtime.planning.costs.prices import CostModel
from runtime.planning.draft import Draft
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.schedule_choice import _best_length
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.replay import Link, memory_profile, simulate
from runtime.schedule.text import dump_csv
from symgraph.core.context import cpu
from symgraph.core.errors import ConfigError, LimitError, ScheduleError
from tests.helpers.pipelines import Case, assert_same_bits, make_plan, on_threads
from tests.helpers.recurrent import lstm_case

GROUPS = {f"layer{i}": cpu(i) for i in range(3)} | {"head": cpu(2)}
PRICES = CostModel.alike(Speed(1e9, 1e-5), Link(1e-4, 1e9))


def planned(steps: int = 8, **how: object) -> Plan:
    case = lstm_case(3, steps, batch=8, hidden=6)
    options = Options(GROUPS, cpu(0), (), micro_batches=4, pricing=lambda graph, contexts: PRICES)
    return make_plan(case, replace(options, **how))


def seconds(made: Plan) -> float:
    partition = made.partition
    costs = PRICES.costs(partition, made.overheads())
    return simulate(made.schedule, partition, costs).makespan


# -- what is said ----------------------------------------------------------------------------------


def test_an_unknown_schedule():
    with pytest.raises(ConfigError, match="no schedule 'gpip'; did you mean 'gpipe'"):
        planned(schedule="gpip")


def test_order_is_gpipes():
    forward = planned(schedule="gpipe", order="forward")
    runs = [str(i) for i in forward.schedule.programs[2] if str(i).startswith("2B")]
    assert runs == ["2B0", "2B1", "2B2", "2B3"]
    with pytest.raises(ConfigError, match="order is for the schedule gpipe, not for 1f1b"):
        planned(schedule="1f1b", order="forward")


def test_time_segments_of_a_network_without_time_steps():
    x = sym.MakeLoss(sym.tanh(sym.Variable("x")), name="loss")
    case = Case(x, {}, {"x": np.ones(3)})
    with pytest.raises(ConfigError, match="no node of the network has a time step: unroll it"):
        make_plan(case, Options(time_segment=2))
    assert make_plan(case, Options(time_segment="auto")).choice.time_segment is None


def test_stages_that_there_are_not():
    with pytest.raises(ConfigError, match="recompute: no stage 7; the stages are 0 to 2"):
        planned(recompute=(1, 7))


@pytest.mark.parametrize("name", ["mine.txt", "mine.csv"])
def test_a_schedule_from_a_file_runs(tmp_path, name):
    """1F1B's runs, written to a file, give 1F1B's programs."""
    lists = SCHEDULES["1f1b"]((0, 1, 2), 4)
    path = tmp_path / name
    if name.endswith(".csv"):
        dump_csv(lists, path)
    else:
        path.write_text("\n".join(f"rank {r}: {p}" for r, p in enumerate(lists)))
    assert planned(schedule=str(path)).schedule == planned(schedule="1f1b").schedule


def test_a_whole_program_from_a_file_runs(tmp_path):
    want = planned(schedule="zb-h1", time_segment=3)
    path = tmp_path / "programs.txt"
    path.write_text(str(want.schedule))
    made = planned(schedule=str(path), time_segment=3)
    assert made.schedule == want.schedule


def test_a_schedule_of_another_network_is_refused(tmp_path):
    path = tmp_path / "two.txt"
    path.write_text("0F0 0B0\n1F0 1B0")
    with pytest.raises(ScheduleError, match="never does"):
        planned(schedule=str(path))


# -- what is left open -----------------------------------------------------------------------------


@pytest.mark.slow
def test_auto_takes_the_shortest_step_of_all():
    made = planned(schedule="auto")
    assert seconds(made) <= min(seconds(planned(schedule=name)) for name in SCHEDULES)
    assert {t.schedule for t in made.candidates} == {*SCHEDULES, "auto"}
    taken = min(t.seconds for t in made.candidates)
    assert taken == pytest.approx(seconds(made))


def test_plans_that_are_not_chosen_are_freed_at_once(monkeypatch):
    """Each network's plans referred to themselves: until the end they held 2 GiB for a seq2seq."""

    def there() -> list[object]:
        return [o for o in gc.get_objects() if type(o) in (Draft, Partition)]

    monkeypatch.setattr("runtime.planning.planner.trim_heap", lambda: None)  # it collects as well
    gc.disable()
    try:
        before = there()
        made = planned(2, schedule="auto")
        assert len(made.candidates) > 5
        assert all(c.peak and c.account is None for c in made.candidates)  # counted in the end
        del made
        assert len(there()) == len(before)  # which still are, as this list has them
    finally:
        gc.enable()


@pytest.mark.slow
def test_auto_gives_the_same_bits():
    case = lstm_case(2, 4)
    groups = {"layer0": cpu(0), "layer1": cpu(1), "head": cpu(1)}
    how = {"schedule": "auto", "micro_batches": 2, "pricing": lambda graph, contexts: PRICES}
    for segment in (None, 2):
        alone = on_threads(case, Options(micro_batches=2, time_segment=segment))
        split = on_threads(case, Options(groups, cpu(0), time_segment=segment, **how))
        assert_same_bits(split, alone)


@pytest.mark.slow
def test_time_segments_are_found():
    """k* = sqrt(T·a / ((p - 1)·c)) and its neighbours; the shortest step of them is taken."""
    made = planned(steps=16, schedule="wavefront", time_segment="auto", micro_batches=1)
    assert {t.time_segment for t in made.candidates} > {None}
    assert made.choice.time_segment is not None
    whole = planned(steps=16, schedule="wavefront", micro_batches=1)
    assert seconds(made) < 0.7 * seconds(whole)
    every = [
        seconds(planned(steps=16, schedule="wavefront", micro_batches=1, time_segment=k))
        for k in range(1, 17)
    ]
    assert seconds(made) <= 1.1 * min(every)


@pytest.mark.slow
def test_expensive_instructions_make_long_segments():
    taken = []
    for overhead in (1e-7, 1e-4, 1e-1):
        prices = CostModel.alike(Speed(1e9, 1e-5), Link(1e-5, 1e9), overhead)
        made = planned(
            steps=16,
            schedule="wavefront",
            time_segment="auto",
            micro_batches=1,
            pricing=lambda graph, contexts, prices=prices: prices,
        )
        taken.append(made.choice.time_segment or 16)
    assert taken == sorted(taken)
    assert taken[0] < 4
    assert taken[-1] == 16


def test_the_formula():
    class Two:
        """A draft of two stages, 100 steps of 0.01 s on the slower one."""

        steps = 100
        placement = type("P", (), {"stages": 2})
        whole = type("W", (), {"bodies": [type("K", (), {"phase": "F"})]})

    costs = type("C", (), {"run": staticmethod(lambda key: 1.0)})
    prices = type("Q", (), {"costs": lambda self, p: costs, "link": Link(0.01), "overhead": 0.0})()
    assert _best_length(Two, prices) == pytest.approx((100 * 0.01 / 0.01) ** 0.5)


# -- memory ----------------------------------------------------------------------------------------


def peak(made: Plan) -> int:
    return max(m.peak for m in made.memory)


def test_a_schedule_that_needs_more_names_the_smallest_limit():
    need = peak(planned(schedule="gpipe"))
    assert peak(planned(schedule="gpipe", memory=need)) == need
    with pytest.raises(ScheduleError) as error:
        planned(schedule="gpipe", memory=need - 1)
    message = str(error.value)
    assert f"({need} bytes) on cpu(" in message
    assert "that is the smallest limit that works; recompute: auto may do with less" in message


def test_recompute_auto_does_no_more_than_it_must():
    free = planned(schedule="gpipe", recompute="auto")
    assert free.choice.recompute == ()
    need, least = peak(free), peak(planned(schedule="gpipe", recompute="all"))
    assert least < 0.8 * need
    some = planned(schedule="gpipe", recompute="auto", memory=need - 1)
    assert 1 <= len(some.choice.recompute) < 3
    assert peak(some) < need
    assert peak(planned(schedule="gpipe", recompute="auto", memory=least)) <= least
    with pytest.raises(ScheduleError) as error:
        planned(schedule="gpipe", recompute="auto", memory=least // 2)
    (found,) = re.findall(r"\((\d+) bytes\)", str(error.value))
    assert int(found) == least
    assert "recompute" not in str(error.value)


@pytest.mark.every(12)
@pytest.mark.parametrize("time_segment", [None, 1, 3])
@pytest.mark.parametrize("micro_batches", [1, 3, 8])
def test_a_rank_takes_what_is_planned_to_the_byte(micro_batches, time_segment):
    """What packing leaves unused is counted, and each micro-batch with its own size.

    Workers are made on a new thread, as in a run: kernels keep their scratch memory per thread, and
    this one may have run convolutions before.
    """
    case = lstm_case(3, 8, batch=8, hidden=6)
    thread = ThreadPoolExecutor(1)
    for schedule in SCHEDULES:
        made = make_plan(
            case, Options(GROUPS, cpu(0), (), schedule, micro_batches, time_segment=time_segment)
        )
        for rank, memory in enumerate(made.memory):
            names = made.parameters
            arrays = {n: case.arrays[n] for n in names if made.rank_of(n) == rank}
            held = memory.gradients + memory.activations + memory.transient + memory.scratch
            assert thread.submit(lambda w: Worker(*w).held, (made, rank, arrays)).result() == held
            assert memory.parameters == sum(a.nbytes for a in arrays.values())


def test_a_limit_is_kept_to_by_what_is_packed():
    """Of this step less is held at once, but packing leaves some unused."""
    made = planned(schedule="zb-h2", micro_batches=8)
    need, cut = peak(made), made.partition
    account = plan_memory(cut, grads=made.grads, parameters=made.parameters, several=True)
    assert max(m.peak for m in memory_profile(made.schedule, cut, account, 8)) < need
    assert peak(planned(schedule="zb-h2", micro_batches=8, memory=need)) == need
    with pytest.raises(LimitError, match=rf"\({need} bytes\) on cpu"):
        planned(schedule="zb-h2", micro_batches=8, memory=need - 1)


@pytest.mark.slow
def test_auto_keeps_to_the_limit():
    limit = peak(planned(schedule="1f1b"))
    made = planned(schedule="auto", memory=limit)
    assert peak(made) <= limit
    assert seconds(made) <= seconds(planned(schedule="1f1b"))
    assert any(t.seconds is None and t.peak > limit for t in made.candidates)
