"""Chain lists: ChainerMN's own patterns against serial networks, and lists that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from runtime.planning.options import Options
from symgraph.chainermn.chain_list import MultiNodeChainList, connect, create_multi_node_n_step_rnn
from symgraph.core.context import cpu
from symgraph.core.errors import GraphError, ShapeError
from tests.helpers.chain_patterns import (
    PATTERNS,
    WIDTH,
    case_of,
    chain,
    data,
    linear,
    point_to_point,
)
from tests.helpers.pipelines import assert_close, judge, on_threads

RANKS = pytest.mark.parametrize("p", [2, 3, 4])


def check(got, want, p: int) -> None:
    """The numbers of the serial network, with each rank on a device, and all ranks on one."""
    serial = judge(case_of(want, p))
    for place in ({f"rank{r}": cpu(r) for r in range(p)}, {f"rank{r}": cpu(0) for r in range(p)}):
        assert_close(on_threads(case_of(got, p), Options(place)), serial)


@pytest.mark.every(4)
@pytest.mark.parametrize("name", PATTERNS)
@RANKS
def test_patterns_are_the_serial_networks(p, name):
    """X6 and X7."""
    check(*PATTERNS[name](p), p)


def test_a_cycle_ends_where_it_began():
    lists = [
        chain(0, (linear("a"), None, 1), (linear("z"), 1, None)),
        chain(1, (linear("b"), 0, 0)),
    ]
    y, *rest = connect(lists[0](data(0)), lists[1]())
    assert rest == [None]
    assert y.attr("ctx_group") == "rank0"


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
    case = point_to_point(retain, p)
    got = on_threads(case, Options({f"rank{r}": cpu(r) for r in range(p)}))
    np.testing.assert_allclose(got.outputs[0], loss, rtol=1e-8)
    np.testing.assert_allclose(got.outputs[1][0, 0], first, rtol=1e-8)
    dw = got.grads["w0_weight"]
    np.testing.assert_allclose(dw.sum(), total, rtol=1e-8)
    np.testing.assert_allclose(np.linalg.norm(dw), norm, rtol=1e-6)
    assert_close(got, judge(case))
    assert np.abs(got.grads["x"]).min() > 0


# -- recurrent cells -------------------------------------------------------------------------------


def test_states_must_fit():
    sender = create_multi_node_n_step_rnn(sg.rnn.LSTMCell(4, prefix="a_"), 0, rank_out=1)
    gru = create_multi_node_n_step_rnn(sg.rnn.GRUCell(4, prefix="b_"), 1, rank_in=0)
    with pytest.raises(GraphError, match="LSTMCell of rank 0 sends to rank 1, but no link there"):
        connect(sender(1, [data(0)]), gru(1, [data(1)]))
    fused = create_multi_node_n_step_rnn(sg.rnn.FusedRNNCell(4, prefix="a_"), 0, rank_out=1)
    with pytest.raises(GraphError, match="last states, but returns 0 of 2; a FusedRNNCell returns"):
        connect(fused(3, sg.sym.Variable("x")), gru(3, sg.sym.Variable("y")))
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
        "no rank can continue:\n"
        "  link 0 of rank 1 waits for a message of rank 0, which has no link left to send it"
    )


def test_links_that_wait_for_each_other():
    with pytest.raises(GraphError) as raised:
        connect(chain(0, (linear("a"), 1, 1))(), chain(1, (linear("b"), 0, 0))())
    assert str(raised.value) == (
        "no rank can continue:\n"
        "  link 0 of rank 0 waits for a message of rank 1\n"
        "  link 0 of rank 1 waits for a message of rank 0"
    )


def test_a_rank_that_is_not_there():
    with pytest.raises(GraphError, match="link 0 of rank 0 sends to rank 2, but connect got ranks"):
        connect(chain(0, (linear("a"), None, 2))(data(0)), chain(1)())


def test_ranks_are_whole_numbers():
    """NumPy's as well; a list without a rank would drop what the link returns."""
    y, _ = connect(
        chain(np.int64(0), (linear("a"), None, np.int64(1)), (linear("c"), [np.int32(1)], None))(
            data(0)
        ),
        chain(1, (linear("b"), 0, 0))(),
    )
    check([y], [linear("c")(linear("b")(linear("a")(data(0))))], 2)
    with pytest.raises(GraphError, match=r"link 0 of rank 0: rank_in is 1.0 but must be a whole"):
        chain(0, (linear("a"), 1.0, None))
    with pytest.raises(GraphError, match="the rank of a chain list is None but must be a whole"):
        chain(None)
    for ranks, name in (((None, []), "rank_out"), (([], None), "rank_in")):
        with pytest.raises(GraphError, match=f"link 0 of rank 0: {name} lists no rank; None means"):
            chain(0, (linear("a"), *ranks))


def test_a_list_that_is_not_called():
    with pytest.raises(GraphError, match=r"such as mlp\(x\) or mlp\(\), and no MultiNodeChainList"):
        connect(chain(0, (linear("a"), None, None)))


def test_links_of_the_wrong_kind():
    with pytest.raises(GraphError, match=r"link 0 of rank 0 does not take 2 inputs: too many"):
        connect(chain(0, (lambda x: x, None, None))(data(0), data(1)))
    with pytest.raises(GraphError, match="link 0 of rank 0 returns a int, not a symbol"):
        connect(chain(0, (lambda x: 3, None, None))(data(0)))
    with sg.AttrScope(ctx_group="elsewhere"):
        link = sg.sym.tanh(sg.sym.Variable("x"), name="act")
    with pytest.raises(
        GraphError, match="holds 'act' of group 'elsewhere', but all of a link is on"
    ):
        connect(chain(0, (link, None, None))(data(0)))
