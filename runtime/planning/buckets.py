"""Buckets: one network unrolled to several lengths, trained as one.

All buckets have one placement, one array per parameter and optimizer state, and one pool of memory
per device. A bucket is planned when its first batch comes, in the way that was chosen for the
default bucket: nothing is searched for again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from runtime.planning.account import excess
from runtime.planning.costs.prices import CostModel
from runtime.planning.mixed_step import mix
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan_model
from runtime.planning.schedule_choice import compute_lists
from runtime.planning.step import StepBatches, StepPrograms
from symgraph.core.errors import GraphError, LimitError
from symgraph.core.heap import no_collections
from symgraph.core.units import bytes_text, count_text
from symgraph.frontend.io import DataBatch, DataDesc, describe
from symgraph.frontend.model import Model, SymbolInputs
from symgraph.frontend.name import NameManager

# Bucket key -> its network; a Model may have states. It gets the samples of a MicroBatchKey as
# `rows` if it has such a parameter.
BucketGen = Callable[..., Model | SymbolInputs]


class MicroBatchKey(NamedTuple):
    """The key of a batch that is one micro-batch: a bucket with its own number of samples."""

    bucket: Hashable
    """The key of the bucket, such as a length."""
    rows: int
    """The samples of the micro-batch."""

    def __str__(self) -> str:
        return f"{self.bucket}x{self.rows}"


class Buckets:
    """The plans of all buckets; each is made when it is first needed.

    The others follow the placement and schedule of `default`, the plan of the default bucket, which
    is made first. It should be the largest: what is chosen for it then fits all.
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
        batches: int = 1,
    ) -> None:
        """Plan the default bucket; raises what planning raises.

        Args:
            sym_gen: makes the network of a bucket by its key; of a MicroBatchKey it gets `bucket`,
                and `rows` if it has a parameter of that name.
            default_bucket_key: the key of the default bucket.
            provide: the data and labels of the default bucket.
            options: the options of the default bucket.
            dtype: the dtype of parameters.
            train: whether the networks have gradients.
            batches: the batches of a step, which a memory limit is for. As many of the default
                bucket are to fit; a step of smaller ones then fits too.
        """
        self.sym_gen, self.dtype, self.train = sym_gen, dtype, train
        self.default_bucket_key = default_bucket_key
        self._takes_rows = "rows" in inspect.signature(sym_gen).parameters
        # Programs of steps with batches of several buckets are made by a schedule's name.
        how = replace(options, named_only=True, batches=batches)
        self.default = self._plan(default_bucket_key, provide, how)
        self._limits = self.default.options.limits(self.default.devices)
        self._prices = self.default.prices
        self._plans: dict[Hashable, Plan] = {default_bucket_key: self.default}
        self._steps: dict[tuple[Hashable, ...], StepPrograms] = {}

    @property
    def limited(self) -> bool:
        """Whether a rank has a memory limit."""
        return any(limit is not None for limit in self._limits)

    @cached_property
    def prices(self) -> CostModel:
        """The costs of the default bucket, which were measured for a choice or are measured now."""
        plan = self.default
        return self._prices or plan.options.costs(plan.network.first)

    def scoring(self) -> Buckets:
        """Return the same buckets without gradients, on the same devices."""
        return Buckets(
            self.sym_gen,
            self.default_bucket_key,
            _described(self.default),
            self._options(update=False),
            dtype=self.dtype,
            train=False,
        )

    def plan(self, key: Hashable, provide: Iterable[DataDesc]) -> Plan:
        """Return the plan of a bucket.

        Args:
            key: the key of the bucket.
            provide: its data and labels, read only the first time.

        Raises:
            GraphError: the bucket has other parameters or outputs than the default one.
        """
        if key not in self._plans:
            with no_collections():
                options = self._options()
                if isinstance(key, MicroBatchKey):
                    options = replace(options, micro_batches=1)
                bucket = self._plan(key, provide, options)
            self._require_alike(key, bucket)
            self._plans[key] = bucket
        return self._plans[key]

    def step(self, keys: Sequence[Hashable]) -> StepPrograms:
        """Return the programs of a step with one batch of each of these buckets.

        Args:
            keys: the keys of planned buckets.

        Raises:
            GraphError: a loss that several batches cannot share.
            ScheduleError: the batches cannot be in one step.
            LimitError: they need more memory than the limit.
        """
        key = tuple(keys)
        if key not in self._steps:
            step = self._programs(StepBatches(tuple([self._plans[k] for k in key])))
            self._require_memory(key, step)
            self._steps[key] = step
        return self._steps[key]

    def _programs(self, parts: StepBatches) -> StepPrograms:
        if len(parts.plans) == 1:
            return StepPrograms.of(parts.plans[0])
        _require_sums(parts)
        options = self.default.options
        order = options.order if self.train else None
        listing = partial(compute_lists, self.default.choice.schedule, order)
        return mix(parts, listing, self._prices, self._limits).step

    def _require_memory(self, keys: Sequence[Hashable], step: StepPrograms) -> None:
        """Raise LimitError for a step that needs more bytes on a rank than its limit."""
        if not self.limited:
            return
        shares = excess(step.memory, self._limits)
        rank = max(range(len(shares)), key=shares.__getitem__)
        if shares[rank] <= 1:
            return
        peak, limit = step.memory[rank].peak, self._limits[rank] or 0
        pieces = all(isinstance(key, MicroBatchKey) for key in keys)
        noun = "micro-batch" if pieces else "batch"
        raise LimitError(
            f"a step of {count_text(len(keys), noun)} needs {bytes_text(peak)} ({peak} bytes) on "
            f"{self.default.devices[rank]}, more than the limit of {bytes_text(limit)}; that is "
            "the smallest limit that works",
            peak,
        )

    def _options(self, *, update: bool = True) -> Options:
        """Return the options of further buckets, which follow the default one.

        They have no memory limit: whole steps must keep to it.
        """
        following = self.default.following(update=update and self.default.options.update)
        return following.unlimited()

    def _plan(self, key: Hashable, provide: Iterable[DataDesc], options: Options) -> Plan:
        return plan_model(self._model(key, provide), options, self.dtype, train=self.train)

    def _model(self, key: Hashable, provide: Iterable[DataDesc]) -> Model:
        # A new NameManager, so that a bucket's names do not depend on the buckets before it.
        bucket, rows = key, {}
        if isinstance(key, MicroBatchKey):
            bucket, rows = key.bucket, {"rows": key.rows} if self._takes_rows else {}
        with NameManager():
            network = self.sym_gen(bucket, **rows)
        if isinstance(network, Model):
            return network
        symbol, data_names, label_names = network
        described = {d.name: d.feed for d in map(describe, provide)}
        names = (*data_names, *(label_names or ()))
        missing = [name for name in names if name not in described]
        if missing:
            raise GraphError(
                f"bucket {key!r}: sym_gen names {missing[0]!r}, but the batch provides "
                f"{sorted(described)}"
            )
        return Model(symbol, {name: described[name] for name in names})

    def _require_alike(self, key: Hashable, bucket: Plan) -> None:
        default, other = f"bucket {self.default_bucket_key!r}", f"bucket {key!r}"
        for name in sorted({*bucket.parameters} ^ {*self.default.parameters}):
            has, lacks = (other, default) if name in bucket.parameters else (default, other)
            raise GraphError(
                f"{has} has a parameter {name!r}, which {lacks} lacks; all buckets must have the "
                "same parameters"
            )
        if bucket.output_names != self.default.output_names:
            raise GraphError(
                f"{other} has the outputs {list(bucket.output_names)}, {default} "
                f"{list(self.default.output_names)}; give them the same names"
            )
        for name in bucket.parameters:
            assert bucket.rank_of(name) == self.default.rank_of(name)
            if _type_of(bucket, name) != _type_of(self.default, name):
                raise GraphError(
                    f"parameter {name!r} is {_type_of(bucket, name)} in {other}, but "
                    f"{_type_of(self.default, name)} in {default}"
                )


def largest_first(batches: Iterable[DataBatch]) -> list[DataBatch]:
    """Return the batches in the order in which they count in a step."""
    return sorted(batches, key=lambda b: (-sum(a.size for a in b.data), repr(b.bucket_key)))


def _require_sums(parts: StepBatches) -> None:
    """Raise GraphError for a loss that divides by its own batch: several batches count as one."""
    for bucket in parts.plans:
        for node in bucket.network.first:
            if node.attrs.get("count") and node.attrs.get("normalization", "batch") == "batch":
                raise GraphError(
                    f"{node.op} {node.name!r} divides by the size of one batch, but a step has "
                    f"{len(parts.plans)} batches; use normalization='valid' or 'null', or one "
                    "batch a step"
                )


def _described(bucket: Plan) -> list[DataDesc]:
    """Return the descriptions of a plan's fed variables."""
    return [
        DataDesc(name, feed.type.shape, feed.type.dtype, " " * feed.axis + "N")
        for name, feed in bucket.feeds.items()
    ]


def _type_of(bucket: Plan, name: str) -> Any:
    return bucket.partition.graph[name].types[0]
