"""Chain lists: one network put together from the parts of every rank (ChainerMN).

    parent, child = MultiNodeChainList(0), MultiNodeChainList(1)
    parent.add_link(first, rank_in=None, rank_out=1)      # a function of symbols, or a Symbol
    child.add_link(second, rank_in=0, rank_out=0)
    parent.add_link(third, rank_in=1, rank_out=None)
    y, _ = connect(parent(x), child())

What ChainerMN finds out while it runs, by hanging, is found here before anything is bound: every
process makes the lists of all ranks, and `connect` follows the messages from link to link. Between
two ranks they arrive in the order sent. The result is one graph whose nodes are in the groups
`rank0`, `rank1`, ...; its messages and gradients are derived as for all others, so that nothing
hangs and there are no delegate variables.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from symgraph.core.errors import GraphError
from symgraph.core.tags import hide, lookup
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.symbol import Symbol
from symgraph.frontend.symnode import Entry, SymNode, walk
from symgraph.rnn.cells import BaseRNNCell

Message = Symbol | tuple[Symbol, ...]
Ranks = int | Sequence[int] | None
Channels = dict[tuple[int, int], deque[tuple[str, Message]]]  # (from, to) -> (sender, message)


class Ranked(Protocol):
    """Anything that knows its rank: a communicator."""

    @property
    def rank(self) -> int: ...


@dataclass(frozen=True)
class Link:
    """A part of the network on one rank.

    build: from what it receives, to what the user gets (or None) and what it sends. rank_in: the
    sources of its messages, in order; None: the inputs of the call. rank_out: where each of its
    messages goes.
    """

    name: str
    build: Callable[..., tuple[Any, Sequence[Message]]]
    rank_in: tuple[int, ...] | None
    rank_out: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """The links of one rank with the inputs that they are called on; see `connect`."""

    rank: int
    links: tuple[Link, ...]
    inputs: tuple[Message, ...]


class MultiNodeChainList:
    """The links of one rank, in the order in which they run (chainermn.MultiNodeChainList)."""

    def __init__(self, comm: int | Ranked) -> None:
        """comm: the rank, or a communicator."""
        self.rank = comm if isinstance(comm, int) else comm.rank
        self._links: list[Link] = []
        self._returns = False

    def add_link(
        self, link: Symbol | Callable[..., Any], rank_in: Ranks = None, rank_out: Ranks = None
    ) -> None:
        """Add a link that reads what the ranks `rank_in` send, and sends its result to `rank_out`.

        link: a function that gets one symbol (or the tuple that was sent) for each rank of
        rank_in and gives a symbol or a tuple; or a Symbol, whose first variables are replaced.
        rank_in None: the inputs of the list's call. rank_out None: the result is the list's, and
        only one link may have that. A rank may send to itself.
        """
        name = f"link {len(self._links)} of rank {self.rank}"
        if rank_out is None and self._returns:
            raise GraphError(f"{name} has rank_out=None, but another link of that rank has it too")
        self._returns |= rank_out is None
        build = _on_rank(link, self.rank, name)

        def built(*xs: Message) -> tuple[Any, Sequence[Message]]:
            result = build(*xs)
            return (result, []) if rank_out is None else (None, [result])

        self._links.append(Link(name, built, _ranks(rank_in), _ranks(rank_out) or ()))

    def __call__(self, *inputs: Message) -> Call:
        """The links that read no rank get these inputs."""
        return Call(self.rank, tuple(self._links), inputs)


class MultiNodeNStepRNN:
    """A recurrent cell on one rank whose first states come from another, and whose last go on."""

    def __init__(
        self, cell: BaseRNNCell, rank: int, rank_in: Ranks, rank_out: Ranks, unroll: dict[str, Any]
    ) -> None:
        self.cell, self.rank = cell, rank
        self._rank_in, self._rank_out, self._unroll = _ranks(rank_in), _ranks(rank_out), unroll

    def __call__(self, length: int, inputs: Any) -> Call:
        """`length` time steps; `connect` gives (outputs, states) as the cell's `unroll` does."""
        expected = len(self.cell.state_info)
        name = f"the {type(self.cell).__name__} of rank {self.rank}"

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
                    f"{name} sends its last states on, but gives {len(last)} of {expected}; a "
                    "FusedRNNCell gives them with get_next_state=True"
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
    """A cell that takes its first states from rank_in and sends its last to rank_out (ChainerMN).

    cell: of any kind, also stacked. comm: the rank, or a communicator. unroll: further arguments of
    the cell's `unroll`. Each state is one message. GraphError for what is no cell.
    """
    if not isinstance(cell, BaseRNNCell):
        raise GraphError(f"a multi-node RNN is made of a cell of sg.rnn, not {type(cell).__name__}")
    rank = comm if isinstance(comm, int) else comm.rank
    return MultiNodeNStepRNN(cell, rank, rank_in, rank_out, unroll)


