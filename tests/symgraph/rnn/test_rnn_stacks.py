"""Cells made of cells: stacks, shared parameters, dropout between layers, residual connections."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from symgraph.core.errors import GraphError
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.passes.testing import check_grads
from symgraph.rnn import (
    BidirectionalCell,
    DropoutCell,
    FusedRNNCell,
    GRUCell,
    LSTMCell,
    ResidualCell,
    RNNCell,
    SequentialRNNCell,
    ZoneoutCell,
)
from tests.symgraph.running import random_feeds, run


@pytest.fixture(autouse=True)
def fresh_names():
    with NameManager():
        yield


def variables(steps: int) -> list[sg.Symbol]:
    return [sym.Variable(f"t{t}_data") for t in range(steps)]


# -- stacks ------------------------------------------------------------------------------------


def test_a_stack_of_five_with_a_residual_cell():
    stack = SequentialRNNCell()
    for i in range(5):
        cell = LSTMCell(100, prefix=f"rnn_stack{i}_")
        stack.add(ResidualCell(cell) if i == 1 else cell)
    outputs, states = stack.unroll(3, variables(3))
    group = sym.Group(outputs)
    assert group.list_outputs() == [f"rnn_stack4_t{t}_out_output" for t in range(3)]
    parameters = {
        f"rnn_stack{i}_{kind}_{what}"
        for i in range(5)
        for kind in ("i2h", "h2h")
        for what in ("weight", "bias")
    }
    assert set(group.list_arguments()) - {f"t{t}_data" for t in range(3)} == parameters
    assert group.infer_shape(**{f"t{t}_data": (10, 50) for t in range(3)})[1] == [(10, 100)] * 3
    assert len(states) == len(stack.state_info) == 10
    assert "rnn_stack1_t0_out_plus_residual_output" in group.get_internals().list_outputs()


def test_stepping_by_hand_is_unrolling():
    data = {f"t{t}_data": np.random.default_rng(t).standard_normal((4, 2)) for t in range(3)}

    def stack() -> SequentialRNNCell:
        cells = SequentialRNNCell()
        cells.add(LSTMCell(3, prefix="a_"))
        cells.add(ResidualCell(GRUCell(3, prefix="b_")))
        return cells

    unrolled, last = stack().unroll(3, variables(3))
    cells = stack()
    outputs, states = [], cells.begin_state()
    for x in variables(3):
        output, states = cells(x, states)
        outputs.append(output)
    by_hand, whole = sym.Group(outputs + states), sym.Group(unrolled + last)
    assert by_hand.list_outputs() == whole.list_outputs()
    for got, want in zip(run(by_hand, **data), run(whole, **data), strict=True):
        np.testing.assert_array_equal(got, want)
    times = [
        {n: a["__time_step__"] for n, a in s.attr_dict().items() if "__time_step__" in a}
        for s in (by_hand, whole)
    ]
    assert {n: t for n, t in times[0].items() if "_t" in n} == {
        n: t for n, t in times[1].items() if "_t" in n
    }


def test_gradients_of_a_stack_with_its_states():
    stack = SequentialRNNCell()
    stack.add(LSTMCell(3, prefix="a_"))
    stack.add(ResidualCell(GRUCell(3, prefix="b_")))
    begin = stack.begin_state(func=sym.Variable)
    outputs, _ = stack.unroll(3, sym.Variable("x"), begin, merge_outputs=True, layout="TNC")
    graph = lower(outputs, {"x": (3, 2, 4)}, {"x": "float64"})
    names = {"a_begin_state_0", "a_begin_state_1", "b_begin_state_0"}
    assert names < {n.name for n in graph.variables}
    check_grads(graph, random_feeds(graph), rtol=1e-6)


@pytest.mark.parametrize("merge", [False, True])
def test_every_node_of_an_unrolled_cell_carries_its_time_step(merge):
    stack = SequentialRNNCell()
    stack.add(LSTMCell(3, prefix="a_"))
    stack.add(DropoutCell(0.5))
    stack.add(ResidualCell(GRUCell(3, prefix="b_")))
    stack.add(RNNCell(3, prefix="c_"))
    outputs, _ = stack.unroll(4, sym.Variable("x"), merge_outputs=merge)
    symbol = outputs if merge else sym.Group(outputs)
    graph = lower(symbol, {"x": (2, 4, 3)})
    untagged = {n.name for n in graph if not n.is_variable and "__time_step__" not in n.tags}
    assert untagged == {"slicechannel0"} | ({"concat0"} if merge else set())
    assert all("__time_step__" not in n.tags for n in graph.variables)
    for node in graph:
        if "_t" in node.name:
            assert node.tags["__time_step__"] == node.name.split("_t")[1][0]
        for value in node.inputs:  # time only goes forward
            earlier = graph[value.node].tags.get("__time_step__", "0")
            assert earlier <= node.tags.get("__time_step__", "3")
    for layer in "ab":
        assert graph[f"{layer}_begin_state_0"].tags["__time_step__"] == "0"


# -- sharing -----------------------------------------------------------------------------------


def test_cells_share_parameters():
    first = LSTMCell(3, prefix="a_")
    second = LSTMCell(3, prefix="b_", params=first.params)
    outputs = [cell.unroll(1, variables(1))[0][0] for cell in (first, second)]
    assert sym.Group(outputs).list_outputs() == ["a_t0_out_output", "b_t0_out_output"]
    for output in outputs:
        assert output.list_arguments() == [
            "t0_data",
            "a_i2h_weight",
            "a_i2h_bias",
            "a_h2h_weight",
            "a_h2h_bias",
        ]
    stack = SequentialRNNCell()
    stack.add(first)
    stack.add(second)
    stack.add(first)
    outputs, _ = stack.unroll(2, [sym.Variable(f"t{t}_data") for t in range(2)])
    graph = lower(outputs[1], {"t0_data": (2, 3), "t1_data": (2, 3)}, {"t0_data": "float64"})
    check_grads(graph, random_feeds(graph))


def test_two_cells_of_one_prefix_do_not_fit_in_a_stack():
    stack = SequentialRNNCell()
    stack.add(LSTMCell(3))
    with pytest.raises(GraphError, match="two cells have a parameter 'lstm_i2h_weight': give"):
        stack.add(LSTMCell(3))


# -- modifiers ---------------------------------------------------------------------------------


def test_residual_adds_its_inputs():
    """Case R2: a GRU whose weights are 0 gives 0, so its inputs come out."""
    cell = ResidualCell(GRUCell(50, prefix="rnn_"))
    assert cell.params is cell.base_cell.params
    outputs, _ = cell.unroll(2, variables(2))
    group = sym.Group(outputs)
    assert group.list_outputs() == [f"rnn_t{t}_out_plus_residual_output" for t in range(2)]
    graph = lower(group, {"t0_data": (10, 50), "t1_data": (10, 50)})
    zeros = {n.name: np.zeros(n.types[0].shape, "float32") for n in graph.variables}
    ones = {f"t{t}_data": np.ones((10, 50), "float32") for t in range(2)}
    for value in evaluate(graph, zeros | ones):
        np.testing.assert_array_equal(value, np.ones((10, 50)))


@pytest.mark.parametrize("inputs", [sym.Variable("x"), None], ids=["symbol", "list"])
def test_merged_residuals_are_the_same(inputs):
    data = np.random.default_rng(0).standard_normal((2, 4, 3))
    feeds = {"x": data} if inputs is not None else {f"t{t}_data": data[:, t] for t in range(4)}

    def unroll(merge: bool):
        return ResidualCell(RNNCell(3)).unroll(4, inputs, merge_outputs=merge)[0]

    merged = run(unroll(True), **feeds)[0]
    np.testing.assert_array_equal(merged, np.stack(run(sym.Group(unroll(False)), **feeds), axis=1))


def test_a_modified_cell_is_used_through_its_modifier():
    base = LSTMCell(3)
    cell = ResidualCell(base)
    for use in (
        lambda: base(sym.Variable("x"), []),
        lambda: base.unroll(2, variables(2)),
        base.begin_state,
    ):
        with pytest.raises(GraphError, match="LSTMCell 'lstm_' is part of a modifier cell now"):
            use()
    assert len(cell.begin_state()) == 2
    outer = ResidualCell(cell)
    outputs, _ = outer.unroll(1, variables(1))
    assert outputs[0].name == "lstm_t0_out_plus_residual_plus_residual"
    with pytest.raises(GraphError, match="ResidualCell '' is part of a modifier cell now"):
        cell.unroll(1, variables(1))


def test_dropout_between_layers_and_of_whole_sequences():
    x = np.ones((50, 2, 8))
    whole, states = DropoutCell(0.5).unroll(2, sym.Variable("x"))
    assert isinstance(whole, sg.Symbol)
    assert states == []
    train = Env(train=True, seed=3)
    dropped = run(whole, train, x=x)[0]
    assert set(np.unique(dropped)) == {0.0, 2.0}
    assert 0.4 < (dropped == 0).mean() < 0.6
    np.testing.assert_array_equal(run(whole, x=x)[0], x)
    steps, _ = DropoutCell(0.5).unroll(2, sym.Variable("x"), merge_outputs=False)
    first, second = run(sym.Group(steps), train, x=x)
    assert (first != second).any()
    nothing, _ = DropoutCell(0).unroll(2, sym.Variable("x"))
    assert nothing.list_outputs() == ["x"]


# -- wrong use ---------------------------------------------------------------------------------


def test_a_stack_without_cells():
    """Its outputs were its inputs, or None."""
    for use in (
        lambda c: c.unroll(2),
        lambda c: c(sym.Variable("x"), []),
        lambda c: c.begin_state(),
    ):
        with pytest.raises(GraphError, match="SequentialRNNCell has no cells yet"):
            use(SequentialRNNCell())
    with pytest.raises(GraphError, match="num_layers=0 is not a valid int of 1 or more"):
        FusedRNNCell(3, num_layers=0)


@pytest.mark.parametrize("share", [-0.5, 1.5, "0.5", None])
def test_shares_are_from_0_to_1(share):
    """A negative dropout was none at all, and a text a TypeError of `>`."""
    with pytest.raises(GraphError, match="is not a valid float from 0 to 1"):
        DropoutCell(share)
    with pytest.raises(GraphError, match="is not a valid float from 0 to 1"):
        ZoneoutCell(RNNCell(3), 0.5, share)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: SequentialRNNCell().add(x),
        lambda x: ResidualCell(x),
        lambda x: ZoneoutCell(x),
        lambda x: BidirectionalCell(RNNCell(3), x),
    ],
)
def test_cells_are_made_of_cells(use):
    with pytest.raises(TypeError, match="takes cells, such as LSTMCell"):
        use(sym.Variable("x"))
