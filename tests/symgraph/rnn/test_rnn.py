"""Recurrent cells: names, numbers, gradients, and the time step that every node carries."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from symgraph.core.errors import GraphError, ShapeError
from symgraph.core.reference import evaluate
from symgraph.frontend import sym
from symgraph.frontend.init import Zero
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.frontend.symnode import walk
from symgraph.passes.testing import check_grads
from symgraph.rnn import (
    BaseRNNCell,
    GRUCell,
    LSTMCell,
    RNNCell,
    SequentialRNNCell,
)
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout
from tests.symgraph.running import random_feeds, run


@pytest.fixture(autouse=True)
def fresh_names():
    with NameManager():
        yield


PARAMETERS = ["rnn_h2h_bias", "rnn_h2h_weight", "rnn_i2h_bias", "rnn_i2h_weight"]
CELLS = [RNNCell, LSTMCell, GRUCell]


def variables(steps: int) -> list[sg.Symbol]:
    return [sym.Variable(f"t{t}_data") for t in range(steps)]


# -- names and shapes --------------------------------------------------------------------------


@pytest.mark.parametrize(("cell_type", "gates"), [(RNNCell, 1), (LSTMCell, 4), (GRUCell, 3)])
def test_unrolling_gives_mxnets_names_and_shapes(cell_type, gates):
    cell = cell_type(100, prefix="rnn_")
    outputs, states = cell.unroll(3, variables(3))
    group = sym.Group(outputs)
    assert group.list_outputs() == [f"rnn_t{t}_out_output" for t in range(3)]
    assert sorted(set(group.list_arguments()) - {f"t{t}_data" for t in range(3)}) == PARAMETERS
    data = {f"t{t}_data": (10, 50) for t in range(3)}
    arguments, out_shapes, _ = group.infer_shape(**data)
    assert out_shapes == [(10, 100)] * 3
    shapes = dict(zip(group.list_arguments(), arguments, strict=True))
    assert shapes["rnn_i2h_weight"] == (gates * 100, 50)
    assert shapes["rnn_h2h_weight"] == (gates * 100, 100)
    assert shapes["rnn_i2h_bias"] == shapes["rnn_h2h_bias"] == (gates * 100,)
    assert len(states) == len(cell.state_info)
    assert states[0].list_outputs() == ["rnn_t2_out_output"]
    assert cell.state_shape == [(0, 100)] * len(states)


def test_default_prefixes_and_inner_names():
    names = {}
    for cell in (RNNCell(2), LSTMCell(2), GRUCell(2)):
        output, _ = cell(sym.Variable("x"), cell.begin_state())
        inner = output.get_internals().list_outputs()
        names[type(cell)] = [n for n in inner if "_t0_" in n]
    assert names[RNNCell] == [f"rnn_t0_{n}_output" for n in ("i2h", "h2h", "out")]
    assert names[LSTMCell] == [
        *(f"lstm_t0_{n}_output" for n in ("i2h", "h2h", "out")),
        "lstm_t0_out_state",
    ]
    assert names[GRUCell] == [f"gru_t0_{n}_output" for n in ("_i2h", "_h2h", "out")]


def test_inputs_in_one_symbol_or_a_list_in_either_layout():
    data = np.random.default_rng(0).standard_normal((4, 3, 2))  # (B, T, I)
    feeds = {f"t{t}_data": data[:, t] for t in range(3)}
    want = run(sym.Group(LSTMCell(5).unroll(3, variables(3))[0]), **feeds)
    for inputs, layout, values in [
        (None, "NTC", feeds),
        (variables(3), "TNC", feeds),
        (sym.Variable("x"), "NTC", {"x": data}),
        (sym.Variable("x"), "TNC", {"x": data.swapaxes(0, 1)}),
    ]:
        outputs, _ = LSTMCell(5).unroll(3, inputs, layout=layout, merge_outputs=False)
        np.testing.assert_allclose(run(sym.Group(outputs), **values), want, rtol=1e-13)
        merged, _ = LSTMCell(5).unroll(3, inputs, layout=layout, merge_outputs=True)
        whole = np.stack(want, axis=layout.index("T"))
        np.testing.assert_allclose(run(merged, **values)[0], whole, rtol=1e-13)
    named, _ = LSTMCell(5).unroll(1, input_prefix="src_")
    assert named[0].list_arguments()[0] == "src_t0_data"


# -- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forget_bias", "c", "h"),
    [
        (0.0, [0.108523661, 0.175393138, 0.216920155], [0.059436845, 0.095970766, 0.118447596]),
        (1.0, [0.108523661, 0.199035906, 0.274849116], [0.059436845, 0.108591789, 0.148867388]),
    ],
)
def test_lstm_values(forget_bias, c, h):
    """Case R4: two inputs, two units, all weights 0.1, x = 1, three steps."""
    cell = LSTMCell(2, forget_bias=forget_bias)
    outputs = []
    states = cell.begin_state()
    for x in variables(3):
        output, states = cell(x, states)
        outputs += [states[1], output]
    symbol = sym.Group(outputs)
    attrs = symbol.attr_dict()
    feeds = {f"t{t}_data": np.ones((1, 2)) for t in range(3)}
    for name, shape in [("i2h_weight", (8, 2)), ("h2h_weight", (8, 2))]:
        feeds[f"lstm_{name}"] = np.full(shape, 0.1)
    for name in ("lstm_i2h_bias", "lstm_h2h_bias"):
        feeds[name] = Zero()(name, (8,), "float64", 0, attrs.get(name))
    values = run(symbol, **feeds)
    for found, want in ((values[::2], c), (values[1::2], h)):
        np.testing.assert_allclose(found, np.reshape(np.repeat(want, 2), (3, 1, 2)), atol=1e-9)


def test_forget_bias_is_the_first_value_of_a_bias():
    """Case R3: two layers of 100 units, forget bias 2."""
    stack = SequentialRNNCell()
    for layer in range(2):
        stack.add(LSTMCell(100, forget_bias=2.0, prefix=f"l{layer}_"))
    attrs = stack.unroll(1, variables(1), merge_outputs=True)[0].attr_dict()
    for layer in range(2):
        name = f"l{layer}_i2h_bias"
        values = Zero()(name, (400,), "float32", seed=0, attrs=attrs[name])
        np.testing.assert_array_equal(values, [0] * 100 + [2] * 100 + [0] * 200)
        assert f"l{layer}_h2h_bias" not in attrs


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_gru_is_cudnns_form():
    rng = np.random.default_rng(1)
    x, h = rng.standard_normal((4, 2)), rng.standard_normal((4, 3))
    wi, wh = rng.standard_normal((9, 2)), rng.standard_normal((9, 3))
    bi, bh = rng.standard_normal(9), rng.standard_normal(9)
    i_r, i_z, i_n = np.split(x @ wi.T + bi, 3, axis=1)
    h_r, h_z, h_n = np.split(h @ wh.T + bh, 3, axis=1)
    z = sigmoid(i_z + h_z)
    want = (1 - z) * np.tanh(i_n + sigmoid(i_r + h_r) * h_n) + z * h
    output, states = GRUCell(3)(sym.Variable("x"), [sym.Variable("h")])
    assert states[0].list_outputs() == output.list_outputs()
    feeds = {"gru_i2h_weight": wi, "gru_h2h_weight": wh, "gru_i2h_bias": bi, "gru_h2h_bias": bh}
    np.testing.assert_allclose(run(output, x=x, h=h, **feeds)[0], want, rtol=1e-13)


@pytest.mark.parametrize(
    ("activation", "function"),
    [("tanh", np.tanh), ("relu", lambda x: np.maximum(x, 0)), (sym.sigmoid, sigmoid)],
)
def test_rnn_activations(activation, function):
    cell = RNNCell(3, activation=activation)
    output, _ = cell(sym.Variable("x"), [sym.Variable("h")])
    rng = np.random.default_rng(1)
    x, h, wi, wh = (rng.standard_normal(s) for s in [(4, 2), (4, 3), (3, 2), (3, 3)])
    bi, bh = rng.standard_normal(3), rng.standard_normal(3)
    feeds = {"rnn_i2h_weight": wi, "rnn_h2h_weight": wh, "rnn_i2h_bias": bi, "rnn_h2h_bias": bh}
    want = function(x @ wi.T + bi + h @ wh.T + bh)
    np.testing.assert_allclose(run(output, x=x, h=h, **feeds)[0], want, rtol=1e-13)


# -- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 9, 20])
@pytest.mark.parametrize("cell_type", CELLS)
def test_gradients_of_tied_weights_are_finite_differences(cell_type, steps):
    """Case R5, across the 4 and 8 terms at which MXNet's sums of gradients changed."""
    outputs, states = cell_type(3).unroll(steps, sym.Variable("x"), merge_outputs=True)
    graph = lower(sym.Group([outputs, *states]), {"x": (2, steps, 2)}, {"x": "float64"})
    check_grads(graph, random_feeds(graph), rtol=1e-6)


