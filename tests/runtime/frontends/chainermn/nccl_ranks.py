"""Program that the tests of `pure_nccl` start on every rank; tests/fakes/fake_nccl.py stands in."""

from __future__ import annotations

import os
import sys
import tempfile

import numpy as np
import pytest

from runtime.backends.device.arrays import device, loaded
from runtime.frontends.chainermn import (
    Communicator,
    create_communicator,
    create_multi_node_checkpointer,
)
from symgraph.core.context import gpu
from symgraph.core.errors import DTypeError, RunError
from symgraph.frontend.optimizer import Adam
from tests.fakes.fake_nccl import fake_nccl, lose_network
from tests.runtime.frontends.chainermn.checks import CHECKS
from tests.runtime.frontends.chainermn.test_training import trained
from tests.runtime.transports.mpi_ranks import say


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
    grads = {
        "w": xp.full((2, 2), 1.0 + comm.rank),
        "b": None if comm.rank else xp.ones(3),
        "host": np.full(3, 2.0 * comm.rank),
    }
    means = comm.multi_node_mean_grad(grads, {"b": xp.zeros(3)})
    count = comm.size
    assert np.allclose(means["w"].get(), sum(1.0 + r for r in ranks) / count)
    assert np.allclose(means["b"].get(), 1 / count)
    assert np.allclose(means["host"], sum(2.0 * r for r in ranks) / count)
    with pytest.raises(DTypeError, match="an array of a GPU is not carried here"):
        comm.send(xp.ones(2), (comm.rank + 1) % count)
    first = comm.allgather_obj(create_communicator("flat").rank)[0]
    with pytest.raises(RunError, match=rf"but rank {first} allreduce of GPUs of float64\(\d,\)"):
        comm.allreduce(xp.ones(comm.rank + 1))


def check_training(comm: Communicator) -> None:
    """As one process on a CPU; and what a checkpoint holds of a card goes back there."""
    adam = Adam(learning_rate=0.1)
    want = trained(comm.split(comm.rank, 0), 2, adam)
    for name, array in trained(comm, 2, adam, gpu(comm.rank)).items():
        np.testing.assert_allclose(array, want[name], rtol=2e-4, atol=1e-5)
    with tempfile.TemporaryDirectory() as folder:
        saved = create_multi_node_checkpointer("run", comm, folder)
        own = {"w": loaded().full(3, comm.rank)}
        saved.save(1, own)
        own["w"].fill(-1)
        assert saved.maybe_load(own) is not None
    assert own["w"].get().tolist() == [comm.rank] * 3


def main() -> None:
    """Arrays of GPUs go by NCCL, and others as ever."""
    world = create_communicator("pure_nccl", timeout=60)
    CHECKS["check_mean_gradients"](world)
    with device(gpu(world.rank)).use():
        check_training(world)
        check_cards(world)
        check_cards(world.split(0, -world.rank))
    say("cards joined")


def network() -> None:
    """It is lost in the middle of a sum; nobody handles anything."""
    world = create_communicator("pure_nccl", timeout=60)
    with device(gpu(world.rank)).use():
        ones = loaded().ones(3)
        world.allreduce(ones)
        if world.rank == 1:
            lose_network(KeyError(6))  # as CuPy 13 has it
        world.allreduce(ones)  # ends with undefined values
        world.allreduce(ones)


if __name__ == "__main__":
    with fake_nccl(int(os.environ["PMI_SIZE"])):
        {"main": main, "network": network}[sys.argv[1]]()
