"""Overheads: the memory traffic of a step outside operator calls.

Fed arrays are copied in, gradients added up, parameters updated and packed for products.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from partitioner import Partition
from partitioner.base.types import BodyKey
from partitioner.costs.cost import Rates
from partitioner.cutting.replicas import all_copies, buckets, own_pieces, piece_bytes
from runtime.backends.scratch import packed_weights
from symgraph.core.types import Value

COPY_SECONDS = 5e-6  # time of the worker to look up a fed array


@dataclass(frozen=True)
class StepOverheads:
    """Bytes that are read and written in sequential passes over memory."""

    running: Mapping[BodyKey, float] = field(default_factory=dict)
    """Bytes of a body's run, the mean over micro-batches: fed arrays are copied in, and its terms
    of gradients are added to those of other micro-batches."""
    copies: Mapping[BodyKey, int] = field(default_factory=dict)
    """The number of arrays that are fed to a body."""
    updating: Mapping[int, float] = field(default_factory=dict)
    """Bytes of a stage's update: parameters, the optimizer's arrays, norms, sums of replicas."""
    packing: Mapping[int, float] = field(default_factory=dict)
    """Bytes of a stage's parameters that are packed anew for products with few rows."""
    spreads_sums: bool = True
    """Whether all copies of a parameter get the sums of their gradients."""
    spreads_weights: bool = False
    """Whether all copies of a parameter get the weights that each has updated a part of."""
    shared_memory: bool = False
    """Whether replicas on CPUs add up their gradients where they are."""

    def seconds(self, key: BodyKey, rates: Rates) -> float:
        """Return the seconds on top of a body's run."""
        return self.running.get(key, 0) / rates.passes + self.copies.get(key, 0) * COPY_SECONDS

    def update_seconds(self, stage: int, rates: Rates) -> float:
        """Return the seconds of a stage's update."""
        passes, packing = self.updating.get(stage, 0), self.packing.get(stage, 0)
        return passes / rates.passes + packing / rates.packing


def step_overheads(
    partition: Partition,
    grads: Mapping[str, Value],
    parameters: Collection[str],
    *,
    micro_batches: int,
    slots: int,
    update: bool,
    shard_optimizer: bool = False,
    shared_memory: bool = False,
    spreads_sums: bool = True,
    norms: bool = False,
) -> StepOverheads:
    """Compute the overheads of a step.

    Args:
        partition: the cut network.
        grads: parameter -> its gradient.
        parameters: all variables that are not fed.
        micro_batches: the number of micro-batches.
        slots: the number of optimizer arrays for each parameter.
        update: whether the step ends with updates.
        shard_optimizer: whether each copy of a parameter updates its own piece only.
        shared_memory: whether all ranks are threads of one process.
        spreads_sums: whether all copies get the sums of their gradients.
        norms: whether the gradients' norms are needed: the first copy's rank reads its whole.
    """
    graph, learnt = partition.graph, set(grads.values())
    passes = tree_passes(micro_batches) / micro_batches
    running: dict[BodyKey, float] = {}
    copies: dict[BodyKey, int] = {}
    for key, body in partition.bodies.items():
        fed = [
            n.types[0].nbytes
            for n in body.graph.variables
            if n.name not in body.imports and n.name not in parameters
        ]
        terms = sum(graph.type_of(v).nbytes for v in body.results if v in learnt)
        running[key], copies[key] = 2 * sum(fed) + passes * terms, len(fed)
    if not update:
        return StepOverheads(running, copies)
    packing: dict[int, float] = defaultdict(float)
    every = packed_weights(partition, parameters, (), one_array=shard_optimizer and shared_memory)
    for weight in {weight for of_rank in every for weight in of_rank.values()}:
        packing[weight.stage] += 2 * graph[weight.name].types[0].nbytes
    own = own_pieces(partition) if shard_optimizer else {}
    updating = _summing(partition, spreads_sums, bool(own), shared_memory)
    for stage, nbytes in _updates(partition, grads, own, slots, norms):
        updating[stage] += nbytes
    return StepOverheads(running, copies, updating, packing, spreads_sums, bool(own), shared_memory)


def _updates(
    partition: Partition,
    grads: Iterable[str],
    own: Mapping[str, slice],
    slots: int,
    norms: bool,
) -> Iterator[tuple[int, float]]:
    """Yield the stage of each parameter, and the bytes of its update and its gradient's norm."""
    later = {name for copies in all_copies(partition) for name in copies.names[1:]}
    for name in grads:
        type_ = partition.graph[name].types[0]
        part = piece_bytes(type_, own.get(name))  # its gradient is only read
        read = type_.nbytes if norms and name not in later else 0
        yield partition.placement.stage_of[name], (3 + 2 * slots) * part + read


def _summing(
    partition: Partition, spreads_sums: bool, spreads_weights: bool, shared_memory: bool
) -> defaultdict[int, float]:
    """Return the bytes of the ranks' own work on the sums of replicas' gradients, by stage.

    What messages carry is not counted; see runtime.engine.replica_sums.
    """
    stage_of = partition.placement.stage_of
    found: defaultdict[int, float] = defaultdict(float)
    for bucket in buckets(partition):
        held = [pair for c in bucket.copies for pair in zip(c.ranks, c.names, strict=True)]
        for rank, name in dict(held).items():  # any stage of the rank will do
            given, got, sums, all_ = bucket.buffer_sizes(rank)
            if bucket.is_lent(partition, shared_memory=shared_memory):
                found[stage_of[name]] += got + 2 * sums + 2 * (all_ - sums) * spreads_sums
                continue
            passes = 2 * given + 3 * got + 2 * sums + 2 * (all_ if spreads_sums else sums)
            found[stage_of[name]] += passes + (2 * sums + 2 * all_ if spreads_weights else 0)
    return found


def tree_passes(terms: int) -> int:
    """Count the reads and writes of an array when terms are added as in memory.tree_sum."""
    if terms == 1:
        return 0
    joins, kept = terms - 1, (terms + 1) // 2
    return 3 * joins + 2 * kept
