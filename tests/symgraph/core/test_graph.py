"""Graphs: what `Graph.of` rejects, so that no graph can exist that cannot run, and `prune`."""

from __future__ import annotations

import pytest

from symgraph.core.errors import GraphError
from symgraph.core.graph import Graph, Node, prune
from symgraph.core.registry import VARIABLE
from symgraph.core.types import TensorType, Value

TYPE = TensorType((2, 3), "float32")
X = Node("x", VARIABLE, types=(TYPE,))


def tanh(source: Value, name: str = "y") -> Node:
    return Node(name, "tanh", (source,), types=(TYPE,))


@pytest.mark.parametrize("nodes", [[X, tanh(Value("z"))], [tanh(Value("x")), X]])
def test_an_input_that_no_earlier_node_makes(nodes):
    missing = nodes[1].inputs[0].node if nodes[0] is X else "x"
    with pytest.raises(
        GraphError, match=f"tanh 'y' reads '{missing}', which no earlier node makes"
    ):
        Graph.of(nodes, [Value("y")])


def test_an_output_that_no_node_makes():
    with pytest.raises(GraphError, match="the list of outputs reads 'z', which no earlier node"):
        Graph.of([X], [Value("z")])


@pytest.mark.parametrize("index", [1, 2, -1])
def test_an_output_of_a_node_that_it_does_not_have(index):
    with pytest.raises(GraphError, match=f"tanh 'y' reads output {index} of 'x', which has 1"):
        Graph.of([X, tanh(Value("x", index))], [Value("y")])
    with pytest.raises(GraphError, match=f"outputs reads output {index} of 'y', which has 1"):
        Graph.of([X, tanh(Value("x"))], [Value("y", index)])


def test_two_nodes_of_one_name():
    with pytest.raises(GraphError, match="two nodes are named 'x'"):
        Graph.of([X, X], [Value("x")])


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (Node("y", "tanh", (Value("x"),), types=(TYPE,), origin="w"), "'y' serves 'w', which is"),
        (Node("y", VARIABLE), "variable 'y' has one type and no inputs"),
        (Node("y", "tanh", types=(TYPE,)), "tanh 'y' takes 1 inputs, not 0"),
        (
            Node("y", "tanh", (Value("x"),), types=(TensorType((3, 2)),)),
            r"tanh 'y' gives .*\(2, 3\).*, not .*\(3, 2\)",
        ),
    ],
)
def test_a_node_that_does_not_fit_its_inputs(node, message):
    with pytest.raises(GraphError, match=message):
        Graph.of([X, node], [])


def test_prune_keeps_what_outputs_need_and_the_origins_of_gradients():
    unused = Node("unused", VARIABLE, types=(TYPE,))
    grad = Node("grad", "tanh", (Value("x"),), types=(TYPE,), origin="y")
    graph = Graph.of([X, unused, tanh(Value("x")), tanh(Value("y"), "z"), grad], [Value("z")])
    assert list(prune(graph, [Value("y")]).nodes) == ["x", "y"]
    assert list(prune(graph, [Value("grad")]).nodes) == ["x", "y", "grad"]
    assert prune(graph, [Value("z")]).outputs == (Value("z"),)


def test_users_are_named_once():
    both = Node("sum", "elemwise_add", (Value("x"), Value("x")), types=(TYPE,))
    graph = Graph.of([X, both, tanh(Value("x"))], [])
    assert graph.users() == {Value("x"): ["sum", "y"]}
