"""The mutant: a dumped plan in pieces that can be changed, and which instruction needs which."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from runtime.frontends.cli.verify import Step, parse, values_of

Record = dict[str, Any]


class Mutant:
    """A plan's records, to be changed in place."""

    def __init__(self, lines: Sequence[str], rng: random.Random) -> None:
        self.rng = rng
        self.records: list[Record] = [json.loads(line) for line in lines]
        self.of: dict[str, list[Record]] = defaultdict(list)
        for record in self.records:
            self.of[record["is"]].append(record)
        self.programs = [record["instructions"].split() for record in self.of["program"]]
        (self.head,) = self.of["plan"]
        self.ranks: list[int] = self.head["stages"]
        first = self.head["micro_batches"][0]
        self.messages = [m for m in self.of["message"] if m["samples"] == first]

    def lines(self) -> list[str]:
        for record, program in zip(self.of["program"], self.programs, strict=True):
            record["instructions"] = " ".join(program)
        return [json.dumps(record) for record in self.records]

    def drop(self, record: Record) -> None:
        self.records = [r for r in self.records if r is not record]

    def some(self, kind: str, **having: Any) -> Record:
        """Draw a record of a kind, with these entries."""
        found = [r for r in self.of[kind] if all(r[k] == v for k, v in having.items())]
        return self.rng.choice(found)

    def instruction(self, kinds: Sequence[str]) -> tuple[int, int, Step]:
        """Draw an instruction of these kinds: rank, place, and what it is."""
        found = [
            (rank, at, step)
            for rank, program in enumerate(self.programs)
            for at, step in enumerate(map(parse, program))
            if step.kind in kinds
        ]
        return self.rng.choice(found)

    def depends(self, later: Step, earlier: Step) -> bool:
        """Tell whether an instruction of a rank needs an earlier one of it."""
        if earlier.kind == "C" and later.kind == "U":
            return True
        if earlier.mb != later.mb or earlier.kind not in ("run", "R", "S"):
            return False
        if earlier.kind == "run":
            if later.kind == "free":
                return later.of == earlier.of
            if later.kind == "S":
                return self.tagged(later)["made_by"] == earlier.of
            return later.kind == "run" and (earlier.of, later.of) in self.reads
        if later.kind == "run":
            return earlier.kind == "R" and self.tagged(earlier)["taken_by"] == later.of
        return later.kind == "free" and self.tagged(earlier)["made_by"] == later.of

    def tagged(self, step: Step) -> Record:
        return self._tagged[step.of]

    @cached_property
    def _tagged(self) -> dict[str, Record]:
        return {str(m["tag"]): m for m in self.messages}

    @cached_property
    def home(self) -> dict[str, str]:
        """The body that makes each value."""
        return {value: node["body"] for node in self.of["node"] for value in values_of(node)}

    @cached_property
    def reads(self) -> set[tuple[str, str]]:
        """Pairs of bodies, of which the second reads what the first makes."""
        nodes = self.of["node"]
        return {(self.home[value], node["body"]) for node in nodes for value in node["inputs"]}

    def pairs(self) -> list[tuple[int, int, int]]:
        """List rank and places of instructions of which the later one needs the earlier one."""
        return [
            (rank, i, j)
            for rank, program in enumerate(self.programs)
            for steps in [[parse(text) for text in program]]
            for j, later in enumerate(steps)
            for i, earlier in enumerate(steps[:j])
            if self.depends(later, earlier)
        ]
