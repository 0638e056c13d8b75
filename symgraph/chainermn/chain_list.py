"""Chain lists: one network assembled from the parts of every rank (ChainerMN).

    parent, child = MultiNodeChainList(0), MultiNodeChainList(1)
    parent.add_link(first, rank_in=None, rank_out=1)      # a function of symbols, or a Symbol
    child.add_link(second, rank_in=0, rank_out=0)
    parent.add_link(third, rank_in=1, rank_out=None)
    y, _ = connect(parent(x), child())

A mistake that makes ChainerMN hang while it runs is an error here before anything is bound: every
process builds the lists of all ranks, and `connect` follows the messages from link to link.
Messages between two ranks arrive in the order sent. The result is one graph whose nodes are in the
groups `rank0`, `rank1`, ... Its messages and gradients are derived as for any other graph, so it
cannot deadlock, and there are no delegate variables.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from symgraph.core.errors import GraphError
from symgraph.core.number_checks import whole_number
from symgraph.core.tags import hide, lookup
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.symbol import Symbol
from symgraph.frontend.symnode import Entry, SymNode, walk
from symgraph.rnn.cells import BaseRNNCell

Message = Symbol | tuple[Symbol, ...]
Ranks = int | Sequence[int] | None
Channels = dict[tuple[int, int], deque[tuple[str, Message]]]  # (from, to) -> (sender, message)


class Ranked(Protocol):
    """Anything with a rank, such as a communicator."""

    @property
    def rank(self) -> int: ...


@dataclass(frozen=True)
class Link:
    """A part of the network on one rank."""

    name: str
    #: Called with the received messages; returns (the user's result or None, messages to send).
    build: Callable[..., tuple[Any, Sequence[Message]]]
    #: The ranks that send its messages, in order; None: it reads the inputs of the call.
    rank_in: tuple[int, ...] | None
    #: The ranks that receive each of its messages.
    rank_out: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """The links of one rank and their inputs; an argument of `connect`."""

    rank: int
    links: tuple[Link, ...]
    inputs: tuple[Message, ...]


class MultiNodeChainList:
    """The links of one rank, in the order in which they run (chainermn.MultiNodeChainList).

    comm: the rank, or a communicator.
    """

    def __init__(self, comm: int | Ranked) -> None:
        self.rank = _rank_of(comm)
        self._links: list[Link] = []
        self._returns = False

    def add_link(
        self, link: Symbol | Callable[..., Any], rank_in: Ranks = None, rank_out: Ranks = None
    ) -> None:
        """Add a link that reads messages of the ranks `rank_in` and sends its result to `rank_out`.

        A rank may send to itself.

        Args:
            link: a function that takes one symbol (or the tuple that was sent) per rank of rank_in
                and returns a symbol or a tuple; or a Symbol, whose first variables are replaced.
            rank_in: the ranks to receive from; None: the link reads the inputs of the list's call.
            rank_out: the ranks to send to; None: the result is the list's.

        Raises:
            GraphError: if a second link has rank_out None, or what is passed is no rank.
        """
        name = f"link {len(self._links)} of rank {self.rank}"
        if rank_out is None and self._returns:
            raise GraphError(f"{name} has rank_out=None, but another link of that rank has it too")
        self._returns |= rank_out is None
        build = _on_rank(link, self.rank, name)
        sources, targets = (
            _ranks(rank_in, f"{name}: rank_in"),
            _ranks(rank_out, f"{name}: rank_out"),
        )

        def built(*xs: Message) -> tuple[Any, Sequence[Message]]:
            result = build(*xs)
            return (result, []) if targets is None else (None, [result])

        self._links.append(Link(name, built, sources, targets or ()))

    def __call__(self, *inputs: Message) -> Call:
        """Return a call for `connect`; links without rank_in read these inputs."""
        return Call(self.rank, tuple(self._links), inputs)


class MultiNodeNStepRNN:
    """A recurrent cell on one rank that receives its first states and sends its last ones."""

    def __init__(
        self, cell: BaseRNNCell, rank: int, rank_in: Ranks, rank_out: Ranks, unroll: dict[str, Any]
    ) -> None:
        self.cell, self.rank, self._unroll = cell, rank, unroll
        self._name = f"the {type(cell).__name__} of rank {rank}"
        self._rank_in = _ranks(rank_in, f"{self._name}: rank_in")
        self._rank_out = _ranks(rank_out, f"{self._name}: rank_out")

    def __call__(self, length: int, inputs: Any) -> Call:
        """Unroll `length` time steps.

        `connect` returns (outputs, states) as the cell's `unroll`.
        """
        expected = len(self.cell.state_info)
        name = self._name

        def build(*states: Message) -> tuple[Any, Sequence[Message]]:
            begin = [state for state in states if isinstance(state, Symbol)]
            if len(begin) < len(states):
                raise GraphError(f"{name}: a state it receives is a tuple, not one symbol")
            with AttrScope(ctx_group=group_of(self.rank)):
                outputs, last = self.cell.unroll(
                    length, inputs, begin_state=begin or None, **self._unroll
                )
            if self._rank_out and len(last) < expected:
                raise GraphError(
                    f"{name} sends its last states, but returns {len(last)} of {expected}; a "
                    "FusedRNNCell returns them with get_next_state=True"
                )
            return (outputs, last), last

        sources = None if self._rank_in is None else self._rank_in * expected
        link = Link(name, build, sources, self._rank_out or ())
        return Call(self.rank, (link,), ())


def create_multi_node_n_step_rnn(
    cell: BaseRNNCell,
    comm: int | Ranked,
    rank_in: int | None = None,
    rank_out: int | None = None,
    **unroll: Any,
) -> MultiNodeNStepRNN:
    """Make a cell that receives its first states and sends its last ones (ChainerMN).

    Each state is one message. Corresponds to chainermn.links.create_multi_node_n_step_rnn.

    Args:
        cell: any cell of `sg.rnn`, including stacks.
        comm: the rank, or a communicator.
        rank_in: the rank that sends the first states; None: zeros.
        rank_out: the rank that receives the last states; None: none.
        **unroll: further arguments of the cell's `unroll`.

    Raises:
        GraphError: if `cell` is not a cell.
    """
    if not isinstance(cell, BaseRNNCell):
        raise GraphError(f"a multi-node RNN takes a cell of sg.rnn, not {type(cell).__name__}")
    return MultiNodeNStepRNN(cell, _rank_of(comm), rank_in, rank_out, unroll)


def group_of(rank: int) -> str:
    """Return the ctx_group of a rank's links."""
    return f"rank{rank}"


