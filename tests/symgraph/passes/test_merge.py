"""Passes over whole graphs: each gives the numbers of the graph that it was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import symgraph as sg
import symgraph.frontend.sym as sym
from symgraph.core.graph import Graph
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.frontend.symbol import Symbol
from symgraph.passes.gradients import gradients
from symgraph.passes.merge import merge_products, sum_products
from symgraph.passes.simplify import fold, share
from tests.helpers.networks import random_case
from tests.helpers.pipelines import Case
from tests.helpers.recurrent import lstm_case

Pass = Callable[[Graph], Graph]
PASSES: dict[str, Pass] = {
    "merge": lambda graph: merge_products(graph, lambda node: 0),
    "sum": lambda graph: sum_products(graph, lambda node: 0),
    "share": lambda graph: share(graph, lambda node: node.origin is None),
    "fold": fold,
}
PASSES["all"] = lambda graph: PASSES["share"](PASSES["sum"](PASSES["merge"](fold(graph))))


def both(case: Case) -> Graph:
    arrays = case.feeds | case.arrays
    shapes = {n: a.shape for n, a in arrays.items()}
    graph = lower(case.symbol, shapes, {n: str(a.dtype) for n, a in arrays.items()})
    return gradients(graph, list(case.arrays), heads=False).graph


def count(graph: Graph) -> Counter[str]:
    return Counter(n.op for n in graph)


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("seed", range(12))
def test_a_pass_changes_no_number(seed, name):
    case = lstm_case(2, 4, seed=seed) if seed % 3 == 0 else random_case(seed)
    graph = both(case)
    after = PASSES[name](graph)
    assert after.outputs == graph.outputs
    env = Env(train=True, seed=seed)
    feeds = case.feeds | case.arrays
    wanted = evaluate(graph, feeds, env)
    for got, want in zip(evaluate(after, feeds, env), wanted, strict=True):
        np.testing.assert_allclose(got, want, 1e-10, 1e-10)


def test_a_layers_inputs_are_projected_at_once_and_its_states_one_by_one():
    graph = both(lstm_case(2, 5))
    merged = PASSES["merge"](graph)
    assert count(graph)["FullyConnected"] == 2 * 2 * 5
    assert count(merged)["FullyConnected"] == 2 * (1 + 5)
    assert merged["l1_t3_i2h"].op == "slice_axis"


def test_a_weights_gradient_is_one_product_over_time():
    after = PASSES["all"](both(lstm_case(2, 5)))
    assert count(after)["_fc_grad_weight"] == 4
    assert count(after)["_sum_rows"] == 2  # both biases of a layer have the same


def steps(feedback: bool) -> Symbol:
    """Three time steps of two dense layers; with feedback the upper one's output goes below."""
    weights = [sym.Variable(f"w{i}") for i in range(2)]
    x = list(sym.SliceChannel(sym.Variable("x"), num_outputs=3, axis=0, squeeze_axis=True))
    below: Symbol | None = None
    made = []
    for t in range(3):
        with AttrScope(time_step=str(t)):
            data = x[t] if below is None or not feedback else x[t] + below
            for weight in weights:
                data = sym.tanh(sym.FullyConnected(data, weight, num_hidden=4, no_bias=True))
            below = data
            made.append(data)
    return sym.Group(made)


@pytest.mark.parametrize("feedback", [False, True])
def test_what_needs_its_own_result_is_not_merged(feedback):
    graph = lower(steps(feedback), {"x": (3, 2, 4)})
    assert count(PASSES["merge"](graph))["FullyConnected"] == (6 if feedback else 2)


def test_products_of_different_homes_are_kept_apart():
    graph = lower(steps(False), {"x": (3, 2, 4)})
    merged = merge_products(graph, lambda node: node.tags.get("__time_step__") == "0")
    assert count(merged)["FullyConnected"] == 2 * 2


def test_products_without_time_steps_are_left():
    weight, x = sym.Variable("w"), sym.Variable("x")
    made = [sym.FullyConnected(x * k, weight, num_hidden=3, no_bias=True) for k in (2, 3)]
    graph = lower(sym.Group(made), {"x": (2, 4)})
    assert PASSES["merge"](graph) is graph


def test_what_changes_nothing_is_left_out():
    x = sym.Variable("x")
    graph = lower(((x * 1 + 0) / 1) ** 1 + sym.zeros_like(x), {"x": (2, 3)})
    asked = fold(graph)
    assert count(asked) == {"variable": 1, "elemwise_add": 1, "zeros_like": 1}  # the output stays
    inner = lower(sym.tanh(((x * 1 + 0) / 1) + sym.zeros_like(x)), {"x": (2, 3)})
    assert count(fold(inner)) == {"variable": 1, "tanh": 1}


def test_equal_calls_are_shared_but_random_ones_are_not():
    x = sym.Variable("x")
    twice = [sym.tanh(x), sym.tanh(x), sym.Dropout(x, p=0.5), sym.Dropout(x, p=0.5)]
    graph = lower(sym.add_n(*twice), {"x": (2, 3)})
    found = count(share(graph, lambda node: 0))
    assert (found["tanh"], found["Dropout"]) == (1, 2)


def test_names_of_merged_nodes_do_not_depend_on_the_batch():
    """Micro-batches of two sizes must have the same bodies."""
    names = []
    for batch in (2, 3):
        with sg.name.NameManager():
            graph = both(lstm_case(2, 3, batch=batch))
        names.append(list(PASSES["all"](graph).nodes))
    assert names[0] == names[1]
