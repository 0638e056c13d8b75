"""Searches: what is found is best by simulation, proved, and made again by the winner's config."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any
from unittest.mock import Mock

import pytest

from partitioner.costs.cost import Speed
from runtime.planning.buckets import largest_first
from runtime.planning.costs.files import load_prices
from runtime.planning.costs.prices import CostModel, always
from runtime.planning.mixed_step import predict
from runtime.profiling.search import winner as module
from runtime.profiling.search.epoch import Epoch, alike, epoch_of
from runtime.profiling.search.search import Found, _Tried, search
from runtime.profiling.search.winner import evidence, gain_of_search, write_winner
from runtime.profiling.trials.baseline import baseline_of
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.message_costs import Link
from runtime.training.data.table import load_data
from runtime.training.job import job_of, training_plan
from runtime.training.trainer import Trainer
from runtime.transports import make_cluster
from symgraph.app.config import Config, load_config
from symgraph.core.errors import LimitError
from tests.helpers.profiles import config, costs
from tests.helpers.small_lm import write_bucketed

NARROW, SHORT = "partition.memory=1kB", "data.sequence_length=1"
SMALL = ("data.batch_size=2", "data.sequence_length=2", "pipeline.micro_batches=2")
pytestmark = pytest.mark.xdist_group("search")  # a worker of xdist searches once for all tests

ENOUGH = 600.0  # seconds in which nothing is left out, on a busy machine that compiles as well


def found_for(given: Config, **limits: Any) -> Found:
    prices = load_prices(str(given.partition.costs))
    return search(given, lambda graph, contexts: prices, **limits)


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> Config:
    return config(tmp_path_factory.mktemp("search"), *SMALL)


@pytest.fixture(scope="module")
def found(given) -> Found:
    return found_for(given, seconds=ENOUGH)


@pytest.mark.slow
def test_candidates_are_sorted_and_nothing_beats_their_bounds(found):
    seconds = [candidate.seconds for candidate in found.candidates]
    assert seconds == sorted(seconds)
    assert len({c.name for c in found.candidates}) == len(found.candidates) >= 2
    for candidate in found.candidates:
        assert 0 < candidate.bound <= candidate.seconds * (1 + 1e-9)
    assert {1, 2} <= {len(c.plan.sizes) for c in found.candidates}
    assert found.simulated > 40
    assert found.left_out == 0


@pytest.mark.slow
def test_the_users_own_placement_takes_part(given, found):
    assert found.given is not None
    assert found.given.plan.digest == training_plan(given).training.digest
    assert found.given in found.candidates
    assert found.candidates[0].seconds <= found.given.seconds
    assert found.given.name.endswith("as given")


@pytest.mark.slow
def test_the_best_is_tried_with_and_without_time_segments(found):
    """Of the same micro-batches and splits: kernels of other lengths may be priced wrongly."""
    kinds = {(len(c.plan.sizes), c.splits): set[bool]() for c in found.candidates if not c.quick}
    for c in found.candidates:
        if not c.quick and not c.given:
            kinds[len(c.plan.sizes), c.splits].add(c.plan.choice.time_segment is None)
    assert {True, False} in kinds.values()


@pytest.mark.slow
def test_pins_are_kept_if_there_is_a_strategy(tmp_path):
    pinned = config(
        tmp_path,
        *SMALL,
        "group2ctx={embed: cpu(1)}",
        "partition.strategy=optimal",
        "partition.split=none",
    )
    searched = found_for(pinned)
    assert searched.given is None
    for candidate in searched.candidates:
        placement = candidate.plan.partition.placement
        assert str(placement.device_of("embed")) == "cpu(1)"


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, -1])
def test_the_winners_config_makes_its_plan_again(found, tmp_path, at):
    """With the costs and the schedule in files of their own where that is wanted."""
    winner, path = found.candidates[at], tmp_path / "winner.yaml"
    write_winner(winner, found, None, path, "config.yaml")
    again = load_config(str(path), (), schedules=None, strategies=None)
    assert training_plan(again).training.digest == winner.plan.digest
    lines = path.read_text().splitlines()
    assert lines[0] == "# found by: symgraph search config.yaml"
    assert f"# {evidence(winner, found, None).lines[0]}" in lines
    assert [line for line in lines if line.startswith("# ->")] or at == -1


@pytest.mark.slow
def test_a_winners_schedule_is_beside_it_whatever_its_name(found, tmp_path):
    """`--winner best.txt` wrote the config over the schedule that it names."""
    best = found.candidates[0]
    listed = replace(best.plan, choice=replace(best.plan.choice, schedule="auto"))
    winner = replace(best, planned=replace(best.planned, training=listed))
    written = write_winner(winner, found, None, tmp_path / "best.txt", "config.yaml")
    assert written.pipeline.schedule == str(tmp_path / "best.schedule.txt")
    again = load_config(str(tmp_path / "best.txt"), (), schedules=None, strategies=None)
    assert training_plan(again).training.digest == winner.plan.digest


@pytest.mark.slow
@pytest.mark.parametrize("says", ["nodes", "nothing"])
def test_a_winner_whose_placement_groups_cannot_say(found, tmp_path, monkeypatch, says):
    """A quick winner's file had its schedule, but the planner placed the network anew.

    So training ended with "R2.0 refers to edge 2, but there are only 2 edges".
    """
    winner = next(c for c in found.candidates if c.quick and not c.given)
    assert found.given is not None
    path, other = tmp_path / "winner.yaml", found.given.config
    monkeypatch.setattr(module, "_by_groups", lambda config, plan: other)
    if says == "nothing":
        monkeypatch.setattr(module, "_by_nodes", lambda config, plan: other)
        monkeypatch.setattr(module, "_digest", lambda config, prices: "")
    written = write_winner(winner, found, None, path, "config.yaml")
    if says == "nodes":
        assert [*written.partition.constraints[-1]] == ["pin"]
        assert written.partition.costs is None
        again = load_config(str(path), (), schedules=None, strategies=None)
        others = CostModel.alike(Speed(1e9, 0.0), Link(1.0, 1e6))  # by which one device is best
        assert training_plan(again, always(others)).training.digest == winner.plan.digest
    else:  # another plan, with a schedule that fits it
        assert written.pipeline == winner.config.pipeline
        assert written.partition.costs == str(tmp_path / "winner.costs.json")


def with_one_device(given: Config, found: Found) -> Found:
    prices = load_prices(str(given.partition.costs))
    return found.with_baseline(baseline_of(given), always(prices), alike)


@pytest.mark.slow
def test_one_device_is_a_candidate_and_may_win(given, found, tmp_path):
    whole = with_one_device(given, found)
    one = whole.baseline
    assert one in whole.candidates
    assert one.name == "one device, 1 micro-batch"
    assert (one.plan.placement.stages, whole.simulated) == (1, found.simulated + 1)
    seconds = [candidate.seconds for candidate in whole.candidates]
    assert seconds == sorted(seconds)
    gain = gain_of_search(whole, None)
    best = min((c for c in found.candidates), key=lambda c: (c.quick, c.seconds))
    assert (gain.step, gain.alone, gain.name) == (best.seconds, one.seconds, best.name)
    assert "simulated" in gain.lines()[0]
    path = tmp_path / "winner.yaml"
    write_winner(one, whole, None, path, "config.yaml")
    assert path.read_text().splitlines()[2] == f"# {gain.lines()[0]}"
    again = load_config(str(path))
    assert again.devices == ("cpu(0)",)
    assert training_plan(again).training.digest == one.plan.digest


@pytest.mark.slow
def test_one_device_that_is_too_small_is_said_to_be(given, found):
    assert gain_of_search(found, None) is None
    partition = given.partition.model_copy(update={"memory": 1000})
    limited = with_one_device(given.model_copy(update={"partition": partition}), found)
    assert limited.candidates == found.candidates
    (line,) = gain_of_search(limited, None).lines()
    assert line.startswith("2 devices: one device alone cannot hold this network: ")
    assert evidence(found.candidates[0], limited, None).lines[0] == line


@pytest.mark.slow
def test_no_time_is_one_candidate(given):
    hurried = found_for(given, seconds=0.0)
    assert len([c for c in hurried.candidates if not c.given]) == 1
    assert hurried.left_out > 0


def test_a_limit_that_nothing_keeps_to(tmp_path):
    with pytest.raises(LimitError, match="limit works") as refused:
        found_for(config(tmp_path, *SMALL, SHORT, NARROW))
    named = f"partition.memory={refused.value.smallest}"
    assert found_for(config(tmp_path, *SMALL, SHORT, named), seconds=0.0).candidates


def test_pins_that_no_row_of_devices_keeps_are_searched_too(tmp_path):
    """It failed, as candidates are planned quickly in rows first."""
    groups = "group2ctx={embed: cpu(0), layer0: cpu(1), layer1: cpu(0), decode: cpu(1)}"
    pinned = config(tmp_path, *SMALL, groups, "partition.strategy=auto", "partition.split=none")
    for candidate in found_for(pinned, seconds=0.0).candidates:
        on = [candidate.plan.placement.device_of(f"layer{i}_t0_i2h") for i in range(2)]
        assert list(map(str, on)) == ["cpu(1)", "cpu(0)"]


def test_what_fits_as_given_is_found_though_nothing_else_does(given, monkeypatch):
    """It failed with the limit that another candidate needs."""

    def add(tried: _Tried, *of: Any, **how: Any) -> None:
        tried.failed.append(LimitError("too large", 1))

    monkeypatch.setattr(_Tried, "add", add)
    found = found_for(given)
    assert found.candidates == (found.given,)


def test_the_limit_that_an_error_names_is_the_smallest_of_all_tries(given, monkeypatch):
    """It was that of the last try, with the most micro-batches."""
    refusals = cycle(LimitError("too large", size) for size in (2000, 1000, 3000))
    monkeypatch.setattr(_Tried, "plan", Mock(side_effect=refusals))
    with pytest.raises(LimitError) as refused:
        found_for(given)
    assert refused.value.smallest == 1000


@pytest.mark.slow
def test_a_limit_that_recomputation_keeps_to(given, found, tmp_path):
    """Candidates that are too large are left out, others run forward again."""
    peaks = [max(m.peak for m in c.plan.memory) for c in found.candidates]
    limit = min(peaks) + 64  # strategies count before anything is laid out, some bytes too many
    assert limit < max(peaks)
    narrow = config(tmp_path, *SMALL, f"partition.memory={limit}", "partition.split=none")
    for candidate in found_for(narrow).candidates:
        assert max(m.peak for m in candidate.plan.memory) <= limit


# -- buckets ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucketed(tmp_path_factory) -> Config:
    folder = tmp_path_factory.mktemp("buckets")
    path = write_bucketed(folder, "buckets: [4, 9], batches_per_step: 2", longest=9)
    more = (
        f"partition.costs={costs(folder)}",
        "data.batch_size=2",
        "pipeline.micro_batches=2",
        "partition.split=none",
    )
    return load_config(str(path), more)


@pytest.fixture(scope="module")
def epoch(bucketed) -> Epoch:
    return epoch_of(bucketed, load_data(bucketed))(training_plan(bucketed))


@pytest.fixture(scope="module")
def best(bucketed, epoch) -> Found:
    return found_for(bucketed, epoch=lambda planned: epoch)


def test_an_epoch_counts_which_buckets_come_together(bucketed, epoch):
    batches = load_data(bucketed).source("training", bucketed, None)
    keys = [
        sorted((b.bucket_key for b in batches.batches(n)), reverse=True)
        for n in range(len(batches))
    ]
    parts = dict(epoch)
    assert sum(parts.values()) == pytest.approx(1)
    assert len(epoch) > 2
    for mixture, part in epoch:
        assert part == pytest.approx(keys.count(list(mixture)) / len(keys))
    assert list(parts.values()) == sorted(parts.values(), reverse=True)


@pytest.mark.slow
def test_micro_batches_by_time_are_those_of_each_candidates_prices(bucketed):
    data = bucketed.data.model_copy(update={"micro_batches": "by_time", "window": 2})
    by_time = bucketed.model_copy(update={"data": data})
    found = found_for(by_time, epoch=epoch_of(by_time, load_data(by_time)), seconds=1.0)
    planned = found.candidates[0].planned
    source = load_data(by_time).source("training", planned.config, None)
    source.plan(planned.buckets)
    keys = [
        tuple(b.bucket_key for b in largest_first(source.batches(n))) for n in range(len(source))
    ]
    parts = dict(epoch_of(by_time, load_data(by_time))(planned))
    assert {*parts} <= {*keys}
    assert sum(parts.values()) == pytest.approx(1)
    assert found.candidates[0].seconds > 0


@pytest.mark.slow
def test_candidates_count_by_the_mean_step_of_an_epoch(best, epoch):
    seconds = [candidate.seconds for candidate in best.candidates]
    assert seconds == sorted(seconds)
    for candidate in best.candidates:
        steps = [(part, candidate.planned.step(keys)) for keys, part in epoch]
        mean = sum(part * predict(step, candidate.prices).makespan for part, step in steps)
        assert candidate.seconds == pytest.approx(mean)
        assert 0 < candidate.even <= candidate.bound <= candidate.seconds * (1 + 1e-9)
        assert candidate.plan.choice.schedule in SCHEDULES
    assert {1, 2} <= {len(c.plan.sizes) for c in best.candidates}
    assert best.given is not None


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, -1])
def test_the_winner_of_buckets_makes_its_plans_again_and_trains(best, epoch, tmp_path, at):
    winner, path = best.candidates[at], tmp_path / "winner.yaml"
    write_winner(winner, best, None, path, "config.yaml")
    again = load_config(str(path), ["train.steps=2"], schedules=None, strategies=None)
    planned = training_plan(again)
    for keys, _ in epoch:
        assert planned.step(keys).digest == winner.planned.step(keys).digest
    with make_cluster("threads", 2) as cluster:
        assert Trainer(job_of(planned), cluster, load_data(again)).fit()["steps"] == 2
