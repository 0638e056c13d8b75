"""The end of a training step on one rank: norms and losses over all ranks, then the update."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from partitioner.base.collectives import Group
from partitioner.cutting.replicas import collective_groups, own_pieces
from runtime.backends.calls import NodeFailed
from runtime.backends.device.table import Step
from runtime.backends.updates import Update, prepare, squared_norms, step_of
from runtime.engine.divergence import IGNORE, SKIP
from runtime.engine.rank import Rank
from runtime.engine.replica_sums import ReplicaSums
from runtime.planning.plan import Plan
from symgraph.core.batch_layout import PARTIAL
from symgraph.core.errors import ConfigError, GraphError
from symgraph.core.types import Array
from symgraph.frontend.optimizer import Optimizer, global_norm_scale
from symgraph.passes.batching import assemble
from symgraph.passes.loss_scale import LossScale
from symgraph.passes.shards import Shard, parameter_of


def local_scalars(rank: Rank) -> dict[str, float]:
    """Sum the plan's figures that this rank computes over the whole batch."""
    with rank.device.use():
        sums = sums_here(rank)
        return as_floats(sums, rank.read([*sums.values()]))


def sums_here(rank: Rank) -> dict[str, Array]:
    """Return the figures of `local_scalars` where they are computed."""
    return {
        name: assemble(PARTIAL, rank.outputs[value])
        for name, value in rank.plan.scalars.items()
        if value in rank.outputs
    }


def as_floats(names: Iterable[str], values: Iterable[Array]) -> dict[str, float]:
    """Return arrays of one number each as numbers."""
    return {name: float(v.reshape(())) for name, v in zip(names, values, strict=True)}


def scale_feeds(plan: Plan, scale: LossScale) -> dict[str, Array]:
    """Return the loss scale for each loss of a plan, by variable."""
    scales = plan.network.scales.items()
    return {name: np.full(type_.shape, scale.value, type_.dtype) for name, type_ in scales}


def overflowing(plan: Plan) -> AbstractContextManager[object]:
    """Silence numpy's warnings of overflow in this thread, if such steps are left out anyway."""
    free = plan.grads and plan.options.loss_scale.dynamic
    return np.errstate(over="ignore", invalid="ignore") if free else nullcontext()


def _apply(
    node: str, optimizer: Optimizer, given: Sequence[Any], tags: Mapping[str, str], scale: float
) -> None:
    """Update a parameter by the optimizer's own code; NodeFailed if that fails."""
    try:
        optimizer.apply(*(*given, scale, tags))
    except Exception as error:
        raise NodeFailed(node) from error


