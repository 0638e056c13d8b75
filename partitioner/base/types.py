"""Types: placements, the bodies that a graph is cut into, and the edges between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

from symgraph.core.context import Context
from symgraph.core.graph import Graph
from symgraph.core.types import TensorType, Value
from symgraph.core.units import count_text
from symgraph.frontend.backend import load

FORWARD, BACKWARD = "F", "B"
INPUT, WEIGHT = "I", "W"  # the backward phase in two: gradients of inputs, and of parameters
PHASES = (FORWARD, BACKWARD, INPUT, WEIGHT)
PHASE_NAMES = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients"}
AGAIN = "__again__"  # the tag of nodes that the backward phase runs again; see recompute.py


@dataclass(frozen=True, repr=False)
class Placement:
    """Where nodes live: forward node -> stage -> rank -> device.

    Stages are numbered so that values flow from lower to higher ones in the forward phase.
    Gradient nodes live with their origin.
    """

    stage_of: Mapping[str, int]  #: forward node -> stage
    rank_of: tuple[int, ...]  #: stage -> rank
    devices: tuple[Context, ...]  #: rank -> device

    def __repr__(self) -> str:
        stages = count_text(self.stages, "stage")
        return f"<Placement: {count_text(len(self.stage_of), 'node')} in {stages}, {self.where}>"

    @property
    def where(self) -> str:
        """The devices in words, such as "on cpu(0) and cpu(1)"; of many, their number."""
        names = [*map(repr, self.devices)]
        if len(names) > 4:
            return f"on {len(names)} devices"
        return "on " + " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))

    @property
    def stages(self) -> int:
        return len(self.rank_of)

    @property
    def ranks(self) -> int:
        return len(self.devices)

    def device_of(self, node: str) -> Context:
        """Return the device of a forward node."""
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
    """A value that goes from a body to one of another stage: one message per micro-batch."""

    tag: int  #: its number among all edges
    value: Value
    type: TensorType
    src: BodyKey  #: the body that makes it
    dst: BodyKey  #: the first body of the destination stage that reads it; later ones keep it
    exchange: str = ""  #: the collective that it is a part of; "": none

    def __str__(self) -> str:
        return f"{self.value} {self.src}->{self.dst} {self.type}"


class Topology(Protocol):
    """The part of a partition that schedules, proofs and simulations need: no tensors or nodes."""

    @property
    def rank_of(self) -> Sequence[int]:
        """Stage -> rank."""
        ...

    @property
    def ranks(self) -> int: ...

    @property
    def bodies(self) -> Collection[BodyKey]:
        """The keys of all bodies."""
        ...

    @property
    def edges(self) -> Sequence[CommEdge]:
        """The edges, with tags 0, 1, 2, ..."""
        ...


@dataclass(frozen=True)
class Body:
    """The nodes of one phase of one stage, as a separate graph."""

    key: BodyKey
    #: Its variables are the fed ones and the imports; its outputs are all values read outside.
    graph: Graph
    #: Variable -> the value it stands for, received or made by an earlier phase of the stage.
    imports: Mapping[str, Value]
    #: The values (made here, imported or fed) that a later phase of this stage reads.
    keeps: tuple[Value, ...]
    #: The outputs of the whole graph that are made here.
    results: tuple[Value, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """A graph cut over stages: one body for each stage and phase that has nodes, and the edges."""

    graph: Graph
    placement: Placement
    bodies: Mapping[BodyKey, Body]
    edges: tuple[CommEdge, ...]

    def __repr__(self) -> str:
        stages, edges = count_text(self.placement.stages, "stage"), len(self.edges)
        return (
            f"<Partition: {count_text(len(self.graph.nodes), 'node')} in {stages} "
            f"{self.placement.where}, {count_text(edges, 'message')} a micro-batch>"
        )

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
        outgoing: dict[BodyKey, list[CommEdge]] = {key: [] for key in self.bodies}
        for edge in self.edges:
            outgoing[edge.src].append(edge)
        return {key: tuple(edges) for key, edges in outgoing.items()}

    def rank(self, key: BodyKey) -> int:
        return self.rank_of[key.stage]

    def crosses(self, edge: CommEdge) -> bool:
        """Tell whether the edge joins two ranks, so that a message is sent."""
        return self.rank(edge.src) != self.rank(edge.dst)

    #: What `str` and `print` show: views/report.py's table, set by the package's `__init__`.
    printer: ClassVar[Callable[[Partition], str]] = repr

    def _repr_svg_(self) -> str:
        """Return a picture of groups, stages and what is sent, for notebooks."""
        svg: str = load("placement_picture").svg(self.graph, self.placement)
        return svg

    def __str__(self) -> str:
        return Partition.printer(self)
