"""Programs: the instructions of one rank as columns of small integers, and those of all ranks.

A schedule of a thousand ranks and thousands of micro-batches has tens of millions of instructions;
objects for them would take gigabytes. The columns are what is generated, checked and simulated;
reading an item makes its Instruction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from runtime.schedule.instructions import FREE, Instruction, Run, decode, encode
from symgraph.core.units import count_text
from symgraph.frontend.backend import load

Column = npt.NDArray[Any]


class Columns(NamedTuple):
    """The instructions of a program, one array entry each."""

    #: uint8, see instructions.encode.
    code: Column
    #: int32: the stage or tag.
    at: Column
    #: int32.
    mb: Column
    #: int32.
    segment: Column


class Program(Sequence[Instruction]):
    """A rank's instructions in order; equal to any sequence of the same instructions."""

    __slots__ = ("_runs", "columns")

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._runs: tuple[tuple[int, Run], ...] | None = None

    @classmethod
    def of(cls, instructions: Iterable[Instruction]) -> Program:
        """Return the program of these instructions; a program is returned as it is."""
        if isinstance(instructions, Program):
            return instructions
        rows = np.array([encode(i) for i in instructions], np.int32).reshape(-1, 4)
        code, at, mb, segment = (np.ascontiguousarray(column) for column in rows.T)
        return cls(Columns(code.astype(np.uint8), at, mb, segment))

    @property
    def runs(self) -> tuple[tuple[int, Run], ...]:
        """Its runs of bodies, each with its place; looked up once."""
        if self._runs is None:
            places = np.flatnonzero(self.columns.code < FREE).tolist()
            found = ((place, self[place]) for place in places)
            self._runs = tuple([(at, run) for at, run in found if isinstance(run, Run)])
        return self._runs

    def __len__(self) -> int:
        return len(self.columns.code)

    @overload
    def __getitem__(self, index: int) -> Instruction: ...

    @overload
    def __getitem__(self, index: slice) -> Program: ...

    def __getitem__(self, index: int | slice) -> Instruction | Program:
        if isinstance(index, slice):
            return Program(Columns(*(column[index] for column in self.columns)))
        code, at, mb, segment = self.columns
        return decode((int(code[index]), int(at[index]), int(mb[index]), int(segment[index])))

    def __iter__(self) -> Iterator[Instruction]:
        return map(decode, zip(*(column.tolist() for column in self.columns), strict=True))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Program):
            pairs = zip(self.columns, other.columns, strict=True)
            return all(np.array_equal(a, b) for a, b in pairs)
        if isinstance(other, Sequence):
            return list(self) == list(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.tobytes())

    def tobytes(self) -> bytes:
        """Return all columns as bytes, for digests."""
        return b"".join(column.tobytes() for column in self.columns)

    def __str__(self) -> str:
        return " ".join(map(str, self))

    def __repr__(self) -> str:
        return f"Program({self})"


@dataclass(frozen=True, repr=False)
class Schedule:
    """The programs of all ranks: always the whole machine, never one rank's view."""

    programs: tuple[Program, ...]

    @classmethod
    def of(cls, programs: Iterable[Iterable[Instruction]]) -> Schedule:
        return cls(tuple([Program.of(p) for p in programs]))

    def __repr__(self) -> str:
        count = sum(len(program) for program in self.programs)
        ranks = count_text(len(self.programs), "rank")
        return f"<Schedule: {count_text(count, 'instruction')} on {ranks}>"

    def _repr_html_(self) -> str:
        """Return each rank's runs in their order, for notebooks."""
        html: str = load("timeline_picture").strips(self)
        return html

    def __str__(self) -> str:
        return "\n".join(f"rank {r}: {p}" for r, p in enumerate(self.programs))


def programs_of(columns: Columns, first: npt.NDArray[Any]) -> Iterator[Program]:
    """Cut columns into programs: the i-th has the rows first[i] : first[i + 1]."""
    for begin, end in pairwise(first):
        yield Program(Columns(*(column[begin:end] for column in columns)))
