"""The cut: bodies that are graphs of their own, and one edge a value and destination."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import symgraph.frontend.sym as sym
from partitioner import BodyKey, Partition, Placement, group2ctx
from partitioner.cutting.cut import cut, runs_before
from runtime.schedule.generators.segments import expand
from runtime.schedule.generators.table import SCHEDULES
from symgraph.core.context import cpu
from symgraph.core.errors import PlacementError
from symgraph.core.graph import Graph, Node
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.core.types import Array, TensorType, Value
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.frontend.symbol import Symbol
from symgraph.passes.gradients import gradients
from tests.helpers.networks import random_case
from tests.helpers.recurrent import lstm_case

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")

DEVICES = [cpu(i) for i in range(3)]
GROUPS = {f"g{i}": device for i, device in enumerate(DEVICES)}


def group(number: int) -> AttrScope:
    return AttrScope(ctx_group=f"g{number}")


def partition_of(symbol: Symbol, wrt: list[str], **shapes: tuple[int, ...]) -> Partition:
    both = gradients(lower(symbol, shapes), wrt)
    return cut(both.graph, group2ctx(both.graph, GROUPS, DEVICES[0], DEVICES))


def edges(partition: Partition) -> list[str]:
    return [f"{e.value} {e.src}->{e.dst}" for e in partition.edges]


def keeps(partition: Partition, key: str) -> list[str]:
    (body,) = [b for k, b in partition.bodies.items() if str(k) == key]
    return list(map(str, body.keeps))


# -- what runs before what --------------------------------------------------------------------

BEFORE = {  # every pair of bodies of a stage that no schedule may run the other way round
    "F F": {(0, 1), (0, 2), (1, 2)},  # segments in rising order
    "B B": {(1, 0), (2, 0), (2, 1)},  # and back
    "I I": {(1, 0), (2, 0), (2, 1)},
    "W W": {(1, 0), (2, 0), (2, 1)},
    "I W": {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)},  # W.2 may be done before I.1
    **{f"F {phase}": {(i, j) for i in range(3) for j in range(3)} for phase in "BIW"},
}


@pytest.mark.parametrize("phases", ["FB", "FIW"])
def test_what_runs_before_what(phases):
    """Plan and run both ask `runs_before` how long to keep a value, so no run shows a mistake."""
    for a in [BodyKey(4, phase, k) for phase in phases for k in range(3)]:
        for b in [BodyKey(4, phase, k) for phase in phases for k in range(3)]:
            pairs = BEFORE.get(f"{a.phase} {b.phase}", set())
            assert runs_before(a, b) == ((a.segment, b.segment) in pairs), (a, b)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_keeps_that_order(name):
    ranks = [0, 1, 1, 0] if name in ("zb-v", "dualpipe-v") else [0, 1]
    for program in expand(SCHEDULES[name](ranks, 4), 3):
        runs = [(run.mb, run.key) for run in program]
        place = {run: i for i, run in enumerate(runs)}
        for mb, a in runs:
            for other, b in runs:
                if mb == other and a.stage == b.stage and runs_before(a, b):
                    assert place[mb, a] < place[mb, b]


def test_values_are_kept_until_the_last_reader_of_any_schedule():
    """h1 is read by I.1 and by W.2, in either order, so neither may drop it; w's last is I.1."""
    w, h = sym.Variable("w"), sym.Variable("h")
    for t in range(3):
        with AttrScope(time_step=str(t)):
            h = sym.tanh(sym.dot(h, w, name=f"p{t}"), name=f"h{t}")
    graph = gradients(lower(sym.MakeLoss(h, name="loss"), {"w": (2, 2), "h": (2, 2)}), ["w"]).graph
    found = cut(graph, group2ctx(graph, None, cpu(0)), split=True, time_segment=1)
    assert {str(key): keeps(found, str(key)) for key in found.bodies} == {
        "0F": ["h", "w", "h0"],
        "0F.1": ["h0", "w", "h1"],
        "0F.2": ["h1", "w", "h2"],
        "0I.2": ["w", "h2_grad0", "p2_grad0"],
        "0I.1": ["h1", "h1_grad0", "p1_grad0"],
        "0I": ["h0", "h0_grad0"],
        "0W.2": ["h1", "p2_grad1"],
        "0W.1": ["h0", "w_grad0"],
        "0W": [],
    }


