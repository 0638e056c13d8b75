"""Networks that describe one rank each, and their join (chainermn.functions' point of view).

    token = send(h, rank=1)                            h = recv(rank=0, shape=(0, 1000))
    y = recv(rank=1, shape=(0, 10))                    y = network(h)
    loss = pseudo_connect(token, loss_of(y))           out = send(y, rank=0)

A send returns a token, which must be part of the rank's symbol: as an output, or by
`pseudo_connect`. `join` matches sends and receives and builds one graph, in which names begin with
their rank (`rank0_fc1_weight`). Mistakes that make ChainerMN hang are errors there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgraph.chainermn.chain_list import group_of
from symgraph.core.errors import GraphError
from symgraph.core.number_checks import whole_number
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
    """Send x to a rank and return a token (chainermn.functions.send)."""
    return Symbol(call("identity", "send", [x], {}, name, {SEND: _end(rank, tag)}))


def recv(
    rank: int, tag: int = 0, *, shape: Shape, dtype: Any = "float32", name: str | None = None
) -> Symbol:
    """Receive a symbol from a rank (chainermn.functions.recv).

    Args:
        rank: the sender.
        tag: the message's tag.
        shape: the message's shape, with 0 for an unknown dimension.
        dtype: the message's dtype.
        name: the node's name; by default `recv_from<rank>_tag<tag>`.
    """
    name = name or f"recv_from{rank}_tag{tag}"
    return Variable(name, attr={RECV: _end(rank, tag)}, shape=shape, dtype=dtype)


def pseudo_connect(token: Symbol, x: Symbol, name: str | None = None) -> Symbol:
    """Return x with the token's message in the network (chainermn.functions.pseudo_connect).

    In ChainerMN this also orders messages; here their order needs no help.
    """
    return Symbol(call("_pseudo_connect", "pseudo_connect", [x, token], {}, name))


def join(symbols: Sequence[Symbol]) -> list[Symbol | None]:
    """Join the symbols of all ranks into one graph, with nodes in the groups `rank0`, `rank1`, ...

    Returns each rank's outputs except tokens, or None if there are none. Raises GraphError, which
    names the nodes, for messages that are only sent or only received, that a rank sends to itself,
    or that wait for each other. Shapes and dtypes are compared when the result is lowered.
    """
    sends, recvs = _ends(symbols, SEND), _ends(symbols, RECV)
    _check_pairs(sends, recvs)
    copies: dict[int, SymNode] = {}
    pending = {rank: walk(symbol.entries) for rank, symbol in enumerate(symbols)}
    progress = True
    while progress:
        progress = False
        for rank, nodes in pending.items():
            waiting = [n for n in nodes if not _copy_node(n, rank, sends, copies)]
            progress |= len(waiting) < len(nodes)
            pending[rank] = waiting
    _check_ended(pending, sends, copies)
    outputs_by_rank: list[Symbol | None] = []
    for symbol in symbols:
        outputs = [e for e in symbol.entries if SEND not in e.node.attrs]
        entries = [Entry(copies[id(e.node)], e.port) for e in outputs]
        outputs_by_rank.append(Symbol(entries) if entries else None)
    return outputs_by_rank


def _end(rank: int, tag: int) -> str:
    whole = [
        whole_number(x, f"a message's {n}", GraphError) for n, x in (("rank", rank), ("tag", tag))
    ]
    return ":".join(map(str, whole))


def _ends(symbols: Sequence[Symbol], kind: str) -> dict[Address, SymNode]:
    """Return the nodes that send, or receive, by address."""
    ends: dict[Address, SymNode] = {}
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
                if address in ends:
                    raise GraphError(
                        f"{ends[address].name!r} and {node.name!r} of rank {rank} have the same "
                        f"peer, {peer}, and tag, {tag}; give them different tags"
                    )
                ends[address] = node
    return ends


def _check_pairs(sends: dict[Address, SymNode], recvs: dict[Address, SymNode]) -> None:
    for ours, others, verb in ((sends, recvs, "receives"), (recvs, sends, "sends")):
        for address, node in ours.items():
            if address not in others:
                source, target, tag = address
                own_rank, peer = (source, target) if ours is sends else (target, source)
                known = [
                    f"{n.name!r} with tag {t}"
                    for (a, b, t), n in others.items()
                    if (a, b) == (source, target)
                ]
                way = f"{'from' if ours is sends else 'to'} rank {own_rank}"
                fits = f"{', '.join(known)} {way}" if known else f"nothing {way} that would fit it"
                raise GraphError(
                    f"{node.name!r} of rank {own_rank} has tag {tag}, but rank {peer} {verb} {fits}"
                )


def _copy_node(
    node: SymNode, rank: int, sends: dict[Address, SymNode], copies: dict[int, SymNode]
) -> bool:
    """Copy a node to the joined graph if all its inputs are there; return whether it did."""
    group = lookup(node.attrs, "ctx_group")
    if group not in (None, group_of(rank)):
        raise GraphError(
            f"{node.name!r} of rank {rank} is in group {group!r}, but groups are ranks"
        )
    name = f"{group_of(rank)}_{node.name}"
    attrs = {k: v for k, v in node.attrs.items() if k not in (SEND, RECV)}
    attrs[hide("ctx_group")] = group_of(rank)
    if RECV in node.attrs:
        source = _sender(node, rank, sends)
        if id(source) not in copies:
            return False
        sender = copies[id(source)]
        op = find("_receive")
        values = {
            "shape": node.attrs["__shape__"],
            "dtype": node.attrs["__dtype__"],
            "source": sender.name,
        }
        attributes = {hide("ctx_group"): group_of(rank)}
        params = parse_params(op.name, name, op.params, values)
        copies[id(node)] = SymNode(name, op, attributes, params, (Entry(sender),))
    elif all(id(e.node) in copies for e in node.inputs):
        inputs = tuple([Entry(copies[id(e.node)], e.port) for e in node.inputs])
        copies[id(node)] = SymNode(name, node.op, attrs, node.params, inputs)
    else:
        return False
    return True


def _sender(node: SymNode, rank: int, sends: dict[Address, SymNode]) -> SymNode:
    peer, tag = map(int, node.attrs[RECV].split(":"))
    return sends[peer, rank, tag]


def _check_ended(
    pending: dict[int, list[SymNode]], sends: dict[Address, SymNode], copies: dict[int, SymNode]
) -> None:
    stuck = [
        f"  {node.name!r} of rank {rank} waits for {_sender(node, rank, sends).name!r} of rank "
        f"{node.attrs[RECV].split(':')[0]}"
        for rank, nodes in pending.items()
        for node in nodes
        if RECV in node.attrs and id(node) not in copies
    ]
    if stuck:
        raise GraphError("\n".join(["messages wait for each other:", *stuck]))