class OptimizerStep:
    """The end of a training step on one rank: the optimizer, its states, and the sums over ranks.

    The squared norms of all gradients travel as one vector with a place for each parameter, to
    which only the parameter's own rank adds: the sum over ranks is exact, and the sum over
    parameters has one order, so clipping is the same for every placement and counts a parameter
    that is used in many places once.

    Where a parameter has copies and the plan shards the optimizer, each copy has states of its own
    piece only (see partitioner.cutting.replicas) and updates that piece; then all copies get the
    weights. Update rules work element by element, so this changes no bit. Norms do not: a squared
    norm has one order of addition over the whole gradient. So with clipping or a dynamic scale the
    copies get the whole sums too, half as much traffic again, and the first one's rank adds up the
    squares as ever.

    Every rank knows by the same sums whether a figure (or a norm, where there are norms) is not
    finite, before anything is updated; see runtime.engine.divergence. A gradient that is not
    finite shows in the next step's figures at the latest, as its weights are not finite then.

    With a loss scale, every rank knows by that sum whether a gradient has overflowed, and all of
    them leave the step out; `figures` then has the scale and whether the step was left out.
    """

    #: The groups of ranks whose collectives it starts.
    groups: Sequence[Group]
    #: The optimizer's arrays: variable -> slot -> array.
    states: dict[str, dict[str, Array]]
    #: The number of updates so far.
    updates: int
    #: The loss scale of the next step.
    loss_scale: LossScale
    #: Whether this rank wants training to end after this step.
    stop: bool
    #: Whether any rank wanted training to end after the last step.
    stopped: bool
    #: How far this rank is with saving a checkpoint; see runtime.training.checkpoints.saves.
    saved: float
    #: The sum of `saved` over all ranks in the last step.
    saved_sum: float
    #: A number for the batches that this rank has read: less than 2**20, and equal on all ranks.
    read: int
    #: Whether it was equal in the last step.
    alike: bool
    #: The sums of the plan's figures over all ranks in the last step.
    figures: dict[str, float]
    #: Whether the last step was left out because a figure or a norm was not finite.
    diverged: bool

    def __init__(
        self, plan: Plan, optimizer: Optimizer, clip: float | None, on_nan: str = IGNORE
    ) -> None:
        """Create the optimizer step of a rank.

        Args:
            plan: The plan.
            optimizer: The update rule.
            clip: The largest global norm of gradients; None: any.
            on_nan: Whether to make the update all the same (`ignore`) when a figure or a norm is
                not finite.
        """
        self.optimizer = optimizer
        self.on_nan, self.diverged = on_nan, False
        self.clip = clip
        self.updates = optimizer.begin_num_update
        self.states = {}
        self.stop = self.stopped = False
        self.saved = self.saved_sum = 0.0
        self.read, self.alike = 0, True
        self.loss_scale = plan.options.loss_scale
        self.figures = {}
        self.groups = collective_groups(plan.partition)
        self._scale = 1.0  # factor of this step's gradients
        self._skipped = False  # whether this step's gradients are not used
        self._names = [name for name in plan.grads if name not in plan.feeds]
        self._figure_names = list(plan.scalars)
        graph, shards = plan.partition.graph, plan.shards
        self._tags: Mapping[str, Mapping[str, str]] = {n: graph[n].tags for n in self._names}
        self._parameters = {n: parameter_of(shards, n) for n in self._names}
        self._copies = {n for n in self._names if n in shards and shards[n].copy}
        self._norms = clip is not None or self.loss_scale.dynamic
        sharded = plan.options.shard_optimizer
        self._pieces = own_pieces(plan.partition) if sharded else {}
        if not optimizer.by_element:
            self._require_whole(type(optimizer).__name__, shards)
        self._sums: ReplicaSums | None = None
        self._updates: dict[int, list[Update]] = {}  # by stage

    def _require_whole(self, rule: str, shards: Mapping[str, Shard]) -> None:
        """Raise ConfigError if a parameter is updated in parts, by a rule that is not for parts."""
        cut = next((n for n in self._names if n in shards and not shards[n].is_whole), None)
        if self._pieces:
            why = f"shard_optimizer: {rule} needs whole parameters for its update, so replicas "
            raise ConfigError(
                f"{why}cannot update a part each; leave it out, or use another optimizer, such as "
                "sgd or adam"
            )
        if cut is not None:
            raise ConfigError(
                f"{rule} needs whole parameters for its update, but {cut!r} is a shard of one: do "
                "not shard its group, or use another optimizer, such as sgd or adam"
            )

    def feeds(
        self, plans: Sequence[Plan], batches: Sequence[Mapping[str, Array]]
    ) -> list[dict[str, Array]]:
        """Return the values of a step's batches, with the loss scale for all losses."""
        return [
            {**values, **scale_feeds(plan, self.loss_scale)}
            for plan, values in zip(plans, batches, strict=True)
        ]

    @property
    def held(self) -> int:
        """Bytes of the optimizer's arrays, and of what the sums of replicas' gradients need."""
        states = sum(a.nbytes for arrays in self.states.values() for a in arrays.values())
        return states + (0 if self._sums is None else self._sums.held)

    @property
    def progress(self) -> dict[str, Any]:
        """The facts that a checkpoint holds besides arrays."""
        return {"updates": self.updates, **self.loss_scale.progress}

    def resume(self, about: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's `progress`; an old one's updates are its steps."""
        self.updates = about.get("updates", about["steps"])
        self.loss_scale = self.loss_scale.resumed(about)

    def continue_from(
        self, states: dict[str, dict[str, Array]], updates: int, loss_scale: LossScale
    ) -> None:
        """Continue where another optimizer step ended, on its states."""
        self.states, self.updates, self.loss_scale = states, updates, loss_scale

    # -- instructions ------------------------------------------------------------------------

    def complete(self, rank: Rank, names: Iterable[str]) -> None:
        """Start to sum the gradients of these replicas, which a run has completed."""
        self._replica_sums(rank).complete(names, rank.gradient, rank.transport.collectives)

    def sum_replicas(self, rank: Rank) -> None:
        """Replace the gradients of a parameter's replicas by their sum."""
        self._replica_sums(rank).finish(rank.gradient, rank.transport.collectives)

    def _replica_sums(self, rank: Rank) -> ReplicaSums:
        if self._sums is None:
            self._sums = ReplicaSums(
                rank.plan.partition,
                rank.rank,
                rank.transport.collectives,
                rank.device.xp,
                spread=self._norms or not self._pieces,
            )
        return self._sums

    def reduce(self, rank: Rank) -> None:
        """Exchange norms, figures, what was read, how far a save is, and the wish to stop."""
        norms = len(self._names)
        vector = np.zeros(norms + len(self._figure_names) + 4)
        places = [
            place
            for place, name in enumerate(self._names)
            if self._norms and rank.plan.rank_of(name) == rank.rank and name not in self._copies
        ]
        gradients = [rank.gradient(self._names[place]) for place in places]
        sums = sums_here(rank)  # a GPU has this and the next to do before anybody waits for it
        asked = [squared_norms(rank.device.xp, gradients), *sums.values()]
        self._prepare(rank)
        vector[places], *values = rank.read(asked)
        local = as_floats(sums, values)
        for place, name in enumerate(self._figure_names, norms):
            vector[place] = local.get(name, 0.0)
        vector[-4:] = self.read, self.read**2, self.saved, float(self.stop)
        rank.transport.allreduce(vector)
        squares = float(np.sum(vector[:norms]))
        self.figures = dict(zip(self._figure_names, map(float, vector[norms:]), strict=False))
        self.saved_sum, self.stopped = float(vector[-2]), bool(vector[-1] > 0)
        # Of equal numbers alone, the mean of the squares is the square of the mean; both are exact.
        self.alike = bool(rank.transport.size * vector[-3] == vector[-4] ** 2)
        self._rescale(squares)

    def _rescale(self, squares: float) -> None:
        """Set the factor of this update's gradients and the next loss scale.

        Args:
            squares: The sum of the squares of all gradients.
        """
        scale, finite = self.loss_scale, math.isfinite(squares)
        overflow = scale.dynamic and not finite
        lost = not finite and (scale.value <= 1.0 or not scale.dynamic)  # no smaller scale helps
        self.diverged = self.on_nan != IGNORE and (
            lost or not all(map(math.isfinite, self.figures.values()))
        )
        self._skipped = overflow or self.diverged
        if scale.scales:
            self.figures["loss_scale"] = scale.value
        if scale.scales or self.on_nan == SKIP:
            self.figures["skipped"] = float(self._skipped)
        if not self.diverged:
            self.loss_scale = scale.after(not overflow)
        if self._skipped:
            return
        self._scale = 1.0 / scale.value
        if self.clip is not None and finite:
            self._scale *= global_norm_scale(squares / scale.value**2, self.clip)
        elif self.clip is not None:
            self._scale *= self.clip / math.sqrt(squares)
        self.updates += 1
        self.optimizer.num_update = self.updates  # alike on all ranks

    def _prepare(self, rank: Rank) -> None:
        """Prepare the updates of this rank's parameters; NodeFailed names one that cannot be.

        A GPU is still at work on their gradients, and soon waits for the updates.
        """
        placement, xp = rank.plan.placement, rank.device.xp
        steps: dict[int, list[Step]] = defaultdict(list)
        self._updates = defaultdict(list)
        for name in self._names:
            stage = placement.stage_of[name]
            if placement.rank_of[stage] != rank.rank:
                continue
            whole = rank.arrays[name]
            weight, state = self.piece(name, whole), self.state(name, whole)
            if not weight.size:
                continue
            grad, tags = self.piece(name, rank.gradient(name)), self._tags[name]
            given = xp, self._parameters[name], weight, grad, state, self.updates + 1
            try:
                step = step_of(self.optimizer, *given, tags)
            except Exception as error:
                raise NodeFailed(name) from error
            if step is None:
                self._updates[stage].append(partial(_apply, name, self.optimizer, given, tags))
            else:
                steps[stage].append(step)
        for stage, some in steps.items():
            self._updates[stage].append(prepare(xp, some))

    def update(self, rank: Rank, stage: int) -> None:
        """Change the parameters of a stage in place; NodeFailed names one that cannot be."""
        if not self._skipped:
            for update in self._updates[stage]:
                update(self._scale)

    def state(self, name: str, weight: Array) -> dict[str, Array]:
        """Return the optimizer's arrays of a variable by slot; the first call makes them."""
        if name not in self.states:
            piece = self.piece(name, weight)
            self.states[name] = self.optimizer.state(self._parameters[name], piece)
        return self.states[name]

    def piece(self, name: str, array: Array) -> Array:
        """View the elements of an array like a variable that this rank has the states of."""
        piece = self._pieces.get(name)
        if piece is None:
            return array
        if not array.flags.c_contiguous:
            raise NodeFailed(name) from GraphError("it is not C-contiguous; pass a copy of it")
        return array.reshape(-1)[piece]

    def spread_weights(self, rank: Rank) -> None:
        """Give all copies of parameters the weights that each has updated a piece of."""
        if not self._skipped:
            weights = rank.arrays.__getitem__
            self._replica_sums(rank).spread_weights(weights, rank.transport.collectives)
