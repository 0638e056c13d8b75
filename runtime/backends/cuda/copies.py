"""Copies of many arrays in one launch, whatever they hold."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.backends.cuda.base import BLOCK, function, launch
from runtime.backends.cuda.tables import table_of
from runtime.backends.device import arrays
from symgraph.core.types import Array

BYTES = 1 << 14  # of a block


def copy_all(pairs: Sequence[tuple[Array, Array]]) -> None:
    """Copy contiguous arrays of the GPU in use: (target, source) of one size each.

    No target is read or written by another pair.
    """
    pieces = [(arrays.address(to), arrays.address(of), to.nbytes) for to, of in pairs if to.nbytes]
    if pieces:
        table = table_of(arrays.loaded(), tuple(pieces), BYTES, 1)
        run = function("copies", "copy_blocks", real="float32")
        call = launch(run, (len(table),), (BLOCK,), table)
        call.function(*call.args)
