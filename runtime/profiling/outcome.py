"""The outcome: what a candidate of a comparison is ranked and judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from runtime.profiling.figures import Profile
from runtime.timeline import Timeline


class Figures(NamedTuple):
    """Seconds and bytes of a step; where lengths differ from step to step, the means of all steps.

    spread: interquartile range of tokens_per_second. bubble, imbalance: shares of all ranks' time;
    imbalance is None where lengths differ. peak: of the rank that holds the most. error: of the
    prediction, as a share of the step.
    """

    tokens_per_second: float
    spread: float
    step: float
    bubble: float
    imbalance: float | None
    peak: int
    bytes_sent: int
    predicted: float
    error: float


@dataclass(frozen=True)
class Outcome:
    """What is known of a candidate after its measurement.

    summary: keys of `--json`. steps: that were measured. timeline: of one of them, or None if other
    processes hold parts of it. profile: where all steps are alike.
    """

    figures: Figures
    summary: Mapping[str, Any]
    steps: int
    timeline: Timeline | None
    profile: Profile | None = None


def held_bytes(summary: Mapping[str, Any]) -> list[int]:
    """What each rank held, from a summary's stages; a rank without stages holds nothing."""
    ranks = {row["rank"]: row["peak_bytes_measured"] for row in summary["stages"]}
    return [ranks.get(rank, 0) for rank in range(len(summary["devices"]))]


def profiled(profile: Profile, summary: Mapping[str, Any], tokens: int) -> Outcome:
    """Of steps that are alike, of so many words each."""
    speeds = tokens / profile.record.seconds
    low, high = np.percentile(speeds, (25, 75))
    waits = sum(parts.time.imbalance for parts in profile.parts)
    figures = Figures(
        tokens / profile.step, float(high - low), profile.step, profile.measured.bubble_fraction,
        waits / (len(profile.parts) * profile.parts_of), max(held_bytes(summary)),
        sum(stage["bytes_sent"] for stage in summary["stages"]), profile.predicted.makespan,
        profile.error,
    )  # fmt: skip
    return Outcome(figures, summary, profile.record.steps, profile.measured, profile)
