"""The commands of profiling: the work and output of `--profile`, `--compare` and `--search`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.planning.costs.files import save_prices
from runtime.profiling.analysis.profile import Profile
from runtime.profiling.analysis.record import PASSES, STEPS
from runtime.profiling.calibration.pricing import CostCache
from runtime.profiling.report.files import require_report, write_report
from runtime.profiling.report.text import memory_rows, profile_report
from runtime.profiling.report.trace import shown
from runtime.profiling.search.candidate import Candidate
from runtime.profiling.search.epoch import ALIKE, epoch_of
from runtime.profiling.search.search import Found, search
from runtime.profiling.search.winner import evidence_lines, write_winner
from runtime.profiling.trials.compare import (
    TURN,
    Compared,
    compare,
    comparison_figures,
    comparison_report,
    write_comparison,
)
from runtime.profiling.trials.outcome import held_bytes
from runtime.profiling.trials.trial import Shared, Trial
from runtime.schedule.views.trace import write_traces
from runtime.training.clusters import Clusters
from runtime.transports import Cluster
from symgraph.app.command_line import require_writable
from symgraph.app.config import Config
from symgraph.app.console import Console
from symgraph.core.errors import ConfigError
from symgraph.core.units import count_text

WINNER = "winner.yaml"
FEWEST, MOST = 3, 6  # candidates of a search to measure, besides the given config
MEASURING = 45.0  # seconds for the measurements of all candidates
SHORT = 1  # steps of warm-up: the first step of each turn is not counted either
FIRST_TURNS = 0.6  # the share of these seconds for the candidates' first turns


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
    cluster: Cluster,
    console: Console,
    *,
    steps: int = STEPS,
    outputs: Outputs = Outputs(),
) -> dict[str, Any]:
    """Measure and report the costs of some steps; write files on rank 0; return `--json`'s figures.

    Every process of an MPI run does the same.
    """
    if 0 in cluster.ranks:
        outputs.require(config)
    require_report(outputs.report)
    trial = Trial.of(config, cluster, steps=steps)
    console.line(f"{config.model}: measuring {count_text(steps, 'step')}")
    trial.run(steps)
    found = trial.profile(CostCache())
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
    configs: Mapping[str, Config],
    clusters: Callable[[Config], Cluster],
    console: Console,
    *,
    steps: int = STEPS,
    report: str | None = None,
) -> dict[str, Any]:
    """Measure configs in turn, rank them, report on rank 0; return the figures of `--json`."""
    require_report(report)
    compared = compare(configs, clusters, steps=steps, say=console.line)
    console.line(f"\n{comparison_report(compared)}")
    if report is not None and not console.quiet:
        console.line(f"wrote the report {write_comparison(compared, report)}")
    return {"ranking": comparison_figures(compared)}


def search_best(
    config: Config,
    clusters: Clusters,
    console: Console,
    *,
    steps: int = STEPS,
    winner: str = WINNER,
    source: str = "CONFIG",
) -> dict[str, Any]:
    """Search, measure the best few unless a machine file describes other devices, write the winner.

    Args:
        source: The user's file, for the winner's comments.

    Returns:
        The figures of `--json`.
    """
    if len(clusters.of(config).ranks) < len(config.devices):
        raise ConfigError(
            "--search runs in one process: leave out mpiexec, and run the winner with it"
        )
    require_writable(winner, "cannot write the winner to")
    shared = Shared()
    here = config.machine is None
    pricing = shared.pricing(clusters.of(config), config)  # unused with a machine file
    console.line("simulating:")
    epoch = epoch_of(config, shared.corpus(config)) if config.data.buckets else ALIKE
    found = search(config, pricing, epoch=epoch, say=console.line)
    compared: list[Compared] = []
    if here:
        few = _best_few(found, max(SHORT, PASSES * len(epoch)))
        compared = compare(
            {name: c.config for name, c in few.items()},
            clusters.of,
            steps=steps,
            say=console.line,
            planned={n: c.planned for n, c in few.items()},
            shared=shared,
            warm_up=SHORT,
            within=MEASURING,
        )
        console.line(f"\n{comparison_report(compared)}")
        best = few[compared[0].name]
    else:
        best = _ranked(found)[0]
    lines = evidence_lines(best, found, compared)
    if not console.quiet:
        write_winner(best, found, compared, Path(winner), source)
    console.line("\n" + "\n".join(lines) + f"\nwrote the winner {winner}")
    return _search_figures(best, found, compared) | {"winner": winner}


def _ranked(found: Found) -> list[Candidate]:
    """Sort quickly planned candidates last: with full effort their configs may make other plans."""
    return sorted(found.candidates, key=lambda candidate: candidate.quick)


def _best_few(found: Found, warm_up: int) -> dict[str, Candidate]:
    """Return the candidates to measure: those with time for one turn after `warm_up` steps."""
    each = (warm_up + 1 + TURN) * found.candidates[0].seconds
    count = max(FEWEST, min(MOST, int(FIRST_TURNS * MEASURING / each)))
    chosen = [*_ranked(found)[:count], *([found.given] if found.given else [])]
    return {candidate.name: candidate for candidate in chosen}


def _search_figures(best: Candidate, found: Found, compared: Sequence[Compared]) -> dict[str, Any]:
    return {
        "best": best.name,
        "predicted_step_seconds": best.seconds,
        "lower_bound_seconds": best.bound,
        "simulated": found.simulated,
        "search_seconds": found.seconds,
        "left_out": found.left_out,
        "candidates": [
            {"name": c.name, "predicted_step_seconds": c.seconds, "lower_bound_seconds": c.bound}
            for c in found.candidates
        ],
        "ranking": comparison_figures(compared),
    }


def _write(profile: Profile, outputs: Outputs, console: Console) -> None:
    if outputs.trace is not None:
        try:
            write_traces(shown(profile), outputs.trace)
        except OSError as error:
            raise ConfigError(f"cannot write the trace {outputs.trace}: {error.strerror}") from None
        console.line(f"wrote the trace {outputs.trace}: open it at https://ui.perfetto.dev")
    if outputs.costs is not None:
        save_prices(profile.prices, outputs.costs)
        console.line(f"wrote the costs {outputs.costs}: use them with partition.costs")
