"""Groups of ranks: the calls that communicators are made of, over any transport.

A subgroup shares its parent's channels. Every rank makes the same calls in the same order, so
messages cannot be mistaken for one another. Should a program be wrong, the groups' numbers or the
tags differ, and that is an error; so are different calls of the ranks of one group, which first
tell each other what they call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime.frontends.chainermn.messages import Bytes, Message, begun
from runtime.transports.base import Ticket, Transport
from symgraph.core.errors import DTypeError, RunError
from symgraph.core.types import Array

HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)
COLLECTIVE = (1 << 20) - 1  # the tag of collective calls; others are smaller


class Group(ABC):
    """Some ranks, numbered from 0, of which this process or thread is one."""

    rank: int
    size: int

    @abstractmethod
    def send(self, message: Message, dst: int, tag: int) -> None:
        """Send; the arrays may be changed afterwards. A large one waits for its receiver."""

    @abstractmethod
    def recv(self, src: int, tag: int, out: Array | None = None) -> Message:
        """The next message of that rank, in `out` if given; another tag or type is a RunError."""

    @abstractmethod
    def bcast(self, message: Message | None, root: int) -> Message:
        """The root's message."""

    @abstractmethod
    def gather(self, message: Message, root: int) -> list[Message] | None:
        """At the root all ranks' messages, elsewhere None."""

    @abstractmethod
    def allgather(self, message: Message) -> list[Message]:
        """All ranks' messages."""

    @abstractmethod
    def scatter(self, messages: Sequence[Message] | None, root: int) -> Message:
        """The message that the root has for this rank."""

    @abstractmethod
    def alltoall(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that all ranks have for this one."""

    @abstractmethod
    def allreduce(self, array: Array, out: Array) -> None:
        """Put the sum of all ranks' arrays into `out`, which may be the array."""

    @abstractmethod
    def reduce(self, array: Array, root: int) -> None:
        """Replace the root's array by the sum over all ranks; the others' arrays are undefined."""

    @abstractmethod
    def reduce_scatter(self, array: Array) -> Array:
        """This rank's part of the sum of a vector that the number of ranks divides."""

    @abstractmethod
    def split(self, color: int, key: int) -> Group:
        """The ranks that give the same colour, in the order of their keys."""


def summed_as(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """In which dtype arrays are summed: half precision (which MPI has not) in single."""
    if dtype.kind == "b":
        raise DTypeError("a sum over ranks: bool has no sum; cast it to int32")
    return SINGLE if dtype == HALF else dtype


def call_text(
    verb: str, root: int | None = None, dtype: Any = None, shape: tuple[int, ...] = ()
) -> str:
    """A collective call as errors show it: "allreduce of float64(3,)"."""
    text = verb if root is None else f"{verb} of root {root}"
    return text if dtype is None else f"{text} of {dtype}{shape}"


def require_same_calls(texts: Sequence[str]) -> None:
    """Raise RunError unless all ranks of a group (texts: by rank) make the same call."""
    for rank, text in enumerate(texts):
        if text != texts[0]:
            raise RunError(
                f"rank {rank} calls {text}, but rank 0 {texts[0]}: all ranks make the same calls, "
                "of the same types, in the same order"
            )


def wrong_message(rank: int, src: int, head: int, tag: int) -> RunError:
    """The error of a receiver that asks for another tag than the next message of `src` has."""
    found = "is of a collective call" if head == COLLECTIVE else f"has tag {head}"
    wanted = "a collective call has begun" if tag == COLLECTIVE else f"tag {tag} is asked for"
    return RunError(
        f"rank {rank}: the next message of rank {src} {found}, but {wanted}; receive messages in "
        "the order they are sent"
    )


class PeerGroup(Group):
    """A group whose calls are messages between pairs; sums are in the order of the ranks."""

    def __init__(
        self, transport: Transport, ranks: Sequence[int] = (), numbers: list[int] | None = None
    ) -> None:
        """ranks: of the transport; all by default. numbers: of groups made so far."""
        self._transport = transport
        self._ranks = tuple(ranks) or tuple(range(transport.size))
        self.rank, self.size = self._ranks.index(transport.rank), len(self._ranks)
        self._numbers = [0] if numbers is None else numbers
        self._number = self._numbers[0]  # the transport's tag

    def send(self, message: Message, dst: int, tag: int) -> None:
        self._transport.waiting_for(f"a send to rank {dst} with tag {tag}")
        for ticket in self._post(message, dst, tag):
            ticket.wait()

    def recv(self, src: int, tag: int, out: Array | None = None) -> Message:
        self._transport.waiting_for(f"a receive from rank {src} with tag {tag}")
        return self._recv(src, tag, out)

    def _recv(self, src: int, tag: int, out: Array | None = None) -> Message:
        there, number, receive = self._ranks[src], self._number, self._transport.recv
        about = np.empty(2, np.int64)
        receive(about, there, number)
        size, head = about.tolist()
        if head != tag:
            raise wrong_message(self.rank, src, head, tag)
        first: Bytes = np.empty(size, np.uint8)
        receive(first, there, number)
        message, rest = begun(first, out)
        for part in rest:
            receive(part, there, number)
        return message

    def bcast(self, message: Message | None, root: int) -> Message:
        self._meet(call_text("bcast", root))
        return self._bcast(message, root)

    def _bcast(self, message: Message | None, root: int) -> Message:
        if self.rank == root:
            assert message is not None
            self._swap({r: message for r in range(self.size) if r != root}, ())
            return message
        return self._recv(root, COLLECTIVE)

    def gather(self, message: Message, root: int) -> list[Message] | None:
        self._meet(call_text("gather", root))
        return self._gather(message, root)

    def _gather(self, message: Message, root: int) -> list[Message] | None:
        if self.rank != root:
            self._swap({root: message}, ())
            return None
        found = self._swap({}, [r for r in range(self.size) if r != root])
        return [found.get(r) or message.copy() for r in range(self.size)]

    def allgather(self, message: Message) -> list[Message]:
        self._meet("allgather")
        return self._alltoall([message] * self.size)

    def scatter(self, messages: Sequence[Message] | None, root: int) -> Message:
        self._meet(call_text("scatter", root))
        if self.rank != root:
            return self._recv(root, COLLECTIVE)
        assert messages is not None
        self._swap({r: m for r, m in enumerate(messages) if r != root}, ())
        return messages[root].copy()

    def alltoall(self, messages: Sequence[Message]) -> list[Message]:
        self._meet("alltoall")
        return self._alltoall(messages)

    def _alltoall(self, messages: Sequence[Message]) -> list[Message]:
        others = [r for r in range(self.size) if r != self.rank]
        found = self._swap({r: messages[r] for r in others}, others)
        return [found.get(r) or messages[r].copy() for r in range(self.size)]

    def allreduce(self, array: Array, out: Array) -> None:
        self._meet(call_text("allreduce", None, array.dtype, array.shape))
        terms = self._gather(Message.of(array), 0)
        mine = None if terms is None else Message.of(_sum(terms))
        out[...] = self._bcast(mine, 0).data

    def reduce(self, array: Array, root: int) -> None:
        self._meet(call_text("reduce", root, array.dtype, array.shape))
        terms = self._gather(Message.of(array), root)
        if terms is not None:
            array[...] = _sum(terms)

    def reduce_scatter(self, array: Array) -> Array:
        self._meet(call_text("reduce_scatter", None, array.dtype, array.shape))
        parts = [Message.of(part) for part in np.split(array, self.size)]
        return _sum(self._alltoall(parts))

    def split(self, color: int, key: int) -> PeerGroup:
        mine = Message.of(np.array([color, key, self._numbers[0]]))
        self._meet("split")
        rows = [m.data.tolist() for m in self._alltoall([mine] * self.size)]
        self._numbers[0] = max(row[2] for row in rows) + 1
        same = sorted((row[1], r) for r, row in enumerate(rows) if row[0] == color)
        return PeerGroup(self._transport, [self._ranks[r] for _, r in same], self._numbers)

    def _meet(self, text: str) -> None:
        """All ranks tell each other what they call."""
        self._transport.waiting_for(text)
        mine = Message.of(np.frombuffer(text.encode(), np.uint8))
        texts = [m.data.tobytes().decode() for m in self._alltoall([mine] * self.size)]
        require_same_calls(texts)

    def _post(self, message: Message, dst: int, tag: int) -> list[Ticket]:
        """Start a message; the tickets to wait for before its arrays are changed."""
        there, number, send = self._ranks[dst], self._number, self._transport.send
        first, rest = message.parts()
        send(np.array([first.size, tag]), there, number)
        send(first, there, number)
        return [send(part, there, number) for part in rest]

    def _swap(self, outgoing: Mapping[int, Message], sources: Sequence[int]) -> dict[int, Message]:
        """Send and receive at once, so that nobody waits for somebody who waits."""
        tickets: list[Any] = []
        for dst, message in outgoing.items():
            tickets += self._post(message, dst, COLLECTIVE)
        found = {src: self._recv(src, COLLECTIVE) for src in sources}
        for ticket in tickets:
            ticket.wait()
        return found


def _sum(terms: Sequence[Message]) -> Array:
    """In the order of ranks."""
    first, *rest = [term.data for term in terms]
    total: Array = first.astype(summed_as(first.dtype))
    for term in rest:
        total += term
    return total.astype(first.dtype, copy=False)
