"""Communicators: arrays and objects between ranks that run one program each (ChainerMN).

    comm = create_communicator("flat")                         # under mpiexec
    ThreadCluster(2).run(lambda end: work(create_communicator("flat", end)))     # in one process

Every wait is bounded, and ends when another rank fails. Messages between two ranks arrive in the
order sent; a tag is a check. Arrays are never pickled, not even inside objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime.backends.device.arrays import module_of
from runtime.frontends.chainermn.group import COLLECTIVE, Group, summed_as
from runtime.frontends.chainermn.means import MEANS, Groups, mean
from runtime.frontends.chainermn.messages import Message, pickled, unpickled
from symgraph.chainermn.rank_view import join
from symgraph.core.errors import ConfigError, DTypeError, GraphError, RunError
from symgraph.core.number_checks import whole_number
from symgraph.core.types import Array
from symgraph.frontend.symbol import Symbol, from_json

MPI_INTS = 1 << 31  # colours and keys of a split are smaller


class Communicator:
    """A rank's view of all ranks (chainermn.CommunicatorBase).

    `intra_*` count ranks of one node (machine), `inter_*` count nodes.
    """

    def __init__(self, name: str, group: Group, node: str) -> None:
        self.name = name
        self._group, self._node = group, node
        self._nodes = [unpickled(m) for m in group.allgather(pickled(node))]
        self._made: Groups | None = None
        if name == "two_dimensional" and len(set(Counter(self._nodes).values())) > 1:
            raise ConfigError(
                "communicator 'two_dimensional' needs as many ranks on every node, but there are "
                f"{dict(Counter(self._nodes))}; use 'hierarchical'"
            )

    # -- who is there ------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def size(self) -> int:
        return self._group.size

    @property
    def intra_rank(self) -> int:
        return self._nodes[: self.rank].count(self._node)

    @property
    def intra_size(self) -> int:
        return self._nodes.count(self._node)

    @property
    def inter_rank(self) -> int:
        return [*dict.fromkeys(self._nodes)].index(self._node)

    @property
    def inter_size(self) -> int:
        return len(set(self._nodes))

    def split(self, color: int, key: int) -> Communicator:
        """Return a communicator of the ranks with the same colour (0 or more), ordered by key."""
        self._check_split(color, key)
        return Communicator(self.name, self._group.split(color, key), self._node)

    # -- arrays ------------------------------------------------------------------------------

    def send(self, data: Any, dest: int, tag: int = 0) -> None:
        """Send an array, or a tuple of arrays; a large one waits until `dest` receives it."""
        self._check_peer("send to", dest, tag)
        self._group.send(Message.of(data), dest, tag)

    def recv(self, source: int, tag: int = 0, out: Array | None = None) -> Any:
        """Return the next array or tuple that `source` sent; RunError if its tag differs.

        out: an array to receive into, so that none is made; RunError if its type differs.
        """
        self._check_peer("receive from", source, tag)
        return self._group.recv(source, tag, _writable(out)).data

    def bcast(self, data: Any = None, root: int = 0) -> Any:
        """Return the root's array or tuple on every rank."""
        self._check_rank("bcast from", root)
        return self._group.bcast(Message.of(data) if self.rank == root else None, root).data

    def gather(self, data: Any, root: int = 0) -> tuple[Any, ...] | None:
        """Return what each rank gives at the root, None elsewhere. Shapes and dtypes may differ."""
        self._check_rank("gather to", root)
        found = self._group.gather(Message.of(data), root)
        return None if found is None else tuple([m.data for m in found])

    def allgather(self, data: Any) -> tuple[Any, ...]:
        """Return what each rank gives, on every rank."""
        return tuple([m.data for m in self._group.allgather(Message.of(data))])

    def scatter(self, data: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Return element `rank` of the root's sequence."""
        return self._group.scatter(self._each("scatter", data, root), root).data

    def alltoall(self, data: Sequence[Any]) -> tuple[Any, ...]:
        """Return what each rank has for this one: element `rank` of its sequence."""
        messages = self._each("alltoall", data, self.rank)
        assert messages is not None
        return tuple([m.data for m in self._group.alltoall(messages)])

    def allreduce(self, data: Any, out: Array | None = None) -> Any:
        """Return the sum of all ranks' arrays, which have the same shape and dtype.

        out: receives the sum, and may be the array itself; by default a new array.
        """
        (array,) = Message.of((data,)).arrays
        summed_as(array.dtype)  # before anybody waits
        total = np.empty_like(array) if out is None else _writable(out)
        assert total is not None
        if (total.dtype, total.shape) != (array.dtype, array.shape):
            raise RunError(
                f"allreduce: the array is {array.dtype}{array.shape}, but `out` is "
                f"{total.dtype}{total.shape}"
            )
        self._group.allreduce(array, total)
        return total

    # -- objects -----------------------------------------------------------------------------

    def send_obj(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send any object that can be pickled; see `send`."""
        self._check_peer("send to", dest, tag)
        self._group.send(pickled(obj), dest, tag)

    def recv_obj(self, source: int, tag: int = 0) -> Any:
        """Receive an object; see `recv`."""
        self._check_peer("receive from", source, tag)
        return unpickled(self._group.recv(source, tag))

    def bcast_obj(self, obj: Any = None, root: int = 0) -> Any:
        """Broadcast an object; see `bcast`."""
        self._check_rank("bcast from", root)
        return unpickled(self._group.bcast(pickled(obj) if self.rank == root else None, root))

    def gather_obj(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Gather objects; see `gather`."""
        self._check_rank("gather to", root)
        found = self._group.gather(pickled(obj), root)
        return None if found is None else [unpickled(m) for m in found]

    def allgather_obj(self, obj: Any) -> list[Any]:
        """Gather objects on every rank; see `allgather`."""
        return [unpickled(m) for m in self._group.allgather(pickled(obj))]

    def scatter_obj(self, objs: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Scatter objects; see `scatter`."""
        self._check_rank("scatter from", root)
        messages = None
        if self.rank == root:
            messages = [pickled(obj) for obj in self._checked("scatter_obj", objs)]
        return unpickled(self._group.scatter(messages, root))

    def allreduce_obj(self, obj: Any) -> Any:
        """Return the sum of all ranks' objects, by `+` in the order of ranks."""
        first, *rest = self.allgather_obj(obj)
        for other in rest:
            first = first + other
        return first

    # -- models ------------------------------------------------------------------------------

    def bcast_data(self, params: Mapping[str, Array]) -> None:
        """Overwrite every rank's parameters with those of rank 0; names and types must be equal."""
        names = sorted(params)
        self.require_same("bcast_data", {n: (params[n].shape, str(params[n].dtype)) for n in names})
        mine = Message(tuple([np.ascontiguousarray(params[n]) for n in names]), False)
        given = self._group.bcast(mine if self.rank == 0 else None, 0)
        for name, array in zip(names, given.arrays, strict=True):
            params[name][...] = array

    def multi_node_mean_grad(
        self, grads: Mapping[str, Array | None], params: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Return the means of gradients over all ranks, by name, in the arrays where writeable.

        params: if passed, a gradient that is None counts as zeros of its parameter's type
        (ChainerMN's zero_fill); otherwise it must be None on all ranks and is left out.
        """
        names = sorted(grads)
        arrays: dict[str, Array] = {}
        for name in names:
            array = grads[name]
            if array is None and params is not None:
                if name not in params:
                    raise GraphError(
                        f"multi_node_mean_grad: the gradient {name!r} is None, but `params` has "
                        "no parameter of that name"
                    )
                array = _zeros_like(params[name])
            if array is not None:
                arrays[name] = _gradient(name, array)
        self.require_same("multi_node_mean_grad", {n: self._type(a) for n, a in arrays.items()})
        self._mean(list(arrays.values()))
        return arrays

    allreduce_grad = multi_node_mean_grad  # ChainerMN's older name, a mean as well

    def _mean(self, arrays: Sequence[Array]) -> None:
        mean(self._groups(), arrays, *MEANS[self.name])

    def _type(self, array: Array) -> tuple[Any, ...]:
        """Return what must be equal on all ranks."""
        return array.shape, str(array.dtype)

    # -- checks ------------------------------------------------------------------------------

    def _groups(self) -> Groups:
        """Return the groups, made when first needed: only two kinds of communicators use all."""
        if self._made is None:
            intra = self._group.split(self.inter_rank, self.rank)
            inter = self._group.split(self.intra_rank, self.rank)
            self._made = Groups(self._group, intra, inter)
        return self._made

    def require_same(self, verb: str, mine: dict[str, Any]) -> None:
        """Raise the same GraphError on every rank unless all give the same types."""
        all_, ranks = self.allgather_obj(mine), self._group.ranks
        for rank, theirs in zip(ranks, all_, strict=True):
            for name in (*all_[0], *theirs):
                here, there = (table.get(name, "nothing") for table in (all_[0], theirs))
                if here != there:
                    raise GraphError(
                        f"{verb}: {name!r} is {there} on rank {rank}, but {here} on rank {ranks[0]}"
                    )

    def _check_split(self, color: int, key: int) -> None:
        for what, number in (("colour", color), ("key", key)):
            whole_number(number, f"split: the {what} of rank {self.rank}", RunError)
        if not 0 <= color < MPI_INTS:
            raise RunError(
                f"split: rank {self.rank} gives colour {color}; colours are 0 or more, and below "
                f"{MPI_INTS}"
            )
        if not -MPI_INTS <= key < MPI_INTS:
            raise RunError(f"split: rank {self.rank} gives key {key}; MPI's ints have 32 bits")

    def _check_peer(self, verb: str, peer: int, tag: int) -> None:
        self._check_rank(verb, peer)
        if peer == self.rank:
            raise RunError(
                f"rank {peer} cannot {verb} itself: rank must be different from communicator rank, "
                "otherwise deadlock occurs"
            )
        whole_number(tag, f"rank {self.rank}: the tag", RunError)
        if not 0 <= tag < COLLECTIVE:
            raise RunError(f"tag {tag} is not in 0..{COLLECTIVE - 1}")

    def _check_rank(self, verb: str, peer: int) -> None:
        whole_number(peer, f"rank {self.rank} cannot {verb}: the rank", RunError)
        if not 0 <= peer < self.size:
            raise RunError(
                f"rank {self.rank} cannot {verb} rank {peer}: there are ranks 0..{self.size - 1}"
            )

    def _checked(self, verb: str, data: Sequence[Any] | None) -> Sequence[Any]:
        """Return the data, which has an element for each rank."""
        if data is None or len(data) != self.size:
            count = 0 if data is None else len(data)
            raise GraphError(f"{verb}: {count} elements are given for {self.size} ranks")
        return data

    def _each(self, verb: str, data: Sequence[Any] | None, root: int) -> list[Message] | None:
        self._check_rank(f"{verb} from", root)
        if self.rank != root:
            return None
        return [Message.of(x) for x in self._checked(verb, data)]


def join_ranks(symbol: Symbol, comm: Communicator) -> list[Symbol | None]:
    """Join what each rank describes to one network (see symgraph.chainermn.rank_view.join).

    Every rank gets the same result, or the same error, before anything runs.

    Raises:
        GraphError: what a rank gives is no symbol, or messages do not fit each other.
    """
    given = symbol.tojson() if isinstance(symbol, Symbol) else None
    texts = comm.allgather_obj(given)
    if None in texts:
        raise GraphError(
            f"join_ranks: rank {texts.index(None)} gives no symbol; every rank needs one"
        )
    return join([from_json(text) for text in texts])


def _writable(out: Array | None) -> Array | None:
    if out is not None and not (out.flags.c_contiguous and out.flags.writeable):
        raise RunError("`out` must be C-contiguous and writeable: use a fresh array and copy")
    return out


def _gradient(name: str, given: Any) -> Array:
    """Return a gradient as an array, which a sum by numpy is not; DTypeError if it has no mean."""
    array: Array = np.asarray(given) if isinstance(given, np.generic) else given
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        array = array.copy()
    kind = getattr(array, "dtype", type(array).__name__)
    if getattr(kind, "kind", None) != "f":
        raise DTypeError(
            f"multi_node_mean_grad: {name!r} is {kind}, but means are of arrays of float numbers"
        )
    return array


def _zeros_like(array: Array) -> Array:
    """Return zeros on the device of the array."""
    zeros: Array = module_of(array).zeros_like(array)
    return zeros
