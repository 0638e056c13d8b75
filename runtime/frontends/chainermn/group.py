"""Groups of ranks: the calls that communicators consist of, over any transport.

A subgroup shares its parent's channels. All ranks make the same calls in the same order, so
messages cannot be confused. In a wrong program the groups' numbers or the tags differ, which is an
error; so are different calls of one group's ranks, which first tell each other what they call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from runtime.frontends.chainermn.messages import Bytes, Message, begun
from runtime.transports.base import Ticket, Transport
from symgraph.core.errors import DTypeError, RunError
from symgraph.core.types import Array

HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)
Given = ParamSpec("Given")
Result = TypeVar("Result")
COLLECTIVE = (1 << 20) - 1  # the tag of collective calls; others are smaller


class Group(ABC):
    """Some ranks, numbered from 0, of which this process or thread is one."""

    rank: int
    size: int
    ranks: Sequence[int]  #: their numbers among all ranks, by which errors name them

    def require_same(self, calls: Sequence[str]) -> None:
        """Raise RunError unless all ranks have come to the same call; calls: by rank."""
        for rank, call in zip(self.ranks, calls, strict=True):
            if call != calls[0]:
                raise RunError(
                    f"rank {rank} calls {call}, but rank {self.ranks[0]} {calls[0]}: all ranks "
                    "make the same calls, of the same types, in the same order"
                )

    def wrong_message(self, src: int, head: int, tag: int) -> RunError:
        """Return the error for a tag that is not that of the next message of `src`."""
        actual = "is of a collective call" if head == COLLECTIVE else f"has tag {head}"
        wanted = "a collective call has begun" if tag == COLLECTIVE else f"tag {tag} is asked for"
        return RunError(
            f"rank {self.ranks[self.rank]}: the next message of rank {self.ranks[src]} {actual}, "
            f"but {wanted}; receive messages in the order they are sent"
        )

    @abstractmethod
    def send(self, message: Message, dst: int, tag: int) -> None:
        """Send a message; its arrays may change afterwards. A large one waits for its receiver."""

    @abstractmethod
    def recv(self, src: int, tag: int, out: Array | None = None) -> Message:
        """Return the next message of `src`, in `out` if passed; RunError if tag or type differ."""

    @abstractmethod
    def bcast(self, message: Message | None, root: int) -> Message:
        """Return the root's message."""

    def gather(self, message: Message, root: int) -> list[Message] | None:
        """Return all ranks' messages at the root, elsewhere None."""
        sources = range(self.size) if self.rank == root else ()
        messages = self._exchange("gather", root, {root: message}, sources)
        return messages if self.rank == root else None

    def allgather(self, message: Message) -> list[Message]:
        """Return all ranks' messages."""
        everyone = range(self.size)
        return self._exchange("allgather", None, dict.fromkeys(everyone, message), everyone)

    def scatter(self, messages: Sequence[Message] | None, root: int) -> Message:
        """Return the message that the root has for this rank."""
        (message,) = self._exchange("scatter", root, dict(enumerate(messages or ())), [root])
        return message

    def alltoall(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that all ranks have for this one."""
        return self._exchange("alltoall", None, dict(enumerate(messages)), range(self.size))

    @abstractmethod
    def _exchange(
        self,
        kind: str,
        root: int | None,
        outgoing: Mapping[int, Message],
        sources: Sequence[int],
    ) -> list[Message]:
        """Run a collective: send messages, by destination, and return those of the sources.

        kind: see `CollectiveLayout`; an allgather sends the same message to all. A rank's message
        to itself is copied.
        """

    @abstractmethod
    def allreduce(self, array: Array, out: Array) -> None:
        """Put the sum of all ranks' arrays into `out`, which may be the array."""

    @abstractmethod
    def reduce(self, array: Array, root: int) -> None:
        """Replace the root's array by the sum over all ranks; the others' arrays are undefined."""

    @abstractmethod
    def reduce_scatter(self, array: Array) -> Array:
        """Return this rank's part of the sum of a vector that the number of ranks divides."""

    @abstractmethod
    def split(self, color: int, key: int) -> Group:
        """Return the group of the ranks with the same colour, in the order of their keys."""


def summed_as(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which arrays are summed: float16, which MPI lacks, in float32."""
    if dtype.kind == "b":
        raise DTypeError("a sum over ranks: bool has no sum; cast it to int32")
    return SINGLE if dtype == HALF else dtype


def call_text(
    verb: str, root: int | None = None, dtype: Any = None, shape: tuple[int, ...] = ()
) -> str:
    """Return a collective call as errors show it: "allreduce of float64(3,)"."""
    text = verb if root is None else f"{verb} of root {root}"
    return text if dtype is None else f"{text} of {dtype}{shape}"


def _whole_call(
    method: Callable[Concatenate[PeerGroup, Given], Result],
) -> Callable[Concatenate[PeerGroup, Given], Result]:
    """Decorate a call of a group: what fails once it has ended is not said to be in it."""

    @wraps(method)
    def call(group: PeerGroup, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        result = method(group, *args, **kwargs)
        group.transport.waiting_for("")
        return result

    return call


class PeerGroup(Group):
    """A group whose calls are messages between pairs; sums are in the order of ranks."""

    def __init__(
        self, transport: Transport, ranks: Sequence[int] = (), numbers: list[int] | None = None
    ) -> None:
        """ranks: of the transport, all by default. numbers: counts the groups made so far."""
        self.transport = transport
        self.ranks = tuple(ranks) or tuple(range(transport.size))
        self.rank, self.size = self.ranks.index(transport.rank), len(self.ranks)
        self._numbers = [0] if numbers is None else numbers
        self._number = self._numbers[0]  # the transport's tag

    @_whole_call
    def send(self, message: Message, dst: int, tag: int) -> None:
        self.transport.waiting_for(f"a send to rank {self.ranks[dst]} with tag {tag}")
        for ticket in self._post(message, dst, tag):
            ticket.wait()

    @_whole_call
    def recv(self, src: int, tag: int, out: Array | None = None) -> Message:
        self.transport.waiting_for(f"a receive from rank {self.ranks[src]} with tag {tag}")
        return self._recv(src, tag, out)

    def _recv(self, src: int, tag: int, out: Array | None = None) -> Message:
        there, number, receive = self.ranks[src], self._number, self.transport.recv
        about = np.empty(2, np.int64)
        receive(about, there, number)
        size, head = about.tolist()
        if head != tag:
            raise self.wrong_message(src, head, tag)
        first: Bytes = np.empty(size, np.uint8)
        receive(first, there, number)
        message, rest = begun(first, out)
        for part in rest:
            receive(part, there, number)
        return message

    @_whole_call
    def bcast(self, message: Message | None, root: int) -> Message:
        self._meet(call_text("bcast", self.ranks[root]))
        return self._bcast(message, root)

    def _bcast(self, message: Message | None, root: int) -> Message:
        if self.rank == root:
            assert message is not None
            self._swap({r: message for r in range(self.size) if r != root}, ())
            return message
        return self._recv(root, COLLECTIVE)

    @_whole_call
    def _exchange(
        self,
        kind: str,
        root: int | None,
        outgoing: Mapping[int, Message],
        sources: Sequence[int],
    ) -> list[Message]:
        self._meet(call_text(kind, root if root is None else self.ranks[root]))
        return self._swap(outgoing, sources)

    @_whole_call
    def allreduce(self, array: Array, out: Array) -> None:
        self._meet(call_text("allreduce", None, array.dtype, array.shape))
        terms = self._swap({0: Message.of(array)}, [] if self.rank else range(self.size))
        out[...] = self._bcast(None if self.rank else Message.of(_sum(terms)), 0).data

    @_whole_call
    def reduce(self, array: Array, root: int) -> None:
        self._meet(call_text("reduce", self.ranks[root], array.dtype, array.shape))
        here = self.rank == root
        terms = self._swap({root: Message.of(array)}, range(self.size) if here else [])
        if here:
            array[...] = _sum(terms)

    @_whole_call
    def reduce_scatter(self, array: Array) -> Array:
        self._meet(call_text("reduce_scatter", None, array.dtype, array.shape))
        parts = [Message.of(part) for part in np.split(array, self.size)]
        return _sum(self._swap(dict(enumerate(parts)), range(self.size)))

    @_whole_call
    def split(self, color: int, key: int) -> PeerGroup:
        mine = Message.of(np.array([color, key, self._numbers[0]]))
        self._meet("split")
        rows = [m.data.tolist() for m in self._tell_all(mine)]
        self._numbers[0] = max(row[2] for row in rows) + 1
        same = sorted((row[1], r) for r, row in enumerate(rows) if row[0] == color)
        return PeerGroup(self.transport, [self.ranks[r] for _, r in same], self._numbers)

    def _meet(self, text: str) -> None:
        """Let all ranks tell each other what they call; RunError if they differ."""
        self.transport.waiting_for(text)
        mine = Message.of(np.frombuffer(text.encode(), np.uint8))
        texts = [m.data.tobytes().decode() for m in self._tell_all(mine)]
        self.require_same(texts)

    def _tell_all(self, message: Message) -> list[Message]:
        everyone = range(self.size)
        return self._swap(dict.fromkeys(everyone, message), everyone)

    def _post(self, message: Message, dst: int, tag: int) -> list[Ticket]:
        """Start a message; return the tickets to wait for before its arrays may change."""
        there, number, send = self.ranks[dst], self._number, self.transport.send
        first, rest = message.parts()
        send(np.array([first.size, tag]), there, number)
        send(first, there, number)
        return [send(part, there, number) for part in rest]

    def _swap(self, outgoing: Mapping[int, Message], sources: Sequence[int]) -> list[Message]:
        """Send and receive at the same time, so that ranks do not wait for each other."""
        tickets: list[Ticket] = []
        for dst, message in outgoing.items():
            if dst != self.rank:
                tickets += self._post(message, dst, COLLECTIVE)
        messages = [
            outgoing[src].copy() if src == self.rank else self._recv(src, COLLECTIVE)
            for src in sources
        ]
        for ticket in tickets:
            ticket.wait()
        return messages


def _sum(terms: Sequence[Message]) -> Array:
    """Add up messages in the order of ranks."""
    first, *rest = [term.data for term in terms]
    total: Array = first.astype(summed_as(first.dtype))
    for term in rest:
        total += term
    return total.astype(first.dtype, copy=False)
