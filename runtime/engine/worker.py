"""The worker: runs one rank's program, instruction by instruction.

There is one worker loop for every schedule, transport and device count. Everything that can be
looked up is looked up when the worker is made; a step walks a list of bound calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from partitioner.base.collectives import Group
from partitioner.base.types import BodyKey, CommEdge
from runtime.backends.bodies import Binder, BoundBody, Call, NodeFailed, Packs, make
from runtime.backends.device.arrays import HOST, device, is_array
from runtime.backends.device.pinned import PinnedBuffers
from runtime.backends.device.table import CallContext
from runtime.backends.scratch import scratch_held, set_aside
from runtime.engine.bound_program import Bind
from runtime.engine.devices import no_memory
from runtime.engine.exchanges import Exchanging
from runtime.engine.nvtx import in_ranges
from runtime.engine.receives import beside_work
from runtime.engine.replica_sums import with_sums
from runtime.engine.stopwatch import Stopwatch
from runtime.planning.memory.arena import Pool, reserve
from runtime.planning.plan import Plan
from runtime.planning.step import Feeds, StepBatches
from runtime.schedule.instructions import REPLICAS, Collective, Free, Instruction, Update
from runtime.schedule.program import Program, Schedule
from runtime.schedule.timeline import EMPTY, Timeline, Track
from runtime.transports.base import Failure, Ticket, Transport
from symgraph.core.errors import GraphError, LimitError, PeerFailed, RunError
from symgraph.core.registry import Env
from symgraph.core.types import Array, TensorType, Value

NANOSECOND = Fraction(1, 1_000_000_000)


class BoundProgram(NamedTuple):
    """A rank's program and the call that does each instruction."""

    program: Program
    calls: list[Callable[[], None]]


