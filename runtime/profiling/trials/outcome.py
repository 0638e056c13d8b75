"""The outcome: what a candidate of a comparison is ranked and judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from runtime.profiling.analysis.profile import Profile


class Figures(NamedTuple):
    """Seconds and bytes of a step, see runtime.profiling.analysis.profile.

    spread: of tokens_per_second, the interquartile range; where lengths differ from step to step,
    that of each step's speed beside its prediction. bubble, imbalance: shares of all ranks' time.
    peak: of the rank that holds the most. error: of the prediction, as a share of the step.
    """

    tokens_per_second: float
    spread: float
    step: float
    bubble: float
    imbalance: float
    peak: int
    bytes_sent: int
    predicted: float
    error: float


@dataclass(frozen=True)
class Outcome:
    """What is known of a candidate after its measurement. summary: keys of `--json`."""

    profile: Profile
    summary: Mapping[str, Any]

    @property
    def figures(self) -> Figures:
        profile = self.profile
        pace = profile.every(predicted=True) / profile.every()  # 1: as predicted
        low, high = np.percentile(pace, (25, 75))
        waits = sum(parts.time.imbalance for parts in profile.parts)
        return Figures(
            profile.words / profile.step,
            float(high - low) * profile.words / profile.predicted_step,
            profile.step,
            profile.bubble_fraction,
            waits / (len(profile.parts) * profile.parts_of),
            max(held_bytes(self.summary)),
            round(profile.bytes_sent),
            profile.predicted_step,
            profile.error,
        )


def held_bytes(summary: Mapping[str, Any]) -> list[int]:
    """What each rank held, from a summary's stages; a rank without stages holds nothing."""
    ranks = {row["rank"]: row["peak_bytes_measured"] for row in summary["stages"]}
    return [ranks.get(rank, 0) for rank in range(len(summary["devices"]))]