# -- pictures --------------------------------------------------------------------------------


def test_forward_and_backward_of_two_stages():
    """x -> tanh on 0, its square on 1: the square's gradient reads what forward kept."""
    with group(0):
        y = sym.tanh(sym.Variable("x"), name="y")
    with group(1):
        z = sym.MakeLoss(sym.square(y, name="z"), name="loss")
    found = partition_of(z, ["x"], x=(2, 3))
    assert list(map(str, found.bodies)) == ["0F", "0B", "1F", "1B"]
    assert found.edges[0].value == Value("y")
    assert [(str(e.src), str(e.dst)) for e in found.edges] == [("0F", "1F"), ("1B", "0B")]
    assert keeps(found, "0F") == ["y"]  # for the gradient of tanh
    assert keeps(found, "1F")[0] == "y"  # received for z, kept for its gradient, not sent again
    assert keeps(found, "1B") == []
    assert found.bodies[BodyKey(1, "F")].results == (Value("loss"),)
    assert found.bodies[BodyKey(0, "B")].results == (found.graph.outputs[1],)


def test_a_value_is_sent_once_to_each_stage_that_reads_it():
    with group(0):
        y = sym.tanh(sym.Variable("x"), name="y")
    with group(1):
        a = sym.add_n(y, y * 2.0, sym.exp(y), y, name="a")
    with group(2):
        b = sym.add_n(y, sym.sigmoid(y), a, name="b")
    found = partition_of(b, ["x"], x=(2,))
    forward = [e for e in edges(found) if "F->" in e]
    assert forward == ["y 0F->1F", "y 0F->2F", "a 1F->2F"]


def test_gradients_that_are_made_on_one_stage_are_added_there():
    """y is read three times on stage 1: one gradient comes back, not three."""
    with group(0):
        y = sym.tanh(sym.Variable("x"), name="y")
    with group(1):
        a = sym.add_n(y * 2.0, sym.exp(y), sym.sigmoid(y), name="a")
    assert Counter(e.split()[1] for e in edges(partition_of(a, ["x"], x=(2,)))) == {
        "0F->1F": 1,
        "1B->0B": 1,
    }


def test_a_weight_used_often_on_another_stage_is_sent_once_each_way():
    """Without the sum on stage 1 there would be a message of the weight's size for each use."""
    with group(0):
        w = sym.Variable("w_weight")
        x = sym.tanh(sym.Variable("x"), name="y")
    with group(1):
        for _ in range(5):
            x = sym.FullyConnected(x, w, num_hidden=3, no_bias=True)
    found = partition_of(x, ["w_weight"], x=(2, 3))
    assert sorted(edges(found)[:2]) == ["w_weight 0F->1F", "y 0F->1F"]
    assert [(str(e.src), str(e.dst), e.type.shape) for e in found.edges[2:]] == [
        ("1B", "0B", (3, 3))
    ]


def test_skip_connections_go_straight_to_their_reader():
    """Pipelines 15: 0 -> 2 passes by stage 1, forward and backward."""
    with group(0):
        y = sym.tanh(sym.Variable("x"), name="y")
    with group(1):
        z = sym.exp(y, name="z")
    with group(2):
        out = sym.elemwise_mul(y, z, name="out")
    found = partition_of(out, ["x"], x=(2,))
    pairs = [(str(e.src), str(e.dst)) for e in found.edges]
    assert pairs[:3] == [("0F", "1F"), ("0F", "2F"), ("1F", "2F")]
    assert sorted(pairs[3:]) == [("1B", "0B"), ("2B", "0B"), ("2B", "1B")]


