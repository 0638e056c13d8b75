"""A /dev/shm that MPI does not fit into is named before MPI starts."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from runtime.transports.mpi.cluster import _require_shared_memory
from symgraph.core.errors import RunError

MIB = 1 << 20


@pytest.mark.parametrize(
    ("total", "free", "ranks", "fits"),
    [
        (64, 64, 8, True),
        (64, 64, 9, False),
        (24, 18, 2, True),  # another rank of this run has made its part
        (64, 6, 2, False),  # full of what killed runs have left
        (1, 1, 2, False),
    ],
)
def test_too_little_shared_memory_is_one_line(monkeypatch, total, free, ranks, fits):
    """F12: with a /dev/shm of 1 MB, mpiexec ended with status 135 (a bus error), without a word."""
    found = SimpleNamespace(
        f_frsize=4096, f_blocks=total * MIB // 4096, f_bavail=free * MIB // 4096
    )
    monkeypatch.setattr(os, "statvfs", lambda path: found)
    environment = {"MPI_LOCALNRANKS": str(ranks), "MPI_LOCALRANKID": "0"}
    others = environment | {"MPI_LOCALRANKID": "1"}
    if fits:
        _require_shared_memory(environment)
        _require_shared_memory(others)
        return
    with pytest.raises(RunError, match=rf"^/dev/shm has {free} of {total} MiB left, but MPI needs"):
        _require_shared_memory(environment)
    with pytest.raises(SystemExit, match="1"):  # the first rank has said it
        _require_shared_memory(others)


def test_other_launchers_are_not_asked(monkeypatch):
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_frsize=1, f_blocks=1, f_bavail=1)
    )
    _require_shared_memory({})
