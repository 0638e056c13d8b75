"""Chain lists: ChainerMN's own patterns against serial networks, and lists that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest

import symgraph as sg
from runtime.pipeline import Options
from symgraph.chain_list import MultiNodeChainList, connect, create_multi_node_n_step_rnn
from symgraph.context import cpu
from symgraph.errors import GraphError, ShapeError
from symgraph.symbol import Symbol
from tests.pipelines import Case, assert_close, judge, on_threads

WIDTH, BATCH = 5, 4
RANKS = pytest.mark.parametrize("p", [2, 3, 4])


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


def check(got, want, p: int) -> None:
    """The numbers of the serial network, with each rank on a device, and all ranks on one."""
    serial = judge(case_of(want, p))
    for place in ({f"rank{r}": cpu(r) for r in range(p)}, {f"rank{r}": cpu(0) for r in range(p)}):
        assert_close(on_threads(case_of(got, p), Options(place)), serial)


@RANKS
def test_cycle(p):
    """0 -> 1 -> ... -> 0."""
    lists = [chain(0, (linear("a"), None, 1), (linear("z"), p - 1, None))]
    lists += [chain(r, (linear(f"b{r}"), r - 1, (r + 1) % p)) for r in range(1, p)]
    y, *rest = connect(lists[0](data(0)), *(one() for one in lists[1:]))
    assert rest == [None] * (p - 1)
    assert y.attr("ctx_group") == "rank0"
    want = linear("a")(data(0))
    for r in range(1, p):
        want = linear(f"b{r}")(want)
    check([y], [linear("z")(want)], p)


@RANKS
def test_crossing(p):
    """Rank 0 sends, then receives; the others receive, then send: a ring of messages at once."""
    lists = [chain(0, (linear("a0"), None, 1), (linear("b0"), p - 1, None))]
    lists += [
        chain(r, (linear(f"b{r}"), r - 1, None), (linear(f"a{r}"), None, (r + 1) % p))
        for r in range(1, p)
    ]
    got = connect(*(one(data(r)) for r, one in enumerate(lists)))
    want = [linear(f"b{r}")(linear(f"a{(r - 1) % p}")(data((r - 1) % p))) for r in range(p)]
    check(got, want, p)


@pytest.mark.parametrize("form", [1, 2, 3, 4])
@RANKS
def test_branching(p, form):
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
    check(got, [linear("z")(*parts)], p)


@RANKS
def test_twisting(p):
    """Neighbours exchange messages both ways, with two edges from a rank to itself."""
    lists = [chain(0, (linear("0a"), None, 1), (linear("0b"), 1, None))]
    lists += [
        chain(
            r, (linear(f"{r}a"), r - 1, r), (linear(f"{r}b"), None, r - 1),
            (linear(f"{r}c"), None, r + 1), (linear(f"{r}d"), r + 1, r),
            (linear(f"{r}e"), [r, r], None),
        )
        for r in range(1, p - 1)
    ]  # fmt: skip
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
    check(got, [*want, linear(f"{e}a")(sent(e - 1, e))], p)


@pytest.mark.parametrize("used", [1, 2])
@pytest.mark.parametrize("length", [1, 2])
def test_tuples(length, used):
    """A tuple arrives as a tuple, of one element too; an unused element has no gradient."""
    if used > length:
        return

    def first(x):
        return tuple(linear(f"f{i}")(x) for i in range(length))

    def second(message):
        assert isinstance(message, tuple)
        assert len(message) == length
        return linear("s")(*message[:used])

    parent = chain(0, (first, None, 1), (linear("z"), 1, None))
    got = connect(parent(data(0)), chain(1, (second, 0, 0))())[:1]
    check(got, [linear("z")(second(first(data(0))))], 2)


def test_links_that_are_symbols():
    def layer(name, **inputs):
        return sg.sym.FullyConnected(**inputs, num_hidden=WIDTH, name=name)

    both = sg.sym.Group([layer("a", data=data(0)), layer("b", data=data(0))])
    total = sg.sym.Variable("left") + sg.sym.Variable("right")
    got = connect(chain(0, (both, None, 1))(), chain(1, (total, 0, None))())[1:]
    nodes = [n for n in got[0].get_internals() if n.get_children() is not None]
    assert [n.attr("ctx_group") for n in nodes] == ["rank0", "rank0", "rank1"]
    check(got, [linear("a")(data(0)) + linear("b")(data(0))], 2)


def test_a_list_may_be_a_class_that_is_given_a_communicator():
    class Communicator:
        rank = 1

    class Child(MultiNodeChainList):
        def __init__(self, comm):
            super().__init__(comm)
            self.add_link(linear("c"), rank_in=0, rank_out=None)

    parent = chain(0, (linear("a"), None, 1))
    _, y = connect(parent(data(0)), Child(Communicator())())
    assert y.attr("ctx_group") == "rank1"


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize(
    ("p", "loss", "total", "norm", "first"),
    [
        (2, 0.179055313, 6.174188408e-2, 8.884943e-3, 0.552461267),
        (3, 0.130820134, 8.638705026e-3, 1.252749e-3, 0.534662206),
    ],
)
def test_chainermn_point_to_point(p, loss, total, norm, first, retain):
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
    case = Case(sg.sym.Group([symbol, sg.sym.BlockGrad(y)]), {}, arrays)
    got = on_threads(case, Options({f"rank{r}": cpu(r) for r in range(p)}))
    np.testing.assert_allclose(got.outputs[0], loss, rtol=1e-8)
    np.testing.assert_allclose(got.outputs[1][0, 0], first, rtol=1e-8)
    dw = got.grads["w0_weight"]
    np.testing.assert_allclose(dw.sum(), total, rtol=1e-8)
    np.testing.assert_allclose(np.linalg.norm(dw), norm, rtol=1e-6)
    assert_close(got, judge(case))
    assert np.abs(got.grads["x"]).min() > 0


# -- recurrent cells -------------------------------------------------------------------------------

CELLS = {
    "rnn": sg.rnn.RNNCell, "relu": partial(sg.rnn.RNNCell, activation="relu"),
    "lstm": sg.rnn.LSTMCell, "gru": sg.rnn.GRUCell,
}  # fmt: skip


def stacked(kind: str, rank: int):
    cell = sg.rnn.SequentialRNNCell()
    for layer in range(2):
        cell.add(CELLS[kind](WIDTH, prefix=f"r{rank}_l{layer}_"))
    return cell


@pytest.mark.parametrize("kind", CELLS)
@RANKS
def test_states_go_from_rank_to_rank(p, kind):
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
    want, states = [], None
    for r in range(p):
        outputs, states = stacked(kind, r).unroll(lengths[r], steps[r], begin_state=states)
        want.append(outputs[-1])
    check([outputs[-1] for outputs, _ in got], want, p)


def test_states_must_fit():
    sender = create_multi_node_n_step_rnn(sg.rnn.LSTMCell(4, prefix="a_"), 0, rank_out=1)
    gru = create_multi_node_n_step_rnn(sg.rnn.GRUCell(4, prefix="b_"), 1, rank_in=0)
    with pytest.raises(GraphError, match="LSTMCell of rank 0 sends to rank 1, but no link there"):
        connect(sender(1, [data(0)]), gru(1, [data(1)]))
    wide = create_multi_node_n_step_rnn(sg.rnn.LSTMCell(6, prefix="b_"), 1, rank_in=0)
    sender = create_multi_node_n_step_rnn(sg.rnn.LSTMCell(4, prefix="a_"), 0, rank_out=1)
    _, (outputs, _) = connect(sender(1, [data(0)]), wide(1, [data(1)]))
    with pytest.raises(ShapeError, match="'b_t0_out'"):
        outputs[0].infer_shape(x0=(2, 3), x1=(2, 3))
    with pytest.raises(GraphError, match=r"a cell of sg\.rnn, not str"):
        create_multi_node_n_step_rnn("lstm", 0)
    pair = chain(0, (lambda x: (x, x), None, [1]))
    gru = create_multi_node_n_step_rnn(sg.rnn.GRUCell(4, prefix="b_"), 1, rank_in=0)
    with pytest.raises(GraphError, match="GRUCell of rank 1: a state it receives is a tuple"):
        connect(pair(data(0)), gru(1, [data(1)]))


# -- what cannot be connected ----------------------------------------------------------------------


def test_two_results_of_a_list():
    with pytest.raises(GraphError, match=r"link 1 of rank 0 has rank_out=None, but another"):
        chain(0, (linear("a"), None, None), (linear("b"), None, None))


def test_a_message_that_nobody_receives():
    with pytest.raises(GraphError, match="link 0 of rank 0 sends to rank 1, but no link there"):
        connect(chain(0, (linear("a"), None, 1))(data(0)), chain(1)())
    with pytest.raises(GraphError, match="link 0 of rank 0 sends to rank 0, but no link there"):
        connect(chain(0, (linear("a"), None, 0))(data(0)))


def test_a_message_that_nobody_sends():
    with pytest.raises(GraphError) as raised:
        connect(chain(0)(), chain(1, (linear("a"), 0, None))())
    assert str(raised.value) == (
        "no rank can go on:\n"
        "  link 0 of rank 1 waits for a message of rank 0, which has no link left to send it"
    )


def test_links_that_wait_for_each_other():
    with pytest.raises(GraphError) as raised:
        connect(chain(0, (linear("a"), 1, 1))(), chain(1, (linear("b"), 0, 0))())
    assert str(raised.value) == (
        "no rank can go on:\n"
        "  link 0 of rank 0 waits for a message of rank 1\n"
        "  link 0 of rank 1 waits for a message of rank 0"
    )


def test_a_rank_that_is_not_there():
    with pytest.raises(GraphError, match="link 0 of rank 0 sends to rank 2, but connect got ranks"):
        connect(chain(0, (linear("a"), None, 2))(data(0)), chain(1)())


def test_links_of_the_wrong_kind():
    with pytest.raises(GraphError, match=r"link 0 of rank 0 does not take 2 inputs: too many"):
        connect(chain(0, (lambda x: x, None, None))(data(0), data(1)))
    with pytest.raises(GraphError, match="link 0 of rank 0 gives a int, not a symbol"):
        connect(chain(0, (lambda x: 3, None, None))(data(0)))
    with sg.AttrScope(ctx_group="elsewhere"):
        link = sg.sym.tanh(sg.sym.Variable("x"), name="act")
    with pytest.raises(GraphError, match="holds 'act' of group 'elsewhere', but a link is all on"):
        connect(chain(0, (link, None, None))(data(0)))