# -- begin states ------------------------------------------------------------------------------


def test_begin_states_are_zeros_of_the_datas_batch_and_dtype():
    cell = LSTMCell(3)
    output, _ = cell(sym.Variable("x"), cell.begin_state(func=sym.zeros))
    internals = output.get_internals()
    begin = [internals[f"lstm_begin_state_{i}_output"] for i in range(2)]
    graph = lower(sym.Group(begin), {"x": (5, 2)}, {"x": "float16"})
    for value in evaluate(graph, {"x": np.ones((5, 2), "float16")}):
        assert (value.shape, value.dtype) == ((5, 3), "float16")
        assert not value.any()
    assert "x" in output.list_arguments()
    assert not any("begin_state" in name for name in output.list_arguments())


def test_each_layers_begin_state_is_read_off_its_own_inputs():
    """A stack cut between its layers must not send the data to every layer for that."""
    stack = SequentialRNNCell()
    for layer in range(2):
        stack.add(RNNCell(3, prefix=f"l{layer}_"))
    for outputs in (
        stack.unroll(2, variables(2))[0][-1],
        stack.unroll(2, variables(2), begin_state=stack.begin_state())[0][-1],
    ):
        begin = outputs.get_internals()["l1_begin_state_0_output"]
        assert begin.get_children().list_outputs() == ["l0_t0_out_output"]


