"""The commands of profiling: what `--profile`, `--compare` and `--search` do and print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.prices import save_prices
from runtime.profiling.compare import (
    compare,
    comparison_figures,
    comparison_report,
    write_comparison,
)
from runtime.profiling.figures import Profile
from runtime.profiling.record import STEPS
from runtime.profiling.report import require_report, write_report
from runtime.profiling.traced import shown
from runtime.profiling.trial import Trial, held_bytes
from runtime.profiling.words import memory_rows, profile_report
from runtime.trace import write_traces
from runtime.transports import Cluster
from symgraph.config_keys import Config
from symgraph.console import Console


@dataclass(frozen=True)
class Outputs:
    """The files that a profile is asked for; None: not wanted."""

    trace: str | None = None
    costs: str | None = None
    report: str | None = None


def profile(
    config: Config, cluster: Cluster, console: Console, *, steps: int = STEPS,
    outputs: Outputs = Outputs(),
) -> dict[str, Any]:  # fmt: skip
    """Measure some steps, say what they cost, and write files on rank 0; the figures of `--json`.

    Every process of an MPI run does the same.
    """
    require_report(outputs.report)
    trial = Trial.of(config, cluster)
    console.line(f"{config.model}: measuring {steps} steps")
    trial.run(steps)
    found = trial.profile()
    summary = trial.summary(found)
    console.line(f"\n{profile_report(found)}\n")
    console.line(f"memory, predicted beside measured:\n{memory_rows(summary['stages'])}")
    if 0 in cluster.ranks:
        _write(found, outputs, console)
        if outputs.report is not None:
            page = write_report(found, config, held_bytes(summary), outputs.report)
            console.line(f"wrote the report {page}")
    return summary


def compare_all(
    configs: Mapping[str, Config], clusters: Callable[[Config], Cluster], console: Console, *,
    steps: int = STEPS, report: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure configs in alternation, rank them, write a report on rank 0; `--json`'s figures."""
    require_report(report)
    compared = compare(configs, clusters, steps=steps, say=console.line)
    console.line(f"\n{comparison_report(compared)}")
    if report is not None and not console.quiet:
        console.line(f"wrote the report {write_comparison(compared, report)}")
    return {"ranking": comparison_figures(compared)}


def _write(profile: Profile, outputs: Outputs, console: Console) -> None:
    if outputs.trace is not None:
        write_traces(shown(profile), outputs.trace)
        console.line(f"wrote the trace {outputs.trace}: open it at https://ui.perfetto.dev")
    if outputs.costs is not None:
        save_prices(profile.prices, outputs.costs)
        console.line(f"wrote the costs {outputs.costs}: use them with partition.costs")
