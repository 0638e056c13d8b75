"""The bucketed session: steps of batches of any buckets, on one set of arrays and of ranks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from partitioner.base.types import BodyKey
from runtime.engine.divergence import STOP
from runtime.engine.rank import RankResources
from runtime.engine.session import Arrays, Session
from runtime.planning.account import fullest
from runtime.planning.buckets import Buckets, largest_first
from runtime.schedule.replay import RankMemory
from runtime.schedule.timeline import Track
from runtime.transports import Cluster
from symgraph.core.errors import RunError
from symgraph.frontend.io import DataBatch
from symgraph.frontend.optimizer import Optimizer


class BucketSession(Session):
    """Runs steps of batches of any buckets; see Session."""

    def __init__(
        self,
        buckets: Buckets,
        cluster: Cluster,
        arrays: Arrays,
        *,
        optimizer: Optimizer | None = None,
        clip: float | None = None,
        on_nan: str = STOP,
        seed: int = 0,
        resources: Mapping[int, RankResources] | None = None,
        carry_states: bool = False,
        timed: bool = False,
    ) -> None:
        """Start workers for the default bucket; those of others are made when they come.

        Args:
            buckets: The plans of all buckets.
            carry_states: Whether the states at the end of a step are the first ones of the next
                (truncated back-propagation through time), instead of zeros.

        For the other arguments see Session.
        """
        self.buckets, self.carry_states = buckets, carry_states
        super().__init__(
            buckets.default,
            cluster,
            arrays,
            optimizer=optimizer,
            clip=clip,
            on_nan=on_nan,
            seed=seed,
            resources=resources,
            timed=timed,
        )

    @property
    def _alone(self) -> tuple[Hashable, ...]:
        return (self.buckets.default_bucket_key,)

    def step_batches(self, batches: Sequence[DataBatch], *, stop: bool = False) -> dict[str, float]:
        """Run one step on one or more batches, which may be of different buckets.

        The batches count as one large batch: a loss that divides by the number of valid labels
        divides by that of all of them. The larger batches come first, in whatever order they are
        given. For `stop` and the figures see Session.step.
        """
        if not batches:
            raise RunError("a step has no batch; give one or more")
        if self.carry_states and len(batches) > 1:
            raise RunError(
                f"carry_states is set, but a step has {len(batches)} batches; states are "
                "carried from one batch to the next, so each must be a step of its own"
            )
        ordered = largest_first(batches)
        for batch in ordered:
            self.buckets.plan(batch.bucket_key, batch.descriptions)
        keys = tuple([batch.bucket_key for batch in ordered])
        self._switch(keys, self.buckets.step(keys))
        values = [
            {**first, **b.feeds} for first, b in zip(self.programs.zeros, ordered, strict=True)
        ]
        figures = self._run(values, stop)
        if not self.carry_states:
            self.reset_states()
        return figures

    def _record_runs(self, rank: int, track: Track, unit: float) -> None:
        """Keep the time of each stage and phase in a step, as of one body of the default bucket.

        Other buckets have other time segments, and other steps other micro-batches. Stages and
        phases that the default bucket lacks on this rank are left out.
        """
        cut = self.plan.partition
        bodies: dict[tuple[int, str], BodyKey] = {}
        for key in cut.bodies:
            if cut.rank(key) == rank:
                bodies.setdefault((key.stage, key.phase), key)
        totals: dict[tuple[int, str], float] = {}
        for run, start, end in track.runs():
            at = run.stage, run.phase
            totals[at] = totals.get(at, 0.0) + (end - start) * unit
        for at, seconds in totals.items():
            if at in bodies:
                self.body_seconds[bodies[at]].append(seconds / len(self.plan.sizes))

    @property
    def memory(self) -> tuple[RankMemory, ...]:
        return fullest(self.buckets.step(keys).memory for keys in self._bound)

    @property
    def held(self) -> dict[int, int]:
        """Bytes of the memory of each local rank that all buckets share."""
        return {rank: r.pool.memory.nbytes for rank, r in self.resources.items()}
