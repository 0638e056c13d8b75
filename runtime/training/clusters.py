"""The clusters of a command: one for each transport and number of devices, made on demand."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.transports import Cluster, launched_by_mpi, make_cluster
from symgraph.app.config import Config
from symgraph.core.context import Context

AUTO, NCCL = "auto", "nccl"


def transport_of(config: Config, environ: Mapping[str, str]) -> str:
    """Return the name of a config's transport: `auto` is mpi under mpiexec, else threads."""
    if config.transport != AUTO:
        return config.transport
    return "mpi" if launched_by_mpi(environ) else "threads"


class Clusters:
    """The clusters of configs; `close` or `leave` ends all of them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self._clusters: dict[tuple[str, int, tuple[Context, ...]], Cluster] = {}

    def of(self, config: Config) -> Cluster:
        """Return the cluster that a config runs on; ConfigError if there can be none."""
        name, size = transport_of(config, self.environ), len(config.devices)
        devices = tuple([Context.parse(d) for d in config.devices]) if name == NCCL else ()
        key = name, size, devices
        if key not in self._clusters:
            self._clusters[key] = make_cluster(name, size, config.timeout, devices)
        return self._clusters[key]

    def close(self) -> None:
        """Close all clusters; every process must call this."""
        for cluster in self._clusters.values():
            cluster.close()

    def leave(self, status: int) -> None:
        """Leave all clusters after a failure with this exit status; see Cluster.leave."""
        for cluster in self._clusters.values():
            cluster.leave(status)
