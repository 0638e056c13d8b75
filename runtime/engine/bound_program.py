"""Bound programs: the call that each instruction of a rank becomes, on arrays of its memory.

Everything that can be looked up is looked up here, once; a step walks a list of bound calls. Where
they are needed, these are added to the plain calls:

* bundles: messages that travel together have one call, see bundles.py.
* receives beside work. A GPU receives messages on a stream of their own. The host runs ahead of
  its GPU, so when it issues a receive, the GPU may still execute earlier runs. The message arrives
  meanwhile, as soon as its place in the arena is free: after the last instruction that needs the
  previous content, which is known before anything runs.
* sums of replicas' gradients, which begin at the end of the runs that complete them.
* ranges: the instructions by name, for NVIDIA's profilers (NVTX).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Any, NamedTuple

from partitioner.base.types import FORWARD, BodyKey, CommEdge
from runtime.backends.bodies import Binder, BoundBody, LowParameters
from runtime.backends.calls import Call as BodyCall
from runtime.backends.cuda_graphs import replayed
from runtime.backends.device import settings
from runtime.backends.device.arrays import Device
from runtime.backends.device.receive_stream import ReceiveStream
from runtime.backends.parcels import Parcel
from runtime.engine.bundles import Bundle, bundled
from runtime.engine.rank import Rank
from runtime.planning.memory.arena import Arena, Kind, Message
from runtime.planning.memory.tree_sum import Keep
from runtime.planning.step import StepBatches
from runtime.schedule.instructions import (
    RECV,
    Collective,
    Free,
    Instruction,
    Recv,
    Run,
    Send,
    Update,
)
from runtime.schedule.program import Program, Schedule
from symgraph.core.types import Array, TensorType, Value
from symgraph.passes.replicate import copies_of

Call = Callable[[], None]


class BoundProgram(NamedTuple):
    """A rank's program and its calls."""

    program: Program
    #: The call that does each instruction; None: one before it has done it.
    calls: Sequence[Call | None]
    #: The place of a bundle's first message -> the places of all its messages.
    bundles: Mapping[int, Sequence[int]]


def bind_programs(
    rank: Rank, schedules: Sequence[Schedule], arena: Arena
) -> tuple[list[BoundProgram], dict[str, Array]]:
    """Bind a rank's programs of a step, which run one after the other, to its memory.

    Returns:
        The bound programs; the array of each variable's summed gradient.
    """
    device, bind = rank.device, Bind(rank, arena)
    bound = [bind.program(schedule) for schedule in schedules]
    if device.receive_stream is not None:
        begins = accumulate([len(one.program) for one in bound], initial=0)
        bound = [
            beside_work(device.receive_stream, one, arena.free, begin)
            for one, begin in zip(bound, begins, strict=False)
        ]
    if len(bound) == 1:  # what comes between several may change gradients
        bound = [with_sums(rank, one) for one in bound]
    return [in_ranges(device, one) for one in bound], bind.grads


