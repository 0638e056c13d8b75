"""Transports: how ranks hand arrays to each other and hear of failures.

May import backends.
Start reading: base.py, the protocol; threads/cluster.py is the shortest transport.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.transports.base import (
    GRACE_SECONDS,
    HEARTBEAT_SECONDS,
    TIMEOUT_SECONDS,
    Cluster,
    Failure,
    Ticket,
    Transport,
    launched_by_mpi,
    wrong_size,
)
from runtime.transports.mpi.cluster import MpiCluster
from runtime.transports.nccl.cluster import NcclCluster
from runtime.transports.threads.cluster import ThreadCluster
from symgraph.core.context import Context, gpu
from symgraph.core.errors import ConfigError, nearest

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


def _threads(size: int, timeout: float, devices: Sequence[Context], heartbeat: float) -> Cluster:
    return ThreadCluster(size, timeout)


def _mpi(size: int, timeout: float, devices: Sequence[Context], heartbeat: float) -> Cluster:
    cluster = MpiCluster(timeout, heartbeat)
    if cluster.size != size:
        started = cluster.size
        cluster.close()
        raise wrong_size("mpi", size, started)
    return cluster


def _nccl(size: int, timeout: float, devices: Sequence[Context], heartbeat: float) -> Cluster:
    return NcclCluster(timeout, devices or [gpu(i) for i in range(size)], heartbeat)


# name -> factory(ranks, seconds a single wait may take, devices of the ranks, seconds of silence)
TRANSPORTS: dict[str, Callable[[int, float, Sequence[Context], float], Cluster]] = {
    "threads": _threads,
    "mpi": _mpi,
    "nccl": _nccl,
}


def make_cluster(
    name: str,
    size: int,
    timeout: float = TIMEOUT_SECONDS,
    devices: Sequence[Context] = (),
    heartbeat: float = HEARTBEAT_SECONDS,
) -> Cluster:
    """Make a cluster of `size` ranks over the transport of this name.

    Args:
        name: A key of `TRANSPORTS`.
        size: The number of ranks.
        timeout: Seconds that a single wait may take.
        devices: The ranks' devices, for a transport between GPUs; by default gpu(0), gpu(1), ...
        heartbeat: Seconds of silence after which a rank in another process counts as lost.

    Raises:
        ConfigError: The name is unknown, or the transport cannot join so many ranks.
    """
    if name not in TRANSPORTS:
        raise ConfigError(f"transport {name!r} is unknown: {nearest(name, TRANSPORTS)}")
    return TRANSPORTS[name](size, timeout, devices, heartbeat)
