"""The worker: runs one rank's programs, instruction by instruction.

There is one worker loop for every schedule, transport and device count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from partitioner.memory.packing import to_cache_lines
from runtime.backends.bodies import Packs
from runtime.backends.calls import NodeFailed
from runtime.backends.device.arrays import HOST
from runtime.backends.scratch import PackedWeight, packed_bytes, scratch_held, set_aside
from runtime.engine.bound_program import BoundProgram, bind_programs
from runtime.engine.devices import no_memory
from runtime.engine.divergence import NodeWatch
from runtime.engine.exchanges import RankExchanges
from runtime.engine.flight_record import Noted
from runtime.engine.rank import NANOSECOND, Rank, RankResources, Updater
from runtime.engine.stopwatch import Stopwatch
from runtime.planning.memory.arena import Arena, reserve
from runtime.planning.plan import Plan
from runtime.planning.step import Feeds, StepBatches
from runtime.schedule.instructions import Instruction
from runtime.schedule.program import Schedule
from runtime.schedule.timeline import EMPTY, Timeline, Track
from runtime.transports.base import Failure, Transport, error_text
from symgraph.core.errors import LimitError, PeerFailed, RunError
from symgraph.core.types import Array, Value


class Worker(Rank):
    """A rank that runs: binds its programs to memory, steps them and reports its errors.

    `timeline` has the times of the last run.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        arrays: Mapping[str, Array],
        wanted: Collection[Value] | None = None,
        schedules: Sequence[Schedule] = (),
        *,
        parts: StepBatches | None = None,
        resources: RankResources | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        """Take memory for the schedules that a step consists of, by default the plan's; see Rank.

        `bind` comes once all ranks of this process have theirs, by default with the first step.
        """
        super().__init__(
            plan, rank, arrays, wanted, parts=parts, resources=resources, stopwatch=stopwatch
        )
        devices = plan.devices
        self.timeline = Timeline((EMPTY,) * plan.partition.ranks, NANOSECOND)
        self.stamps = self.device.stamps()
        self.bound: list[BoundProgram] = []
        self._gpu_ranks = [at for at, context in enumerate(devices) if context.kind != "cpu"]
        self._schedules = schedules or (plan.schedule,)
        # Replicas in other processes have arrays of their own, whatever was planned.
        here = len(self.resources.pools) == plan.partition.ranks
        self._packed = self.parts.packed if here else self.parts.packed_if(one_array=False)
        self._shares_packed = any(w.shared for of_rank in self._packed for w in of_rank.values())
        with self.device.use():  # else the memory is the first card's, filled on another stream
            self._arena: Arena | None = self._reserve()

    def _reserve(self) -> Arena:
        """Plan the memory, and let the pool have as much."""
        parts = self.parts
        programs = [schedule.programs[self.rank] for schedule in self._schedules]
        fixed = self.fixed.keys()
        arena = reserve(programs, self.rank, parts.partitions, parts.kinds, parts.grads, fixed)
        nbytes = to_cache_lines(arena.nbytes) + packed_bytes(self._packed)[self.rank]
        self.memory = self.resources.pool.take(nbytes, self._drop, self.device)
        for partition in parts.partitions.values():
            set_aside(partition, self.rank, self.device)
        return arena

    def bind(self) -> None:
        """Bind the schedules, one after the other, to the memory that they need."""
        with self.device.use():
            self._bind(self._arena or self._reserve())
            self._arena = None

    def _bind(self, arena: Arena) -> None:
        rank, schedules, partitions = self.rank, self._schedules, self.parts.partitions
        self.exchanges = RankExchanges(
            rank, schedules, [partitions[kind] for kind in self.parts.kinds], self.device.xp
        )
        ends = {
            (p.rank(e.src), p.rank(e.dst))
            for p in partitions.values()
            for e in p.edges
            if not e.exchange
        }
        self._channels = sorted((a, b) for a, b in ends if a != b)
        self.packs = Packs({form: self._room(w) for form, w in self._packed[rank].items()})
        if self.stopwatch is not None:
            self.stopwatch.reset(self.stamps)
        self.bound, self.grads = bind_programs(self, schedules, arena)

    def _room(self, weight: PackedWeight) -> tuple[Array, bool]:
        """Return the buffer of a packed parameter, and whether this rank packs it."""
        memory = self.resources.pools[weight.owner].take(0, self._drop, self.device)
        buffer = self.device.view(memory, memory.nbytes - weight.place, weight.type)
        return buffer, weight.owner == self.rank

    def look(self, transport: Transport, feeds: Feeds | Sequence[Feeds], **given: Any) -> NodeWatch:
        """Run a step as `step` does, without its end, and look at the values of all nodes."""
        self.watch = NodeWatch()
        try:
            self.bind()
            self.step(transport, feeds, **given)
            return self.watch
        finally:
            self.watch = None
            self._drop()

    def _drop(self) -> None:
        """Drop the memory; the next step takes it anew."""
        self.bound, self.grads, self.memory, self.packs = [], {}, HOST.bytes(0), Packs()
        self._arena = None

    @property
    def held(self) -> int:
        """Bytes of its memory without parameters; shared memory is counted whole.

        Only the worker's own thread may read it, as scratch belongs to a thread.
        """
        scratch = scratch_held(self.device, self.context)
        return self.resources.pool.memory.nbytes + scratch + self.kept_bytes

    # -- a step ------------------------------------------------------------------------------

    def step(
        self,
        transport: Transport,
        feeds: Feeds | Sequence[Feeds],
        *,
        train: bool = True,
        seed: int = 0,
        step: int = 0,
        updater: Updater | None = None,
    ) -> None:
        """Run all programs once on these values of the fed variables.

        Args:
            transport: The rank's end of the cluster.
            feeds: The values for the whole batch, or for each of the step's batches.
            train: Whether operators behave as in training.
            seed: The key of random numbers, together with `step`.
            step: The number of the step.
            updater: Does the end of a training step.

        Raises:
            RunError: Anything failed; the other ranks have been told. It names the rank, the
                instruction and the node.
        """
        self.updater = updater
        self.begin(transport, feeds, train=train, seed=seed, step=step)
        for bound in self.bound:
            self.run(transport, bound)

    def begin(
        self,
        transport: Transport,
        feeds: Feeds | Sequence[Feeds],
        *,
        train: bool,
        seed: int,
        step: int,
    ) -> None:
        """Prepare for a step and drop the state of an earlier one."""
        if not self.bound:
            self.bind()
        self.start(feeds, train=train, seed=seed, step=step)
        self.packs.refresh()
        if self._shares_packed:
            transport.waiting_for("the weights that other replicas pack")
            transport.exchange(None)
        with self.device.use():
            self.stamps.begin()

    def run(
        self, transport: Transport, bound: BoundProgram, updater: Updater | None = None
    ) -> None:
        """Run one bound program (the worker loop) and leave its timeline."""
        self.transport = transport
        if updater is not None:
            self.updater = updater
        groups = [*self.exchanges.groups, *(self.updater.groups if self.updater else ())]
        with self.device.use():
            if self._channels:
                transport.open(self._channels)
            if groups:
                transport.collectives.join(groups, self._gpu_ranks)
            if self.device.receive_stream is not None:
                self.device.receive_stream.begin()
        self.exchanges.collectives = transport.collectives
        stamp = self.stamps.stamp
        starts: list[Any] = []
        ends: list[Any] = []
        flight = self.resources.flight
        flight.begin(Noted(self.step_count, bound.program, self.parts, starts, ends, self.stamps))
        try:
            with self.device.use():
                for call in bound.calls:
                    if call is None:  # done, as the last one was
                        starts.append(ends[-1])
                        ends.append(ends[-1])
                        continue
                    starts.append(stamp())
                    call()
                    ends.append(stamp())
                self.read()
        except BaseException as error:
            self._raise(bound.program[min(len(ends), len(bound.program) - 1)], error)
        tracks = [EMPTY] * transport.size
        ticks = self.stamps.ticks
        tracks[self.rank] = Track(bound.program, ticks(starts), ticks(ends))
        flight.end(tracks[self.rank])
        self.timeline = Timeline(tuple(tracks), NANOSECOND)

    def _raise(self, instruction: Instruction, error: BaseException) -> None:
        where = f"{instruction} (step {self.step_count})"
        cause = error
        if isinstance(error, NodeFailed):
            where += f", node {error.node!r}"
            cause = error.__cause__ or error
        if isinstance(error, PeerFailed):
            raise error
        full = no_memory(self.plan, self.rank, cause) if isinstance(cause, MemoryError) else None
        message = error_text(cause) if full is None else str(full)
        self.transport.waiting_for(where)  # what it waited for before is not to be blamed
        self.transport.abort(Failure(self.rank, where, message))
        if not isinstance(cause, Exception):
            raise error
        kind = RunError if full is None else LimitError
        raise kind(f"rank {self.rank} failed at {where}: {message}") from cause
