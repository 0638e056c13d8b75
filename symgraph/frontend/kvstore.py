"""Stores by name, as MXNet's scripts create them (`mx.kvstore`).

In MXNet a store adds the gradients of several devices up. Here the plan does: a store is only the
name of a way that a module accepts, and this process is the only worker.
"""

from __future__ import annotations

from dataclasses import dataclass

from symgraph.core.errors import ConfigError, nearest

TYPES = (
    "local",
    "device",
    "local_allreduce_cpu",
    "local_allreduce_device",
    "local_update_cpu",
    "nccl",
)


@dataclass(frozen=True)
class KVStore:
    """The name of a store, for `fit` and `init_optimizer` (`mx.kvstore.KVStore`)."""

    type: str
    #: The number of this worker.
    rank: int = 0
    #: The number of workers.
    num_workers: int = 1


def create(name: str = "local") -> KVStore:
    """Name a store (`mx.kvstore.create`); ConfigError for one that is not known."""
    return create_store(name)


def create_store(store: str | KVStore) -> KVStore:
    """Return a store unchanged, or one of this name; ConfigError for anything else."""
    if isinstance(store, KVStore):
        return store
    if isinstance(store, str) and store.startswith(("dist", "p3", "horovod", "byteps")):
        raise ConfigError(
            f"kvstore={store!r}: a module runs in one process; for several, launch symgraph or "
            "runtime.chainermn over MPI (docs/cluster.md, docs/from_chainermn.md)"
        )
    if store not in TYPES:
        raise ConfigError(f"kvstore={store!r}; {nearest(str(store), TYPES)}")
    return KVStore(store)
