"""`create_communicator`: a communicator by name, over MPI processes or a cluster's threads."""

from __future__ import annotations

import socket
from typing import Any

from runtime.backends.device.arrays import require
from runtime.frontends.chainermn.communicator import Communicator
from runtime.frontends.chainermn.group import Group, PeerGroup
from runtime.frontends.chainermn.hook import world_context
from runtime.frontends.chainermn.means import MEANS
from runtime.frontends.chainermn.mpi_group import MpiGroup
from runtime.frontends.chainermn.nccl import NcclCommunicator
from runtime.transports.base import TIMEOUT_SECONDS
from runtime.transports.mpi.cluster import context_of
from runtime.transports.nccl.communicators import load_nccl
from symgraph.core.context import gpu
from symgraph.core.errors import ConfigError, SymgraphError, nearest

NAMES = (*MEANS, "pure_nccl")


def create_communicator(
    name: str = "flat",
    mpi_comm: Any = None,
    *,
    node: str | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Communicator:
    """Make a communicator of all ranks (chainermn.create_communicator).

    Args:
        name: How gradients are summed: `naive` (one by one), `flat` (in large messages),
            `hierarchical` (on each node, between nodes, on each node), `two_dimensional` (the same,
            each rank a part) or `pure_nccl` (as flat, but arrays of GPUs by NCCL: see nccl.py).
        mpi_comm: An mpi4py communicator, or a rank's endpoint in ThreadCluster.run. By default all
            processes that mpiexec started, none of which outlives another's failure (see hook.py).
        node: The machine's name, for intra_rank and inter_rank.
        timeout: Seconds that a single wait may take.

    Raises:
        ConfigError: The name is unknown, or something that `pure_nccl` needs is missing.
    """
    if name not in NAMES:
        raise ConfigError(f"no communicator {name!r}; {nearest(name, NAMES)}")
    node = node or socket.gethostname()
    if name == "pure_nccl":
        return _nccl_communicator(mpi_comm, node, timeout)
    return Communicator(name, _group(mpi_comm, timeout), node)


def _group(mpi_comm: Any, timeout: float) -> Group:
    if mpi_comm is None:
        return MpiGroup(world_context(timeout))
    if hasattr(mpi_comm, "Get_rank"):
        return MpiGroup(context_of(mpi_comm, timeout))
    return PeerGroup(mpi_comm)


def _nccl_communicator(mpi_comm: Any, node: str, timeout: float) -> Communicator:
    """Start MPI, then CUDA: MPI forks, and what CUDA holds does not outlive a fork."""
    try:
        load_nccl()
        communicator = NcclCommunicator(_group(mpi_comm, timeout), node)
        require(gpu(0))
        return communicator
    except SymgraphError as error:
        raise ConfigError(
            f"communicator 'pure_nccl' needs GPUs and the gpu extra: {error}; or use one of "
            f"{', '.join(MEANS)}"
        ) from None
