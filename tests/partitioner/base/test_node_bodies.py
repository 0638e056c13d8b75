"""Owners: phases of nodes, and the backward phase in two."""

from __future__ import annotations

import pytest

import symgraph as sg
import symgraph.frontend.sym as sym
from partitioner import BodyKey, Partition, group2ctx
from partitioner.base.node_bodies import weight_nodes
from partitioner.cutting.cut import cut
from symgraph.core.context import cpu
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.frontend.symbol import Symbol
from symgraph.passes.gradients import Differentiated, gradients


def differentiated(symbol: Symbol, wrt: list[str], **shapes: tuple[int, ...]) -> Differentiated:
    return gradients(lower(symbol, shapes), wrt)


def ops(partition: Partition, key: BodyKey) -> list[str]:
    return [n.op for n in partition.bodies[key].graph if not n.is_variable]


def test_a_weight_used_twice_on_one_path():
    """x@W@W, the reproducer of pytorch#180952: two W products, one I product between them."""
    w = sym.Variable("w")
    y = sym.dot(sym.dot(sym.Variable("x"), w), w)
    both = differentiated(sym.MakeLoss(y, name="loss"), ["w"], x=(2, 3), w=(3, 3))
    found = cut(both.graph, group2ctx(both.graph, None, cpu(0)), split=True)
    waiting = ops(found, BodyKey(0, "W"))
    assert waiting.count("dot") == 2
    assert waiting.count("elemwise_add") == 1
    assert ops(found, BodyKey(0, "I")).count("dot") == 1
    assert [str(v) for v in found.bodies[BodyKey(0, "W")].results] == [str(both.grads["w"])]


def rnn(steps: int = 5) -> Symbol:
    with NameManager():
        outs, _ = sg.rnn.LSTMCell(3, prefix="l_").unroll(steps, sym.Variable("x"))
        return sym.LinearRegressionOutput(sym.add_n(*outs), sym.Variable("y"), name="loss")


PARAMETERS = ["l_i2h_weight", "l_i2h_bias", "l_h2h_weight", "l_h2h_bias"]


def test_an_unrolled_cell_has_one_product_a_step_in_each_phase():
    both = differentiated(rnn(), PARAMETERS, x=(2, 5, 3), y=(2, 3))
    waits = weight_nodes(both.graph)
    products = {"_fc_grad_weight": True, "_fc_grad_data": False}  # operator -> whether it waits
    found = {op: [n for n in both.graph if n.op == op] for op in products}
    for op, waiting in products.items():
        assert all((n.name in waits) == waiting for n in found[op])
    assert len(found["_fc_grad_weight"]) == 2 * 5
    assert [n.origin for n in found["_fc_grad_data"]] == [f"l_t{t}_h2h" for t in (4, 3, 2, 1)]


def test_what_waits_leads_to_gradients_of_variables_only():
    both = differentiated(rnn(), PARAMETERS, x=(2, 5, 3), y=(2, 3))
    waits = weight_nodes(both.graph)
    for node in both.graph:
        if node.name not in waits and node.origin is not None:
            assert not any(v.node in waits for v in node.inputs), node
    assert all(v.node in waits for v in both.grads.values())


def test_multi_output_nodes_whose_parts_go_different_ways():
    """One slice is a weight's factor, the other goes on (pytorch#170277)."""
    with AttrScope(ctx_group="a"):
        x = sym.Variable("x") * sym.Variable("v")
        parts = sym.SliceChannel(x, num_outputs=2, name="parts")
    with AttrScope(ctx_group="b"):
        out = sym.FullyConnected(parts[0], num_hidden=2, no_bias=True, name="fc") + parts[1]
        loss = sym.MakeLoss(out, name="loss")
    both = differentiated(loss, ["v", "fc_weight"], x=(2, 4), v=(2, 4))
    groups = {"a": cpu(0), "b": cpu(1)}
    found = cut(both.graph, group2ctx(both.graph, groups, cpu(0)), split=True)
    assert ops(found, BodyKey(1, "W")) == ["_fc_grad_weight", "identity"]
    assert "Concat" in ops(found, BodyKey(0, "I"))
    assert ops(found, BodyKey(0, "W"))[-1] == "identity"


@pytest.mark.parametrize("split", [False, True])
def test_a_parameter_tied_across_stages(split):
    """Its gradient's second term is a message from W to W: nobody waits for it before."""
    with AttrScope(ctx_group="a"):
        w = sym.Variable("w")
        h = sym.tanh(sym.FullyConnected(sym.Variable("x"), w, num_hidden=3, no_bias=True))
    with AttrScope(ctx_group="b"):
        y = sym.FullyConnected(h, w, num_hidden=3, no_bias=True)
        loss = sym.MakeLoss(y, name="loss")
    both = differentiated(loss, ["w"], x=(2, 3), w=(3, 3))
    groups = {"a": cpu(0), "b": cpu(1)}
    found = cut(both.graph, group2ctx(both.graph, groups, cpu(0)), split=split)
    back = "W" if split else "B"
    of_w = [e for e in found.edges if e.type.shape == (3, 3) and e.src.phase != "F"]
    assert [(str(e.src), str(e.dst)) for e in of_w] == [(f"1{back}", f"0{back}")]


def test_gradients_of_fed_data_wait_as_well():
    both = differentiated(rnn(2), ["x"], x=(2, 2, 3), y=(2, 3))
    assert both.grads["x"].node in weight_nodes(both.graph)


def test_variables_live_in_the_first_segment_that_reads_them():
    with NameManager():
        outs, _ = sg.rnn.RNNCell(3, prefix="l_").unroll(4, sym.Variable("x"))
        head = sym.FullyConnected(sym.Concat(*outs, dim=0), num_hidden=2, name="head")
    graph = lower(head, {"x": (2, 4, 3)})
    found = cut(graph, group2ctx(graph, None, cpu(0)), time_segment=2)
    homes = {
        n.name: key.segment
        for key, body in found.bodies.items()
        for n in body.graph.variables
        if n.name not in body.imports
    }
    assert homes == {
        "x": 0,
        "l_i2h_weight": 0,
        "l_i2h_bias": 0,
        "l_h2h_weight": 0,
        "l_h2h_bias": 0,
        "head_weight": 1,
        "head_bias": 1,
    }
