"""The measurements of a profile and of a search, for the command line and for Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import chain, zip_longest

from runtime.planning.options import AUTO
from runtime.profiling.analysis.record import PASSES, STEPS
from runtime.profiling.search.candidate import Candidate
from runtime.profiling.search.epoch import alike, epoch_of
from runtime.profiling.search.precision import LossCurves, precisions_of
from runtime.profiling.search.search import SECONDS, WORK, Found, search
from runtime.profiling.search.search_result import SearchResult
from runtime.profiling.subjects import Subject
from runtime.profiling.trials.baseline import ONE, Gain, baseline_of, one_device
from runtime.profiling.trials.compare import TURN, alternate, compare, gain_of
from runtime.profiling.trials.comparison import Compared, Comparison
from runtime.profiling.trials.outcome import Outcome
from runtime.profiling.trials.profile_result import ProfileResult
from runtime.profiling.trials.trial import Shared, Trial
from runtime.training.clusters import Clusters, transport_of
from runtime.transports import Cluster, ThreadCluster
from symgraph.app.config import Config
from symgraph.app.data_config import buckets_of
from symgraph.core.errors import ConfigError
from symgraph.core.units import count_text
from symgraph.passes.precision import FLOAT32

Say = Callable[[str], object]
PARTITION = "partition"
FEWEST, MOST = 3, 6  # candidates of a search to measure, besides the given config
MEASURING = 45.0  # seconds for the measurements of all candidates
SHORT = 1  # steps of warm-up: the first step of each turn is not counted either
FIRST_TURNS = 0.6  # the share of these seconds for the candidates' first turns


def quiet(line: str) -> None:
    """Say nothing."""


def measure_profile(
    subject: Subject,
    clusters: Clusters,
    *,
    steps: int = STEPS,
    baseline: bool = True,
    say: Say = quiet,
) -> ProfileResult:
    """Measure some steps of a config, and as many on one device in alternation.

    Every process of an MPI run does the same, but rank 0 alone measures one device.

    Args:
        subject: What is measured.
        clusters: Where it runs.
        steps: The number of measured steps.
        baseline: Whether to measure the network on one device too, if the config has several.
        say: Is told what is done.
    """
    config, shared = subject.config, Shared()
    cluster = clusters.of(config)
    beside = baseline and len(config.devices) > 1
    trial = Trial.of(
        config,
        cluster,
        steps=steps + -(-steps // TURN) if beside else steps,
        shared=shared,
        planned=subject.planned(shared.pricing(cluster, config)),
    )
    more = ", and as many on one device in alternation" if beside else ""
    say(f"{config.model}: measuring {count_text(steps, 'step')}{more}")
    gain = None
    if beside:
        found, gain = _beside_one_device(subject, trial, cluster, steps, shared, say)
    else:
        trial.run(steps)
        found = trial.outcome(Shared())
    return ProfileResult(config, found, gain, transport_of(config, clusters.environ))


def _beside_one_device(
    subject: Subject, trial: Trial, cluster: Cluster, steps: int, shared: Shared, say: Say
) -> tuple[Outcome, Gain | None]:
    """Measure a trial in alternation with the network on one device, which rank 0 runs alone."""
    config = subject.config
    trials, reason, one = {PARTITION: trial}, "", baseline_of(config)
    with ThreadCluster(1, config.timeout) as alone:
        if 0 in cluster.ranks:
            length = steps + -(-steps // TURN)
            made = one_device(config, alone, shared=shared, steps=length)
            if isinstance(made, Trial):
                trials[ONE] = made
            else:
                reason = made
        alternate(trials, steps, say=say)
        found = trial.outcome(Shared())
        ranking = [Compared(PARTITION, config, found)]
        if ONE in trials:
            ranking.append(Compared.of(ONE, one, trials[ONE]))
    return found, gain_of(ranking, [(one, reason)] if reason else [])


def measure_search(
    config: Config,
    clusters: Clusters,
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
    baseline: bool = True,
    say: Say = quiet,
) -> SearchResult:
    """Search, and measure the best few unless a machine file describes other devices.

    Args:
        config: The config to vary.
        clusters: Where candidates run.
        steps: The least number of measured steps of each candidate, if there is time.
        seconds: The time limit of the simulations.
        baseline: Whether one device is a candidate too.
        say: Is told what is done.
    """
    if len(clusters.of(config).ranks) < len(config.devices):
        raise ConfigError(
            "a search runs in one process: leave out mpiexec, and run the winner with it"
        )
    shared = Shared()
    found = _simulated(config, clusters, shared, seconds, baseline, say)
    if config.machine is not None:
        return SearchResult(found.candidates[0], found)
    few = _best_few(found, max(SHORT, PASSES * len(found.candidates[0].steps)))
    compared = compare(
        {name: c.config for name, c in few.items()},
        clusters.of,
        steps=steps,
        say=say,
        planned={name: c.planned for name, c in few.items()},
        shared=shared,
        warm_up=SHORT,
        within=MEASURING,
        baseline=False,
    )
    winner = few[compared.ranking[0].name]
    full = [c for c in compared.ranking if few[c.name].precision == FLOAT32]
    if config.train.precision != AUTO or winner.precision == FLOAT32:
        return SearchResult(winner, found, compared)
    say(f"{winner.name}: its losses beside those of {full[0].name}")
    curves = LossCurves.of(few[full[0].name], winner, clusters.of, shared)
    if not curves.accepted:
        winner, compared = few[full[0].name], Comparison(tuple(full), gain_of(full, []))
    return SearchResult(winner, found, compared, curves)


def _simulated(
    config: Config, clusters: Clusters, shared: Shared, seconds: float, baseline: bool, say: Say
) -> Found:
    """Search in each precision, and add one device; for the arguments, see `measure_search`."""
    every, configs = list[Found](), precisions_of(config)
    for one in configs:
        pricing = shared.pricing(clusters.of(one), one)  # unused with a machine file
        say("simulating:" if len(configs) == 1 else f"simulating {one.train.precision}:")
        epoch = epoch_of(one, shared.data(one)) if buckets_of(one.data) else alike
        limits = {"seconds": seconds / len(configs), "work": WORK / len(configs)}
        found = search(one, pricing, epoch=epoch, say=say, **limits)
        if baseline and len(one.devices) > 1:
            alone = baseline_of(one)
            found = found.with_baseline(one, shared.pricing(clusters.of(alone), alone), epoch)
        every.append(found)
    return reduce(Found.joined, every)


def _ranked(found: Found) -> list[Candidate]:
    """Sort quickly planned candidates last: with full effort their configs may make other plans.

    The best of several precisions come first, then the second of each, and so on.
    """
    order = sorted(found.candidates, key=lambda candidate: candidate.quick)
    precisions = dict.fromkeys(candidate.precision for candidate in order)
    turns = chain.from_iterable(
        zip_longest(*([c for c in order if c.precision == p] for p in precisions))
    )
    return [candidate for candidate in turns if candidate is not None]


def _best_few(found: Found, warm_up: int) -> dict[str, Candidate]:
    """Return the candidates to measure: those with time for one turn after `warm_up` steps.

    The config as given and one device always take part.
    """
    each = (warm_up + 1 + TURN) * found.candidates[0].seconds
    count = max(FEWEST, min(MOST, int(FIRST_TURNS * MEASURING / each)))
    always = [c for c in found.candidates if c.baseline or c.given]
    return {candidate.name: candidate for candidate in [*_ranked(found)[:count], *always]}
