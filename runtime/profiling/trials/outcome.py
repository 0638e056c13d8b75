"""Outcomes: the figures by which candidates of a comparison are ranked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from runtime.profiling.analysis.profile import Profile


class Figures(NamedTuple):
    """The seconds and bytes of a candidate's step."""

    per_second: float
    """Samples per second, or tokens of a text."""
    spread: float
    """The interquartile range of per_second, of each step relative to its prediction."""
    step: float
    """The seconds of a step; forward only: of a batch, by which candidates are ranked."""
    bubble: float
    """The share of all ranks' time in which nothing is computed."""
    imbalance: float
    """The share of all ranks' time spent waiting between runs."""
    peak: int
    """Bytes of the rank that holds most."""
    bytes_sent: int
    predicted: float
    error: float
    """The error of the prediction as a share of the step."""
    latency: float | None = None
    """Forward only: the seconds of a batch alone."""


@dataclass(frozen=True)
class Outcome:
    """The measurements of a candidate."""

    profile: Profile
    summary: Mapping[str, Any]
    """The keys of `--json`."""

    @cached_property
    def quartiles(self) -> tuple[float, float]:
        """The pace of the steps' lower and upper quartile; see Figures.spread."""
        profile = self.profile
        if profile.pace is not None:
            low, high = np.percentile(profile.pace.count / profile.pace.seconds, (25, 75))
            return float(low), float(high)
        pace = profile.every(predicted=True) / profile.every()  # 1: as predicted
        low, high = np.percentile(pace, (25, 75)) * profile.count / profile.predicted_step
        return float(low), float(high)

    def ties_with(self, other: Outcome) -> bool:
        """Return whether the spreads overlap: neither is clearly faster than the other."""
        (low, high), (others_low, others_high) = self.quartiles, other.quartiles
        return low <= others_high and others_low <= high

    @cached_property
    def figures(self) -> Figures:
        profile = self.profile
        low, high = self.quartiles
        waits = sum(parts.time.imbalance for parts in profile.parts)
        found = Figures(
            profile.count / profile.step,
            high - low,
            profile.step,
            profile.bubble_fraction,
            waits / (len(profile.parts) * profile.step),
            max(held_bytes(self.summary)),
            round(profile.bytes_sent),
            profile.predicted_step,
            profile.error,
        )
        pace = profile.pace
        if pace is None:
            return found
        return found._replace(
            per_second=pace.count / pace.batch,
            step=pace.batch,
            bytes_sent=round(profile.bytes_sent / len(profile.typical.record.keys)),
            predicted=pace.predicted,
            error=pace.predicted / pace.batch - 1,
            latency=pace.latency,
        )


def held_bytes(summary: Mapping[str, Any]) -> list[int]:
    """Return the bytes that each rank held, from a summary's stages; 0 for ranks without stages."""
    ranks = {row["rank"]: row["peak_bytes_measured"] for row in summary["stages"]}
    return [ranks.get(rank, 0) for rank in range(len(summary["devices"]))]
