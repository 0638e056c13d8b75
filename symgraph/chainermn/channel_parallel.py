"""Channel-parallel convolutions: the channels of one layer shared out among participants.

    ParallelConvolution2D (ChainerMN)             ShardedConvolution

    x[0::2] ── conv_0 ── y[0:32] ──┐              x ── conv_0 ── y[0:32] ──┐
                                   ├── y                                   ├── y
    x[1::2] ── conv_1 ── y[32:64] ─┘              x ── conv_1 ── y[32:64] ─┘

The first is a convolution in groups: a filter sees the channels of its own participant only, so p
participants hold 1/p of the parameters of a full convolution, and do 1/p of its work. The second
is the full convolution, whose filters are shared out: all of its parameters and all of its work.

Each participant has parameters of its own, in the group that reads them. A group that is mapped to
several devices (`symgraph/passes/shard.py`) keeps one parameter and is cut after the network is
written; here the cut is what is written, as in ChainerMN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from symgraph.core.errors import GraphError
from symgraph.frontend import comm, sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.name import NameManager
from symgraph.frontend.symbol import Symbol

Data = Symbol | Sequence[Symbol]


def ParallelConvolution2D(
    xs: Data,
    *,
    num_filter: int,
    groups: Sequence[str] | None = None,
    joined: bool = True,
    name: str | None = None,
    **attrs: Any,
) -> list[Symbol]:
    """A convolution of each participant's channels: a grouped one, not the full one (ChainerMN).

    Participant r of p reads the channels r, r + p, r + 2 p, ... and makes its share of the
    `num_filter` output channels; for the arguments and what comes back see `ShardedConvolution`.
    From ChainerMN's example of parallel convolution, where the channels lie in the same order.
    """
    found = _participants(xs, groups, num_filter, attrs, _stem(name, "parallelconvolution2d"))
    step = len(found.sizes)
    own = [
        _placed(
            "slice",
            group,
            f"{found.stem}_{i}_channels",
            x,
            begin=(None, i),
            end=(None, None),
            step=(None, step),
        )
        for i, (x, group) in enumerate(zip(found.xs, found.groups, strict=True))
    ]
    return _convolved(found, own if step > 1 else found.xs, attrs, joined)


def ShardedConvolution(
    xs: Data,
    *,
    num_filter: int,
    groups: Sequence[str] | None = None,
    joined: bool = True,
    name: str | None = None,
    **attrs: Any,
) -> list[Symbol]:
    """The full convolution, participant i making its share of the `num_filter` output channels.

    xs: all channels (batch, channel, *spatial), one symbol a participant, or one symbol that all
    read. groups: the participants' ctx_groups, by default those that the symbols are in. attrs:
    kernel, stride, pad and the rest of Convolution's parameters except num_group.

    Gives one symbol a participant, in its group: all output channels, or with joined=False its own,
    for layers that work on each channel (BatchNorm, Activation, Pooling) before
    `comm.allgather(ys, axis=1)`. Shares are as equal as can be, the larger ones first. Participant
    i's parameters are `<name>_<i>_weight` and `<name>_<i>_bias`, rows of the full ones in order.
    GraphError for fewer filters than participants.
    """
    found = _participants(xs, groups, num_filter, attrs, _stem(name, "shardedconvolution"))
    return _convolved(found, found.xs, attrs, joined)


class _Participants(NamedTuple):
    """Who takes part: data, group and number of filters of each; stem: of their nodes' names."""

    xs: Sequence[Symbol]
    groups: Sequence[str]
    sizes: Sequence[int]
    stem: str


def _participants(
    xs: Data, groups: Sequence[str] | None, filters: int, attrs: dict[str, Any], stem: str
) -> _Participants:
    if "num_group" in attrs:
        raise GraphError(
            f"{stem!r}: num_group={attrs['num_group']} is given, but participants are the groups; "
            "use Convolution in a group of several devices instead"
        )
    if isinstance(xs, Symbol):
        if groups is None:
            raise GraphError(f"{stem!r} has one symbol for all participants; give groups= too")
        xs = [xs] * len(groups)
    where = comm.groups_of(xs, groups, stem)
    count = len(where)
    sizes = [filters // count + (i < filters % count) for i in range(count)]
    if not all(sizes):
        raise GraphError(
            f"{stem!r}: num_filter={filters} is less than one for each of {count} participants"
        )
    return _Participants(xs, where, sizes, stem)


def _convolved(
    found: _Participants, data: Sequence[Symbol], attrs: dict[str, Any], joined: bool
) -> list[Symbol]:
    own = [
        _placed("Convolution", group, f"{found.stem}_{i}", x, num_filter=size, **attrs)
        for i, (x, group, size) in enumerate(zip(data, found.groups, found.sizes, strict=True))
    ]
    return comm.allgather(own, axis=1, name=found.stem) if joined else own


def _placed(op: str, group: str, name: str, x: Symbol, **attrs: Any) -> Symbol:
    with NameManager(), AttrScope(ctx_group=group):  # the name has its prefix already
        made: Symbol = getattr(sym, op)(x, name=name, **attrs)
    return made


def _stem(name: str | None, hint: str) -> str:
    return NameManager.current().get(name, hint)