def test_a_value_that_only_the_backward_phase_reads_is_received_then():
    type_ = TensorType((2,))
    nodes = [
        Node("x", "variable", types=(type_,)),
        Node("y", "tanh", (Value("x"),), types=(type_,)),
        Node("e", "exp", (Value("x"),), types=(type_,)),
        Node("g", "elemwise_mul", (Value("y"), Value("e")), types=(type_,), origin="e"),
    ]
    placement = Placement({"x": 0, "y": 0, "e": 1}, (0, 1), tuple(DEVICES[:2]))
    found = cut(Graph.of(nodes, [Value("g")]), placement)
    assert edges(found) == ["x 0F->1F", "y 0F->1B"]
    assert keeps(found, "1F") == ["e"]


def test_a_sum_of_forward_values_in_a_gradient_stays_where_it_is_needed():
    """Else a backward body would wait for one of an earlier stage."""
    type_ = TensorType((2,))
    nodes = [
        Node("x", "variable", types=(type_,)),
        Node("y", "tanh", (Value("x"),), types=(type_,)),
        Node("e", "exp", (Value("y"),), types=(type_,)),
        Node("g", "elemwise_add", (Value("x"), Value("y")), types=(type_,), origin="e"),
    ]
    placement = Placement({"x": 0, "y": 0, "e": 1}, (0, 1), tuple(DEVICES[:2]))
    found = cut(Graph.of(nodes, [Value("g")]), placement)
    assert edges(found) == ["x 0F->1B", "y 0F->1F"]
    assert found.bodies[BodyKey(1, "B")].results == (Value("g"),)


def test_a_fed_variable_that_another_stage_reads_is_sent():
    with group(0):
        x = sym.Variable("x")
        y = sym.tanh(x, name="y")
    with group(1):
        z = sym.elemwise_add(y, x, name="z")
    assert edges(partition_of(z, [], x=(2,))) == ["x 0F->1F", "y 0F->1F"]


def test_an_output_that_nobody_reads_stays_and_one_that_is_not_asked_for_is_not_sent():
    with group(0):
        parts = sym.SliceChannel(sym.Variable("x"), num_outputs=3, name="parts")
    with group(1):
        y = sym.exp(parts[2], name="y")
    found = partition_of(sym.Group([parts[0], y]), [], x=(2, 3))
    assert edges(found) == ["parts[2] 0F->1F"]
    assert found.bodies[BodyKey(0, "F")].graph.outputs == (Value("parts"), Value("parts", 2))
    assert found.bodies[BodyKey(0, "F")].results == (Value("parts"),)


def test_there_and_back_sends_both_ways():
    """G9 (A, B, A): three stages on two ranks; one pair each way and phase."""
    with group(0):
        y = sym.tanh(sym.Variable("x"), name="y")
    with group(1):
        y = sym.exp(y, name="z")
    with group(0):
        y = sym.sigmoid(y, name="out")
    found = partition_of(y, ["x"], x=(2,))
    assert found.placement.rank_of == (0, 1, 0)
    assert [(str(e.src), str(e.dst)) for e in found.edges] == [
        ("0F", "1F"),
        ("1F", "2F"),
        ("2B", "1B"),
        ("1B", "0B"),
    ]
    assert all(found.crosses(e) for e in found.edges)


def test_an_edge_between_stages_of_one_rank_is_no_message():
    with group(0):
        x = sym.tanh(sym.Variable("x"), name="y")
    with group(1):
        z = sym.exp(x, name="z")
    with group(0):
        out = sym.elemwise_add(x, z, name="out")
    found = partition_of(out, [], x=(2,))
    assert edges(found) == ["y 0F->1F", "y 0F->2F", "z 1F->2F"]
    assert [found.crosses(e) for e in found.edges] == [True, False, True]


def test_a_node_without_stage_is_refused():
    graph = lower(sym.tanh(sym.Variable("x"), name="y"), {"x": (2,)})
    with pytest.raises(PlacementError, match="node 'y' is not placed on any stage"):
        cut(graph, Placement({"x": 0}, (0,), (cpu(),)))


