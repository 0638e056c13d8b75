"""Communication between groups: MPI's collectives as ordinary operators of one graph.

The graph is global: a collective takes one symbol a participant, each made in a `ctx_group` of its
own, and gives one symbol a participant. What it is made of (cuts at the sender, copies, joins and
sums at the receiver) are operators like all others, so messages, their order, the proof that
nothing hangs, and the gradients follow as they do everywhere:

    forward             backward                   messages of p participants
    send                send back                  1
    bcast               sum at the root            p - 1
    scatter, gather     gather, scatter            p - 1
    alltoall            alltoall                   p (p - 1)
    allgather           reduce_scatter             p (p - 1)
    reduce_scatter      allgather                  p (p - 1)
    allreduce           allreduce                  p (p - 1); with an axis 2 p (p - 1) of 1/p size

The copies of one collective carry its name (the attribute `exchange`), and so do the messages that
they make: where ranks are MPI processes, these are one of MPI's own collectives, in both
directions. Sums are no part of it: they are made in the order of the participants, so all of them
have the same bits, with every transport. Participants may share a device: what stays there is no
message.

Parts may differ in size. A part of no elements is None, and no message, since a dimension of 0
stands for an unknown one (MXNet).

A loss that is made on p groups is p losses, and their gradients add up. Make it on one group, or
give each one `grad_scale=1 / p`.
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
    """x on another group (chainermn.functions.send and recv in one)."""
    return _copy(x, group, _named(name, "send"))


def bcast(x: Symbol, groups: Sequence[str], name: str | None = None) -> list[Symbol]:
    """x on every group (chainermn.functions.bcast); its gradient is the sum of theirs."""
    stem = _named(name, "bcast")
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
    """Part i on group i: of a list of parts (ChainerMN), or of one symbol cut along `axis`.

    sizes: the parts' lengths along the axis, 0 for none; equal ones by default.
    """
    stem = _named(name, "scatter")
    _require_list(groups, stem)
    parts = _parts(x, len(groups), axis, sizes, stem)
    return [
        _moved(part, group, f"{stem}_{i}", stem)
        for i, (part, group) in enumerate(zip(parts, groups, strict=True))
    ]


def gather(
    xs: Sequence[Part], group: str, *, axis: int | None = None, name: str | None = None
) -> Any:
    """All parts on one group: as a list (ChainerMN), or joined along `axis` as one symbol."""
    stem = _named(name, "gather")
    return _gathered(xs, group, axis, stem, stem)


def allgather(
    xs: Sequence[Part],
    *,
    axis: int | None = None,
    groups: Sequence[str] | None = None,
    name: str | None = None,
) -> list[Any]:
    """`gather` on every participant's group: lists, or joined symbols.

    groups: of the participants; by default those that the parts are in.
    """
    stem = _named(name, "allgather")
    where = groups_of(xs, groups, stem)
    return [_gathered(xs, group, axis, f"{stem}_{i}", stem) for i, group in enumerate(where)]


def alltoall(
    xs: Sequence[Sequence[Part]], groups: Sequence[str], *, name: str | None = None
) -> list[list[Part]]:
    """Part j of participant i's list becomes part i of participant j's list."""
    stem = _named(name, "alltoall")
    _square(xs, groups, stem)
    return [
        [_moved(row[j], group, f"{stem}_{j}_{i}", stem) for i, row in enumerate(xs)]
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
    """The sum over participants of part i, on group i.

    xs: a symbol a participant, cut along `axis` as `scatter` does it; or lists of parts, then
    with groups. Part i is None where no participant has one.
    """
    stem = _named(name, "reduce_scatter")
    where = groups_of(xs, groups, stem)
    rows = [_parts(x, len(where), axis, sizes, f"{stem}_cut{i}") for i, x in enumerate(xs)]
    _square(rows, where, stem)
    return [
        _summed([row[j] for row in rows], group, f"{stem}_{j}", stem)
        for j, group in enumerate(where)
    ]


def allreduce(
    xs: Sequence[Symbol],
    *,
    axis: int | None = None,
    sizes: Sizes = None,
    groups: Sequence[str] | None = None,
    name: str | None = None,
) -> list[Symbol]:
    """The sum of all symbols, on every participant's group.

    axis: each participant adds one part along this axis and hands it round (reduce_scatter, then
    allgather), which sends 2 (p - 1) / p times the bytes of x from each instead of p - 1 times.
    """
    stem = _named(name, "allreduce")
    where = groups_of(xs, groups, stem)
    if axis is None or len(where) == 1:
        return [_summed(xs, group, f"{stem}_{i}", stem) for i, group in enumerate(where)]
    sums = reduce_scatter(xs, axis=axis, sizes=sizes, groups=where, name=f"{stem}_sum")
    return allgather(sums, axis=axis, groups=where, name=stem)


# -- what they are made of -------------------------------------------------------------------------


def groups_of(
    xs: Sequence[Any], groups: Sequence[str] | None, what: str = "communication"
) -> list[str]:
    """The participants' groups: the given ones, or those that the symbols are in."""
    if not xs:
        raise GraphError(f"{what!r} has no participants")
    if groups is not None:
        if len(groups) != len(xs):
            raise GraphError(f"{what!r}: {len(xs)} participants are given for {len(groups)} groups")
        return list(groups)
    found = []
    for i, x in enumerate(xs):
        group = x.attr("ctx_group") if isinstance(x, Symbol) else None
        if group is None:
            shown = f"symbol {x.name!r}" if isinstance(x, Symbol) else "no single symbol"
            raise GraphError(
                f"{what!r}: participant {i} ({shown}) is in no ctx_group; make it inside an "
                "AttrScope(ctx_group=...), or give groups="
            )
        found.append(group)
    return found


