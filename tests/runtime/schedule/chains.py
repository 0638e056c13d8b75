"""Small partitions for tests of schedules: chains of stages, with and without skips."""

from __future__ import annotations

import symgraph.frontend.sym as sym
from partitioner import Partition, Placement, group2ctx
from partitioner.cutting.cut import cut
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.lowering.lower import lower as lower_schedule
from runtime.schedule.program import Schedule
from symgraph.core.context import cpu
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.frontend.symbol import Symbol
from symgraph.passes.gradients import gradients

# The grid of PyTorch's tests: stages per rank, micro-batches, ranks.
GRID = [
    (2, 2, 2),
    (2, 4, 4),
    (2, 8, 2),
    (2, 8, 4),
    (2, 8, 8),
    (4, 4, 4),
    (4, 8, 4),
    (4, 8, 8),
    (4, 16, 4),
    (4, 32, 4),
    (4, 64, 4),
    (4, 16, 16),
    (4, 32, 32),
    (4, 128, 64),
    (3, 2, 2),
    (3, 8, 2),
    (3, 12, 4),
    (4, 6, 3),
    (4, 10, 5),
    (2, 3, 4),
    (2, 10, 4),
    (2, 15, 4),
]


def placed(symbol: Symbol, ranks: int, train: bool = True) -> Partition:
    """The cut of a network whose groups `g0`, `g1`, ... are ranks; x of shape (2,) is fed."""
    graph = lower(symbol, {"x": (2,)})
    if train:
        graph = gradients(graph, ["x"]).graph
    groups = {f"g{r}": cpu(r) for r in range(ranks)}
    return cut(graph, group2ctx(graph, groups, cpu(0), tuple(groups.values())))


def chain(*ranks: int, train: bool = True, skip: bool = False) -> Partition:
    """One node a stage on these ranks; with `skip`, the first value is also read by the last.

    Edges of two stages: 0 forward, 1 backward.
    """
    first = x = sym.Variable("x")
    for stage, rank in enumerate(ranks):
        with AttrScope(ctx_group=f"g{rank}"):
            if skip and stage == len(ranks) - 1:
                x = sym.elemwise_add(x, first)
            x = sym.tanh(x, name=f"y{stage}")
            first = x if stage == 0 else first
            if stage == len(ranks) - 1:
                x = sym.MakeLoss(x, name="loss")
    return placed(x, max(ranks) + 1, train)


def criss_cross() -> Partition:
    """Forward only: a is read by both stages of rank 1, and the second one needs it late.

    stage 0 (rank 0)   a ─────────────┐
                       │              │ skip
    stage 1 (rank 1)   b              │
                       │              │
    stage 2 (rank 0)   c              │
                       │              │
    stage 3 (rank 1)   d = c + cos(a)─┘
    """
    a = sym.tanh(sym.Variable("x"), name="a")
    c = sym.sin(sym.exp(a, name="b"), name="c")
    graph = lower(sym.elemwise_add(c, sym.cos(a, name="skip"), name="d"), {"x": (2,)})
    stage_of = {"x": 0, "a": 0, "b": 1, "c": 2, "skip": 3, "d": 3}
    return cut(graph, Placement(stage_of, (0, 1, 0, 1), (cpu(0), cpu(1))))


def scheduled(name: str, partition: Partition, mbs: int, *, update: bool = False) -> Schedule:
    compute = SCHEDULES[name](partition.placement.rank_of, mbs)
    return lower_schedule(partition, compute, update=update)