def connect(*calls: Call) -> list[Any]:
    """Join the calls of all ranks into one graph; return the result of each call, or None.

    Calls of one rank run in the given order. Raises GraphError, which names the links, for messages
    without a sender or receiver, and for links that wait for each other.
    """
    for call in calls:
        if not isinstance(call, Call):
            raise GraphError(
                f"connect takes what calls of chain lists return, such as mlp(x) or mlp(), and no "
                f"{type(call).__name__}"
            )
    ranks = {call.rank for call in calls}
    pending: dict[int, deque[tuple[int, Link, tuple[Message, ...]]]] = {r: deque() for r in ranks}
    for number, call in enumerate(calls):
        for link in call.links:
            _check_ranks(link, ranks)
            pending[call.rank].append((number, link, call.inputs))
    results: list[Any] = [None] * len(calls)
    channels: Channels = {(a, b): deque() for a in sorted(ranks) for b in sorted(ranks)}
    progress = True
    while progress:
        progress = False
        for rank in sorted(ranks):
            while pending[rank] and _ready(pending[rank][0][1], rank, channels):
                number, link, inputs = pending[rank].popleft()
                result = _run(link, rank, inputs, channels)
                results[number] = results[number] if result is None else result
                progress = True
    _require_done({r: [link for _, link, _ in left] for r, left in pending.items()}, channels)
    return results


def _ready(link: Link, rank: int, channels: Channels) -> bool:
    sources = link.rank_in or ()
    return all(len(channels[s, rank]) >= sources.count(s) for s in sources)


