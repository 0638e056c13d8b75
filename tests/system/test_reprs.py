"""What objects show in a Python shell: `repr(plan)` of a network had 1,221,185 characters."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

import runtime
import symgraph as sg
from partitioner import group2ctx
from partitioner.views.picture import svg as placement_svg
from runtime.training.job import prepare
from symgraph.app.config import load_config
from symgraph.frontend.lower import lower

CHANGES = (
    "data={kind: random, batch_size: 8}",
    "group2ctx={first: cpu(0), second: cpu(1)}",
    "pipeline.micro_batches=4",
)


@pytest.fixture(scope="module")
def job():
    return prepare(load_config("examples/table.yaml", CHANGES))


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


@pytest.mark.slow
def test_notebooks_draw_what_planning_returns(job):
    """As well-formed XML, a few pages at most, with names of others escaped."""
    plan = job.training
    with sg.AttrScope(ctx_group="<b>&"):
        strange = sg.sym.tanh(sg.sym.Variable("x<i>"), name='"t"\n\x1b[2J')
    profile = sg.profile(plan, steps=1, baseline=False).profile
    assert repr(profile).startswith("<Profile: 1 step, median ")
    timeline = profile.typical.predicted
    metric = sg.metric.create("acc")
    metric.accumulate(3, 4)
    lowered = lower(strange, {"x<i>": (2, 3)})
    placed = group2ctx(lowered, {"<b>&": sg.cpu(1)}, sg.cpu(0))
    drawn = {
        "Symbol": job.model.symbol._repr_svg_(),
        "names": strange._repr_svg_(),
        "groups": placement_svg(lowered, placed),
        "Partition": plan.partition._repr_svg_(),
        "Timeline": timeline._repr_svg_(),
        "Plan": plan._repr_html_(),
        "Schedule": plan.schedule._repr_html_(),
        "Graph": plan.partition.graph._repr_html_(),
        "named": lowered._repr_html_(),
        "metric": metric._repr_html_(),
    }
    for name, text in drawn.items():
        ElementTree.fromstring(text)
        assert len(text) < 60_000, name
        assert "\x1b" not in text
        assert "<i>" not in text
    assert "0.75" in drawn["metric"]
    assert repr(timeline).startswith("<Timeline: 2 ranks, ")
    large = sg.rnn.LSTMCell(4).unroll(90, sg.sym.Variable("x"), merge_outputs=True)[0]
    assert large._repr_svg_() is None


def test_what_runs_is_told_in_a_line():
    network = sg.sym.FullyConnected(sg.sym.Variable("data"), num_hidden=2, name="fc")
    with network.simple_bind(sg.cpu(0), data=(4, 3)) as executor:
        assert repr(executor) == f"<Executor of <Symbol fc>: 3 arguments, {executor.plan!r}>"
        ElementTree.fromstring(executor._repr_html_())
        assert str(executor) == f"{executor!r}\n{executor.plan}"
        assert repr(executor.plan).startswith("<Plan: ")
    module = sg.mod.Module(network, label_names=())
    assert repr(module) == str(module) == "<Module of <Symbol fc>, not bound>"
    batches = sg.io.NDArrayIter(np.zeros((8, 3)), batch_size=4)
    module.bind(batches.provide_data)
    module.init_params()
    module.init_optimizer(optimizer="adam")
    bound = "<Module of <Symbol fc>, bound to data (4, 3), Adam, <Plan: gpipe, 1 micro-batch, "
    assert repr(module) == f"{bound}1 stage on cpu(0)>>"
    assert str(module) == f"{module!r}\n{module.plan}"
    ElementTree.fromstring(module._repr_html_())
    assert repr(batches) == "<NDArrayIter: batches of data (4, 3)>"
    assert repr(next(batches)) == "<DataBatch: data [(4, 3)], label [], 0 padded>"
    with runtime.ThreadCluster(2) as cluster:
        assert repr(cluster) == "<ThreadCluster: 2 ranks>"
    options = runtime.Options({"a": sg.cpu(1)}, micro_batches=2)
    assert repr(options) == "Options(groups={'a': cpu(1)}, micro_batches=2)"


def test_outputs_of_one_node_look_different():
    cell = sg.rnn.LSTMCell(4, prefix="a_")
    _, states = cell(sg.sym.Variable("x"), cell.begin_state())
    assert [*map(repr, states)] == ["<Symbol a_t0_out>", "<Symbol a_t0_out_state>"]


def test_a_metric_shows_its_value():
    metric = sg.metric.create("acc")
    metric.accumulate(3, 4)
    assert repr(metric) == "<Accuracy {'accuracy': 0.75}>"
    assert str(metric) == "EvalMetric: {'accuracy': 0.75}"  # as MXNet's
