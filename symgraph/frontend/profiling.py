"""Profiles, comparisons and searches of partitions, made by the runtime.

Each call takes a config's path with overrides, a config, or a plan of `runtime.plan`, and returns
an object that prints what the command line does. In a notebook it shows the same as HTML.
`columns()` are the raw values, such as `pandas.DataFrame` takes, `to_json()` is the command line's
`--json`, and `report(folder)` writes the page of `--report`.

Plans are fed random values of their own types, as `data: {kind: random}` does for configs, which is
also what a config without `data` gets. Under mpiexec every process makes the same calls, and rank 0
has the whole result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symgraph.frontend.backend import load

STEPS = 20  # measured by default
SECONDS = 50.0  # of a search's simulations, by default


def profile(
    what: Any,
    overrides: Sequence[str] = (),
    *,
    steps: int = STEPS,
    baseline: bool = True,
    progress: Callable[[str], object] | None = None,
) -> Any:
    """Measure where the time of a step goes, beside what was predicted.

    Args:
        what: The path of a config, a config, or a plan.
        overrides: Changes of the file's keys, such as "pipeline.micro_batches=8".
        steps: The number of measured steps.
        baseline: Whether to measure the network on one device too, if it is planned for several, to
            say what the partition gains.
        progress: Is called with lines that tell what is being done, such as `print`; None: nothing
            is said.

    Returns:
        A runtime.profiling.trials.profile_result.ProfileResult. Its tables are `operators`,
        `bodies`, `mixtures`, `ranks`, `nodes` and `instructions`, in seconds and bytes.

    Raises:
        ConfigError: The config is not valid, or the plan cannot be run by itself.
        TypeError: `what` is something else.
        RunError: A rank has failed.
    """
    return load("profiling").profile(
        what, overrides, steps=steps, baseline=baseline, progress=progress
    )


def compare(
    what: Any,
    overrides: Sequence[str] = (),
    *,
    steps: int = STEPS,
    baseline: bool = True,
    progress: Callable[[str], object] | None = None,
) -> Any:
    """Measure several partitions in alternation, and rank them.

    Args:
        what: A mapping from names to what `profile` takes, the path of a config with `candidates:`,
            or several paths.
        overrides: Changes of all files.
        steps: The least number of measured steps of each.
        baseline: Whether to add each network on one device, where it is missing.
        progress: See `profile`.

    Returns:
        A runtime.profiling.trials.comparison.Comparison; its table is `ranking`.

    Raises:
        ConfigError: There are fewer than two candidates; see also `profile`.
    """
    return load("profiling").compare(
        what, overrides, steps=steps, baseline=baseline, progress=progress
    )


def search(
    what: Any,
    overrides: Sequence[str] = (),
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
    baseline: bool = True,
    progress: Callable[[str], object] | None = None,
) -> Any:
    """Find the fastest split, schedule, micro-batches and time segments for some devices.

    The best by simulation are measured for up to a minute, unless `machine` describes other
    devices.

    Args:
        what: What `profile` takes. Of a plan only the network and the devices are taken, and the
            plan's own groups as one of the candidates.
        overrides: See `profile`.
        steps: The least number of measured steps of each, if there is time.
        seconds: The time limit of the simulations.
        baseline: Whether the network on one device is a candidate too.
        progress: See `profile`.

    Returns:
        A runtime.profiling.search.search_result.SearchResult, with `plan` and `config` of the
        winner, and `write(path)`, which writes it as a config. Its tables are `candidates` and
        `ranking`.

    Raises:
        LimitError: Nothing fits the memory limit; see also `profile`.
    """
    return load("profiling").search(
        what, overrides, steps=steps, seconds=seconds, baseline=baseline, progress=progress
    )