def _named(name: str | None, hint: str) -> str:
    return NameManager.current().get(name, hint)


def _call(op: str, inputs: Sequence[Symbol], group: str | None, name: str, **attrs: Any) -> Symbol:
    """An operator in a group; None: where its first input is, or else in the scope's."""
    group = inputs[0].attr("ctx_group") if group is None else group
    scope = AttrScope(**({} if group is None else {"ctx_group": group}))
    with NameManager(), scope:  # the name has its prefix already
        return Symbol(call(op, op, list(inputs), attrs, name))


def _copy(x: Symbol, group: str, name: str, exchange: str | None = None) -> Symbol:
    with AttrScope(**({} if exchange is None else {"exchange": exchange})):
        return _call(COPY, [x], group, name)


def _moved(x: Part, group: str, name: str, exchange: str) -> Part:
    return None if x is None else _copy(x, group, name, exchange)


def _arrived(xs: Sequence[Part], group: str, name: str, exchange: str) -> list[Symbol]:
    """The parts that there are, on a group; what is there already stays as it is."""
    return [
        x if x.attr("ctx_group") == group else _copy(x, group, f"{name}_part{i}", exchange)
        for i, x in enumerate(xs)
        if x is not None
    ]


def _gathered(xs: Sequence[Part], group: str, axis: int | None, name: str, exchange: str) -> Any:
    if axis is None:
        return [_moved(x, group, f"{name}_{i}", exchange) for i, x in enumerate(xs)]
    parts = _arrived(xs, group, name, exchange)
    if not parts:
        raise GraphError(f"{name!r}: there is nothing to join, all parts are None")
    return _call("Concat", parts, group, name, dim=axis)


def _summed(xs: Sequence[Part], group: str, name: str, exchange: str) -> Any:
    parts = _arrived(xs, group, name, exchange)
    return _call("add_n", parts, group, name) if parts else None


def _parts(
    x: Symbol | Sequence[Part], count: int, axis: int, sizes: Sizes, name: str
) -> list[Part]:
    """One part for each participant; a symbol is cut where it is made."""
    if not isinstance(x, Symbol):
        _fits(x, count, name, "parts")
        return list(x)
    if sizes is None:
        return list(_call("SliceChannel", [x], None, name, num_outputs=count, axis=axis))
    _fits(sizes, count, name, "sizes")
    there = [size for size in sizes if size]
    cut = iter(_call("_cut", [x], None, name, sizes=there, axis=axis))
    return [next(cut) if size else None for size in sizes]


def _square(rows: Sequence[Sequence[Any]], groups: Sequence[str], name: str) -> None:
    _fits(rows, len(groups), name, "lists")
    for i, row in enumerate(rows):
        _fits(row, len(groups), name, f"parts of participant {i}")


def _fits(given: Sequence[Any], count: int, name: str, what: str) -> None:
    if len(given) != count:
        raise GraphError(f"{name!r}: {len(given)} {what} are given for {count} participants")


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
