"""Contract of communicators: checks that run on every rank, of threads and of MPI alike."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.frontends.chainermn import Communicator
from symgraph.core.errors import DTypeError, GraphError, RunError

LARGE = 50_000  # float64: 400 kB, more than what is sent without waiting
DTYPES = ["int8", "uint8", "bool", "int32", "int64", "float16", "float32", "float64"]


def same(got, want) -> None:
    assert isinstance(got, np.ndarray)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert got.flags.aligned
    assert np.array_equal(got, want)


def data(*shape: int, rank: int = 0, dtype: str = "float64") -> np.ndarray:
    return (np.arange(np.prod(shape, dtype=int)) % 97 + rank).astype(dtype).reshape(shape)


def check_ring(comm: Communicator) -> None:
    """Point to point: 0-d, empty, ragged, large; arrays, tuples of one and two, objects."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1:
        return
    for dtype in DTYPES:
        for shape in ((), (18,), (0, 3), (2, 1, 4)):
            comm.send(data(*shape, rank=comm.rank, dtype=dtype), after, 3)
            same(comm.recv(before, 3), data(*shape, rank=before, dtype=dtype))
    comm.send((data(2, rank=comm.rank), data(3, 1, dtype="int32")), after)
    first, second = comm.recv(before)
    same(first, data(2, rank=before))
    same(second, data(3, 1, dtype="int32"))
    comm.send([data(2).T], after)
    assert isinstance(comm.recv(before), tuple)
    comm.send_obj({"rank": comm.rank, "x": data(2, 3)}, after)
    got = comm.recv_obj(before)
    assert got["rank"] == before
    same(got["x"], data(2, 3))
    for sender in range(comm.size):
        if sender == comm.rank:
            comm.send((data(LARGE), data(3)), after)
        if sender == before:
            same(comm.recv(before)[0], data(LARGE))


def check_arrays_to_receive_into(comm: Communicator) -> None:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size > 1:
        for n in (3, LARGE):
            for sender in range(comm.size):
                if sender == comm.rank:
                    comm.send(data(n, rank=sender), after)
                if sender == before:
                    out = np.empty(n)
                    assert comm.recv(before, out=out) is out
                    same(out, data(n, rank=before))
        comm.send(data(3), after)
        with pytest.raises(RunError, match=r"message is float64\(3,\), but `out` is float64\(4,\)"):
            comm.recv(before, out=np.empty(4))
    for n in (3, LARGE):
        mine, out = data(n), np.empty(n)
        assert comm.allreduce(mine, out) is out
        same(out, data(n) * comm.size)
        comm.allreduce(mine, mine)
        same(mine, out)
        mine, out = data(n), data(n + 3)
        comm.allreduce(mine, mine[:])
        same(mine, data(n) * comm.size)
        comm.allreduce(out[:n], out[3:])  # MPICH ended the process: its buffers overlapped
        same(out[3:], data(n) * comm.size)
    with pytest.raises(RunError, match="must be C-contiguous and writeable"):
        comm.allreduce(np.ones((2, 3)), np.ones((3, 2)).T)
    with pytest.raises(RunError, match="but `out` is float32"):
        comm.allreduce(np.ones(2), np.ones(2, "float32"))


def check_small_messages_do_not_wait(comm: Communicator) -> None:
    """And their arrays may be changed at once."""
    others = [r for r in range(comm.size) if r != comm.rank]
    for other in others:
        array = data(100, rank=comm.rank)
        comm.send(array, other)
        array[:] = -1
    for other in others:
        same(comm.recv(other), data(100, rank=other))