# -- unrolled networks ---------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_cut_between_two_layers_sends_one_value_a_time_step(steps):
    """P2: T forward and T gradient messages of (B, H), and not one more."""
    case = lstm_case(2, steps, batch=4, hidden=3)
    shapes = {n: a.shape for n, a in (case.feeds | case.arrays).items()}
    both = gradients(lower(case.symbol, shapes), case.trained())
    groups = {"layer0": cpu(0), "layer1": cpu(1), "head": cpu(1)}
    found = cut(both.graph, group2ctx(both.graph, groups, cpu(0)))
    assert found.placement.rank_of == (0, 1)
    assert Counter((str(e.src), str(e.dst)) for e in found.edges) == {
        ("0F", "1F"): steps,
        ("1B", "0B"): steps,
    }
    assert {e.type.shape for e in found.edges} == {(4, 3)}


# -- meaning -------------------------------------------------------------------------------------


def by_hand(partition: Partition, feeds: dict[str, Array], env: Env) -> list[Array]:
    """The outputs of the whole graph, from bodies evaluated one after the other.

    A body sees what is fed, what came along edges to its own phase or an earlier one of its
    stage, and what earlier phases of its stage keep: nothing else.
    """
    arrived: dict[BodyKey, dict[Value, Array]] = {key: {} for key in partition.bodies}
    held: dict[int, dict[Value, Array]] = {k.stage: {} for k in partition.bodies}
    results: dict[Value, Array] = {}
    forward = [k for k in partition.bodies if k.phase == "F"]
    backward = [k for k in partition.bodies if k.phase == "B"]
    for key in [*forward, *reversed(backward)]:
        body = partition.bodies[key]
        known = held[key.stage] | arrived[key]
        given = {name: known[value] for name, value in body.imports.items()}
        made = dict(zip(body.graph.outputs, evaluate(body.graph, feeds | given, env), strict=True))
        results |= {v: made[v] for v in body.results}
        own = {v: feeds[v.node] for v in body.keeps if v.node in feeds}
        known = known | made | own
        held[key.stage] = {v: known[v] for v in body.keeps}
        for edge in partition.edges:
            if edge.src == key:
                arrived[edge.dst][edge.value] = made[edge.value]
    return [results[v] for v in partition.graph.outputs]


@pytest.mark.parametrize("seed", range(30))
def test_bodies_one_after_the_other_are_the_whole_graph(seed):
    """And every edge, kept value and import is there for a reader."""
    case = random_case(seed)
    feeds = case.feeds | case.arrays
    shapes = {n: a.shape for n, a in feeds.items()}
    graph = lower(case.symbol, shapes, dict.fromkeys(feeds, "float64"))
    both = gradients(graph, case.trained(), heads=False)
    rng = np.random.default_rng(seed)
    groups = {f"g{g}": DEVICES[rng.integers(3)] for g in range(4)}
    partition = cut(both.graph, group2ctx(both.graph, groups, DEVICES[0], DEVICES))
    env = Env(train=True)
    want = evaluate(both.graph, feeds, env)
    for got, value in zip(by_hand(partition, feeds, env), want, strict=True):
        assert got.tobytes() == value.tobytes()
    assert len({(e.value, e.dst.stage) for e in partition.edges}) == len(partition.edges)
    assert [e.tag for e in partition.edges] == list(range(len(partition.edges)))
    made = [n.name for b in partition.bodies.values() for n in b.graph if n.name not in b.imports]
    assert sorted(made) == sorted(both.graph.nodes)
    for body in partition.bodies.values():
        read = {v.node for n in body.graph for v in n.inputs}
        assert set(body.imports) <= read


def test_a_weight_that_is_used_very_often():
    """Its gradient is a sum of sums, as many deep as there are time steps."""
    x, w = sym.Variable("x"), sym.Variable("w")
    for _ in range(1200):
        x = sym.tanh(sym.dot(x, w))
    with group(1):
        y = sym.tanh(x)
    with group(0):
        loss = sym.MakeLoss(x + y, name="loss")
    partition = partition_of(loss, ["w"], x=(2, 2), w=(2, 2))
    assert {str(key) for key in partition.bodies} >= {"0F", "0B", "1F", "1B"}
    assert not any(edge.exchange for edge in partition.edges)
