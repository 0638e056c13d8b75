"""Random values of a network's own types: for plans, profiles and trials of speed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from runtime.training.data.base import Inputs, Part, Source
from symgraph.app.config import Config
from symgraph.app.data_config import RandomData
from symgraph.core.errors import ConfigError
from symgraph.core.graph import Graph
from symgraph.core.types import Array
from symgraph.frontend.io import DataBatch
from symgraph.frontend.lower import lower
from symgraph.frontend.model import Model
from symgraph.passes.number_ranges import Range, number_ranges


@dataclass(frozen=True)
class RandomDataset:
    """Random values; none are held out."""

    data: RandomData
    #: The network's graph; None: it is lowered from the model's symbol.
    graph: Graph | None = None
    unit: str = "samples"
    name: str = "random values"
    digest: str = ""
    identity: str = ""

    def about(self) -> str:
        return f"random values, {self.data.batches:,} batches per epoch; nothing is held out"

    def in_order(self, inputs: Inputs) -> Iterator[DataBatch]:
        raise ConfigError(
            "data.kind: random values are for trials of speed; predict on `arrays`, or on batches "
            "from a `python` function"
        )

    def source(self, part: Part, config: Config, model: Model | None) -> Source | None:
        if part == "held-out":
            return None
        inputs = Inputs.of(model)
        assert model is not None, "it has inputs"
        ranges = number_ranges(self.graph or _lowered(model), [*inputs.feeds])
        return RandomValues(inputs, ranges, self.data.batches, config.train.seed)


def _lowered(model: Model) -> Graph:
    types = {name: feed.type for name, feed in model.feeds.items()}
    return lower(
        model.symbol,
        {name: type_.shape for name, type_ in types.items()},
        {name: type_.dtype for name, type_ in types.items()},
    )


@dataclass(frozen=True)
class RandomValues:
    """Batches that depend on the seed and the number of the step alone."""

    inputs: Inputs
    #: The ranges of inputs that are read as whole numbers.
    ranges: Mapping[str, Range]
    per_epoch: int
    seed: int

    def __len__(self) -> int:
        return self.per_epoch

    def begins_epoch(self, step: int) -> bool:
        return step % self.per_epoch == 0

    def count(self, step: int) -> int:
        return self.inputs.batch

    def batches(self, step: int) -> list[DataBatch]:
        return [self.inputs.made({n: self._values(n, step) for n in self.inputs.feeds})]

    def _values(self, name: str, step: int) -> Array:
        shape, dtype = self.inputs.feeds[name].type
        rng = np.random.default_rng([self.seed, step, zlib.crc32(name.encode())])
        whole = np.dtype(dtype).kind in "iu"
        if name in self.ranges or whole:
            low, high = self.ranges.get(name, (0, 2))
            return rng.integers(low, np.maximum(high, np.add(low, 1)), shape).astype(dtype)
        return rng.standard_normal(shape).astype(dtype)


def load_random(data: RandomData) -> RandomDataset:
    """Return random values."""
    return RandomDataset(data)
