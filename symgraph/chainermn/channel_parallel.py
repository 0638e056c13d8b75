"""Channel-parallel convolutions: the channels of a layer divided among participants.

    ParallelConvolution2D (ChainerMN)             ShardedConvolution

    x[0::2] ── conv_0 ── y[0:32] ──┐              x ── conv_0 ── y[0:32] ──┐
                                   ├── y                                   ├── y
    x[1::2] ── conv_1 ── y[32:64] ─┘              x ── conv_1 ── y[32:64] ─┘

The first is a grouped convolution: a filter reads only the channels of its own participant, so p
participants together have 1/p of the parameters and of the work of a full convolution. The second
is the full convolution with its filters divided: all parameters and all work.

Each participant has its own parameters, in the group that reads them. By contrast, a group that is
mapped to several devices (`symgraph/passes/shard.py`) keeps one parameter and is cut after the
network has been written. Here, as in ChainerMN, the network is written with the cut.
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
    """Convolve each participant's channels: a grouped convolution, not the full one (ChainerMN).

    Participant r of p reads the channels r, r + p, r + 2 p, ... and computes its share of the
    `num_filter` output channels. Arguments and results are those of `ShardedConvolution`. Source:
    ChainerMN's example of parallel convolution, which has the same order of channels.
    """
    participants = _participants(
        xs, groups, num_filter, attrs, _stem(name, "parallelconvolution2d")
    )
    step = len(participants.sizes)
    channels = [
        _call_in_group(
            "slice",
            group,
            f"{participants.stem}_{i}_channels",
            x,
            begin=(None, i),
            end=(None, None),
            step=(None, step),
        )
        for i, (x, group) in enumerate(zip(participants.xs, participants.groups, strict=True))
    ]
    return _convolve(participants, channels if step > 1 else participants.xs, attrs, joined)


def ShardedConvolution(
    xs: Data,
    *,
    num_filter: int,
    groups: Sequence[str] | None = None,
    joined: bool = True,
    name: str | None = None,
    **attrs: Any,
) -> list[Symbol]:
    """Compute a full convolution, each participant a share of the `num_filter` output channels.

    Shares are as equal as possible, the larger ones first. Participant i's parameters are
    `<name>_<i>_weight` and `<name>_<i>_bias`, consecutive rows of the full parameters.

    Args:
        xs: all channels, of shape (batch, channel, *spatial): one symbol per participant, or one
            symbol that all read.
        num_filter: output channels of all participants together.
        groups: the participants' ctx_groups; by default the groups of the symbols.
        joined: if false, each participant returns its own channels only, for layers that work on
            single channels (BatchNorm, Activation, Pooling) before `comm.allgather(ys, axis=1)`.
        name: prefix of all names.
        **attrs: kernel, stride, pad and other parameters of Convolution except num_group.

    Returns:
        One symbol per participant, in its group.

    Raises:
        GraphError: for fewer filters than participants, or symbols without a group.
    """
    participants = _participants(xs, groups, num_filter, attrs, _stem(name, "shardedconvolution"))
    return _convolve(participants, participants.xs, attrs, joined)


class _Participants(NamedTuple):
    """The participants of a convolution."""

    #: Each one's data.
    xs: Sequence[Symbol]
    #: Each one's group.
    groups: Sequence[str]
    #: Each one's number of filters.
    sizes: Sequence[int]
    #: Prefix of the names of all nodes.
    stem: str


def _participants(
    xs: Data, groups: Sequence[str] | None, filters: int, attrs: dict[str, Any], stem: str
) -> _Participants:
    if "num_group" in attrs:
        raise GraphError(
            f"{stem!r}: num_group={attrs['num_group']} is given, but the participants are the "
            f"groups; "
            "use Convolution in a group of several devices instead"
        )
    if isinstance(xs, Symbol):
        if groups is None:
            raise GraphError(f"{stem!r} has one symbol for all participants; pass groups= too")
        xs = [xs] * len(groups)
    where = comm.groups_of(xs, groups, stem)
    count = len(where)
    sizes = [filters // count + (i < filters % count) for i in range(count)]
    if not all(sizes):
        raise GraphError(
            f"{stem!r}: num_filter={filters} is less than one per participant ({count})"
        )
    return _Participants(xs, where, sizes, stem)


def _convolve(
    participants: _Participants, data: Sequence[Symbol], attrs: dict[str, Any], joined: bool
) -> list[Symbol]:
    shares = [
        _call_in_group(
            "Convolution", group, f"{participants.stem}_{i}", x, num_filter=size, **attrs
        )
        for i, (x, group, size) in enumerate(
            zip(data, participants.groups, participants.sizes, strict=True)
        )
    ]
    return comm.allgather(shares, axis=1, name=participants.stem) if joined else shares


def _call_in_group(op: str, group: str, name: str, x: Symbol, **attrs: Any) -> Symbol:
    with NameManager(), AttrScope(ctx_group=group):  # the name has its prefix already
        output: Symbol = getattr(sym, op)(x, name=name, **attrs)
    return output


def _stem(name: str | None, hint: str) -> str:
    return NameManager.current().get(name, hint)
