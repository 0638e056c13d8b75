"""The session: a plan on a cluster, stepped from one place.

The caller's loop is the same for threads, where one process holds all ranks, and for MPI, where
every process runs the loop and holds one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from partitioner.base.types import BodyKey
from runtime.backends.device.arrays import device, on_host, require
from runtime.engine.devices import within_memory
from runtime.engine.optimizer_step import OptimizerStep, local_scalars, overflowing, scalars
from runtime.engine.stopwatch import Stopwatch
from runtime.engine.worker import RankResources, Worker
from runtime.planning.plan import Plan
from runtime.planning.requirements import require_optimizer, require_ranks
from runtime.planning.step import StepBatches, StepPrograms
from runtime.schedule.program import Schedule
from runtime.schedule.timeline import Timeline, merge
from runtime.transports import Cluster, Transport
from runtime.transports.agreement import agree_on_plan
from symgraph.core.types import Array
from symgraph.frontend.init import Initializer
from symgraph.frontend.io import DataBatch
from symgraph.frontend.optimizer import Optimizer
from symgraph.passes.batching import assemble
from symgraph.passes.shards import join

Arrays = dict[int, dict[str, Array]]  # by rank, then name
RECENT = 10_000  # measurements that are kept, so that long runs hold no more and more of them


class Session:
    """Runs steps of a plan on a cluster's local ranks.

    arrays: the parameters and auxiliary states of each local rank (see `initialize`). With an
    optimizer, `step` trains; without, it evaluates and adds up the figures until `collect`.
    keep_outputs: whether all outputs of a step can be had from `outputs`. timed: whether workers
    have stopwatches.
    """

    carry_states = True  # the states at the end of a step are the next one's first

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        arrays: Arrays,
        *,
        optimizer: Optimizer | None = None,
        clip: float | None = None,
        seed: int = 0,
        shared: Mapping[int, RankResources] | None = None,
        keep_outputs: bool = False,
        timed: bool = False,
    ) -> None:
        """shared: another session's, of the same arrays, with which it takes turns."""
        if optimizer is not None:
            require_optimizer(optimizer, trains=plan.trains, gradients=bool(plan.grads))
        require_ranks(plan.partition.ranks, cluster.size)
        require_devices(plan)
        self.plan = plan
        self.cluster = cluster
        self.arrays = arrays
        self.seed = seed
        self.steps = 0
        self.trains = optimizer is not None
        self._keeps_outputs, self._timed = keep_outputs, timed
        self.body_seconds: dict[BodyKey, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self.workers: dict[int, Worker] = {}
        self.updaters: dict[int, OptimizerStep] = {}
        self.shared = (
            {rank: RankResources() for rank in cluster.ranks} if shared is None else shared
        )
        self.now = StepPrograms.of(plan)  # what workers run
        self._sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))

        def start(transport: Transport) -> None:
            agree_on_plan(transport, plan)
            self.workers[transport.rank] = self._worker(transport.rank, plan)
            if optimizer is not None:
                self.updaters[transport.rank] = OptimizerStep(plan, optimizer, clip)

        cluster.run(start)

    def _worker(
        self,
        rank: int,
        plan: Plan,
        schedules: Sequence[Schedule] = (),
        parts: StepBatches | None = None,
    ) -> Worker:
        """A worker that keeps the figures and the next states, and all outputs if wanted."""
        wanted = {*scalars(plan).values(), *plan.states.values()}
        if self._keeps_outputs:
            wanted.update(plan.outputs)
        return Worker(
            plan,
            rank,
            self.arrays[rank],
            wanted,
            schedules,
            parts=parts,
            shared=self.shared[rank],
            stopwatch=Stopwatch() if self._timed else None,
        )

    def step(self, feeds: Mapping[str, Array], *, stop: bool = False) -> dict[str, float]:
        """Run one step on the whole batch; the figures of this step (training only).

        feeds: the fed variables that are no states. stop: this process's wish to end; the
        figure `stop` is positive on every rank if any rank wished so.
        """
        return self._run([{**self.now.zeros[0], **feeds}], stop)

    def step_batches(self, batches: Sequence[DataBatch], *, stop: bool = False) -> dict[str, float]:
        """`step` on a batch; a plan has no more than one."""
        (batch,) = batches
        return self.step(batch.feeds, stop=stop)

    def _run(self, values: list[dict[str, Array]], stop: bool) -> dict[str, float]:
        """One step of the workers on the values of each of its batches; its figures."""
        train = self.trains

        def work(transport: Transport) -> None:
            worker = self.workers[transport.rank]
            updater = self.updaters.get(transport.rank)
            given = values
            if updater is not None:
                updater.stop = stop
                given = updater.feeds(worker.parts.plans, values)
            with overflowing(worker.plan):
                worker.step(
                    transport, given, train=train, seed=self.seed, step=self.steps, updater=updater
                )
            worker.carry_states()
            if updater is None:
                for name, value in local_scalars(worker).items():
                    self._sums[transport.rank][name] += value

        self.cluster.run(work)
        self.steps += 1
        for worker in self.workers.values():
            self._record(worker)
        return next((dict(u.figures) for u in self.updaters.values()), {})

    def outputs(self) -> list[Array]:
        """The outputs of the last step for the whole batch; ranks that have any must be local."""
        return whole_outputs(self.plan, self.workers.values())

    def _record(self, worker: Worker) -> None:
        """Keep what the bodies of a step took."""
        timeline, unit = worker.timeline, float(worker.timeline.unit)
        for run, start, end in timeline.tracks[worker.rank].runs():
            self.body_seconds[run.key].append((end - start) * unit)

    def reset_states(self) -> None:
        """Start the next step from zero states."""
        for worker in self.workers.values():
            worker.states = {}

    def collect(self) -> dict[str, float]:
        """The figures of all evaluation steps since the last call, over all ranks."""
        names = list(scalars(self.plan))
        found: dict[str, float] = {}

        def work(transport: Transport) -> None:
            own = self._sums.pop(transport.rank, {})
            vector = np.array([own.get(n, 0.0) for n in names])
            transport.waiting_for("the sums of an evaluation")
            transport.allreduce(vector)
            found.update(zip(names, map(float, vector), strict=True))

        self.cluster.run(work)
        return found

    @property
    def timeline(self) -> Timeline:
        """The last step, of the local ranks."""
        return merge([w.timeline for w in self.workers.values()])

    def parameters(self) -> dict[str, Array]:
        """The parameters and auxiliary states of the local ranks, by name.

        Shards of a parameter are joined if all of them are here.
        """
        found = {n: on_host(a) for arrays in self.arrays.values() for n, a in arrays.items()}
        return join(self.plan.shards, found)


