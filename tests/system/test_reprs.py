"""What objects show in a Python shell: `repr(plan)` of a network had 1,221,185 characters."""

from __future__ import annotations

import pytest

import symgraph as sg
from runtime.training.job import prepare
from symgraph.app.config import load_config


@pytest.fixture(scope="module")
def job():
    return prepare(load_config("examples/table.yaml", ("data={kind: random, batch_size: 8}",)))


def test_what_planning_returns_is_told_in_a_line(job):
    plan = job.training
    shown = {
        "Plan": plan,
        "Partition": plan.partition,
        "Placement": plan.placement,
        "Schedule": plan.schedule,
        "Graph": plan.partition.graph,
        "Symbol": job.model.symbol.get_internals(),
    }
    for name, thing in shown.items():
        text = repr(thing)
        assert text.startswith(f"<{name}")
        assert len(text) < 200
        assert "\n" not in text
    assert "4 micro-batches, 2 stages on cpu(0) and cpu(1)" in repr(plan)
    assert str(plan.partition) in str(plan)


def test_outputs_of_one_node_look_different():
    cell = sg.rnn.LSTMCell(4, prefix="a_")
    _, states = cell(sg.sym.Variable("x"), cell.begin_state())
    assert [*map(repr, states)] == ["<Symbol a_t0_out>", "<Symbol a_t0_out_state>"]


def test_a_metric_shows_its_value():
    metric = sg.metric.create("acc")
    metric.accumulate(3, 4)
    assert repr(metric) == "<Accuracy {'accuracy': 0.75}>"
    assert str(metric) == "EvalMetric: {'accuracy': 0.75}"  # as MXNet's
