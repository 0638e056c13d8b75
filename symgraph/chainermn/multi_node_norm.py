"""Multi-node batch normalisation: statistics over the samples of all participants (ChainerMN).

    x0 ── mean, var, count ──┐                      ┌── normalise x0 ── y0
                             ├─ sum ─ mean ─ sum ───┤
    x1 ── mean, var, count ──┘     of all    var    └── normalise x1 ── y1

The variance is that of the parts plus that of their means, so that nothing cancels and the numbers
are BatchNorm's over the joined batch. What goes between participants are vectors of a number a
channel, and so are the gradients of them.
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
    """BatchNorm over the joined batch of all participants, each one's part in its group.

    xs: one symbol a participant; they may have different numbers of samples. groups: by default
    those that the symbols are in. Gives one symbol a participant. Parameters and states are those
    of one BatchNorm, with participant 0: vectors, by default variables `<name>_gamma`, `_beta`,
    `_moving_mean` and `_moving_var`.
    Arguments and defaults are BatchNorm's (MXNet; ChainerMN's eps is 2e-5). A network that splits
    its batch into micro-batches is refused, as with BatchNorm.
    """
    stem = NameManager.current().get(name, "multinodebatchnormalization")
    where = comm.groups_of(xs, groups, stem)
    means, variances = _statistics(xs, where, axis, stem)
    if vectors is None:
        with AttrScope(ctx_group=where[0]):
            vectors = [sym.Variable(f"{stem}_{which}") for which in VECTORS]
    gamma, beta, moving_mean, moving_var = vectors
    scaled = {"axis": axis, "eps": eps, "fix_gamma": fix_gamma}
    made = []
    for i, (x, mean, var) in enumerate(zip(xs, means, variances, strict=True)):
        with _participant(where[i], f"{stem}_{i}_"):
            choice, more = sym._batch_or_moving, {}
            if i == 0:  # the only one that moves them
                choice, more = sym._moving_average, {"momentum": momentum}
            mean = choice(mean, moving_mean, name="mean", **more)
            var = choice(var, moving_var, name="var", **more)
            made.append(sym._normalize(x, gamma, beta, mean, var, name="normalized", **scaled))
    return made


def create_mnbn_model(
    symbol: Symbol, groups: Sequence[str], data: Mapping[str, Sequence[Symbol]]
) -> list[Symbol]:
    """A network on every participant, whose BatchNorms go over the samples of all (ChainerMN).

    data: for each variable that is fed, every participant's part. All other variables are
    parameters that the copies share; they live with participant 0. Operators of participant i are
    in its group, named `<name>_<i>`. GraphError for data that the network does not have.
    """
    known = symbol.list_inputs()
    for name, parts in data.items():
        if name not in known:
            raise GraphError(f"the network has no input {name!r}; {nearest(name, known)}")
        comm.groups_of(parts, groups, name)
    made: dict[int, list[Symbol]] = {}
    for node in walk(symbol.entries):
        inputs = [[made[id(e.node)][i][e.port] for e in node.inputs] for i in range(len(groups))]
        if node.op is None:
            shared = replace(node, attrs={**node.attrs, hide("ctx_group"): groups[0]})
            made[id(node)] = list(data.get(node.name, [Symbol([Entry(shared)])] * len(groups)))
        elif node.op.name == "BatchNorm" and not node.params["use_global_stats"]:
            own = {k: node.params[k] for k in ("eps", "momentum", "fix_gamma", "axis")}
            made[id(node)] = MultiNodeBatchNormalization(
                [given[0] for given in inputs],
                groups=groups,
                name=node.name,
                vectors=inputs[0][1:],
                **own,
            )
        else:
            made[id(node)] = [
                _copy(node, given, group, i)
                for i, (given, group) in enumerate(zip(inputs, groups, strict=True))
            ]
    return [
        Symbol([made[id(e.node)][i].entries[e.port] for e in symbol.entries])
        for i in range(len(groups))
    ]


def _copy(node: SymNode, inputs: Sequence[Symbol], group: str, number: int) -> Symbol:
    attrs = {**node.attrs, hide("ctx_group"): group}
    given = tuple([x.entries[0] for x in inputs])
    copied = replace(node, name=f"{node.name}_{number}", attrs=attrs, inputs=given)
    return Symbol([Entry(copied, port) for port in range(len(copied.outputs))])


def _statistics(
    xs: Sequence[Symbol], where: Sequence[str], axis: int, stem: str
) -> tuple[list[Symbol], list[Symbol]]:
    """Mean and variance of all samples, at each participant."""
    own, sums = [], []
    for i, x in enumerate(xs):
        with _participant(where[i], f"{stem}_{i}_"):
            mean, var, count = sym._moments(x, axis=axis, name="moments")
            own.append((mean, var, count))
            sums.append(sym.Concat(sym.broadcast_mul(mean, count), count, dim=0, name="sums"))
    sums = comm.allreduce(sums, groups=where, name=f"{stem}_sums")
    means, counts, spread = [], [], []
    for i, (mean, var, count) in enumerate(own):
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
    """Nodes made inside are in the group and have names with the prefix."""
    with Prefix(prefix), AttrScope(ctx_group=group):
        yield
