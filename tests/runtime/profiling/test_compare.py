"""Comparisons: candidates in alternation, ranked by what they did, on one page."""

from __future__ import annotations

import csv
import html
from functools import partial
from pathlib import Path

import pytest

from runtime.planning.costs.prices import NOMINAL
from runtime.planning.mixed_step import mix, predict, sent_bytes
from runtime.planning.schedule_choice import compute_lists
from runtime.profiling.trials import compare as module
from runtime.profiling.trials.compare import compare, promising
from runtime.profiling.trials.comparison import Comparison
from runtime.profiling.trials.outcome import held_bytes
from runtime.profiling.trials.trial import Trial
from runtime.schedule.replay import simulate
from runtime.training.clusters import Clusters
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.summary import plan_rows
from symgraph.app.config import load_config
from symgraph.core.errors import LimitError
from symgraph.core.units import seconds_text, value_text
from tests.helpers import browser as web
from tests.helpers.profiles import config, costs
from tests.helpers.small_lm import write_bucketed

pytestmark = pytest.mark.xdist_group("compare")  # a worker of xdist compares once

ONE = ["devices=[cpu(0)]", "pipeline.micro_batches=1", "blas_threads=auto"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Comparison:
    folder = tmp_path_factory.mktemp("compare")
    configs = {"two": config(folder), "one": config(folder, *ONE)}
    clusters = Clusters({})
    try:
        return compare(configs, clusters.of, steps=7)
    finally:
        clusters.close()


@pytest.mark.slow
def test_the_fastest_is_first_and_all_did_as_many_steps(compared):
    assert {c.name for c in compared.ranking} == {"one", "two"}
    speeds = [c.figures.per_second for c in compared.ranking]
    assert speeds == sorted(speeds, reverse=True)
    assert [c.outcome.profile.steps for c in compared.ranking] == [8, 8]  # whole turns
    for c in compared.ranking:
        assert c.figures.step == c.outcome.profile.step
        assert c.figures.per_second == pytest.approx(30 / c.outcome.profile.step)
        assert (c.figures.bytes_sent > 0) == (c.name == "two")
        assert c.figures.peak > 0
        assert 0 <= c.figures.imbalance < 1


@pytest.mark.slow
def test_turns_go_forwards_and_backwards(tmp_path, monkeypatch):
    """Nobody always comes after the same one, and what a turn begins with is not counted."""
    turns = []
    run = Trial.run

    def spy(trial: Trial, steps: int = 1, *, keep: bool = True) -> None:
        if keep:
            turns.append(len(trial.job.config.devices))
        run(trial, steps, keep=keep)

    monkeypatch.setattr(module.Trial, "run", spy)
    clusters = Clusters({})
    configs = {"two": config(tmp_path), "one": config(tmp_path, *ONE)}
    compare(configs, clusters.of, steps=8)
    clusters.close()
    assert turns == [2, 1, 1, 2]


@pytest.mark.parametrize(
    ("left", "again"),
    [
        (10.0, ["b", "c", "a"]),  # d is too slow
        (2.6, ["b", "c"]),
        (1.2, []),  # a turn has a step more than are counted
    ],
)
def test_a_further_round_is_for_the_fastest_that_have_time(left, again):
    took = {"a": 1.08, "b": 1.0, "c": 1.05, "d": 1.2}
    assert promising(took, left) == again


def test_one_device_has_further_rounds_even_if_it_is_slow():
    took = {"one": 2.0, "b": 1.0, "c": 1.05, "d": 1.2}
    assert promising(took, 10.0, ["one"]) == ["b", "c", "one"]
    assert promising(took, 5.0, ["one"]) == ["b", "c"]  # 5.06 s with it


def test_a_comparison_ends_when_its_time_is_up(tmp_path):
    clusters = Clusters({})
    configs = {"two": config(tmp_path), "one": config(tmp_path, *ONE)}
    found = compare(configs, clusters.of, steps=80, warm_up=1, within=0.0)
    clusters.close()
    assert [c.outcome.profile.steps for c in found.ranking] == [4, 4]  # one turn of each


def test_a_candidate_that_cannot_be_planned_is_named(tmp_path):
    configs = {"one": config(tmp_path, *ONE), "small": config(tmp_path, "partition.memory=1000")}
    clusters = Clusters({})
    with pytest.raises(LimitError, match=r"^candidate 'small': .* the smallest limit") as no:
        compare(configs, clusters.of, steps=4, warm_up=1)
    clusters.close()
    assert no.value.smallest > 1000


@pytest.mark.slow
def test_the_table_and_the_figures_say_the_same(compared):
    text, found = str(compared), compared.figures()
    rows, verdict = found["ranking"], compared.verdict()
    assert [row["name"] for row in rows] == [c.name for c in compared.ranking]
    assert text.splitlines()[: len(verdict) + 1] == [*verdict, ""]
    assert found["baseline"]["verdict"] == verdict[0]
    assert found["ties"] == list(compared.ties)
    table = text.splitlines()[len(verdict) + 2 :]
    for place, (row, line) in enumerate(zip(rows, table, strict=False), 1):
        assert line.split()[:2] == [str(place), row["name"]]
        assert value_text(row["tokens_per_second"]) in line


@pytest.mark.slow
def test_the_page_shows_all_timelines(compared, tmp_path):
    pytest.importorskip("jinja2", reason="needs the extra `report`")
    page = compared.report(str(tmp_path))
    with open(tmp_path / "ranking.csv", newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == [c.name for c in compared.ranking]
    for line in compared.verdict():
        assert f">{html.escape(line)}</p>" in page.read_text()
    assert load_config(str(tmp_path / "1.yaml")) == compared.ranking[0].config
    text = page.read_text()
    assert text.count('class="timeline"') == 2
    for c in compared.ranking:  # tables are sorted by these, as 999 tokens/s are fewer than 1,000
        assert f'<td data-value="{c.figures.per_second}">' in text
        assert f'<td data-value="{c.figures.step}">{seconds_text(c.figures.step)}</td>' in text
    if None not in (web.CHROMIUM, web.DRIVER):
        shown(page)


# -- buckets ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucketed(tmp_path_factory) -> Comparison:
    """By hand on two devices, and on one; seven steps are two turns of four."""
    folder = tmp_path_factory.mktemp("bucketed")
    priced = f"partition.costs={costs(folder)}"
    path = str(write_bucketed(folder))
    configs = {
        "two": load_config(path, [priced, "blas_threads=1"]),
        "one": load_config(path, [priced, "blas_threads=1", *ONE]),
    }
    clusters = Clusters({})
    try:
        return compare(configs, clusters.of, steps=7)
    finally:
        clusters.close()


@pytest.mark.slow
def test_candidates_with_buckets_run_the_same_words(bucketed):
    """Each turn begins with a step that does not count, so steps 0 and 5 of the run do not."""
    given = bucketed.ranking[0].config
    batches = load_data(given).source("training", given, None)
    assert len({batches.count(n) for n in range(10)}) > 1
    words = sum(batches.count(n) for n in (1, 2, 3, 4, 6, 7, 8, 9))
    assert [c.outcome.summary["tokens"] for c in bucketed.ranking] == [words, words]
    assert [c.outcome.profile.steps for c in bucketed.ranking] == [8, 8]
    assert {c.name for c in bucketed.ranking} == {"one", "two"}


@pytest.mark.slow
def test_the_figures_of_buckets_add_up(bucketed):
    speeds = [c.figures.per_second for c in bucketed.ranking]
    assert speeds == sorted(speeds, reverse=True)
    for c in bucketed.ranking:
        f, summary = c.figures, c.outcome.summary
        seconds, predicted = summary["step_seconds_all"], summary["predicted_step_seconds_all"]
        rows = summary["mixtures"]
        assert sum(row["steps"] for row in rows) == len(seconds) == 8
        assert f.step == pytest.approx(sum(row["steps"] * row["step_seconds"] for row in rows) / 8)
        assert min(seconds) <= f.step <= max(seconds)
        assert f.per_second == pytest.approx(summary["tokens"] / 8 / f.step)
        assert f.predicted == pytest.approx(sum(predicted) / 8)
        assert f.error == pytest.approx(f.predicted / f.step - 1)
        assert 0 < f.bubble < 1
        assert 0 <= f.imbalance < 1
        assert (f.bytes_sent > 0) == (c.name == "two")
        assert f.peak == max(held_bytes(summary)) > 0


@pytest.mark.slow
def test_steps_of_equal_buckets_have_equal_predictions_and_longer_ones_longer(bucketed):
    given = bucketed.ranking[0].config
    batches = load_data(given).source("training", given, None)
    kinds = [
        tuple(sorted(b.bucket_key for b in batches.batches(n))) for n in (1, 2, 3, 4, 6, 7, 8, 9)
    ]
    for c in bucketed.ranking:
        found: dict[tuple[int, ...], set[float]] = {}
        for kind, seconds in zip(
            kinds, c.outcome.summary["predicted_step_seconds_all"], strict=True
        ):
            found.setdefault(kind, set()).add(seconds)
        assert len(found) > 1
        assert all(len(seconds) == 1 for seconds in found.values())
        assert max(found, key=sum) == max(found, key=lambda kind: max(found[kind]))


def test_one_batch_a_step_is_predicted_as_its_plan_is(tmp_path):
    """A step of one bucket, in micro-batches of one size, is a mixture of one kind."""
    buckets = prepare(
        load_config(str(write_bucketed(tmp_path)), ["pipeline.micro_batches=3"])
    ).buckets
    step = buckets.step([buckets.default_bucket_key])
    plan, prices = buckets.default, NOMINAL
    alone = simulate(
        plan.schedule, plan.partition, prices.costs(plan.partition, plan.overheads())
    ).makespan
    assert predict(step, prices).makespan == pytest.approx(alone)
    rows = plan_rows(plan, plan.memory)
    assert sent_bytes(step) == sum(row["bytes_sent"] for row in rows) > 0


def test_a_mixed_step_is_predicted_as_when_its_order_was_chosen(tmp_path):
    """What is chosen by and what is said afterwards is one simulation, but for the updates, which
    the order's has of every length."""
    buckets = prepare(load_config(str(write_bucketed(tmp_path)))).buckets
    for length in (4, 12):
        buckets.plan(length, ())
    step = buckets.step([12, 4])
    mixed = mix(step.parts, partial(compute_lists, buckets.default.choice.schedule, None), NOMINAL)
    assert [*step.schedule.programs] == [*mixed.schedule.programs]
    assert predict(step, NOMINAL).makespan == pytest.approx(mixed.seconds, rel=0.01)
    longest = buckets.step([12, 12])
    assert predict(longest, NOMINAL).makespan > predict(step, NOMINAL).makespan


@pytest.mark.slow
def test_the_page_of_buckets_shows_a_typical_step_of_each(bucketed, tmp_path):
    assert "rank 1" in str(bucketed)
    pytest.importorskip("jinja2", reason="needs the extra `report`")
    page = bucketed.report(str(tmp_path))
    text = page.read_text()
    assert text.count('class="timeline"') == 2
    for c in bucketed.ranking:
        assert f"<td>{c.name}</td>" in text
        assert f"of a step of buckets {c.outcome.profile.typical.name}" in text
    if None not in (web.CHROMIUM, web.DRIVER):
        shown(page)


def shown(page: Path) -> None:
    with web.browser() as browser:
        for width in (1280, 390):
            browser.view(width, 900)
            browser.open(page)
            drawn = browser.run(
                "return [...document.querySelectorAll('.timeline')].map((e) => !!e.dataset.drawn)"
            )
            assert drawn == [True, True]
            assert browser.run("return document.documentElement.scrollWidth") <= width
        assert browser.complaints() == []
