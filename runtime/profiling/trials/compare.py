"""Comparisons: several configs measured in alternation, so that all see the same machine.

The network on one device is always among them, unless the caller says otherwise (baseline.py). A
round gives every candidate a turn of some steps, in forward and reverse order alternately. The
first step of a turn is not counted, because another candidate's data is in the caches. With a time
limit each candidate has one turn, and then the fastest ones share the remaining time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from types import MappingProxyType

from runtime.backends.device.processor import await_quiet
from runtime.profiling.analysis.record import WARM_UP
from runtime.profiling.trials.baseline import (
    Gain,
    baseline_of,
    baselines_of,
    is_baseline,
    one_device,
)
from runtime.profiling.trials.comparison import Compared, Comparison
from runtime.profiling.trials.trial import Shared, Trial
from runtime.training.job import Planned
from runtime.transports import Cluster
from symgraph.app.config import Config
from symgraph.core.errors import ConfigError, SymgraphError
from symgraph.core.units import seconds_text

TURN = 4  # counted steps of a turn
SAY_EVERY = 1.0  # seconds, at least, between two rounds that are told of
NEARLY = 1.1  # times the fastest's step: what is slower will not become the fastest


def compare(
    configs: Mapping[str, Config],
    clusters: Callable[[Config], Cluster | None],
    *,
    steps: int,
    say: Callable[[str], object] = lambda line: None,
    planned: Mapping[str, Planned] = MappingProxyType({}),
    shared: Shared | None = None,
    warm_up: int = WARM_UP,
    within: float = math.inf,
    baseline: bool = True,
) -> Comparison:
    """Measure all candidates, and each network on one device.

    Args:
        configs: candidates by name.
        clusters: the clusters on which they run, which the caller closes; None for a candidate that
            another process runs by itself.
        steps: the least number of steps of each, if there is time.
        planned: plans that exist already, by name.
        warm_up: the number of uncounted first steps; see Recorder.
        within: seconds after which no further round begins. With a limit, only the nearly fastest
            candidates and one device join later rounds; without one, predictions that are far off
            are repeated.
        baseline: whether to add a network on one device where the candidates lack it.
    """
    ends, whole = time.perf_counter() + within, -(-steps // TURN) * TURN
    added = baselines_of(configs) if baseline else {}
    shared, trials, too_large = shared or Shared(), dict[str, Trial](), list[tuple[Config, str]]()
    given: dict[str, Config] = {**configs, **{n: baseline_of(c) for n, c in added.items()}}
    for number, (name, one) in enumerate({**configs, **added}.items(), 1):
        if (cluster := clusters(given[name])) is None:
            continue
        planning = "" if name in planned else "planning and "
        say(f"{name}: {planning}warming up ({number} of {len(given)})")
        make = one_device if name in added else partial(Trial.of, planned=planned.get(name))
        with _named(name):
            made = make(one, cluster, steps=whole + whole // TURN, shared=shared, warm_up=warm_up)
        if isinstance(made, str):
            too_large.append((given[name], made))
        else:
            trials[name] = made
    _require_alike(trials)
    wide = [config for config in given.values() if len(config.devices) > 1]
    beside = [name for name in trials if any(is_baseline(given[name], c) for c in wide)]
    alternate(trials, whole, say=say, ends=ends, keep=beside)
    memory = Shared() if within == math.inf else None
    measured = [Compared.of(name, given[name], t, memory) for name, t in trials.items()]
    ranking = sorted(measured, key=lambda c: -c.figures.per_second)
    return Comparison(tuple(ranking), gain_of(ranking, too_large))


@contextmanager
def _named(candidate: str) -> Iterator[None]:
    """Have errors name the candidate."""
    try:
        yield
    except SymgraphError as error:
        error.args = (f"candidate {candidate!r}: {error}", *error.args[1:])
        raise


def _require_alike(trials: Mapping[str, Trial]) -> None:
    """Raise ConfigError for candidates that are not ranked by the same figure."""
    criteria = {name: trial.criterion for name, trial in trials.items()}
    for name, criterion in criteria.items():
        first, wanted = next(iter(criteria.items()))
        if criterion != wanted:
            raise ConfigError(
                f"candidate {first!r} is ranked by {wanted}, but {name!r} by {criterion}; compare "
                "networks that all have a loss, or none with one partition.objective"
            )


def alternate(
    trials: Mapping[str, Trial],
    steps: int,
    *,
    say: Callable[[str], object] = lambda line: None,
    ends: float = math.inf,
    keep: Collection[str] = (),
) -> None:
    """Run some steps of each trial, in turns.

    Args:
        trials: the trials by name.
        steps: the number of counted steps of each.
        say: is told of rounds, and the time left, when they take long.
        ends: the time after which no further round begins; see `compare`.
        keep: trials that join later rounds even if they are slow.
    """
    turn, took, rounds = list(trials), dict.fromkeys(trials, 0.0), -(-steps // TURN)
    started = said = time.perf_counter()
    for number in range(rounds):
        now = time.perf_counter()
        if now - said > SAY_EVERY:
            seconds = (now - started) / number * (rounds - number)
            say(f"round {number + 1} of {rounds}, up to {seconds_text(seconds)} left")
            said = now
        for name in turn if number % 2 == 0 else turn[::-1]:
            await_quiet()
            trials[name].run(1, keep=False)
            begun = time.perf_counter()
            trials[name].run(min(TURN, steps - TURN * number))
            took[name] += time.perf_counter() - begun
        if ends < math.inf:
            left = ends - time.perf_counter()
            turn = promising({name: took[name] for name in turn}, left * (number + 1), keep)
        if not turn:
            break


def gain_of(ranking: Sequence[Compared], too_large: Sequence[tuple[Config, str]]) -> Gain | None:
    """Return what the fastest on several devices gains over the same network on one.

    Args:
        ranking: all candidates, the fastest first.
        too_large: baselines that one device cannot hold, with the reasons.

    Returns:
        The gain; None without a candidate on several devices, or without its baseline.
    """
    several = [c for c in ranking if len(c.config.devices) > 1]
    if not several:
        return None
    best = several[0]
    name = best.name if len(several) > 1 else ""
    what = "a step" if best.figures.latency is None else "a batch"
    for c in ranking:
        if is_baseline(c.config, best.config):
            return Gain(
                best.config.devices,
                best.figures.step,
                c.config.devices[0],
                c.figures.step,
                not c.outcome.ties_with(best.outcome),
                c.outcome.summary["micro_batches"],
                c.outcome.summary["blas_threads"],
                name,
                what=what,
                used=len({stage["rank"] for stage in best.outcome.summary["stages"]}),
                slow=best.figures.step / best.figures.predicted,
                slow_alone=c.figures.step / c.figures.predicted,
            )
    for one, reason in too_large:
        if is_baseline(one, best.config):
            return Gain(
                best.config.devices, best.figures.step, one.devices[0], name=name, reason=reason
            )
    return None


def promising(took: Mapping[str, float], left: float, keep: Collection[str] = ()) -> list[str]:
    """Return the nearly fastest candidates for whose next turn there is time.

    Args:
        took: the seconds that each took for the same steps.
        left: the seconds that remain.
        keep: candidates that need not be nearly as fast as the fastest.
    """
    order = sorted(took, key=took.__getitem__)
    most = NEARLY * took[order[0]]
    chosen = [name for name in order if took[name] <= most or name in keep]
    ends = accumulate(took[name] * (1 + TURN) / TURN for name in chosen)
    return [name for name, end in zip(chosen, ends, strict=True) if end <= left]
