"""The phases of a step: forward, backward and update as three calls, for loops of the user's own.

Each is a part of the plan's checked schedule, in its order, so micro-batches go through a part as
a pipeline, and wait for each other between two parts: all activations are held then, as in gpipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partitioner.base.types import FORWARD
from runtime.backends.device.arrays import typed
from runtime.engine.optimizer_step import OptimizerStep, overflowing
from runtime.engine.session import Arrays, whole_outputs
from runtime.engine.worker import RankResources, Worker
from runtime.planning.plan import Plan
from runtime.schedule.instructions import Collective, Free, Instruction, Recv, Run, Send, Update
from runtime.schedule.program import Schedule
from runtime.transports import Cluster, Transport
from symgraph.core.errors import GraphError, RunError, ShapeError
from symgraph.core.types import Array


class Phases:
    """A training plan on a cluster whose ranks are all local, one phase a call.

    arrays, shared: as a Session's.
    """

    def __init__(
        self, plan: Plan, cluster: Cluster, arrays: Arrays, shared: Mapping[int, RankResources]
    ) -> None:
        self.plan = plan
        self.cluster = cluster
        parts = split_phases(plan)
        self.workers = [
            Worker(plan, r, arrays[r], schedules=parts, shared=shared[r]) for r in cluster.ranks
        ]
        self._feeds: dict[str, Array] = {}

    def forward(self, feeds: Mapping[str, Array], *, seed: int, step: int) -> None:
        """Compute the outputs."""
        self._feeds = dict(feeds)

        def work(transport: Transport) -> None:
            worker = self.workers[transport.rank]
            worker.begin(feeds, train=True, seed=seed, step=step)
            with overflowing(self.plan):
                worker.run(transport, worker.bound[0])

        self.cluster.run(work)

    def outputs(self) -> list[Array]:
        """The outputs of the last forward for the whole batch, in order."""
        return whole_outputs(self.plan, self.workers)

    def backward(self, heads: Mapping[str, Array]) -> None:
        """Compute the gradients of the last forward.

        heads: the plan's head gradients, and the scale for its losses, by variable.
        """

        def work(transport: Transport) -> None:
            worker = self.workers[transport.rank]
            worker.feed({**self._feeds, **heads})
            with overflowing(self.plan):
                worker.run(transport, worker.bound[1])

        self.cluster.run(work)

    def gradient(self, name: str) -> Array:
        """The summed gradient of a variable; an update takes what is in this array."""
        return self.workers[self.plan.rank_of(name)].gradient(name)

    def update(self, updaters: Mapping[int, OptimizerStep]) -> None:
        """Change the parameters by the gradients; updaters: by rank."""

        def work(transport: Transport) -> None:
            worker = self.workers[transport.rank]
            worker.updater = updaters[transport.rank]
            with overflowing(self.plan):
                worker.run(transport, worker.bound[2])

        self.cluster.run(work)


def head_gradients(plan: Plan, names: Sequence[str], given: Sequence[Any]) -> dict[str, Array]:
    """The head gradients that a plan's backward phase is fed, by variable.

    given: one an output, of which `names` are the names; those of losses are ignored and may be
    None. Raises RunError for one that is missing, ShapeError for one that does not fit,
    GraphError for too many.
    """
    if len(given) > len(names):
        raise GraphError(f"backward: {len(given)} head gradients for {len(names)} outputs")
    heads = {}
    for index, variable in plan.heads.items():
        value = given[index] if index < len(given) else None
        if value is None:
            raise RunError(
                f"output {names[index]!r} is no loss, so backward needs its head gradient in "
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
    """The schedule in three: what forward bodies run, send and have received; backward; updates.

    The frees of a part come last, when nobody waits for this rank any more: so no part can hang.
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
