"""Buckets: one network unrolled to several lengths, trained as one.

All buckets have one placement, one array a parameter and optimizer state, and one pool of memory a
device. A bucket is planned when its first batch comes, in the way that was chosen for the default
one: nothing is searched for again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from runtime.planning.heap import no_collections
from runtime.planning.mixed_step import mix
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.planning.schedule_choice import compute_lists
from runtime.planning.step import StepBatches, StepPrograms
from symgraph.core.errors import GraphError, ScheduleError
from symgraph.core.units import bytes_text
from symgraph.frontend.io import DataBatch, DataDesc, describe
from symgraph.frontend.model import Model, SymbolInputs
from symgraph.frontend.name import NameManager

# Bucket key -> its network; a Model may have states.
BucketGen = Callable[[Any], Model | SymbolInputs]


class Buckets:
    """The plans of all buckets, each made when it is first wanted.

    default: the plan of the default bucket, the first to be made, whose placement and schedule the
    others follow. It should be the largest: what is chosen by it then fits all.
    """

    def __init__(
        self,
        sym_gen: BucketGen,
        default_bucket_key: Hashable,
        provide: Iterable[DataDesc],
        options: Options,
        *,
        dtype: str = "float32",
        train: bool = True,
    ) -> None:
        """provide: the data and labels of the default bucket. dtype: of parameters. train: whether
        with gradients. Raises what planning raises.
        """
        self.sym_gen, self.dtype, self.train = sym_gen, dtype, train
        self.default_bucket_key = default_bucket_key
        # An order that is made for one network is none for the others.
        self.default = self._plan(default_bucket_key, provide, replace(options, named_only=True))
        self._prices = self.default.prices
        self._plans: dict[Hashable, Plan] = {default_bucket_key: self.default}
        self._steps: dict[tuple[Hashable, ...], StepPrograms] = {}

    def scoring(self) -> Buckets:
        """The same buckets without gradients, placed alike."""
        return Buckets(
            self.sym_gen,
            self.default_bucket_key,
            _described(self.default),
            self._options(update=False),
            dtype=self.dtype,
            train=False,
        )

    def plan(self, key: Hashable, provide: Iterable[DataDesc]) -> Plan:
        """The plan of a bucket; provide: its data and labels, read the first time.

        Raises GraphError if the bucket has other parameters or outputs than the default one.
        """
        if key not in self._plans:
            with no_collections():
                made = self._plan(key, provide, self._options())
            self._require_alike(key, made)
            self._plans[key] = made
        return self._plans[key]

    def step(self, keys: Sequence[Hashable]) -> StepPrograms:
        """The programs of a step with one batch of each of these buckets, all planned before.

        Raises GraphError for a loss that several batches cannot share, ScheduleError if they cannot
        be in one step, or need more than the limit of memory.
        """
        wanted = tuple(keys)
        if wanted not in self._steps:
            parts = StepBatches(tuple([self._plans[key] for key in wanted]))
            if len(wanted) == 1:
                self._steps[wanted] = StepPrograms.of(parts.plans[0])
            else:
                _require_sums(parts)
                name = self.default.choice.schedule
                order = self.default.options.order if self.train else None
                listing = partial(compute_lists, name, order)
                step = StepPrograms(parts, mix(parts, listing, self._prices).schedule)
                if self.default.options.memory is not None and self.train:
                    _require_memory(step, self.default.options.memory)
                self._steps[wanted] = step
        return self._steps[wanted]

    def _options(self, *, update: bool = True) -> Options:
        """How further buckets are planned: like the default one."""
        default = self.default
        update = update and default.options.update
        return default.following(schedule=default.choice.schedule, update=update)

    def _plan(self, key: Hashable, provide: Iterable[DataDesc], options: Options) -> Plan:
        model = self._model(key, provide)
        arguments = model.symbol.list_arguments()
        dtypes = {n: self.dtype for n in arguments if n not in model.feeds}
        return plan(
            model.symbol,
            model.feeds,
            replace(options, states=model.states),
            wrt=None if self.train else (),
            dtypes=dtypes,
        )

    def _model(self, key: Hashable, provide: Iterable[DataDesc]) -> Model:
        # Its own names, so that a bucket's network does not depend on which were made before.
        with NameManager():
            made = self.sym_gen(key)
        if isinstance(made, Model):
            return made
        symbol, data_names, label_names = made
        described = {d.name: d.feed for d in map(describe, provide)}
        names = (*data_names, *(label_names or ()))
        missing = [name for name in names if name not in described]
        if missing:
            raise GraphError(
                f"bucket {key!r}: sym_gen names {missing[0]!r}, but the batch provides "
                f"{sorted(described)}"
            )
        return Model(symbol, {name: described[name] for name in names})

    def _require_alike(self, key: Hashable, made: Plan) -> None:
        default, other = f"bucket {self.default_bucket_key!r}", f"bucket {key!r}"
        for name in sorted({*made.parameters} ^ {*self.default.parameters}):
            has, lacks = (other, default) if name in made.parameters else (default, other)
            raise GraphError(
                f"{has} has a parameter {name!r}, which {lacks} has not; all buckets must have the "
                "same parameters"
            )
        if made.output_names != self.default.output_names:
            raise GraphError(
                f"{other} has the outputs {list(made.output_names)}, {default} "
                f"{list(self.default.output_names)}; give them the same names"
            )
        for name in made.parameters:
            assert made.rank_of(name) == self.default.rank_of(name)
            if _type_of(made, name) != _type_of(self.default, name):
                raise GraphError(
                    f"parameter {name!r} is {_type_of(made, name)} in {other}, but "
                    f"{_type_of(self.default, name)} in {default}"
                )


def largest_first(batches: Iterable[DataBatch]) -> list[DataBatch]:
    """The batches in the order in which they count in a step."""
    return sorted(batches, key=lambda b: (-sum(a.size for a in b.data), repr(b.bucket_key)))


def _require_sums(parts: StepBatches) -> None:
    """Several batches make one only if no loss divides by the size of its own batch."""
    for made in parts.plans:
        for node in made.network.first:
            if node.attrs.get("count") and node.attrs.get("normalization", "batch") == "batch":
                raise GraphError(
                    f"{node.op} {node.name!r} divides by the size of one batch, but a step has "
                    f"{len(parts.plans)} batches; use normalization='valid' or 'null', or one "
                    "batch a step"
                )


def _require_memory(step: StepPrograms, limit: int) -> None:
    """A step keeps within the bytes that each rank may hold."""
    plans = step.parts.plans
    for rank, memory in enumerate(step.memory):
        if memory.peak > limit:
            raise ScheduleError(
                f"a step of {len(plans)} batches needs {bytes_text(memory.peak)} ({memory.peak} "
                f"bytes) on {plans[0].devices[rank]}, more than the limit of "
                f"{bytes_text(limit)}; put fewer batches into a step"
            )


def _described(made: Plan) -> list[DataDesc]:
    """The fed variables of a plan."""
    return [
        DataDesc(name, feed.type.shape, feed.type.dtype, " " * feed.axis + "N")
        for name, feed in made.feeds.items()
    ]


def _type_of(made: Plan, name: str) -> Any:
    return made.partition.graph[name].types[0]
