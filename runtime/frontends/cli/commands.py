"""The commands of profiling: the work and output of `--profile`, `--compare` and `--search`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.planning.costs.files import save_prices
from runtime.profiling.analysis.profile import Profile
from runtime.profiling.analysis.record import PASSES, STEPS
from runtime.profiling.report.files import require_report, write_report
from runtime.profiling.report.text import memory_rows, profile_report
from runtime.profiling.report.trace import shown
from runtime.profiling.search.candidate import Candidate
from runtime.profiling.search.epoch import ALIKE, epoch_of
from runtime.profiling.search.search import Found, search
from runtime.profiling.search.winner import evidence_lines, gain_of_search, write_winner
from runtime.profiling.trials.baseline import ONE, Gain, baseline_of, one_device
from runtime.profiling.trials.compare import (
    TURN,
    Compared,
    Comparison,
    alternate,
    compare,
    comparison_figures,
    comparison_report,
    gain_of,
    write_comparison,
)
from runtime.profiling.trials.outcome import Outcome, held_bytes
from runtime.profiling.trials.trial import Shared, Trial
from runtime.schedule.views.trace import write_traces
from runtime.training.clusters import Clusters
from runtime.transports import Cluster, ThreadCluster
from symgraph.app.command_line import require_writable
from symgraph.app.config import Config
from symgraph.app.console import Console
from symgraph.app.data_config import buckets_of
from symgraph.core.errors import ConfigError
from symgraph.core.units import count_text

WINNER = "winner.yaml"
PARTITION = "partition"
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
    baseline: bool = True,
) -> dict[str, Any]:
    """Measure and report the costs of some steps; write files on rank 0; return `--json`'s figures.

    Every process of an MPI run does the same, but rank 0 alone measures one device.

    Args:
        config: the config.
        cluster: its cluster.
        console: where the report is printed.
        steps: the number of measured steps.
        outputs: the files to write.
        baseline: whether to measure the network on one device too, if the config has several.
    """
    if 0 in cluster.ranks:
        outputs.require(config)
    require_report(outputs.report)
    shared = Shared()
    if baseline and len(config.devices) > 1:
        trial = Trial.of(config, cluster, steps=steps + -(-steps // TURN), shared=shared)
        more = ", and as many on one device in alternation"
        console.line(f"{config.model}: measuring {count_text(steps, 'step')}{more}")
        found, gain = _beside_one_device(config, trial, cluster, steps, shared)
    else:
        trial, gain = Trial.of(config, cluster, steps=steps, shared=shared), None
        console.line(f"{config.model}: measuring {count_text(steps, 'step')}")
        trial.run(steps)
        found = trial.outcome(Shared())
    verdict, summary = [] if gain is None else gain.lines(), dict(found.summary)
    parts = "\n".join(verdict), profile_report(found.profile)
    console.line("\n" + "\n\n".join(filter(None, parts)) + "\n")
    console.line(f"memory, predicted beside measured:\n{memory_rows(summary['stages'])}")
    if 0 in cluster.ranks:
        _write(found.profile, outputs, console)
        if outputs.report is not None:
            held = held_bytes(summary)
            page = write_report(found.profile, config, held, outputs.report, verdict)
            console.line(f"wrote the report {page}")
    return summary | {"baseline": None if gain is None else gain.figures()}


def _beside_one_device(
    config: Config, trial: Trial, cluster: Cluster, steps: int, shared: Shared
) -> tuple[Outcome, Gain | None]:
    """Measure a trial in alternation with the network on one device, which rank 0 runs alone."""
    trials, reason, one = {PARTITION: trial}, "", baseline_of(config)
    with ThreadCluster(1, config.timeout) as alone:
        if 0 in cluster.ranks:
            length = steps + -(-steps // TURN)
            made = one_device(one, alone, shared=shared, steps=length)
            if isinstance(made, Trial):
                trials[ONE] = made
            else:
                reason = made
        alternate(trials, steps)
        found = trial.outcome(Shared())
        ranking = [Compared(PARTITION, config, found)]
        if ONE in trials:
            ranking.append(Compared.of(ONE, one, trials[ONE]))
    return found, gain_of(ranking, [(one, reason)] if reason else [])


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
        configs, clusters, steps, baseline: see `compare`.
        console: where the ranking is printed.
        report: the folder of the page; None: not written.
    """
    require_report(report)
    found = compare(configs, clusters, steps=steps, say=console.line, baseline=baseline)
    console.line(f"\n{comparison_report(found)}")
    if report is not None and not console.quiet:
        console.line(f"wrote the report {write_comparison(found, report)}")
    return comparison_figures(found)


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
    """Search, measure the best few unless a machine file describes other devices, write the winner.

    Args:
        config: the config to vary.
        clusters: where candidates run.
        console: where progress and findings are printed.
        steps: the least number of measured steps of each candidate, if there is time.
        winner: the file that is written.
        source: the user's file, for the winner's comments.
        baseline: whether one device is a candidate too.

    Returns:
        The figures of `--json`.
    """
    if len(clusters.of(config).ranks) < len(config.devices):
        raise ConfigError(
            "--search runs in one process: leave out mpiexec, and run the winner with it"
        )
    require_writable(winner, "cannot write the winner to")
    shared = Shared()
    pricing = shared.pricing(clusters.of(config), config)  # unused with a machine file
    console.line("simulating:")
    epoch = epoch_of(config, shared.data(config)) if buckets_of(config.data) else ALIKE
    found = search(config, pricing, epoch=epoch, say=console.line)
    if baseline and len(config.devices) > 1:
        one = baseline_of(config)
        found = found.with_baseline(one, shared.pricing(clusters.of(one), one), epoch)
    compared = None
    if config.machine is None:
        few = _best_few(found, max(SHORT, PASSES * len(epoch)))
        compared = _measured(few, clusters, console, shared, steps)
        console.line(f"\n{comparison_report(compared)}")
        best = few[compared.ranking[0].name]
    else:
        best = _ranked(found)[0]
    lines = evidence_lines(best, found, compared)
    if not console.quiet:
        write_winner(best, found, compared, Path(winner), source)
    console.line("\n" + "\n".join(lines) + f"\nwrote the winner {winner}")
    return _search_figures(best, found, compared) | {"winner": winner}


