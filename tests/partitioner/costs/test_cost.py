"""Costs of nodes and bodies: by counting before anything has run, by measurement afterwards."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from partitioner import group2ctx
from partitioner.base.types import Body
from partitioner.costs.cost import Caches, CostTable, Measured, Rates, Speed, Variation, signature
from partitioner.cutting.cut import cut
from runtime.profiling.calibration.rates import measure_speed, seconds_of_calls
from symgraph import cpu, rnn
from symgraph.core.errors import ConfigError
from symgraph.core.graph import Graph
from symgraph.core.types import Value
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import op_graph

SPEED = Speed(flops=1000.0, call=2.0)
RATES = Rates(1e9, 1e9)


def body_of(graph: Graph) -> Body:
    (body,) = cut(graph, group2ctx(graph, None, cpu(0))).bodies.values()
    return body


def dense() -> Graph:
    net = sym.tanh(sym.FullyConnected(sym.Variable("x"), num_hidden=3, no_bias=True, name="fc"))
    return lower(net, {"x": (5, 4)})


def table(**measured: Measured) -> CostTable:
    """Costs of `dense`: those of its calls named, the others unknown."""
    graph = dense()
    known = {signature(graph[name], graph): m for name, m in measured.items()}
    return CostTable(SPEED, RATES, Caches(1, 2), known, {}, {})


def text_of(op: str, *arrays: object, **attrs: object) -> str:
    graph = op_graph(op, arrays, **attrs)
    return signature(graph["op"], graph)


# -- signatures --------------------------------------------------------------------------------


def test_a_signature_can_be_read():
    graph = dense()
    assert signature(graph["fc"], graph) == (
        "FullyConnected(float32[5,4] float32[3,4]; flatten=True, no_bias=True, num_hidden=3)"
        " -> float32[5,3]"
    )
    many = text_of("stack", *[np.zeros((2, 3))] * 4, num_args=4, axis=1)
    assert many == "stack(4*float64[2,3]; axis=1, num_args=4) -> float64[2,4,3]"


def lstm_signatures(steps: int) -> list[str]:
    """Of two layers with gradients, all steps' outputs added up."""
    outputs = sym.Variable("data")
    for layer in range(2):
        cell = rnn.LSTMCell(3, prefix=f"l{layer}_")
        outputs, _ = cell.unroll(steps, outputs, merge_outputs=False)
    graph = lower(sym.MakeLoss(sum(outputs[1:], outputs[0])), {"data": (2, steps, 3)})
    weights = [n.name for n in graph.variables if n.name != "data"]
    both = gradients(graph, weights).graph
    return [signature(n, both) for n in both if not n.is_variable]


def test_time_steps_and_layers_share_their_signatures():
    short, long = lstm_signatures(4), lstm_signatures(8)
    assert len(long) > 1.8 * len(short)
    assert len(set(long)) == len(set(short))


def test_dropout_in_every_step_is_one_signature():
    """The masks of two nodes are different ones, but take as long."""
    net = sym.Dropout(sym.Dropout(sym.Variable("x"), name="a"), name="b")
    graph = lower(net, {"x": (5, 4)})
    assert graph["a"].attrs["stream"] != graph["b"].attrs["stream"]
    assert signature(graph["a"], graph) == signature(graph["b"], graph)


def test_slices_of_one_size_are_one_signature():
    x = np.zeros((6, 4))
    first = text_of("slice_axis", x, axis=0, begin=0, end=2)
    assert first == text_of("slice_axis", x, axis=0, begin=3, end=5)
    assert first != text_of("slice_axis", x, axis=0, begin=3, end=6)


def test_what_changes_the_time_changes_the_signature():
    x = np.zeros((4, 4))
    plain = text_of("dot", x, x)
    others = [
        text_of("dot", x, x, transpose_a=True),
        text_of("dot", np.zeros((8, 4)), x),
        text_of("dot", x.astype("float32"), x.astype("float32")),
        text_of("elemwise_mul", x, x),
    ]
    assert len({plain, *others}) == 5
    assert text_of("_power_scalar", x, scalar=2) != text_of("_power_scalar", x, scalar=2.5)


# -- estimates ---------------------------------------------------------------------------------


