"""Chains: topologies without a network, for exploring schedules.

    stage 0 ──F──▶ stage 1 ──F──▶ stage 2        and back: ◀──B── (or I, with a split backward)

Every time segment has its own edge between neighbouring stages, as unrolled networks do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partitioner.base.types import BACKWARD, FORWARD, INPUT, WEIGHT, BodyKey, CommEdge
from symgraph.core.types import TensorType, Value


@dataclass(frozen=True)
class Chain:
    """A Topology of stages in a row. Make one with `chain`."""

    rank_of: tuple[int, ...]
    ranks: int
    bodies: tuple[BodyKey, ...]
    edges: tuple[CommEdge, ...]


def chain(
    rank_of: Sequence[int],
    *,
    split: bool = False,
    segments: int = 1,
    nbytes: int = 0,
    train: bool = True,
) -> Chain:
    """Make a row of stages.

    Args:
        rank_of: stage -> rank.
        split: whether the backward phase is cut into I and W.
        segments: number of time segments of each stage.
        nbytes: size of every message.
        train: whether there is a backward phase.
    """
    stages = len(rank_of)
    back = INPUT if split else BACKWARD
    phases = (FORWARD, *((back, WEIGHT) if split else (back,))) if train else (FORWARD,)
    bodies = tuple(
        BodyKey(s, phase, k) for s in range(stages) for phase in phases for k in range(segments)
    )
    ends = [
        ("act", BodyKey(s, FORWARD, k), BodyKey(s + 1, FORWARD, k))
        for s in range(stages - 1)
        for k in range(segments)
    ]
    if train:
        ends += [
            ("grad", BodyKey(s, back, k), BodyKey(s - 1, back, k))
            for s in range(stages - 1, 0, -1)
            for k in range(segments - 1, -1, -1)
        ]
    edges = tuple(
        CommEdge(
            tag, Value(f"{name}{src.stage}.{src.segment}"), TensorType((nbytes,), "int8"), src, dst
        )
        for tag, (name, src, dst) in enumerate(ends)
    )
    return Chain(tuple(rank_of), max(rank_of) + 1, bodies, edges)
