"""Drafts: differentiated and placed networks, ready to be cut and scheduled one way or another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

from partitioner import Partition, Placement
from partitioner.base.segments import time_steps
from partitioner.cutting.cut import cut
from partitioner.cutting.merging import merge
from partitioner.cutting.recompute import recompute
from partitioner.memory.memory_plan import kept_bytes
from runtime.planning.account import Account, excess
from runtime.planning.costs.overheads import StepOverheads, step_overheads
from runtime.planning.network import Network
from runtime.planning.options import Options
from runtime.planning.plan import Plan, PlanCandidate
from runtime.schedule.program import Schedule
from runtime.schedule.replay import Costs, check
from symgraph.core.graph import Graph

Longer = Callable[[Partition, int], Schedule]  # of a cut graph and a number of micro-batches


@dataclass(frozen=True)
class Draft:
    """A plan without its schedule: see `plan`. Ways to run it share cuts."""

    network: Network
    placement: Placement
    options: Options
    """The options that programs and memory depend on; some are still open."""
    _cuts: dict[object, Partition] = field(default_factory=dict, repr=False)
    _merged: dict[object, dict[int, Graph]] = field(default_factory=dict, repr=False)

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches."""
        return len(self.network.sizes)

    @cached_property
    def limits(self) -> tuple[int | None, ...]:
        """The bytes that each rank may hold; None: any number."""
        return self.options.limits(self.placement.devices)

    @property
    def limited(self) -> bool:
        """Whether a rank has a memory limit."""
        return any(limit is not None for limit in self.limits)

    def excess(self, account: Account) -> list[float]:
        """Return what each rank holds in a step as a multiple of its limit; 0 if it has none."""
        if not self.limited:
            return [0.0] * len(self.limits)
        return excess(account.step.packed, self.limits)

    @cached_property
    def steps(self) -> int:
        """Time steps that the network is unrolled for; 0 if it is not."""
        return time_steps(self.network.first)

    @cached_property
    def whole(self) -> Partition:
        """The first micro-batch's cut with one segment and one backward phase."""
        return self.cut(False, None, ())

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Bytes that each stage keeps for its backward phase, per micro-batch."""
        return kept_bytes(self.whole)

    def overheads(self, partition: Partition) -> StepOverheads:
        """Compute the overheads of a step of a cut."""
        return step_overheads(
            partition,
            self.network.grads,
            self.network.parameters,
            micro_batches=self.micro_batches,
            slots=self.options.slots,
            update=self.options.update,
            shard_optimizer=self.options.shard_optimizer,
            shared_memory=self.options.lends,
            spreads_sums=self.options.spreads_sums,
            norms=self.options.norms,
        )

    def busiest(self, split: bool, steps: int | None, costs: Callable[[Partition], Costs]) -> float:
        """Return the seconds that the busiest rank runs bodies of a cut: no step is shorter."""
        partition = self.cut(split, steps, ())
        run, busy = costs(partition).run, [0.0] * partition.ranks
        for key in partition.bodies:
            busy[partition.rank(key)] += self.micro_batches * float(run(key))
        return max(busy)

    def cut(self, split: bool, steps: int | None, again: tuple[int, ...]) -> Partition:
        """Return the cut graph of the first micro-batch.

        Args:
            split: whether the backward phase is cut in two.
            steps: time steps per segment; None: not cut along time.
            again: stages that run their forward nodes again.
        """
        return self._cut(self.network.sizes[0], split, steps, again)

    def _cut(self, size: int, split: bool, steps: int | None, again: tuple[int, ...]) -> Partition:
        """Return the cut graph of one micro-batch size."""
        key = size, split, steps, again
        if key not in self._cuts:
            graph = self._merge(size, steps, again)
            self._cuts[key] = cut(graph, self.placement, split=split, time_segment=steps)
        return self._cuts[key]

    def _merge(self, size: int, steps: int | None, again: tuple[int, ...]) -> Graph:
        """Return the graph to cut, whether its backward phase will be one or two."""
        key = steps, again
        if key not in self._merged:
            graphs = {
                n: recompute(graph, self.placement, again, time_segment=steps)
                for n, graph in self.network.graphs.items()
            }
            self._merged[key] = {
                n: merge(graph, self.placement, steps, others=[graphs[m] for m in graphs if m != n])
                for n, graph in graphs.items()
            }
        return self._merged[key][size]

    def plan(
        self,
        schedule: str,
        split: bool,
        programs: Callable[[Partition], Schedule],
        time_segment: int | None,
        recompute: tuple[int, ...],
        *,
        longer: Longer | None = None,
    ) -> Plan:
        """Cut, lower and check; with a memory limit, count the memory.

        Args:
            schedule: the name of the schedule.
            split: whether the backward phase is cut in two.
            programs: makes the programs of the cut graph.
            time_segment: time steps per segment; None: not cut along time.
            recompute: stages that run their forward nodes again.
            longer: makes them for another number of micro-batches, if a step has several batches.

        Raises:
            ScheduleError: programs that cannot run.
        """
        sizes = self.network.sizes
        partitions = {
            size: self._cut(size, split, time_segment, recompute) for size in dict.fromkeys(sizes)
        }
        first = partitions[sizes[0]]
        assert all(_without_types(p) == _without_types(first) for p in partitions.values())
        checked = programs(first)
        check(checked, first, len(sizes))
        several = longer and partial(longer, first)
        account = Account(self.network, self.options, partitions, checked, several)
        choice = PlanCandidate(schedule, time_segment, recompute, account=account)
        return Plan(
            network=self.network,
            options=self.options,
            partitions=partitions,
            schedule=checked,
            account=account,
            choice=choice.counted() if self.limited else choice,
        )


def _without_types(partition: Partition) -> object:
    """Return what the partitions of all micro-batch sizes have in common."""
    return list(partition.bodies), [(e.tag, e.value, e.src, e.dst) for e in partition.edges]
