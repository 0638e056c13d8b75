"""Why ranks wait: a sentence per rank that names the message for which it waited longest.

Seconds are those of the median step; of several mixtures of buckets, the mean of their
median steps. The messages are those of the typical one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from partitioner.base.types import PHASE_NAMES, CommEdge
from runtime.profiling.analysis.profile import Profile, RankParts
from runtime.profiling.analysis.record import Record
from runtime.schedule.instructions import Recv, Run
from runtime.schedule.timeline import Timeline
from symgraph.core.units import bytes_text, seconds_text

LITTLE = 0.03  # share of a step; less waiting than this needs no reason


def reasons(profile: Profile) -> list[str]:
    """Return a sentence per rank."""
    return [_reason(profile, rank) for rank in range(len(profile.parts))]


def _reason(profile: Profile, rank: int) -> str:
    own = profile.parts[rank]
    share = own.waiting / own.total if own.total else 0.0
    if share < LITTLE:
        return f"rank {rank} hardly waits ({share:.1%} of the step): it sets the pace"
    t = own.time
    kinds = {
        "warm_up": t.warm_up,
        "drain": t.drain,
        "imbalance": t.imbalance,
        "communication": t.communication,
    }
    kind = max(kinds, key=kinds.__getitem__)
    why = {
        "warm_up": _warm_up,
        "drain": _drain,
        "imbalance": _imbalance,
        "communication": _messages,
    }[kind](profile, rank)
    return (
        f"rank {rank} waits {seconds_text(own.waiting)} ({share:.0%} of the step), "
        f"{seconds_text(kinds[kind])} of it {why}"
    )


def _warm_up(profile: Profile, rank: int) -> str:
    edge = _slowest(profile, rank, before=True)
    return f"before its first run{'' if edge is None else _until(profile, edge)}"


def _drain(profile: Profile, rank: int) -> str:
    busiest = max(range(len(profile.parts)), key=lambda r: profile.parts[r].time.compute)
    if busiest == rank:
        return "after its last run, until the others end: start their last runs earlier"
    difference = profile.parts[busiest].time.compute - profile.parts[rank].time.compute
    return (
        f"after its last run, while others still work: rank {busiest} computes "
        f"{seconds_text(max(0.0, difference))} longer"
    )


def _imbalance(profile: Profile, rank: int) -> str:
    edge = _slowest(profile, rank)
    if edge is None:
        return "for the other ranks at the end of the step"
    source = _source(profile, edge)
    return f"between its runs{_until(profile, edge)}{_pace(profile.parts, rank, source)}"


def _messages(profile: Profile, rank: int) -> str:
    edge = _slowest(profile, rank)
    what = (
        ""
        if edge is None
        else (
            f", most for {edge.value} of {bytes_text(edge.type.nbytes)} from rank "
            f"{_source(profile, edge)}"
        )
    )
    return f"while messages are on their way or being copied{what}"


def _until(profile: Profile, edge: CommEdge) -> str:
    """Return in words which body makes the value of an edge."""
    source, phase = _source(profile, edge), PHASE_NAMES[edge.src.phase]
    stage = edge.src.stage % len(profile.typical.record.plan.partition.rank_of)
    return f", most for {edge.value}, which rank {source} makes in stage {stage}'s {phase}"


def _source(profile: Profile, edge: CommEdge) -> int:
    """Return the rank that sends an edge's value."""
    return profile.typical.record.union.rank_of[edge.src.stage]


def _pace(parts: Sequence[RankParts], rank: int, source: int) -> str:
    more = parts[source].time.compute - parts[rank].time.compute
    if more > LITTLE * parts[rank].total:
        return f" and computes {seconds_text(more)} longer per step"
    return ": the order of the runs, not the load, makes it wait"


def _slowest(profile: Profile, rank: int, *, before: bool = False) -> CommEdge | None:
    """Return the edge whose messages a rank waits for longest (`before`: its first run only)."""
    typical = profile.typical
    waited = waits(typical.measured, typical.record, rank, before=before)
    if not waited:
        return None
    tag = max(waited, key=lambda tag: (waited[tag], -tag))
    return typical.record.union.edges[tag]


def waits(timeline: Timeline, record: Record, rank: int, *, before: bool = False) -> Counter[int]:
    """Count the ticks that a rank spends receiving, by the tags of the step's topology.

    Edges of one source body count together, under the tag of the edge that took longest.
    """
    union = record.union
    track = timeline.tracks[rank]
    times = zip(track.program, track.start.tolist(), track.end.tolist(), strict=True)
    found: Counter[int] = Counter()
    for now, start, end in times:
        if isinstance(now, Run) and before:
            break
        if isinstance(now, Recv):
            found[now.tag + int(union.first_tag[now.mb])] += end - start
    bodies: Counter[object] = Counter()
    worst: dict[object, int] = {}
    for tag, ticks in found.items():
        body = union.edges[tag].src
        bodies[body] += ticks
        worst[body] = max(worst.get(body, tag), tag, key=found.__getitem__)
    return Counter({worst[body]: ticks for body, ticks in bodies.items()})
