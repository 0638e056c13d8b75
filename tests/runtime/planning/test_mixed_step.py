"""Mixed steps: their programs, the proof of them, and the order of their micro-batches."""

from __future__ import annotations

from functools import partial
from itertools import permutations

import numpy as np
import pytest

from runtime.planning.costs.prices import NOMINAL
from runtime.planning.mixed_step import MixedTopology, _reordered, mix, mixed_costs
from runtime.planning.schedule_choice import compute_lists
from runtime.planning.step import Kind, StepBatches
from runtime.schedule.instructions import Run, Update
from runtime.schedule.lowering.lower import lower
from runtime.schedule.program import Program, Schedule
from runtime.schedule.replay import check, simulate
from symgraph.core.errors import ScheduleError
from tests.helpers.buckets import batch, lstm, make_buckets, options


def parts_of(*lengths, schedule="1f1b", devices=2, micro_batches=2, **more):
    made = options(devices, schedule, micro_batches, **more)
    buckets = make_buckets(lstm(), batch(max(lengths)), made)
    return StepBatches(tuple([buckets.plan(n, batch(n).descriptions) for n in lengths]))


def listing(schedule):
    return partial(compute_lists, schedule, None)


def test_micro_batches_are_numbered_through():
    parts = parts_of(7, 3, 7, micro_batches=3)
    assert parts.kinds == [
        Kind(0, 2),
        Kind(0, 1),
        Kind(0, 1),
        Kind(1, 2),
        Kind(1, 1),
        Kind(1, 1),
        Kind(0, 2),
        Kind(0, 1),
        Kind(0, 1),
    ]
    assert [mb.start for mb in parts.mbs] == [0, 2, 3] * 3
    assert [mb.sample for mb in parts.mbs] == [0, 2, 3, 4, 6, 7, 8, 10, 11]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "interleaved"])
def test_programs_run_each_kinds_own_bodies_once_and_update_once(schedule):
    parts = parts_of(7, 3, schedule=schedule, time_segment=2)
    made = mix(parts, listing(schedule), None)
    stages = len(parts.plans[0].partition.rank_of)
    runs = [i for program in made.schedule.programs for i in program if isinstance(i, Run)]
    wanted = [
        (key, mb) for mb, kind in enumerate(parts.kinds) for key in parts.partitions[kind].bodies
    ]
    assert sorted((run.key, run.mb) for run in runs) == sorted(wanted)
    updates = [i for program in made.schedule.programs for i in program if isinstance(i, Update)]
    assert sorted(u.stage for u in updates) == list(range(stages))


def test_the_union_numbers_there_and_back():
    parts = parts_of(7, 3)
    made = mix(parts, listing("1f1b"), None)
    union = MixedTopology.of(parts)
    for program in made.schedule.programs:
        there = union.numbered(program)
        assert there != program
        assert union.numbered(there, -1) == program


def test_a_run_on_another_buckets_stage_is_refused():
    parts = parts_of(7, 3, micro_batches=1)
    union = MixedTopology.of(parts)
    stages = len(parts.plans[0].partition.rank_of)
    lists = [union.numbered(p) for p in compute_lists("gpipe", None, (0, 1), 2)]
    right = lower(union, lists)
    check(right, union, 2, runs=union.runs)
    with pytest.raises(ScheduleError, match="never does"):
        check(right, union, 2)
    runs = union.runs
    runs[0, 0] = False
    with pytest.raises(ScheduleError, match="belongs to a micro-batch that does not run stage 0"):
        check(right, union, 2, runs=runs)
    missing = Schedule.of([[i for i in p if getattr(i, "stage", 0) < stages] for p in lists])
    with pytest.raises(ScheduleError, match=f"never does {stages}F1"):
        check(lower(union, missing.programs), union, 2, runs=union.runs)


@pytest.mark.every(3)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("lengths", [(60, 8), (30, 60, 8), (8, 60, 60)])
def test_the_order_is_the_best_of_those_simulated(schedule, lengths):
    parts = parts_of(*lengths, schedule=schedule, micro_batches=1)
    made = mix(parts, listing(schedule), None)
    union, costs = MixedTopology.of(parts), mixed_costs(parts, NOMINAL)
    lists = compute_lists(schedule, None, (0, 1), len(lengths))
    given = lower(union, [union.numbered(p) for p in lists], update=True)
    assert made.seconds <= simulate(given, union, costs).makespan * (1 + 1e-9)
    assert sorted(made.order) == list(range(len(lengths)))


def test_one_step_of_two_batches_is_shorter_than_a_step_for_each():
    """The second batch fills the pipeline while the first drains."""
    parts = parts_of(60, 8, micro_batches=2)
    together = mix(parts, listing("1f1b"), None).seconds
    alone = [mix(StepBatches((plan,)), listing("1f1b"), None).seconds for plan in parts.plans]
    assert together < 0.95 * sum(alone)


def test_buckets_on_other_stages_cannot_be_in_one_step():
    first = parts_of(7, devices=2).plans[0]
    second = parts_of(3, devices=1).plans[0]
    with pytest.raises(ScheduleError, match=r"has stages on ranks \(0,\), the first one on \(0, 1"):
        mix(StepBatches((first, second)), listing("1f1b"), None)


def test_a_micro_batch_runs_only_the_stages_of_its_kind():
    union = MixedTopology.of(parts_of(7, 3, micro_batches=1))
    np.testing.assert_array_equal(union.runs, [[1, 0], [1, 0], [0, 1], [0, 1]])


@pytest.mark.parametrize("lengths", [(16, 4, 4, 4), (12, 8, 3)])
def test_no_order_is_much_shorter_than_the_chosen_one(lengths):
    """Only three orders were tried; a short one first and the longest next is 7 % shorter."""
    parts = parts_of(*lengths, micro_batches=1)
    made = mix(parts, listing("1f1b"), None)
    union = MixedTopology.of(parts)
    costs = mixed_costs(parts, NOMINAL)
    lists = [Program.of(runs) for runs in compute_lists("1f1b", None, (0, 1), len(lengths))]

    def seconds(order):
        renamed = [union.numbered(_reordered(program, order)) for program in lists]
        return simulate(lower(union, renamed, update=True), union, costs).makespan

    least = min(map(seconds, permutations(range(len(lengths)))))
    assert made.seconds <= 1.01 * least
