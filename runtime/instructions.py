"""Instructions: what a rank can be told to do, each with a short text form.

2F0      run the forward body of stage 2 on micro-batch 0 (2B0: the backward body)
S3.0     send edge 3's value of micro-batch 0; posts and never blocks
R3.0     receive it
D2F0     drop what body 2F of micro-batch 0 was the last to need, once its sends are delivered
C        reduce norms and losses over all ranks
U2       update the parameters of stage 2
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from partitioner.types import BodyKey
from symgraph.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class Run:
    """Run one body on one micro-batch."""

    stage: int
    phase: str
    mb: int

    @property
    def key(self) -> BodyKey:
        return BodyKey(self.stage, self.phase)

    def __str__(self) -> str:
        return f"{self.stage}{self.phase}{self.mb}"


@dataclass(frozen=True, slots=True)
class Send:
    """Post the message of one edge and micro-batch."""

    tag: int
    mb: int

    def __str__(self) -> str:
        return f"S{self.tag}.{self.mb}"


@dataclass(frozen=True, slots=True)
class Recv:
    """Wait for the message of one edge and micro-batch."""

    tag: int
    mb: int

    def __str__(self) -> str:
        return f"R{self.tag}.{self.mb}"


@dataclass(frozen=True, slots=True)
class Free:
    """Drop the values that this body was the last of its stage to need; waits for its sends."""

    stage: int
    phase: str
    mb: int

    @property
    def key(self) -> BodyKey:
        return BodyKey(self.stage, self.phase)

    def __str__(self) -> str:
        return f"D{self.stage}{self.phase}{self.mb}"


@dataclass(frozen=True, slots=True)
class Collective:
    """Sum norms and losses over all ranks; every rank takes part."""

    def __str__(self) -> str:
        return "C"


@dataclass(frozen=True, slots=True)
class Update:
    """Apply the optimizer to the parameters of a stage."""

    stage: int

    def __str__(self) -> str:
        return f"U{self.stage}"


Instruction = Run | Send | Recv | Free | Collective | Update
Program = tuple[Instruction, ...]

_FORMS: list[tuple[str, Callable[..., Instruction]]] = [
    (r"(\d+)([FB])(\d+)", lambda s, p, m: Run(int(s), p, int(m))),
    (r"S(\d+)\.(\d+)", lambda t, m: Send(int(t), int(m))),
    (r"R(\d+)\.(\d+)", lambda t, m: Recv(int(t), int(m))),
    (r"D(\d+)([FB])(\d+)", lambda s, p, m: Free(int(s), p, int(m))),
    (r"C", lambda: Collective()),
    (r"U(\d+)", lambda s: Update(int(s))),
]


@dataclass(frozen=True)
class Schedule:
    """The programs of all ranks: always the whole machine, never one rank's view."""

    programs: tuple[Program, ...]

    def __str__(self) -> str:
        return "\n".join(f"rank {r}: {text(p)}" for r, p in enumerate(self.programs))


def text(program: Iterable[Instruction]) -> str:
    """A program as one line."""
    return " ".join(map(str, program))


def parse(lines: Sequence[str]) -> Schedule:
    """The schedule that `text` wrote, one line a rank (`rank 0:` may stand in front).

    A token that is no instruction raises ScheduleError naming token, rank and position.
    """
    programs = []
    for rank, line in enumerate(lines):
        tokens = re.sub(r"^\s*rank \d+:", "", line).split()
        programs.append(tuple([_parse(t, rank, i) for i, t in enumerate(tokens)]))
    return Schedule(tuple(programs))


def _parse(token: str, rank: int, position: int) -> Instruction:
    for pattern, make in _FORMS:
        match = re.fullmatch(pattern, token)
        if match:
            return make(*match.groups())
    raise ScheduleError(
        f"rank {rank}, instruction {position}: {token!r} is none of 2F0, 2B0, S3.0, R3.0, D2F0, "
        "C, U2"
    )
