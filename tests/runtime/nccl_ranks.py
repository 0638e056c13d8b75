"""Program that the NCCL tests start on every rank: `python -m tests.runtime.nccl_ranks CASE`.

`tests/fake_nccl.py` stands in for the cards and for NCCL.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runtime.transports import Cluster, Transport, make_cluster
from runtime.transports.base import Blocks, Ticket
from runtime.transports.nccl import NcclCluster
from symgraph.arrays import device
from symgraph.context import Context, cpu, gpu
from symgraph.errors import ConfigError
from tests.contracts.stalls import STALLS
from tests.contracts.transport import CHECKS, PATIENT
from tests.fake_cupy import ndarray
from tests.fake_nccl import fake_nccl
from tests.runtime.mpi_ranks import say

RANKS = int(os.environ.get("PMI_SIZE", "1"))
CARDS = [gpu(rank) for rank in range(RANKS)]


class _OnCard:
    """An endpoint, and its collectives, whose arrays are handed on as a card's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def collectives(self) -> Any:
        return _OnCard(self._inner.collectives)

    def start(self, blocks: Blocks, out: np.ndarray, into: np.ndarray) -> Ticket:
        return self._inner.start(blocks, ndarray(out), ndarray(into))

    def send(self, array: np.ndarray, dst: int, tag: int) -> Ticket:
        return self._inner.send(ndarray(array), dst, tag)

    def recv(self, out: np.ndarray, src: int, tag: int) -> None:
        self._inner.recv(ndarray(out), src, tag)


class OnCards(Cluster):
    """A cluster whose work is each rank's card's."""

    def __init__(self, inner: Cluster, *, opened: bool) -> None:
        """opened: whether all channels are."""
        self.inner, self.size, self.opened = inner, inner.size, opened

    @property
    def ranks(self) -> Sequence[int]:
        return self.inner.ranks

    def run(self, work: Callable[[Transport], Any]) -> list[Any]:
        def on_card(end: Transport) -> Any:
            ranks = range(end.size)
            with device(gpu(end.rank)).use():
                if self.opened:
                    end.open([(a, b) for a in ranks for b in ranks if a != b])
                return work(_OnCard(end))

        return self.inner.run(on_card)

    def close(self) -> None:
        self.inner.close()


def contract() -> None:
    """Every rule, for arrays of cards: by NCCL."""
    for check in (*CHECKS, *STALLS):
        check(lambda timeout: OnCards(NcclCluster(timeout, CARDS), opened=True))
    say("contract kept")


CASES: dict[str, Callable[[], None]] = {
    "contract": contract,
}

if __name__ == "__main__":
    with fake_nccl(RANKS):
        CASES[sys.argv[1]]()