def check_collectives(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    for root in range(size):
        for sent in (data(4, 5), data(LARGE), data(0, 2), data(dtype="int64")):
            same(comm.bcast(sent if rank == root else None, root), sent)
        found = comm.gather(data(rank + 1, rank, rank=rank), root)
        if rank == root:
            for i, part in enumerate(found):
                same(part, data(i + 1, i, rank=i))
        else:
            assert found is None
        parts = [data(i, i + 1, rank=root, dtype="float32") for i in range(size)]
        got = comm.scatter(parts if rank == root else None, root)
        same(got, data(rank, rank + 1, rank=root, dtype="float32"))
    for i, part in enumerate(comm.allgather(data(10, rank + 1, rank=rank))):
        same(part, data(10, i + 1, rank=i))
    for i, part in enumerate(comm.alltoall([data(rank, i, rank=rank) for i in range(size)])):
        same(part, data(i, rank, rank=i))
    got = comm.alltoall([(data(3, dtype="int8"), data(3, rank=i)) for i in range(size)])
    same(got[-1][1], data(3, rank=rank))
    same(comm.alltoall([data(LARGE, rank=rank)] * size)[-1], data(LARGE, rank=size - 1))
    rows = data(size, 2)  # an array is a sequence, of its rows; its truth value was asked for
    same(comm.scatter(rows), rows[rank])
    same(comm.scatter_obj(rows), rows[rank])
    same(comm.alltoall(rows)[-1], rows[rank])


def check_sums(comm: Communicator) -> None:
    p = comm.size
    for dtype in ("int32", "int64", "float16", "float32", "float64"):
        for n in (1, 18, 32):
            mine = (np.arange(n) + comm.rank).astype(dtype)
            same(comm.allreduce(mine), (np.arange(n) * p + p * (p - 1) // 2).astype(dtype))
            assert mine[0] == comm.rank
    same(comm.allreduce(np.array(comm.rank)), np.array(p * (p - 1) // 2))
    same(comm.allreduce(data(LARGE)), data(LARGE) * p)
    with pytest.raises(DTypeError, match="bool has no sum"):
        comm.allreduce(np.ones(2, bool))


def check_objects(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    obj = {"name": "x", "array": data(3, 2, dtype="int64")}
    got = comm.bcast_obj(obj if rank == size - 1 else None, size - 1)
    same(got["array"], obj["array"])
    assert comm.allgather_obj((rank, "é")) == [(r, "é") for r in range(size)]
    assert comm.gather_obj(rank) == (list(range(size)) if rank == 0 else None)
    assert comm.scatter_obj([[i] for i in range(size)] if rank == 0 else None) == [rank]
    assert comm.allreduce_obj([rank]) == list(range(size))
    assert comm.allreduce_obj(rank) == size * (size - 1) // 2


def check_splits(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    half = comm.split(rank % 2, -rank)
    same_color = [r for r in range(size) if r % 2 == rank % 2][::-1]
    assert (half.rank, half.size) == (same_color.index(rank), len(same_color))
    assert half.allgather_obj(rank) == same_color
    again = half.split(0, half.rank)
    assert again.allreduce_obj([rank]) == same_color
    same(comm.allreduce(np.ones(2)), np.full(2, float(size)))
    with pytest.raises(RunError, match="gives colour -1; colours are 0 or more"):
        comm.split(-1, 0)
    with pytest.raises(RunError, match="gives colour 2147483648; colours are 0 or more, and below"):
        comm.split(1 << 31, 0)
    with pytest.raises(RunError, match="gives key 2147483648; MPI's ints have 32 bits"):
        comm.split(0, 1 << 31)
    alone = comm.split(rank, 0)
    assert (alone.rank, alone.size) == (0, 1)
    same(alone.bcast(data(2)), data(2))
    same(alone.allreduce(data(2)), data(2))


def check_mean_gradients(comm: Communicator) -> None:
    """X9, and gradients of several dtypes and shapes, some larger than others."""
    rank, size = comm.rank, comm.size
    shapes = {"a": (3, 2), "b": (5,), "c": (1,), "d": (LARGE,)}
    for _ in range(2):
        grads = {
            n: np.full(s, rank + i, "float32" if n == "b" else "float64")
            for i, (n, s) in enumerate(shapes.items())
        }
        got = comm.multi_node_mean_grad(grads)
        for i, (name, shape) in enumerate(shapes.items()):
            assert got[name] is grads[name]
            same(grads[name], np.full(shape, (size - 1) / 2 + i).astype(grads[name].dtype))
    params = {"w": np.zeros((2, 2), "float32"), "v": np.zeros(3)}
    mine = {"w": None if rank % 2 else np.full((2, 2), rank + 2, "float32"), "v": None}
    got = comm.allreduce_grad(mine, params)
    want = sum(r + 2 for r in range(0, size, 2)) / size
    np.testing.assert_allclose(got["w"], np.full((2, 2), want), rtol=1e-6)
    same(got["v"], np.zeros(3))
    assert comm.multi_node_mean_grad({"v": None}) == {}
    # A scalar's gradient is no array but a number of numpy's, which was taken for a GPU's array.
    got = comm.multi_node_mean_grad({"s": np.ones(3, "float32").sum()})
    same(got["s"], np.full((), 3, "float32"))
    with pytest.raises(DTypeError, match="'v' is int32, but means are of arrays of float numbers"):
        comm.multi_node_mean_grad({"v": np.ones(2, "int32")})
    with pytest.raises(DTypeError, match="'v' is list, but means are of arrays"):
        comm.multi_node_mean_grad({"v": [1.0]})


def check_parameters(comm: Communicator) -> None:
    params = {"w": data(2, 3, rank=comm.rank), "b": data(LARGE, rank=comm.rank, dtype="int32")}
    comm.bcast_data(params)
    same(params["w"], data(2, 3))
    same(params["b"], data(LARGE, dtype="int32"))


def check_mistakes(comm: Communicator) -> None:
    """What all ranks get wrong alike is an error on all of them, and nobody waits."""
    rank, size = comm.rank, comm.size
    with pytest.raises(RunError, match="itself: rank must be different from communicator rank"):
        comm.send(data(1), rank)
    with pytest.raises(RunError, match=rf"rank {rank} cannot receive from rank {size}: there are"):
        comm.recv(size)
    with pytest.raises(RunError, match="cannot bcast from rank -1"):
        comm.bcast(data(1), -1)
    with pytest.raises(RunError, match=rf"rank {rank} cannot send to: the rank is 1.0 but must be"):
        comm.send(data(1), 1.0)
    with pytest.raises(RunError, match=rf"split: the colour of rank {rank} is None but must be a"):
        comm.split(None, 0)
    with pytest.raises(DTypeError, match="an array of complex128 is not carried"):
        comm.allgather(np.ones(2, complex))
    with pytest.raises(GraphError, match=rf"alltoall: {size + 1} elements are given for {size}"):
        comm.alltoall([data(1)] * (size + 1))
    if size > 1:
        with pytest.raises(GraphError, match="'w' is None, but `params` has no parameter of that"):
            comm.multi_node_mean_grad({"w": None}, {"v": data(2)})
        message = "'w' is nothing on rank 1, but"
        with pytest.raises(GraphError, match=message):
            comm.multi_node_mean_grad({} if rank == 1 else {"w": data(2)})
    same(comm.allreduce(np.ones(1)), np.full(1, float(size)))


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}
