"""Copies of many arrays on one GPU in one launch, whatever they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from runtime.backends.cuda.base import BLOCK, function, launch
from runtime.backends.cuda.tables import Place, block_table, table_of
from runtime.backends.device import arrays
from runtime.backends.device.table import BoundCall
from symgraph.core.types import Array

PIECE = 1 << 14  # bytes that a block copies


def kernel() -> Callable[..., None]:
    """Return the kernel, loaded on the current GPU."""
    return function("copies", "copy_pieces", real="float32")


def bind(places: Iterable[Place]) -> BoundCall:
    """Bind the copies of contiguous arrays; places: for each, its address, the target's, bytes."""
    return launched(block_table(places, PIECE, 1))


def launched(table: Array) -> BoundCall:
    return launch(kernel(), (len(table),), (BLOCK,), table)


def copy_all(pairs: Sequence[tuple[Array, Array]]) -> None:
    """Copy contiguous arrays of the GPU in use: (target, source) of one size each.

    No target is read or written by another pair.
    """
    places = [(arrays.address(of), arrays.address(to), to.nbytes) for to, of in pairs if to.nbytes]
    if places:
        call = launched(table_of(arrays.loaded(), tuple(places), PIECE, 1))
        call.function(*call.args)
