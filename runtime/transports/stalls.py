"""Stall detection: ranks that wait for each other, or for a rank whose work has ended.

Such waits never end, so they are an error as soon as they are seen, without waiting for a time
limit. All transports use `stalled`. Threads see each other's waits; the last one to fall asleep or
to end looks. Processes report theirs to a `StallDetector` on the lifeline's hub; since reports are
old when they arrive, it asks the suspects once more before it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__: list[str] = []

STALL_SECONDS = 0.5  # within this time a message that was sent has arrived and been noticed


def stalled(needs: Mapping[int, Collection[int]], ended: Callable[[int, int], bool]) -> set[int]:
    """Return the ranks whose waits never end.

    Args:
        needs: For each waiting rank, the ranks it needs, all of them.
        ended: Whether a rank (first) waits in vain for another (second), whose work is over.
    """
    stuck = set(needs)
    while True:
        freed = {
            rank
            for rank in stuck
            if not any(peer in stuck or ended(rank, peer) for peer in needs[rank])
        }
        if not freed:
            return stuck
        stuck -= freed


def verdict(waits: Mapping[int, str], over: Collection[int]) -> str:
    """Return the error text for these waits; over: ranks that some of them need and that ended.

    >>> print(verdict({0: "tag 7 from rank 1"}, [1]))
    ranks that wait for ever:
      rank 0 waits for tag 7 from rank 1
      rank 1 has ended
    """
    lines = {rank: f"  rank {rank} waits for {text}" for rank, text in waits.items()}
    lines |= {rank: f"  rank {rank} has ended" for rank in over}
    return "\n".join(["ranks that wait for ever:", *(lines[rank] for rank in sorted(lines))])


class Wait(NamedTuple):
    """A wait of a process, as it reports it."""

    #: Unique among the waits of a rank.
    number: int
    text: str
    #: The ranks it cannot end without.
    needs: tuple[int, ...]
    #: The run that it is in; 0: none, it may last until a rank says goodbye.
    run: int
    #: Group and number; ranks that have come to this meeting are not needed any more.
    meeting: tuple[str, int] = ("", 0)


@dataclass
class RankStatus:
    """What a process is doing: written by it, read by its helper thread."""

    #: Runs begun so far, and whether the process is inside one.
    runs: int = 0
    inside: bool = False
    #: The current wait, if it is long.
    wait: Wait | None = None
    #: Group -> number of meetings that the process has come to.
    met: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the status as a JSON-able object."""
        wait = self.wait  # first: who no longer waits may have come to more meetings
        return {"runs": self.runs, "inside": self.inside, "wait": wait, "met": dict(self.met)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> RankStatus:
        """Return the status that `as_json` has described."""
        status = cls(**fields)
        if status.wait is not None:
            number, text, needs, run, (group, meeting) = status.wait
            status.wait = Wait(number, text, tuple(needs), run, (group, meeting))
        return status


class StallDetector:
    """Finds stalls in the reports of processes."""

    def __init__(self) -> None:
        self.statuses: dict[int, RankStatus] = {}  # by rank
        self.question = 0  # the number of the last one
        self._suspects: dict[int, Wait] = {}
        self._since = 0.0
        self._asked = False
        self._answers: dict[int, int] = {}  # rank -> the last question it answered

    def hear(self, rank: int, status: Mapping[str, Any], answer: int) -> None:
        """Take in a rank's report; answer: the last question that it had heard by then."""
        self.statuses[rank] = RankStatus.from_json(status)
        self._answers[rank] = answer

    def look(self, closed: Collection[int], now: float) -> str | None:
        """Return the error text once a stall is certain.

        Increases `question` if the suspects must report again first.

        Args:
            closed: Ranks that have said goodbye.
            now: Seconds of a clock.
        """
        suspects = self._find(closed)
        if suspects != self._suspects:
            self._suspects, self._since, self._asked = suspects, now, False
        if not suspects or now < self._since + STALL_SECONDS:
            return None
        if not self._asked:
            self._asked = True
            self.question += 1
        if any(self._answers[rank] < self.question for rank in suspects):
            return None
        over = {peer for rank in suspects for peer in self._needs(rank)} - suspects.keys()
        return verdict(
            {rank: wait.text for rank, wait in suspects.items()},
            [rank for rank in over if self._ended(closed, suspects, rank)],
        )

    def _find(self, closed: Collection[int]) -> dict[int, Wait]:
        waits = {rank: status.wait for rank, status in self.statuses.items() if status.wait}
        stuck = stalled(
            {rank: self._needs(rank) for rank in waits},
            lambda rank, peer: self._ended(closed, {rank: waits[rank]}, peer),
        )
        return {rank: waits[rank] for rank in sorted(stuck)}

    def _needs(self, rank: int) -> list[int]:
        wait = self.statuses[rank].wait
        assert wait is not None
        group, number = wait.meeting
        return [r for r in wait.needs if not (group and self._met(r, group) >= number)]

    def _met(self, rank: int, group: str) -> int:
        return self.statuses[rank].met.get(group, 0) if rank in self.statuses else 0

    def _ended(self, closed: Collection[int], waits: Mapping[int, Wait], peer: int) -> bool:
        """Return whether a rank's work is over for any of these waits."""
        if peer in closed:
            return True
        status = self.statuses.get(peer)
        return status is not None and any(
            wait.run and (status.runs > wait.run or (status.runs == wait.run and not status.inside))
            for wait in waits.values()
        )
