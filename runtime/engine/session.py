"""The session: a plan on a cluster, stepped from one place.

The caller's loop is the same for threads, where one process holds all ranks, and for MPI, where
every process runs the loop and holds one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from partitioner.base.types import BodyKey
from partitioner.cutting.replicas import all_copies
from runtime.backends.device.arrays import on_host
from runtime.engine.devices import filling, require_devices, require_memory
from runtime.engine.divergence import IGNORE, STOP, first_of
from runtime.engine.optimizer_step import OptimizerStep, local_scalars, overflowing
from runtime.engine.prediction import as_output, predicted, streamed, whole_batches
from runtime.engine.rank import Rank, RankResources
from runtime.engine.stopwatch import Stopwatch, Timing
from runtime.engine.worker import Worker
from runtime.planning.account import fullest
from runtime.planning.mixed_step import stream
from runtime.planning.plan import Plan
from runtime.planning.step import StepBatches, StepPrograms
from runtime.schedule.program import Schedule
from runtime.schedule.replay import RankMemory
from runtime.schedule.timeline import Timeline, Track, merge
from runtime.transports import Cluster, Transport
from runtime.transports.agreement import agree_on_plan
from symgraph.core.errors import RunError
from symgraph.core.heap import no_collections
from symgraph.core.html import paragraph, together
from symgraph.core.types import Array, Value
from symgraph.core.units import count_text
from symgraph.frontend import init
from symgraph.frontend.init import AnyInitializer
from symgraph.frontend.io import DataBatch
from symgraph.frontend.optimizer import Optimizer
from symgraph.passes.batching import assemble
from symgraph.passes.shards import join

# Rank -> name -> array.
Arrays = dict[int, dict[str, Array]]
RECENT = 1_000  # the most measurements that are kept: long runs need no more memory than short ones


class Session:
    """Runs steps of a plan on a cluster's local ranks.

    With an optimizer, `step` trains; without, it evaluates and adds up the figures until `collect`.
    """

    #: Whether the states at the end of a step are the first ones of the next step.
    carry_states = True
    #: The number of steps so far.
    steps = 0
    #: Whether any process asked, at the last step, to end training.
    stopped = False

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        arrays: Arrays,
        *,
        optimizer: Optimizer | None = None,
        clip: float | None = None,
        on_nan: str = STOP,
        seed: int = 0,
        resources: Mapping[int, RankResources] | None = None,
        keep_outputs: bool = False,
        timed: bool = False,
    ) -> None:
        """Start a worker for each local rank.

        Args:
            plan: What a step does.
            cluster: The ranks that run it.
            arrays: Parameters and auxiliary states of each local rank; see `initialize`.
            optimizer: Trains the parameters; None: nothing is trained.
            clip: The largest global norm of gradients; None: any.
            on_nan: `stop`, `skip` or `ignore` steps that diverge; see runtime.engine.divergence.
            seed: The key of random numbers, together with the number of the step.
            resources: Another session's, of the same arrays, if they never run at the same time.
            keep_outputs: Whether to keep all of a step's outputs for `outputs`.
            timed: Whether workers have stopwatches.
        """
        if optimizer is not None:
            require_optimizer(optimizer, plan, arrays)
        require_ranks(plan.partition.ranks, cluster.size)
        require_devices(plan)
        self.plan, self.cluster, self.arrays, self.seed = plan, cluster, arrays, seed
        self.trains, self.on_nan = optimizer is not None, on_nan
        self.keeps_outputs, self.timing = keep_outputs, Timing() if timed else None
        self.body_seconds: dict[BodyKey, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self.update_seconds: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self.workers: dict[int, Worker] = {}
        self.updaters: dict[int, OptimizerStep] = {}
        self.resources = resources or RankResources.of_ranks(cluster.ranks)
        self.programs = StepPrograms.of(plan)  # the programs that workers run
        self._sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))

        def start(transport: Transport) -> Worker:
            agree_on_plan(transport, plan)
            if optimizer is not None:
                self.updaters[transport.rank] = OptimizerStep(plan, optimizer, clip, on_nan)
            return self._worker(transport.rank, plan)

        self._start(start, self.workers)

    def __repr__(self) -> str:
        does = "trains" if self.trains else "runs forward"
        return f"<Session: {does}, {count_text(self.steps, 'step')} so far, {self.plan!r}>"

    def __str__(self) -> str:
        return f"{self!r}\n{self.plan}"

    def _repr_html_(self) -> str:
        """Return the same as HTML, for notebooks."""
        return together(paragraph([repr(self)]), self.plan._repr_html_())

    @cached_property
    def _bound(self) -> dict[tuple[Hashable, ...], dict[int, Worker]]:
        """The workers of each kind of step so far, by the keys of its batches."""
        return {self._alone: self.workers}

    @cached_property
    def _streams(self) -> dict[int, StepPrograms]:
        """The programs of steps whose batches stream, by their number."""
        return {1: StepPrograms.of(self.plan)}

    @property
    def _alone(self) -> tuple[Hashable, ...]:
        """The key of the workers of a step of one batch."""
        return (None,)

    def _start(self, make: Callable[[Transport], Worker], workers: dict[int, Worker]) -> None:
        """Make the workers of the local ranks, and bind them once all of them have memory."""
        self.cluster.run(lambda end: workers.update({end.rank: make(end)}))
        self.cluster.run(lambda end: workers[end.rank].bind())

    def _worker(
        self,
        rank: int,
        plan: Plan,
        schedules: Sequence[Schedule] = (),
        parts: StepBatches | None = None,
    ) -> Worker:
        """Make a worker that keeps the figures and the next states, and all outputs if wanted."""
        wanted = {*plan.scalars.values(), *plan.states.values()}
        if self.keeps_outputs:
            wanted.update(plan.outputs)
        return Worker(
            plan,
            rank,
            self.arrays[rank],
            wanted,
            schedules,
            parts=parts,
            resources=self.resources[rank],
            stopwatch=Stopwatch(self.timing) if self.timing else None,
        )

    def step(self, feeds: Mapping[str, Array], *, stop: bool = False) -> dict[str, float]:
        """Run one step on the whole batch.

        Args:
            feeds: The values of the fed variables that are no states.
            stop: Whether this process asks to end training; afterwards `stopped` tells every
                process whether any of them asked.

        Returns:
            The figures of the step: sums over the batch, and the loss scale where there is one.
            Empty unless it trains.
        """
        self._select(1)
        return self._run([{**self.programs.zeros[0], **feeds}], stop)

    def step_batches(self, batches: Sequence[DataBatch], *, stop: bool = False) -> dict[str, float]:
        """Run one step on exactly one batch; see `step`. BucketSession takes several.

        Forward only, several batches may stream through the stages in one step; their outputs are
        those of one large batch.
        """
        if len(batches) != 1 and not self.streams:
            raise RunError(
                f"a step of this session has one batch, not {len(batches)}: it trains, or hands "
                "states on from one batch to the next"
            )
        self._select(len(batches))
        pairs = zip(self.programs.zeros, batches, strict=True)
        return self._run([{**first, **batch.feeds} for first, batch in pairs], stop)

    def _select(self, batches: int) -> None:
        """Switch to the programs of a step of that many batches."""
        if len(self.programs.parts.plans) != batches:
            if batches not in self._streams:
                self._streams[batches] = stream(self.plan, batches)
            self._switch((None,) * batches, self._streams[batches])

    @property
    def memory(self) -> tuple[RankMemory, ...]:
        """The memory of each rank in the largest step so far, as it was planned."""
        return fullest(step.memory for step in self._streams.values())

    @property
    def streams(self) -> bool:
        """Whether a step may have several batches, which do not wait for each other."""
        return not self.plan.grads and not self.plan.states

    def _switch(self, keys: tuple[Hashable, ...], step: StepPrograms) -> None:
        """Switch to the workers of a step, made when it first comes; hand the states over to them.

        Args:
            keys: The keys of the step's batches.
            step: Its programs.
        """
        self.programs = step
        if keys not in self._bound:
            workers: dict[int, Worker] = {}

            def start(transport: Transport) -> Worker:
                agree_on_plan(transport, step)
                plan, schedules = step.parts.plans[0], [step.schedule]
                return self._worker(transport.rank, plan, schedules, step.parts)

            with no_collections():
                self._start(start, workers)
            self._bound[keys] = workers
        states = {rank: worker.states for rank, worker in self.workers.items()}
        self.workers = self._bound[keys]
        for rank, worker in self.workers.items():
            worker.start_from(states[rank])

    def _run(self, values: list[dict[str, Array]], stop: bool) -> dict[str, float]:
        """Run one step on the values of each of its batches; return its figures."""
        train, found = self.trains, ""

        def work(transport: Transport) -> None:
            nonlocal found
            worker = self.workers[transport.rank]
            updater = self.updaters.get(transport.rank)
            feeds = values
            given: Any = {"train": train, "seed": self.seed, "step": self.steps}
            if updater is not None:
                updater.stop = stop
                feeds = updater.feeds(worker.parts.plans, values)
                if self.on_nan != IGNORE:
                    worker.remember()
            with overflowing(worker.plan):
                worker.step(transport, feeds, **given, updater=updater)
            if updater is None or not updater.diverged:
                worker.carry_states()
            else:
                worker.recall()
                if self.on_nan == STOP:
                    with np.errstate(all="ignore"):
                        watch = worker.look(transport, feeds, **given)
                    transport.waiting_for("the values that are not finite")
                    found = first_of(transport.exchange(watch.found), worker.parts)
            if updater is None:
                for name, value in local_scalars(worker).items():
                    self._sums[transport.rank][name] += value

        self.cluster.run(work)
        if found:
            raise RunError(f"training has diverged at step {self.steps + 1}: {found}")
        self.steps += 1
        for worker in self.workers.values():
            self._record(worker)
        for updater in self.updaters.values():
            self.stopped = updater.stopped
            return dict(updater.figures)
        return {}

    def predict(self, source: Iterable[Mapping[str, Any] | DataBatch]) -> dict[str, Array]:
        """Compute the outputs for all samples of some batches, which stream through the stages.

        For a session without an optimizer that keeps outputs. Every process of an MPI run does the
        same.

        Args:
            source: Dicts from inputs to arrays, or DataBatches. Any of them may have fewer samples
                than the plan's batch.

        Returns:
            Output -> its value for all samples, in order, where it has a batch axis; next states
            are left out. Empty in processes without rank 0, and without any batch.

        Raises:
            RunError: The session trains, or does not keep outputs.
            GraphError: Batches that do not fit the network, or no output has a batch axis.
        """
        feeds = {n: feed for n, feed in self.plan.feeds.items() if n not in self.plan.states}
        self.reset_states()
        found: dict[str, list[Array]] = defaultdict(list)
        for outputs in self.predictions(whole_batches(source, feeds)):
            for name, rows in outputs.items():
                found[name].append(rows)
        layouts = predicted(self.plan)
        return {n: as_output(np.concatenate(parts), layouts[n]) for n, parts in found.items()}

    def predictions(self, batches: Iterable[DataBatch]) -> Iterator[dict[str, Array]]:
        """Yield the outputs of the next few batches as `predict` does, the samples as first axis.

        A batch has as many samples as the plan's; `pad` of them only fill it up. For the rest see
        `predict`.
        """
        if self.trains or not self.keeps_outputs:
            raise RunError(
                "this session does not predict: make one without an optimizer, with "
                "keep_outputs=True, of a plan that runs forward only"
            )

        def step(some: Sequence[DataBatch]) -> list[Array]:
            self.step_batches(some)
            return self.gather_outputs()

        return streamed(self.plan, step, batches)

    def outputs(self) -> list[Array]:
        """Assemble the last step's outputs for the whole batch, if all their ranks are local."""
        return whole_outputs(self.plan, self.workers.values())

    def gather_outputs(self) -> list[Array]:
        """Assemble the last step's outputs on rank 0; empty in processes without it.

        Every process of an MPI run does the same.
        """
        if len(self.workers) == self.cluster.size:
            return self.outputs()
        parts: dict[Value, list[Array]] = {}
        self.cluster.run(lambda transport: self._gather(transport, parts))
        return assembled(self.plan, parts) if 0 in self.workers else []

    def _gather(self, transport: Transport, parts: dict[Value, list[Array]]) -> None:
        """Send the parts of outputs that this rank keeps to rank 0, which fills `parts`."""
        transport.waiting_for("the outputs of a step")
        outputs = self.workers[transport.rank].outputs
        mine = {
            (i, mb): np.ascontiguousarray(on_host(array))
            for i, value in enumerate(self.plan.outputs)
            for mb, array in enumerate(outputs.get(value, ()))
            if array is not None
        }
        tables = transport.exchange([[*key, a.shape, a.dtype.name] for key, a in mine.items()])
        if transport.rank:
            for array in mine.values():
                transport.send(array, 0, 0).wait()
            return
        found = dict(mine)
        for rank, table in enumerate(tables[1:], 1):
            for i, mb, shape, dtype in table:
                found[i, mb] = np.empty(shape, dtype)
                transport.recv(found[i, mb], rank, 0)
        for (i, _), array in sorted(found.items(), key=lambda item: item[0]):
            parts.setdefault(self.plan.outputs[i], []).append(array)

    def _record(self, worker: Worker) -> None:
        """Keep the times of a step's bodies and updates."""
        track, unit = worker.timeline.tracks[worker.rank], float(worker.timeline.unit)
        self._record_runs(worker.rank, track, unit)
        for stage, start, end in track.updates():
            self.update_seconds[stage].append((end - start) * unit)

    def _record_runs(self, rank: int, track: Track, unit: float) -> None:
        """Keep the times of a step's bodies; unit: the seconds of a tick."""
        for run, start, end in track.runs():
            self.body_seconds[run.key].append((end - start) * unit)

    def reset_states(self, last: int | None = None) -> None:
        """Start the next step from zero states, or only its last `last` samples."""
        for worker in self.workers.values():
            if last is None:
                worker.start_from({})
            else:
                worker.clear_states(last)

    def collect(self) -> dict[str, float]:
        """Sum the figures of all evaluation steps since the last call over all ranks."""
        names = list(self.plan.scalars)
        sums: dict[str, float] = {}

        def work(transport: Transport) -> None:
            local = self._sums.pop(transport.rank, {})
            vector = np.array([local.get(n, 0.0) for n in names])
            transport.waiting_for("the sums of an evaluation")
            transport.allreduce(vector)
            sums.update(zip(names, map(float, vector), strict=True))

        self.cluster.run(work)
        return sums

    @property
    def timeline(self) -> Timeline:
        """The times of the last step, of the local ranks."""
        return merge([w.timeline for w in self.workers.values()])

    def parameters(self) -> dict[str, Array]:
        """Return the parameters and auxiliary states of the local ranks, by name, on the host.

        Shards of a parameter are joined if all of them are here.
        """
        local = {n: on_host(a) for arrays in self.arrays.values() for n, a in arrays.items()}
        return join(self.plan.shards, local)


