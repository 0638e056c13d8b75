"""Program that the NCCL tests start on every rank.

`tests/fakes/fake_nccl.py` stands in for the cards, of which this machine has as many as ranks, and
NCCL.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partitioner.base.collectives import CollectiveLayout, Group
from runtime.backends.device.arrays import device
from runtime.backends.device.settings import CUDA_AWARE_MPI
from runtime.backends.parcels import Parcel
from runtime.transports import Cluster, Transport, make_cluster
from runtime.transports.base import CollectiveTicket, Ticket
from runtime.transports.mpi.cluster import MpiCluster
from runtime.transports.nccl.cluster import NcclCluster
from symgraph.core.context import Context, gpu
from symgraph.core.errors import SymgraphError
from symgraph.run import main as run_command
from tests.contracts.stalls import STALLS
from tests.contracts.transport import (
    CHECKS,
    PATIENT,
    check_both_send_first,
    check_collectives,
    check_messages_that_travel_together,
    check_non_contiguous_source,
    check_order_of_a_channel,
    check_sender_overwrites_after_wait,
    check_types,
)
from tests.fakes.fake_cupy import ndarray
from tests.fakes.fake_nccl import NcclCommunicator, NcclError, fake_nccl, lose_network
from tests.runtime.transports.mpi_ranks import kill, say
from tests.runtime.transports.nccl_runs import chosen

RANKS = int(os.environ.get("PMI_SIZE", "1"))
MESSAGES = (
    check_order_of_a_channel,
    check_types,
    check_non_contiguous_source,
    check_both_send_first,
    check_sender_overwrites_after_wait,
    check_messages_that_travel_together,
    check_collectives,
)
CARDS = [gpu(rank) for rank in range(RANKS)]


class _OnCard:
    """An endpoint, or its collectives, whose arrays are handed on as a card's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def collectives(self) -> Any:
        return _OnCard(self._inner.collectives)

    def join(self, groups: Sequence[Group]) -> None:
        self._inner.join(groups, range(RANKS))

    def start(
        self, blocks: CollectiveLayout, out: np.ndarray, into: np.ndarray
    ) -> CollectiveTicket:
        if self._inner.module(blocks.ranks) is not np:
            out, into = ndarray(out), ndarray(into)
        return self._inner.start(blocks, out, into)

    def send(self, array: np.ndarray, dst: int, tag: int) -> Ticket:
        return self._inner.send(ndarray(array), dst, tag)

    def recv(self, out: np.ndarray, src: int, tag: int) -> None:
        self._inner.recv(ndarray(out), src, tag)

    def send_all(self, parcel: Parcel, dst: int, tags: Sequence[int]) -> Ticket:
        return self._inner.send_all(Parcel([*map(ndarray, parcel.arrays)]), dst, tags)

    def recv_all(self, parcel: Parcel, src: int, tags: Sequence[int]) -> None:
        self._inner.recv_all(Parcel([*map(ndarray, parcel.arrays)]), src, tags)


class OnCards(Cluster):
    """A cluster whose work is each rank's card's."""

    def __init__(self, inner: Cluster) -> None:
        self.inner, self.size = inner, inner.size

    @property
    def ranks(self) -> Sequence[int]:
        return self.inner.ranks

    def run(self, work: Callable[[Transport], Any]) -> list[Any]:
        def on_card(end: Transport) -> Any:
            ranks = range(end.size)
            with device(gpu(end.rank)).use():
                end.open([(a, b) for a in ranks for b in ranks if a != b])
                return work(_OnCard(end))

        return self.inner.run(on_card)

    def close(self) -> None:
        self.inner.close()


def contract() -> None:
    """Every rule, for arrays of cards."""
    for check in (*CHECKS, *STALLS):
        check(lambda timeout: OnCards(NcclCluster(timeout, CARDS)))
    say("contract kept")


def by_mpi() -> None:
    """Messages and collectives of cards, given to MPI as they are or not."""
    for aware, how in (("1", "as they are"), ("0", "staged")):
        os.environ[CUDA_AWARE_MPI] = aware
        for check in MESSAGES:
            check(lambda timeout: OnCards(MpiCluster(timeout)))
        say(f"messages {how}")


def steps(folder: str) -> None:
    """Every run that was chosen; each rank's arrays go to FOLDER/rank<r>.npz."""
    found: dict[str, np.ndarray] = {}
    with make_cluster("nccl", RANKS, PATIENT, CARDS) as cluster:
        (rank,) = cluster.ranks
        for name, run in chosen(RANKS).items():
            found |= {f"{name}: {key}": array for key, array in run(cluster)[rank].items()}
    np.savez(Path(folder) / f"rank{rank}.npz", **found)


def command(*arguments: str) -> None:
    """The command line."""
    sys.exit(run_command(arguments))


def refused(*devices: str) -> None:
    """What is said of devices that cannot be joined."""
    try:
        make_cluster("nccl", len(devices), PATIENT, [Context.parse(d) for d in devices])
    except SymgraphError as error:
        say(f"{type(error).__name__}: {error}")


def host_array() -> None:
    """Between cards go values of cards only."""
    values = np.ones(3)

    def work(end: Transport) -> None:
        with device(gpu(end.rank)).use():
            end.open([(0, 1)])
            end.send(values, 1, 7) if end.rank == 0 else end.recv(values, 0, 7)

    cluster = NcclCluster(PATIENT, CARDS)
    try:
        cluster.run(work)
    except SymgraphError as error:
        say(str(error))
        cluster.leave(1)


def lost() -> None:
    """Rank 1 dies when it has said what it sends, before it has come."""

    def work(end: Transport) -> None:
        with device(gpu(end.rank)).use():
            end.open([(1, 0)])
            end.waiting_for(f"F{end.rank}.0")
            if end.rank == 1:
                NcclCommunicator.send = lambda *given: None
                end.send(ndarray(np.ones(3)), 0, 7).wait()
                kill()
            end.recv(ndarray(np.ones(3)), 1, 7)

    cluster = NcclCluster(PATIENT, CARDS)
    try:
        cluster.run(work)
    except SymgraphError as error:
        say(str(error))
        cluster.leave(1)


def network() -> None:
    """The network between two ranks is lost, of which only rank 1 is told, if it asks."""

    def work(end: Transport) -> None:
        with device(gpu(end.rank)).use():
            end.open([(1, 0)])
            end.waiting_for(f"F{end.rank}.0")
            if end.rank == 1:
                lose_network(NcclError("NCCL_ERROR_REMOTE_ERROR: there was a network error"))
                end.send(ndarray(np.ones(3)), 0, 7).wait()
            else:
                end.recv(ndarray(np.ones(3)), 1, 7)

    cluster = NcclCluster(PATIENT, CARDS)
    try:
        cluster.run(work)
    except SymgraphError as error:
        say(f"{type(error).__name__}: {error}")
        cluster.leave(1)


CASES: dict[str, Callable[..., None]] = {
    "contract": contract,
    "by-mpi": by_mpi,
    "steps": steps,
    "command": command,
    "refused": refused,
    "no-nccl": refused,
    "host-array": host_array,
    "lost": lost,
    "network": network,
}

if __name__ == "__main__":
    case, *words = sys.argv[1:]
    with fake_nccl(RANKS, available=case != "no-nccl"):
        CASES[case](*words)
