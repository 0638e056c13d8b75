"""The trace of a profile: measured and predicted rows of every rank, with the nodes of each run."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.profiling.analysis.mixture import Mixture
from runtime.profiling.analysis.profile import Profile
from runtime.schedule.views.trace import Shown, Slice


def shown(profile: Profile) -> list[Shown]:
    """A typical step and its prediction, for `runtime.schedule.views.trace.write_traces`."""
    typical = profile.typical
    edge = typical.record.edge
    slices = {rank: list(_slices(typical, rank)) for rank in range(typical.measured.ranks)}
    return [
        Shown(typical.measured, "measured", edge, slices),
        Shown(typical.predicted, "predicted", edge),
    ]


def _slices(typical: Mixture, rank: int) -> Iterator[Slice]:
    """The calls of one rank in the median step."""
    record = typical.record
    laps, step = record.ranks[rank].calls, record.median_step
    calls = [call for call in typical.calls if call.rank == rank]
    times = zip(calls, laps.start[step].tolist(), laps.end[step].tolist(), strict=True)
    for call, start, end in times:
        args = {
            "operator": call.op,
            "stage": call.key.stage,
            "micro-batch": call.mb,
            "segment": call.key.segment,
            "flops": call.flops,
            "bytes": call.nbytes,
        }
        bucket = record.buckets(call.mb)
        yield Slice(call.node, start, end, args | ({"bucket": bucket} if bucket else {}))