def whole_outputs(plan: Plan, ranks: Iterable[Rank]) -> list[Array]:
    """Assemble the outputs that these ranks kept from micro-batches: copies on the host."""
    return assembled(
        plan,
        {value: [*map(on_host, parts)] for rank in ranks for value, parts in rank.outputs.items()},
    )


def assembled(plan: Plan, parts_of: Mapping[Value, list[Array]]) -> list[Array]:
    """Assemble outputs for the whole batch, as copies, from their parts by micro-batch."""
    wholes = [(assemble(plan.layouts[v], parts_of[v]), parts_of[v][0]) for v in plan.outputs]
    return [whole.copy() if whole is first else whole for whole, first in wholes]


def require_optimizer(optimizer: object, plan: Plan, arrays: Arrays) -> None:
    """Raise TypeError unless it is an optimizer, RunError for a plan that it could not train.

    Nor can it train these arrays if copies of a parameter have one, of which each updates all.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be one of symgraph.optimizer, not {optimizer!r}")
    if not plan.trains:
        raise RunError("an optimizer is given, but the plan has no updates: Options(update=True)")
    if not plan.grads:
        raise RunError(
            "an optimizer is given, but the plan has no gradients: plan(..., wrt=None) has those "
            "of all arguments that are not fed"
        )
    for copies in () if plan.shared_copies else all_copies(plan.partition):
        ranks = zip(copies.names, copies.ranks, strict=True)
        held = [id(arrays[rank][name]) for name, rank in ranks if rank in arrays]
        if len({*held}) < len(held):
            raise RunError(
                f"the replicas of {copies.parameter!r} have one array, but each of them would "
                "update it: initialize the arrays by this plan, which does not shard the optimizer"
            )


def require_ranks(wanted: int, there: int) -> None:
    """Raise RunError unless a cluster has a rank for each of a plan's."""
    if wanted != there:
        raise RunError(f"the plan has {wanted} ranks, but the cluster has {there}")