def _run(link: Link, rank: int, inputs: tuple[Message, ...], channels: Channels) -> Any:
    if link.rank_in is not None:
        inputs = tuple([channels[source, rank].popleft()[1] for source in link.rank_in])
    result, messages = link.build(*inputs)
    for message in messages:
        for target in link.rank_out:
            channels[rank, target].append((link.name, message))
    return result


def _check_ranks(link: Link, known_ranks: set[int]) -> None:
    for verb, ranks in (("receives from", link.rank_in or ()), ("sends to", link.rank_out)):
        for rank in ranks:
            if rank not in known_ranks:
                listing = ", ".join(map(str, sorted(known_ranks)))
                raise GraphError(f"{link.name} {verb} rank {rank}, but connect got ranks {listing}")


def _require_done(pending: dict[int, list[Link]], channels: Channels) -> None:
    stuck = []
    for rank, links in sorted(pending.items()):
        if links:
            sources = links[0].rank_in or ()
            source = next(s for s in sources if len(channels[s, rank]) < sources.count(s))
            ended = "" if pending[source] else ", which has no link left to send it"
            stuck.append(f"  {links[0].name} waits for a message of rank {source}{ended}")
    if stuck:
        raise GraphError("\n".join(["no rank can continue:", *stuck]))
    for (_, target), messages in channels.items():
        if messages:
            raise GraphError(
                f"{messages[0][0]} sends to rank {target}, but no link there receives it; rank_in "
                "and rank_out must correspond"
            )


def _rank_of(comm: int | Ranked) -> int:
    return whole_number(getattr(comm, "rank", comm), "the rank of a chain list", GraphError)


def _ranks(ranks: Ranks, what: str) -> tuple[int, ...] | None:
    if ranks is None:
        return None
    given = list(ranks) if isinstance(ranks, Iterable) else [ranks]
    if not given:
        raise GraphError(f"{what} lists no rank; None means the inputs, or the result, of the list")
    return tuple([whole_number(rank, what, GraphError) for rank in given])


def _on_rank(link: Symbol | Callable[..., Any], rank: int, name: str) -> Callable[..., Message]:
    """Wrap a link in a function that puts its nodes into the group of its rank."""
    group = group_of(rank)

    def build(*xs: Message) -> Message:
        if isinstance(link, Symbol):
            flat = [x for message in xs for x in _each(message)]
            return _message(_copy_to_group(link, group, name)(*flat), name)
        try:
            inspect.signature(link).bind(*xs)
        except TypeError as error:
            raise GraphError(f"{name} does not take {len(xs)} inputs: {error}") from None
        with AttrScope(ctx_group=group):
            return _message(link(*xs), name)

    return build


def _message(result: Any, name: str) -> Message:
    """Return a link's result as one symbol, or as a tuple for a tuple or a group."""
    for x in _each(result):
        if not isinstance(x, Symbol):
            raise GraphError(f"{name} returns a {type(x).__name__}, not a symbol or a tuple")
    return result if isinstance(result, Symbol) and len(result) == 1 else tuple(result)


def _each(message: Any) -> Iterable[Any]:
    return message if isinstance(message, (tuple, list)) else (message,)


def _copy_to_group(symbol: Symbol, group: str, name: str) -> Symbol:
    """Copy a symbol with its operators in the group; links may share its variables."""
    copies: dict[int, SymNode] = {}
    for node in walk(symbol.entries):
        if node.op is None:
            copies[id(node)] = node
            continue
        node_group = lookup(node.attrs, "ctx_group")
        if node_group not in (None, group):
            raise GraphError(
                f"{name} holds {node.name!r} of group {node_group!r}, but all of a link is on its "
                f"rank, in "
                f"group {group!r}"
            )
        inputs = tuple([Entry(copies[id(e.node)], e.port) for e in node.inputs])
        attrs = {**node.attrs, hide("ctx_group"): group}
        copies[id(node)] = replace(node, attrs=attrs, inputs=inputs)
    return Symbol([Entry(copies[id(e.node)], e.port) for e in symbol.entries])
