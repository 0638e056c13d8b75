"""The result of a search: the winner, what was tried, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.planning.plan import Plan
from runtime.profiling.report.result import Passage, Result, Table
from runtime.profiling.search.candidate import Candidate
from runtime.profiling.search.precision import LossCurves
from runtime.profiling.search.search import Found
from runtime.profiling.search.winner import evidence, gain_of_search, write_winner
from runtime.profiling.trials.comparison import Comparison
from runtime.training.given import GivenConfig
from symgraph.app.config import Config
from symgraph.core.errors import ConfigError


@dataclass(frozen=True, repr=False)
class SearchResult(Result):
    """What `symgraph.search` and `--search` have found."""

    best: Candidate
    """The winner."""
    found: Found
    """All that was simulated."""
    compared: Comparison | None = None
    """What was measured; None: the devices are those of a machine file."""
    curves: LossCurves | None = None
    """The losses beside those of float32, of a winner in another precision that was to be found."""

    @property
    def plan(self) -> Plan:
        """The winner's plan; with several buckets that of the largest."""
        return self.best.plan

    @property
    def config(self) -> Config:
        """The winner's config, as the planner was asked; `write` writes one without choices."""
        return self.best.config

    def write(self, path: str, source: str = "CONFIG") -> Config:
        """Write the winner as a config that makes the same plan; return what it holds.

        Args:
            path: The file; another one beside it may hold a schedule, a third one costs.
            source: The file that was searched, for the comments.

        Raises:
            ConfigError: The file cannot be written, or the network was given in Python.
        """
        if isinstance(self.config, GivenConfig):
            raise ConfigError(
                f"cannot write {path}: a config names a function that builds its network, and this "
                "network was given in Python; use the result's `plan`"
            )
        best, found, compared = self.best, self.found, self.compared
        return write_winner(best, found, compared, Path(path), source, self.curves)

    def passages(self) -> list[Passage]:
        """Return the measured ranking, and the evidence."""
        measured = [] if self.compared is None else self.compared.passages()
        tried = evidence(self.best, self.found, self.compared, verdict=not measured)
        return [*measured, tried, *([] if self.curves is None else [self.curves.passage()])]

    def figures(self) -> dict[str, Any]:
        """Return the keys of `--search --json`, but for the name of the winner's file."""
        found, gain = self.found, gain_of_search(self.found, self.compared)
        measured = {"ties": [], "ranking": []} if self.compared is None else self.compared.figures()
        return measured | {
            "baseline": None if gain is None else gain.figures(),
            "best": self.best.name,
            "predicted_step_seconds": self.best.seconds,
            "lower_bound_seconds": self.best.bound,
            "simulated": found.simulated,
            "loss_curves": None if self.curves is None else self.curves.figures(),
            "search_seconds": found.seconds,
            "left_out": found.left_out,
            "proved": found.proved,
            "unpromising": found.unpromising,
            "candidates": [
                {
                    "name": c.name,
                    "predicted_step_seconds": c.seconds,
                    "lower_bound_seconds": c.bound,
                }
                for c in found.candidates
            ],
        }

    def tables(self) -> Mapping[str, Table]:
        """Return all candidates in seconds, and the ranking of those that were measured."""
        ranking = () if self.compared is None else self.compared.ranking
        steps = {c.name: c.figures.step for c in ranking}
        rows = ((c.name, c.seconds, c.bound, steps.get(c.name)) for c in self.found.candidates)
        more = {} if self.compared is None else self.compared.tables()
        return {"candidates": (("name", "predicted", "bound", "measured"), rows), **more}

    def report(self, folder: str) -> Path:
        """Write the page of the candidates that were measured; see Result."""
        if self.compared is None:
            raise ConfigError("nothing was measured to report of: `machine` names other devices")
        return self.compared.report(folder)
