"""Recomputation: the same values from copies, and less kept between the phases."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
import symgraph.frontend.sym as sym
from partitioner import Placement, group2ctx
from partitioner.base.types import AGAIN
from partitioner.cutting.cut import cut
from partitioner.cutting.recompute import recompute
from partitioner.memory.memory_plan import kept_bytes
from partitioner.memory.packing import to_cache_lines
from runtime.backends.bodies import next_states
from symgraph.core.context import cpu
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.core.types import Value
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.passes.gradients import Differentiated, gradients

SHAPES = {"x": (4, 6, 5), "y": (4, 6, 5)}


def network(steps: int = 6) -> tuple[Differentiated, Placement]:
    """Two LSTM layers with dropout between, one a stage, and a head that sees all steps."""
    with NameManager():
        with AttrScope(ctx_group="g0"):
            x = sym.Variable("x")
            x, _ = sg.rnn.LSTMCell(5, prefix="l0_").unroll(steps, x, merge_outputs=False)
            x = [sym.Dropout(h, p=0.5) for h in x]
        with AttrScope(ctx_group="g1"):
            x, _ = sg.rnn.LSTMCell(5, prefix="l1_").unroll(steps, x, merge_outputs=True)
            loss = sym.LinearRegressionOutput(sym.tanh(x), sym.Variable("y"), name="loss")
    graph = lower(loss, SHAPES, dict.fromkeys(loss.list_arguments(), "float64"))
    names = [n for n in loss.list_arguments() if n not in SHAPES]
    both = gradients(graph, names)
    return both, group2ctx(both.graph, {"g0": cpu(0), "g1": cpu(1)}, cpu(0))


def values(both: Differentiated) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {n.name: rng.standard_normal(n.types[0].shape) for n in both.graph.variables}


@pytest.mark.parametrize("steps", [None, 1, 2, 6])
@pytest.mark.parametrize("stages", [(), (0,), (1,), (0, 1)])
def test_the_same_bits_with_dropout(stages, steps):
    both, place = network()
    again = recompute(both.graph, place, stages, time_segment=steps)
    env = Env(train=True, seed=3, step=7)
    want = evaluate(both.graph, values(both), env)
    got = evaluate(again, values(both), env)
    assert [a.tobytes() for a in got] == [a.tobytes() for a in want]


@pytest.mark.parametrize("steps", [None, 2])
def test_only_what_comes_from_elsewhere_is_kept(steps):
    """A stage keeps what it received and, at the borders of segments, what the next one reads."""
    both, place = network()
    again = recompute(both.graph, place, (0, 1), time_segment=steps)
    partition = cut(again, place, time_segment=steps)
    state = to_cache_lines(4 * 5 * 8)
    first, second = kept_bytes(partition)
    if steps is None:
        assert (first, second) == (0, 6 * state)
    else:  # h and c at two borders; 4 slices of x; outputs that the head joins, of which the
        # last of a segment is its h
        assert first == 2 * 2 * state + 4 * state
        assert second == 6 * state + 2 * 2 * state + 2 * state
    full = kept_bytes(cut(both.graph, place, time_segment=steps))
    assert sum(kept_bytes(partition)) < sum(full) / 3


def test_copies_serve_their_originals_and_nobody_else_reads_them():
    both, place = network()
    again = recompute(both.graph, place, (0,))
    copies = {n.name: n for n in again if AGAIN in n.tags}
    assert copies
    for node in copies.values():
        assert again[node.origin].op == node.op
        assert again[node.origin].attrs == node.attrs
        assert place.stage_of[node.origin] == 0
    for node in again:
        if any(v.node in copies for v in node.inputs):
            assert node.origin is not None
    assert len(again) == len(both.graph) + len(copies)


def test_auxiliary_states_are_updated_once():
    """A BatchNorm that runs again gives its statistics to nobody."""
    with NameManager():
        h = sym.BatchNorm(sym.Variable("x"), name="bn", fix_gamma=False)
        loss = sym.MakeLoss(sym.tanh(h), name="loss")
    graph = lower(loss, {"x": (4, 3)})
    both = gradients(graph, ["bn_gamma", "bn_beta"])
    place = group2ctx(both.graph, None, cpu(0))
    again = recompute(both.graph, place, (0,))
    assert "bn_again" in again.nodes
    bodies = cut(again, place).bodies.values()
    updates = [name for body in bodies for name, _ in next_states(body)]
    assert sorted(updates) == ["bn_moving_mean", "bn_moving_var"]


def test_a_name_that_is_taken():
    x = sym.Variable("x")
    h = sym.tanh(sym.tanh(x, name="y"), name="y_again")
    graph = lower(sym.MakeLoss(h, name="loss"), {"x": (2,)})
    both = gradients(graph, ["x"])
    again = recompute(both.graph, group2ctx(both.graph, None, cpu(0)), (0,))
    assert {"y_again", "y_again_"} <= set(again.nodes)
    assert Value("loss") in again.outputs
