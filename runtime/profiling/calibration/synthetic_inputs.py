"""Made-up inputs of calls, on which their kernels are timed."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from runtime.backends.device.arrays import HOST, Device
from symgraph.core.graph import Node
from symgraph.core.registry import find
from symgraph.core.types import Array, TensorType, Types, is_float

DIFFERENT = 10_007  # numbers that are repeated; no row of a usual size is like the one before


def limits(node: Node, types: Types) -> list[int | None]:
    """For each input the number of ids that it may hold; None: any numbers."""
    op = find(node.op)
    counts = [op.ids.get(name) for name in op.input_names(node.attrs)]
    # A hidden input has no name among those of the users.
    counts += [None] * (len(types) - len(counts))
    return [None if count is None else count(node.attrs, types) for count in counts]


class MadeUp:
    """Arrays of random numbers, which the excerpts of a worker read in turn. here: their device."""

    def __init__(self, here: Device = HOST) -> None:
        self.here = here
        self._arrays: dict[tuple[TensorType, int | None], list[Array]] = defaultdict(list)
        self._used: Counter[tuple[TensorType, int | None]] = Counter()
        self._rng = np.random.default_rng(0)

    def begin(self) -> None:
        """Let the next excerpt have all arrays again."""
        self._used.clear()

    def next(self, type_: TensorType, limit: int | None) -> Array:
        """One that this excerpt has not had."""
        key = type_, limit
        made, used = self._arrays[key], self._used[key]
        if used == len(made):
            numbers = _random(self._rng, type_, limit)
            made.append(numbers if self.here.is_host else self.here.put(numbers))
        self._used[key] += 1
        return made[used]


def _random(rng: np.random.Generator, type_: TensorType, limit: int | None) -> Array:
    if limit is None and is_float(type_.dtype):
        numbers = rng.standard_normal(min(type_.size, DIFFERENT), np.float32)
        numbers *= 0.1  # so that products of many stay in range
        return np.resize(numbers.astype(type_.dtype, copy=False), type_.shape)
    return rng.integers(0, 2 if limit is None else limit, type_.shape).astype(type_.dtype)
