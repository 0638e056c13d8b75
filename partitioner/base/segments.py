"""Time segments: which piece of a network that is unrolled over time each node belongs to.

Nodes carry their time step in the attribute `time_step` (`rnn` cells set it, or an
`AttrScope(time_step=...)`). With k steps a segment, the forward phase of a stage runs its segments
one after the other, and the backward phase runs them back:

    layer 2          F0 F1 F2 B2 B1 B0          layer 2 works on segment 0 while
    layer 1       F0 F1 F2       B2 B1 B0       layer 1 works on segment 1

A forward node runs in its own step's segment, or in that of the latest input if that is later; so
whatever reads all time steps (a reversed layer, attention, a decoder over the whole sequence) runs
in the last segment, and so does everything that needs it. A gradient node runs in its
origin's segment, or in that of its earliest gradient input; gradients of nodes that no time step
precedes (parameters, an embedding of the whole sequence) are added up as soon as they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partitioner.base.types import AGAIN
from symgraph.core.errors import GraphError
from symgraph.core.graph import Graph, Node
from symgraph.core.tags import lookup
from symgraph.passes.precision import is_parameter_cast


@dataclass(frozen=True)
class Segments:
    """The time segments of a network."""

    of: Mapping[str, int]  #: node -> segment
    count: int  #: of segments
    #: Nodes that have to wait for a later input -> (their time step, that input's segment).
    late: Mapping[str, tuple[int, int]]

    def why_late(self, steps: int) -> str:
        """Describe how much of the network cannot be cut into segments of that many steps."""
        if not self.late:
            return ""
        name, (step, segment) = next(iter(self.late.items()))
        return (
            f"{len(self.late)} nodes cannot run in the segment of their time step: {name!r} of "
            f"step {step} needs what segment {segment} makes, not only segment {step // steps}"
        )


def time_steps(graph: Graph) -> int:
    """Count the time steps: 1 + the latest one of any forward node; 0 if no node has one."""
    steps = (_step(n) for n in graph if n.origin is None and not n.is_variable)
    return 1 + max((s for s in steps if s is not None), default=-1)


def time_segments(graph: Graph, steps: int | None) -> Segments:
    """Find the segment of every node.

    Args:
        graph: a graph with or without gradients.
        steps: time steps per segment; None: everything is segment 0.

    Raises:
        GraphError: for a time step that is not a whole number.
    """
    if steps is None:
        return Segments(dict.fromkeys(graph.nodes, 0), 1, {})
    if steps < 1:
        raise GraphError(f"a time segment needs at least 1 step, not {steps}")
    of: dict[str, int] = {}
    late: dict[str, tuple[int, int]] = {}
    timeless: set[str] = set()  # forward nodes that no time step precedes
    for node in graph:
        if node.origin is None:
            step = None if node.is_variable else _step(node)
            before = max((of[v.node] for v in node.inputs), default=0)
            earliest = 0 if step is None else step // steps
            of[node.name] = max(earliest, before)
            if step is not None and before > earliest:
                late[node.name] = (step, before)
            if step is None and all(v.node in timeless for v in node.inputs):
                timeless.add(node.name)
    _begin_late(graph, of)
    last = max(of.values(), default=0)
    for node in graph:
        if node.origin is not None:
            anytime = node.origin in timeless and AGAIN not in node.tags
            latest = last if anytime else of[node.origin]
            behind = (of[v.node] for v in node.inputs if graph[v.node].origin is not None)
            of[node.name] = min(latest, min(behind, default=last))
    return Segments(of, last + 1, late)


def _begin_late(graph: Graph, of: dict[str, int]) -> None:
    """Cast parameters to another dtype in the first segment that reads them so."""
    first: dict[str, int] = {}
    for node in graph:
        for value in node.inputs:
            if node.origin is None and is_parameter_cast(graph, value.node):
                first[value.node] = min(of[node.name], first.get(value.node, of[node.name]))
    of |= first


def _step(node: Node) -> int | None:
    text = lookup(node.tags, "time_step")
    if text is None:
        return None
    try:
        step = int(text)
    except ValueError:
        step = -1
    if step < 0:
        raise GraphError(
            f"node {node.name!r} has time_step {text!r}; it must be a whole number >= 0"
        )
    return step


def segment_lengths(steps: int) -> list[int]:
    """List the lengths of time segments to try: a half, a quarter, an eighth ... of all steps."""
    parts = [1 << n for n in range(1, max(1, steps).bit_length())]
    return list(dict.fromkeys(-(-steps // part) for part in parts))
