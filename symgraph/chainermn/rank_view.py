"""Networks that describe one rank each, and their join (chainermn.functions' point of view).

    token = send(h, rank=1)                            h = recv(rank=0, shape=(0, 1000))
    y = recv(rank=1, shape=(0, 10))                    y = network(h)
    loss = pseudo_connect(token, loss_of(y))           out = send(y, rank=0)

A send gives a token, which must be part of the rank's symbol: as an output of it, or by
`pseudo_connect`. `join` finds the sends of all receives and makes one graph, in which names have
their rank before them (`rank0_fc1_weight`). All that ChainerMN would hang of is an error there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgraph.chainermn.chain_list import group_of
from symgraph.core.errors import GraphError
from symgraph.core.params import parse_params
from symgraph.core.registry import find
from symgraph.core.tags import hide, lookup
from symgraph.core.types import Shape
from symgraph.frontend.operator_calls import call
from symgraph.frontend.sym import Variable
from symgraph.frontend.symbol import Symbol
from symgraph.frontend.symnode import Entry, SymNode, walk

SEND, RECV = "__send__", "__recv__"  # attributes "rank:tag" of nodes that are ends of a message
Address = tuple[int, int, int]  # from, to, tag


def send(x: Symbol, rank: int, tag: int = 0, name: str | None = None) -> Symbol:
    """Send x to a rank; the token of it. (chainermn.functions.send)"""
    return Symbol(call("identity", "send", [x], {}, name, {SEND: f"{rank}:{tag}"}))


def recv(
    rank: int, tag: int = 0, *, shape: Shape, dtype: Any = "float32", name: str | None = None
) -> Symbol:
    """What a rank sends, of this shape (0: any length) and dtype. (chainermn.functions.recv)"""
    name = name or f"recv_from{rank}_tag{tag}"
    return Variable(name, attr={RECV: f"{rank}:{tag}"}, shape=shape, dtype=dtype)


def pseudo_connect(token: Symbol, x: Symbol, name: str | None = None) -> Symbol:
    """x, with the token's message in the network; the order of messages needs no such help."""
    return Symbol(call("_pseudo_connect", "pseudo_connect", [x, token], {}, name))


def join(symbols: Sequence[Symbol]) -> list[Symbol | None]:
    """One graph of all ranks' symbols; each rank's outputs that are no tokens, or None.

    Nodes are in the groups `rank0`, `rank1`, ... Raises GraphError, naming both nodes, for messages
    that are sent and not received, received and not sent, sent by a rank to itself, or that wait
    for each other; shapes and dtypes are compared when the result is lowered.
    """
    sends, recvs = _ends(symbols, SEND), _ends(symbols, RECV)
    _check_pairs(sends, recvs)
    made: dict[int, SymNode] = {}
    todo = {rank: walk(symbol.entries) for rank, symbol in enumerate(symbols)}
    moved = True
    while moved:
        moved = False
        for rank, nodes in todo.items():
            waiting = [n for n in nodes if not _made(n, rank, sends, made)]
            moved |= len(waiting) < len(nodes)
            todo[rank] = waiting
    _check_ended(todo, sends, made)
    found: list[Symbol | None] = []
    for symbol in symbols:
        outputs = [e for e in symbol.entries if SEND not in e.node.attrs]
        entries = [Entry(made[id(e.node)], e.port) for e in outputs]
        found.append(Symbol(entries) if entries else None)
    return found


def _ends(symbols: Sequence[Symbol], kind: str) -> dict[Address, SymNode]:
    """The nodes at which messages start, or end."""
    found: dict[Address, SymNode] = {}
    for rank, symbol in enumerate(symbols):
        for node in walk(symbol.entries):
            if kind in node.attrs:
                peer, tag = map(int, node.attrs[kind].split(":"))
                what = f"{node.name!r} of rank {rank}"
                if peer == rank:
                    raise GraphError(f"{what} names its own rank; use the value itself")
                if not 0 <= peer < len(symbols):
                    raise GraphError(f"{what} names rank {peer}, but there are {len(symbols)}")
                address = (rank, peer, tag) if kind == SEND else (peer, rank, tag)
                if address in found:
                    raise GraphError(
                        f"{found[address].name!r} and {node.name!r} of rank {rank} have the same "
                        f"peer, {peer}, and tag, {tag}; give them different tags"
                    )
                found[address] = node
    return found


def _check_pairs(sends: dict[Address, SymNode], recvs: dict[Address, SymNode]) -> None:
    for ours, others, verb in ((sends, recvs, "receives"), (recvs, sends, "sends")):
        for address, node in ours.items():
            if address not in others:
                source, target, tag = address
                here, there = (source, target) if ours is sends else (target, source)
                known = [
                    f"{n.name!r} with tag {t}"
                    for (a, b, t), n in others.items()
                    if (a, b) == (source, target)
                ]
                raise GraphError(
                    f"{node.name!r} of rank {here} has tag {tag}, but rank {there} {verb} "
                    f"{', '.join(known) or 'nothing'} {'from' if ours is sends else 'to'} rank "
                    f"{here} that would fit it"
                )


def _made(
    node: SymNode, rank: int, sends: dict[Address, SymNode], made: dict[int, SymNode]
) -> bool:
    """Make a node's copy in the joined graph, if all that it reads is made."""
    own = lookup(node.attrs, "ctx_group")
    if own not in (None, group_of(rank)):
        raise GraphError(f"{node.name!r} of rank {rank} is in group {own!r}, but groups are ranks")
    name = f"{group_of(rank)}_{node.name}"
    attrs = {k: v for k, v in node.attrs.items() if k not in (SEND, RECV)}
    attrs[hide("ctx_group")] = group_of(rank)
    if RECV in node.attrs:
        source = _sender(node, rank, sends)
        if id(source) not in made:
            return False
        there = made[id(source)]
        op = find("_receive")
        given = {
            "shape": node.attrs["__shape__"],
            "dtype": node.attrs["__dtype__"],
            "source": there.name,
        }
        kept = {hide("ctx_group"): group_of(rank)}
        params = parse_params(op.name, name, op.params, given)
        made[id(node)] = SymNode(name, op, kept, params, (Entry(there),))
    elif all(id(e.node) in made for e in node.inputs):
        inputs = tuple([Entry(made[id(e.node)], e.port) for e in node.inputs])
        made[id(node)] = SymNode(name, node.op, attrs, node.params, inputs)
    else:
        return False
    return True


def _sender(node: SymNode, rank: int, sends: dict[Address, SymNode]) -> SymNode:
    peer, tag = map(int, node.attrs[RECV].split(":"))
    return sends[peer, rank, tag]


def _check_ended(
    left: dict[int, list[SymNode]], sends: dict[Address, SymNode], made: dict[int, SymNode]
) -> None:
    stuck = [
        f"  {node.name!r} of rank {rank} waits for {_sender(node, rank, sends).name!r} of rank "
        f"{node.attrs[RECV].split(':')[0]}"
        for rank, nodes in left.items()
        for node in nodes
        if RECV in node.attrs and id(node) not in made
    ]
    if stuck:
        raise GraphError("\n".join(["messages wait for each other:", *stuck]))
