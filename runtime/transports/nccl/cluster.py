"""MPI processes with a GPU each as ranks: values go from GPU to GPU by NCCL.

Processes start, meet and fail as in `mpi/cluster.py`; some ranks may be on the host.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence

from runtime.backends.device import settings
from runtime.backends.device.arrays import device, loaded
from runtime.transports.base import HEARTBEAT_SECONDS, T, Transport, wrong_size
from runtime.transports.mpi.cluster import MpiCluster
from runtime.transports.mpi.meeting import exchange_all
from runtime.transports.nccl.communicators import NcclCommunicators, load_nccl
from runtime.transports.nccl.endpoint import NcclTransport
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError, SymgraphError

__all__: list[str] = []


class NcclCluster(MpiCluster):
    """All processes that `mpiexec` started, each with its device."""

    _communicators: NcclCommunicators | None = None

    def __init__(
        self,
        timeout: float,
        devices: Sequence[Context],
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> None:
        """devices: of each rank; the same ConfigError on all ranks if NCCL cannot join them."""
        settings.set_cuda_connections()
        super().__init__(timeout, heartbeat)
        try:
            if len(devices) != self.size:
                raise wrong_size("nccl", len(devices), self.size)
            mine = [platform.node(), *_card(devices[self.rank])]
            cards = exchange_all(self._comm, self._waiter, mine)
            require_cards("transport 'nccl'", devices, cards)
        except SymgraphError:
            self.close()
            raise
        on_card = [card is not None for _, card, _ in cards]
        nccl = load_nccl() if on_card[self.rank] else None
        self._communicators = NcclCommunicators(nccl, self.rank, on_card, self._waiter)
        self._waiter.alarm(self._communicators.abort)
        self._waiter.watch(self._communicators.error)

    def run(self, work: Callable[[Transport], T]) -> list[T]:
        """See `Cluster.run`."""

        def settled(end: Transport) -> T:
            result = work(end)
            assert isinstance(end, NcclTransport)
            end.settle()
            return result

        return super().run(settled)

    def _endpoint(self) -> NcclTransport:
        assert self._communicators is not None
        return NcclTransport(
            self._mpi,
            self._comm,
            self._waiter,
            self._lifeline,
            self._groups,
            self._staging,
            self._communicators,
        )

    def _close(self, timeout: float) -> None:
        super()._close(timeout)
        if self._communicators is not None:
            self._communicators.close()


def _card(context: Context) -> tuple[str | None, str]:
    """Return the name of a device's GPU (None: it has none), and what is wrong."""
    if context.kind == "cpu":
        return None, ""
    try:
        with device(context).use():
            load_nccl()
            return card_name(), ""
    except SymgraphError as error:
        return None, str(error)


def card_name() -> str:
    """Return a name of the current GPU that is unique on this machine."""
    runtime = loaded().cuda.runtime
    return str(runtime.deviceGetPCIBusId(runtime.getDevice()))


def require_cards(
    what: str, devices: Sequence[object], cards: Sequence[tuple[str, str | None, str]]
) -> None:
    """Raise ConfigError unless NCCL can join the ranks' GPUs.

    cards: host, GPU and problem of each rank.
    """
    ranks: dict[tuple[str, str], int] = {}
    for rank, (host, card, problem) in enumerate(cards):
        if problem:
            raise ConfigError(f"{what}, rank {rank}: {problem}")
        if card is None:
            continue
        other = ranks.setdefault((host, card), rank)
        if other != rank:
            raise ConfigError(
                f"{what}: {devices[other]} of rank {other} and {devices[rank]} of rank "
                f"{rank} are one card ({card} of {host}), but NCCL wants one for each rank; use "
                "as many ranks as cards, or transport 'mpi' or 'threads'"
            )
    if not ranks:
        raise ConfigError(
            f"{what} joins cards, but all devices are the host's "
            f"({', '.join(map(str, devices))}); use transport 'mpi'"
        )
