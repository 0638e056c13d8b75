"""Instructions of a rank, each with a short text form.

2F0      run the forward body of stage 2 on micro-batch 0; the phases are F and B, or F, I and W:
         I computes the gradients of inputs, W, later, those of parameters
2F0.3    the same for time segment 3 (segment 0 is not written)
S3.0     send edge 3's value of micro-batch 0; posts the message and never blocks
R3.0     receive it
D2F0.3   free what no body after 2F0.3 needs, once the messages of 2F0.3 are delivered
C        reduce norms and losses over all ranks (C1: sum the gradients of replicas, C2: spread their
         weights, of which each has updated a part)
U2       update the parameters of stage 2
"""

from __future__ import annotations

from dataclasses import dataclass

from partitioner.base.types import PHASES, BodyKey


@dataclass(frozen=True, slots=True)
class Run:
    """Run one body on one micro-batch."""

    stage: int
    phase: str
    mb: int
    segment: int = 0

    @property
    def key(self) -> BodyKey:
        return BodyKey(self.stage, self.phase, self.segment)

    def __str__(self) -> str:
        return f"{self.stage}{self.phase}{self.mb}" + (f".{self.segment}" if self.segment else "")


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
    """Free the values that no later body of the stage needs, once its messages are delivered."""

    stage: int
    phase: str
    mb: int
    segment: int = 0

    @property
    def key(self) -> BodyKey:
        return BodyKey(self.stage, self.phase, self.segment)

    def __str__(self) -> str:
        return f"D{self.stage}{self.phase}{self.mb}" + (f".{self.segment}" if self.segment else "")


@dataclass(frozen=True, slots=True)
class Collective:
    """Sum norms and losses (tag 0) or replicas' gradients (1), or spread replicas' weights (2)."""

    tag: int = 0

    def __str__(self) -> str:
        return f"C{self.tag}" if self.tag else "C"


@dataclass(frozen=True, slots=True)
class Update:
    """Apply the optimizer to the parameters of a stage."""

    stage: int

    def __str__(self) -> str:
        return f"U{self.stage}"


REPLICAS = 1  # the tag of the collective that sums the gradients of replicas
WEIGHTS = 2  # the tag of the collective that spreads the weights of replicas

Instruction = Run | Send | Recv | Free | Collective | Update

# The codes of instructions in a program's columns: a run or free of phase p is RUN + p or FREE + p,
# p the phase's place in PHASES.
RUN, FREE, SEND, RECV, COLLECTIVE, UPDATE = 0, 4, 8, 9, 10, 11

Row = tuple[int, int, int, int]  # code, stage or tag, micro-batch, segment


def encode(instruction: Instruction) -> Row:
    """Return the columns' entries for an instruction."""
    match instruction:
        case Run(stage, phase, mb, segment):
            return RUN + PHASES.index(phase), stage, mb, segment
        case Free(stage, phase, mb, segment):
            return FREE + PHASES.index(phase), stage, mb, segment
        case Send(tag, mb):
            return SEND, tag, mb, 0
        case Recv(tag, mb):
            return RECV, tag, mb, 0
        case Collective(tag):
            return COLLECTIVE, tag, 0, 0
        case Update(stage):
            return UPDATE, stage, 0, 0


def decode(row: Row) -> Instruction:
    """Return the instruction of a row that `encode` made."""
    code, at, mb, segment = row
    if code < FREE:
        return Run(at, PHASES[code], mb, segment)
    if code < SEND:
        return Free(at, PHASES[code - FREE], mb, segment)
    if code == SEND:
        return Send(at, mb)
    if code == RECV:
        return Recv(at, mb)
    return Collective(at) if code == COLLECTIVE else Update(at)