def _measured(
    few: Mapping[str, Candidate],
    clusters: Clusters,
    console: Console,
    shared: Shared,
    steps: int,
) -> Comparison:
    """Measure the candidates of a search, for as long as it may take."""
    return compare(
        {name: c.config for name, c in few.items()},
        clusters.of,
        steps=steps,
        say=console.line,
        planned={name: c.planned for name, c in few.items()},
        shared=shared,
        warm_up=SHORT,
        within=MEASURING,
        baseline=False,
    )


def _ranked(found: Found) -> list[Candidate]:
    """Sort quickly planned candidates last: with full effort their configs may make other plans."""
    return sorted(found.candidates, key=lambda candidate: candidate.quick)


def _best_few(found: Found, warm_up: int) -> dict[str, Candidate]:
    """Return the candidates to measure: those with time for one turn after `warm_up` steps.

    The config as given and one device always take part.
    """
    each = (warm_up + 1 + TURN) * found.candidates[0].seconds
    count = max(FEWEST, min(MOST, int(FIRST_TURNS * MEASURING / each)))
    chosen = [*_ranked(found)[:count], found.given, found.baseline]
    return {candidate.name: candidate for candidate in chosen if candidate is not None}


def _search_figures(best: Candidate, found: Found, compared: Comparison | None) -> dict[str, Any]:
    gain = gain_of_search(found, compared)
    measured = {"ties": [], "ranking": []} if compared is None else comparison_figures(compared)
    return measured | {
        "baseline": None if gain is None else gain.figures(),
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
