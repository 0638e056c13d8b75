"""Memory that a rank's kernels share on its GPU: random keys, deferred errors and scratch.

The arguments of a CUDA graph's kernels never change, so all of it lies at fixed addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from partitioner.memory.packing import to_cache_lines
from runtime.backends.cuda.base import PLANNED, module
from runtime.backends.device import arrays
from runtime.backends.device.table import CallContext
from symgraph.core.rand import key
from symgraph.core.registry import Env
from symgraph.core.types import Array, TensorType

KEY_BLOCK = 1024  # streams whose keys are written together
ERROR_BLOCK = 256  # kinds of errors whose slots are read together


# -- random keys -------------------------------------------------------------------------------


class DeviceRandomKeys:
    """The keys of a rank's random streams and the number of its first sample, for kernels to read.

    They change from step to step and from micro-batch to micro-batch, so they are written, in the
    order of the GPU's work, before each run that may read them.
    """

    def __init__(self, env: Env) -> None:
        self._sample: Any = module().zeros(1, "int64")
        self._keys: list[Any] = []  # of `KEY_BLOCK` streams each
        self._streams: dict[str, int] = {}
        self._written = env._replace(step=-1, sample=0)

    def places(self, stream: str) -> tuple[Array, Array]:
        """Return where a stream's key lies, and where the number of a run's first sample."""
        at = self._streams.setdefault(stream, len(self._streams))
        if at == KEY_BLOCK * len(self._keys):
            self._keys.append(module().zeros(KEY_BLOCK, "int64"))
        self._written = self._written._replace(step=-1)  # a new stream has no key yet
        place: Array = self._keys[at // KEY_BLOCK][at % KEY_BLOCK : at % KEY_BLOCK + 1]
        return place, self._sample

    def write(self, env: Env) -> None:
        """Write the keys and the sample of a run, for the calls that follow."""
        if env.sample != self._written.sample:
            self._sample.fill(env.sample)
        if (env.seed, env.step) != (self._written.seed, self._written.step):
            numbers = [key(env.seed, stream, env.step) for stream in self._streams]
            for block, keys in enumerate(self._keys):
                some = np.array(numbers[block * KEY_BLOCK : (block + 1) * KEY_BLOCK], np.uint64)
                arrays.copy(keys[: len(some)], some.view(np.int64))
        self._written = env


def random_places(context: CallContext, stream: str) -> tuple[Array, Array]:
    """Return `DeviceRandomKeys.places` of the rank that has this context."""
    if context.random_keys is None:
        context.random_keys = DeviceRandomKeys(context.env)
    return context.random_keys.places(stream)


# -- errors ------------------------------------------------------------------------------------


class DeferredErrors:
    """Ids out of range, which a kernel can note but not raise.

    A kernel leaves such an id in the slot of its kind of ids and makes NaN of it; nobody waits for
    that. `check`, called when a step is over, raises what the operator's own computation would.

    Attributes:
        slots: Blocks of float64 on the GPU, which stay where they are, with an id of each kind; 0,
            which is within, means none.
    """

    def __init__(self) -> None:
        self.slots: list[Any] = []
        self._kinds: dict[tuple[str, int], int] = {}

    def place(self, what: str, count: int) -> Array:
        """Return where kernels leave an id outside 0..count-1."""
        at = self._kinds.setdefault((what, count), len(self._kinds))
        if at == ERROR_BLOCK * len(self.slots):
            self.slots.append(module().zeros(ERROR_BLOCK, "float64"))
        slot: Array = self.slots[at // ERROR_BLOCK][at % ERROR_BLOCK : at % ERROR_BLOCK + 1]
        return slot

    def check(self, ids: Sequence[Array] | None = None) -> None:
        """Raise IndexError, once, for an id that was out of range.

        Args:
            ids: What is in the slots, on the host; None: wait for the work so far, and read them.
        """
        found = [*map(arrays.on_host, self.slots)] if ids is None else ids
        for (what, count), at in self._kinds.items():
            wrong = found[at // ERROR_BLOCK][at % ERROR_BLOCK]
            if wrong != 0:
                for block in self.slots:
                    block.fill(0)
                raise IndexError(f"{what} {wrong:g} is outside 0..{count - 1}")


def error_place(context: CallContext, what: str, count: int) -> Array:
    """Return `DeferredErrors.place` of the rank that has this context."""
    if context.errors is None:
        context.errors = DeferredErrors()
    return context.errors.place(what, count)


# -- scratch -----------------------------------------------------------------------------------

# Memory that kernels use within a call, and any later call may write over: a rank's calls follow
# one another on its stream, so all share it, and those on the stream beside it share other pieces.
# By size, each a power of two: together no more than twice the largest that was needed.
_PIECES: WeakKeyDictionary[CallContext, dict[tuple[int, bool], Array]] = WeakKeyDictionary()


def scratch(context: CallContext, types: Sequence[TensorType]) -> list[Array]:
    """Return uninitialised arrays of these types, side by side in a rank's scratch."""
    size, pieces, needs = piece_bytes(types), _PIECES.setdefault(context, {}), PLANNED.get()
    if needs is not None:
        needs.pieces.add(size)
    place = size, context.beside
    if place not in pieces:
        pieces[place] = module().empty(size, "uint8")
    at, placed = 0, []
    for type_ in types:
        piece = pieces[place][at : at + type_.nbytes]
        placed.append(piece.view(type_.dtype).reshape(type_.shape))
        at += to_cache_lines(type_.nbytes)
    return placed


def piece_bytes(types: Sequence[TensorType]) -> int:
    """Return the size of the piece in which such arrays lie."""
    return 1 << (sum(to_cache_lines(type_.nbytes) for type_ in types) - 1).bit_length()


def scratch_held(context: CallContext) -> int:
    """Return the bytes of all scratch pieces of a rank."""
    return sum(size for size, _ in _PIECES.get(context, {}))