def test_begin_states_by_a_function_of_the_user():
    cell = LSTMCell(3)
    seen = []

    def func(name, shape, scale, **more):
        seen.append((name, shape, scale, more))
        return sym.Variable(name, shape=shape)

    states = cell.begin_state(func, scale=2)
    assert [s.name for s in states] == ["lstm_begin_state_0", "lstm_begin_state_1"]
    assert seen[0] == ("lstm_begin_state_0", (0, 3), 2, {"__layout__": "NC"})
    assert cell.begin_state(sym.Variable)[0].name == "lstm_begin_state_2"
    cell.reset()
    assert cell.begin_state(sym.Variable)[0].attr("__shape__") == "(0, 3)"
    outputs, _ = cell.unroll(2, sym.Variable("x"), states)
    at = outputs[1].list_arguments().index("lstm_begin_state_0")
    assert outputs[1].infer_shape(x=(5, 2, 4))[0][at] == (5, 3)


def test_a_begin_state_that_meets_no_input_names_itself():
    loose = RNNCell(3).begin_state()[0] * 2.0
    with pytest.raises(ShapeError, match="rnn_begin_state_0_like"):
        loose.infer_shape()


@pytest.mark.parametrize("parts", [(6,), (3, 3), (3, 2, 1)])
def test_begin_states_in_micro_batches(parts):
    x = np.ones((12, 2))
    state = {"shape": (0, 3)}
    assert check_layout("_begin_state", [x[:6]], [Split(0)], 6, parts, **state) == [Split(0)]
    assert check_layout("_begin_state", [x], [Split(0, 2)], 6, parts, **state) == [Split(0, 2)]
    for layout in (WHOLE, PARTIAL, Split(1)):
        like = np.ones((2, 6))
        assert check_layout("_begin_state", [like], [layout], 6, parts, **state) == [WHOLE]


