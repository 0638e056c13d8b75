"""Scratch: memory that a rank's kernels use within a call, and any later call may write over.

A rank's calls follow one another on its stream, so all can have the same. There is a piece for each
power of two, at a fixed address: together no more than twice the largest needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from partitioner.memory.packing import to_cache_lines
from runtime.backends.cuda.base import PLANNED, module
from runtime.backends.device.table import CallContext
from symgraph.core.types import Array, TensorType

_PIECES: WeakKeyDictionary[CallContext, dict[int, Array]] = WeakKeyDictionary()


def scratch(clock: CallContext, types: Sequence[TensorType]) -> list[Array]:
    """Arrays side by side in the memory of the rank that has this clock; they hold anything."""
    size, pieces, needs = piece_bytes(types), _PIECES.setdefault(clock, {}), PLANNED.get()
    if needs is not None:
        needs.pieces.add(size)
    if size not in pieces:
        pieces[size] = module().empty(size, "uint8")
    at, found = 0, []
    for type_ in types:
        found.append(pieces[size][at : at + type_.nbytes].view(type_.dtype).reshape(type_.shape))
        at += to_cache_lines(type_.nbytes)
    return found


def piece_bytes(types: Sequence[TensorType]) -> int:
    """Of the piece in which such arrays lie."""
    return 1 << (sum(to_cache_lines(type_.nbytes) for type_ in types) - 1).bit_length()


def held(clock: CallContext) -> int:
    """Bytes of all pieces of a rank."""
    return sum(_PIECES.get(clock, {}))
