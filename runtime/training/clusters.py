"""The clusters of a command: one for each transport and number of devices, made on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Self

from runtime.transports import Cluster, launched_by_mpi, make_cluster
from runtime.transports.base import T, error_text, failure_of
from runtime.transports.mpi.cluster import MpiCluster
from symgraph.app.config import Config
from symgraph.core.context import Context
from symgraph.core.errors import SymgraphError

AUTO, NCCL, THREADS = "auto", "nccl", "threads"


def transport_of(config: Config, environ: Mapping[str, str]) -> str:
    """Return the name of a config's transport: `auto` is mpi under mpiexec, else threads."""
    if config.transport != AUTO:
        return config.transport
    return "mpi" if launched_by_mpi(environ) else THREADS


class Clusters:
    """The clusters of configs; `close` or `leave` ends all of them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self._clusters: dict[tuple[str, int, tuple[Context, ...]], Cluster] = {}

    def read(self, read: Callable[[], T]) -> T:
        """Return what `read` does; the other MPI ranks, if there are any, hear of its error."""
        try:
            return read()
        except Exception as error:
            if launched_by_mpi(self.environ):
                with suppress(SymgraphError):  # no MPI: the ranks do not wait for each other
                    cluster = MpiCluster()
                    self._clusters["", cluster.size, ()] = cluster
                    cluster.abort(failure_of(cluster.rank, "", error))
            raise

    def beside(self, configs: Mapping[str, Config]) -> dict[str, Config]:
        """Return the configs of a command; those of one device beside larger ones use threads.

        Under mpiexec rank 0 runs these by itself, while the other ranks wait for it.
        """
        several = any(len(config.devices) > 1 for config in configs.values())
        return {
            name: config.model_copy(update={"transport": THREADS})
            if several and len(config.devices) == 1 and config.transport == AUTO
            else config
            for name, config in configs.items()
        }

    def of_rank(self, config: Config) -> Cluster | None:
        """Return the cluster of a config; None if rank 0 runs it by itself and this is another."""
        elsewhere = any(0 not in cluster.ranks for cluster in self._clusters.values())
        return None if elsewhere and config.transport == THREADS else self.of(config)

    def of(self, config: Config) -> Cluster:
        """Return the cluster that a config runs on; ConfigError if there can be none."""
        name, size = transport_of(config, self.environ), len(config.devices)
        devices = tuple([Context.parse(d) for d in config.devices]) if name == NCCL else ()
        key = name, size, devices
        if key not in self._clusters:
            self._clusters[key] = make_cluster(
                name, size, config.timeout, devices, config.heartbeat
            )
        return self._clusters[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.close()
        for cluster in self._clusters.values():
            cluster.close()

    def close(self) -> None:
        """Close all clusters; every process must call this; PeerFailed if another one failed."""
        for cluster in self._clusters.values():
            cluster.complete()

    def leave(self, status: int, error: BaseException) -> None:
        """Leave all clusters after an error with this exit status; see Cluster.leave."""
        why = "" if isinstance(error, KeyboardInterrupt) else error_text(error)
        for cluster in self._clusters.values():
            cluster.leave(status, why)
