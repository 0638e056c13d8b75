"""Transports: how ranks hand arrays to each other, by name."""

from __future__ import annotations

from collections.abc import Callable

from runtime.transports.base import (
    GRACE_SECONDS,
    TIMEOUT_SECONDS,
    Cluster,
    Failure,
    Ticket,
    Transport,
    launched_by_mpi,
)
from runtime.transports.threads import ThreadCluster
from symgraph.errors import ConfigError, nearest

__all__ = [
    "GRACE_SECONDS",
    "TIMEOUT_SECONDS",
    "TRANSPORTS",
    "Cluster",
    "Failure",
    "ThreadCluster",
    "Ticket",
    "Transport",
    "launched_by_mpi",
    "make_cluster",
]


def _threads(size: int, timeout: float) -> Cluster:
    return ThreadCluster(size, timeout)


def _mpi(size: int, timeout: float) -> Cluster:
    from runtime.transports.mpi import MpiCluster  # on demand: mpi4py is optional

    cluster = MpiCluster(timeout)
    if cluster.size != size:
        started = cluster.size
        cluster.close()
        raise ConfigError(
            f"transport 'mpi': the run has {size} ranks, but {started} processes were started; "
            f"use mpiexec -n {size}"
        )
    return cluster


# name -> factory(ranks, seconds a single wait may take)
TRANSPORTS: dict[str, Callable[[int, float], Cluster]] = {"threads": _threads, "mpi": _mpi}


def make_cluster(name: str, size: int, timeout: float = TIMEOUT_SECONDS) -> Cluster:
    """Make the cluster of `size` ranks that transport `name` joins; `ConfigError` if unknown."""
    if name not in TRANSPORTS:
        raise ConfigError(f"transport {name!r} is unknown: {nearest(name, TRANSPORTS)}")
    return TRANSPORTS[name](size, timeout)
