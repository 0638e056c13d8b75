"""Stalls: ranks that wait for ranks which wait in turn, or whose work has ended.

Such waits never end, so they are an error as soon as they are seen, and not when a time limit is
over. Every transport judges by `stalled`. Threads see each other's waits, and the last one that
falls asleep or ends looks. Processes tell theirs to a judge (on the lifeline's hub), whose
knowledge is old: it asks the suspects once more before it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__: list[str] = []

STALL_SECONDS = 0.5  # a message that was sent has come, and is seen, after so long


def stalled(needs: Mapping[int, Collection[int]], ended: Callable[[int, int], bool]) -> set[int]:
    """The ranks whose waits never end.

    needs: of each rank that waits, the ranks without any one of which it cannot go on. ended:
    whether a rank (first) waits in vain for another one (second), because that one's work is over.
    """
    found = set(needs)
    while True:
        freed = {
            rank
            for rank in found
            if not any(peer in found or ended(rank, peer) for peer in needs[rank])
        }
        if not freed:
            return found
        found -= freed


def verdict(waits: Mapping[int, str], over: Collection[int]) -> str:
    """The error of these ranks' waits; over: the ranks that some of them wait for, and that ended.

    >>> print(verdict({0: "tag 7 from rank 1"}, [1]))
    ranks that wait for ever:
      rank 0 waits for tag 7 from rank 1
      rank 1 has ended
    """
    lines = {rank: f"  rank {rank} waits for {text}" for rank, text in waits.items()}
    lines |= {rank: f"  rank {rank} has ended" for rank in over}
    return "\n".join(["ranks that wait for ever:", *(lines[rank] for rank in sorted(lines))])


class Wait(NamedTuple):
    """A wait of a process, as it is told. It cannot end without any one of `needs`."""

    number: int  # no two waits of a rank have the same
    text: str
    needs: tuple[int, ...]
    run: int  # the run that it is in; 0: in none, but between the start and the goodbye
    meeting: tuple[str, int] = ("", 0)  # group and number: who has come there is not needed


@dataclass
class RankStatus:
    """Where a process stands: written by it, read by its helper thread."""

    runs: int = 0  # begun
    inside: bool = False  # one of them
    wait: Wait | None = None  # a long one
    met: dict[str, int] = field(default_factory=dict)  # group -> meetings that it came to

    def told(self) -> dict[str, Any]:
        """JSON-able."""
        wait = self.wait  # first: who no longer waits may have come to more meetings
        return {"runs": self.runs, "inside": self.inside, "wait": wait, "met": dict(self.met)}

    @classmethod
    def heard(cls, told: Mapping[str, Any]) -> RankStatus:
        stand = cls(**told)
        if stand.wait is not None:
            number, text, needs, run, (group, meeting) = stand.wait
            stand.wait = Wait(number, text, tuple(needs), run, (group, meeting))
        return stand


class StallDetector:
    """Finds stalls in what processes tell of themselves."""

    def __init__(self) -> None:
        self.stands: dict[int, RankStatus] = {}
        self.question = 0  # the last one
        self._suspects: dict[int, Wait] = {}
        self._since = 0.0
        self._asked = False
        self._answers: dict[int, int] = {}  # rank -> the last question it answered

    def hear(self, rank: int, told: Mapping[str, Any], answer: int) -> None:
        """A rank tells its stand, after it heard this question."""
        self.stands[rank] = RankStatus.heard(told)
        self._answers[rank] = answer

    def look(self, closed: Collection[int], now: float) -> str | None:
        """The verdict, once it is certain; `question` is a new one if suspects must answer it.

        closed: ranks that have said goodbye. now: seconds of a clock.
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
        waits = {rank: stand.wait for rank, stand in self.stands.items() if stand.wait is not None}
        found = stalled(
            {rank: self._needs(rank) for rank in waits},
            lambda rank, peer: self._ended(closed, {rank: waits[rank]}, peer),
        )
        return {rank: waits[rank] for rank in sorted(found)}

    def _needs(self, rank: int) -> list[int]:
        wait = self.stands[rank].wait
        assert wait is not None
        group, number = wait.meeting
        return [r for r in wait.needs if not (group and self._met(r, group) >= number)]

    def _met(self, rank: int, group: str) -> int:
        return self.stands[rank].met.get(group, 0) if rank in self.stands else 0

    def _ended(self, closed: Collection[int], waits: Mapping[int, Wait], peer: int) -> bool:
        """Whether a rank's work is over for any of these waits."""
        if peer in closed:
            return True
        stand = self.stands.get(peer)
        return stand is not None and any(
            wait.run and (stand.runs > wait.run or (stand.runs == wait.run and not stand.inside))
            for wait in waits.values()
        )
