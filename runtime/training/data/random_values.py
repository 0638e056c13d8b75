"""Random values of a network's own types: for plans, profiles and trials of speed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runtime.training.data.base import Inputs, Part, Source
from symgraph.app.config import Config
from symgraph.app.data_config import RandomData
from symgraph.core.errors import ConfigError
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import find
from symgraph.core.types import Array
from symgraph.frontend.io import DataBatch
from symgraph.frontend.lower import lower
from symgraph.frontend.model import Model

Range = tuple[int, int]  # the smallest number, and the one above the largest


# Operators with an input `sequence_length`, whose numbers are 1 to the length of the time axis.
LENGTHS = frozenset(("SequenceLast", "SequenceMask", "SequenceReverse"))
# Operators whose outputs have the numbers of their inputs.
MOVERS = frozenset(
    (
        "BlockGrad",
        "Cast",
        "Concat",
        "Crop",
        "Flatten",
        "Reshape",
        "SliceChannel",
        "SwapAxis",
        "broadcast_axis",
        "broadcast_to",
        "expand_dims",
        "identity",
        "repeat",
        "reverse",
        "slice",
        "slice_axis",
        "squeeze",
        "stack",
        "tile",
        "transpose",
    )
)


def number_ranges(graph: Graph, names: Sequence[str]) -> dict[str, Range]:
    """Return the ranges of those variables that are read as ids, classes or lengths."""
    readers: dict[str, list[tuple[Node, int]]] = {}
    for node in graph:
        for position, value in enumerate(node.inputs):
            readers.setdefault(value.node, []).append((node, position))
    found = {}
    for name in names:
        ranges, seen, ahead = [], {name}, [name]
        while ahead:
            for node, position in readers.get(ahead.pop(), ()):
                if (limits := _limits(node, position, graph)) is not None:
                    ranges.append(limits)
                elif node.op in MOVERS and node.name not in seen:
                    seen.add(node.name)
                    ahead.append(node.name)
        if ranges:
            found[name] = max(low for low, _ in ranges), min(high for _, high in ranges)
    return found


def _limits(node: Node, position: int, graph: Graph) -> Range | None:
    """Return the range of the numbers that an operator's input may have; None for any."""
    op, types = find(node.op), graph.types_of(node.inputs)
    if count := op.ids.get(op.input_names(node.attrs)[position]):
        return 0, count(node.attrs, types)
    if node.op == "LogisticRegressionOutput" and position == 1:
        return 0, 2
    if node.op in LENGTHS and position == 1:
        return 1, types[0].shape[node.attrs.get("axis", 0)] + 1
    return None


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
            return rng.integers(low, max(high, low + 1), shape).astype(dtype)
        return rng.standard_normal(shape).astype(dtype)


def load_random(data: RandomData) -> RandomDataset:
    """Return random values."""
    return RandomDataset(data)
