"""The result of a profile: the measured steps, and what the partition gains over one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.profiling.analysis.advice import advice
from runtime.profiling.analysis.profile import Profile
from runtime.profiling.report.csv import tables
from runtime.profiling.report.files import require_report, write_report
from runtime.profiling.report.result import Passage, Result, Table
from runtime.profiling.report.text import memory_table, profile_passages
from runtime.profiling.trials.baseline import Gain
from runtime.profiling.trials.outcome import Outcome, held_bytes
from symgraph.app.config import Config


@dataclass(frozen=True, repr=False)
class ProfileResult(Result):
    """What `symgraph.profile` and `--profile` have found."""

    config: Config
    """The config that was measured."""
    outcome: Outcome
    """The measurements."""
    gain: Gain | None = None
    """The gain over one device; None: not measured."""
    transport: str = "threads"
    """How devices exchanged arrays."""

    @property
    def profile(self) -> Profile:
        """Everything that is known about the measured steps."""
        return self.outcome.profile

    @property
    def change(self) -> str:
        """A sentence with the one thing to change next."""
        gain = self.gain
        alone = gain.device if gain is not None and gain.pays is False else ""
        return advice(self.profile, self.config, alone=alone)

    def passages(self) -> list[Passage]:
        """Return the verdict, the profile and the memory."""
        memory = memory_table(self.outcome.summary["stages"])
        return [
            *([] if self.gain is None else [Passage(self.gain.lines())]),
            *profile_passages(self.profile, self.change),
            Passage(["memory, predicted beside measured:"], memory),
        ]

    def figures(self) -> dict[str, Any]:
        """Return the keys of `--profile --json`."""
        gain = None if self.gain is None else self.gain.figures()
        return {
            **self.outcome.summary,
            "baseline": gain,
            "transport": self.transport,
            "change": self.change,
        }

    def tables(self) -> Mapping[str, Table]:
        """Return the tables of the CSV files: operators, bodies, ranks, nodes and more."""
        return tables(self.profile)

    def report(self, folder: str) -> Path:
        """Write the page of `--report` with its files; see Result."""
        require_report(folder)
        verdict = [] if self.gain is None else self.gain.lines()
        held, change = held_bytes(self.outcome.summary), self.change
        return write_report(self.profile, self.config, held, folder, verdict, change)