class Bind:
    """Makes the calls of instructions; bodies at the same places are bound once."""

    def __init__(self, rank: Rank, arena: Arena) -> None:
        self.rank, self.arena = rank, arena
        self.kinds, self.partitions = rank.parts.kinds, rank.parts.partitions
        self.edges = {kind: {e.tag: e for e in p.edges} for kind, p in self.partitions.items()}
        fixed, parameters = rank.fixed, frozenset(rank.plan.parameters)
        packs, context, device = rank.packs, rank.context, rank.device
        self.binders: dict[Kind, Binder] = {
            kind: Binder(
                layout,
                fixed,
                parameters,
                rank.memory,
                packs,
                context,
                device,
                rank.watch,
                LowParameters.of(self.partitions[kind], fixed if device.is_host else ()),
            )
            for kind, layout in arena.layouts.items()
        }
        self.bodies: dict[object, BoundBody] = {}
        self.grads: dict[str, Array] = {}

    def program(self, schedule: Schedule) -> BoundProgram:
        """Bind the rank's program of a schedule."""
        program, devices = schedule.programs[self.rank.rank], self.rank.plan.devices
        found = bundled(schedule, self.rank.rank, devices, self._channel)
        bundles = {places[0]: places for places in found}
        calls: dict[int, Call | None] = {}
        for first, places in bundles.items():
            calls |= dict.fromkeys(places)
            calls[first] = self._bundle([program[at] for at in places])
        every = [calls[at] if at in calls else self.instruction(i) for at, i in enumerate(program)]
        return BoundProgram(program, every, bundles)

    def _channel(self, message: Message) -> tuple[int, int] | None:
        tag, mb = message
        edge, partition = self.edges[self.kinds[mb]][tag], self.partitions[self.kinds[mb]]
        return None if edge.exchange else (partition.rank(edge.src), partition.rank(edge.dst))

    def _bundle(self, instructions: Sequence[Instruction]) -> Call:
        """Make the call that sends or receives messages which travel together."""
        own, arrays, makers = [], [], {}
        sends = isinstance(instructions[0], Send)
        for instruction in instructions:
            assert isinstance(instruction, Send | Recv)
            mb = instruction.mb
            edge = self.edges[self.kinds[mb]][instruction.tag]
            own.append((edge, mb))
            arrays.append(self._array(edge, edge.src if sends else edge.dst, mb))
            makers[edge.src, mb] = edge
        ends = self._channel((own[0][0].tag, own[0][1]))
        assert ends is not None
        tags = tuple([edge.tag for edge, _ in own])
        bundle = Bundle(ends[sends], tags, Parcel(arrays), own[0], makers)
        return partial(self.rank.send if sends else self.rank.recv, bundle)

    def instruction(self, instruction: Instruction) -> Call:
        """Make the call that does an instruction, other than a message that is in a bundle."""
        rank = self.rank
        if isinstance(instruction, (Update, Collective)):
            return partial(rank.finish, instruction)
        mb = instruction.mb
        if isinstance(instruction, Run):
            body = self._with_sums(self._body(instruction.key, mb), mb)
            timed = None if rank.stopwatch is None else rank.stopwatch.watch(body, mb)
            if not rank.device.is_host and rank.watch is None:
                body = replayed(rank.device, rank.context, body)
            return partial(rank.run_body, mb, body, timed)
        if isinstance(instruction, Free):
            return partial(rank.free, instruction.key, mb)
        edge = self.edges[self.kinds[mb]][instruction.tag]
        if isinstance(instruction, Send):
            return partial(rank.exchanges.give, edge.tag, mb, self._array(edge, edge.src, mb))
        return partial(rank.take, edge, self._array(edge, edge.dst, mb), mb)

    def _with_sums(self, body: BoundBody, mb: int) -> BoundBody:
        """Add the gradients of a run to those of other micro-batches, each once it is there."""
        adding = self._adding(body, mb)
        steps, begin = list[BodyCall](), 0
        for value, end in body.added:
            steps += [*body.steps[begin:end], *adding.pop(value, ())]
            begin = end
        steps += body.steps[begin:]
        return body._replace(steps=(*steps, *chain.from_iterable(adding.values())))

    def _adding(self, body: BoundBody, mb: int) -> dict[Value, list[BodyCall]]:
        """Make the calls that add each gradient of a run to those of other micro-batches."""
        terms = dict(body.results)
        gradients = self.rank.parts.plans[self.kinds[mb].part].grads
        for name, value in gradients.items():
            if value in terms:
                self.grads[name] = terms[value]  # if there is but one micro-batch
        copyto, add = self.rank.device.xp.copyto, self.rank.device.xp.add
        calls: dict[Value, list[BodyCall]] = {}
        for name, step in self.arena.adding.get((body.key, mb), ()):
            term, here = terms[gradients[name]], calls.setdefault(gradients[name], [])
            if isinstance(step, Keep):
                total = self._sum(name, step.number, term)
                here.append(BodyCall(name, copyto, (total, term), True, ((term,), (total,))))
            else:
                total = self._sum(name, step.into, term)
                more = self._sum(name, step.number, term) if step.ends else term
                used = (total, more), (total,)
                here.append(BodyCall(name, add, (total, more, total), True, used))
            self.grads[name] = self._sum(name, self.arena.totals[name], term)
        return calls

    def _sum(self, name: str, index: int, like: Array) -> Array:
        type_ = TensorType(like.shape, str(like.dtype))
        return self.rank.device.view(self.rank.memory, self.arena.sums[name, index], type_)

    def _bases(self, roots: Iterable[int], mb: int) -> dict[int, int]:
        bases = {root: self.arena.at.get((mb, root)) for root in roots}
        return {root: base for root, base in bases.items() if base is not None}

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
        if place not in self.bodies:
            body = self.partitions[kind].bodies[key]
            self.bodies[place] = binder.bind(body, bases, scratch)
        return self.bodies[place]