def test_a_body_costs_its_operations_and_its_calls():
    flops = 2 * 5 * 4 * 3 + 5 * 3
    assert SPEED.seconds(body_of(dense())) == pytest.approx(flops / 1000 + 2 * 2)


def test_a_call_that_moves_much_costs_its_bytes():
    graph = dense()
    slow = Speed(flops=1000.0, call=2.0, bandwidth=100.0)
    assert slow.seconds_of(graph["fc"], graph) == pytest.approx(2 + (20 + 12 + 15) * 4 / 100)
    assert slow.seconds_of(graph["x"], graph) == 0.0


def test_views_and_joins_cost_nothing():
    for graph in (
        op_graph("Reshape", [np.zeros((50, 40))], shape=(40, 50)),
        op_graph("Concat", [np.zeros((5, 4))] * 2, dim=0, num_args=2),
    ):
        assert Speed(1.0, 2.0, 1.0).seconds_of(graph["op"], graph) == 0.0
    copy = op_graph("transpose", [np.zeros((50, 40))])
    assert Speed(1.0, 2.0, 1.0).seconds_of(copy["op"], copy) == 2.0 + 2 * 50 * 40 * 8


def test_a_lookup_reads_the_rows_it_gives_and_not_the_whole_table():
    arrays = [np.zeros(3, "int32"), np.zeros((1000, 4))]
    graph = op_graph("Embedding", arrays, input_dim=1000, output_dim=4)
    rows, ids = 3 * 4 * 8, 3 * 4
    assert Speed(1.0, 0.0, 1.0).seconds_of(graph["op"], graph) == 2 * rows + ids


def test_this_machine_multiplies_faster_than_it_moves_and_calls_in_microseconds():
    speed = measure_speed()
    assert speed.flops > speed.bandwidth / 12 > 1e6  # an addition moves 12 bytes
    assert 0 < speed.call < 1e-1
    assert 0 < seconds_of_calls("identity") < 1e-1


# -- tables ------------------------------------------------------------------------------------


def test_a_measured_kernel_costs_what_was_measured():
    costs, graph = table(fc=Measured(7.0, 0.1, 20)), dense()
    tanh = next(n for n in graph if n.op == "tanh")
    estimate = SPEED.seconds_of(tanh, graph)
    assert costs.seconds_of(graph["fc"], graph) == 7.0
    assert costs.seconds_of(tanh, graph) == estimate
    assert costs.seconds_of(graph["x"], graph) == 0.0
    assert costs.seconds(body_of(graph)) == pytest.approx(7.0 + estimate)
    assert costs.measured_share(graph) == pytest.approx(7.0 / (7.0 + estimate))


@pytest.mark.parametrize(
    ("rows", "since_last_run", "levels"),
    [
        (1, 0, "near near"),
        (1, 1 << 20, "shared near"),
        (1, 9 << 20, "far near"),
        (256, 0, "shared shared"),
        (256, 9 << 20, "far shared"),
        (8192, 0, "far far"),
    ],
)
def test_a_parameter_comes_from_the_cache_that_still_holds_it(rows, since_last_run, levels):
    """Two products with one weight of 256 KiB; between its uses rows are read and written."""
    x, weight = sym.Variable("x"), sym.Variable("w")
    first = sym.FullyConnected(x, weight, num_hidden=256, no_bias=True, name="first")
    net = sym.FullyConnected(sym.identity(first), weight, num_hidden=256, no_bias=True)
    graph = lower(net, {"x": (rows, 256)})
    seconds = {"near": 1.0, "shared": 10.0, "far": 100.0}
    known = {signature(graph["first"], graph): Measured(5.0, 0.1, 20, tuple(seconds.values()))}
    costs = CostTable(Speed(inf, 0.0), RATES, Caches(1 << 19, 1 << 23), known, {}, {})
    assert costs.seconds_of(graph["first"], graph) == 5.0
    expected = sum(seconds[name] for name in levels.split())
    assert costs.seconds(body_of(graph), since_last_run) == expected


