"""Program that the tests of `pure_nccl` start on every rank; tests/fake_nccl.py stands in."""

from __future__ import annotations

import os

import numpy as np
import pytest

from runtime.chainermn import Communicator, create_communicator
from symgraph.arrays import device, loaded
from symgraph.context import gpu
from symgraph.errors import DTypeError, RunError
from tests.chainermn.checks import CHECKS
from tests.fake_nccl import fake_nccl
from tests.runtime.mpi_ranks import say


def check_cards(comm: Communicator) -> None:
    xp = loaded()
    ranks = range(comm.size)
    for dtype in ("float32", "float64", "int32"):
        own = xp.full((2, 3), comm.rank + 1, dtype)
        total = comm.allreduce(own)
        assert (total.get() == sum(r + 1 for r in ranks)).all()
        assert total.dtype == own.dtype
        comm.allreduce(own, own)
        assert (own.get() == total.get()).all()
    for root in ranks:
        given = xp.arange(5.0) + root if comm.rank == root else None
        assert comm.bcast(given, root).get().tolist() == [root + i for i in range(5)]
    rows = comm.allgather(xp.full(3, comm.rank))
    assert [row.get().tolist() for row in rows] == [[r] * 3 for r in ranks]
    params = {"w": xp.full((2, 2), comm.rank), "host": np.full(3, comm.rank)}
    comm.bcast_data(params)
    assert (params["w"].get() == 0).all()
    assert (params["host"] == 0).all()
    grads = {"w": xp.full((2, 2), 1.0 + comm.rank), "b": None if comm.rank else xp.ones(3),
             "host": np.full(3, 2.0 * comm.rank)}  # fmt: skip
    means = comm.multi_node_mean_grad(grads, {"b": xp.zeros(3)})
    count = comm.size
    assert np.allclose(means["w"].get(), sum(1.0 + r for r in ranks) / count)
    assert np.allclose(means["b"].get(), 1 / count)
    assert np.allclose(means["host"], sum(2.0 * r for r in ranks) / count)
    with pytest.raises(DTypeError, match="an array of a GPU is not carried here"):
        comm.send(xp.ones(2), (comm.rank + 1) % count)
    with pytest.raises(RunError, match=r"but rank 0 allreduce of GPUs of float64\(\d,\)"):
        comm.allreduce(xp.ones(comm.rank + 1))


def main() -> None:
    """Arrays of GPUs go by NCCL, and others as ever."""
    world = create_communicator("pure_nccl", timeout=60)
    CHECKS["check_mean_gradients"](world)
    with device(gpu(world.rank)).use():
        check_cards(world)
        check_cards(world.split(0, -world.rank))
    say("cards joined")


if __name__ == "__main__":
    with fake_nccl(int(os.environ["PMI_SIZE"])):
        main()