# -- receives ------------------------------------------------------------------------------------


def beside_work(
    stream: ReceiveStream, bound: BoundProgram, free: Mapping[Message, int], begin: int
) -> BoundProgram:
    """Move the receives of early messages to a stream.

    Args:
        stream: The stream of receives.
        bound: The program.
        free: Early message -> the last instruction that still uses its memory; see Arena.
        begin: The number of instructions in the programs before this one.
    """
    changed = list(bound.calls)
    waited = begin  # the stream waits for the work so far, and then goes in order
    code, at, mb, _ = (column.tolist() for column in bound.program.columns)
    for place, call in enumerate(bound.calls):
        if code[place] != RECV or call is None or (at[place], mb[place]) not in free:
            continue
        together = bound.bundles.get(place, (place,))
        last, event = max([free[at[p], mb[p]] for p in together]), None
        if last > waited:
            waited, event = last, stream.event()
            before = last - begin - 1
            changed[before] = partial(_then_record, changed[before], stream, event)
        changed[place] = partial(stream.receive, call, event)
    return bound._replace(calls=changed)


def _then_record(call: Call | None, stream: ReceiveStream, event: Any) -> None:
    if call is not None:
        call()
    stream.record(event)


# -- sums of replicas' gradients -----------------------------------------------------------------


def with_sums(rank: Rank, bound: BoundProgram) -> BoundProgram:
    """Make the runs of a program report the gradients of replicas that they complete.

    From the first run that completes some, all runs report, even if they complete none: this
    advances the sums under way.
    """
    names, changed = last_runs(rank.parts, bound.program), list(bound.calls)
    for place in range(min(names, default=len(changed)), len(changed)):
        call = changed[place]
        if isinstance(bound.program[place], Run) and call is not None:
            changed[place] = partial(rank.complete, call, names.get(place, []))
    return bound._replace(calls=changed)


def last_runs(parts: StepBatches, program: Program) -> dict[int, list[str]]:
    """Map the place of each run in a program to the gradients of replicas that it completes."""
    graph = parts.plans[0].network.first
    replicated = {n for names in copies_of(graph).values() for n in names}
    last: dict[str, int] = {}
    for place, instruction in enumerate(program if replicated else ()):
        if isinstance(instruction, Run) and instruction.phase != FORWARD:
            kind = parts.kinds[instruction.mb]
            results = set(parts.partitions[kind].bodies[instruction.key].results)
            grads = parts.plans[kind.part].grads
            last |= {n: place for n in replicated & grads.keys() if grads[n] in results}
    names_at: dict[int, list[str]] = {}
    for name, place in last.items():
        names_at.setdefault(place, []).append(name)
    return names_at


# -- ranges --------------------------------------------------------------------------------------


def in_ranges(device: Device, bound: BoundProgram) -> BoundProgram:
    """Put each call of a GPU's program into a range, if SYMGRAPH_NVTX=1.

    It has the names of all instructions that the call does.
    """
    if device.is_host or not settings.nvtx_ranges_are_marked():
        return bound
    nvtx, program = device.xp.cuda.nvtx, bound.program
    changed: list[Call | None] = []
    for place, call in enumerate(bound.calls):
        done = [str(program[at]) for at in bound.bundles.get(place, (place,))]
        changed.append(call and partial(_in_range, nvtx, " ".join(done), call))
    return bound._replace(calls=changed)


def _in_range(nvtx: Any, name: str, call: Call) -> None:
    nvtx.RangePush(name)
    try:
        call()
    finally:
        nvtx.RangePop()
