"""Multi-node batch normalization: statistics over the samples of all participants (ChainerMN).

    x0 ── mean, var, count ──┐                      ┌── normalize x0 ── y0
                             ├─ sum ─ mean ─ sum ───┤
    x1 ── mean, var, count ──┘     of all    var    └── normalize x1 ── y1

The variance is the mean of the parts' variances plus the variance of their means, which avoids
cancellation; the result is BatchNorm's over the joined batch. Messages, and their gradients, are
vectors with one number per channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from symgraph.core.errors import GraphError, nearest
from symgraph.core.tags import hide
from symgraph.frontend import comm, sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.name import NameManager, Prefix
from symgraph.frontend.symbol import Symbol
from symgraph.frontend.symnode import Entry, SymNode, walk

VECTORS = ("gamma", "beta", "moving_mean", "moving_var")


def MultiNodeBatchNormalization(
    xs: Sequence[Symbol],
    *,
    groups: Sequence[str] | None = None,
    eps: float = 1e-3,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    axis: int = 1,
    name: str | None = None,
    vectors: Sequence[Symbol] | None = None,
) -> list[Symbol]:
    """Normalize the joined batch of all participants, each part in its group (ChainerMN).

    Parameters and states are those of one BatchNorm and belong to participant 0. As with BatchNorm,
    a network that splits its batch into micro-batches is an error.

    Args:
        xs: one symbol per participant, with possibly different numbers of samples.
        groups: the participants' groups; by default the groups of the symbols.
        eps: as of MXNet's BatchNorm (ChainerMN's is 2e-5).
        momentum: as of BatchNorm.
        fix_gamma: as of BatchNorm.
        axis: as of BatchNorm, the axis of channels.
        name: prefix of all names.
        vectors: gamma, beta, moving mean and moving variance; by default variables `<name>_gamma`,
            `<name>_beta`, `<name>_moving_mean` and `<name>_moving_var`.

    Returns:
        One symbol per participant.
    """
    stem = NameManager.current().get(name, "multinodebatchnormalization")
    where = comm.groups_of(xs, groups, stem)
    means, variances = _statistics(xs, where, axis, stem)
    if vectors is None:
        with AttrScope(ctx_group=where[0]):
            vectors = [sym.Variable(f"{stem}_{which}") for which in VECTORS]
    gamma, beta, moving_mean, moving_var = vectors
    norm_params = {"axis": axis, "eps": eps, "fix_gamma": fix_gamma}
    outputs = []
    for i, (x, mean, var) in enumerate(zip(xs, means, variances, strict=True)):
        with _participant(where[i], f"{stem}_{i}_"):
            average, params = sym._batch_or_moving, {}
            if i == 0:  # only participant 0 updates the moving averages
                average, params = sym._moving_average, {"momentum": momentum}
            mean = average(mean, moving_mean, name="mean", **params)
            var = average(var, moving_var, name="var", **params)
            outputs.append(
                sym._normalize(x, gamma, beta, mean, var, name="normalized", **norm_params)
            )
    return outputs


def create_mnbn_model(
    symbol: Symbol, groups: Sequence[str], data: Mapping[str, Sequence[Symbol]]
) -> list[Symbol]:
    """Copy a network to every participant, with BatchNorms over the samples of all (ChainerMN).

    Operators of participant i are in its group, named `<name>_<i>`. Parameters are shared by the
    copies and belong to participant 0. Corresponds to chainermn.links.create_mnbn_model.

    Args:
        symbol: the network.
        groups: the participants' groups.
        data: each participant's part of every fed variable, by name; all other variables are
            parameters.

    Returns:
        One symbol per participant.

    Raises:
        GraphError: for a name in `data` that is not an input of the network.
    """
    known = symbol.list_inputs()
    for name, parts in data.items():
        if name not in known:
            raise GraphError(f"the network has no input {name!r}; {nearest(name, known)}")
        comm.groups_of(parts, groups, name)
    copies: dict[int, list[Symbol]] = {}
    for node in walk(symbol.entries):
        inputs = [[copies[id(e.node)][i][e.port] for e in node.inputs] for i in range(len(groups))]
        if node.op is None:
            shared = replace(node, attrs={**node.attrs, hide("ctx_group"): groups[0]})
            copies[id(node)] = list(data.get(node.name, [Symbol([Entry(shared)])] * len(groups)))
        elif node.op.name == "BatchNorm" and not node.params["use_global_stats"]:
            params = {k: node.params[k] for k in ("eps", "momentum", "fix_gamma", "axis")}
            copies[id(node)] = MultiNodeBatchNormalization(
                [arguments[0] for arguments in inputs],
                groups=groups,
                name=node.name,
                vectors=inputs[0][1:],
                **params,
            )
        else:
            copies[id(node)] = [
                _copy(node, arguments, group, i)
                for i, (arguments, group) in enumerate(zip(inputs, groups, strict=True))
            ]
    return [
        Symbol([copies[id(e.node)][i].entries[e.port] for e in symbol.entries])
        for i in range(len(groups))
    ]


def _copy(node: SymNode, inputs: Sequence[Symbol], group: str, number: int) -> Symbol:
    attrs = {**node.attrs, hide("ctx_group"): group}
    entries = tuple([x.entries[0] for x in inputs])
    copied = replace(node, name=f"{node.name}_{number}", attrs=attrs, inputs=entries)
    return Symbol([Entry(copied, port) for port in range(len(copied.outputs))])


def _statistics(
    xs: Sequence[Symbol], where: Sequence[str], axis: int, stem: str
) -> tuple[list[Symbol], list[Symbol]]:
    """Return mean and variance of all samples, on each participant."""
    moments, sums = [], []
    for i, x in enumerate(xs):
        with _participant(where[i], f"{stem}_{i}_"):
            mean, var, count = sym._moments(x, axis=axis, name="moments")
            moments.append((mean, var, count))
            sums.append(sym.Concat(sym.broadcast_mul(mean, count), count, dim=0, name="sums"))
    sums = comm.allreduce(sums, groups=where, name=f"{stem}_sums")
    means, counts, spread = [], [], []
    for i, (mean, var, count) in enumerate(moments):
        with _participant(where[i], f"{stem}_{i}_all_"):
            total = sym.slice_axis(sums[i], axis=0, begin=0, end=-1)
            counts.append(sym.slice_axis(sums[i], axis=0, begin=-1, end=None))
            means.append(sym.broadcast_div(total, counts[i], name="mean"))
            spread.append(sym.broadcast_mul(var + sym.square(mean - means[i]), count))
    spread = comm.allreduce(spread, groups=where, name=f"{stem}_spread")
    variances = []
    for i, count in enumerate(counts):
        with _participant(where[i], f"{stem}_{i}_all_"):
            variances.append(sym.broadcast_div(spread[i], count, name="var"))
    return means, variances


@contextmanager
def _participant(group: str, prefix: str) -> Iterator[None]:
    """Put nodes made inside into the group, with the prefix in their names."""
    with Prefix(prefix), AttrScope(ctx_group=group):
        yield