@pytest.mark.parametrize("shape", [(), (4, 3), (0, 0)])
def test_wrong_shapes_of_begin_states(shape):
    state = sym._begin_state(sym.Variable("x"), shape=shape, name="s")
    with pytest.raises(ShapeError, match=r"_begin_state 's': shape=.* must have 0, the batch"):
        state.infer_shape(x=(4, 2))


# -- time steps --------------------------------------------------------------------------------


def test_groups_and_time_steps_go_together():
    cell = LSTMCell(3)
    with sg.AttrScope(ctx_group="layer0"):
        output, _ = cell.unroll(2, variables(2))
    attrs = output[1].list_attr()
    assert (attrs["__ctx_group__"], attrs["__time_step__"]) == ("layer0", "1")
    begin = output[1].get_internals()["lstm_begin_state_0_output"]
    assert begin.attr("ctx_group") == "layer0"


# -- wrong use ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda c: c.unroll(3, variables(2)), "over 3 time steps got 2 inputs"),
        (lambda c: c.unroll(2, sym.Group(variables(2))), "make it a list with list"),
        (lambda c: c.unroll(2, sym.Variable("x"), layout="NC"), "layout 'NC' has no T"),
        (lambda c: c.unroll(1, variables(1), c.begin_state()[:1]), "has 2 states, but 1 are given"),
        (lambda c: c(sym.Variable("x"), []), "LSTMCell 'lstm_' has 2 states, but 0 are given"),
        (lambda c: c.unroll(0, []), "LSTMCell 'lstm_': length=0 is not a valid int of 1 or more"),
        (lambda c: c.unroll("2", sym.Variable("x")), "length='2' is not a valid int of 1 or more"),
        (lambda c: LSTMCell("3"), "LSTMCell 'lstm_': num_hidden='3' is not a valid int of 1 or"),
        (lambda c: LSTMCell(0), "num_hidden=0 is not a valid int of 1 or more"),
        (lambda c: c.unpack_weights({"lstm_i2h_weight": np.ones((15, 3))}), "15 rows, which are n"),
    ],
)
def test_wrong_unrolling(use, words):
    with pytest.raises(GraphError, match=words):
        use(LSTMCell(3))


def test_states_are_symbols():
    with pytest.raises(TypeError, match="LSTMCell 'lstm_': states must be symbols, not int"):
        LSTMCell(3).unroll(1, variables(1), [1, 2])


def test_begin_states_in_one_symbol():
    """A group of states was a NotImplementedError about truth values."""
    states = sym.Group([sym.Variable("h"), sym.Variable("c")])
    outputs, _ = LSTMCell(3).unroll(1, variables(1), states)
    assert {"h", "c"} <= set(outputs[0].list_arguments())


def test_random_begin_states():
    """`__layout__`, with which a cell calls, was no argument of theirs."""
    states = LSTMCell(3).begin_state(sym.random.uniform, low=2.0, high=3.0)
    outputs, _ = LSTMCell(3).unroll(1, variables(1), states)
    assert states[0].attr("__layout__") == "NC"
    assert outputs[0].infer_shape(t0_data=(5, 2))[1] == [(5, 3)]


def test_a_cell_of_the_users_own():
    class Decay(BaseRNNCell):
        @property
        def state_info(self):
            return [{"shape": (0, 2), "__layout__": "NC"}]

        def _step(self, name, inputs, states):
            state = sym.elemwise_add(states[0] * 0.5, inputs, name=f"{name}out")
            return state, [state]

    outputs, _ = Decay("decay_").unroll(3, variables(3), [sym.Variable("begin")])
    assert outputs[2].name == "decay_t2_out"
    assert outputs[2].attr("time_step") == "2"
    feeds = {f"t{t}_data": np.ones((1, 2)) for t in range(3)} | {"begin": np.zeros((1, 2))}
    np.testing.assert_array_equal(run(outputs[2], **feeds)[0], [[1.75, 1.75]])
    assert len({id(n) for n in walk(outputs[2].entries)}) == 10
