"""Comparisons: candidates in alternation, ranked by what they did, on one page."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from runtime.clusters import Clusters
from runtime.profiling import compare as module
from runtime.profiling.compare import (
    Compared,
    compare,
    comparison_figures,
    comparison_report,
    write_comparison,
)
from runtime.profiling.trial import Trial
from symgraph.config import load_config
from tests import browser as web
from tests.profiles import config

ONE = ["devices=[cpu(0)]", "group2ctx={}", "pipeline.micro_batches=1"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> list[Compared]:
    folder = tmp_path_factory.mktemp("compare")
    configs = {"two": config(folder), "one": config(folder, *ONE)}
    clusters = Clusters({})
    try:
        return compare(configs, clusters.of, steps=7)
    finally:
        clusters.close()


def test_the_fastest_is_first_and_all_did_as_many_steps(compared):
    assert {c.name for c in compared} == {"one", "two"}
    speeds = [c.figures.tokens_per_second for c in compared]
    assert speeds == sorted(speeds, reverse=True)
    assert [c.profile.record.steps for c in compared] == [8, 8]  # whole turns
    for c in compared:
        assert c.figures.step == c.profile.step
        assert c.figures.tokens_per_second == pytest.approx(30 / c.profile.step)
        assert (c.figures.bytes_sent > 0) == (c.name == "two")
        assert c.figures.peak > 0
        assert 0 <= c.figures.imbalance < 1


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


def test_the_table_and_the_figures_say_the_same(compared):
    text = comparison_report(compared)
    rows = comparison_figures(compared)
    assert [row["name"] for row in rows] == [c.name for c in compared]
    for place, (row, line) in enumerate(zip(rows, text.splitlines()[1:], strict=False), 1):
        assert line.split()[:2] == [str(place), row["name"]]
        assert f"{row['tokens_per_second']:,.0f}" in line


def test_the_page_shows_all_timelines(compared, tmp_path):
    pytest.importorskip("jinja2", reason="needs the extra `report`")
    page = write_comparison(compared, str(tmp_path))
    with open(tmp_path / "ranking.csv", newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == [c.name for c in compared]
    assert load_config(str(tmp_path / "1.yaml")) == compared[0].config
    text = page.read_text()
    assert text.count('class="timeline"') == 2
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
