"""The phases of a step: forward, backward and update as three calls, for users' own loops.

Each phase is a part of the plan's checked schedule, in its order, so micro-batches go through a
phase as a pipeline, and wait for each other between two phases: then all activations are held, as
in gpipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partitioner.base.types import FORWARD
from runtime.backends.device.arrays import copy, typed
from runtime.engine.devices import filling
from runtime.engine.optimizer_step import OptimizerStep, overflowing
from runtime.engine.rank import RankResources
from runtime.engine.session import Arrays, whole_outputs
from runtime.engine.worker import Worker
from runtime.planning.plan import Plan
from runtime.schedule.instructions import Collective, Free, Instruction, Recv, Run, Send, Update
from runtime.schedule.program import Schedule
from runtime.transports import Cluster, Transport
from symgraph.core.errors import GraphError, RunError, ShapeError
from symgraph.core.types import Array


class Phases:
    """A plan on a cluster whose ranks are all local, one phase per call."""

    def __init__(
        self,
        plan: Plan,
        schedules: Sequence[Schedule],
        cluster: Cluster,
        arrays: Arrays,
        resources: Mapping[int, RankResources],
    ) -> None:
        """Start a worker for each rank.

        Args:
            plan: The plan.
            schedules: Those of `split_phases`, or the plan's own if it has no gradients.
            cluster: The ranks.
            arrays: As a Session's.
            resources: As a Session's.
        """
        self.plan = plan
        self.cluster = cluster
        self.workers = [
            Worker(plan, r, arrays[r], schedules=schedules, resources=resources[r])
            for r in cluster.ranks
        ]
        for worker in self.workers:
            worker.bind()
        self._feeds: dict[str, Array] = {}

    def forward(self, feeds: Mapping[str, Array], *, train: bool, seed: int, step: int) -> None:
        """Compute the outputs."""
        self._feeds = dict(feeds)

        def work(transport: Transport) -> None:
            worker = self.workers[transport.rank]
            worker.begin(transport, feeds, train=train, seed=seed, step=step)
            with overflowing(self.plan):
                worker.run(transport, worker.bound[0])

        self.cluster.run(work)

    def outputs(self) -> list[Array]:
        """Assemble the outputs of the last forward for the whole batch, in order."""
        return whole_outputs(self.plan, self.workers)

    def new_outputs(self) -> list[Array]:
        """Make zeros for the outputs of one micro-batch, each on its device."""
        types, made = self.plan.partition.graph.types_of(self.plan.outputs), []
        for value, type_ in zip(self.plan.outputs, types, strict=True):
            with filling(self.plan, self.plan.rank_of(value.node)) as device:
                made.append(device.xp.zeros(*type_))
        return made

    def write_outputs(self, targets: Sequence[Array]) -> None:
        """Copy the outputs of the last forward of one micro-batch to these arrays."""
        worker_of = {value: worker for worker in self.workers for value in worker.outputs}
        for value, target in zip(self.plan.outputs, targets, strict=True):
            worker = worker_of[value]
            with worker.device.use():
                copy(target, worker.outputs[value][0])
                worker.device.finish()

    def backward(self, heads: Mapping[str, Array]) -> None:
        """Compute the gradients of the last forward.

        Args:
            heads: The plan's head gradients, and the scale for its losses, by variable.
        """

        def work(transport: Transport) -> None:
            worker = self.workers[transport.rank]
            worker.feed({**self._feeds, **heads})
            with overflowing(self.plan):
                worker.run(transport, worker.bound[1])

        self.cluster.run(work)

    def gradient(self, name: str) -> Array:
        """Return the summed gradient of a variable; `update` reads this array."""
        return self.workers[self.plan.rank_of(name)].gradient(name)

    def update(self, updaters: Mapping[int, OptimizerStep]) -> None:
        """Update the parameters with the gradients; `updaters` has each rank's optimizer step."""

        def work(transport: Transport) -> None:
            worker = self.workers[transport.rank]
            with overflowing(self.plan):
                worker.run(transport, worker.bound[2], updaters[transport.rank])

        self.cluster.run(work)


def head_gradients(plan: Plan, names: Sequence[str], values: Sequence[Any]) -> dict[str, Array]:
    """Check the head gradients that a plan's backward phase is fed.

    Args:
        plan: The plan.
        names: The names of its outputs.
        values: One per output; those of losses are ignored and may be None.

    Returns:
        The head gradients by variable.

    Raises:
        RunError: A head gradient is missing.
        ShapeError: A head gradient has another shape than its output.
        GraphError: There are more values than outputs.
    """
    if len(values) > len(names):
        raise GraphError(f"backward: {len(values)} head gradients for {len(names)} outputs")
    heads = {}
    for index, variable in plan.heads.items():
        value = values[index] if index < len(values) else None
        if value is None:
            raise RunError(
                f"output {names[index]!r} is not a loss, so backward needs its head gradient in "
                "out_grads"
            )
        (type_,) = plan.partition.graph[variable].types
        heads[variable] = typed(value, type_.dtype)
        if heads[variable].shape != type_.shape:
            raise ShapeError(
                f"the head gradient of {names[index]!r} has shape {heads[variable].shape}, not "
                f"{type_.shape}"
            )
    return heads


def split_phases(plan: Plan) -> tuple[Schedule, Schedule, Schedule]:
    """Split a schedule in three: forward runs with their messages; backward; updates.

    The frees of a part come last, when no rank waits for this one any more, so no part can hang.
    """
    edges = {e.tag: e for e in plan.partition.edges}

    def part(instruction: Instruction) -> int:
        if isinstance(instruction, (Update, Collective)):
            return 2
        if isinstance(instruction, (Run, Free)):
            return int(instruction.phase != FORWARD)
        assert isinstance(instruction, (Send, Recv))
        return int(edges[instruction.tag].src.phase != FORWARD)

    ordered = [sorted(p, key=lambda i: isinstance(i, Free)) for p in plan.schedule.programs]
    parts = [[[i for i in p if part(i) == n] for p in ordered] for n in range(3)]
    forward, backward, update = map(Schedule.of, parts)
    return forward, backward, update
