"""Lowering of symbols to typed graphs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import symgraph as sg
from symgraph.core.errors import GraphError, ShapeError
from symgraph.core.graph import Graph
from symgraph.core.reference import evaluate
from symgraph.core.types import TensorType, Value
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager


@pytest.fixture(autouse=True)
def fresh_names():
    with NameManager():
        yield


def classifier(**loss) -> sg.Symbol:
    with sg.AttrScope(ctx_group="dev1"):
        hidden = sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="fc1")
        hidden = sym.Dropout(sym.tanh(hidden, name="act"), p=0.5, name="drop")
    with sg.AttrScope(ctx_group="dev2"):
        scores = sym.FullyConnected(hidden, num_hidden=3, name="fc2", attr={"__note__": "last"})
        return sym.SoftmaxOutput(scores, name="softmax", **loss)


def test_every_value_has_a_type_and_nodes_keep_their_names():
    graph = lower(classifier(), {"data": (5, 2)}, {"data": "float64", "softmax_label": "int32"})
    assert {n.name: n.types for n in graph} == {
        "data": (TensorType((5, 2), "float64"),),
        "fc1_weight": (TensorType((4, 2), "float64"),),
        "fc1_bias": (TensorType((4,), "float64"),),
        "fc1": (TensorType((5, 4), "float64"),),
        "act": (TensorType((5, 4), "float64"),),
        "drop": (TensorType((5, 4), "float64"), *graph["drop"].types[1:]),
        "fc2_weight": (TensorType((3, 4), "float64"),),
        "fc2_bias": (TensorType((3,), "float64"),),
        "fc2": (TensorType((5, 3), "float64"),),
        "softmax_label": (TensorType((5,), "int32"),),
        "softmax": (TensorType((5, 3), "float64"),),
    }
    assert graph.outputs == (Value("softmax"),)
    assert [v.name for v in graph.variables] == classifier().list_arguments()


def test_outputs_are_in_the_symbols_order():
    parts = sym.SliceChannel(sym.Variable("x"), num_outputs=2, name="cut")
    graph = lower(sym.Group([parts[1], sym.Variable("y"), parts[0]]), {"x": (1, 2), "y": (1,)})
    assert graph.outputs == (Value("cut", 1), Value("y"), Value("cut", 0))


def test_tags_are_the_attributes_under_their_stored_keys():
    graph = lower(classifier(), {"data": (5, 2)})
    assert dict(graph["fc2"].tags) == {"__ctx_group__": "dev2", "__note__": "last"}
    assert dict(graph["fc2_weight"].tags) == {"__ctx_group__": "dev2", "__note__": "last"}
    assert dict(graph["data"].tags) == dict(graph["act"].tags) == {"__ctx_group__": "dev1"}


def test_nodes_of_one_name_are_numbered():
    x = sym.Variable("x")
    first = sym.tanh(x, name="same")
    second = sym.exp(first, name="same")
    third = sym.exp(second, name="same")
    graph = lower(third + sym.square(x, name="x"), {"x": (2,)})
    assert [n.name for n in graph] == ["x", "same", "same_1", "same_2", "x_1", "_plus0"]
    assert graph["same_2"].inputs == (Value("same_1"),)
    value = evaluate(graph, {"x": np.array([0.5, 1.0], "float32")})[0]
    want = [np.exp(np.exp(np.tanh(x))) + x * x for x in (0.5, 1)]
    np.testing.assert_allclose(value, want, rtol=1e-6)


def test_only_a_count_of_valid_labels_is_a_hidden_input():
    for normalization in ("null", "batch"):
        graph = lower(classifier(normalization=normalization), {"data": (5, 2)})
        assert graph["softmax"].inputs == (Value("fc2"), Value("softmax_label"))
    graph = lower(classifier(normalization="valid", use_ignore=True), {"data": (5, 2)})
    assert graph["softmax"].inputs[2:] == (Value("softmax_valid"),)
    valid = graph["softmax_valid"]
    assert valid.inputs == (Value("softmax_label"),)
    assert valid.types == (TensorType((1,), "float64"),)
    assert valid.tags == graph["softmax"].tags


def test_a_hidden_input_takes_no_name_that_is_in_use():
    net = classifier(normalization="valid", use_ignore=True)
    net = sym.Group([sym.Variable("softmax_valid") * 2.0, net, sym.Variable("softmax_valid_1")])
    graph = lower(net, {"data": (5, 2), "softmax_valid": (7,), "softmax_valid_1": (1,)})
    assert graph["softmax_valid"].is_variable
    assert graph["softmax"].inputs[2:] == (Value("softmax_valid_2"),)


def test_random_nodes_have_streams_of_their_own():
    x = sym.Variable("x")
    twice = sym.Group([sym.Dropout(x, p=0.5, name="d"), sym.Dropout(x, p=0.5, name="d")])
    graph = lower(twice, {"x": (4,)})
    assert graph["d"].attrs["stream"] != graph["d_1"].attrs["stream"]


def test_what_cannot_be_lowered():
    with pytest.raises(ShapeError, match="cannot infer the shapes of data, fc1_weight"):
        lower(classifier(), {})
    with pytest.raises(GraphError, match="'dat' not found; did you mean 'data'"):
        lower(classifier(), {"dat": (5, 2)})
    with pytest.raises(GraphError, match="'dat' not found"):
        lower(classifier(), {"data": (5, 2)}, {"dat": "float64"})
    zeros = sym.zeros(shape=(0, 0), name="z")
    with pytest.raises(ShapeError, match=r"_zeros 'z': shape=\(0, 0\) has several unknown dimens"):
        lower(zeros + sym.Variable("x"), {"x": (2, 3)})


# -- the digest, by which ranks agree ----------------------------------------------------------


def stack() -> sg.Symbol:
    cells = sg.rnn.SequentialRNNCell()
    for layer in range(2):
        cells.add(sg.rnn.LSTMCell(3, prefix=f"l{layer}_"))
    outputs, states = cells.unroll(3, sym.Variable("data"), merge_outputs=True)
    return sym.Group([outputs, *states])


def build_digest() -> str:
    with NameManager():
        return lower(stack(), {"data": (2, 3, 4)}).digest


@pytest.mark.every(3)
@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_another_process_makes_the_same_digest(hash_seed):
    root = Path(__file__).parents[3]
    code = "from tests.symgraph.frontend.test_lower import build_digest; print(build_digest())"
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == build_digest()


def test_equal_symbols_lower_to_equal_digests():
    symbol = stack()
    assert lower(symbol, {"data": (2, 3, 4)}).digest == lower(symbol, {"data": (2, 3, 4)}).digest
    again = sym.load_json(symbol.tojson())
    assert lower(again, {"data": (2, 3, 4)}).digest == lower(symbol, {"data": (2, 3, 4)}).digest


def test_any_difference_changes_the_digest():
    def graph(
        p: float = 0.5, group: str = "a", name: str = "d", batch: int = 2, dtype: str = "float32"
    ) -> Graph:
        with sg.AttrScope(ctx_group=group):
            net = sym.Dropout(sym.Variable("x"), p=p, name=name)
        return lower(net, {"x": (batch, 3)}, {"x": dtype})

    base = graph().digest
    assert graph().digest == base
    changes = [{"p": 0.25}, {"group": "b"}, {"name": "e"}, {"batch": 3}, {"dtype": "float64"}]
    digests = {graph(**change).digest for change in changes}
    assert len(digests | {base}) == 6
    two = sym.SliceChannel(sym.Variable("x"), num_outputs=2, name="c")
    assert lower(two[0], {"x": (1, 2)}).digest != lower(two[1], {"x": (1, 2)}).digest
