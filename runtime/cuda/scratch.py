"""Scratch: memory that a rank's kernels use within a call, and any later call may write over.

A rank's calls follow one another on its stream, so all can have the same. There is a piece for each
power of two, at a fixed address: together no more than twice the largest needed.
"""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from runtime.native.base import Clock
from symgraph import arrays
from symgraph.types import Array, Shape

_PIECES: WeakKeyDictionary[Clock, dict[int, Array]] = WeakKeyDictionary()


def scratch(clock: Clock, shape: Shape, dtype: Any) -> Array:
    """An array in the memory of the rank that has this clock; what is in it is anything."""
    count = math.prod(shape) * np.dtype(dtype).itemsize
    size, pieces = piece_bytes(count), _PIECES.setdefault(clock, {})
    if size not in pieces:
        pieces[size] = arrays.loaded().empty(size, "uint8")
    found: Array = pieces[size][:count].view(dtype).reshape(shape)
    return found


def piece_bytes(count: int) -> int:
    """Of the piece in which so many bytes lie."""
    return 1 << (count - 1).bit_length()


def held(clock: Clock) -> int:
    """Bytes of all pieces of a rank."""
    return sum(_PIECES.get(clock, {}))
