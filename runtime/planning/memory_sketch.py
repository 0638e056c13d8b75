"""Memory in outline: what ranks hold under any placement, estimated without a cut.

It follows partitioner.memory and partitioner.cutting.recompute, value by value: what a body makes
for another one stays until the last of them has run, messages are held where they are read, and the
rest is scratch. Joins, and values that take the place of such as are kept, are not followed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from partitioner.base.aliasing import is_view, made_by
from partitioner.base.types import FORWARD, WEIGHT
from partitioner.costs.cost import Costs
from partitioner.costs.machine import Machine
from partitioner.strategies.coarse import node_times
from runtime.backends.scratch import scratch_of
from runtime.planning.memory_sketch_walk import (
    FED,
    FIXED,
    GRADIENT,
    MADE,
    Bodies,
    Bytes,
    Roots,
    body_bytes,
    recomputing,
    traffic_of,
)
from runtime.planning.network import Network
from runtime.planning.options import ALL, AUTO
from runtime.planning.outline import Outline
from runtime.schedule.search.list_scheduler_walk import peak
from runtime.schedule.search.problem import NEVER, Memory, Problem, partial_sums
from symgraph.core.context import Context
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find
from symgraph.core.types import Array, Value

PHASE_TURN = {FORWARD: 0, WEIGHT: 2}  # any other: 1
Key = tuple[int, str]  # of a body: stage and phase


class BothWays(NamedTuple):
    """What bodies hold if no stage runs its forward nodes again, and if all do."""

    whole: Bytes
    again: Bytes
    messages: Array
    """The bytes of the messages of each edge of the problem."""
    waiting: Array
    """waiting[n]: the partial sums of a gradient after n micro-batches."""
    stays: Array
    """The bytes of each rank that stay for the run."""
    stage_of: Array
    """The stage of each body."""
    seconds: Array
    """The time of each body's forward nodes that run again."""

    def allowing(self, recompute: str | tuple[int, ...]) -> BothWays:
        """Return what bodies hold by an option: `auto` allows both ways, `all` the second."""
        if recompute == AUTO:
            return self
        if recompute == ALL:
            return self._replace(whole=self.again)
        return self._replace(again=self.whole, seconds=np.zeros_like(self.seconds))

    def rooms(self, problem: Problem, limits: Array) -> Iterator[Memory]:
        """Yield what the list scheduler has to know to keep limits, for either way.

        A rank has at least the room in which it can run one micro-batch after the other.
        """
        received = np.bincount(problem.dst, self.messages, len(self.stage_of)).astype(np.int64)
        for rows in (self.whole, self.again):
            during = received + np.maximum(rows.top, rows.kept + rows.sending)
            room = np.array([min(x, NEVER) for x in limits.tolist()], np.int64) - self.stays
            memory = Memory(room, during, received + rows.kept, rows.sums, self.waiting)
            for rank in range(len(room)):
                own = problem.bodies[problem.bodies_first[rank] : problem.bodies_first[rank + 1]]
                done = np.zeros(len(during), np.int64)
                room[rank] = max(room[rank], peak(memory, np.tile(own, problem.mbs), done))
            yield memory

    def chosen(self, problem: Problem, order: Array, limits: Array) -> tuple[Array, Array]:
        """Choose the stages that recompute so that ranks keep their limits, as few as can be.

        Args:
            order: the bodies that all ranks run.
            limits: bytes of each rank.

        Returns:
            by stage whether it recomputes, and the bytes that each rank then holds.
        """
        weights = np.bincount(self.stage_of, self.seconds)
        again, held = np.zeros(len(weights), np.bool_), np.zeros(len(limits), np.int64)
        traffic = traffic_of(problem, order)
        rows = self.whole, self.again, traffic, self.messages, self.waiting, self.stage_of, weights
        for rank, limit in enumerate(limits.tolist()):
            room = int(min(limit, NEVER) - self.stays[rank])
            stages, most = recomputing(problem, rank, order, *rows, room)
            again |= stages
            held[rank] = most + self.stays[rank]
        return again, held


