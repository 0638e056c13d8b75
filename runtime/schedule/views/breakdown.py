"""The breakdown of a timeline: where each rank's time goes, and the chain that sets the makespan.

Both read only the start and end of each instruction, so they treat predicted and measured runs
alike. A message is posted when its Send ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from partitioner.base.types import Topology
from runtime.schedule.instructions import COLLECTIVE, RECV, SEND, UPDATE
from runtime.schedule.message_costs import Number
from runtime.schedule.replay.facts import Facts
from runtime.schedule.timeline import Event, Timeline, Track

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RankTime:
    """Seconds of one rank; their sum is the makespan."""

    #: In runs and updates.
    compute: float
    #: Between the first and the last run: receiving messages that are posted, on their way or being
    #: copied.
    communication: float
    #: Waiting before the first run; on a rank without runs, all its waiting.
    warm_up: float
    #: Waiting after the last run, and from the rank's end to that of the timeline.
    drain: float
    #: Between the first and the last run: waiting for messages that are not posted yet, for
    #: deliveries and for collectives.
    imbalance: float
    #: Between instructions, and posting messages.
    dispatch: float


def breakdown(timeline: Timeline, topology: Topology) -> tuple[RankTime, ...]:
    """Return where the time of each rank goes.

    A rank of another process is all drain, and its messages count as posted at the beginning.
    """
    begin, end = timeline.ticks
    facts = Facts.of(topology)
    posted = _Messages(timeline, facts, begin)
    for track in timeline.tracks:
        posted.write(track, track.end)
    return tuple(_rank_time(track, posted, begin, end, timeline.unit) for track in timeline.tracks)


def _rank_time(track: Track, posted: _Messages, begin: int, end: int, unit: Fraction) -> RankTime:
    code, span = track.program.columns.code, track.end - track.start
    runs = np.flatnonzero(track.is_run)
    first, last = (runs[0], runs[-1]) if len(runs) else (len(code), len(code))
    step = np.arange(len(code))
    works = track.is_run | (code == UPDATE)
    posts = code == SEND
    waits = ~(works | posts)
    unposted = np.clip(posted.read(track, begin) - track.start, 0, span)
    inside = waits & (first < step) & (step < last)
    comes = inside & (code == RECV)
    done = int(track.end[-1]) if len(code) else begin
    parts = (
        span[works].sum(),
        (span - unposted)[comes].sum(),
        span[waits & (step < first)].sum(),
        span[waits & (step > last)].sum() + (end - done),
        unposted[comes].sum() + span[inside & ~comes].sum(),
        (done - begin) - span.sum() + span[posts].sum(),
    )
    return RankTime(*(float(int(ticks) * unit) for ticks in parts))


def critical_path(timeline: Timeline, topology: Topology, *, copy: Number = inf) -> list[Event]:
    """Return the instructions that determine the makespan, in the order of time.

    The path is traced back from the last end: a receive that waited leads to the send of its
    message, a collective that waited to the rank that came last, and everything else to the
    instruction before it. A receive waited if its message was posted after the receive began; in a
    simulation, where posting takes no time, also if it took longer than copying the message.

    Args:
        copy: Bytes per second at which messages are copied.
    """
    facts = Facts.of(topology)
    causes = _Causes(timeline, facts, copy)
    ends = [int(t.end[-1]) if len(t.end) else timeline.ticks[0] - 1 for t in timeline.tracks]
    rank = max(range(timeline.ranks), key=ends.__getitem__)
    step = len(timeline.tracks[rank].program) - 1
    path = []
    while step >= 0:
        path.append(timeline.event(rank, step))
        rank, step = causes.of(rank, step)
    return path[::-1]


class _Causes:
    """The instruction that each one of a timeline waited for."""

    def __init__(self, timeline: Timeline, facts: Facts, copy: Number) -> None:
        self.tracks = timeline.tracks
        self.sent = _Messages(timeline, facts, -1)
        self.meetings = []
        for track in self.tracks:
            self.sent.write(track, np.arange(len(track.program)))
            self.meetings.append(np.flatnonzero(track.program.columns.code == COLLECTIVE))
        self.source = [int(facts.channel_src[c]) if c >= 0 else -1 for c in facts.edge_channel]
        sizes = [
            Fraction(0) if copy == inf else edge.type.nbytes / Fraction(copy)
            for edge in facts.edges
        ]
        self.copying = [round(seconds / timeline.unit) for seconds in sizes]

    def of(self, rank: int, step: int) -> tuple[int, int]:
        """Return the rank and step that this one follows from; step -1 is the beginning."""
        code, at, mb, _ = self.tracks[rank].program.columns
        if code[step] == RECV:
            tag, sent = int(at[step]), self.sent.of(int(at[step]), int(mb[step]))
            if sent >= 0 and self._waited(rank, step, tag, sent):
                return self.source[tag], sent
        elif code[step] == COLLECTIVE:
            return self._last(rank, step)
        return rank, step - 1

    def _waited(self, rank: int, step: int, tag: int, sent: int) -> bool:
        track, other = self.tracks[rank], self.tracks[self.source[tag]]
        if other.end[sent] > track.start[step]:
            return True
        simulated = other.start[sent] == other.end[sent]
        return bool(simulated and track.end[step] - track.start[step] > self.copying[tag])

    def _last(self, rank: int, step: int) -> tuple[int, int]:
        """Return the rank that came last to a collective, and its step there."""
        number = int(np.searchsorted(self.meetings[rank], step))
        others = ((r, int(m[number])) for r, m in enumerate(self.meetings) if number < len(m))
        last = max(others, key=lambda place: self.tracks[place[0]].start[place[1]])
        if self.tracks[last[0]].start[last[1]] > self.tracks[rank].start[step]:
            return last
        return rank, step - 1


class _Messages:
    """A number for each message of a timeline; `missing` where nothing was written."""

    def __init__(self, timeline: Timeline, facts: Facts, missing: int) -> None:
        mbs = (int(t.program.columns.mb.max(initial=0)) + 1 for t in timeline.tracks)
        self.mbs = max(mbs, default=1)
        self.table = np.full(len(facts.edges) * self.mbs, missing, np.int64)

    def write(self, track: Track, numbers: Array) -> None:
        """Write the numbers of the sends of a track, given by instruction."""
        sends = track.program.columns.code == SEND
        self.table[self._places(track, sends)] = numbers[sends]

    def of(self, tag: int, mb: int) -> int:
        """Return the number of one message."""
        return int(self.table[tag * self.mbs + mb])

    def read(self, track: Track, other: int) -> Array:
        """Return, by instruction of a track, the number of a receive's message, else `other`."""
        receives = track.program.columns.code == RECV
        numbers = np.full(len(receives), other, np.int64)
        numbers[receives] = self.table[self._places(track, receives)]
        return numbers

    def _places(self, track: Track, where: Array) -> Array:
        _, at, mb, _ = track.program.columns
        return at[where].astype(np.int64) * self.mbs + mb[where]
