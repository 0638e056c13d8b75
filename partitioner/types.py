"""What the partitioner decides: placements, the cut bodies and the edges between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from symgraph.context import Context
from symgraph.graph import Graph
from symgraph.types import TensorType, Value

FORWARD, BACKWARD = "F", "B"
PHASES = (FORWARD, BACKWARD)


@dataclass(frozen=True)
class Placement:
    """Where nodes live: forward node -> stage -> rank -> device.

    Stages are numbered so that values flow from lower to higher ones in the forward phase.
    Gradient nodes live with their origin.
    """

    stage_of: Mapping[str, int]
    rank_of: tuple[int, ...]
    devices: tuple[Context, ...]

    @property
    def stages(self) -> int:
        return len(self.rank_of)

    @property
    def ranks(self) -> int:
        return len(self.devices)

    def device_of(self, node: str) -> Context:
        """The device of a forward node."""
        return self.devices[self.rank_of[self.stage_of[node]]]


class BodyKey(NamedTuple):
    """The name of a body: one phase of one stage."""

    stage: int
    phase: str

    def __str__(self) -> str:
        return f"{self.stage}{self.phase}"


@dataclass(frozen=True)
class CommEdge:
    """A value that goes from one body to another stage's; one message a micro-batch.

    dst: the first phase of the destination stage that reads it. Its later phases keep it.
    """

    tag: int
    value: Value
    type: TensorType
    src: BodyKey
    dst: BodyKey

    def __str__(self) -> str:
        return f"{self.value} {self.src}->{self.dst} {self.type}"


@dataclass(frozen=True)
class Body:
    """The nodes of one phase of one stage, as a graph of its own.

    graph: its variables are the fed ones and the imports; its outputs are all values that are
    read outside. imports: variable of the body -> the value it stands for, made by an earlier
    phase of this stage or received. keeps: values (made here, imported or fed) that a later
    phase of this stage reads. results: outputs of the whole graph that are made here.
    """

    key: BodyKey
    graph: Graph
    imports: Mapping[str, Value]
    keeps: tuple[Value, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True)
class Partition:
    """A graph cut over stages: one body for each stage and phase that has nodes, and the edges."""

    graph: Graph
    placement: Placement
    bodies: Mapping[BodyKey, Body]
    edges: tuple[CommEdge, ...]

    def rank(self, key: BodyKey) -> int:
        return self.placement.rank_of[key.stage]

    def crosses(self, edge: CommEdge) -> bool:
        """Whether the edge joins two ranks, so that a message is sent."""
        return self.rank(edge.src) != self.rank(edge.dst)

    def __str__(self) -> str:
        from partitioner.report import table

        return table(self)