def group_of(rank: int) -> str:
    """The ctx_group of a rank's links."""
    return f"rank{rank}"


def connect(*calls: Call) -> list[Any]:
    """Join the calls of all ranks into one graph: what each call returns, or None.

    Several calls of one rank run in the order given. Raises GraphError, which names the links, for
    messages that nobody sends or receives, and for links that wait for each other.
    """
    here = {call.rank for call in calls}
    todo: dict[int, deque[tuple[int, Link, tuple[Message, ...]]]] = {r: deque() for r in here}
    for number, call in enumerate(calls):
        for link in call.links:
            _check_ranks(link, here)
            todo[call.rank].append((number, link, call.inputs))
    results: list[Any] = [None] * len(calls)
    channels: Channels = {(a, b): deque() for a in sorted(here) for b in sorted(here)}
    moved = True
    while moved:
        moved = False
        for rank in sorted(here):
            while todo[rank] and _ready(todo[rank][0][1], rank, channels):
                number, link, inputs = todo[rank].popleft()
                result = _run(link, rank, inputs, channels)
                results[number] = results[number] if result is None else result
                moved = True
    _check_done({r: [link for _, link, _ in left] for r, left in todo.items()}, channels)
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


def _check_ranks(link: Link, here: set[int]) -> None:
    for verb, ranks in (("receives from", link.rank_in or ()), ("sends to", link.rank_out)):
        for rank in ranks:
            if rank not in here:
                known = ", ".join(map(str, sorted(here)))
                raise GraphError(f"{link.name} {verb} rank {rank}, but connect got ranks {known}")


def _check_done(left: dict[int, list[Link]], channels: Channels) -> None:
    stuck = []
    for rank, links in sorted(left.items()):
        if links:
            sources = links[0].rank_in or ()
            source = next(s for s in sources if len(channels[s, rank]) < sources.count(s))
            ended = "" if left[source] else ", which has no link left to send it"
            stuck.append(f"  {links[0].name} waits for a message of rank {source}{ended}")
    if stuck:
        raise GraphError("\n".join(["no rank can continue:", *stuck]))
    for (_, target), messages in channels.items():
        if messages:
            raise GraphError(
                f"{messages[0][0]} sends to rank {target}, but no link there receives it; rank_in "
                "and rank_out must correspond"
            )


def _ranks(given: Ranks) -> tuple[int, ...] | None:
    if given is None:
        return None
    return (given,) if isinstance(given, int) else tuple(given)


def _on_rank(link: Symbol | Callable[..., Any], rank: int, name: str) -> Callable[..., Message]:
    """The link as a function that makes its nodes in the group of its rank."""
    group = group_of(rank)

    def build(*xs: Message) -> Message:
        if isinstance(link, Symbol):
            flat = [x for message in xs for x in _each(message)]
            return _message(_placed(link, group, name)(*flat), name)
        try:
            inspect.signature(link).bind(*xs)
        except TypeError as error:
            raise GraphError(f"{name} does not take {len(xs)} inputs: {error}") from None
        with AttrScope(ctx_group=group):
            return _message(link(*xs), name)

    return build


def _message(result: Any, name: str) -> Message:
    """One symbol, or a tuple of them for a tuple or a group."""
    for x in _each(result):
        if not isinstance(x, Symbol):
            raise GraphError(f"{name} gives a {type(x).__name__}, not a symbol or a tuple")
    return result if isinstance(result, Symbol) and len(result) == 1 else tuple(result)


def _each(message: Any) -> Iterable[Any]:
    return message if isinstance(message, (tuple, list)) else (message,)


def _placed(symbol: Symbol, group: str, name: str) -> Symbol:
    """A copy of a symbol whose operators are in the group; variables may be shared by links."""
    made: dict[int, SymNode] = {}
    for node in walk(symbol.entries):
        if node.op is None:
            made[id(node)] = node
            continue
        own = lookup(node.attrs, "ctx_group")
        if own not in (None, group):
            raise GraphError(
                f"{name} holds {node.name!r} of group {own!r}, but a link is all on its rank, in "
                f"group {group!r}"
            )
        inputs = tuple([Entry(made[id(e.node)], e.port) for e in node.inputs])
        attrs = {**node.attrs, hide("ctx_group"): group}
        made[id(node)] = replace(node, attrs=attrs, inputs=inputs)
    return Symbol([Entry(made[id(e.node)], e.port) for e in symbol.entries])
