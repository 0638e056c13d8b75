"""The commands of profiling: the output of `--profile`, `--compare` and `--search`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.planning.costs.files import save_prices
from runtime.profiling.analysis.profile import Profile
from runtime.profiling.analysis.record import STEPS
from runtime.profiling.measurements import measure_profile, measure_search
from runtime.profiling.report.files import require_report
from runtime.profiling.report.trace import shown
from runtime.profiling.subjects import Subject
from runtime.profiling.trials.compare import compare
from runtime.schedule.views.trace import write_traces
from runtime.training.clusters import Clusters
from runtime.transports import Cluster
from symgraph.app.command_line import require_writable
from symgraph.app.config import Config
from symgraph.app.console import Console
from symgraph.core.errors import ConfigError
from symgraph.core.writing import writing

WINNER = "winner.yaml"


@dataclass(frozen=True)
class Outputs:
    """The files that `--profile` writes; None: not written."""

    #: The trace of the measured steps.
    trace: str | None = None
    #: The measured costs.
    costs: str | None = None
    #: The report.
    report: str | None = None

    def require(self, config: Config) -> None:
        """Raise ConfigError for a file that cannot be written."""
        if self.trace is not None:
            require_writable(self.trace, "cannot write the trace")
        if self.costs is not None:
            if config.machine is not None:
                raise ConfigError(
                    f"--save-costs {self.costs}: nothing is measured to be saved, as `machine` "
                    "says what kernels cost; leave out one of them"
                )
            require_writable(self.costs, "cannot write the costs to")


def profile(
    config: Config,
    clusters: Clusters,
    console: Console,
    *,
    steps: int = STEPS,
    outputs: Outputs = Outputs(),
    baseline: bool = True,
) -> dict[str, Any]:
    """Profile a config; print, write files on rank 0, and return `--json`'s figures.

    Args:
        config, clusters, steps, baseline: See `measure_profile`.
        console: Where the result is printed.
        outputs: The files to write.
    """
    here = 0 in clusters.of(config).ranks
    if here:
        outputs.require(config)
    require_report(outputs.report)
    found = measure_profile(
        Subject(config), clusters, steps=steps, baseline=baseline, say=console.line
    )
    console.line(f"\n{found}")
    if here:
        _write(found.profile, outputs, console)
        if outputs.report is not None:
            console.line(f"wrote the report {found.report(outputs.report)}")
    return found.figures()


def compare_all(
    configs: Mapping[str, Config],
    clusters: Callable[[Config], Cluster | None],
    console: Console,
    *,
    steps: int = STEPS,
    report: str | None = None,
    baseline: bool = True,
) -> dict[str, Any]:
    """Measure configs in turn, rank them, report on rank 0; return the figures of `--json`.

    Args:
        configs, clusters, steps, baseline: See `compare`.
        console: Where the ranking is printed.
        report: The folder of the page; None: not written.
    """
    require_report(report)
    found = compare(configs, clusters, steps=steps, say=console.line, baseline=baseline)
    console.line(f"\n{found}")
    if report is not None and not console.quiet:
        console.line(f"wrote the report {found.report(report)}")
    return found.figures()


def search_best(
    config: Config,
    clusters: Clusters,
    console: Console,
    *,
    steps: int = STEPS,
    winner: str = WINNER,
    source: str = "CONFIG",
    baseline: bool = True,
) -> dict[str, Any]:
    """Search, print, and write the winner; return the figures of `--json`.

    Args:
        config, clusters, steps, baseline: See `measure_search`.
        console: Where progress and findings are printed.
        winner: The file that is written.
        source: The user's file, for the winner's comments.
    """
    require_writable(winner, "cannot write the winner to")
    found = measure_search(config, clusters, steps=steps, baseline=baseline, say=console.line)
    if not console.quiet:
        found.write(winner, source)
    console.line(f"\n{found}\nwrote the winner {winner}")
    return found.figures() | {"winner": winner}


def _write(profile: Profile, outputs: Outputs, console: Console) -> None:
    if outputs.trace is not None:
        with writing(outputs.trace, "cannot write the trace"):
            write_traces(shown(profile), outputs.trace)
        console.line(f"wrote the trace {outputs.trace}: open it at https://ui.perfetto.dev")
    if outputs.costs is not None:
        save_prices(profile.prices, outputs.costs)
        console.line(f"wrote the costs {outputs.costs}: use them with partition.costs")
