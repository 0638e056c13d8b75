"""Made-up inputs of calls, on which their kernels are timed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

import numpy as np

from runtime.backends.device.arrays import HOST, Device
from symgraph.core.graph import Node
from symgraph.core.params import Attrs
from symgraph.core.types import Array, TensorType, Types, is_float


def _classes(attrs: Attrs, ins: Types) -> int:
    """The labels that a softmax over these inputs knows."""
    return ins[0].shape[1 if attrs.get("multi_output") else -1]


def _of_all(attrs: Attrs, ins: Types) -> int:
    """The ids of a whole operator that this is a shard of."""
    count: int = attrs["classes"]
    return count


DIFFERENT = 10_007  # numbers that are repeated; no row of a usual size is like the one before

# Operator -> the input that holds ids, and how many ids there are.
IDS: Mapping[str, tuple[int, Callable[[Attrs, Types], int]]] = {
    "Embedding": (0, lambda attrs, ins: attrs["input_dim"]),
    "_embedding_grad": (0, lambda attrs, ins: attrs["input_dim"]),
    "take": (1, lambda attrs, ins: ins[0].shape[attrs["axis"]]),
    "_take_grad": (0, lambda attrs, ins: attrs["size"]),
    "pick": (1, lambda attrs, ins: ins[0].shape[attrs["axis"]]),
    "_pick_grad": (0, lambda attrs, ins: attrs["shape"][attrs["axis"]]),
    "one_hot": (0, lambda attrs, ins: attrs["depth"]),
    "SoftmaxOutput": (1, _classes),
    "_softmax_output_grad": (1, _classes),
    "softmax_cross_entropy": (1, _classes),
    "_nll": (1, _classes),
    "_shard_embedding": (0, _of_all),
    "_shard_embedding_grad": (0, _of_all),
    "_shard_softmax_output": (1, _of_all),
    "_shard_softmax_output_grad": (1, _of_all),
    "_shard_cross_entropy": (1, _of_all),
    "_shard_residual": (1, _of_all),
    "_shard_pick": (1, _of_all),
}


def limits(node: Node, types: Types) -> list[int | None]:
    """For each input the number of ids it may hold; None: any numbers."""
    limits: list[int | None] = [None] * len(types)
    if node.op in IDS:
        at, count = IDS[node.op]
        limits[at] = count(node.attrs, types)
    return limits


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
