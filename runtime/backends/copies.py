"""Copies of many arrays that lie on one device."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.backends.cuda import copies
from runtime.backends.device.arrays import Device, copy
from symgraph.core.types import Array


def copy_all(here: Device, pairs: Iterable[tuple[Array, Array]]) -> None:
    """Copy arrays of a device, on a GPU by one launch: (target, source) of one type each.

    No target is read or written by another pair.
    """
    together: list[tuple[Array, Array]] = []
    for target, source in pairs:
        if here.is_host or not (target.flags.c_contiguous and source.flags.c_contiguous):
            copy(target, source)
        else:
            together.append((target, source))
    if together:
        copies.copy_all(together)