def whole_outputs(plan: Plan, workers: Iterable[Worker]) -> list[Array]:
    """The outputs that these workers kept, put together from micro-batches: copies."""
    found = {
        value: [*map(on_host, parts)]
        for worker in workers
        for value, parts in worker.outputs.items()
    }
    whole = [(assemble(plan.layouts[v], found[v]), found[v][0]) for v in plan.outputs]
    return [array.copy() if array is first else array for array, first in whole]


def require_devices(plan: Plan) -> None:
    """PlacementError for the first device that is not here."""
    for context in plan.partition.placement.devices:
        require(context)


def initialize(plan: Plan, cluster: Cluster, initializer: Initializer, seed: int) -> Arrays:
    """Fresh parameters and auxiliary states of the local ranks; the same for every placement."""
    require_ranks(plan.partition.ranks, cluster.size)
    require_devices(plan)  # before ranks, of which any could be the first to miss its own
    arrays: Arrays = {}

    def first_values(name: str) -> Array:
        variable, shard = plan.partition.graph[name], plan.shards.get(name)
        (type_,) = variable.types
        if shard is None:
            return initializer(name, *type_, seed, variable.tags)
        shape = type_.shape if shard.is_whole else (shard.rows, *type_.shape[1:])
        name = shard.parameter
        return shard.of(initializer(name, shape, type_.dtype, seed, variable.tags)).copy()

    def work(transport: Transport) -> None:
        own = device(plan.partition.placement.devices[transport.rank])
        with own.use(), within_memory(plan, transport.rank):
            arrays[transport.rank] = {
                name: own.put(first_values(name))
                for name in plan.parameters
                if plan.rank_of(name) == transport.rank
            }
            own.finish()

    cluster.run(work)
    return arrays
