"""The account of a plan: what every rank holds at its worst moment.

It takes as long to count as a network to cut, so it is only counted where somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from partitioner import MemoryPlan, Partition, plan_memory
from partitioner.base.remembered import remembered
from runtime.backends.scratch import scratch_bytes
from runtime.planning.memory.arena import Arena, Kind, reserve
from runtime.planning.network import Network
from runtime.planning.options import Options
from runtime.schedule.program import Schedule
from runtime.schedule.replay import RankMemory, memory_profile


@dataclass(frozen=True, eq=False)
class Account:
    """The memory of each rank at its worst moment."""

    network: Network
    options: Options
    partitions: Mapping[int, Partition]
    """Micro-batch size -> the cut graph of that size."""
    schedule: Schedule
    programs: Callable[[int], Schedule] | None = None
    """Makes the programs of a step of that many micro-batches; None: there are no others."""

    @property
    def step(self) -> Account:
        """The account of a step of all batches that `options` asks for."""
        return self._together or self

    @cached_property
    def _together(self) -> Account | None:
        """The account of a step of several batches: their micro-batches follow each other."""
        if self.options.batches == 1 or self.programs is None:
            return None
        network = replace(self.network, sizes=self.network.sizes * self.options.batches)
        programs = self.programs(len(network.sizes))
        return Account(network, self.options, self.partitions, programs)

    @cached_property
    def unpacked(self) -> tuple[RankMemory, ...]:
        """The memory of each rank, if values lay side by side without gaps."""
        first, *others = [self.partitions[size] for size in dict.fromkeys(self.network.sizes)]
        plan = memory_plan(first, self.network, self.options, others)
        return memory_profile(self.schedule, first, plan, len(self.network.sizes))

    @cached_property
    def packed(self) -> tuple[RankMemory, ...]:
        """The memory of each rank, to the byte; bytes unused by packing count as transient."""
        packed = []
        for rank, account in enumerate(self.unpacked):
            rest = self.arena(rank).nbytes - account.gradients - account.activations
            packed.append(replace(account, transient=rest))
        return tuple(packed)

    @property
    def peak(self) -> int:
        """Bytes of the fullest rank in a step, packed if there is a limit to keep to."""
        devices = self.partitions[self.network.sizes[0]].placement.devices
        limited = any(limit is not None for limit in self.options.limits(devices))
        step = self.step
        return max(m.peak for m in (step.packed if limited else step.unpacked))

    def arena(self, rank: int) -> Arena:
        """Pack the memory of a rank's program."""
        partitions = {Kind(0, size): partition for size, partition in self.partitions.items()}
        return reserve(
            [self.schedule.programs[rank]],
            rank,
            partitions,
            [Kind(0, size) for size in self.network.sizes],
            dict.fromkeys(partitions, self.network.grads),
            self.network.parameters,
        )


def excess(memory: Sequence[RankMemory], limits: Sequence[int | None]) -> list[float]:
    """Return what each rank holds as a multiple of its limit; 0 if it has none."""
    pairs = zip(memory, limits, strict=True)
    return [0.0 if limit is None else m.peak / max(limit, 1) for m, limit in pairs]


def fullest(steps: Iterable[Sequence[RankMemory]]) -> tuple[RankMemory, ...]:
    """Return the memory of each rank in that of some steps in which it holds the most."""
    ranks = zip(*steps, strict=True)
    return tuple([max(of_rank, key=lambda memory: memory.peak) for of_rank in ranks])


@remembered
def memory_plan(
    partition: Partition, network: Network, options: Options, others: Sequence[Partition] = ()
) -> MemoryPlan:
    """Return the memory of a cut's bodies; schedules of one cut share it.

    others: the cuts of micro-batches of other sizes, for which a GPU has other pieces of scratch.
    """
    return plan_memory(
        partition,
        grads=network.grads,
        slots=options.slots,
        shard_optimizer=options.shard_optimizer,
        shared_memory=options.lends,
        parameters=network.parameters,
        several=len(network.sizes) > 1,
        scratch=scratch_bytes(
            partition, network.parameters, others, one_array=options.shares_weights
        ),
    )
