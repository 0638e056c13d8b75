"""ChainerMN's own patterns of communication, with the serial networks that they are equal to.

Each gives the outputs of the lists of all ranks, and what they should be, as symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np

import symgraph as sg
from symgraph.chainermn.chain_list import MultiNodeChainList, connect, create_multi_node_n_step_rnn
from symgraph.frontend.symbol import Symbol
from tests.helpers.pipelines import Case

WIDTH, BATCH = 5, 4
Pattern = tuple[list[Symbol], list[Symbol]]


def linear(name: str) -> Callable[..., Symbol]:
    """A dense layer of the sum of its inputs: ChainerMN's BranchSubA and BranchSubB."""

    def link(*xs: Symbol) -> Symbol:
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return sg.sym.FullyConnected(total, num_hidden=WIDTH, name=name)

    return link


def chain(rank: int, *links) -> MultiNodeChainList:
    """A list of (link, rank_in, rank_out)."""
    made = MultiNodeChainList(rank)
    for link in links:
        made.add_link(*link)
    return made


@cache
def data(rank: int) -> Symbol:
    return sg.sym.Variable(f"x{rank}")


def case_of(outputs, p: int) -> Case:
    """A loss on every output, and values that depend on names alone."""
    losses = [sg.sym.MakeLoss(sg.sym.square(y), name=f"loss{i}") for i, y in enumerate(outputs)]
    symbol = sg.sym.Group(losses)
    feeds, arrays = {}, {}
    shapes = {f"x{r}": (BATCH, WIDTH) for r in range(p) if f"x{r}" in symbol.list_arguments()}
    inferred, _, _ = symbol.infer_shape(**shapes)
    for name, shape in zip(symbol.list_arguments(), inferred, strict=True):
        rng = np.random.default_rng([*name.encode()])
        table = feeds if name in shapes else arrays
        table[name] = rng.standard_normal(shape)
    return Case(symbol, feeds, arrays)


def cycle(p: int) -> Pattern:
    """0 -> 1 -> ... -> 0."""
    lists = [chain(0, (linear("a"), None, 1), (linear("z"), p - 1, None))]
    lists += [chain(r, (linear(f"b{r}"), r - 1, (r + 1) % p)) for r in range(1, p)]
    y, *_ = connect(lists[0](data(0)), *(one() for one in lists[1:]))
    want = linear("a")(data(0))
    for r in range(1, p):
        want = linear(f"b{r}")(want)
    return [y], [linear("z")(want)]


def crossing(p: int) -> Pattern:
    """Rank 0 sends, then receives; the others receive, then send: a ring of messages at once."""
    lists = [chain(0, (linear("a0"), None, 1), (linear("b0"), p - 1, None))]
    lists += [
        chain(r, (linear(f"b{r}"), r - 1, None), (linear(f"a{r}"), None, (r + 1) % p))
        for r in range(1, p)
    ]
    got = connect(*(one(data(r)) for r, one in enumerate(lists)))
    want = [linear(f"b{r}")(linear(f"a{(r - 1) % p}")(data((r - 1) % p))) for r in range(p)]
    return got, want


def branching(form: int, p: int) -> Pattern:
    """A parent sends to all children, and to itself but for form 1, in four orders."""
    children = list(range(1, p))
    ranks = {1: children, 2: [0, *children], 3: [*children, 0], 4: [*children[1:], 0, children[0]]}
    order = ranks[form]
    own = [] if form == 1 else [(linear("own"), 0, 0)]
    parent = chain(0, (linear("a"), None, order), *own, (linear("z"), order, None))
    lists = [parent(data(0)), *(chain(r, (linear(f"c{r}"), 0, 0))() for r in children)]
    got = connect(*lists)[:1]
    a = linear("a")(data(0))
    parts = [linear(f"c{r}")(a) if r else linear("own")(a) for r in order]
    return got, [linear("z")(*parts)]


def twisting(p: int) -> Pattern:
    """Neighbours exchange messages both ways, with two edges from a rank to itself."""
    lists = [chain(0, (linear("0a"), None, 1), (linear("0b"), 1, None))]
    lists += [
        chain(
            r,
            (linear(f"{r}a"), r - 1, r),
            (linear(f"{r}b"), None, r - 1),
            (linear(f"{r}c"), None, r + 1),
            (linear(f"{r}d"), r + 1, r),
            (linear(f"{r}e"), [r, r], None),
        )
        for r in range(1, p - 1)
    ]
    e = p - 1
    lists.append(chain(e, (linear(f"{e}a"), e - 1, None), (linear(f"{e}b"), None, e - 1)))
    got = connect(*(one(data(r)) for r, one in enumerate(lists)))

    def sent(r: int, to: int) -> Symbol:
        letter = {0: "a", e: "b"}.get(r, "b" if to < r else "c")
        return linear(f"{r}{letter}")(data(r))

    want = [linear("0b")(sent(1, 0))]
    for r in range(1, e):
        pair = linear(f"{r}a")(sent(r - 1, r)), linear(f"{r}d")(sent(r + 1, r))
        want.append(linear(f"{r}e")(*pair))
    return got, [*want, linear(f"{e}a")(sent(e - 1, e))]


