"""The worker: runs one rank's program, instruction by instruction.

There is one worker loop for every schedule, transport and device count. Everything that can be
looked up is looked up when the worker is made; a step walks a list of bound calls.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from partitioner.types import BodyKey, CommEdge
from runtime.instructions import Collective, Free, Instruction, Run, Send, Update
from runtime.kernels import Compiled, Frame, NodeFailed, compile_rank
from runtime.meter import Meter
from runtime.pipeline import Plan
from runtime.program import Program
from runtime.sums import TreeSum
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

    def reduce(self, worker: Worker) -> None: ...

    def update(self, worker: Worker, stage: int) -> None: ...


class Worker:
    """One rank of a plan.

    arrays: parameters and auxiliary states that live on this rank, by name; they are read, and
    auxiliary states are written, in place. wanted: the outputs to keep, by default all. After a
    step, `outputs` has those that are made here (one a micro-batch), `grads` the summed gradients.
    """

    transport: Transport  # of the run under way

    def __init__(
        self,
        plan: Plan,
        rank: int,
        arrays: Mapping[str, Array],
        wanted: Collection[Value] | None = None,
    ) -> None:
        self.plan = plan
        self.rank = rank
        self.arrays = arrays
        self.wanted = frozenset(plan.outputs if wanted is None else wanted)
        self.outputs: dict[Value, list[Any]] = {}
        self.grads: dict[str, TreeSum] = {}
        self.states: dict[str, list[Array]] = {}
        self.timeline = Timeline((EMPTY,) * plan.partition.ranks, NANOSECOND)  # of the last run
        self.step_count = 0
        self.meter: Meter | None = None
        self._frames: dict[tuple[int, int], Frame] = {}
        self._unfreed: dict[tuple[int, int], int] = {}  # bodies of a frame that are not freed yet
        self._tickets: dict[tuple[BodyKey, int], list[tuple[Ticket, CommEdge]]] = {}
        self._feeds: Mapping[str, Array] = {}
        self._early: dict[str, Array] = {}
        self._env = Env()
        self._starts = [sum(plan.sizes[:m]) for m in range(len(plan.sizes))]
        self._grad_of = {value: name for name, value in plan.grads.items()}
        self._compiled = {s: compile_rank(p, rank) for s, p in plan.partitions.items()}
        self._slots = {
            (size, key.stage): len(body.slots)
            for size, bodies in self._compiled.items() for key, body in bodies.items()
        }  # fmt: skip
        self._bodies = Counter(key.stage for key in plan.partition.bodies)
        self._edges = {size: {e.tag: e for e in p.edges} for size, p in plan.partitions.items()}
        self._updater: Updater | None = None
        self.program = self.bind(plan.schedule.programs[rank])

    def bind(self, program: Program) -> Bound:
        """A program of this rank, ready to `run`."""
        return Bound(program, [self._bind(instruction) for instruction in program])

    def _bind(self, instruction: Instruction) -> Callable[[], None]:
        """The call that does an instruction."""
        if isinstance(instruction, (Update, Collective)):
            return partial(self._finish, instruction)
        size = self.plan.sizes[instruction.mb]
        if isinstance(instruction, Run):
            return partial(self._run, self._compiled[size][instruction.key], instruction.mb)
        if isinstance(instruction, Free):
            return partial(self._free, self._compiled[size][instruction.key], instruction.mb)
        edge = self._edges[size][instruction.tag]
        end = edge.src if isinstance(instruction, Send) else edge.dst
        slot = self._compiled[size][end].slots[edge.value]
        act = self._send if isinstance(instruction, Send) else self._recv
        return partial(act, edge, slot, instruction.mb)

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
        self._updater = updater
        self.begin(feeds, train=train, seed=seed, step=step)
        self.run(transport, self.program)

    def begin(self, feeds: Mapping[str, Array], *, train: bool, seed: int, step: int) -> None:
        """Make ready for a step; what an earlier one left is dropped."""
        self._frames.clear()
        self._unfreed.clear()
        self._tickets.clear()
        self.outputs = {}
        self.grads = {name: TreeSum(len(self.plan.sizes)) for name in self.plan.grads}
        self.step_count = step
        self._env = Env(np, train, seed, step, 0)
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
            self._frames.clear()
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

    def _frame(self, stage: int, mb: int) -> Frame:
        frame = self._frames.get((stage, mb))
        if frame is None:
            slots = self._slots[self.plan.sizes[mb], stage]
            frame = self._frames[stage, mb] = [None] * slots
            self._unfreed[stage, mb] = self._bodies[stage]
        return frame

    def _run(self, body: Compiled, mb: int) -> None:
        frame = self._frame(body.key.stage, mb)
        for name, slot in body.fed:
            frame[slot] = self._fed(name, mb)
        self._watch()
        body.run(frame, self._env._replace(sample=self._starts[mb]), self.meter)
        for slot, other, to in body.handovers:
            self._frame(other, mb)[to] = frame[slot]
        for value, slot in body.results:
            self._result(value, mb, frame[slot])
        if self._env.train:
            for name, slot in body.aux:
                self.arrays[name][...] = frame[slot]
        for slot in body.spent:
            frame[slot] = None

    def _watch(self) -> None:
        """Let the meter, if there is one, see what is held now."""
        if self.meter is not None:
            self.meter.start(self._held(), self._feeds.values())

    def _held(self) -> Iterator[Iterable[Any]]:
        """Every array that this rank holds, parameters aside."""
        yield from self._frames.values()
        yield from (total.arrays for total in self.grads.values())
        yield from self.outputs.values()
        yield from self.states.values()

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
        return np.asarray(self._feeds[name][at], order="C")

    def carry_states(self) -> None:
        """Let the states that this step made be the next step's initial ones."""
        made = self.plan.states.items()
        self.states = {name: self.outputs[v] for name, v in made if v in self.outputs}

    def gradient(self, name: str) -> Array:
        """The summed gradient of a variable that lives on this rank."""
        return self.grads[name].total

    def _result(self, value: Value, mb: int, array: Array) -> None:
        name = self._grad_of.get(value)
        if name is not None:
            self.grads[name].add(np, mb, array)
        if value in self.wanted:
            self.outputs.setdefault(value, [None] * len(self.plan.sizes))[mb] = array

    def _send(self, edge: CommEdge, slot: int, mb: int) -> None:
        frame = self._frames[edge.src.stage, mb]
        destination = self.plan.partition.rank(edge.dst)
        ticket = self.transport.send(frame[slot], destination, edge.tag)
        self._tickets.setdefault((edge.src, mb), []).append((ticket, edge))

    def _recv(self, edge: CommEdge, slot: int, mb: int) -> None:
        source = self.plan.partition.rank(edge.src)
        out = np.empty(edge.type.shape, edge.type.dtype)
        where = f"R{edge.tag}.{mb} (step {self.step_count}): {edge.value} of rank {source}"
        self.transport.waiting_for(where)
        self.transport.recv(out, source, edge.tag)
        self._frame(edge.dst.stage, mb)[slot] = out
        self._watch()

    def _free(self, body: Compiled, mb: int) -> None:
        for ticket, edge in self._tickets.pop((body.key, mb), ()):
            if not ticket.done():
                where = f"{Free(*body.key[:2], mb, body.key.segment)} (step {self.step_count})"
                self.transport.waiting_for(f"{where}: {edge.value}")
                ticket.wait()
        at = body.key.stage, mb
        frame = self._frames[at]
        for slot in body.free:
            frame[slot] = None
        self._unfreed[at] -= 1
        if not self._unfreed[at]:
            del self._frames[at], self._unfreed[at]

    def _finish(self, instruction: Update | Collective) -> None:
        if self._updater is not None:
            if isinstance(instruction, Update):
                self._updater.update(self, instruction.stage)
            else:
                self.transport.waiting_for(f"C (step {self.step_count}): the norms and losses")
                self._updater.reduce(self)
