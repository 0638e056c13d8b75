"""MPI processes with a card each as ranks: values of GPUs go from card to card by NCCL.

Processes start, meet and fail as `mpi.py` says; ranks on the host are welcome among the others.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence

from runtime.backends.device import settings
from runtime.backends.device.arrays import device, loaded
from runtime.transports.base import T, Transport, wrong_size
from runtime.transports.mpi.cluster import MpiCluster
from runtime.transports.mpi.meeting import exchange_all
from runtime.transports.nccl.communicators import NcclCommunicators, load_nccl
from runtime.transports.nccl.endpoint import NcclTransport
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError, SymgraphError

__all__: list[str] = []


class NcclCluster(MpiCluster):
    """All processes that `mpiexec` started, each with its device."""

    _wires: NcclCommunicators | None = None

    def __init__(self, timeout: float, devices: Sequence[Context]) -> None:
        """devices: of each rank. ConfigError, the same on all ranks, if they cannot be used so."""
        settings.set_cuda_connections()
        super().__init__(timeout)
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
        self._wires = NcclCommunicators(nccl, self.rank, on_card, self._waiter)
        self._waiter.alarm(self._wires.abort)
        self._waiter.watch(self._wires.error)

    def run(self, work: Callable[[Transport], T]) -> list[T]:
        """See `Cluster.run`."""

        def settled(end: Transport) -> T:
            result = work(end)
            assert isinstance(end, NcclTransport)
            end.settle()
            return result

        return super().run(settled)

    def _endpoint(self) -> NcclTransport:
        assert self._wires is not None
        return NcclTransport(
            self._mpi,
            self._comm,
            self._waiter,
            self._lifeline,
            self._groups,
            self._staging,
            self._wires,
        )

    def _close(self, timeout: float) -> None:
        super()._close(timeout)
        if self._wires is not None:
            self._wires.close()


def _card(context: Context) -> tuple[str | None, str]:
    """The name of a device's card (None: it has none), and what is wrong."""
    if context.kind == "cpu":
        return None, ""
    try:
        with device(context).use():
            load_nccl()
            return card_name(), ""
    except SymgraphError as error:
        return None, str(error)


def card_name() -> str:
    """A name of the current card that no other one of this machine has."""
    runtime = loaded().cuda.runtime
    return str(runtime.deviceGetPCIBusId(runtime.getDevice()))


def require_cards(
    what: str, devices: Sequence[object], cards: Sequence[tuple[str, str | None, str]]
) -> None:
    """ConfigError unless NCCL can join them. cards: host, card and problem of each rank."""
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
