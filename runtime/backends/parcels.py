"""Parcels: arrays of one device that travel together, as one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.backends.cuda import copies
from runtime.backends.device.arrays import address, copy
from runtime.backends.device.table import BoundCall
from symgraph.core.types import Array


class Parcel:
    """Arrays of one device; between two of one GPU they are copied in one launch.

    Attributes:
        arrays: The arrays.
        types: The shape and dtype of each.
        writable: Whether all can be received into: in C order and not read-only.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        """Look up all that does not change; a GPU loads the kernel of copies now.

        That is while a run is bound: to load it at its first launch would wait for the GPU's work.
        """
        self.arrays = tuple(arrays)
        self.types = tuple([(array.shape, array.dtype) for array in arrays])
        self.writable = all(
            array.flags.c_contiguous and getattr(array.flags, "writeable", True) for array in arrays
        )
        self._card: int | None = None  # the GPU on which all can be copied at once
        self._places: tuple[int, ...] = ()  # the addresses there
        first: Any = arrays[0]
        if len(arrays) > 1 and self.writable and not isinstance(first, np.ndarray):
            self._card, self._places = first.device.id, tuple(map(address, arrays))
            copies.kernel()
        self._ways: dict[tuple[int, ...], BoundCall] = {}  # addresses of a source -> the copy

    def fill(self, source: Parcel) -> None:
        """Copy the arrays of another parcel, which are of the same types."""
        if self._card is None or source._card != self._card:
            for target, array in zip(self.arrays, source.arrays, strict=True):
                copy(target, array)
            return
        way = self._ways.get(source._places)
        if way is None:
            sizes = [array.nbytes for array in self.arrays]
            way = copies.bind(zip(source._places, self._places, sizes, strict=True))
            self._ways[source._places] = way
        way.function(*way.args)
