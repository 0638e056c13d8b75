"""The calls of a record: the nodes that each call computes, its operations, bytes and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from partitioner.base.types import Body, BodyKey
from partitioner.costs.cost import is_free, touched_bytes
from runtime.planning.memory.arena import Kind
from runtime.profiling.analysis.record import RankRecord, Record
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find

PACK, ADD = "(pack a weight)", "(add gradients)"  # calls outside operators

Floats = npt.NDArray[Any]


@dataclass(frozen=True)
class Call:
    """One call in the program of a rank."""

    rank: int
    key: BodyKey
    mb: int
    op: str
    """The operator; several joined by + if computed block by block; or PACK or ADD."""
    node: str
    """The name of the (first) node."""
    flops: int
    nbytes: int
    """Bytes read and written."""
    seconds: Floats
    """The seconds in each step."""

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


class _Work:
    """The operator, node, operations and bytes of a body's call; see Call."""

    def __init__(self, op: str, node: str, nodes: Sequence[Node], graph: Graph) -> None:
        self.op, self.node = op, node
        self.flops = sum(
            find(n.op).flops(n.attrs, graph.types_of(n.inputs), n.types) for n in nodes
        )
        self.nbytes = sum(touched_bytes(n, graph) for n in nodes)


def calls_of(record: Record) -> list[Call]:
    """Return all calls of all ranks, in program order."""
    return [
        call for rank, own in enumerate(record.ranks) for call in _rank_calls(record, rank, own)
    ]


def _rank_calls(record: Record, rank: int, own: RankRecord) -> Iterator[Call]:
    parts = record.parts
    seconds = (own.calls.end - own.calls.start) * 1e-9
    known: dict[tuple[BodyKey, Kind, tuple[str, ...]], list[_Work]] = {}
    at = 0
    for run in own.runs:
        kind = parts.mbs[run.mb].kind
        partition = parts.partitions[kind]
        place = run.key, kind, run.calls
        if place not in known:
            known[place] = list(_work_of(partition.bodies[run.key], run.calls))
        for what in known[place]:
            yield Call(
                rank, run.key, run.mb, what.op, what.node, what.flops, what.nbytes, seconds[:, at]
            )
            at += 1


def _work_of(body: Body, names: Sequence[str]) -> Iterator[_Work]:
    """Yield the work of each call of a body.

    A call computes the nodes from its own up to that of the next call, without those that take no
    call; element-wise neighbours share a call. If two calls have the same name, the first packs a
    weight for the second. A call with the name of a variable adds up gradients.
    """
    graph = body.graph
    order = [n.name for n in graph if not n.is_variable]
    places = {name: at for at, name in enumerate(order)}
    followers = iter([name for name in names if name in places][1:])
    for name in names:
        if name not in places:
            yield _Work(ADD, name, (), graph)
            continue
        after = next(followers, None)
        if after == name:
            yield _Work(PACK, name, (), graph)
            continue
        end = len(order) if after is None else places[after]
        nodes = [graph[n] for n in order[places[name] : end]]
        nodes = [n for i, n in enumerate(nodes) if not i or not is_free(n, graph)]
        yield _Work("+".join(dict.fromkeys(n.op for n in nodes)), name, nodes, graph)
