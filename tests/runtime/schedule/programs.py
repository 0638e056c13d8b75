"""Topologies and programs for tests of lowering and checking: drawn by hand or at random.

What must precede what is written down here a second time, body by body and without arrays, so that
tests do not judge the code by its own facts.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from partitioner.base.types import BodyKey, CommEdge
from runtime.schedule.instructions import Run
from runtime.schedule.text import parse
from symgraph.core.types import TensorType, Value


@dataclass(frozen=True)
class Sketch:
    """A topology that a test draws."""

    rank_of: tuple[int, ...]
    ranks: int
    bodies: tuple[BodyKey, ...]
    edges: tuple[CommEdge, ...]

    def crosses(self, edge: CommEdge) -> bool:
        return self.rank_of[edge.src.stage] != self.rank_of[edge.dst.stage]

    def needs(self, key: BodyKey) -> list[BodyKey]:
        """The bodies, of any rank, that run before this one."""
        stage, phase, segment = key
        rules = {
            "F": lambda p, k: p == "F" and k < segment,
            "B": lambda p, k: p == "F" or (p == "B" and k > segment),
            "I": lambda p, k: p == "F" or (p == "I" and k > segment),
            "W": lambda p, k: p == "F" or (p == "W" and k > segment) or (p == "I" and k >= segment),
        }
        own = [b for b in self.bodies if b.stage == stage and rules[phase](b.phase, b.segment)]
        return own + [e.src for e in self.edges if e.dst == key]


def sketch(
    rank_of: Sequence[int], bodies: str, edges: Iterable[str] = (), ranks: int = 0
) -> Sketch:
    """A topology of text: bodies "0F 1F.2 1B", edges "a 0F->1F" with tags in that order."""
    made = []
    for tag, line in enumerate(edges):
        name, ends = line.split()
        src, dst = map(body, ends.split("->"))
        made.append(CommEdge(tag, Value(name), TensorType((2,), "float32"), src, dst))
    keys = tuple(map(body, bodies.split()))
    return Sketch(tuple(rank_of), ranks or max(rank_of) + 1, keys, tuple(made))


def body(text: str) -> BodyKey:
    stage, phase, segment = re.fullmatch(r"(\d+)([FBIW])(?:\.(\d+))?", text).groups()
    return BodyKey(int(stage), phase, int(segment or 0))


def lists(text: str) -> list[list[Run]]:
    """Compute lists, a line a rank."""
    return [list(program) for program in parse(text).programs]


def random_topology(rng: random.Random) -> Sketch:
    """Stages on random ranks, some idle, with random phases, segments and edges without cycles.

    Bodies are put in a row that is a valid order; edges go from left to right in it.
    """
    stages, segments = rng.randint(1, 5), rng.randint(1, 3)
    ranks = rng.randint(2, 4)
    rank_of = [rng.randrange(ranks) for _ in range(stages)]
    backward = [rng.choice(["B", "B", "IW", "IW", "I", "W", ""]) for _ in range(stages)]
    row = [BodyKey(s, "F", k) for k in range(segments) for s in range(stages)]
    row += [
        BodyKey(s, phase, k)
        for k in reversed(range(segments))
        for s in reversed(range(stages))
        for phase in backward[s]
    ]
    row = [key for key in row if key.segment == 0 or rng.random() < 0.9]
    pairs = [
        (src, dst)
        for at, src in enumerate(row)
        for dst in row[at + 1 :]
        if src.stage != dst.stage and (src.phase != "W" or dst.phase == "W")
    ]
    picked = rng.sample(pairs, min(len(pairs), rng.randint(stages, 4 * stages)))
    edges = [
        CommEdge(tag, Value(f"v{tag}"), TensorType((1,), "int8"), src, dst)
        for tag, (src, dst) in enumerate(picked)
    ]
    bodies = rng.sample(row, len(row))  # in no order
    return Sketch(tuple(rank_of), ranks, tuple(bodies), tuple(edges))


def random_lists(topology: Sketch, mbs: int, rng: random.Random) -> list[list[Run]]:
    """Compute lists that one after the other, over all ranks, is a valid order of."""
    waiting = {(key, mb): topology.needs(key) for key in topology.bodies for mb in range(mbs)}
    ranks: list[list[Run]] = [[] for _ in range(topology.ranks)]
    while waiting:
        ready = [
            (key, mb)
            for (key, mb), needs in waiting.items()
            if not any((need, mb) in waiting for need in needs)
        ]
        key, mb = rng.choice(ready)
        del waiting[key, mb]
        ranks[topology.rank_of[key.stage]].append(Run(key.stage, key.phase, mb, key.segment))
    return ranks