class MemorySketch:
    """The values of a network, and what stays on its ranks for the run, but packed weights."""

    def __init__(
        self, network: Network, made: Outline, slots: int, machine: Machine, costs: Costs
    ) -> None:
        graph, mbs = network.first, len(network.sizes)
        self._mbs, self._places = mbs, len(graph)
        asked = frozenset(network.grads.values())
        self._roots = _roots(graph, made.item_of, network.parameters, asked if mbs == 1 else ())
        self._sums = np.zeros(len(made.items), np.int64)
        for value in asked:
            self._sums[made.item_of[value.node]] += graph.type_of(value).nbytes
        self._stays = np.zeros(len(made.items), np.int64)
        for node in graph.variables:
            if node.origin is None and node.name in network.parameters:
                state = slots if node.name in network.grads else 0
                self._stays[made.item_of[node.name]] += (1 + state) * node.types[0].nbytes
        self._waiting = np.array([partial_sums(n, mbs) for n in range(mbs + 1)], np.int64)
        self._scratch = _scratch(graph, made, machine.contexts)
        root_at = {place: root for root, place in enumerate(self._roots.place.tolist())}
        others = len(self._roots.place)  # what makes no root, such as views
        homes = {n.name: root_at.get(place, others) for place, n in enumerate(graph)}
        self._seconds = node_times(graph, costs, machine, homes, others + 1)[:, :-1]

    def of(
        self,
        keys: Mapping[Key, int],
        body_of: Sequence[Key],
        rank_of: Sequence[int],
        ranks: int,
        messages: Array,
    ) -> BothWays:
        """Return what bodies hold if no stage recomputes, and if all do.

        Args:
            keys: the number of each body.
            body_of: the body of each item.
            rank_of: the rank of each stage.
            ranks: their number.
            messages: the bytes of the messages of each edge.
        """
        of_item = np.array([keys[key] for key in body_of], np.int64)
        stage = np.array([key[0] for key in keys], np.int64)
        phase = np.array([PHASE_TURN.get(key[1], 1) for key in keys], np.int64)
        back, weight = (np.full(len(rank_of), -1, np.int64) for _ in range(2))
        back[stage[phase == 1]] = np.flatnonzero(phase == 1)
        weight[stage[phase == 2]] = np.flatnonzero(phase == 2)
        turn = np.empty(len(keys), np.int64)
        turn[np.lexsort((np.where(phase == 0, stage, -stage), phase))] = np.arange(len(keys))
        ranked = np.array(rank_of, np.int64)
        bodies = Bodies(of_item, stage, phase, turn, ranked, back, weight)
        rank = ranked[stage[of_item]]
        scratch = np.zeros(ranks, np.int64)
        np.maximum.at(scratch, rank, self._scratch[rank, np.arange(len(rank))])
        stays = scratch + np.bincount(rank, self._stays, ranks).astype(np.int64)
        sums = np.bincount(of_item, self._sums, len(keys)).astype(np.int64)
        found = []
        copy = np.empty(len(self._roots.kind), np.int64)
        for again in (False, True):
            top, kept, sending = body_bytes(self._roots, bodies, again, self._places, copy)
            top += sums if self._mbs == 1 else 0
            found.append(Bytes(top, kept, sending, sums))
        made = np.flatnonzero(copy >= 0)
        seconds = self._seconds[ranked[stage[copy[made]]], made]
        again_seconds = np.bincount(copy[made], seconds, len(keys))
        return BothWays(found[0], found[1], messages, self._waiting, stays, stage, again_seconds)


def _scratch(graph: Graph, made: Outline, contexts: Sequence[Context]) -> Array:
    """Return what the calls of each item take on each device: [devices, items].

    Items share what they take on a CPU; on a GPU, all are taken to need what the largest does.
    """
    calls: list[list[tuple[Node, Graph]]] = [[] for _ in made.items]
    for node in graph:
        calls[made.item_of[node.name]].append((node, graph))
    of_kind = {c.kind: [scratch_of(c, held) for held in calls] for c in contexts}
    return np.array([of_kind[context.kind] for context in contexts], np.int64)


def _roots(
    graph: Graph, item_of: Mapping[str, int], fixed: Collection[str], lasting: Collection[Value]
) -> Roots:
    """List the values that lie in memory of their own.

    Args:
        fixed: variables that have arrays of their own.
        lasting: values that are counted elsewhere.
    """
    root_of: dict[Value, int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    reads: list[list[tuple[int, int, int]]] = []
    for place, node in enumerate(graph):
        item = item_of[node.name]
        if is_view(node, graph):
            source = root_of.get(node.inputs[0])
            if source is not None:
                root_of.update(dict.fromkeys(made_by(node), source))
                reads[source].append((item, place, -1))
            continue
        kind = MADE if node.origin is None else GRADIENT
        if node.is_variable:
            kind = FIXED if node.name in fixed else FED
        new = len(rows)
        over = dict(() if node.is_variable else find(node.op).in_place)
        for value in made_by(node):
            below = over.get(value.index)
            taken = -1 if below is None else root_of.get(node.inputs[below], -1)
            root_of[value] = len(rows)
            rows.append((graph.type_of(value).nbytes, kind, item, place, taken))
            reads.append([])
        making = new if kind == MADE else -1
        for source in {root_of[v]: None for v in node.inputs if v in root_of}:
            reads[source].append((item, place, making))
    columns = np.array(rows, np.int64).reshape(-1, 5).T.copy()
    columns[0, [root_of[value] for value in lasting]] = 0
    readers = np.array([read for row in reads for read in row], np.int64).reshape(-1, 3).T.copy()
    starts = np.cumsum([0, *map(len, reads)], dtype=np.int64)
    nbytes, kinds, items, places, over_roots = columns
    reader, read_at, makes = readers
    return Roots(nbytes, kinds, items, places, over_roots, starts, reader, read_at, makes)
