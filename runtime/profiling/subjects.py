"""What is measured: a config, or a plan that was made in Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from partitioner.strategies import STRATEGIES
from runtime.planning.costs.prices import CostProvider
from runtime.planning.plan import Plan
from runtime.schedule.generators.table import SCHEDULES
from runtime.training.given import GivenConfig, config_of
from runtime.training.job import Planned
from symgraph.app.config import Config, load_config
from symgraph.core.errors import ConfigError

Load = Callable[[str, Sequence[str]], Config]
load: Load = partial(load_config, schedules=SCHEDULES, strategies=STRATEGIES, synthetic=True)


@dataclass(frozen=True)
class Subject:
    """A config, and the plan of it that exists already."""

    config: Config
    #: The plan that was made in Python; None: the config is still to be planned.
    plan: Plan | None = None

    def planned(self, pricing: CostProvider) -> Planned | None:
        """Return the plan that exists, priced where it has no prices yet; None: there is none."""
        if self.plan is None:
            return None
        assert isinstance(self.config, GivenConfig)
        options = replace(self.plan.options, pricing=pricing)
        network = self.config.network
        return Planned(
            self.config, replace(self.plan, options=options), network.losses, network.model
        )


def subject_of(what: Any, overrides: Sequence[str] = ()) -> Subject:
    """Return what the user names as a subject.

    Args:
        what: The path of a config, a config, or a plan.
        overrides: Changes of the file's keys, such as "pipeline.micro_batches=8".

    Raises:
        ConfigError: The config is not valid, or the plan cannot be run by itself.
        TypeError: It is something else.
    """
    if isinstance(what, str | os.PathLike):
        return Subject(load(os.fspath(what), overrides))
    if overrides:
        raise ConfigError(f"overrides {list(overrides)} change a file of a config; give its path")
    if isinstance(what, Config):
        return Subject(what)
    if isinstance(what, Plan):
        return Subject(config_of(what), what)
    raise TypeError(
        "expected the path of a config, a config, or a plan of runtime.plan(symbol, feeds, "
        f"options), not {type(what).__name__}"
    )


def candidates(what: Any, overrides: Sequence[str] = ()) -> dict[str, Subject]:
    """Return what to compare, by name.

    Args:
        what: The path of a config with `candidates:`, several paths, or name -> what `subject_of`
            takes.
        overrides: Changes of all files.

    Raises:
        ConfigError: There are fewer than two, or one is not valid.
    """
    if isinstance(what, Mapping):
        found = {
            str(name): subject_of(one, overrides if isinstance(one, str | os.PathLike) else ())
            for name, one in what.items()
        }
    elif isinstance(what, str | os.PathLike):
        found = {n: Subject(c) for n, c in configs_of([os.fspath(what)], overrides, load).items()}
    elif isinstance(what, Sequence) and all(isinstance(p, str | os.PathLike) for p in what):
        files = [os.fspath(path) for path in what]
        found = {n: Subject(c) for n, c in configs_of(files, overrides, load).items()}
    else:
        raise TypeError(
            "expected the path of a config with candidates, several paths, or a dict of names and "
            f"plans, not {type(what).__name__}"
        )
    if len(found) < 2:
        raise ConfigError(f"a comparison needs two candidates or more, not {list(found)}")
    return found


def configs_of(paths: Sequence[str], overrides: Sequence[str], load: Load) -> dict[str, Config]:
    """Load the configs to compare, by name: files, or the candidates of one file."""
    files = list(dict.fromkeys(paths))
    if len(files) > 1:
        return {file: load(file, overrides) for file in files}
    candidates = load(files[0], overrides).candidates if files else {}
    if len(candidates) < 2:
        raise ConfigError(
            "a comparison needs two configs or more, or a config with `candidates:`, such as "
            "candidates: {by hand: [], planned: [partition.strategy=auto]}"
        )
    found = {}
    for name, more in candidates.items():
        try:
            found[name] = load(files[0], [*overrides, *more])
        except ConfigError as error:
            raise ConfigError(f"candidate {name!r}: {error}") from None
    return found
