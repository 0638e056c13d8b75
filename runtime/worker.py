"""The worker: runs one rank's program, instruction by instruction.

There is one worker loop for every schedule, transport and device count. Everything that can be
looked up is looked up when the worker is made; a step walks a list of bound calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from partitioner.layout import lay_out
from partitioner.types import BodyKey, CommEdge
from runtime.arena import Arena, Kind, Pool, reserve, view
from runtime.exchanges import Exchanging
from runtime.instructions import REPLICAS, Collective, Free, Instruction, Run, Send, Update
from runtime.kernels import Binder, BoundBody, NodeFailed, Packs, Step
from runtime.native import Clock
from runtime.parts import Feeds, Parts
from runtime.pipeline import Plan
from runtime.program import Program, Schedule
from runtime.replicas import with_sums
from runtime.stopwatch import Stopwatch
from runtime.sums import Keep
from runtime.timeline import EMPTY, Timeline, Track
from runtime.transports.base import Failure, Group, Ticket, Transport
from symgraph.errors import GraphError, PeerFailed, RunError
from symgraph.ops.registry import Env
from symgraph.types import Array, TensorType, Value

NANOSECOND = Fraction(1, 1_000_000_000)


class Bound(NamedTuple):
    """A rank's program and the call that does each instruction."""

    program: Program
    calls: list[Callable[[], None]]