def point_to_point(retain: bool, p: int) -> Case:
    """X1 and X2: a ring of sigmoid layers; the data's gradient comes back to rank 0."""

    def layer(rank: int) -> Callable[[Symbol], Symbol]:
        name = f"w{rank}"
        return lambda x: sg.sym.sigmoid(
            sg.sym.FullyConnected(x, num_hidden=10, no_bias=True, name=name)
        )

    x = sg.sym.Variable("x")
    lists = [chain(r, (layer(r), r - 1 if r else None, r + 1)) for r in range(p - 1)]
    lists.append(chain(p - 1, (layer(p - 1), p - 2, 0 if retain else None)))
    if retain:
        lists[0].add_link(lambda y: y, rank_in=p - 1, rank_out=None)
    calls = [one(x) if r == 0 else one() for r, one in enumerate(lists)]
    (y,) = [found for found in connect(*calls) if found is not None]
    symbol = sg.sym.MakeLoss(sg.sym.mean(sg.sym.square(y - x)), name="loss")
    arrays = {f"w{r}_weight": np.arange(100.0).reshape(10, 10) / ((r + 1) * 100) for r in range(p)}
    arrays["x"] = np.arange(10.0)[None] / 10
    return Case(sg.sym.Group([symbol, sg.sym.BlockGrad(y)]), {}, arrays)


CELLS = {
    "rnn": sg.rnn.RNNCell,
    "relu": partial(sg.rnn.RNNCell, activation="relu"),
    "lstm": sg.rnn.LSTMCell,
    "gru": sg.rnn.GRUCell,
}


def stacked(kind: str, rank: int):
    cell = sg.rnn.SequentialRNNCell()
    for layer in range(2):
        cell.add(CELLS[kind](WIDTH, prefix=f"r{rank}_l{layer}_"))
    return cell


def states(kind: str, p: int) -> Pattern:
    """X7: a chain of recurrent networks, each beginning with the last one's states."""
    lengths = [2, 3, 1, 2]
    steps = [[data(r) * (t + 1.0) for t in range(lengths[r])] for r in range(p)]
    rnns = [
        create_multi_node_n_step_rnn(
            stacked(kind, r), r, r - 1 if r else None, r + 1 if r < p - 1 else None
        )
        for r in range(p)
    ]
    got = connect(*(rnn(lengths[r], steps[r]) for r, rnn in enumerate(rnns)))
    want, last = [], None
    for r in range(p):
        outputs, last = stacked(kind, r).unroll(lengths[r], steps[r], begin_state=last)
        want.append(outputs[-1])
    return [outputs[-1] for outputs, _ in got], want


def tuples(length: int, p: int) -> Pattern:
    """X3: tuples of so many elements go round; all but the first are not used further on."""

    def many(name: str) -> Callable[..., tuple[Symbol, ...]]:
        return lambda x: tuple(
            linear(f"{name}{i}")(x[0] if isinstance(x, tuple) else x) for i in range(length)
        )

    lists = [chain(0, (many("a"), None, 1), (lambda x: linear("z")(x[0]), p - 1, None))]
    lists += [chain(r, (many(f"b{r}_"), r - 1, (r + 1) % p)) for r in range(1, p)]
    y, *_ = connect(lists[0](data(0)), *(one() for one in lists[1:]))
    want = many("a")(data(0))
    for r in range(1, p):
        want = many(f"b{r}_")(want)
    return [y], [linear("z")(want[0])]


def data_alone(p: int) -> Pattern:
    """X4: rank 0 sends the data, which has no gradient; ChainerMN's backward hung (PR #214)."""
    lists = [chain(0, (sg.sym.identity, None, 1))]
    lists += [chain(r, (linear(f"b{r}"), r - 1, r + 1 if r < p - 1 else None)) for r in range(1, p)]
    *_, y = connect(lists[0](data(0)), *(one() for one in lists[1:]))
    want = data(0)
    for r in range(1, p):
        want = linear(f"b{r}")(want)
    return [y], [want]


PATTERNS: dict[str, Callable[[int], Pattern]] = {
    **{f"X3-{length}": partial(tuples, length) for length in (1, 2)},
    "X4": data_alone,
    "X6-cycle": cycle,
    "X6-crossing": crossing,
    **{f"X6-branching-{form}": partial(branching, form) for form in (1, 2, 3, 4)},
    "X6-twisting": twisting,
    **{f"X7-{kind}": partial(states, kind) for kind in CELLS},
}