def test_a_parameter_that_an_earlier_segment_read_comes_from_a_cache_too():
    """Only what a call has made a moment ago is at hand."""
    x, weight = sym.Variable("x"), sym.Variable("w")
    net = sym.FullyConnected(x, weight, num_hidden=256, no_bias=True, name="product")
    graph = lower(net, {"x": (1, 256)})
    known = {signature(graph["product"], graph): Measured(5.0, 0.1, 20, (1.0, 10.0, 100.0))}
    costs = CostTable(Speed(inf, 0.0), RATES, Caches(1 << 19, 1 << 23), known, {}, {})
    body = replace(body_of(graph), imports={"w": Value("w")})
    assert costs.seconds(body, 9 << 20, {"w"}) == 100.0
    assert costs.seconds(body, 9 << 20) == 5.0


def test_while_no_other_device_works_each_call_takes_its_own_share_of_its_time():
    graph = dense()
    product, tanh = (next(n for n in graph if n.op == op) for op in ("FullyConnected", "tanh"))
    known = {
        signature(product, graph): Measured(8.0, 0.1, 20, (4.0, 8.0, 16.0), 0.5),
        signature(tanh, graph): Measured(1.0, 0.1, 20),
    }
    costs = CostTable(SPEED, RATES, Caches(1, 2), known, {}, {})
    assert [costs.alone.seconds_of(node, graph) for node in (product, tanh)] == [4.0, 1.0]
    assert costs.alone.measured[signature(product, graph)].levels == (2.0, 4.0, 8.0)
    assert costs.alone.alone.measured == costs.alone.measured
    assert costs.least().seconds(body_of(graph)) == 3.0


def test_a_small_parameter_is_always_at_hand():
    costs, graph = table(fc=Measured(7.0, 0.1, 20, (1.0, 2.0, 3.0))), dense()
    tanh = next(n for n in graph if n.op == "tanh")
    assert costs.seconds(body_of(graph)) == pytest.approx(7.0 + SPEED.seconds_of(tanh, graph))


def test_nothing_measured_is_all_estimate():
    costs, graph = table(), dense()
    assert costs.seconds(body_of(graph)) == SPEED.seconds(body_of(graph))
    assert costs.measured_share(graph) == 0.0
    assert costs.measured_share(lower(sym.Variable("x"), {"x": (1,)})) == 1.0


def test_a_table_is_read_back_as_it_was_saved(tmp_path):
    costs = CostTable(
        Speed(1e11, 1.1e-6, 2.5e10),
        Rates(1.9e10, 1.1e10),
        Caches(1 << 20, 1 << 24),
        {"tanh(float32[3]) -> float32[3]": Measured(1 / 3, 1e-9, 40, (0.1, 0.2, 0.3), 0.8)},
        {"a() -> b": "IndexError: id 4 is outside 0..3"},
        {"host": "here", "cores": "2"},
        Variation(0.98, 1.07),
    )
    costs.save(tmp_path / "costs.json")
    assert CostTable.load(tmp_path / "costs.json") == costs
    endless = table()
    assert endless.speed.bandwidth == inf
    assert CostTable.from_json(endless.to_json()) == endless
    earlier = {key: value for key, value in endless.data().items() if key != "variation"}
    assert CostTable.from_data(earlier) == endless


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": 1}, "schema 1 is not 4"),
        ({"measured": {"tanh": [1.0]}}, "not enough values"),
        ({"speed": {"flops": 1.0}}, "call"),
        ({"rates": ["fast"]}, "fast"),
    ],
)
def test_a_file_that_is_no_table_says_so(tmp_path, change, why):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(json.loads(table().to_json()) | change))
    with pytest.raises(ConfigError, match=f"costs.json: not a table of costs.*{why}"):
        CostTable.load(path)


def test_text_that_is_no_table_says_so(tmp_path):
    for text in ("", "[]", "{}", "schema: 1"):
        with pytest.raises(ConfigError, match=r"costs(:1)?: not a table of costs"):
            CostTable.from_json(text)
    with pytest.raises(ConfigError, match=r"none\.json: no such table of costs"):
        CostTable.load(tmp_path / "none.json")


def test_a_table_prints_its_slowest_kernels_first():
    known = {"a": Measured(2e-6, 1e-7, 9), "b": Measured(3e-3, 2e-4, 9)}
    costs = CostTable(SPEED, RATES, Caches(1, 2), known, {"c": "E: no"}, {})
    assert [line.split() for line in str(costs).splitlines()] == [
        ["3.00", "ms", "±", "100", "µs", "b"],
        ["2", "µs", "±", "0.05", "µs", "a"],
        ["failed", "c:", "E:", "no"],
    ]