class Shared:
    """What workers of one rank have together, if they take turns: memory, and packed parameters."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.packs = Packs()
        self.clock = Clock()


class Updater(Protocol):
    """What a training step does at its end; see runtime.updater. groups: of its collectives."""

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
        parts: Parts | None = None,
        shared: Shared | None = None,
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
        self.parts = Parts((plan,)) if parts is None else parts
        self.wanted = frozenset(plan.outputs if wanted is None else wanted)
        self.outputs: dict[Value, list[Any]] = {}
        self.grads: dict[str, Array] = {}
        self.states: dict[str, list[Array]] = {}
        self.timeline = Timeline((EMPTY,) * plan.partition.ranks, NANOSECOND)  # of the last run
        self.step_count = 0
        self._kept: dict[tuple[Value, int], Array] = {}  # the arrays of `outputs`
        self._tickets: dict[tuple[BodyKey, int], list[tuple[Ticket, CommEdge]]] = {}
        self._feeds: Sequence[Feeds] = ()
        self._early: list[dict[str, Array]] = []
        self._shared = Shared() if shared is None else shared
        self._env = Env()
        self.updater: Updater | None = None  # of the step under way
        self.bound: list[Bound] = []
        self.bind(schedules or (plan.schedule,))

    def bind(self, schedules: Sequence[Schedule]) -> None:
        """Make a step of schedules, one after the other, on the memory that they need."""
        self._schedules, rank, shared = schedules, self.rank, self._shared
        programs = [schedule.programs[rank] for schedule in schedules]
        fixed = {n for n, a in self.arrays.items() if a.flags.c_contiguous}
        kinds, partitions = self.parts.kinds, self.parts.partitions
        self.exchanging = Exchanging(rank, schedules, [partitions[kind] for kind in kinds])
        one = len(kinds) == 1
        lasting = self.plan.grads.values() if one else ()
        layouts = {k: lay_out(p, rank, fixed, lasting) for k, p in partitions.items()}
        arena = reserve(programs, layouts, kinds, {} if one else self.parts.gradients(rank))
        self._memory = shared.pool.take(arena.nbytes, self._drop)
        arrays = {name: self.arrays[name] for name in fixed}
        if self.stopwatch is not None:
            self.stopwatch.reset()
        known = frozenset(self.plan.parameters)
        binders = {
            kind: Binder(layout, arrays, known, self._memory, shared.packs, shared.clock)
            for kind, layout in layouts.items()
        }
        bind = _Bind(self, arena, binders)
        self.bound = [Bound(p, [bind.instruction(i) for i in p]) for p in programs]
        if len(programs) == 1:  # what comes between several may change gradients
            (only,) = self.bound
            calls = with_sums(self.parts, only.program, only.calls, self._made)
            self.bound = [Bound(only.program, calls)]

    def _made(self, names: Sequence[str]) -> None:
        """These gradients of replicas are complete."""
        if self.updater is not None:
            self.updater.made(self, names)

    def _drop(self) -> None:
        """Let go of the memory; the next step takes it anew."""
        self.bound, self.grads, self._memory = [], {}, np.empty(0, np.uint8)

    @property
    def held(self) -> int:
        """Bytes of its memory, parameters aside; shared memory is counted whole."""
        return self._shared.pool.memory.nbytes + sum(a.nbytes for a in self._kept.values())

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
        self._env = Env(np, train, seed, step, 0)
        self._shared.packs.refresh()
        self.feed(feeds)

    def feed(self, feeds: Feeds | Sequence[Feeds]) -> None:
        """Values of fed variables for the runs to come; GraphError for one that does not fit."""
        given = [feeds] if isinstance(feeds, Mapping) else feeds
        for plan, values in zip(self.parts.plans, given, strict=True):
            for name, (type_, _) in plan.feeds.items():
                array = values.get(name)
                if array is None:
                    raise GraphError(f"no value is given for {name!r} of {type_}")
                if TensorType(array.shape, str(array.dtype)) != type_:
                    raise GraphError(
                        f"{name!r} of {type_} is given {array.dtype}{list(array.shape)}"
                    )
        self._feeds = given
        self._early = self.parts.early(given)

    def run(self, transport: Transport, bound: Bound) -> None:
        """The worker loop: do one bound program, leave its timeline."""
        self.transport = transport
        groups = [*self.exchanging.groups, *(self.updater.groups if self.updater else ())]
        if groups:
            transport.collectives.join(groups)
        self.exchanging.collectives = transport.collectives
        clock = time.perf_counter_ns
        starts: list[int] = []
        ends: list[int] = []
        try:
            for call in bound.calls:
                starts.append(clock())
                call()
                ends.append(clock())
        except BaseException as error:
            self._raise(bound.program[len(ends)], error)
        tracks = [EMPTY] * transport.size
        tracks[self.rank] = Track(bound.program, np.array(starts), np.array(ends))
        self.timeline = Timeline(tuple(tracks), NANOSECOND)

    def _raise(self, instruction: Instruction, error: BaseException) -> None:
        where = f"{instruction} (step {self.step_count})"
        cause = error
        if isinstance(error, NodeFailed):
            where += f", node {error.node!r}"
            cause = error.__cause__ or error
        if isinstance(error, PeerFailed):
            raise error
        message = f"{type(cause).__name__}: {cause}"
        self.transport.waiting_for(where)  # what it waited for before is not to be blamed
        self.transport.abort(Failure(self.rank, where, message))
        if not isinstance(cause, Exception):
            raise error
        raise RunError(f"rank {self.rank} failed at {where}: {message}") from cause

    # -- instructions ------------------------------------------------------------------------

    def _run(self, body: BoundBody, mb: int, adding: Sequence[Step]) -> None:
        for name, array in body.fed:
            array[...] = self._fed(name, mb)
        self._shared.clock.env = self._env._replace(sample=self.parts.mbs[mb].sample)
        body.run()
        for value, array in body.results:
            self._result(value, mb, array)
        for _, function, args in adding:
            function(*args)
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
                kept = self._kept[value, mb] = np.empty_like(array)
            kept[...] = array
            self.outputs.setdefault(value, [None] * len(self.parts.mbs))[mb] = kept

    def _rank(self, key: BodyKey, mb: int) -> int:
        return self.parts.partitions[self.parts.mbs[mb].kind].rank(key)

    def _send(self, edge: CommEdge, array: Array, mb: int) -> None:
        destination = self._rank(edge.dst, mb)
        ticket = self.transport.send(array, destination, edge.tag)
        self._tickets.setdefault((edge.src, mb), []).append((ticket, edge))

    def _recv(self, edge: CommEdge, array: Array, mb: int) -> None:
        source = self._rank(edge.src, mb)
        where = f"R{edge.tag}.{mb} (step {self.step_count}): {edge.value} of rank {source}"
        self.transport.waiting_for(where)
        if edge.exchange:
            self.exchanging.take(edge.tag, mb, array)
        else:
            self.transport.recv(array, source, edge.tag)

    def _free(self, key: BodyKey, mb: int) -> None:
        for ticket, edge in self._tickets.pop((key, mb), ()):
            if not ticket.done():
                where = f"{Free(*key[:2], mb, key.segment)} (step {self.step_count})"
                self.transport.waiting_for(f"{where}: {edge.value}")
                ticket.wait()

    def _finish(self, instruction: Update | Collective) -> None:
        if self.updater is not None:
            if isinstance(instruction, Update):
                self.updater.update(self, instruction.stage)
            elif instruction.tag == REPLICAS:
                self.updater.sum_replicas(self)
            else:
                self.transport.waiting_for(f"C (step {self.step_count}): the norms and losses")
                self.updater.reduce(self)


class _Bind:
    """Makes the calls of instructions; bodies at the same places are bound once."""

    def __init__(self, worker: Worker, arena: Arena, binders: Mapping[Kind, Binder]) -> None:
        self.worker, self.arena, self.binders = worker, arena, binders
        self.kinds, self.partitions = worker.parts.kinds, worker.parts.partitions
        self.edges = {kind: {e.tag: e for e in p.edges} for kind, p in self.partitions.items()}
        self.made: dict[object, BoundBody] = {}

    def instruction(self, instruction: Instruction) -> Callable[[], None]:
        worker = self.worker
        if isinstance(instruction, (Update, Collective)):
            return partial(worker._finish, instruction)
        mb = instruction.mb
        if isinstance(instruction, Run):
            body = self._body(instruction.key, mb)
            adding = self._adding(body, mb)
            if worker.stopwatch is not None:
                body, adding = worker.stopwatch.watch(body, mb, adding)
            return partial(worker._run, body, mb, adding)
        if isinstance(instruction, Free):
            return partial(worker._free, instruction.key, mb)
        edge = self.edges[self.kinds[mb]][instruction.tag]
        if isinstance(instruction, Send) and edge.exchange:
            array = self._array(edge, edge.src, mb)
            return partial(worker.exchanging.give, edge.tag, mb, array)
        if isinstance(instruction, Send):
            return partial(worker._send, edge, self._array(edge, edge.src, mb), mb)
        return partial(worker._recv, edge, self._array(edge, edge.dst, mb), mb)

    def _adding(self, body: BoundBody, mb: int) -> list[Step]:
        """The calls that add the gradients of a run to what other micro-batches gave."""
        terms = dict(body.results)
        gradients = self.worker.parts.plans[self.kinds[mb].part].grads
        for name, value in gradients.items():
            if value in terms:
                self.worker.grads[name] = terms[value]  # if there is but one micro-batch
        steps = []
        for name, step in self.arena.adding.get((body.key, mb), ()):
            term = terms[gradients[name]]
            if isinstance(step, Keep):
                steps.append(Step(name, np.copyto, (self._sum(name, step.number, term), term)))
            else:
                total = self._sum(name, step.into, term)
                more = self._sum(name, step.number, term) if step.ends else term
                steps.append(Step(name, np.add, (total, more, total)))
            whole = self._sum(name, self.arena.totals[name], term)
            self.worker.grads[name] = whole
        return steps

    def _sum(self, name: str, index: int, like: Array) -> Array:
        type_ = TensorType(like.shape, str(like.dtype))
        return view(self.worker._memory, self.arena.sums[name, index], type_)

    def _bases(self, roots: Iterable[int], mb: int) -> dict[int, int]:
        found = {root: self.arena.at.get((mb, root)) for root in roots}
        return {root: base for root, base in found.items() if base is not None}

    def _array(self, edge: CommEdge, end: BodyKey, mb: int) -> Array:
        binder = self.binders[self.kinds[mb]]
        key = end.stage, edge.value
        bases = self._bases([binder.layout.places[key].root], mb)
        return binder.array(key, edge.type, bases, 0)

    def _body(self, key: BodyKey, mb: int) -> BoundBody:
        kind = self.kinds[mb]
        binder, scratch = self.binders[kind], self.arena.scratch[key, mb]
        bases = self._bases(binder.layout.touched[key], mb)
        place = key, kind, scratch, tuple(bases.items())
        if place not in self.made:
            body = self.partitions[kind].bodies[key]
            self.made[place] = binder.bind(body, bases, scratch)
        return self.made[place]
