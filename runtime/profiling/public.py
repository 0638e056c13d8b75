"""The calls `symgraph.profile`, `symgraph.compare` and `symgraph.search`, which load this file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from runtime.profiling.analysis.record import STEPS
from runtime.profiling.measurements import Say, measure_profile, measure_search, quiet
from runtime.profiling.search.search import SECONDS
from runtime.profiling.search.search_result import SearchResult
from runtime.profiling.subjects import candidates, subject_of
from runtime.profiling.trials.compare import compare as compare_configs
from runtime.profiling.trials.comparison import Comparison
from runtime.profiling.trials.profile_result import ProfileResult
from runtime.profiling.trials.trial import Shared
from runtime.training.clusters import Clusters
from runtime.training.trainer import agree_on_config
from symgraph.core.errors import ConfigError
from symgraph.core.number_checks import whole_number


def profile(
    what: Any,
    overrides: Sequence[str] = (),
    *,
    steps: int = STEPS,
    baseline: bool = True,
    progress: Say | None = None,
) -> ProfileResult:
    """See `symgraph.profile`."""
    _require(steps, overrides)
    with Clusters(os.environ) as clusters:
        subject = clusters.read(lambda: subject_of(what, overrides))
        agree_on_config(subject.config, clusters.of(subject.config))
        return measure_profile(
            subject, clusters, steps=steps, baseline=baseline, say=progress or quiet
        )


def compare(
    what: Any,
    overrides: Sequence[str] = (),
    *,
    steps: int = STEPS,
    baseline: bool = True,
    progress: Say | None = None,
) -> Comparison:
    """See `symgraph.compare`."""
    _require(steps, overrides)
    with Clusters(os.environ) as clusters:
        subjects = clusters.read(lambda: candidates(what, overrides))
        configs = clusters.beside({name: s.config for name, s in subjects.items()})
        for config in configs.values():
            agree_on_config(config, clusters.of(config))
        shared = Shared()
        planned = {
            name: subject.planned(shared.pricing(cluster, configs[name]))
            for name, subject in subjects.items()
            if (cluster := clusters.of_rank(configs[name])) is not None
        }
        return compare_configs(
            configs,
            clusters.of_rank,
            steps=steps,
            say=progress or quiet,
            planned={name: one for name, one in planned.items() if one is not None},
            shared=shared,
            baseline=baseline,
        )


def search(
    what: Any,
    overrides: Sequence[str] = (),
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
    baseline: bool = True,
    progress: Say | None = None,
) -> SearchResult:
    """See `symgraph.search`."""
    _require(steps, overrides)
    if not isinstance(seconds, int | float) or not seconds >= 0:
        raise ConfigError(f"seconds is {seconds!r} but must be a number, 0 or more")
    with Clusters(os.environ) as clusters:
        config = clusters.read(lambda: subject_of(what, overrides)).config
        return measure_search(
            config,
            clusters,
            steps=steps,
            seconds=seconds,
            baseline=baseline,
            say=progress or quiet,
        )


def _require(steps: Any, overrides: Any) -> None:
    """Raise ConfigError for steps that are not 1 or more, and for overrides that are one text."""
    if whole_number(steps, "steps", ConfigError) < 1:
        raise ConfigError(f"steps is {steps!r} but must be 1 or more")
    if isinstance(overrides, str):
        raise ConfigError(f"overrides is {overrides!r} but must be a list, such as [{overrides!r}]")
