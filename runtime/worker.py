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
from runtime.arena import Arena, allocate, reserve, view
from runtime.instructions import REPLICAS, Collective, Free, Instruction, Run, Send, Update
from runtime.kernels import Binder, BoundBody, NodeFailed, Packs, Step
from runtime.native import Clock
from runtime.pipeline import Plan
from runtime.program import Program
from runtime.sums import Keep
from runtime.timeline import EMPTY, Timeline, Track
from runtime.transports.base import Failure, Ticket, Transport
from symgraph.errors import GraphError, PeerFailed, RunError
from symgraph.ops.registry import Env
from symgraph.reference import evaluate
from symgraph.types import Array, TensorType, Value

NANOSECOND = Fraction(1, 1_000_000_000)


class Bound(NamedTuple):
    """A rank's program and the call that does each instruction."""

    program: Program
    calls: list[Callable[[], None]]


class Updater(Protocol):
    """What a training step does at its end; see runtime.trainer."""

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
        programs: Collection[Program] | None = None,
    ) -> None:
        """programs: what a step consists of, by default the plan's program of this rank."""
        self.plan = plan
        self.rank = rank
        self.arrays = arrays
        self.wanted = frozenset(plan.outputs if wanted is None else wanted)
        self.outputs: dict[Value, list[Any]] = {}
        self.grads: dict[str, Array] = {}
        self.states: dict[str, list[Array]] = {}
        self.timeline = Timeline((EMPTY,) * plan.partition.ranks, NANOSECOND)  # of the last run
        self.step_count = 0
        self._kept: dict[tuple[Value, int], Array] = {}  # the arrays of `outputs`
        self._tickets: dict[tuple[BodyKey, int], list[tuple[Ticket, CommEdge]]] = {}
        self._feeds: Mapping[str, Array] = {}
        self._early: dict[str, Array] = {}
        self._clock = Clock()
        self._env = Env()
        self._packs = Packs()
        self._starts = [sum(plan.sizes[:m]) for m in range(len(plan.sizes))]
        self.updater: Updater | None = None  # of the step under way
        self.bound: list[Bound] = []
        self.bind([plan.schedule.programs[rank]] if programs is None else programs)

    def bind(self, programs: Collection[Program]) -> None:
        """Make a step of programs that run one after the other, on the memory that they need."""
        plan, rank = self.plan, self.rank
        fixed = {n for n, a in self.arrays.items() if a.flags.c_contiguous}
        one = len(plan.sizes) == 1
        lasting = plan.grads.values() if one else ()
        layouts = {s: lay_out(p, rank, fixed, lasting) for s, p in plan.partitions.items()}
        arena = reserve(programs, layouts, plan.sizes, {} if one else self._gradients())
        self._memory = allocate(arena.nbytes)
        arrays = {name: self.arrays[name] for name in fixed}
        known = frozenset(plan.parameters)
        binders = {
            size: Binder(layout, arrays, known, self._memory, self._packs, self._clock)
            for size, layout in layouts.items()
        }
        bind = _Bind(self, arena, binders)
        self.bound = [Bound(p, [bind.instruction(i) for i in p]) for p in programs]

    def _gradients(self) -> dict[BodyKey, dict[Value, int]]:
        """The gradients that each body of this rank completes, and their bytes."""
        partition, asked = self.plan.partition, {*self.plan.grads.values()}
        return {
            key: {v: partition.graph.type_of(v).nbytes for v in body.results if v in asked}
            for key, body in partition.bodies.items() if partition.rank(key) == self.rank
        }  # fmt: skip

    @property
    def held(self) -> int:
        """Bytes of its memory, parameters aside."""
        return self._memory.nbytes + sum(a.nbytes for a in self._kept.values())

    # -- a step ------------------------------------------------------------------------------

    def step(
        self,
        transport: Transport,
        feeds: Mapping[str, Array],
        *,
        train: bool = True,
        seed: int = 0,
        step: int = 0,
        updater: Updater | None = None,
    ) -> None:
        """Run the whole program once on these values of the fed variables (the whole batch).

        Any error is told to the other ranks, and raised as RunError that names rank,
        instruction and node.
        """
        self.updater = updater
        self.begin(feeds, train=train, seed=seed, step=step)
        for bound in self.bound:
            self.run(transport, bound)

    def begin(self, feeds: Mapping[str, Array], *, train: bool, seed: int, step: int) -> None:
        """Make ready for a step; what an earlier one left is dropped."""
        self._tickets.clear()
        self.outputs = {}
        self.step_count = step
        self._env = Env(np, train, seed, step, 0)
        self._packs.refresh()
        self.feed(feeds)

    def feed(self, feeds: Mapping[str, Array]) -> None:
        """Values of fed variables for the runs to come; GraphError for one that does not fit."""
        for name, (type_, _) in self.plan.feeds.items():
            array = feeds.get(name)
            if array is None:
                raise GraphError(f"no value is given for {name!r} of {type_}")
            if TensorType(array.shape, str(array.dtype)) != type_:
                raise GraphError(f"{name!r} of {type_} is given {array.dtype}{list(array.shape)}")
        self._feeds = feeds
        early = self.plan.prologue
        if early.outputs:
            values = evaluate(early, {n.name: feeds[n.name] for n in early.variables})
            self._early = {v.node: a for v, a in zip(early.outputs, values, strict=True)}

    def run(self, transport: Transport, bound: Bound) -> None:
        """The worker loop: do one bound program, leave its timeline."""
        self.transport = transport
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
        self._clock.env = self._env._replace(sample=self._starts[mb])
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
        early = self._early.get(name)
        if early is not None:
            return early
        state = self.states.get(name)
        if state is not None:
            return state[mb]
        feed = self.plan.feeds.get(name)
        if feed is None:
            array = self.arrays.get(name)
            return self._feeds[name] if array is None else array
        start = self._starts[mb]
        at = (slice(None),) * feed.axis + (slice(start, start + self.plan.sizes[mb]),)
        return self._feeds[name][at]

    def carry_states(self) -> None:
        """Let the states that this step made be the next step's initial ones."""
        made = self.plan.states.items()
        self.states = {name: self.outputs[v] for name, v in made if v in self.outputs}

    def gradient(self, name: str) -> Array:
        """The summed gradient of a variable that lives on this rank."""
        return self.grads[name]

    def _result(self, value: Value, mb: int, array: Array) -> None:
        if value in self.wanted:
            kept = self._kept.get((value, mb))
            if kept is None:
                kept = self._kept[value, mb] = np.empty_like(array)
            kept[...] = array
            self.outputs.setdefault(value, [None] * len(self.plan.sizes))[mb] = kept

    def _send(self, edge: CommEdge, array: Array, mb: int) -> None:
        destination = self.plan.partition.rank(edge.dst)
        ticket = self.transport.send(array, destination, edge.tag)
        self._tickets.setdefault((edge.src, mb), []).append((ticket, edge))

    def _recv(self, edge: CommEdge, array: Array, mb: int) -> None:
        source = self.plan.partition.rank(edge.src)
        where = f"R{edge.tag}.{mb} (step {self.step_count}): {edge.value} of rank {source}"
        self.transport.waiting_for(where)
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

    def __init__(self, worker: Worker, arena: Arena, binders: Mapping[int, Binder]) -> None:
        self.worker, self.arena, self.binders = worker, arena, binders
        self.partitions = worker.plan.partitions
        self.edges = {size: {e.tag: e for e in p.edges} for size, p in self.partitions.items()}
        self.made: dict[object, BoundBody] = {}

    def instruction(self, instruction: Instruction) -> Callable[[], None]:
        worker = self.worker
        if isinstance(instruction, (Update, Collective)):
            return partial(worker._finish, instruction)
        mb = instruction.mb
        if isinstance(instruction, Run):
            body = self._body(instruction.key, mb)
            return partial(worker._run, body, mb, self._adding(body, mb))
        if isinstance(instruction, Free):
            return partial(worker._free, instruction.key, mb)
        edge = self.edges[worker.plan.sizes[mb]][instruction.tag]
        if isinstance(instruction, Send):
            return partial(worker._send, edge, self._array(edge, edge.src, mb), mb)
        return partial(worker._recv, edge, self._array(edge, edge.dst, mb), mb)

    def _adding(self, body: BoundBody, mb: int) -> list[Step]:
        """The calls that add the gradients of a run to what other micro-batches gave."""
        terms = dict(body.results)
        names = {value: name for name, value in self.worker.plan.grads.items()}
        for value in terms.keys() & names.keys():
            self.worker.grads[names[value]] = terms[value]  # if there is but one micro-batch
        steps = []
        for value, step in self.arena.adding.get((body.key, mb), ()):
            term = terms[value]
            if isinstance(step, Keep):
                steps.append(
                    Step(value.node, np.copyto, (self._sum(value, step.number, term), term))
                )
            else:
                total = self._sum(value, step.into, term)
                more = self._sum(value, step.number, term) if step.ends else term
                steps.append(Step(value.node, np.add, (total, more, total)))
            whole = self._sum(value, self.arena.totals[value], term)
            self.worker.grads[names[value]] = whole
        return steps

    def _sum(self, value: Value, index: int, like: Array) -> Array:
        type_ = TensorType(like.shape, str(like.dtype))
        return view(self.worker._memory, self.arena.sums[value, index], type_)

    def _bases(self, roots: Iterable[int], mb: int) -> dict[int, int]:
        found = {root: self.arena.at.get((mb, root)) for root in roots}
        return {root: base for root, base in found.items() if base is not None}

    def _array(self, edge: CommEdge, end: BodyKey, mb: int) -> Array:
        binder = self.binders[self.worker.plan.sizes[mb]]
        key = end.stage, edge.value
        bases = self._bases([binder.layout.places[key].root], mb)
        return binder.array(key, edge.type, bases, 0)

    def _body(self, key: BodyKey, mb: int) -> BoundBody:
        size = self.worker.plan.sizes[mb]
        binder, scratch = self.binders[size], self.arena.scratch[key, mb]
        bases = self._bases(binder.layout.touched[key], mb)
        place = key, size, scratch, tuple(bases.items())
        if place not in self.made:
            body = self.partitions[size].bodies[key]
            self.made[place] = binder.bind(body, bases, scratch)
        return self.made[place]
