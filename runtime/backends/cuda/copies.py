"""Copies of many arrays on one GPU in one launch: messages between two contexts that share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from runtime.backends.cuda.base import BLOCK, block_table, function, launch
from runtime.backends.device.table import BoundCall

PIECE = 1 << 14  # bytes that a block copies


def kernel() -> Callable[..., None]:
    """Return the kernel, loaded on the current GPU."""
    return function("copies", "copy_pieces", real="float32")


def bind(places: Iterable[tuple[int, int, int]]) -> BoundCall:
    """Bind the copies of contiguous arrays; places: for each, its address, the target's, bytes."""
    table = block_table(places, PIECE, 1)
    return launch(kernel(), (len(table),), (BLOCK,), table)
