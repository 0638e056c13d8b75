"""Profiles of steps that differ in their buckets: every mixture counts as often as it came."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import astuple, replace

import numpy as np
import pytest

from runtime.engine.stopwatch import Laps
from runtime.planning.costs.prices import NOMINAL
from runtime.profiling.analysis.profile import profile_of
from runtime.profiling.analysis.record import Record
from runtime.profiling.analysis.rows import COPIES
from runtime.profiling.analysis.waits import reasons, waits
from runtime.profiling.report.csv import tables
from runtime.profiling.report.text import figures
from runtime.profiling.report.trace import shown
from runtime.profiling.report.views import exhibit
from runtime.profiling.trials.trial import Trial
from runtime.schedule.instructions import Recv, Run
from runtime.schedule.views.trace import shown_events
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.transports import ThreadCluster
from symgraph.app.config import load_config
from tests.helpers.profiles import BUCKETED, bucketed_profile, costs, said_of, small_profile
from tests.helpers.small_lm import write_bucketed
from tests.runtime.profiling.test_profiling import flops_of_calls

LAYERS, MICRO_BATCHES = 2, 4


@pytest.fixture(scope="module")
def came(tmp_path_factory) -> Counter[tuple[int, ...]]:
    """How often which buckets came together."""
    given = load_config(str(write_bucketed(tmp_path_factory.mktemp("data"))))
    batches = load_data(given).source("training", given, None)
    keys = ([b.bucket_key for b in batches.batches(n)] for n in range(BUCKETED))
    return Counter(tuple(sorted(of_step, reverse=True)) for of_step in keys)


@pytest.mark.slow
def test_mixtures_are_those_that_came(came):
    profile = bucketed_profile()
    assert len(came) > 2
    assert {m.record.keys: m.record.steps for m in profile.mixtures} == came
    assert sum(m.weight for m in profile.mixtures) == pytest.approx(1)
    numbers = sorted(n for m in profile.mixtures for n in m.record.numbers)
    assert numbers == list(range(BUCKETED))
    weighted = sum(m.weight * m.seconds for m in profile.mixtures)
    assert profile.step == pytest.approx(weighted)
    assert profile.every(predicted=True).mean() == pytest.approx(profile.predicted_step)


@pytest.mark.slow
def test_the_parts_of_every_rank_add_up_to_the_mean_step():
    profile = bucketed_profile()
    for own in profile.parts:
        assert own.total == pytest.approx(profile.step, rel=1e-9)
        assert min(astuple(own.time)) >= 0


def test_calls_are_those_of_each_micro_batchs_own_bucket():
    for mixture in bucketed_profile().mixtures:
        parts = mixture.record.parts
        for mb, place in enumerate(parts.mbs):
            own = [call for call in mixture.calls if call.mb == mb]
            bodies = parts.partitions[place.kind].bodies.values()
            assert sum(call.flops for call in own) == sum(map(flops_of_calls, bodies))


def test_rows_are_means_over_all_steps(came):
    """A call of the gates for each layer, time step and micro-batch, of every batch that came."""
    rows = {row.name: row for row in bucketed_profile().operators}
    words = sum(times * sum(lengths) for lengths, times in came.items())
    assert rows["_lstm_gates"].calls == pytest.approx(LAYERS * MICRO_BATCHES * words / BUCKETED)
    runs = 2 * MICRO_BATCHES * 2 * 2  # batches, micro-batches, stages, phases
    assert rows[COPIES].calls == pytest.approx(runs)
    assert sum(row.share for row in rows.values()) == pytest.approx(1)
    bodies = bucketed_profile().bodies
    assert {row.bucket for row in bodies} == {"4", "7", "12"}
    assert sum(row.calls for row in bodies) == pytest.approx(runs)


def steady(record: Record, first: int, steps: int = 4) -> Record:
    """The record of a run all of whose steps take what its median step took.

    first: number of the first of them.
    """
    at = [record.median_step] * steps
    ranks = [
        own._replace(
            walls=own.walls[at],
            start=own.start[at],
            end=own.end[at],
            calls=Laps(own.calls.start[at], own.calls.end[at]),
        )
        for own in record.ranks
    ]
    counts, numbers = np.resize(record.counts, steps), np.arange(first, first + steps)
    return replace(record, ranks=tuple(ranks), numbers=numbers, counts=counts)


@pytest.mark.parametrize("make", [small_profile, bucketed_profile])
def test_of_steady_steps_the_operators_are_all_that_is_computed(make):
    """And the parts of every rank are the measured step, to the nanosecond."""
    seen = make()
    records = [steady(m.record, 4 * at) for at, m in enumerate(seen.mixtures)]
    profile = profile_of(records, NOMINAL, seen.speeds, records[0].plan)
    assert sum(row.seconds for row in profile.operators) == pytest.approx(profile.compute, rel=1e-9)
    for own in profile.parts:
        assert own.total == pytest.approx(profile.step, rel=1e-9)
    assert re.search(r"add up to .*, the ranks computed .* \([+-]0\.0%\)", said_of(profile))


@pytest.mark.slow
def test_a_mixed_step_holds_what_was_accounted_for(tmp_path):
    """Parameters, optimizer and the arena; what comes after an instruction is never more."""
    priced = f"partition.costs={costs(tmp_path)}"
    given = load_config(str(write_bucketed(tmp_path)), [priced, "blas_threads=1"])
    with ThreadCluster(2) as cluster:
        trial = Trial.of(given, cluster, steps=BUCKETED)
        trial.run(BUCKETED)
        profile = trial.profile()
        stages = trial.summary(profile)["stages"]
    assert max(len(m.record.keys) for m in profile.mixtures) == 2
    for row in stages:
        assert row["peak_bytes_predicted"] == pytest.approx(row["peak_bytes_measured"], rel=0.05)
    for mixture in profile.mixtures:
        for memory, program in zip(
            mixture.memory, mixture.record.step.schedule.programs, strict=True
        ):
            assert len(memory.profile) == len(program)
            assert memory.profile.max() <= memory.peak
            assert memory.profile.min() >= memory.parameters + memory.optimizer > 0


def test_longer_batches_hold_more_and_one_alone_what_its_plan_says(tmp_path):
    buckets = prepare(load_config(str(write_bucketed(tmp_path)))).buckets
    buckets.plan(4, ())
    assert buckets.step([12]).memory == buckets.default.memory
    mixed, longer = (buckets.step(keys).memory for keys in ([12, 4], [12, 12]))
    for less, more in zip(mixed, longer, strict=True):
        assert less.peak < more.peak


def test_a_typical_step_is_shown_with_its_buckets():
    profile = bucketed_profile()
    typical = profile.typical
    every = sorted(profile.every())
    assert every[(BUCKETED - 1) // 2] in typical.record.seconds
    text = said_of(profile)
    assert f"measured step of buckets {typical.name}" in text
    assert "steps by their buckets" in text
    assert len(reasons(profile)) == 2
    found = json.loads(json.dumps(figures(profile)))
    assert sum(row["steps"] for row in found["mixtures"]) == BUCKETED
    view = exhibit(profile)["views"]["measured"]
    hover = [line for boxes in view["boxes"] for box in boxes for line in box[4]]
    assert any(f"bucket {typical.record.keys[-1]}" in line for line in hover)
    assert json.dumps(exhibit(profile))
    _, rows = tables(profile)["mixtures"]
    assert sum(row[1] for row in rows) == BUCKETED


def test_messages_of_a_mixed_step_are_those_of_their_bucket():
    """In traces and in what ranks are said to wait for."""
    profile = bucketed_profile()
    mixed = [m for m in profile.mixtures if len(set(m.record.keys)) == 2]  # one is typical
    profile = replace(profile, mixtures=mixed)
    record = profile.typical.record
    events = [e for one in shown(profile) for e in shown_events(one)]
    carried = {
        (e["args"]["edge"], e["args"]["micro-batch"]): e["args"]["bytes"]
        for e in events
        if e.get("cat") == "receive"
    }
    assert carried
    for (tag, mb), nbytes in carried.items():
        partition = record.parts.partitions[record.parts.mbs[mb].kind]
        assert nbytes == partition.edges[tag].type.nbytes
    for rank, track in enumerate(profile.typical.measured.tracks):
        spent = sum(
            end - start
            for now, start, end in zip(track.program, track.start, track.end, strict=True)
            if isinstance(now, Recv)
        )
        waited = waits(profile.typical.measured, record, rank)
        assert sum(waited.values()) == spent
        sources = {record.union.rank_of[record.union.edges[tag].src.stage] for tag in waited}
        assert sources <= {1 - rank}


def test_the_prediction_runs_the_same_programs():
    for mixture in bucketed_profile().mixtures:
        for measured, predicted in zip(
            mixture.measured.tracks, mixture.predicted.tracks, strict=True
        ):
            assert measured.program == predicted.program
            assert any(isinstance(now, Run) for now in predicted.program)
