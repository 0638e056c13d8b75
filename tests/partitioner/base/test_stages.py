"""Stages: the nodes of each rank, gathered so that no two stages wait for each other."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from partitioner.base.stages import form_stages
from runtime.planning.options import Options
from symgraph.core.context import cpu
from symgraph.core.graph import Graph, Node
from symgraph.core.registry import VARIABLE
from symgraph.core.types import TensorType, Value
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from tests.helpers.networks import random_case, random_groups
from tests.helpers.pipelines import Case, in_pieces, judge, make_plan, on_devices

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")

TYPE = TensorType((2,), "float64")


def net(*lines: str) -> tuple[Graph, dict[str, int]]:
    """A graph and the rank of every node, from lines like `y@1 = a b` (no inputs: a variable)."""
    nodes, ranks = [], {}
    for line in lines:
        left, _, right = line.partition("=")
        name, rank = left.strip().split("@")
        ranks[name] = int(rank)
        inputs = tuple(Value(i) for i in right.split())
        op = {0: VARIABLE, 1: "tanh", 2: "elemwise_add"}[len(inputs)]
        nodes.append(Node(name, op, inputs, types=(TYPE,)))
    return Graph.of(nodes, [Value(nodes[-1].name)]), ranks


def stages(*lines: str) -> tuple[list[list[str]], tuple[int, ...]]:
    """(the nodes of every stage, the rank of every stage)."""
    stage_of, rank_of = form_stages(*net(*lines))
    return [[n for n, s in stage_of.items() if s == i] for i in range(len(rank_of))], rank_of


def test_one_rank_has_one_stage():
    assert stages("x@0", "a@0 = x", "b@0 = a x") == ([["x", "a", "b"]], (0,))


def test_a_chain_over_two_ranks_has_a_stage_each():
    found = stages("x@0", "a@0 = x", "b@1 = a", "c@1 = b a")
    assert found == ([["x", "a"], ["b", "c"]], (0, 1))


def test_there_and_back_has_three_stages():
    """G9 (A, B, A; ChainerMN's cycle): the picture of partitioner/base/stages.py."""
    found = stages("a0@0", "a1@0 = a0", "b2@1 = a1", "b3@1 = b2", "a4@0 = b3 a1")
    assert found == ([["a0", "a1"], ["b2", "b3"], ["a4"]], (0, 1, 0))


def test_every_turn_makes_a_stage():
    found = stages("x@0", "a@0 = x", "b@1 = a", "c@0 = b", "d@1 = c", "e@2 = d", "f@0 = e")
    assert found == ([["x", "a"], ["b"], ["c"], ["d"], ["e"], ["f"]], (0, 1, 0, 1, 2, 0))


def test_independent_nodes_of_a_rank_share_its_stage():
    r"""b and d stand at different depths, but nothing of rank 0 lies between them.

    rank 0   x ── a ──── c
                   \      \
    rank 1          b      d     y ── e
    """
    found = stages("x@0", "y@1", "a@0 = x", "b@1 = a", "c@0 = a", "d@1 = c", "e@1 = y")
    assert found == ([["x", "a", "c"], ["y", "b", "d", "e"]], (0, 1))


def test_ranks_that_share_nothing_are_independent():
    assert stages("x@1", "y@0", "a@1 = x", "b@0 = y") == ([["y", "b"], ["x", "a"]], (0, 1))


def test_two_layers_over_time_are_two_stages():
    """Every step of the second layer needs the first one's: still one stage a layer."""
    lines = ["h@0", "g@1"]
    for t in range(5):
        lines.append(f"h{t}@0 = {'h' if t == 0 else f'h{t - 1}'}")
        lines.append(f"g{t}@1 = {'g' if t == 0 else f'g{t - 1}'} h{t}")
    found, rank_of = stages(*lines)
    assert rank_of == (0, 1)
    assert found == [[f"h{t}" for t in ("", *range(5))], [f"g{t}" for t in ("", *range(5))]]


def test_a_parameter_joins_its_consumer():
    """w is first read in the second stage of rank 0, so it does not weigh on the first."""
    found = stages("x@0", "w@0", "a@0 = x", "b@1 = a", "c@0 = b w")
    assert found == ([["x", "a"], ["b"], ["w", "c"]], (0, 1, 0))


def test_a_parameter_that_another_rank_reads_comes_before_it():
    found = stages("x@0", "w@0", "a@0 = x", "b@1 = a w", "c@0 = b w")
    assert found == ([["x", "w", "a"], ["b"], ["c"]], (0, 1, 0))


def test_a_weight_in_half_precision_may_be_tied_over_two_devices():
    """Planning ended in a KeyError: the weight went behind its cast, which another rank reads."""
    weight, x = sym.Variable("weight"), sym.Variable("x")
    for group in "ab":
        with AttrScope(ctx_group=group):
            x = sym.FullyConnected(x, weight, num_hidden=4, no_bias=True)
    bits = []
    for home in (cpu(0), cpu(1)):
        groups = {"a": cpu(0), "b": home}
        bound = x.simple_bind(cpu(0), group2ctx=groups, precision="float16", x=(2, 4))
        bound.copy_params_from({"weight": np.full((4, 4), 0.3)})
        bits.append(bound.forward(x=np.full((2, 4), 0.7))[0].asnumpy().tobytes())
    assert bits[0] == bits[1]


def test_a_turn_back_on_one_way_only_splits_only_that_rank():
    r"""rank 1 could run b and d in one stage, but b feeds rank 0's c, which feeds d.

    rank 0   x ── a         c
                   \      /  \
    rank 1          b ───     d
    """
    found = stages("x@0", "a@0 = x", "b@1 = a", "c@0 = b", "d@1 = c b")
    assert found == ([["x", "a"], ["b"], ["c"], ["d"]], (0, 1, 0, 1))


def test_shards_on_one_device_and_replicas_on_two_read_one_input():
    """An input and a product with shard="2" were in a group on one device, and a group on two
    devices, replicated, read the same input. The planner ended in a KeyError: the input was put
    with its first reader, a shard, but the replica's slice of it was taken before any shard.
    """
    with AttrScope(ctx_group="shards", shard="2"):
        x = sym.Variable("x")
        left = sym.FullyConnected(x, num_hidden=4, name="left")
    with AttrScope(ctx_group="replicas"):
        right = sym.FullyConnected(x, num_hidden=4, name="right")
    with AttrScope(ctx_group="loss"):
        both = sym.Concat(left, right, dim=1)
        loss = sym.LinearRegressionOutput(both, sym.Variable("label"), name="loss")
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((6, 3)), "label": rng.standard_normal((6, 8))}
    shapes, _, _ = loss.infer_shape(x=(6, 3), label=(6, 8))
    named = zip(loss.list_arguments(), shapes, strict=True)
    arrays = {name: rng.standard_normal(shape) for name, shape in named if name not in feeds}
    case = Case(loss, feeds, arrays, {"x": 0, "label": 0})
    for shards, replicas in ((0, (0, 1)), (0, (1, 2)), (1, (1, 0)), (2, (0, 1))):
        groups = {"shards": cpu(shards), "replicas": [*map(cpu, replicas)], "loss": cpu(0)}
        outputs = in_pieces(case, on_devices(3, groups))[0].outputs
        np.testing.assert_allclose(outputs[0], judge(case).outputs[0], rtol=1e-12)


