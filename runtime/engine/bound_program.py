"""Binding: the call that each instruction of a rank's programs becomes, on arrays of its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from partitioner.base.types import BodyKey, CommEdge
from runtime.backends.bodies import Binder, BoundBody, Call
from runtime.backends.cuda_graphs import replayed
from runtime.planning.memory.arena import Arena, Kind
from runtime.planning.memory.tree_sum import Keep
from runtime.schedule.instructions import Collective, Free, Instruction, Run, Send, Update
from symgraph.core.types import Array, TensorType

if TYPE_CHECKING:
    from runtime.engine.worker import Worker


class Bind:
    """Makes the calls of instructions; bodies at the same places are bound once."""

    def __init__(self, worker: Worker, arena: Arena, binders: Mapping[Kind, Binder]) -> None:
        self.worker, self.arena, self.binders = worker, arena, binders
        self.kinds, self.partitions = worker.parts.kinds, worker.parts.partitions
        self.edges = {kind: {e.tag: e for e in p.edges} for kind, p in self.partitions.items()}
        self.made: dict[object, BoundBody] = {}

    def instruction(self, instruction: Instruction) -> Callable[[], None]:
        worker = self.worker
        if isinstance(instruction, (Update, Collective)):
            return partial(worker.finish, instruction)
        mb = instruction.mb
        if isinstance(instruction, Run):
            body = self._body(instruction.key, mb)
            adding = self._adding(body, mb)
            if worker.stopwatch is not None:
                body, adding = worker.stopwatch.watch(body, mb, adding)
            elif not worker.device.is_host:
                body, adding = replayed(worker.device, worker.context, body, adding)
            return partial(worker.run_body, body, mb, adding)
        if isinstance(instruction, Free):
            return partial(worker.free, instruction.key, mb)
        edge = self.edges[self.kinds[mb]][instruction.tag]
        if isinstance(instruction, Send) and edge.exchange:
            array = self._array(edge, edge.src, mb)
            return partial(worker.exchanging.give, edge.tag, mb, array)
        if isinstance(instruction, Send):
            return partial(worker.send, edge, self._array(edge, edge.src, mb), mb)
        return partial(worker.recv, edge, self._array(edge, edge.dst, mb), mb)

    def _adding(self, body: BoundBody, mb: int) -> list[Call]:
        """The calls that add the gradients of a run to what other micro-batches gave."""
        terms = dict(body.results)
        gradients = self.worker.parts.plans[self.kinds[mb].part].grads
        for name, value in gradients.items():
            if value in terms:
                self.worker.grads[name] = terms[value]  # if there is but one micro-batch
        copyto, add = self.worker.device.xp.copyto, self.worker.device.xp.add
        steps = []
        for name, step in self.arena.adding.get((body.key, mb), ()):
            term = terms[gradients[name]]
            if isinstance(step, Keep):
                steps.append(Call(name, copyto, (self._sum(name, step.number, term), term)))
            else:
                total = self._sum(name, step.into, term)
                more = self._sum(name, step.number, term) if step.ends else term
                steps.append(Call(name, add, (total, more, total)))
            whole = self._sum(name, self.arena.totals[name], term)
            self.worker.grads[name] = whole
        return steps

    def _sum(self, name: str, index: int, like: Array) -> Array:
        type_ = TensorType(like.shape, str(like.dtype))
        return self.worker.device.view(self.worker.memory, self.arena.sums[name, index], type_)

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