def initialize(
    plan: Plan, cluster: Cluster, initializer: AnyInitializer | str, seed: int
) -> Arrays:
    """Initialize parameters and states of the local ranks, equally for every placement.

    Raises GraphError for what is no initializer, or the name of none.
    """
    initializer = init.create(initializer)
    require_ranks(plan.partition.ranks, cluster.size)
    require_devices(plan)  # first, so that the error does not depend on the order of ranks
    require_memory(plan, cluster.ranks)
    local = {
        rank: [n for n in plan.parameters if plan.rank_of(n) == rank] for rank in cluster.ranks
    }
    first = plan.shared_copies if len(local) == cluster.size else {}
    made: dict[str, Array] = {}

    def first_values(name: str) -> Array:
        variable, shard = plan.partition.graph[name], plan.shards.get(name)
        (type_,) = variable.types
        if shard is None:
            return initializer(name, *type_, seed, variable.tags)
        shape = type_.shape if shard.is_whole else (shard.rows, *type_.shape[1:])
        name = shard.parameter
        return shard.of(initializer(name, shape, type_.dtype, seed, variable.tags)).copy()

    def work(transport: Transport) -> None:
        rank = transport.rank
        with filling(plan, rank) as target:
            own = [name for name in local[rank] if first.get(name, name) == name]
            made.update({name: target.put(first_values(name)) for name in own})

    cluster.run(work)
    return {rank: {n: made[first.get(n, n)] for n in names} for rank, names in local.items()}
