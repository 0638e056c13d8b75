"""The end of a training step on one rank: norms and losses over all ranks, then the update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from partitioner.cutting.replicas import collective_groups
from runtime.backends.bodies import NodeFailed
from runtime.backends.device.arrays import on_host
from runtime.backends.updates import squared_norms, update
from runtime.engine.replica_sums import ReplicaSums
from runtime.planning.plan import Plan
from symgraph.core.batch_layout import PARTIAL
from symgraph.core.types import Array, Value
from symgraph.frontend.optimizer import Optimizer, global_norm_scale
from symgraph.passes.batching import assemble
from symgraph.passes.loss_scale import LossScale

if TYPE_CHECKING:
    from runtime.engine.worker import Worker


def scalars(plan: Plan) -> dict[str, Value]:
    """The outputs that are figures to report: sums over the batch with one element."""
    graph = plan.partition.graph
    return {
        name: value
        for name, value in zip(plan.output_names, plan.outputs, strict=True)
        if plan.layouts[value] is PARTIAL and graph.type_of(value).size == 1
    }


def local_scalars(worker: Worker) -> dict[str, float]:
    """The figures that are made on this worker's rank, for the whole batch."""
    with worker.device.use():
        return {
            name: float(on_host(assemble(PARTIAL, worker.outputs[value])).reshape(()))
            for name, value in scalars(worker.plan).items()
            if value in worker.outputs
        }


def scale_feeds(plan: Plan, scale: LossScale) -> dict[str, Array]:
    """The loss scale for each loss of a plan, by variable."""
    scales = plan.network.scales.items()
    return {name: np.full(type_.shape, scale.value, type_.dtype) for name, type_ in scales}


def overflowing(plan: Plan) -> AbstractContextManager[object]:
    """Let this thread's gradients overflow where such steps are left out: numpy need not say so."""
    free = plan.grads and plan.options.loss_scale.dynamic
    return np.errstate(over="ignore", invalid="ignore") if free else nullcontext()


class OptimizerStep:
    """One rank's optimizer: its states, and what it must know of the other ranks.

    The squared norms of all gradients travel as one vector with a place for each parameter, to
    which only the parameter's own rank adds: the sum over ranks is exact, and the sum over
    parameters has one order, so clipping is the same for every placement and counts a parameter
    that is used in many places once.

    With a loss scale, every rank knows by that sum whether a gradient has overflowed, and all of
    them leave the step out; figures tell the scale and whether that was so.
    """

    def __init__(self, plan: Plan, optimizer: Optimizer, clip: float | None) -> None:
        self.optimizer = optimizer
        self.clip = clip
        self.count = 0
        self.states: dict[str, dict[str, Array]] = {}
        self.stop = False  # whether this rank wants training to end after this step
        self.scale = 1.0
        self.loss_scale = plan.options.loss_scale
        self.skipped = False  # whether this step's gradients are not used
        self.figures: dict[str, float] = {}
        self._names = [name for name in plan.grads if name not in plan.feeds]
        self._scalars = list(scalars(plan))
        graph, shards = plan.partition.graph, plan.shards
        self._tags: Mapping[str, Mapping[str, str]] = {n: graph[n].tags for n in self._names}
        self._known_as = {n: shards[n].parameter if n in shards else n for n in self._names}
        self._copies = {n for n in self._names if n in shards and shards[n].copy}
        self.groups = collective_groups(plan.partition)
        self._sums: ReplicaSums | None = None

    def feeds(
        self, plans: Sequence[Plan], given: Sequence[Mapping[str, Array]]
    ) -> list[dict[str, Array]]:
        """The values of a step's batches, with the loss scale for all losses."""
        return [
            {**values, **scale_feeds(plan, self.loss_scale)}
            for plan, values in zip(plans, given, strict=True)
        ]

    @property
    def held(self) -> int:
        """Bytes of the optimizer's arrays, and of what the sums of copies' gradients need."""
        states = sum(a.nbytes for arrays in self.states.values() for a in arrays.values())
        return states + (0 if self._sums is None else self._sums.held)

    @property
    def progress(self) -> dict[str, Any]:
        """What a checkpoint holds besides arrays."""
        return {"updates": self.count, **self.loss_scale.progress}

    def resume(self, about: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's `progress`; without one, from its steps."""
        self.count = about.get("updates", about["steps"])
        self.loss_scale = self.loss_scale.resumed(about)

    def made(self, worker: Worker, names: Iterable[str]) -> None:
        """Begin to sum these gradients of copies, and go on with earlier ones."""
        self._replica_sums(worker).made(names, worker.gradient, worker.transport.collectives)

    def sum_replicas(self, worker: Worker) -> None:
        """Let the gradients of a parameter's copies be their sum."""
        self._replica_sums(worker).finish(worker.gradient, worker.transport.collectives)

    def _replica_sums(self, worker: Worker) -> ReplicaSums:
        if self._sums is None:
            self._sums = ReplicaSums(
                worker.plan.partition,
                worker.rank,
                worker.transport.collectives,
                worker.device.xp,
            )
        return self._sums

    def reduce(self, worker: Worker) -> None:
        """Exchange norms, figures and the wish to stop."""
        worker.check()  # before what it made of the numbers is taken for divergence
        vector = np.zeros(len(self._names) + len(self._scalars) + 1)
        if self.clip is not None or self.loss_scale.dynamic:
            places = [
                place
                for place, name in enumerate(self._names)
                if worker.plan.rank_of(name) == worker.rank and name not in self._copies
            ]
            gradients = [worker.gradient(self._names[place]) for place in places]
            vector[places] = squared_norms(worker.device.xp, gradients)
        own = local_scalars(worker)
        for place, name in enumerate(self._scalars, len(self._names)):
            vector[place] = own.get(name, 0.0)
        vector[-1] = float(self.stop)
        worker.transport.allreduce(vector)
        squares = float(np.sum(vector[: len(self._names)]))
        self.figures = dict(
            zip(self._scalars, map(float, vector[len(self._names) :]), strict=False)
        )
        self.figures["stop"] = float(vector[-1])
        self._rescale(squares)

    def _rescale(self, squares: float) -> None:
        """What this update multiplies gradients by, whose squares sum up so; and the next scale."""
        now = self.loss_scale
        self.skipped = now.dynamic and not math.isfinite(squares)
        if now.scales:
            self.figures |= {"loss_scale": now.value, "skipped": float(self.skipped)}
        self.loss_scale = now.after(not self.skipped)
        if self.skipped:
            return
        self.scale = 1.0 / now.value
        if self.clip is not None:
            self.scale *= global_norm_scale(squares / now.value**2, self.clip)
        self.count += 1

    def update(self, worker: Worker, stage: int) -> None:
        """Change the parameters of a stage in place; NodeFailed names one that cannot be."""
        stage_of = worker.plan.partition.placement.stage_of
        for name in self._names:
            if stage_of[name] == stage:
                weight, parameter = worker.arrays[name], self._known_as[name]
                if name not in self.states:
                    self.states[name] = self.optimizer.state(parameter, weight)
                if self.skipped:
                    continue
                try:
                    update(
                        worker.device.xp,
                        self.optimizer,
                        parameter,
                        weight,
                        worker.gradient(name),
                        self.states[name],
                        self.count,
                        self.scale,
                        self._tags[name],
                    )
                except Exception as error:
                    raise NodeFailed(name) from error