class RankResources:
    """What workers of one rank have together, if they take turns: memory, and packed parameters."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.packs = Packs()
        self.context = CallContext()


class Updater(Protocol):
    """What a training step does at its end.

    See runtime.engine.optimizer_step. groups: of its collectives.
    """

    @property
    def groups(self) -> Sequence[Group]: ...
    def made(self, worker: Worker, names: Sequence[str]) -> None: ...
    def sum_replicas(self, worker: Worker) -> None: ...
    def reduce(self, worker: Worker) -> None: ...
    def update(self, worker: Worker, stage: int) -> None: ...


class Worker:
    """One rank of a plan.

    arrays: parameters and auxiliary states that live on this rank, by name; they are read, and
    auxiliary states are written, in place. wanted: the outputs to keep, by default all. After a
    step, `outputs` has those that are made here (one a micro-batch), `grads` the summed gradients;
    the next step writes over both.
    """

    transport: Transport  # of the run under way

    def __init__(
        self,
        plan: Plan,
        rank: int,
        arrays: Mapping[str, Array],
        wanted: Collection[Value] | None = None,
        schedules: Sequence[Schedule] = (),
        *,
        parts: StepBatches | None = None,
        shared: RankResources | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        """schedules: what a step consists of, by default the plan's.

        parts: the plans of the batches of a step that has several; `plan` is the first of them, by
        whose names outputs are known. shared: what workers of the same rank and arrays share.
        """
        self.plan = plan
        self.stopwatch = stopwatch
        self.rank = rank
        self.arrays = arrays
        self.parts = StepBatches((plan,)) if parts is None else parts
        self.wanted = frozenset(plan.outputs if wanted is None else wanted)
        self.outputs: dict[Value, list[Any]] = {}
        self.grads: dict[str, Array] = {}
        self.states: dict[str, list[Array]] = {}
        self.timeline = Timeline((EMPTY,) * plan.partition.ranks, NANOSECOND)  # of the last run
        self.step_count = 0
        self._kept: dict[tuple[Value, int], Array] = {}  # the arrays of `outputs`
        self._tickets: dict[tuple[BodyKey, int], list[tuple[Ticket, CommEdge]]] = {}
        self._feeds: Sequence[Feeds] = ()
        self._pinned = PinnedBuffers()
        self._early: list[dict[str, Array]] = []
        self._shared = RankResources() if shared is None else shared
        self.context = self._shared.context
        devices = plan.partition.placement.devices
        self.device = device(devices[rank])
        self._cards = [at for at, context in enumerate(devices) if context.kind != "cpu"]
        self.stamps = self.device.stamps()
        self._env = Env()
        self.updater: Updater | None = None  # of the step under way
        self.bound: list[BoundProgram] = []
        self.bind(schedules or (plan.schedule,))

    def bind(self, schedules: Sequence[Schedule]) -> None:
        """Make a step of schedules, one after the other, on the memory that they need."""
        with self.device.use():  # else the memory is the first card's, filled on another stream
            self._bind(schedules)

    def _bind(self, schedules: Sequence[Schedule]) -> None:
        self._schedules, rank, shared = schedules, self.rank, self._shared
        programs = [schedule.programs[rank] for schedule in schedules]
        fixed = {n for n, a in self.arrays.items() if a.flags.c_contiguous}
        parts, kinds, partitions = self.parts, self.parts.kinds, self.parts.partitions
        cut = [partitions[kind] for kind in kinds]
        self.exchanging = Exchanging(rank, schedules, cut, self.device.xp)
        cuts = partitions.values()
        ends = {(p.rank(e.src), p.rank(e.dst)) for p in cuts for e in p.edges if not e.exchange}
        self._channels = sorted((a, b) for a, b in ends if a != b)
        arena = reserve(programs, rank, partitions, kinds, parts.grads, fixed)
        self.memory = shared.pool.take(arena.nbytes, self._drop, self.device)
        for partition in partitions.values():
            set_aside(partition, rank, self.device)
        arrays = {name: self.arrays[name] for name in fixed}
        if self.stopwatch is not None:
            self.stopwatch.reset(self.stamps)
        known = frozenset(self.plan.parameters)
        binders = {
            kind: Binder(
                layout, arrays, known, self.memory, shared.packs, shared.context, self.device
            )
            for kind, layout in arena.layouts.items()
        }
        bind = Bind(self, arena, binders)
        self.bound = [BoundProgram(p, [bind.instruction(i) for i in p]) for p in programs]
        stream = self.device.receive_stream
        if stream is not None:
            begins = accumulate(map(len, programs), initial=0)
            self.bound = [
                BoundProgram(p, beside_work(stream, p, calls, arena.free, begin))
                for (p, calls), begin in zip(self.bound, begins, strict=False)
            ]
        if len(programs) == 1:  # what comes between several may change gradients
            (only,) = self.bound
            calls = with_sums(parts, only.program, only.calls, self._made)
            self.bound = [BoundProgram(only.program, calls)]
        self.bound = [BoundProgram(p, in_ranges(self.device, p, calls)) for p, calls in self.bound]

    def _made(self, names: Sequence[str]) -> None:
        """These gradients of replicas are complete."""
        if self.updater is not None:
            self.updater.made(self, names)

    def _drop(self) -> None:
        """Let go of the memory; the next step takes it anew."""
        self.bound, self.grads, self.memory = [], {}, HOST.bytes(0)

    @property
    def held(self) -> int:
        """Bytes of its memory, parameters aside; shared memory is counted whole.

        Its own thread asks, which knows its scratch.
        """
        shared = self._shared.pool.memory.nbytes + scratch_held(self.device, self._shared.context)
        return shared + sum(a.nbytes for a in self._kept.values())

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
        """Run the whole program once on these values of the fed variables.

        feeds: of the whole batch, or of each of the step's batches.

        Any error is told to the other ranks, and raised as RunError that names rank,
        instruction and node.
        """
        self.updater = updater
        self.begin(feeds, train=train, seed=seed, step=step)
        for bound in self.bound:
            self.run(transport, bound)

    def begin(self, feeds: Feeds | Sequence[Feeds], *, train: bool, seed: int, step: int) -> None:
        """Make ready for a step; what an earlier one left is dropped."""
        if not self.bound:
            self.bind(self._schedules)
        self._tickets.clear()
        self.exchanging.reset()
        self.outputs = {}
        self.step_count = step
        self._env = Env(self.device.xp, train, seed, step, 0)
        self._shared.packs.refresh()
        self.feed(feeds)
        with self.device.use():
            self.stamps.begin()

    def feed(self, feeds: Feeds | Sequence[Feeds]) -> None:
        """Values of fed variables for the runs to come; GraphError for one that does not fit."""
        given = [feeds] if isinstance(feeds, Mapping) else feeds
        for plan, values in zip(self.parts.plans, given, strict=True):
            for name, (type_, _) in plan.feeds.items():
                array = values.get(name)
                if array is None:
                    raise GraphError(f"no value is given for {name!r} of {type_}")
                if not is_array(array):
                    raise GraphError(f"{name!r} is given a {type(array).__name__}, not an array")
                if TensorType(array.shape, str(array.dtype)) != type_:
                    raise GraphError(
                        f"{name!r} of {type_} is given {array.dtype}{list(array.shape)}"
                    )
        self._feeds = given
        self._early = self.parts.early(given)

    def run(self, transport: Transport, bound: BoundProgram) -> None:
        """The worker loop: do one bound program, leave its timeline."""
        self.transport = transport
        groups = [*self.exchanging.groups, *(self.updater.groups if self.updater else ())]
        with self.device.use():
            if self._channels:
                transport.open(self._channels)
            if groups:
                transport.collectives.join(groups, self._cards)
            if self.device.receive_stream is not None:
                self.device.receive_stream.begin()
        self.exchanging.collectives = transport.collectives
        stamp = self.stamps.stamp
        starts: list[Any] = []
        ends: list[Any] = []
        try:
            with self.device.use():
                for call in bound.calls:
                    starts.append(stamp())
                    call()
                    ends.append(stamp())
                self.device.finish()
                self.check()
        except BaseException as error:
            self._raise(bound.program[min(len(ends), len(bound.program) - 1)], error)
        tracks = [EMPTY] * transport.size
        ticks = self.stamps.ticks
        tracks[self.rank] = Track(bound.program, ticks(starts), ticks(ends))
        self.timeline = Timeline(tuple(tracks), NANOSECOND)

    def check(self) -> None:
        """Raise what a call on a GPU could only note: an id out of range."""
        self.context.check()

    def _raise(self, instruction: Instruction, error: BaseException) -> None:
        where = f"{instruction} (step {self.step_count})"
        cause = error
        if isinstance(error, NodeFailed):
            where += f", node {error.node!r}"
            cause = error.__cause__ or error
        if isinstance(error, PeerFailed):
            raise error
        full = no_memory(self.plan, self.rank, cause) if isinstance(cause, MemoryError) else None
        message = f"{type(cause).__name__}: {cause}" if full is None else str(full)
        self.transport.waiting_for(where)  # what it waited for before is not to be blamed
        self.transport.abort(Failure(self.rank, where, message))
        if not isinstance(cause, Exception):
            raise error
        kind = RunError if full is None else LimitError
        raise kind(f"rank {self.rank} failed at {where}: {message}") from cause

    # -- instructions ------------------------------------------------------------------------

    def run_body(self, body: BoundBody, mb: int, adding: Sequence[Call]) -> None:
        for name, array in body.fed:
            self._pinned.feed(array, self._fed(name, mb))
        self.context.set(self._env._replace(sample=self.parts.mbs[mb].sample))
        body.run()
        for value, array in body.results:
            self._result(value, mb, array)
        make(adding)
        if self._env.train:
            for name, array in body.states:
                self.arrays[name][...] = array

    def _fed(self, name: str, mb: int) -> Array:
        """The value of a variable for one micro-batch."""
        part, kind, start, _ = self.parts.mbs[mb]
        early = self._early[part].get(name)
        if early is not None:
            return early
        state = self.states.get(name)
        if state is not None:
            return state[mb]
        feed = self.parts.plans[part].feeds.get(name)
        if feed is None:
            array = self.arrays.get(name)
            return self._feeds[part][name] if array is None else array
        at = (slice(None),) * feed.axis + (slice(start, start + kind.size),)
        return self._feeds[part][name][at]

    def carry_states(self) -> None:
        """Let the states that this step made be the next step's initial ones."""
        made = self.plan.states.items()
        self.states = {name: self.outputs[v] for name, v in made if v in self.outputs}

    def gradient(self, name: str) -> Array:
        """The summed gradient of a variable that lives on this rank."""
        return self.grads[name]

    def _result(self, value: Value, mb: int, array: Array) -> None:
        kind = self.parts.mbs[mb].kind
        value = self.parts.outputs[kind].get(value, value)
        if value in self.wanted:
            kept = self._kept.get((value, mb))
            if kept is None:
                kept = self._kept[value, mb] = self.device.xp.empty_like(array)
            kept[...] = array
            self.outputs.setdefault(value, [None] * len(self.parts.mbs))[mb] = kept

    def _rank(self, key: BodyKey, mb: int) -> int:
        return self.parts.partitions[self.parts.mbs[mb].kind].rank(key)

    def send(self, edge: CommEdge, array: Array, mb: int) -> None:
        destination = self._rank(edge.dst, mb)
        ticket = self.transport.send(array, destination, edge.tag)
        self._tickets.setdefault((edge.src, mb), []).append((ticket, edge))

    def recv(self, edge: CommEdge, array: Array, mb: int) -> None:
        source = self._rank(edge.src, mb)
        where = f"R{edge.tag}.{mb} (step {self.step_count}): {edge.value} of rank {source}"
        self.transport.waiting_for(where)
        if edge.exchange:
            self.exchanging.take(edge.tag, mb, array)
        else:
            self.transport.recv(array, source, edge.tag)

    def free(self, key: BodyKey, mb: int) -> None:
        for ticket, edge in self._tickets.pop((key, mb), ()):
            if not ticket.done():
                where = f"{Free(*key[:2], mb, key.segment)} (step {self.step_count})"
                self.transport.waiting_for(f"{where}: {edge.value}")
                ticket.wait()

    def finish(self, instruction: Update | Collective) -> None:
        if self.updater is not None:
            if isinstance(instruction, Update):
                self.updater.update(self, instruction.stage)
            elif instruction.tag == REPLICAS:
                self.updater.sum_replicas(self)
            else:
                self.transport.waiting_for(f"C (step {self.step_count}): the norms and losses")
                self.updater.reduce(self)