def random_net(seed: int, nodes: int = 40, ranks: int = 4) -> tuple[Graph, dict[str, int]]:
    rng = np.random.default_rng(seed)
    lines = [f"n0@{rng.integers(ranks)}"]
    for at in range(1, nodes):
        inputs = [f"n{rng.integers(at)}" for _ in range(rng.integers(3))]
        near = int(rng.integers(ranks)) if rng.random() < 0.5 else int(lines[-1].split("@")[1][0])
        lines.append(f"n{at}@{near} = {' '.join(inputs)}")
    return net(*lines)


@pytest.mark.parametrize("seed", range(100))
def test_values_flow_from_lower_to_higher_stages(seed):
    graph, ranks = random_net(seed)
    stage_of, rank_of = form_stages(graph, ranks)
    assert stage_of.keys() == graph.nodes.keys()
    assert set(stage_of.values()) == set(range(len(rank_of)))
    for node in graph:
        assert rank_of[stage_of[node.name]] == ranks[node.name]
        for value in node.inputs:
            assert stage_of[value.node] <= stage_of[node.name]


@pytest.mark.parametrize("seed", range(20))
def test_gradients_flow_from_higher_to_lower_stages(seed):
    case = random_case(seed)
    made = make_plan(case, Options(random_groups(seed, 3), cpu(0), (cpu(0), cpu(1), cpu(2))))
    partition = made.partition
    for edge in partition.edges:
        if edge.src.phase == "F":
            assert edge.src.stage < edge.dst.stage
        else:
            assert edge.dst.phase == "B"
            assert edge.src.stage > edge.dst.stage
    graph = partition.graph
    assert {n.name for n in graph if n.origin is None} <= partition.placement.stage_of.keys()


def digests() -> str:
    """What another process must find too, for random nets and whole plans."""
    options = [Options(random_groups(s, 3), cpu(0), (), "1f1b", 2) for s in range(4)]
    plans = [make_plan(random_case(s), o).digest for s, o in enumerate(options)]
    edges = [str(form_stages(*random_net(s))) for s in range(4)]
    return "\n".join([*plans, *edges])


@pytest.mark.slow
def test_another_process_finds_the_same_stages_and_edges():
    """P5: with another hash seed."""
    code = "from tests.partitioner.base.test_stages import digests; print(digests())"
    found = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            check=True,
            text=True,
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {digests() + "\n"}
