"""Collectives between groups: MPI's collective operations as ordinary operators of one graph.

The graph is global. A collective takes one symbol per participant, each made in a `ctx_group` of
its own, and returns one symbol per participant. It consists of ordinary operators (cuts at the
sender; copies, joins and sums at the receiver). Messages, their order, the check against deadlocks
and the gradients are therefore derived as for any other operator:

    forward             backward                   messages of p participants
    send                send back                  1
    bcast               sum at the root            p - 1
    scatter, gather     gather, scatter            p - 1
    alltoall            alltoall                   p (p - 1)
    allgather           reduce_scatter             p (p - 1)
    reduce_scatter      allgather                  p (p - 1)
    allreduce           allreduce                  p (p - 1); with an axis 2 p (p - 1) of 1/p size

The copies of one collective carry its name in the attribute `exchange`, and so do the messages that
result from them: if the ranks are MPI processes, these messages become one MPI collective, forward
and backward. Sums are not part of that collective. They are computed in the order of the
participants, so every participant gets the same bits with every transport. Participants that share
a device exchange no messages.

Parts may differ in size. An empty part is None and sends no message, because a dimension of 0 means
an unknown one (MXNet).

A loss computed on p groups counts as p losses, whose gradients add up. Compute it on one group, or
give each loss `grad_scale=1 / p`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symgraph.core.errors import GraphError
from symgraph.core.registry import COPY
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.name import NameManager
from symgraph.frontend.operator_calls import call
from symgraph.frontend.symbol import Symbol

Part = Symbol | None
Sizes = Sequence[int] | None


def send(x: Symbol, group: str, name: str | None = None) -> Symbol:
    """Copy x to another group (chainermn.functions.send and recv in one call)."""
    return _copy(x, group, _resolve_name(name, "send"))


def bcast(x: Symbol, groups: Sequence[str], name: str | None = None) -> list[Symbol]:
    """Copy x to every group (chainermn.functions.bcast).

    The gradient of x is the sum of the gradients of the copies.
    """
    stem = _resolve_name(name, "bcast")
    _require_list(groups, stem)
    return [_copy(x, group, f"{stem}_{i}", stem) for i, group in enumerate(groups)]


def scatter(
    x: Symbol | Sequence[Part],
    groups: Sequence[str],
    *,
    axis: int = 0,
    sizes: Sizes = None,
    name: str | None = None,
) -> list[Part]:
    """Send part i to group i (chainermn.functions.scatter).

    Args:
        x: a list with one part per group, or one symbol that is cut along `axis`.
        groups: the groups, one per part.
        axis: the axis along which one symbol is cut.
        sizes: lengths of the parts along the axis, 0 for no part; equal lengths by default.
        name: prefix of the names of all nodes.

    Returns:
        The parts on their groups, None where there is no part.
    """
    stem = _resolve_name(name, "scatter")
    _require_list(groups, stem)
    parts = _parts(x, len(groups), axis, sizes, stem)
    return [
        _copy_part(part, group, f"{stem}_{i}", stem)
        for i, (part, group) in enumerate(zip(parts, groups, strict=True))
    ]


def gather(
    xs: Sequence[Part], group: str, *, axis: int | None = None, name: str | None = None
) -> Any:
    """Collect all parts on one group (chainermn.functions.gather).

    Returns a list of the parts; with an `axis`, one symbol that joins them along it.
    """
    stem = _resolve_name(name, "gather")
    return _join(xs, group, axis, stem, stem)


def allgather(
    xs: Sequence[Part],
    *,
    axis: int | None = None,
    groups: Sequence[str] | None = None,
    name: str | None = None,
) -> list[Any]:
    """Collect all parts on every participant's group (chainermn.functions.allgather).

    Args:
        xs: one part per participant.
        axis: if given, the parts are joined along it.
        groups: the participants' groups; by default the groups of the parts.
        name: prefix of the names of all nodes.

    Returns:
        For each participant a list of the parts; with an `axis`, one joined symbol.
    """
    stem = _resolve_name(name, "allgather")
    where = groups_of(xs, groups, stem)
    return [_join(xs, group, axis, f"{stem}_{i}", stem) for i, group in enumerate(where)]


def alltoall(
    xs: Sequence[Sequence[Part]], groups: Sequence[str], *, name: str | None = None
) -> list[list[Part]]:
    """Send part j of participant i to participant j, as its part i (chainermn.functions.alltoall).

    xs holds one list of parts per participant; the result has the same layout.
    """
    stem = _resolve_name(name, "alltoall")
    _require_square(xs, groups, stem)
    return [
        [_copy_part(row[j], group, f"{stem}_{j}_{i}", stem) for i, row in enumerate(xs)]
        for j, group in enumerate(groups)
    ]


def reduce_scatter(
    xs: Sequence[Symbol | Sequence[Part]],
    *,
    axis: int = 0,
    sizes: Sizes = None,
    groups: Sequence[str] | None = None,
    name: str | None = None,
) -> list[Part]:
    """Add up part i of all participants on group i.

    Args:
        xs: one symbol per participant, which is cut along `axis` as by `scatter`; or one list of
            parts per participant, which requires `groups`.
        axis: the axis along which symbols are cut.
        sizes: lengths of the parts along the axis, 0 for no part; equal lengths by default.
        groups: the participants' groups; by default the groups of the symbols.
        name: prefix of the names of all nodes.

    Returns:
        The sum of each part; None for a part that no participant has.
    """
    stem = _resolve_name(name, "reduce_scatter")
    where = groups_of(xs, groups, stem)
    rows = [_parts(x, len(where), axis, sizes, f"{stem}_cut{i}") for i, x in enumerate(xs)]
    _require_square(rows, where, stem)
    return [
        _sum([row[j] for row in rows], group, f"{stem}_{j}", stem) for j, group in enumerate(where)
    ]


def allreduce(
    xs: Sequence[Symbol],
    *,
    axis: int | None = None,
    sizes: Sizes = None,
    groups: Sequence[str] | None = None,
    name: str | None = None,
) -> list[Symbol]:
    """Add up the symbols of all participants on every participant's group.

    Without an `axis`, each of p participants sends its symbol to all others: p - 1 times the bytes
    of x. With an `axis`, each participant adds up one part along it and sends the sum to all others
    (reduce_scatter, then allgather): 2 (p - 1) / p times the bytes of x.
    """
    stem = _resolve_name(name, "allreduce")
    where = groups_of(xs, groups, stem)
    if axis is None or len(where) == 1:
        return [_sum(xs, group, f"{stem}_{i}", stem) for i, group in enumerate(where)]
    sums = reduce_scatter(xs, axis=axis, sizes=sizes, groups=where, name=f"{stem}_sum")
    return allgather(sums, axis=axis, groups=where, name=stem)


# -- building blocks -------------------------------------------------------------------------------


def groups_of(
    xs: Sequence[Any], groups: Sequence[str] | None, what: str = "communication"
) -> list[str]:
    """Return the participants' groups: the given ones, or the groups of the symbols."""
    if not xs:
        raise GraphError(f"{what!r} has no participants")
    if groups is not None:
        _require_list(groups, what)
        if len(groups) != len(xs):
            raise GraphError(f"{what!r}: {len(xs)} participants are given for {len(groups)} groups")
        return list(groups)
    symbol_groups = []
    for i, x in enumerate(xs):
        group = x.attr("ctx_group") if isinstance(x, Symbol) else None
        if group is None:
            label = f"symbol {x.name!r}" if isinstance(x, Symbol) else "no single symbol"
            raise GraphError(
                f"{what!r}: participant {i} ({label}) has no ctx_group; make it inside an "
                "AttrScope(ctx_group=...), or give groups="
            )
        symbol_groups.append(group)
    return symbol_groups


