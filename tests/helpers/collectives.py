"""Networks of collectives."""

from __future__ import annotations

import numpy as np

from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from tests.helpers.pipelines import Case

comm = sym.comm


def groups(count: int) -> list[str]:
    """The participants' groups."""
    return [f"rank{i}" for i in range(count)]


def network(p: int) -> Case:
    """All collectives behind one another, with weights on every group."""
    rng = np.random.default_rng(3)
    arrays, hidden = {}, []
    data = sym.Variable("data")
    for i, group in enumerate(groups(p)):
        with AttrScope(ctx_group=group):
            arrays[f"w{i}_weight"] = rng.standard_normal((2 * p, 4))
            fc = sym.FullyConnected(data, num_hidden=2 * p, no_bias=True, name=f"w{i}")
            hidden.append(sym.tanh(fc))
    mixed = comm.allreduce(hidden, axis=1)
    mixed = comm.alltoall(
        [comm.scatter(x, [g] * p, axis=1) for x, g in zip(mixed, groups(p), strict=True)], groups(p)
    )
    joined = [comm.gather(row, g, axis=1) for row, g in zip(mixed, groups(p), strict=True)]
    sums = comm.reduce_scatter([sym.tanh(x) for x in joined], axis=1, groups=groups(p))
    every = comm.allgather(sums, axis=1)
    losses = []
    for i, (x, group) in enumerate(zip(every, groups(p), strict=True)):
        with AttrScope(ctx_group=group):
            losses.append(sym.MakeLoss(sym.square(x), grad_scale=1 / p, name=f"loss{i}"))
    return Case(sym.Group(losses), {"data": rng.standard_normal((6, 4))}, arrays)


def tree(p: int) -> Case:
    """One root: a broadcast, a scatter in unequal parts, and what all make gathered again."""
    rng = np.random.default_rng(4)
    names = groups(p)
    sizes = [i + 1 for i in range(p)]
    with AttrScope(ctx_group=names[0]):
        x = sym.tanh(sym.FullyConnected(sym.Variable("data"), num_hidden=sum(sizes), name="top"))
    parts = comm.scatter(x, names, axis=1, sizes=sizes)
    made = []
    for i, (part, whole) in enumerate(zip(parts, comm.bcast(x, names), strict=True)):
        with AttrScope(ctx_group=names[i]):
            both = sym.Concat(part, whole, dim=1)
            made.append(sym.tanh(sym.FullyConnected(both, num_hidden=i + 2, name=f"fc{i}")))
    joined = comm.gather(made, names[-1], axis=1)
    with AttrScope(ctx_group=names[-1]):
        loss = sym.MakeLoss(sym.square(joined), name="loss")
    shapes, _, _ = loss.infer_shape(data=(6, 3))
    values = {n: rng.standard_normal(s) for n, s in zip(loss.list_arguments(), shapes, strict=True)}
    return Case(loss, {"data": values.pop("data")}, values)
