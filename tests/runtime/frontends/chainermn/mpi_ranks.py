"""Program that the MPI tests of communicators start on every rank: `... mpi_ranks CASE`."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time

import numpy as np

import symgraph as sg
from runtime.frontends.chainermn import (
    create_communicator,
    create_multi_node_checkpointer,
    create_multi_node_iterator,
    join_ranks,
)
from runtime.planning.options import Options
from runtime.transports import make_cluster
from symgraph.core.errors import GraphError, RunError
from tests.helpers.pipelines import judge, make_plan, run_step
from tests.runtime.frontends.chainermn.checks import CHECKS, data
from tests.runtime.frontends.chainermn.test_checkpointer import trained as train_and_save
from tests.runtime.frontends.chainermn.test_data import Serial
from tests.runtime.frontends.chainermn.test_training import trained
from tests.symgraph.chainermn.test_rank_view import devices, pair, ring, ring_case


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def contract() -> None:
    world = create_communicator("flat", timeout=60)
    for check in CHECKS.values():
        check(world)
    for name in ("naive", "hierarchical", "two_dimensional"):
        node = str(world.rank // 2 if world.size % 2 == 0 else world.rank)
        CHECKS["check_mean_gradients"](create_communicator(name, node=node))
    from mpi4py import MPI

    CHECKS["check_collectives"](create_communicator("naive", MPI.COMM_WORLD.Dup()))
    say("contract kept")


def is_interrupted() -> None:
    """Rank 1 stops with an error that has no words."""
    comm = create_communicator("flat", timeout=60)
    if comm.rank == 1:
        raise KeyboardInterrupt
    comm.recv(1, 7)


def fails() -> None:
    """Rank 1 raises; nobody handles anything."""
    comm = create_communicator("flat", timeout=60)
    comm.allreduce(np.ones(1))
    if comm.rank == 1:
        _ = 1 / 0
    comm.recv(1, 7)


def wrong_tag() -> None:
    comm = create_communicator("flat", timeout=60)
    if comm.rank == 0:
        comm.send(data(3), 1, 4)
        comm.recv(1)
    elif comm.rank == 1:
        comm.recv(0, 5)
    comm.bcast(data(1))


def ends_early() -> None:
    """Rank 1 ends well, while the others wait for it."""
    comm = create_communicator("flat", timeout=60)
    if comm.rank != 1:
        comm.bcast(data(3), 0)


def wait_for_each_other() -> None:
    """One in a collective, one for a message."""
    comm = create_communicator("flat", timeout=60)
    comm.recv(1, 7) if comm.rank == 0 else comm.gather(data(1))


def wait_in_two_communicators() -> None:
    """Rank 0 in one of ranks 0 and 2, these in that of all."""
    comm = create_communicator("flat", timeout=60)
    half = comm.split(comm.rank % 2, comm.rank)
    (half if comm.rank == 0 else comm).allreduce(data(1))


def splits_for_ever() -> None:
    comm = create_communicator("flat", timeout=60)
    try:
        for _ in range(100_000):
            comm.split(0, comm.rank)
    except RunError as error:
        say(str(error))


def train() -> None:
    """Data parallel steps, and an iterator that rank 0 reads for all."""
    comm = create_communicator("flat", timeout=60)
    weights = trained(comm, 3, sg.optimizer.SGD(0.1, momentum=0.9))
    serial = trained(comm.split(comm.rank, 0), 3, sg.optimizer.SGD(0.1, momentum=0.9))
    if comm.rank == 0:  # whose weights all ranks begin with
        for name, array in serial.items():
            np.testing.assert_allclose(weights[name], array, rtol=2e-4, atol=1e-5)
    own = Serial(20, 8, 1) if comm.rank == 0 else None
    rows = np.concatenate(list(create_multi_node_iterator(own, comm)))
    assert np.array_equal(rows, np.concatenate(list(Serial(20, 8, 1))))
    text = b"".join(weights[name].tobytes() for name in sorted(weights)) + rows.tobytes()
    say(f"digest {hashlib.sha256(text).hexdigest()}")


def dies_in_a_save() -> None:
    """Rank 1 is killed while it writes iteration 6, which rank 0 has written."""

    def die(saver, count: int) -> None:
        if count == 6 and comm.rank == 1:
            partial = saver.folder / ".step-00000006.partial"
            partial.mkdir()
            (partial / "rank-1.safetensors").write_bytes(b"half")
            while not (saver.folder.parent / "rank-0" / "step-00000006").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

    comm = create_communicator("flat", timeout=60)
    train_and_save(comm, sys.argv[2], 10, 2, die)


def goes_on() -> None:
    """The run that died ends as one that did not."""
    comm = create_communicator("flat", timeout=60)
    place = create_multi_node_checkpointer("adam", comm, sys.argv[2]).maybe_load({})
    say(f"goes on at {place.iteration}")
    for folder in (sys.argv[2], sys.argv[3]):
        weights = train_and_save(comm, folder, 10, 2)
        text = b"".join(weights[name].tobytes() for name in sorted(weights))
        say(f"digest {hashlib.sha256(text).hexdigest()}")


def local() -> None:
    """Each rank describes its own part; together they are run. A wrong tag is seen by all."""
    comm = create_communicator("naive", timeout=60)
    rank, size = comm.rank, comm.size
    out, *_ = join_ranks(ring(size)[rank], comm)
    case = ring_case(out)
    with make_cluster("mpi", size) as cluster:
        made = make_plan(case, Options(devices(size)))
        result = run_step(made, case, cluster)[rank]
    want = judge(case)
    if rank == 0:
        np.testing.assert_allclose(result.outputs[0], want.outputs[0], rtol=1e-10)
    for name, grad in result.grads.items():
        np.testing.assert_allclose(grad, want.grads[name], rtol=1e-10)
    say(f"{len(result.grads)} gradients")
    ends = pair({"tag": 3}, {})
    try:
        join_ranks(ends[rank] if rank < 2 else sg.sym.Variable("x"), comm)
    except GraphError as error:
        say(str(error))


def well() -> None:
    """All that ends well."""
    contract()
    train()
    local()


CASES = {
    "well": well,
    "fails": fails,
    "is-interrupted": is_interrupted,
    "wrong-tag": wrong_tag,
    "dies-in-a-save": dies_in_a_save,
    "goes-on": goes_on,
    "ends-early": ends_early,
    "wait-in-two-communicators": wait_in_two_communicators,
    "splits-for-ever": splits_for_ever,
    "wait-for-each-other": wait_for_each_other,
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
