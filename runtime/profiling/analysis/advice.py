"""Advice: the one change of a config that could gain most, by what the devices' time goes to."""

from __future__ import annotations

from runtime.profiling.analysis.profile import Profile
from symgraph.app.config import Config

LITTLE = 0.05  # of all devices' time: what takes less is not worth a change
UNEVEN = 0.1  # of a step: ranks whose computing differs by more have uneven loads
MOST = 32  # micro-batches to suggest
AUTO = "auto"
SEARCH = "let `symgraph search` vary what this config leaves fixed"


def advice(profile: Profile, config: Config, *, alone: str = "") -> str:
    """Return a sentence that names the largest loss of time, and what to change against it.

    Args:
        profile: The measured steps.
        config: What was measured.
        alone: A device that is faster by itself; "": none is known.
    """
    if alone:
        return f"one device is faster: run with devices=[{alone}] pipeline.micro_batches=1"
    ranks = len(profile.parts)
    lost = {cause: seconds / (ranks * profile.step) for cause, seconds in _lost(profile).items()}
    cause = max(lost, key=lambda name: lost[name])
    if lost[cause] < LITTLE:
        top = profile.operators[0]
        return (
            f"the devices compute nearly all the time, {top.share:.0%} of it {top.name}: only "
            "more devices, or less to compute, can gain much"
        )
    return f"{lost[cause]:.0%} of the devices' time is {cause}: {_change(cause, profile, config)}"


IDLE, ENDS, MESSAGES, BETWEEN = (
    "waiting between runs",
    "waiting at the start and the end of a step",
    "communication",
    "spent between instructions",
)


def _lost(profile: Profile) -> dict[str, float]:
    """Return the seconds of a step that are lost, over all ranks, by their cause."""
    times = [own.time for own in profile.parts]
    return {
        IDLE: sum(t.imbalance for t in times),
        ENDS: sum(t.warm_up + t.drain for t in times),
        MESSAGES: sum(t.communication for t in times),
        BETWEEN: sum(t.dispatch for t in times) + sum(own.between for own in profile.parts),
    }


def _change(cause: str, profile: Profile, config: Config) -> str:
    """Return what to change against a cause; what the config has already is not suggested."""
    parts = len(profile.typical.record.plan.sizes)
    most = min(2 * parts, MOST, _samples(profile))
    more, fewer = f"pipeline.micro_batches={most}", f"pipeline.micro_batches={parts // 2}"
    place = '"group2ctx={}" partition.strategy=auto'
    placed, ordered = config.partition.strategy == AUTO, config.pipeline.schedule == AUTO
    computed = [own.time.compute for own in profile.parts]
    uneven = max(computed) - min(computed) > UNEVEN * profile.step
    wanted = {
        IDLE: [
            (uneven and not placed, f"their loads differ, so let the planner place: {place}"),
            (not ordered, "let the planner order the runs: pipeline.schedule=auto"),
        ],
        ENDS: [(most > parts, f"try more micro-batches: {more}")],
        MESSAGES: [
            (not placed, f"let the planner choose the cut: {place}"),
            (parts > 2, f"try fewer, larger messages: {fewer}"),
        ],
        BETWEEN: [(parts > 1, f"try fewer, longer runs: {fewer}")],
    }
    return next((words for fits, words in wanted[cause] if fits), SEARCH)


def _samples(profile: Profile) -> int:
    """Return the samples of a batch."""
    return sum(profile.typical.record.plan.sizes)
