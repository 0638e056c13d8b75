"""The trace of a profile: measured and predicted rows of every rank, with the nodes of each run."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.profiling.figures import Profile
from runtime.trace import Shown, Slice


def shown(profile: Profile) -> list[Shown]:
    """The median step and the prediction, for `runtime.trace.write_traces`."""
    edges = {edge.tag: edge for edge in profile.record.plan.partition.edges}
    slices = {rank: list(_slices(profile, rank)) for rank in range(profile.measured.ranks)}
    return [
        Shown(profile.measured, "measured", edges, slices),
        Shown(profile.predicted, "predicted", edges),
    ]


def _slices(profile: Profile, rank: int) -> Iterator[Slice]:
    """The calls of one rank in the median step."""
    laps, step = profile.record.ranks[rank].calls, profile.record.median_step
    calls = [call for call in profile.calls if call.rank == rank]
    times = zip(calls, laps.start[step].tolist(), laps.end[step].tolist(), strict=True)
    for call, start, end in times:
        args = {
            "operator": call.op, "stage": call.key.stage, "micro-batch": call.mb,
            "segment": call.key.segment, "flops": call.flops, "bytes": call.nbytes,
        }  # fmt: skip
        yield Slice(call.node, start, end, args)
