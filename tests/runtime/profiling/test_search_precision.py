"""Searches of `train.precision: auto`: both are measured, and losses judge the faster one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime.profiling import measurements
from runtime.profiling.search.precision import WORSE, LossCurves
from runtime.profiling.search.search_result import SearchResult
from runtime.profiling.trials.compare import compare
from runtime.training.clusters import Clusters
from symgraph.core.errors import ConfigError
from tests.helpers.profiles import config

SMALL = ("data.batch_size=2", "data.sequence_length=2", "pipeline.micro_batches=2")
AUTO = (*SMALL, "train.precision=auto")


def fastest_first(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """Have measurements rank the candidates of a precision first."""

    def ranked(*given: Any, **options: Any) -> Any:
        found = compare(*given, **options)
        order = sorted(found.ranking, key=lambda c: c.config.train.precision != precision)
        return replace(found, ranking=tuple(order))

    monkeypatch.setattr(measurements, "compare", ranked)


def searched(folder: Any, *overrides: str) -> SearchResult:
    with Clusters({}) as clusters:
        given = config(folder, *AUTO, *overrides)
        return measurements.measure_search(given, clusters, steps=1, seconds=0.0)


@pytest.mark.parametrize("accepted", [True, False])
def test_the_faster_precision_wins_if_its_losses_are_no_worse(tmp_path, monkeypatch, accepted):
    fastest_first(monkeypatch, "bfloat16")
    monkeypatch.setattr("runtime.profiling.search.precision.SECONDS", 0.0)
    if not accepted:
        monkeypatch.setattr("runtime.profiling.search.precision.WORSE", -1.0)
    found = searched(tmp_path)
    assert found.curves is not None
    curves, wins = found.curves, "bfloat16" if accepted else "float32"
    assert len(curves.full) == len(curves.low) == 10
    np.testing.assert_allclose(curves.low, curves.full, rtol=0.02)
    assert (found.best.precision, found.config.train.precision) == (wins, wins)
    measured = {c.config.train.precision for c in found.compared.ranking}
    assert measured == ({"float32", "bfloat16"} if accepted else {"float32"})
    assert found.compared.ranking[0].name == found.best.name
    written = found.write(str(tmp_path / "winner.yaml"))
    assert written.train.precision == wins
    said = (tmp_path / "winner.yaml").read_text()
    assert f"# {curves.passage().notes[0]}" in said.splitlines()
    assert found.figures()["loss_curves"]["losses"] == list(curves.low)


def test_where_float32_is_fastest_no_losses_are_compared(tmp_path, monkeypatch):
    fastest_first(monkeypatch, "float32")
    found = searched(tmp_path)
    assert found.curves is None
    assert found.best.precision == "float32"
    assert {c.precision for c in found.found.candidates} == {"float32", "bfloat16"}


@pytest.mark.parametrize(
    ("factor", "accepted"),
    [(1 + WORSE / 2, True), (1 - 2 * WORSE, True), (1 + 2 * WORSE, False), (np.nan, False)],
)
def test_losses_may_be_a_little_worse(factor, accepted):
    full = np.linspace(5.0, 4.0, 23)
    curves = LossCurves("bfloat16", full, [*full[:-5], *(factor * full[-5:])])
    assert curves.accepted is accepted
    assert ("is taken" in curves.passage().text) is accepted


def test_early_losses_that_are_not_finite_count():
    full = np.linspace(5.0, 4.0, 20)
    assert not LossCurves("bfloat16", full, [np.inf, *full[1:]]).accepted


def test_a_network_without_a_loss_names_its_precision(tmp_path, monkeypatch):
    found = searched(tmp_path).found
    best = replace(found.candidates[0], planned=replace(found.candidates[0].planned, losses=()))
    with pytest.raises(ConfigError, match=r"this network has none; name a precision"):
        LossCurves.of(best, best, lambda config: pytest.fail("ran"), None)
