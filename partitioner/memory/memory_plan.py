"""The memory plan: bytes that bodies hold and leave, from the cut alone.

What lies where is the layout's doing, and which micro-batches a rank holds at once the schedule's:
`runtime.schedule.replay.memory_profile` walks the programs with these figures and finds the worst
moment of every rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from partitioner.base.types import FORWARD, BodyKey, Partition
from partitioner.cutting.replicas import scratch_bytes
from partitioner.memory.memory_layout import MemoryLayout, Root, lay_out, turn
from symgraph.core.types import Value

NOTHING: Mapping[str, Value] = MappingProxyType({})


@dataclass(frozen=True)
class BodyMemory:
    """Bytes of one micro-batch's run of a body.

    top: the most that is held beyond what the rank holds when the run starts; the messages that
    it received are held already. kept: by how much the bytes held have changed when it has run
    and its messages are delivered; negative if it drops more than it leaves. sending: what is
    held besides that until its messages are delivered. sums: the gradients that it completes,
    which wait as partial sums over micro-batches.
    """

    top: int
    kept: int
    sending: int = 0
    sums: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """bodies: see BodyMemory. parameters, optimizer: bytes of each rank that stay for the run.

    scratch: what its kernels take within a call, which stays as well; kernels are the runtime's.
    early: see `early_messages`. The data that is fed is the caller's; a copy of a micro-batch's
    part is counted.
    """

    bodies: Mapping[BodyKey, BodyMemory]
    parameters: tuple[int, ...]
    optimizer: tuple[int, ...]
    scratch: tuple[int, ...]
    early: frozenset[int] = frozenset()

    @property
    def static(self) -> list[int]:
        """Bytes of each rank that stay, all together."""
        return [*map(sum, zip(self.parameters, self.optimizer, self.scratch, strict=True))]


def plan_memory(
    partition: Partition,
    *,
    grads: Mapping[str, Value] = NOTHING,
    slots: int = 0,
    parameters: Collection[str] = (),
    several: bool = False,
    scratch: tuple[int, ...] | None = None,
) -> MemoryPlan:
    """The memory of every body and rank.

    grads: parameter -> the value of its gradient, with `slots` optimizer arrays each.
    parameters: variables that stay for the whole run. several: whether a step has several
    micro-batches, so that gradients are copied or added to partial sums. scratch: of each rank.
    """
    graph, place = partition.graph, partition.placement
    held, learnt = [0] * partition.ranks, [0] * partition.ranks
    for node in graph.variables:
        if node.origin is None:
            rank = place.rank_of[place.stage_of[node.name]]
            held[rank] += node.types[0].nbytes if node.name in parameters else 0
            learnt[rank] += node.types[0].nbytes * slots if node.name in grads else 0
    learnt = [a + b for a, b in zip(learnt, scratch_bytes(partition), strict=True)]
    asked = frozenset(grads.values())
    bodies: dict[BodyKey, BodyMemory] = {}
    for rank in range(partition.ranks):
        layout = lay_out(partition, rank, parameters, () if several else asked)
        bodies |= _bodies(partition, rank, layout)
    sums = {
        key: sum(graph.type_of(v).nbytes for v in body.results if v in asked)
        for key, body in partition.bodies.items()
    }
    bodies = {
        key: replace(memory, top=memory.top + (0 if several else sums[key]), sums=sums[key])
        for key, memory in ((k, bodies[k]) for k in partition.bodies)
    }
    scratch = (0,) * partition.ranks if scratch is None else scratch
    return MemoryPlan(
        MappingProxyType(bodies), tuple(held), tuple(learnt), scratch, early_messages(partition)
    )


def early_messages(partition: Partition) -> frozenset[int]:
    """The tags of messages that may come while the run before their receive is under way.

    GPUs' do, and so have their places as long. The messages of an exchange come when it is taken.
    """
    devices = partition.placement.devices
    return frozenset(
        edge.tag
        for edge in partition.edges
        if devices[partition.rank(edge.dst)].kind != "cpu" and not edge.exchange
    )


def _bodies(partition: Partition, rank: int, layout: MemoryLayout) -> dict[BodyKey, BodyMemory]:
    """The figures of a rank's bodies, gradients that are asked for aside."""
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
    own = [key for key in partition.bodies if partition.rank(key) == rank]
    return {key: BodyMemory(top[key], kept[key], sending[key]) for key in own}


def _ends(root: Root) -> tuple[BodyKey, BodyKey]:
    """The bodies that touch it first and last, as far as that is known without a schedule."""
    return min(root.bodies, key=turn), max(root.bodies, key=turn)


def kept_bytes(partition: Partition, fixed: Collection[str] | None = None) -> tuple[int, ...]:
    """Bytes that each stage's forward phase leaves for its backward phase, a micro-batch.

    fixed: variables that have arrays of their own; by default all.
    """
    if fixed is None:
        fixed = [n.name for n in partition.graph.variables]
    totals = [0] * partition.placement.stages
    for rank in range(partition.ranks):
        for root in lay_out(partition, rank, fixed).roots:
            if root.fixed is None and root.bodies:
                first, last = _ends(root)
                if first.phase == FORWARD and last.phase != FORWARD:
                    totals[first.stage] += root.nbytes
    return tuple(totals)