def _resolve_name(name: str | None, hint: str) -> str:
    return NameManager.current().get(name, hint)


def _call(op: str, inputs: Sequence[Symbol], group: str | None, name: str, **attrs: Any) -> Symbol:
    """Call an operator in a group; None means its first input's group, or else the open scope's."""
    group = inputs[0].attr("ctx_group") if group is None else group
    scope = AttrScope(**({} if group is None else {"ctx_group": group}))
    with NameManager(), scope:  # the name has its prefix already
        return Symbol(call(op, op, list(inputs), attrs, name))


def _copy(x: Symbol, group: str, name: str, exchange: str | None = None) -> Symbol:
    with AttrScope(**({} if exchange is None else {"exchange": exchange})):
        return _call(COPY, [x], group, name)


def _copy_part(x: Part, group: str, name: str, exchange: str) -> Part:
    return None if x is None else _copy(x, group, name, exchange)


def _collect(xs: Sequence[Part], group: str, name: str, exchange: str) -> list[Symbol]:
    """Copy the existing parts to a group, except those that are already there."""
    return [
        x if x.attr("ctx_group") == group else _copy(x, group, f"{name}_part{i}", exchange)
        for i, x in enumerate(xs)
        if x is not None
    ]


def _join(xs: Sequence[Part], group: str, axis: int | None, name: str, exchange: str) -> Any:
    if axis is None:
        return [_copy_part(x, group, f"{name}_{i}", exchange) for i, x in enumerate(xs)]
    parts = _collect(xs, group, name, exchange)
    if not parts:
        raise GraphError(f"{name!r}: nothing to join: all parts are None")
    return _call("Concat", parts, group, name, dim=axis)


def _sum(xs: Sequence[Part], group: str, name: str, exchange: str) -> Any:
    parts = _collect(xs, group, name, exchange)
    return _call("add_n", parts, group, name) if parts else None


def _parts(
    x: Symbol | Sequence[Part], count: int, axis: int, sizes: Sizes, name: str
) -> list[Part]:
    """Return one part per participant; a symbol is pieces on its own group."""
    if not isinstance(x, Symbol):
        _require_count(x, count, name, "parts")
        return list(x)
    if sizes is None:
        return list(_call("SliceChannel", [x], None, name, num_outputs=count, axis=axis))
    _require_count(sizes, count, name, "sizes")
    nonzero = [size for size in sizes if size]
    pieces = iter(_call("_cut", [x], None, name, sizes=nonzero, axis=axis))
    return [next(pieces) if size else None for size in sizes]


def _require_square(rows: Sequence[Sequence[Any]], groups: Sequence[str], name: str) -> None:
    _require_count(rows, len(groups), name, "lists")
    for i, row in enumerate(rows):
        _require_count(row, len(groups), name, f"parts of participant {i}")


def _require_count(sequence: Sequence[Any], count: int, name: str, what: str) -> None:
    if len(sequence) != count:
        raise GraphError(f"{name!r}: {len(sequence)} {what} are given for {count} participants")


def _require_list(groups: Sequence[str], name: str) -> None:
    if isinstance(groups, str):
        raise TypeError(f"{name!r}: groups is a list of groups, not the name {groups!r}")
    if not groups:
        raise GraphError(f"{name!r} has no participants")


__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "bcast",
    "gather",
    "reduce_scatter",
    "scatter",
    "send",
]
