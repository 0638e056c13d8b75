"""The memory plan: bytes that bodies hold and leave, from the cut alone.

The layout decides where values lie, and the schedule which micro-batches a rank holds at once:
`runtime.schedule.replay.memory_profile` walks the programs with these figures and finds the worst
moment of every rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from partitioner.base.types import FORWARD, BodyKey, Partition
from partitioner.cutting.replicas import own_pieces, piece_bytes, scratch_bytes, shared_copies
from partitioner.memory.memory_layout import NO_GRADIENTS, MemoryLayout, Root, lay_out, turn
from symgraph.core.types import Value


@dataclass(frozen=True)
class BodyMemory:
    """Bytes of one micro-batch's run of a body."""

    #: The most held beyond what the rank holds at the start, which includes received messages.
    top: int
    #: The change in bytes held once the body has run and its messages are delivered; negative if it
    #: drops more than it leaves.
    kept: int
    #: Bytes held in addition until its messages are delivered.
    sending: int = 0
    #: The gradients that it completes, which wait as partial sums over micro-batches.
    sums: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes of every body and rank.

    The data that is fed belongs to the caller; only a copy of a micro-batch's part is counted.
    """

    bodies: Mapping[BodyKey, BodyMemory]
    parameters: tuple[int, ...]  #: bytes of each rank that stay for the run
    optimizer: tuple[int, ...]  #: bytes of each rank that stay for the run
    #: Bytes that each rank's kernels take within a call, and for packed weights; they stay too.
    scratch: tuple[int, ...]
    early: frozenset[int] = frozenset()  #: see `early_messages`

    @property
    def static(self) -> list[int]:
        """All bytes of each rank that stay for the run."""
        return [*map(sum, zip(self.parameters, self.optimizer, self.scratch, strict=True))]


def plan_memory(
    partition: Partition,
    *,
    grads: Mapping[str, Value] = NO_GRADIENTS,
    slots: int = 0,
    shard_optimizer: bool = False,
    shared_memory: bool = False,
    parameters: Collection[str] = (),
    several: bool = False,
    scratch: tuple[int, ...] | None = None,
) -> MemoryPlan:
    """Plan the memory of every body and rank.

    Args:
        partition: the cut graph.
        grads: parameter -> the value of its gradient.
        slots: optimizer arrays per parameter.
        shard_optimizer: whether each copy of a parameter has those of its own piece only.
        shared_memory: whether all ranks are threads of one process.
        parameters: variables that stay for the whole run.
        several: whether a step has several micro-batches, so that gradients are copied or added to
            partial sums.
        scratch: bytes that each rank's kernels take within a call, and for packed weights.
    """
    graph, place = partition.graph, partition.placement
    held, learnt = [0] * partition.ranks, scratch_bytes(partition, shared_memory=shared_memory)
    own = own_pieces(partition) if shard_optimizer else {}
    shared = shared_copies(partition, shared_memory=shared_memory) if own else {}
    for node in graph.variables:
        if node.origin is None:
            rank = place.rank_of[place.stage_of[node.name]]
            piece = piece_bytes(node.types[0], own.get(node.name))
            weight = piece if node.name in shared else node.types[0].nbytes
            held[rank] += weight if node.name in parameters else 0
            learnt[rank] += slots * piece if node.name in grads else 0
    asked = frozenset(grads.values())
    bodies: dict[BodyKey, BodyMemory] = {}
    for rank in range(partition.ranks):
        layout = lay_out(partition, rank, parameters, grads, several=several)
        bodies |= _bodies(partition, rank, layout)
    sums = {
        key: sum(graph.type_of(v).nbytes for v in body.results if v in asked)
        for key, body in partition.bodies.items()
    }
    bodies = {
        key: replace(memory, top=memory.top + (0 if several else sums[key]), sums=sums[key])
        for key, memory in ((k, bodies[k]) for k in partition.bodies)
    }
    static = tuple(held), tuple(learnt), scratch or (0,) * partition.ranks
    return MemoryPlan(MappingProxyType(bodies), *static, early_messages(partition))


def early_messages(partition: Partition) -> frozenset[int]:
    """List the tags of messages that may arrive while the run before their receive is under way.

    Those to GPUs do, so their memory is held from then on. The messages of an exchange arrive when
    the exchange is taken.
    """
    devices = partition.placement.devices
    return frozenset(
        edge.tag
        for edge in partition.edges
        if devices[partition.rank(edge.dst)].kind != "cpu" and not edge.exchange
    )


def _bodies(partition: Partition, rank: int, layout: MemoryLayout) -> dict[BodyKey, BodyMemory]:
    """Compute the figures of a rank's bodies, except the gradients that are asked for."""
    top: Counter[BodyKey] = Counter(layout.scratch)
    kept: Counter[BodyKey] = Counter()
    sending: Counter[BodyKey] = Counter()
    sizes = {e.tag: e.type.nbytes for e in partition.edges}
    for root in layout.roots:
        if root.fixed is None and not root.scratch and not root.lasts:
            first, last = _ends(root)
            came = sum(sizes[tag] for tag in root.messages)
            top[first] += max(0, root.nbytes - came)
            kept[first] += max(0, root.nbytes - came)
            kept[last] -= max(root.nbytes, came)
            if last in root.sends:
                sending[last] += root.nbytes
    keys = [key for key in partition.bodies if partition.rank(key) == rank]
    return {key: BodyMemory(top[key], kept[key], sending[key]) for key in keys}


def _ends(root: Root) -> tuple[BodyKey, BodyKey]:
    """Find the bodies that touch a root first and last, as far as any schedule has them so."""
    return min(root.bodies, key=turn), max(root.bodies, key=turn)


def kept_bytes(partition: Partition) -> tuple[int, ...]:
    """Count the bytes that each stage's forward leaves for its backward, of one micro-batch.

    Variables have their own arrays.
    """
    fixed = [n.name for n in partition.graph.variables]
    totals = [0] * partition.placement.stages
    for rank in range(partition.ranks):
        for root in lay_out(partition, rank, fixed).roots:
            if root.fixed is None and root.bodies:
                first, last = _ends(root)
                if first.phase == FORWARD and last.phase != FORWARD:
                    totals[first.stage] += root.nbytes
    return tuple(totals)
