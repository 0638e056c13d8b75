"""The calls of a record: which nodes each one computes, what it has to do, and how long it took."""

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

PACK, ADD = "(pack a weight)", "(add gradients)"  # calls that are no operator's

Floats = npt.NDArray[Any]


@dataclass(frozen=True)
class Call:
    """One place of a rank's step where something is called.

    op: of the node, of several that are computed block by block joined by +, or PACK or ADD.
    node: the (first) node's name. flops, nbytes: operations, bytes read and written. seconds: of
    each step.
    """

    rank: int
    key: BodyKey
    mb: int
    op: str
    node: str
    flops: int
    nbytes: int
    seconds: Floats

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


class _What:
    """What a body's call does: see Call."""

    def __init__(self, op: str, node: str, nodes: Sequence[Node], graph: Graph) -> None:
        self.op, self.node = op, node
        self.flops = sum(
            find(n.op).flops(n.attrs, graph.types_of(n.inputs), n.types) for n in nodes
        )
        self.nbytes = sum(touched_bytes(n, graph) for n in nodes)


def calls_of(record: Record) -> list[Call]:
    """All calls of all ranks, in the order of the ranks' programs."""
    return [
        call for rank, own in enumerate(record.ranks) for call in _rank_calls(record, rank, own)
    ]


def _rank_calls(record: Record, rank: int, own: RankRecord) -> Iterator[Call]:
    parts = record.parts
    seconds = (own.calls.end - own.calls.start) * 1e-9
    known: dict[tuple[BodyKey, Kind, tuple[str, ...]], list[_What]] = {}
    at = 0
    for run in own.runs:
        kind = parts.mbs[run.mb].kind
        partition = parts.partitions[kind]
        place = run.key, kind, run.calls
        if place not in known:
            known[place] = list(_whats(partition.bodies[run.key], run.calls))
        adding = [_What(ADD, name, (), partition.graph) for name in run.adding]
        for what in [*known[place], *adding]:
            yield Call(
                rank, run.key, run.mb, what.op, what.node, what.flops, what.nbytes, seconds[:, at]
            )
            at += 1


def _whats(body: Body, names: Sequence[str]) -> Iterator[_What]:
    """What each call of a body does.

    A call computes the nodes from its own up to that of the next call, but for those that take no
    call: neighbours that go element by element are one call. Of two with one name the first packs
    a weight for the second.
    """
    graph = body.graph
    order = [n.name for n in graph if not n.is_variable]
    places = {name: at for at, name in enumerate(order)}
    for at, name in enumerate(names):
        after = names[at + 1] if at + 1 < len(names) else None
        if after == name:
            yield _What(PACK, name, (), graph)
            continue
        end = len(order) if after is None else places[after]
        nodes = [graph[n] for n in order[places[name] : end]]
        nodes = [n for i, n in enumerate(nodes) if not i or not is_free(n, graph)]
        yield _What("+".join(dict.fromkeys(n.op for n in nodes)), name, nodes, graph)
