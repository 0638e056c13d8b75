"""What the partitioner decides: placements, the cut bodies and the edges between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

from symgraph.core.context import Context
from symgraph.core.graph import Graph
from symgraph.core.types import TensorType, Value

FORWARD, BACKWARD = "F", "B"
INPUT, WEIGHT = "I", "W"  # the backward phase in two: gradients of inputs, and of parameters
PHASES = (FORWARD, BACKWARD, INPUT, WEIGHT)
AGAIN = "__again__"  # the tag of nodes that the backward phase runs again; see recompute


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
    """The name of a body: one phase of one time segment of one stage."""

    stage: int
    phase: str
    segment: int = 0

    def __str__(self) -> str:
        return f"{self.stage}{self.phase}" + (f".{self.segment}" if self.segment else "")


@dataclass(frozen=True)
class CommEdge:
    """A value that goes from one body to another stage's; one message a micro-batch.

    dst: the first phase of the destination stage that reads it. Its later phases keep it.
    exchange: the collective that it is a part of, "" for none; edges of one have the same.
    """

    tag: int
    value: Value
    type: TensorType
    src: BodyKey
    dst: BodyKey
    exchange: str = ""

    def __str__(self) -> str:
        return f"{self.value} {self.src}->{self.dst} {self.type}"


class Topology(Protocol):
    """What schedules, their proof and their simulation know of a partition: no tensors, no nodes.

    rank_of: stage -> rank. bodies: the keys of all bodies. edges: with tags 0, 1, 2, ...
    """

    @property
    def rank_of(self) -> Sequence[int]: ...

    @property
    def ranks(self) -> int: ...

    @property
    def bodies(self) -> Collection[BodyKey]: ...

    @property
    def edges(self) -> Sequence[CommEdge]: ...


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


@dataclass(frozen=True, eq=False)
class Partition:
    """A graph cut over stages: one body for each stage and phase that has nodes, and the edges."""

    graph: Graph
    placement: Placement
    bodies: Mapping[BodyKey, Body]
    edges: tuple[CommEdge, ...]

    @property
    def rank_of(self) -> tuple[int, ...]:
        """Stage -> rank."""
        return self.placement.rank_of

    @property
    def ranks(self) -> int:
        return self.placement.ranks

    @cached_property
    def outgoing(self) -> Mapping[BodyKey, tuple[CommEdge, ...]]:
        """The edges of each body that makes values for other stages."""
        found: dict[BodyKey, list[CommEdge]] = {key: [] for key in self.bodies}
        for edge in self.edges:
            found[edge.src].append(edge)
        return {key: tuple(edges) for key, edges in found.items()}

    def rank(self, key: BodyKey) -> int:
        return self.rank_of[key.stage]

    def crosses(self, edge: CommEdge) -> bool:
        """Whether the edge joins two ranks, so that a message is sent."""
        return self.rank(edge.src) != self.rank(edge.dst)

    #: What `str` and `print` show: views/report.py's table, set by the package's `__init__`.
    printer: ClassVar[Callable[[Partition], str]] = repr

    def __str__(self) -> str:
        return Partition.printer(self)
